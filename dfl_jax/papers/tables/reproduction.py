"""The pages of all claims of the papers: published, ours, and a verdict that the curves decide.

`python -m experiments.tables all --runs=docs/results --out=docs` writes them. docs/tables.md says
what published.json holds for them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.papers.tables import verdict
from dfl_jax.papers.tables.claims import KINDS, Entry
from dfl_jax.papers.tables.missing import duration
from dfl_jax.papers.tables.stored import Seconds, Stored, Table, judged_tables
from dfl_jax.papers.tables.verdict import NOT_RUN, VERDICTS, Judged
from dfl_jax.plain_text import counted, markdown_table
from dfl_jax.results.measured import metrics_in_words
from dfl_jax.results.published import flagfiles_of, read_published, read_titled

PAGE, NUMBERS = 'reproduction.md', 'reproduction_numbers.md'


class Paper(NamedTuple):
    name: str
    page: str  # of its results
    authors: str


PAPERS = {  # by folder, in the order of the page
    'ntk_dfl': Paper('NTK-DFL', 'results_ntk_dfl.md', 'Thompson, Yue, Wong & Dai, ICML 2025'),
    'spark': Paper('SPARK', 'results_spark.md', 'Xia, 2025'),
    'dfml': Paper(
        *('DFML', 'results_dfml.md'),
        'Khalil, Estiri, Beitollahi, Asadi, Hemati, Li, Zhang & Chen, TMLR 2024',
    ),
    'init_topology': Paper(
        *('Initialisation and topology', 'results_init_topology.md'),
        'Badie-Modiri, Boldrini, Valerio, Kertész & Karsai',
    ),
    'byzantine': Paper(
        *('Robust rules', 'results_adversaries.md'), 'He, Karimireddy & Jaggi, 2022'
    ),
}
INTRODUCTION = """\
# Reproduction

Every number of the papers' tables and figures that a run can give is set beside ours. This page
has the counts, what does not agree and why; [all numbers](reproduction_numbers.md) are on a page of
their own. Verdicts are computed from the curves kept in docs/results: `dfl-jax tables all
--runs=docs/results --out=docs` writes both pages.
"""
RULE = f"""\
## How a number is judged

* *{verdict.EQUAL}*: the 95 % interval of our mean lies within the tolerance of the published
  number: {verdict.POINTS:g} point of an accuracy, else {100 * verdict.SHARE:.0f} %, but never less
  than a round; of megabytes saved, {100 * verdict.SHARE:.0f} % of what is still sent.
* *{verdict.CONSISTENT}*: our runs cannot tell it from ours: it lies in the 95 % prediction interval
  of one more run of ours, or of as many as the paper averages.
* *{verdict.DIFFERS}*: it lies outside, and our interval outside the tolerance.
* *{verdict.INCONCLUSIVE}*: it lies outside, but our interval reaches into the tolerance; or inside,
  but half of our interval is wider than {verdict.WIDE} tolerances; or runs or rounds are too few.
* *{NOT_RUN}*: there are no runs, or they measured something else, which is said.

`ours` is the mean, plus or minus half of its 95 % interval. The interval is Student's, with the
standard deviation of all cells of a method in a table, so that a single run has one, too. `off` is
the distance of our mean from the published number in tolerances. Where the paper or a run of ours
stopped early (>) there is no interval. The verdict is then *{verdict.EQUAL}* where neither got
there, *{verdict.CONSISTENT}* where our runs lie on both sides of the published number, and
*{verdict.DIFFERS}* where all of several are on one side, beyond the tolerance.

An *effect* is what one method has over another, of runs paired by their seeds: points of accuracy,
or how many times fewer rounds. Its tolerance is {100 * verdict.SHARE:.0f} % of it, of points never
less than {verdict.LEAST:g}. An *order* is what a figure without numbers shows, the best first.
Between the means stands the Welch t by which the one before is better; where it is not beyond the
95 % of its distribution, the pair is a tie. The order is
*{verdict.EQUAL}* where all pairs are in order, *{verdict.CONSISTENT}* where some are and the others
are ties, *{verdict.DIFFERS}* where a pair is the other way round, else *{verdict.INCONCLUSIVE}*.
The exponent of a power law is judged as a number, by the interval of the fit. Two quantities rise
together, which counts as an order, where the 95 % interval of their correlation lies above 0.
*Logs* are numbers of the authors' logs, which no paper prints. A number that several tables print
is listed once, in the first.
"""
ALL_NUMBERS = """\
# All published numbers

What every table and figure prints, beside ours, table by table. [Reproduction](reproduction.md)
says what the verdicts mean, and why numbers do not agree.
"""
MACHINES = """\
The times are those of the rounds, evaluation apart, on two CPU cores, mostly of a shared AMD EPYC
machine. Some runs were trained on an NVIDIA H100 or H200, and of some the time was not kept; they
count with the time of other seeds of the cell, where there is one."""
COMPUTED = """\
These have no runs: `dfl-jax tables PAPER/TABLE` computes them, and the pages of the papers say what
they show. NTK-DFL's Figures 6 and 17 and the theorems of NTK-DFL and SPARK have commands of their
own, on the pages of [NTK-DFL](results_ntk_dfl.md) and [SPARK](results_spark.md)."""


def pages(tables: Mapping[str, Path], folder: Path) -> dict[str, str]:
    """The pages in Markdown, by their files.

    tables: published.json or computed.json, by PAPER/TABLE; folder: of the curves.
    """
    computed = {name: file for name, file in sorted(tables.items()) if file.stem == 'computed'}
    names = sorted(tables.keys() - computed.keys(), key=_by_number)
    read = {name: read_published(tables[name]) for name in names}
    flagfiles = {n: flagfiles_of(read[n], tables[n].parent) for n in read}
    stored = Stored(folder, flagfiles)
    found = [*judged_tables(read, flagfiles, stored)]
    titles = {name: read_titled(file, 'studies')['title'] for name, file in computed.items()}
    rows = [[n, t, stored.link('Figure', n, 'png').strip()] for n, t in titles.items()]
    return {PAGE: _summary(found), NUMBERS: _all_numbers(found, rows)}


def _summary(tables: Sequence[Table]) -> str:
    """The page of what agrees and what does not."""
    with_numbers = {table.paper for table in tables if table.entries}
    order = [*PAPERS, *sorted(with_numbers - {*PAPERS})]
    papers = {
        name: [table for table in tables if table.paper == name]
        for name in order
        if name in with_numbers
    }
    counts = [
        [_title(paper), f'{kind}s', *(str(count) for count in _counted(those, kind))]
        for paper, those in papers.items()
        for kind in KINDS
        if any(entry.kind == kind for table in those for entry in table.entries)
    ]
    altogether: Seconds = {}
    for table in tables:
        for run, seconds in table.seconds.items():
            altogether[run] = max(altogether.get(run, 0), seconds)
    headlines = [table.headline for those in papers.values() for table in those if table.headline]
    blocks = [
        INTRODUCTION.rstrip(),
        '\n'.join(headlines),
        markdown_table(['paper', '', *VERDICTS], counts, 2),
        f'All curves together are of {_with_time(altogether)}. {MACHINES}',
    ]
    for paper, those in papers.items():
        blocks += _of_paper(paper, [table for table in those if table.has_run and table.entries])
    left_out = [table for table in tables if not table.has_run]
    blocks += ['## Not run', _left_out(left_out)] if left_out else []
    return '\n\n'.join([*filter(None, blocks), RULE.rstrip()]) + '\n'


def _title(paper: str) -> str:
    known = PAPERS.get(paper)
    return f'[{known.name}]({known.page})' if known else paper


def _of_paper(paper: str, tables: Sequence[Table]) -> list[str]:
    """Its tables in a line each, and what does not agree, with the reasons."""
    if not tables:
        return []
    apart = [
        (table, entry)
        for table in tables
        for entry in table.entries
        if entry.verdict in (verdict.DIFFERS, verdict.INCONCLUSIVE)
    ]
    causes = _numbered([entry for _, entry in apart])
    lines = [
        [
            f'[{table.name.split("/")[1]}]({NUMBERS}#{_anchor(table.name)})',
            *(str(count) for count in _counted([table])),
        ]
        for table in tables
    ]
    known = PAPERS.get(paper)
    blocks = [f'## {known.name if known else paper}']
    blocks += [f'{known.authors}: [what was run and seen]({known.page}).'] if known else []
    blocks += [markdown_table(['', *VERDICTS], lines, 1)]
    if apart:
        rows = [
            [table.name.split('/')[1], *e[:4], _off(e.judged), e.verdict + _note(causes.get(e.why))]
            for table, e in apart
        ]
        head = ['', 'claim', 'published', 'ours', 'seeds', 'off', 'verdict']
        blocks += ['What does not agree, or does not tell:', markdown_table(head, rows)]
    return blocks + _notes(causes)


def _numbered(entries: Sequence[Entry]) -> dict[str, int]:
    """The notes on some entries, numbered from one."""
    return {why: number for number, why in enumerate({e.why: 0 for e in entries if e.why}, 1)}


def _notes(causes: Mapping[str, int]) -> list[str]:
    return [f'[{number}] {why[0].upper()}{why[1:]}.' for why, number in causes.items()]


def _by_number(name: str) -> list[str | int]:
    """Figure 2 comes before Figure 10."""
    parts = re.split(r'(\d+)', name)
    return [int(part) if part.isdigit() else part for part in parts]


def _anchor(name: str) -> str:
    return name.replace('/', '')


def _all_numbers(tables: Sequence[Table], computed: Sequence[Sequence[str]]) -> str:
    """The page of all numbers."""
    blocks = [_section(table) for table in tables if table.entries and table.has_run]
    silent = [table.name + table.links for table in tables if table.seconds and not table.entries]
    if silent:
        blocks += ['## Run, without a published number', f'{", ".join(silent)}.']
    if computed:
        blocks += [
            '## Computed, not trained',
            COMPUTED,
            markdown_table(['table', '', ''], computed),
        ]
    return '\n\n'.join([ALL_NUMBERS.rstrip(), *blocks]) + '\n'


def _left_out(tables: Sequence[Table]) -> str:
    """Tables without runs, those of one reason together."""
    reasons: dict[str, list[Table]] = {}
    for table in tables:
        why = next((e.why for e in table.entries), table.published.get('not_run', ''))
        reasons.setdefault(why, []).append(table)
    rows = [
        [', '.join(t.name for t in those), str(sum(len(t.entries) for t in those) or '-'), why]
        for why, those in reasons.items()
    ]
    return markdown_table(['tables', 'claims', 'why'], rows)


def _counted(tables: Sequence[Table], kind: str | None = None) -> list[int]:
    """How many entries have each verdict, all or those of a kind."""
    verdicts = [e.verdict for table in tables for e in table.entries if kind in (None, e.kind)]
    return [verdicts.count(each) for each in VERDICTS]


def _with_time(seconds: Seconds) -> str:
    """The number of runs, and what those took of which it is known."""
    text, unknown = counted(len(seconds), 'run'), [*seconds.values()].count(0)
    if unknown == len(seconds):
        return text
    without = f', not counting {unknown} of unknown time' if unknown else ''
    return f'{text}, {duration(sum(seconds.values()))}{without}'


def _section(table: Table) -> str:
    published = table.published
    words = f'{published["title"]}: {metrics_in_words(published)}.{table.links}'
    lines = [f'## {table.name}', f'{words} {_with_time(table.seconds)}.']
    missing = [entry for entry in table.entries if entry.verdict == NOT_RUN]
    shown = [entry for entry in table.entries if entry.verdict != NOT_RUN]
    if shown:
        causes = _numbered(shown)
        rows = [[*e[:4], _off(e.judged), e.verdict + _note(causes.get(e.why))] for e in shown]
        head = ['claim', 'published', 'ours', 'seeds', 'off', 'verdict']
        lines += [markdown_table(head, rows), *_notes(causes)]
    if missing or 'not_run' in published:
        numbers = f', {counted(len(missing), "number")}' if missing else ''
        reasons = dict.fromkeys([*(e.why for e in missing), published.get('not_run', '')])
        why = '; '.join(filter(None, reasons))
        lines.append(f'Not run{numbers}{": " * bool(why)}{why}.')
    if table.again:
        lines.append(f'{counted(table.again, "number")} more stand above.')
    return '\n\n'.join(lines)


def _off(judged: Judged) -> str:
    """The distance in tolerances."""
    return '' if judged.tolerances is None else f'{judged.tolerances:+.1f}'


def _note(number: int | None) -> str:
    return f' [{number}]' if number else ''
