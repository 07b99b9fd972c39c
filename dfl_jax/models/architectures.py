"""Names of architectures and of DFML's groups of them."""

import re
from collections.abc import Sequence

from flax import linen as nn

from dfl_jax.models.cnn import ConvNet
from dfl_jax.models.efficientnet import VARIANTS, EfficientNet
from dfl_jax.models.resnet import PreActResNet
from dfl_jax.models.vit import ViT
from dfl_jax.setting_error import SettingError

FORMS = (
    'cnn-32-64 and resnet-64-128-256-512 (channels of each layer), vit-512-512 (of each layer, all '
    f'equal), {", ".join(f"efficientnet-{variant}" for variant in VARIANTS)}'
)

# DFML, Table 10: the architectures of each mode, spread evenly over the clients. h2_mixed is the
# experiment of section 4.4.6: the largest two ViT, four ResNet and four CNN of mode H2.
MODES: dict[str, tuple[str, ...]] = {
    'h0': ('cnn-32-64',),
    'h1_cnn': ('cnn-128-256', 'cnn-64-128', 'cnn-32-64', 'cnn-16-32', 'cnn-8-16'),
    'h1_resnet': (
        'resnet-64-128-256-512',
        'resnet-32-64-128-256',
        'resnet-16-32-64-128',
        'resnet-8-16-32-64',
        'resnet-4-8-16-32',
    ),
    'h1_vit': ('vit-512-512', 'vit-256-256', 'vit-128-128', 'vit-64-64', 'vit-32-32'),
    'h2_cnn': ('cnn-32-64-128-256', 'cnn-32-64-128', 'cnn-32-64', 'cnn-16-32-64', 'cnn-8-16-32-64'),
    'h2_efficientnet': tuple(f'efficientnet-{variant}' for variant in VARIANTS),
}
MODES['h2_mixed'] = MODES['h1_vit'][:2] + MODES['h1_resnet'][:4] + MODES['h2_cnn'][:4]


def architecture(name: str, classes: int, width: float = 1.0) -> nn.Module:
    """The network of that name.

    Args:
      name: as FORMS: cnn, resnet or vit and the channels, or efficientnet and the variant.
      classes: C.
      width: multiplies every channel count, rounded to integers, at least 1; for efficientnet to
        multiples of 8, at least 8.

    Raises:
      SettingError: any other name, or a width that is not positive.
    """
    if not width > 0:
        raise SettingError.of(f'width has to be positive, got {width}', width=width)
    family, *rest = name.split('-')
    if family == 'efficientnet' and len(rest) == 1 and rest[0] in VARIANTS:
        wide, deep, dropout = VARIANTS[rest[0]]
        return EfficientNet(classes, wide * width, deep, dropout)
    known = family in ('cnn', 'resnet') or (family == 'vit' and len(set(rest)) == 1)
    if known and rest and all(re.fullmatch('[1-9][0-9]*', layer) for layer in rest):
        network = {'cnn': ConvNet, 'resnet': PreActResNet, 'vit': ViT}[family]
        return network(classes, tuple(max(1, int(int(layer) * width + 0.5)) for layer in rest))
    text = f'unknown architecture {name!r}; the forms are {FORMS}'
    raise SettingError.of(text, architecture=name)


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """The architectures that a list of names of modes and of architectures stands for.

    Raises:
      SettingError: a name that is neither.
    """
    for name in names:
        if name not in MODES:
            try:
                architecture(name, classes=1)
            except SettingError as error:
                text = f'{error}; the modes are {", ".join(MODES)}'
                raise SettingError.of(text, architecture=name) from error
    return tuple(each for name in names for each in MODES.get(name, (name,)))
