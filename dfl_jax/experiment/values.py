"""What is refused whatever the method: values of the wrong type, or that no run could use."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from dfl_jax.method_settings import Setting
from dfl_jax.setting_error import InputError, SettingError

WHOLE = ('hidden', 'ntk_timesteps')  # lists of whole numbers
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
POSITIVE = ('chunk',)  # beside those that have a bound where they are defined
KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), 'True or False'),
    int: ((int,), 'a whole number'),
    float: ((int, float), 'a number'),
    str: ((str,), 'a text'),
}


def typed(setting: Setting, value: Any, bounds: Mapping[str, Any] | None = None) -> Any:
    """The value of a setting, lists as tuples of texts; of paths their text. Raises SettingError.

    setting: by its flat name; bounds: as `run_settings.setting` makes them.
    """
    if value is None and setting.default is None:
        return None
    name, kind = setting.name, setting.kind
    if kind in (tuple, list):
        several = value.split(',') if isinstance(value, str) else value
        if not isinstance(several, list | tuple):
            raise SettingError(name, value, 'give a list')
        return tuple(map(str, several))
    if kind is str and hasattr(value, '__fspath__'):
        value = value.__fspath__()
    types, words = KINDS[kind]  # type: ignore[index]
    number = type(value).__name__.startswith(('int', 'float')) and hasattr(value, 'item')
    value = value.item() if number else value  # of NumPy
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise SettingError(name, value, f'give {words}, not {type(value).__name__}')
    bounds = bounds or {}
    if (least := bounds.get('least')) is not None and value < least:
        raise SettingError(name, value, f'use at least {least}')
    if (choices := bounds.get('choices')) and value not in choices:
        raise SettingError(name, value, f'choose one of {", ".join(choices)}')
    try:
        return float(value) if kind is float else value  # type: ignore[arg-type]
    except OverflowError:
        raise SettingError(name, value, 'is out of range', colon=False) from None


def check_value(name: str, value: Any, number: bool) -> None:
    """Raises SettingError for a text that is empty, and for a number that is not finite or larger
    than a run could ever use.

    number: whether the setting is one.
    """
    if value == '':
        raise InputError(f'`{name}=` has no value; give one, or leave it out')
    if not (number or name in (*NUMBERS, *MOST)):
        return
    several = value if name in NUMBERS and value is not None else [value]
    for one in map(_as_number, several):
        if isinstance(one, float) and not math.isfinite(one):
            raise SettingError(name, value, 'give finite numbers')
        if name in WHOLE and value is not None and not isinstance(one, int):
            raise SettingError(name, value, 'give whole numbers, separated by commas')
        if name in POSITIVE and one is not None and one < 1:
            raise SettingError(name, value, 'use at least 1, or leave it out')
        most = MOST.get(name, 2**31 - 1)
        if isinstance(one, int) and name != 'seed' and not -(2**31) <= one <= most:
            raise SettingError(name, value, 'is out of range', f'use at most {most}', colon=False)


def _as_number(value: Any) -> Any:
    """The number that a text of a list writes, if any; whatever else it is."""
    if isinstance(value, str):
        for number in (int, float):
            with contextlib.suppress(ValueError):
                return number(value)
    return value
