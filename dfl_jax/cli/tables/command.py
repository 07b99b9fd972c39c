"""Sets our numbers beside a paper's: `python -m experiments.tables ntk_dfl/figure2 --runs=DIR`

A table is a folder experiments/PAPER/TABLE with published.json and one flagfile a cell, named
METHOD-COLUMN.flags. Its runs are the directories METHOD-COLUMN or METHOD-COLUMN-ANYTHING below
--runs, one a seed, e.g. runs/figure2/ntk_dfl-alpha0.1-seed0. Prints the table; writes it (.md), the
figure (.png) and the curves of both (.json) into --out. Such a .json stands for its runs in --runs.
Where --runs names several folders or files, a cell's runs are those of the first that has any.

published.json holds
  title, source   what was measured, and where the paper's numbers stand
  metric          rounds_to or megabytes_to (the accuracy `target`); accuracy_at,
                  client_accuracy_at, local_accuracy_at or gap_at (the round `round`; of the
                  aggregated model, of the mean client, of that on what clients keep from training,
                  and from the second to the first, in points); megabytes_saved (percent that
                  a round sends less than one of the method `reference`); rounds_to_reference, until
                  the mean client is as accurate as that of `reference` at `round`; loss_to, the
                  rounds until the mean client's test loss is at or below `target_loss`; loss_at,
                  that loss at `round`
  metrics         a list of several, in place of metric; each a name, or {metric, head, round, ...},
                  what is its own and the words above its columns
  target          accuracy in [0, 1]; also a line in the figure, as is target_loss
  round           also the round of the lead over the baselines; optional where there is a target;
                  or {column: round}
  columns         the settings, in the order of the numbers
  rows            {method: numbers}: null where the paper prints none or there is no such cell,
                  '>200' where it gave up; of several metrics a list of numbers each
  ours            the method that is compared with the other rows; optional
  centralized, variants
                  the methods that are no baselines of that comparison; optional
  flags           folders below experiments/ that hold the flagfiles, the first that has a cell's
                  counts; optional, the table's own by default
  fit             {method: {column: n}}: below the table the exponent mu of metric ~ n^mu, of the
                  first metric over all runs that are no bounds, with its 95 % interval; optional
  slowdown        {column: minibatches a round}: below the table how many times fewer minibatches
                  a client takes than in the first of them, by the first metric; optional
  errors          bands and bars over seeds: range (default), or confidence: the 95 % interval of
                  the mean
  abreast         panels in a row of the figure (default: all)
  panels          of the figure, from left to right, with one y axis. Every panel may have: ylabel,
                  and then an axis of its own; xscale and yscale, linear or log; legend, true where
                  it explains its lines itself. Each one of
    {title, column}
        accuracy of every method against rounds. The panel may have: curves, a list of one or two of
        CURVES, or of other columns of metrics.jsonl, the second dotted; methods, x, until and scale
        as below
    {title, lines: [{cell, label}, ...]}
        accuracy of chosen cells against rounds. A line may have: curve, one of CURVES or another
        column (default: the panel's curve, or the first of CURVES); style, solid (default), dashed
        or dotted; colour, a place in COLOURS (default: one a label). The panel may have: x,
        mbytes_total in place of round, or minibatches: rounds times `scale`, that of the line or of
        the panel; until, the last round drawn; styles, {style: what it means}
    {title, label, columns: {name: x}}
        the first metric against a factor x, and the power law of a method whose `fit` is over these
        columns; or, with curves, a list of one or two of CURVES, these at the round `round`; or,
        with slowdown true, that. The panel may have: methods, {method: the one as which it is
        drawn} (default: all)
    {title, x, points: {method: columns}}
        a dot a run: accuracy against x, e.g. model_deviation, both at the round `round`
    {title, rounds, cells: [{cell, label}, ...]}
        the distribution of accuracy over clients in these rounds
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from absl import flags, logging

from dfl_jax.cli.command import check_writable, fail, in_a_line
from dfl_jax.cli.run.rundir import Row, write_atomically
from dfl_jax.cli.tables.columns import columns, columns_of_cells
from dfl_jax.cli.tables.curves import LOSS, Run, Runs, find_runs, panel_curves, save_curves
from dfl_jax.cli.tables.files import HERE, known_tables, read_computed, read_published
from dfl_jax.cli.tables.fits import fit_lines, fits, slowdown_lines
from dfl_jax.cli.tables.metrics import (
    HEADS,
    Measured,
    by_metric,
    in_column,
    mean,
    measure,
    measure_cell,
    metric_words,
    short,
    what,
    when,
)

FLAGS = flags.FLAGS
OFF = 0.25  # a mean further from the paper's number than this is warned of


def flagfiles(published: Row, folder: Path) -> dict[str, Path]:
    """The flagfile of every cell that has one. folder: the table's own."""
    cells = sorted(f'{m}-{column}' for m in published['rows'] for column in published['columns'])
    folders = [HERE / name for name in published['flags']] if 'flags' in published else [folder]
    files = {cell: [f / f'{cell}.flags' for f in folders] for cell in cells}
    there = {cell: [file for file in files[cell] if file.exists()] for cell in cells}
    return {cell: found[0] for cell, found in there.items() if found}


def paper_number(number: float | str) -> Measured:
    """A number of `rows`, e.g. 83 or '>200'."""
    return Measured(float(str(number).lstrip('>')), str(number).startswith('>'))


def ylabel(published: Row) -> str:
    """Of the axis that the panels share which have none of their own."""
    shared = [panel for panel in published['panels'] if 'ylabel' not in panel]
    panel = (shared or published['panels'])[0]
    if 'rounds' in panel:
        return 'test accuracy of a client (%)'
    loss = set(panel_curves(panel)) == {LOSS}
    if {'columns', 'curves'} <= set(panel):
        where = f'at {when(published)}'
        return f'mean test loss {where}' if loss else f'test accuracy {where} (%)'
    if {'columns', 'points'} & set(panel):
        return metric_words(by_metric(published)[0])
    return 'mean test loss' if loss else 'test accuracy (%)'


def table(published: Row, runs: Runs) -> str:
    """A Markdown table, a row a method, the paper's number and ours for every column."""
    parts = by_metric(published)
    places = [(i, column, part) for i, column in enumerate(published['columns']) for part in parts]
    printed = any(
        n is not None for part in parts for numbers in part['rows'].values() for n in numbers
    )
    who = ('paper', 'ours') if printed else ('ours',)
    head = ['method'] + [f'{heading(part, column)} {w}' for _, column, part in places for w in who]
    lines = [head, ['---'] * len(head)]
    for method in published['rows']:
        line = [method]
        for i, column, part in places:
            values = measure_cell(part, runs, method, column)
            line += [str(part['rows'][method][i] or '-')] * printed + [summary(values)]
        lines.append(line)
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def heading(published: Row, column: str) -> str:
    """The column, and the metric where there are several."""
    if 'metrics' not in published:
        return column
    return f'{column} {published.get("head", HEADS[published["metric"]])}'


def summary(values: Sequence[Measured]) -> str:
    """Mean and standard deviation over seeds; every one of them where only some got there."""
    if not values:
        return '-'
    seeds = '1 seed' if len(values) == 1 else f'{len(values)} seeds'
    if all(value.bound for value in values):
        return f'{min(values)} ({seeds})'
    if any(value.bound for value in values):
        return f'{", ".join(map(str, values))} ({seeds})'
    text = f'{mean(values)}'
    if len(values) > 1:
        text += f' ± {short(statistics.stdev(v.value for v in values), 2)}'
    return f'{text} ({seeds})'


def comparisons(published: Row, runs: Runs) -> list[str]:
    """Per column: how much faster and how much more accurate `ours` is than the best baseline."""
    if 'ours' not in published:
        return []
    out = {*published.get('centralized', ()), *published.get('variants', ())}
    rows = {method: row for method, row in published['rows'].items() if method not in out}
    judged = 'client_accuracy_at' if published['metric'] == 'client_accuracy_at' else 'accuracy_at'
    whose = ' of the mean client' if judged == 'client_accuracy_at' else ''
    lines = []
    for i, column in enumerate(published['columns']):
        cells = {m: runs[f'{m}-{column}'] for m in rows if f'{m}-{column}' in runs}
        if published['metric'] == 'rounds_to':
            mine = fewer(published['ours'], {m: mean(measure(published, cells[m])) for m in cells})
            numbers = {m: paper_number(row[i]) for m, row in rows.items() if row[i] is not None}
            paper = fewer(published['ours'], numbers)
            beside = f'; paper: {paper}' if paper else ''
            if mine:
                lines.append(f'{column}: fewer rounds than the best baseline: {mine}{beside}')
        if 'round' in published:
            part = in_column(published, column) | {'metric': judged}
            found = {m: measure(part, cells[m]) for m in cells}
            points = lead(published['ours'], {m: mean(v) for m, v in found.items() if v})
            where = f'at {when(part)}'
            if points:
                lines.append(f'{column}: lead{whose} over the best baseline {where}: {points}')
    return lines


def fewer(ours: str, rounds: dict[str, Measured]) -> str | None:
    mine = rounds.pop(ours, None)
    if not rounds or mine is None or mine.bound:
        return None
    best = min(rounds, key=lambda method: rounds[method])
    times = rounds[best].value / mine.value
    if rounds[best].bound and times <= 1:  # a run that has hardly begun tells nothing
        return None
    return f'{"more than " * rounds[best].bound}{times:.1f} times ({best})'


def lead(ours: str, accuracies: dict[str, Measured]) -> str | None:
    mine = accuracies.pop(ours, None)
    if not accuracies or mine is None:
        return None
    best = max(accuracies, key=lambda method: accuracies[method])
    return f'{mine.value - accuracies[best].value:.1f} points ({best})'


def off_paper(published: Row, runs: Runs) -> list[str]:
    """The cells whose mean is far from the paper's number, bounds taken as such."""
    lines = []
    for method, numbers in published['rows'].items():
        for column, number in zip(published['columns'], numbers, strict=True):
            values = measure_cell(published, runs, method, column)
            if number is None or not values:
                continue
            mine, paper = mean(values), paper_number(number)
            off = mine.value / paper.value - 1
            if (off > OFF and not paper.bound) or (off < -OFF and not mine.bound):
                where = f'{method} {heading(published, column)}'
                lines.append(f'{where}: {mine} against {number} ({100 * off:+.0f} %)')
    return lines


def report(published: Row, runs: Runs) -> str:
    """The table, comparisons and fits below it, and what is far from the paper."""
    text = table(published, runs)
    parts = by_metric(published)
    lines = [*dict.fromkeys(line for part in parts for line in comparisons(part, runs))]
    if lines := lines + fit_lines(published, runs) + slowdown_lines(published, runs):
        text += '\n\n' + '\n'.join(f'- {line}' for line in lines)
    if lines := [line for part in parts for line in off_paper(part, runs)]:
        text += f'\n\nMore than {100 * OFF:.0f} % off the paper:\n\n' + '\n'.join(
            f'- {x}' for x in lines
        )
    return text


def define_flags(_: Sequence[str]) -> None:
    """Defines the flags of this command, whose names others use for something else."""
    flags.DEFINE_list('runs', 'runs', 'Folders whose subfolders are the runs, or .json of them.')
    flags.DEFINE_string(
        'out', None, 'Where table, curves and figure go (default: with the first of --runs).'
    )


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.FATAL)
    known = known_tables(HERE)
    if len(argv) != 2 or argv[1] not in known:
        return fail(f'name one table of {", ".join(sorted(known))}')
    sources = [Path(source) for source in FLAGS.runs if source]
    if not sources:
        return fail('--runs is empty; name a folder of runs, or leave it out')
    try:
        return write_table(argv[1], known[argv[1]], sources)
    except (ValueError, OSError, ImportError) as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return fail('interrupted; start again', status=130)


def write_table(table_name: str, file: Path, sources: Sequence[Path]) -> int:
    """Prints the table and writes its files. Raises ValueError or OSError, one line."""
    name, first = table_name.replace('/', '-'), sources[0]
    out = Path(FLAGS.out or (first.parent if first.suffix == '.json' else first))
    names_of_files = [f'{name}.{kind}' for kind in ('md', 'json', 'png')]
    check_writable(out, names_of_files, flag='out' if FLAGS.out else 'runs')
    try:
        if file.stem == 'computed':
            from dfl_jax.cli.tables import studies as numerical

            numerical.main(read_computed(file), name, out)
        else:
            _write(read_published(file), file.parent, sources, out, name)
    except (LookupError, TypeError, AttributeError) as error:
        why = f'{type(error).__name__}: {error}'
        raise ValueError(f'{file} is no table as it should be ({why})') from error
    print('written: ' + ', '.join(str(out / each) for each in names_of_files))
    return 0


def _write(published: Row, folder: Path, sources: Sequence[Path], out: Path, name: str) -> None:
    files = flagfiles(published, folder)
    names, only = columns(published), columns_of_cells(published)
    runs, warnings = find_runs(folder.name, files, sources, names, only)
    text = report(published, runs)
    print(f'{published["title"]}: {what(published)}\n({published["source"]})\n\n{text}')
    for warning in warnings:
        print(f'note: {in_a_line(warning)}')
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f'{name}.md', text + '\n')
    save_curves(out / f'{name}.json', runs, warnings)

    from dfl_jax.cli.tables.panels import table_panels
    from dfl_jax.cli.tables.plot_panels import plot_panels

    def measured(cell: Sequence[Run]) -> list[float]:
        part = by_metric(published)[0]
        bounds = part['metric'] != 'loss_to'  # a fit has none, nor have the marks beside it
        return [m.value for m in measure(part, cell) if bounds or not m.bound]

    drawn = table_panels(published, runs, measured, fits(published, runs))
    figure = out / f'{name}.png'
    plot_panels(drawn, figure, ylabel(published), published.get('target'), published.get('abreast'))
