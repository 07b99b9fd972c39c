"""The sections of a report: HTML of the runs' groups."""

from collections.abc import Sequence
from html import escape

from dfl_jax.cli.report import html
from dfl_jax.cli.report.measures import Measure, a_round, at_end, best, measured, until
from dfl_jax.cli.report.numbers import number_column
from dfl_jax.cli.report.runs import STYLES, UNGROUPED, Group, SavedRun, differing
from dfl_jax.cli.tables.metrics import Measured

MOST_LINES = 8  # in one figure, where they can be set apart


def summary(groups: Sequence[Group], target: float) -> str:
    unfinished = [
        f'{run.name} ({run.status.removeprefix("unfinished, ")})'
        for each in groups
        for run in each.runs
        if not run.done
    ]
    note = ''
    if unfinished:
        note = (
            f'\n<p class="note">Unfinished: {escape(", ".join(unfinished))}. An unfinished run '
            'counts only where its setting has no finished one.</p>'
        )
    shown = measures(
        groups,
        {
            'Accuracy at the end (%)': (at_end('consensus_accuracy', 100), 2),
            'Best (%)': (best, 2),
            'Mean client (%)': (at_end('client_accuracy_mean', 100), 2),
            f'Rounds to {_percent(target)}': (until(target, 'rounds'), None),
            'Sent (MB)': (at_end('mbytes_total'), None),
            'Seconds a round': (a_round('seconds'), None),
        },
        'Test accuracy of the aggregated model, and of the mean client at the end; '
        'mean ± standard deviation over seeds',
    )
    return (shown or '<p>None of the runs has an evaluation yet.</p>') + note


def _percent(share: float) -> str:
    return f'{100 * share:.4g}\N{NO-BREAK SPACE}%'


def measures(
    groups: Sequence[Group],
    of: dict[str, tuple[Measure, int | None]],
    caption: str,
) -> str:
    """A table, a row a group: how many runs count, and a column a measure with its decimals.

    Without the measures that no run has; empty where none has any.
    """
    cells = {
        name: [measured(each.counted, measure) for each in groups]
        for name, (measure, _) in of.items()
    }
    known = [name for name, column in cells.items() if any(column)]
    if not known:
        return ''
    counts = [
        str(len(each.runs))
        if len(each.counted) == len(each.runs)
        else f'{len(each.counted)} of {len(each.runs)}'
        for each in groups
    ]
    rows = zip(
        [label(each) for each in groups],
        map(html.number_cell, counts),
        *(number_column(cells[name], of[name][1]) for name in known),
        strict=True,
    )
    return html.table(['Setting', 'Runs', *map(escape, known)], [[*row] for row in rows], caption)


def label(each: Group) -> str:
    unfinished = [run for run in each.counted or each.runs if not run.done]
    badge = ''
    if unfinished:
        badge = unfinished[0].status if len(each.runs) == 1 else 'unfinished'
    return html.group_label(each.method, each.note, each.look, badge)


def curves(groups: Sequence[Group], target: float) -> str:
    from dfl_jax.cli.report import figures as report_figures

    if not any(each.counted for each in groups):
        return ''
    several = any(len(each.counted) > 1 for each in groups)
    band = ' A band spans the seeds from the lowest to the highest.' if several else ''
    shown = [
        f'<p>A line is the mean over the seeds of a setting, in the rounds that all of them '
        f'evaluated.{band}</p>'
    ]
    for note, those in _facets(groups).items():
        key = ''.join(f'<li>{label(each)}</li>' for each in those)
        drawn = report_figures.curves(those, target, f'curves-{len(shown)}')
        shown += [f'<h3>{escape(note)}</h3>'] * bool(note)
        shown.append(f'<ul class="key">{key}</ul>')
        shown.append(
            f'<div class="grid">{"".join(f"<figure>{svg}</figure>" for svg in drawn)}</div>'
        )
    return '\n'.join(shown)


def _facets(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """What is drawn together: all, or where these are many and alike, by what sets them apart."""
    evaluated = [each for each in groups if each.counted]
    notes = list(dict.fromkeys(each.note for each in evaluated))
    if len(evaluated) <= MOST_LINES or not 1 < len(notes) <= len(STYLES):
        return {'': evaluated}
    return {
        note: [
            each._replace(note='', look=each.look._replace(style=STYLES[0]))
            for each in evaluated
            if each.note == note
        ]
        for note in notes
    }


def traffic(groups: Sequence[Group], target: float) -> str:
    return measures(
        groups,
        {
            'All clients': (at_end('mbytes_total'), None),
            'A round': (a_round('mbytes_total'), None),
            'Busiest client': (at_end('mbytes_busiest_client'), None),
            'Mean client': (_of_mean_client, None),
            f'To {_percent(target)}': (until(target, 'megabytes'), None),
        },
        'Megabytes sent until the end; mean ± standard deviation over seeds',
    )


def _of_mean_client(run: SavedRun) -> Measured | None:
    return at_end('mbytes_total', 1 / int(run.settings['clients']))(run)


def settings(groups: Sequence[Group]) -> str:
    several = [each.settings for each in groups]
    names = differing(several)
    shared = {name: value for name, value in several[0].items() if name not in names}
    apart = ''
    if names:
        caption = 'What differs; a dash where it does not apply'
        labels = [html.group_label(each.method, each.note, each.look) for each in groups]
        values = [[group.get(name, '-') for name in names] for group in several]
        if len(names) > len(groups):
            head = ['Setting', *labels]
            firsts, bodies = [escape(name) for name in names], [*zip(*values, strict=True)]
        else:
            head = ['Setting', *map(escape, names)]
            firsts, bodies = labels, [tuple(row) for row in values]
        rows = [[f, *map(html.text_cell, body)] for f, body in zip(firsts, bodies, strict=True)]
        apart = html.table(head, rows, caption) + '\n<h3>The same in all</h3>\n'
    pairs = ''.join(
        f'<div><dt>{escape(name)}</dt><dd>{html.wrappable(value)}</dd></div>'
        for name, value in sorted(shared.items())
    )
    free = ', '.join(UNGROUPED)
    return f'{apart}<dl>{pairs}</dl>\n<p class="note">Left out: {free}.</p>'


def list_of_runs(groups: Sequence[Group], broken: dict[str, str]) -> str:
    """Every run with its own numbers, and the directories that cannot be read."""
    runs = [(each.look, run) for each in groups for run in each.runs]

    def column(measure: Measure, digits: int | None = None) -> list[str]:
        return number_column([measured([run], measure) for _, run in runs], digits)

    rows = zip(
        [html.group_label(run.name, '', look) for look, run in runs],
        [html.number_cell(run.seed) for _, run in runs],
        [_status(run) for _, run in runs],
        column(at_end('round'), 0),
        column(at_end('consensus_accuracy', 100), 2),
        column(best, 2),
        column(at_end('client_accuracy_mean', 100), 2),
        column(at_end('seconds'), 1),
        strict=True,
    )
    head = [
        'Run',
        'Seed',
        'Status',
        'Rounds',
        'Accuracy (%)',
        'Best (%)',
        'Mean client (%)',
        'Seconds',
    ]
    listed = html.table(head, [[*row] for row in rows], 'Every run at its last evaluation')
    if not broken:
        return listed
    items = [[escape(name), html.text_cell(reason)] for name, reason in broken.items()]
    return f'{listed}\n<h3>Directories that cannot be read</h3>\n' + html.table(
        ['Directory', 'Reason'], items, 'Not counted above'
    )


def _status(run: SavedRun) -> str:
    if run.done:
        return html.text_cell(run.status)
    return f'<td>{html.badge(run.status)}</td>'


def timing(groups: Sequence[Group]) -> str:
    """How fast the runs were, where they were made, and with which versions."""
    alike: dict[tuple[str, ...], list[SavedRun]] = {}
    for run in (run for each in groups for run in each.runs):
        versions = ', '.join(f'{k} {v}' for k, v in run.config.get('versions', {}).items())
        commit = str(run.config.get('commit') or '-')[:12]
        device, cores = run.config.get('device', '-'), run.config.get('cores', '-')
        alike.setdefault((str(device), str(cores), commit, versions), []).append(run)
    rows = [
        [
            escape(device),
            html.number_cell(cores),
            html.text_cell(commit),
            html.text_cell(versions),
            html.text_cell('all' if len(alike) == 1 else ', '.join(run.name for run in those)),
        ]
        for (device, cores, commit, versions), those in alike.items()
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
        head, rows, 'Where the runs were made'
    )
