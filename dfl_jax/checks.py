"""Checks of settings that every part of the library shares."""

from collections.abc import Sequence


def check_choice(what: str, value: str, known: Sequence[str]) -> None:
    """Raises ValueError when a setting is not one of its known values."""
    if value not in known:
        raise ValueError(f'unknown {what} {value!r}; choose one of {", ".join(known)}')
