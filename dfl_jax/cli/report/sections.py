"""The sections of a report: HTML of the runs' groups."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dfl_jax.cli.report import html, pictures
from dfl_jax.cli.report.measures import (
    Measure,
    a_round,
    at_end,
    best,
    measured,
    number_column,
    until,
)
from dfl_jax.cli.report.runs import UNGROUPED, Group, SavedRun, differing
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables import files
from dfl_jax.cli.tables.curves import SKIPPED, Runs, differences, kept_columns, read_flagfile
from dfl_jax.cli.tables.metrics import what
from dfl_jax.cli.tables.table import OFF_PAPER, below, cells

MOST_LINES = 8  # in one figure, where they can be set apart
MOST_WARNINGS = 6  # on a table of a paper

Columns = dict[str, tuple[Measure, int | None]]  # by heading: a measure and its decimals


def summary(groups: Sequence[Group], target: float) -> str:
    note = ''
    if any(not run.done for each in groups for run in each.runs):
        note = (
            '\n<p class="note">An unfinished run counts only where its setting has no finished '
            'one.</p>'
        )
    shown = measures(
        groups,
        {
            'Accuracy at the end (%)': (at_end('consensus_accuracy', 100), 2),
            'Best (%)': (best, 2),
            'Mean client (%)': (at_end('client_accuracy_mean', 100), 2),
            f'Rounds to {_percent(target)}': (until(target, 'round'), None),
            'Sent (MB)': (at_end('mbytes_total'), None),
            'Seconds a round': (a_round('seconds'), None),
        },
        'Test accuracy of the aggregated model, and of the mean client at the end; '
        'mean ± standard deviation over seeds',
    )
    return (shown or '<p>None of the runs has an evaluation yet.</p>') + note


def _percent(share: float) -> str:
    return f'{100 * share:.4g}\N{NO-BREAK SPACE}%'


def measures(groups: Sequence[Group], of: Columns, caption: str) -> str:
    """A table, a row a group: how many runs count, and a column a measure.

    Without the measures that no run has; empty where none has any.
    """
    values = {
        name: [measured(each.counted, measure) for each in groups]
        for name, (measure, _) in of.items()
    }
    known = [name for name, column in values.items() if any(column)]
    if not known:
        return ''
    counts = [
        str(len(each.runs))
        if len(each.counted) == len(each.runs)
        else f'{len(each.counted)} of {len(each.runs)}'
        for each in groups
    ]
    columns = [number_column(values[name], of[name][1]) for name in known]
    rows = zip(map(_with_status, groups), counts, *columns, strict=True)
    return html.table(['Setting', 'Runs', *known], [*rows], caption)


def _with_status(each: Group) -> str:
    """What a group is called, and whether what stands for it is unfinished."""
    unfinished = [run for run in each.counted or each.runs if not run.done]
    if not unfinished:
        return each.label
    return f'{each.label} ({unfinished[0].status if len(each.runs) == 1 else "unfinished"})'


def curves(groups: Sequence[Group], target: float) -> str:
    if not any(each.counted for each in groups):
        return ''
    several = any(len(each.counted) > 1 for each in groups)
    band = ' A band spans the seeds from the lowest to the highest.' if several else ''
    shown = [
        f'<p>A line is the mean over the seeds of a setting, in the rounds that all of them '
        f'evaluated.{band}</p>'
    ]
    for note, those in _facets(groups).items():
        shown += [f'<h3>{escape(note)}</h3>'] * bool(note)
        shown.append(pictures.curves(those, target))
    return '\n'.join(shown)


def _facets(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """What is drawn together: all, or where these are many and alike, by what sets them apart."""
    evaluated = [each for each in groups if each.counted]
    facets: dict[str, list[Group]] = {}
    for each in evaluated:
        facets.setdefault(each.note, []).append(each._replace(note=''))
    if len(evaluated) <= MOST_LINES or max(map(len, facets.values())) == 1:
        return {'': evaluated}
    return facets


def beside_papers(runs: Sequence[SavedRun]) -> str:
    """The tables of the papers to which any of the runs belongs."""
    parts = []
    for file in sorted(files.PAPERS.glob('*/*/published.json')):
        published = files.read_published(file)
        runs_of_cells, warnings = runs_of_table(published, file.parent, runs)
        if runs_of_cells:
            name, words = file.parent.relative_to(files.PAPERS), what(published)
            more = f'And {len(warnings) - MOST_WARNINGS} warnings more.'
            lines = warnings[:MOST_WARNINGS] + [more] * (len(warnings) > MOST_WARNINGS)
            notes = f'<p class="note">{"<br>".join(map(escape, lines))}</p>' if lines else ''
            parts.append(
                f'<h3>{escape(str(name))}: {escape(published["title"])}</h3>\n'
                f'<p>{escape(words[:1].upper() + words[1:])} ({escape(published["source"])})</p>\n'
                f'{_table_beside(published, runs_of_cells)}\n{notes}'
            )
    return '\n'.join(parts)


def _table_beside(published: Row, runs: Runs) -> str:
    """What `dfl-jax tables` prints of a table, as HTML."""
    caption = 'The paper beside these runs, mean ± deviation over seeds'
    findings, off = below(published, runs)
    parts = [html.table(*cells(published, runs), caption)]
    parts += [html.bullets(findings)] * bool(findings)
    parts += [f'<p>{escape(OFF_PAPER)}</p>', html.bullets(off)] * bool(off)
    return '\n'.join(parts)


def runs_of_table(published: Row, folder: Path, runs: Sequence[SavedRun]) -> tuple[Runs, list[str]]:
    """The runs of every cell of a table, by their names and settings, and warnings of them.

    A run of a cell's name whose settings differ from the cell's flagfile belongs elsewhere.
    """
    of_cells: Runs = {}
    warnings = []
    flagfiles = files.flagfiles(published, folder)
    needed = files.columns(published, flagfiles)
    for cell, flagfile in flagfiles.items():
        named = [run for run in runs if f'{run.path.resolve().name}-'.startswith(f'{cell}-')]
        wanted = read_flagfile(flagfile) if named else {}
        for run in named:
            settings = run.settings | {'rounds': int(run.settings['rounds'])}
            try:
                all_of_run = differences(run.name, wanted, run.config | {'settings': settings})
                mismatches = [warning for warning in all_of_run if ': --' in warning]
                if mismatches or not run.rows:
                    warnings += [f'Left out: {warning}.' for warning in mismatches[:1]]
                    continue
                kept = kept_columns(run.path.name, run.rows, needed[cell])
            except ValueError as error:
                warnings.append(f'{run.name} {SKIPPED}: {error}.')
                continue
            of_cells.setdefault(cell, []).append(kept)
            warnings += [f'{warning}.' for warning in all_of_run]
            warnings += [f'{run.name}: {run.status}.'] * (not run.done)
    return of_cells, warnings


def traffic(groups: Sequence[Group], target: float) -> str:
    return measures(
        groups,
        {
            'All clients': (at_end('mbytes_total'), None),
            'A round': (a_round('mbytes_total'), None),
            'Busiest client': (at_end('mbytes_busiest_client'), None),
            'Mean client': (
                lambda r: at_end('mbytes_total', 1 / int(r.settings['clients']))(r),
                None,
            ),
            f'To {_percent(target)}': (until(target, 'mbytes_total'), None),
        },
        'Megabytes sent until the end; mean ± standard deviation over seeds',
    )


def time(groups: Sequence[Group], target: float) -> str:
    if not any('simulated_seconds' in r.rows[-1] for each in groups for r in each.counted):
        return ''
    return measures(
        groups,
        {
            'Until the end': (at_end('simulated_seconds'), None),
            'A round': (a_round('simulated_seconds'), None),
            f'To {_percent(target)}': (until(target, 'simulated_seconds'), None),
        },
        'Seconds in the world of each run; mean ± standard deviation over seeds',
    )


def settings(groups: Sequence[Group]) -> str:
    several = [each.settings for each in groups]
    names = differing(several)
    apart = ''
    if names:
        lines = [['Setting', *names]]
        lines += [
            [each.label, *(each.settings.get(name, '-') for name in names)] for each in groups
        ]
        if len(names) > len(groups):
            lines = [[*line] for line in zip(*lines, strict=True)]
        head, *rows = lines
        caption = 'What differs; a dash where it does not apply'
        apart = html.table(head, rows, caption, len(head)) + '\n<h3>The same in all</h3>\n'
    pairs = ''.join(
        f'<div><dt>{escape(name)}</dt><dd>{html.wrappable(value)}</dd></div>'
        for name, value in sorted(several[0].items())
        if name not in names
    )
    free = ', '.join(UNGROUPED)
    return f'{apart}<dl>{pairs}</dl>\n<p class="note">Left out: {free}.</p>'


def list_of_runs(groups: Sequence[Group], broken: dict[str, str]) -> str:
    """Every run with its own numbers, and the directories that cannot be read."""
    runs = [run for each in groups for run in each.runs]
    of: Columns = {
        'Rounds': (at_end('round'), 0),
        'Accuracy (%)': (at_end('consensus_accuracy', 100), 2),
        'Best (%)': (best, 2),
        'Mean client (%)': (at_end('client_accuracy_mean', 100), 2),
        'Seconds': (at_end('seconds'), 1),
    }
    numbers = [
        number_column([measured([run], measure) for run in runs], digits)
        for measure, digits in of.values()
    ]
    texts = zip(*((run.name, run.seed, run.status) for run in runs), strict=True)
    rows = [*zip(*texts, *numbers, strict=True)]
    head = ['Run', 'Seed', 'Status', *of]
    listed = html.table(head, rows, 'Every run at its last evaluation', 3)
    if not broken:
        return listed
    return f'{listed}\n<h3>Directories that cannot be read</h3>\n' + html.table(
        ['Directory', 'Reason'], [*broken.items()], 'Not counted above', 2
    )


def timing(groups: Sequence[Group]) -> str:
    """How fast the runs were, where they were made, and with which versions."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for run in (run for each in groups for run in each.runs):
        versions = ', '.join(f'{k} {v}' for k, v in run.config.get('versions', {}).items())
        commit = str(run.config.get('commit') or '-')[:12]
        device, cores = run.config.get('device', '-'), run.config.get('cores', '-')
        alike.setdefault((str(device), str(cores), commit, versions), []).append(run.name)
    rows = [
        [*where, 'all' if len(alike) == 1 else ', '.join(names)] for where, names in alike.items()
    ]
    seconds = measures(
        groups,
        {
            'Rounds': (at_end('round'), None),
            'Seconds a round': (a_round('seconds'), None),
            'Seconds of all': (at_end('seconds'), 1),
        },
        'Wall time of the rounds, compilation and evaluation apart; '
        'mean ± standard deviation over seeds',
    )
    head = ['Device', 'Cores', 'Commit', 'Versions', 'Runs']
    return f'{seconds}\n<h3>Machines and versions</h3>\n' + html.table(
        head, rows, 'Where the runs were made', len(head)
    )
