"""The text of a table: the paper's numbers beside ours, and what follows from them."""

from dfl_jax.cli import markdown
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.comparisons import OFF, comparisons, off_paper
from dfl_jax.cli.tables.curves import Runs
from dfl_jax.cli.tables.fits import fit_lines, slowdown_lines
from dfl_jax.cli.tables.metrics import by_metric, heading, measure_cell, summary

OFF_PAPER = f'More than {100 * OFF:.0f} % off the paper:'


def cells(published: Row, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, one a method: the paper's number and ours for every column."""
    parts = by_metric(published)
    places = [(i, column, part) for i, column in enumerate(published['columns']) for part in parts]
    numbers = [n for part in parts for row in part['rows'].values() for n in row]
    printed = any(number is not None for number in numbers)
    sources = ('paper', 'ours') if printed else ('ours',)
    head = [f'{heading(part, column)} {source}' for _, column, part in places for source in sources]
    rows = []
    for method in published['rows']:
        row = [method]
        for i, column, part in places:
            paper = [str(part['rows'][method][i] or '-')] * printed
            row += [*paper, summary(measure_cell(part, runs, method, column))]
        rows.append(row)
    return ['method', *head], rows


def table(published: Row, runs: Runs) -> str:
    """The table in Markdown."""
    return markdown.table(*cells(published, runs))


def below(published: Row, runs: Runs) -> tuple[list[str], list[str]]:
    """What stands below the table: comparisons and fits, and what is far off the paper."""
    parts = by_metric(published)
    lines = dict.fromkeys(line for part in parts for line in comparisons(part, runs))
    findings = [*lines, *fit_lines(published, runs), *slowdown_lines(published, runs)]
    return findings, [line for part in parts for line in off_paper(part, runs)]


def report(published: Row, runs: Runs) -> str:
    """The table and what stands below it, in Markdown."""
    lines, off = below(published, runs)
    blocks = [table(published, runs)]
    blocks += [markdown.bullets(lines)] * bool(lines)
    blocks += [OFF_PAPER, markdown.bullets(off)] * bool(off)
    return '\n\n'.join(blocks)
