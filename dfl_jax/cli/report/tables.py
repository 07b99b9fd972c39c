"""The tables of a report: what is measured of the runs, as rows of text for the template."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dfl_jax.cli.report.saved_runs import Group, SavedRun, differing, metric_of
from dfl_jax.experiment.run_directory import Row
from dfl_jax.results.curves import CURVES, checked_columns, read_runs, scale_of
from dfl_jax.results.measured import Measured, metrics_in_words, summary, to_target
from dfl_jax.results.published import flagfiles_of, known_tables, needed_columns, read_published
from dfl_jax.results.table import findings_and_outliers, head_and_rows

MOST_NOTES = 6  # on a table of a paper

Measure = Callable[[SavedRun], Measured | None]  # None where the run lacks a column that it takes
Columns = dict[str, Measure]  # by heading


class Table(NamedTuple):
    """A table of text; the columns after `texts` are numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1


def at_end(name: str) -> Measure:
    """A column in the last round evaluated."""
    scale = scale_of(name)
    return lambda run: Measured(scale * run.rows[-1][name]) if name in run.rows[-1] else None


def per_part(name: str, parts: Callable[[SavedRun], int] | None = None) -> Measure:
    """A column that adds up, for each of its parts, which are rounds by default."""
    whole, of = at_end(name), parts or (lambda run: run.rows[-1]['round'])
    return lambda run: (total := whole(run)) and Measured(total.value / of(run))


def best(name: str) -> Measure:
    """The best value in any evaluation of a column of the task's metric."""

    def measure(run: SavedRun) -> Measured | None:
        values = [scale_of(name) * row[name] for row in run.rows if name in row]
        better = min if metric_of(run.rows)[1] else max
        return Measured(better(values)) if values else None

    return measure


def until(target: float, name: str) -> Measure:
    """A column where the consensus accuracy reaches `target` in [0, 1], or its lower bound."""
    metric, needed = to_target(name), {name, *CURVES}

    def measure(run: SavedRun) -> Measured | None:
        if not needed <= {*run.rows[-1]}:
            return None
        return metric({'target': target}, checked_columns(run.name, run.rows, [*needed]))

    return measure


def in_words(runs: Sequence[SavedRun], measure: Measure) -> str:
    """The measure of these runs as tables print it; a dash where none has it."""
    values = [value for run in runs if run.rows and (value := measure(run)) is not None]
    return summary(values).rpartition(' (')[0] or '-'  # without how many there are


def task_measures(runs: Sequence[SavedRun]) -> Columns:
    """The measures of the metrics of all tasks that the runs learn."""
    columns: Columns = {}
    for name in dict.fromkeys(metric_of(run.rows)[0] for run in runs if run.rows):
        unit = f'{name} (%)' if scale_of(name) == 100 else name
        columns |= {
            f'Aggregated {unit}': at_end(f'consensus_{name}'),
            f'Best {unit}': best(f'consensus_{name}'),
            f'Mean client {unit}': at_end(f'client_{name}_mean'),
        }
    return columns


def epsilons(runs: Sequence[SavedRun]) -> Columns:
    """Epsilon, a column for each unit, adversary and delta: others cannot be compared."""

    def claim_of(run: SavedRun) -> str:
        unit, adversary, delta = (
            run.settings.get(name, '-') for name in ('dp_unit', 'dp_adversary', 'dp_delta')
        )
        return f'Epsilon ({unit}, {adversary}, delta {delta})'

    spent = at_end('epsilon')

    def of_claim(claim: str) -> Measure:
        return lambda run: spent(run) if claim_of(run) == claim else None

    private = [run for run in runs if run.rows and spent(run) is not None]
    return {claim: of_claim(claim) for claim in dict.fromkeys(map(claim_of, private))}


def measured(groups: Sequence[Group], target: float) -> dict[str, Table | None]:
    """The tables with a row a group, by their sections; None where no group has their numbers."""
    to = f'to {100 * target:.4g}\N{NO-BREAK SPACE}%'
    columns = task_measures([run for each in groups for run in each.counted])
    columns[f'Rounds {to}'] = until(target, 'round')
    columns['Attack success (%)'] = at_end('attack_success')
    columns['Membership AUC'] = at_end('membership_auc_mean')
    columns |= epsilons([run for each in groups for run in each.counted])
    columns['Sent (MB)'] = at_end('mbytes_total')
    columns['Seconds a round'] = per_part('seconds')
    traffic: Columns = {
        'All clients': at_end('mbytes_total'),
        'A round': per_part('mbytes_total'),
        'Busiest client': at_end('mbytes_busiest_client'),
        'Mean client': per_part('mbytes_total', lambda run: int(run.settings['clients'])),
        to.capitalize(): until(target, 'mbytes_total'),
    }
    time: Columns = {
        'Until the end': at_end('simulated_seconds'),
        'A round': per_part('simulated_seconds'),
        to.capitalize(): until(target, 'simulated_seconds'),
    }
    caption = 'On the test set, of the consensus model and the clients'
    return {
        'Summary': by_group(groups, columns, caption),
        'Traffic': by_group(groups, traffic, 'Megabytes sent until the end'),
        'Simulated time': by_group(groups, time, 'Seconds in the world of each run'),
    }


def by_group(groups: Sequence[Group], of: Columns, caption: str) -> Table | None:
    """A row a group: how many runs count, and a column for each measure that any run has.

    None where none has any.
    """
    rows = []
    for group in groups:
        counted, all_of = len(group.counted), len(group.runs)
        unfinished = [run for run in group.counted or group.runs if not run.done]
        status = unfinished[0].status if unfinished and all_of == 1 else 'unfinished'
        name = f'{group.label} ({status})' if unfinished else group.label
        count = str(all_of) if counted == all_of else f'{counted} of {all_of}'
        rows.append([name, count, *(in_words(group.counted, measure) for measure in of.values())])
    known = [i for i in range(2 + len(of)) if i < 2 or any(row[i] != '-' for row in rows)]
    if len(known) == 2:
        return None
    head, *rows = ([line[i] for i in known] for line in (['Setting', 'Runs', *of], *rows))
    return Table(f'{caption}; mean ± standard deviation over seeds', head, rows)


def paper_tables(runs: Sequence[SavedRun]) -> list[dict[str, Any]]:
    """The tables of the papers to which any of the runs belongs, by their names and settings."""
    parts = []
    for name, file in sorted(known_tables().items()):
        if file.stem != 'published':
            continue
        published = read_published(file)
        flagfiles = flagfiles_of(published, file.parent)
        named = {
            cell: [run.path for run in runs if f'{run.path.resolve().name}-'.startswith(f'{cell}-')]
            for cell in flagfiles
        }
        needed = needed_columns(published, flagfiles)
        of_cells, notes = read_runs(
            {cell: paths for cell, paths in named.items() if paths}, flagfiles, needed, strict=True
        )
        if of_cells:
            words, more = metrics_in_words(published), len(notes) - MOST_NOTES
            findings, off = findings_and_outliers(published, of_cells)
            caption = 'The paper beside these runs, mean ± deviation over seeds'
            part = {
                'name': f'{name}: {published["title"]}',
                'words': f'{words[:1].upper()}{words[1:]} ({published["source"]})',
                'table': Table(caption, *head_and_rows(published, of_cells)),
                'findings': findings,
                'off': off,
                'notes': [*map(str, notes[:MOST_NOTES])] + [f'And {more} more'] * (more > 0),
            }
            parts.append(part)
    return parts


def settings(runs: Sequence[SavedRun]) -> tuple[dict[str, str], Row]:
    """The settings that all runs share, and {name: value of each run} of the others."""
    several = [run.settings for run in runs]
    names = sorted(differing(several))
    same = {name: value for name, value in sorted(several[0].items()) if name not in names}
    return same, {name: [each.get(name, '-') for each in several] for name in names}


def list_of_runs(runs: Sequence[SavedRun]) -> Table:
    """Every run with its own numbers."""
    of: Columns = {'Rounds': at_end('round'), **task_measures(runs), 'Seconds': at_end('seconds')}
    rows = [
        [run.name, run.seed, run.status, *(in_words([run], measure) for measure in of.values())]
        for run in runs
    ]
    return Table('Every run at its last evaluation', ['Run', 'Seed', 'Status', *of], rows, 3)
