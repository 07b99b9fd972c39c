"""Checks of settings that every part of the library shares."""

from collections.abc import Iterable


def check_choice(
    what: str, value: str, choices: Iterable[str], error: type[ValueError] = ValueError
) -> None:
    """Raises `error` for a value that is not one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise error(f'unknown {what} {value!r}; choose one of {", ".join(choices)}')


def check_range(
    what: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raises ValueError for a number that is not at least `least`, above `above`, at most `most`
    and below `below`; None does not bound it."""
    inside = (
        (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    )
    if inside:
        return
    low = f'[{least}' if above is None else f'({above}'
    high = f'{most}]' if below is None else f'{below})'
    if most is None and below is None:
        rule = f'be at least {least}' if above is None else f'be above {above}'
    elif least is None and above is None:
        rule = f'be at most {most}' if below is None else f'be below {below}'
    else:
        rule = f'lie in {low}, {high}'
    raise ValueError(f'{what} has to {rule}, got {value}')
