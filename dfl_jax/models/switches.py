"""How a flax module is told whether it trains, and whether its dropout hears of it."""

import inspect
from collections.abc import Iterator
from typing import Any

import jax
from flax import linen as nn
from flax import nnx

SWITCHES = {  # argument of __call__, or field of the module -> its value in training
    **dict.fromkeys(('train', 'training', 'is_training', 'is_train', 'train_mode'), True),
    **dict.fromkeys(('deterministic', 'inference', 'eval', 'evaluate', 'is_eval'), False),
    **dict.fromkeys(('eval_mode', 'use_running_average'), False),
}
# What the value of a switch may be that is a text, which is not understood
MODES = ('train', 'training', 'eval', 'evaluate', 'evaluation', 'test', 'inference', 'predict')


class Switched:
    """A module in its two modes, training and evaluation.

    A switch is an argument of `__call__`, else a field of the module, that SWITCHES names.

    Raises ValueError for an argument of `__call__` that may be a switch and is not known.
    """

    def __init__(self, module: nn.Module):
        self._module = module
        # nnx.bridge.ToLinen hands its arguments on
        arguments = _arguments(getattr(module, 'nnx_class', module).__call__)
        fields = getattr(module, '__dataclass_fields__', {})
        self._arguments = [name for name in SWITCHES if name in arguments]
        self._fields = [
            name
            for name in SWITCHES
            if name in fields
            and name not in arguments
            and isinstance(getattr(module, name), bool | None)
        ]
        for name, default in arguments.items():
            text = isinstance(default, str) and default in MODES
            if name not in SWITCHES and (text or isinstance(default, bool) or default is _NEEDED):
                raise ValueError(
                    f'the __call__ of {type(module).__name__} takes {name}, which may be a switch '
                    f'and is not known; call a switch one of {", ".join(SWITCHES)}, and make '
                    'anything else a field of the module'
                )

    def mode(self, train: bool) -> tuple[nn.Module, dict[str, bool]]:
        """The module that trains, or evaluates, and the switches that its `__call__` is given."""
        fields = {name: SWITCHES[name] == train for name in self._fields}
        module = self._module.clone(**fields) if fields else self._module
        return module, {name: SWITCHES[name] == train for name in self._arguments}


_NEEDED = inspect.Parameter.empty


def _arguments(call: Any) -> dict[str, Any]:
    """The defaults of what a `__call__` takes by name, beside its input."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = 2 if inspect.isfunction(call) else 1  # the module itself, of a class's method
    parameters = [*inspect.signature(call).parameters.values()][own:]
    return {p.name: p.default for p in parameters if p.kind in named}


class Dropouts:
    """What owns dropout among the modules of a call, and what has drawn random numbers.

    An interceptor of flax: `with nn.intercept_methods(dropouts): module.apply(...)`.
    """

    def __init__(self) -> None:
        self._owners: dict[tuple[str, ...], str] = {}  # path -> in words
        self._drew: set[tuple[str, ...]] = set()
        self.bridged = ''  # a module of nnx that has dropout, in words

    def __call__(self, call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if isinstance(module, nnx.bridge.ToLinen) and _has_dropout(module):
            self.bridged = _words(module)
        before = _draws(module)
        result = call(*args, **kwargs)
        if _draws(module) > before:
            self._drew.add(module.path)
        for each in (module, *_set_up(module)):
            if _share(each) > 0:
                self._owners[each.path] = _words(each)
        return result

    def silent(self) -> str:
        """A module with dropout that drew nothing, nor did any inside it, in words; '' for none."""
        for path, words in self._owners.items():
            if not any(drew[: len(path)] == path for drew in self._drew):
                return words
        return ''


def _words(module: nn.Module) -> str:
    return f'{type(module).__name__} ({"/".join(module.path)})' if module.path else 'its dropout'


def _draws(module: nn.Module) -> int:
    """How often the module itself has drawn for its dropout."""
    return module.scope.rng_counters.get('dropout', 0) if module.scope else 0


def _set_up(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that its `setup` has made, called or not."""
    fields = [value for name, value in vars(module).items() if name not in ('parent', '_state')]
    leaves = jax.tree.leaves(fields, is_leaf=lambda leaf: isinstance(leaf, nn.Module))
    yield from (leaf for leaf in leaves if isinstance(leaf, nn.Module) and leaf.scope)


def _share(module: nn.Module) -> float:
    """What the module drops: the rate of flax's Dropout, or a field that is named like one."""
    names = ['rate'] if isinstance(module, nn.Dropout) else []
    names += [name for name in module.__dataclass_fields__ if 'drop' in name]
    values = (getattr(module, name, 0) for name in names)
    return max((v for v in values if isinstance(v, float) and 0 < v <= 1), default=0)


def _has_dropout(module: nn.Module) -> bool:
    """Whether a bridged module of nnx has dropout."""

    def made() -> Any:
        keys = {} if module.skip_rng else {'rngs': nnx.Rngs(0)}
        return module.nnx_class(*module.args, **module.kwargs, **keys)

    return any(
        getattr(part, 'rate' if isinstance(part, nnx.Dropout) else 'dropout_rate', 0)
        for _, part in nnx.iter_graph(nnx.eval_shape(made))
    )
