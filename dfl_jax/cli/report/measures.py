"""What a report measures of a run."""

from collections.abc import Callable, Sequence

from dfl_jax.cli.report.runs import SavedRun
from dfl_jax.cli.tables.curves import CURVES, Run, columns_of
from dfl_jax.cli.tables.metrics import Measured, megabytes_to, rounds_to

Measure = Callable[[SavedRun], Measured | None]


def columns(run: SavedRun, names: Sequence[str]) -> Run:
    """The run as a table takes it, without the columns that it lacks."""
    return columns_of(run.path.name, run.rows, (), names)


def at_end(name: str, scale: float = 1) -> Measure:
    """A column in the last round evaluated; None where the run lacks it."""
    return lambda run: Measured(scale * run.rows[-1][name]) if name in run.rows[-1] else None


def a_round(name: str) -> Measure:
    """A column that adds up over rounds, for each of them; None likewise."""
    return lambda run: (
        Measured(run.rows[-1][name] / run.rows[-1]['round']) if name in run.rows[-1] else None
    )


def best(run: SavedRun) -> Measured:
    """The highest consensus accuracy of any evaluation, in percent."""
    return Measured(100 * max(row['consensus_accuracy'] for row in run.rows))


def until(target: float, unit: str) -> Measure:
    """Rounds or megabytes to the consensus accuracy `target` in [0, 1], or their lower bound."""
    measure, name = {
        'rounds': (rounds_to, 'round'),
        'megabytes': (megabytes_to, 'mbytes_total'),
    }[unit]
    return lambda run: (
        measure({'target': target}, columns(run, (name, *CURVES))) if name in run.rows[-1] else None
    )


def measured(runs: Sequence[SavedRun], measure: Measure) -> list[Measured]:
    return [value for run in runs if run.rows and (value := measure(run)) is not None]
