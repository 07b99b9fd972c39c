"""What the rounds of runs take, as those that were kept tell."""

import statistics

from dfl_jax.cli.tables.curves import SECONDS, Runs


def seconds_of(cell: str, rounds: int, runs: Runs) -> float | None:
    """The seconds that the rounds of a run take, evaluation apart; None where nothing tells.

    Of the runs of its cell, else of those of its method.
    """
    method = cell.partition('-')[0]
    others = [
        run for other, several in runs.items() if other.startswith(f'{method}-') for run in several
    ]
    for known in (runs.get(cell, ()), others):
        if paces := [run[SECONDS] for run in known if SECONDS in run]:
            return rounds * statistics.median(paces)
    return None


def duration(seconds: float | None) -> str:
    """E.g. 75 s, 12 min or 3.5 h; ? for None."""
    if seconds is None:
        return '?'
    if seconds < 90:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'
