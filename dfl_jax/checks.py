"""Checks of choices and ranges that every part of the library shares."""

from collections.abc import Iterable

from dfl_jax.setting_error import SettingError

ROW_SUM_TOLERANCE = 1e-6  # allows for weights that were rounded to float32


def check_choice(what: str, value: str, choices: Iterable[str], colon: bool | None = True) -> None:
    """Raises SettingError, to which `colon` goes, for a value that is not one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        text = f'unknown {what} {value!r}; choose one of {", ".join(choices)}'
        raise SettingError(what, value, text, colon=colon)


def check_range(
    what: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raises SettingError for a number that is not at least `least`, above `above`, at most `most`
    and below `below`; None does not bound it.

    what: begins with the name of the setting.
    """
    if (
        (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        return
    low = (f'[{least}', f'at least {least}') if above is None else (f'({above}', f'above {above}')
    high = (f'{most}]', f'at most {most}') if below is None else (f'{below})', f'below {below}')
    if most is None and below is None:
        rule = f'be {low[1]}'
    else:
        rule = f'be {high[1]}' if least is None and above is None else f'lie in {low[0]}, {high[0]}'
    raise SettingError(what.split()[0], value, f'{what} has to {rule}, got {value}')
