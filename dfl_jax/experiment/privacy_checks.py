"""What is refused of privacy: what no noise covers, and what would have no effect."""

import inspect
from typing import Any

import jax
import numpy as np

from dfl_jax.base import Algorithm, Graph
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.run_settings import Privacy
from dfl_jax.method_settings import assemble
from dfl_jax.models import Model
from dfl_jax.setting_error import SettingError

SHARED = 'dp_correlated_noise'


def private_settings(configured: ConfiguredMethod) -> Any:
    """The settings of local training of a method, where they ask for privacy; else None."""
    factory = configured.method.factory
    default = inspect.signature(factory).parameters.get('training')
    training = assemble(factory, configured.settings).get('training', default and default.default)
    return training if getattr(training, 'dp_clip', None) is not None else None


def check_nothing_claimed(asked: Privacy, configured: ConfiguredMethod) -> None:
    """Raises SettingError for what is asked of an epsilon where there is none."""
    text, remedy = (
        'says nothing without independent noise',
        'set `dp_noise_multiplier` or `dp_epsilon`',
    )
    if private_settings(configured) is None:
        text, remedy = 'has no effect without `dp_clip`', 'set it'
    shared = {SHARED: (configured.given.get(SHARED) or 0.0, 0.0)}
    known = {name: (value, getattr(Privacy(), name)) for name, value in vars(asked).items()}
    for name, (value, default) in (known | shared).items():
        if value != default:
            raise SettingError(name, value, text, remedy, colon=False)


def check_covered(algorithm: Algorithm, configured: ConfiguredMethod, model: Model) -> None:
    """Raises SettingError where clients send what is not made of private training alone, and where
    numbers are too coarse for noise."""
    training = private_settings(configured)
    if training is None:
        return
    if not algorithm.private:
        text = (
            f'does not protect what `algorithm={configured.name}` sends, which follows from the '
            'data by other ways than its local training'
        )
        raise SettingError('dp_clip', training.dp_clip, text, 'leave it out', colon=False)
    if algorithm.exchange is not None and algorithm.exchange.loss is not None:
        rule = configured.given.get('aggregation')
        text = 'looks at the loss on the samples of the receiver, which no noise covers'
        raise SettingError('aggregation', rule, text, 'choose another', colon=False)
    coarse = {str(a.dtype) for a in jax.tree.leaves(model.shapes) if a.dtype.itemsize < 4}
    if coarse:
        text = f'needs noise finer than weights of {", ".join(sorted(coarse))} hold'
        raise SettingError('dp_clip', training.dp_clip, text, 'take float32', colon=False)


def check_accounted(asked: Privacy, training: Any, sizes: np.ndarray, arrives: bool) -> None:
    """Raises SettingError for a delta that is missing or too large, and for batches that are larger
    than the data from which they are drawn; sizes [M]."""
    client = training.dp_unit == 'client'
    population, of_what = (len(sizes), 'client') if client else (sizes.max(), 'sample')
    if asked.dp_delta is None:
        name, value = ('dp_noise_multiplier', training.dp_noise_multiplier)
        if asked.dp_epsilon is not None:
            name, value = 'dp_epsilon', asked.dp_epsilon
        remedy = f'set it below {1 / population:.3g}, one over the number of {of_what}s'
        raise SettingError(name, value, 'needs a `dp_delta`', remedy, colon=False)
    if not 0 < asked.dp_delta < 1 / population:
        text = f'has to lie between 0 and {1 / population:.3g}, one over {population} {of_what}s'
        raise SettingError('dp_delta', asked.dp_delta, text, 'change it', colon=False)
    if asked.dp_epsilon is not None and not asked.dp_epsilon > 0:
        raise SettingError('dp_epsilon', asked.dp_epsilon, 'has to be above 0', 'raise it')
    if arrives:
        text = 'is not accounted for while samples arrive'
        raise SettingError('dp_delta', asked.dp_delta, text, 'leave `arrival` out', colon=False)
    if asked.stop_at_epsilon and None in (asked.dp_epsilon, training.dp_noise_multiplier):
        text = 'needs both `dp_epsilon` and `dp_noise_multiplier`, which say when'
        raise SettingError('stop_at_epsilon', True, text, 'set them', colon=False)
    if training.batch_sampling == 'poisson' and training.batch_size > sizes.min():
        text = f'is more than the {sizes.min()} samples of a client, of which it is drawn'
        raise SettingError('batch_size', training.batch_size, text, 'lower it', colon=False)


def check_sharing(asked: Privacy, configured: ConfiguredMethod) -> None:
    """Raises SettingError where there is no noise to be shared, or it is given."""
    training = private_settings(configured)
    given, remedy = configured.given.get('dp_noise_multiplier'), 'leave one of them out'
    if SHARED not in configured.resolved:
        text, remedy = f'has no place in `algorithm={configured.name}`', 'take `dpsgd`'
    elif asked.dp_epsilon is None:
        text, remedy = 'follows from an epsilon', 'set `dp_epsilon`'
    elif given is not None:
        text = f'would choose what `dp_noise_multiplier={given}` gives'
    elif configured.given.get(SHARED):
        text = f'would choose what `{SHARED}={configured.given[SHARED]}` gives'
    elif configured.resolved.get('aggregation') != 'mean':
        text, remedy = 'cancels in a mean alone', 'leave `aggregation` out'
    elif training.private_examples and training.local_steps != 1:
        text, remedy = 'is for one minibatch a round', 'set `local_steps=1`, or `dp_unit=client`'
    elif asked.dp_adversary == 'server':
        text = 'hides nothing from `dp_adversary=server`, who sees an average'
    else:
        return
    raise SettingError('dp_share_noise', True, text, remedy, colon=False)


def check_server(configured: ConfiguredMethod, training: Any, graphs: Graph) -> None:
    """Raises SettingError unless a round leaves nothing but the average of what all clients
    release, on which all that they do later depends."""
    settings, clients = configured.resolved, graphs.mask.shape[1]

    def fault(text: str, remedy: str) -> SettingError:
        return SettingError('dp_adversary', 'server', text, remedy, colon=False)

    whole = graphs.mask.shape[2] == clients and graphs.mask.all() and graphs.active.all()
    if not whole or graphs.weights is not None or settings.get('mixing') == 'size':
        text = 'sees the plain average of all clients, which no other graph leaves them'
        raise fault(text, 'set `topology=complete`, `mixing=uniform`, and no failures')
    if 'round_order' not in settings:
        raise fault(f'sees more of `algorithm={configured.name}`', 'take `dpsgd` or `dfedavg`')
    plain = {'round_order': 'train_first', 'lasting_optimizer': False, 'aggregation': 'mean'}
    for name, value in plain.items():
        if settings.get(name) != value:
            text = (
                f'sees no plain average of what clients release with `{name}={settings.get(name)}`'
            )
            raise fault(text, f'take `dpsgd` or `dfedavg`, and `{name}={value}`')
    if settings.get('bits') or settings.get('sparsity') or configured.attack is not None:
        raise fault('sees no plain average of what is coded or lied about', 'leave that out')
    plain = {'local_steps': 1, 'optimizer': 'sgd', 'clip_norm': None}
    for name, value in plain.items():
        if training.private_examples and getattr(training, name) != value:
            given = getattr(training, name)
            text = f'sees one sum of gradients a round, which are not added with `{name}={given}`'
            mend = f'leave `{name}` out' if value is None else f'set `{name}={value}`'
            raise fault(text, f'{mend}, or `dp_unit=client`')
    if settings.get(SHARED):
        raise fault(f'sees an average without `{SHARED}`', 'leave that out')
