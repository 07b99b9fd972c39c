"""What is refused whatever the method: values that no flag can have, flags that a command lacks."""

import contextlib
import itertools
import math
from collections.abc import Container
from typing import Any

from dfl_jax.cli.flags.run_flags import FLAGS, GROUPS

WHOLE = ('hidden', 'ntk_timesteps')  # flags that are lists of whole numbers
NUMBERS = (*WHOLE, 'architecture_ratios')
# The largest that ends within days; of all other whole numbers what 32 bits hold
MOST = {
    'rounds': 10**6,
    'devices': 1024,
    'ntk_timesteps': 10**6,
    'gossip_steps': 1000,  # each a part of the compiled program
    'gain_rounds': 10**6,
    'attack_restarts': 10**4,
    'attack_training': 10**7,
    'attack_steps': 10**7,
}
POSITIVE = ('chunk',)  # beside those that are checked where they are defined


def check_values(flags: Any) -> None:
    """Raises ValueError for a text that is empty, and for a number that is not finite or larger
    than a run could ever use."""
    for name in flags:
        value = flags[name].value
        if value == '' and flags[name].present:
            raise ValueError(f'--{name}= has no value; give one, or leave it out')
        if not (name in (*NUMBERS, *MOST) or flags[name].flag_type() in ('int', 'float')):
            continue
        several = value if name in NUMBERS and value is not None else [value]
        for one in map(_as_number, several):
            if isinstance(one, float) and not math.isfinite(one):
                raise ValueError(f'--{name}={_given(value)}: give finite numbers')
            if name in WHOLE and value is not None and not isinstance(one, int):
                raise ValueError(
                    f'--{name} takes whole numbers separated by commas, got {_given(value)}'
                )
            if name in POSITIVE and one is not None and one < 1:
                raise ValueError(f'--{name}={_given(value)}: use at least 1, or leave it out')
            most = MOST.get(name, 2**31 - 1)
            if isinstance(one, int) and name != 'seed' and not -(2**31) <= one <= most:
                raise ValueError(f'--{name}={_given(value)} is out of range; use at most {most}')


def _as_number(value: Any) -> Any:
    """The number that a text of a list writes, if any; whatever else it is."""
    if isinstance(value, str):
        for number in (int, float):
            with contextlib.suppress(ValueError):
                return number(value)
    return value


def _given(value: Any) -> str:
    return ','.join(value) if isinstance(value, list) else str(value)


def refuse_others(shared: Container[str], why: str) -> None:
    """Raises ValueError for a flag of a run that was given and is not one of `shared`."""
    for name in itertools.chain(*GROUPS.values()):
        if name in FLAGS and FLAGS[name].present and name not in shared:
            raise ValueError(f'{FLAGS[name].serialize()} does not apply{why}; leave it out')
