"""One page of all claims of the papers: published, ours, and a verdict that the curves decide.

`python -m experiments.tables all --runs=docs/results --out=docs` writes it as reproduction.md. The
runs of a table are those of the file PAPER-TABLE.json in the folder, and those of other tables'
files whose cells have the same flagfile. docs/tables.md says what published.json holds for it.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.tables import verdict
from dfl_jax.papers.tables.claims import KINDS, Entry, entries
from dfl_jax.papers.tables.missing import duration
from dfl_jax.papers.tables.verdict import NOT_RUN, VERDICTS, Judged
from dfl_jax.plain_text import counted, markdown_table
from dfl_jax.results.curves import SECONDS, Runs, find_runs
from dfl_jax.results.measured import (
    by_metric,
    metrics_in_words,
)
from dfl_jax.results.published import flagfiles_of, needed_columns, read_published, read_titled

INTRODUCTION = f"""\
# Reproduction

Every number of the papers' tables and figures that a run can give, beside ours. Verdicts are
computed from the curves kept in docs/results; `dfl-jax tables all --runs=docs/results --out=docs`
writes this page.

* *{verdict.EQUAL}*: the 95 % interval of our mean lies within the tolerance of the published
  number: {verdict.POINTS:g} point of an accuracy, else {100 * verdict.SHARE:.0f} %, but never less
  than a round.
* *{verdict.CONSISTENT}*: the number lies in the prediction interval of one more run of ours, or of
  as many as the paper averages.
* *{verdict.DIFFERS}*: it lies outside, and our interval outside the tolerance.
* *{verdict.INCONCLUSIVE}*: it lies outside, but our interval reaches into the tolerance; or half of
  our interval is wider than {verdict.WIDE} tolerances; or there are too few runs or rounds to say.
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
*Logs* are numbers of the authors' logs, which no paper prints. A number that several tables print
is listed once, in the first.
"""
MACHINES = """\
The times are those of the rounds, evaluation apart, on two CPU cores, mostly of a shared AMD EPYC
machine. Some runs were trained on an NVIDIA H100 or H200, and of some the time was not kept; they
count with the time of other seeds of the cell, where there is one."""
COMPUTED = """\
These have no runs: `dfl-jax tables PAPER/TABLE` computes them, and the pages of the papers say what
they show. NTK-DFL's Figures 6 and 17 and the theorems of NTK-DFL and SPARK have commands of their
own, on the pages of [NTK-DFL](results_ntk_dfl.md) and [SPARK](results_spark.md)."""

# Of the rounds of a run, by its flagfile and name; 0 where they are not known
Seconds = dict[tuple[Path, str], float]


class Stored:
    """The curves of a folder, in a file PAPER-TABLE.json for every table that keeps some."""

    def __init__(self, folder: Path, flagfiles: Mapping[str, Mapping[str, Path]]) -> None:
        """flagfiles: of the cells of every table."""
        self._folder, self._flagfiles = folder, flagfiles
        self._files = {name: file for name in flagfiles if (file := self.file(name, 'json'))}
        paces: dict[Path, list[float]] = {}
        for name, file in self._files.items():
            own = flagfiles[name]
            for cell, runs in find_runs(own, [file], dict.fromkeys(own, ()))[0].items():
                paces.setdefault(own[cell], []).extend(r[SECONDS] for r in runs if SECONDS in r)
        self._paces = {file: statistics.median(those) for file, those in paces.items() if those}

    def file(self, name: str, kind: str) -> Path | None:
        """The curves of a table, 'json', or its figure, 'png'; None where it has none."""
        file = self._folder / f'{name.replace("/", "-")}.{kind}'
        return file if file.exists() else None

    def link(self, text: str, name: str, kind: str) -> str:
        """To such a file; empty where there is none."""
        file = self.file(name, kind)
        return f' [{text}]({self._folder.name}/{file.name})' if file else ''

    def runs_of(self, name: str, part: Row) -> tuple[Runs, list[str]]:
        """All runs that have what the metric takes, and the tables that keep them.

        Those of other tables count where the flagfile is the same; of one name the nearest.
        """
        own, paper = self._flagfiles[name], name.split('/')[0]
        runs, keepers = Runs(), []
        needed = needed_columns(part, own)
        # The table itself, then those of its paper, then others
        for other in sorted(self._files, key=lambda o: (o != name, o.split('/')[0] != paper)):
            same = {c: file for c, file in own.items() if self._flagfiles[other].get(c) == file}
            if not same:
                continue
            for cell, kept in find_runs(same, [self._files[other]], needed)[0].items():
                names = {run['run'] for run in runs.get(cell, ())}
                more = [run for run in kept if run['run'] not in names]
                runs.setdefault(cell, []).extend(more)
                keepers += [other] * bool(more and other not in keepers)
        return runs, keepers

    def seconds(self, name: str, runs: Runs) -> Seconds:
        """What the rounds of every run took."""
        files_of = self._flagfiles[name]
        return {
            (file, run['run']): run['round'][-1] * self._paces.get(file, 0)
            for file, of_cell in ((files_of[cell], runs[cell]) for cell in runs)
            for run in of_cell
        }


def page(tables: Mapping[str, Path], folder: Path) -> str:
    """The page in Markdown. tables: published.json or computed.json, by PAPER/TABLE."""
    computed = {name: file for name, file in sorted(tables.items()) if file.stem == 'computed'}
    read = {n: read_published(f) for n, f in sorted(tables.items()) if n not in computed}
    flagfiles = {n: flagfiles_of(read[n], tables[n].parent) for n in read}
    stored = Stored(folder, flagfiles)
    blocks: list[str] = []
    left_out: list[tuple[str, str, int]] = []
    counts: dict[str, list[Entry]] = {}
    headlines: list[str] = []
    silent: list[str] = []
    altogether: Seconds = {}
    printed: set[tuple] = set()
    for name, published in read.items():
        found: list[Entry] = []
        seconds: Seconds = {}
        keepers: dict[str, None] = {}
        for place, part in enumerate(by_metric(published)):
            part |= {'panels': ()} | dict.fromkeys(part.keys() & {'metrics'}, ())
            runs, more = stored.runs_of(name, part)
            orders = {} if place == 0 else {'claims': ()}
            found += entries(part | orders, runs, flagfiles[name])
            seconds |= stored.seconds(name, runs)
            keepers |= dict.fromkeys(more)
        for run in seconds:
            altogether[run] = max(altogether.get(run, 0), seconds[run])
        new = [entry for entry in found if not entry.same or entry.same not in printed]
        printed |= {entry.same for entry in new}
        if new:
            counts.setdefault(name.split('/')[0], []).extend(new)
        if headline := published.get('headline'):
            headlines.append(_headline(headline, found))
        if not seconds or (found and all(entry.verdict == NOT_RUN for entry in found)):
            why = next((entry.why for entry in found), published.get('not_run', ''))
            left_out.append((why, name, len(new)))
            continue
        if not found:
            silent.append(name + stored.link('curves', name, 'json'))
            continue
        own = stored.link('Curves', name, 'json')
        links = own or ''.join(stored.link(f'Curves of {k}', k, 'json') for k in keepers)
        links += stored.link('Figure', name, 'png')
        blocks.append(_section(name, published, new, f'{links} {_with_time(seconds)}.'))
        if len(new) < len(found):
            blocks[-1] += f'\n\n{counted(len(found) - len(new), "number")} more stand above.'
    summary = [
        [paper, f'{kind}s', *(str(count) for count in _counted(those, kind))]
        for paper, those in counts.items()
        for kind in KINDS
        if any(entry.kind == kind for entry in those)
    ]
    head = markdown_table(['paper', '', *VERDICTS], summary, 2)
    in_all = f'All curves together are of {_with_time(altogether)}. {MACHINES}'
    if left_out:
        blocks += ['## Not run', _left_out(left_out)]
    if silent:
        blocks += ['## Run, without a published number', f'{", ".join(silent)}.']
    if computed:
        titles = {name: read_titled(file, 'studies')['title'] for name, file in computed.items()}
        rows = [[n, t, stored.link('Figure', n, 'png').strip()] for n, t in titles.items()]
        blocks += ['## Computed, not trained', COMPUTED, markdown_table(['table', '', ''], rows)]
    top = [INTRODUCTION.rstrip(), head, '\n'.join(headlines), in_all]
    return '\n\n'.join([*filter(None, top), *blocks]) + '\n'


def _headline(headline: Mapping[str, str], found: Sequence[Entry]) -> str:
    """One sentence on a claim of a table. headline: its `text` and the `claim`."""
    entry = next(entry for entry in found if entry.claim == headline['claim'])
    ours = f'{entry.ours} here' if entry.ours else 'not run here, or otherwise'
    verdict_of = f', {entry.verdict}' * bool(entry.ours)
    return f'* {headline["text"]}: {entry.published} in the paper, {ours}{verdict_of}.'


def _left_out(tables: Sequence[tuple[str, str, int]]) -> str:
    """Tables without runs, those of one reason together: reason, table, numbers."""
    reasons = dict.fromkeys(why for why, *_ in tables)
    rows = []
    for why in reasons:
        names = [name for reason, name, _ in tables if reason == why]
        numbers = sum(count for reason, _, count in tables if reason == why)
        rows.append([', '.join(names), str(numbers or '-'), why])
    return markdown_table(['tables', 'claims', 'why'], rows)


def _counted(found: Sequence[Entry], kind: str) -> list[int]:
    """How many entries of a kind have each verdict."""
    verdicts = [entry.verdict for entry in found if entry.kind == kind]
    return [verdicts.count(each) for each in VERDICTS]


def _with_time(seconds: Seconds) -> str:
    """The number of runs, and what those took of which it is known."""
    text, unknown = counted(len(seconds), 'run'), [*seconds.values()].count(0)
    if unknown == len(seconds):
        return text
    without = f', not counting {unknown} of unknown time' if unknown else ''
    return f'{text}, {duration(sum(seconds.values()))}{without}'


def _section(name: str, published: Row, found: Sequence[Entry], after: str) -> str:
    """after: what follows the title."""
    lines = [f'## {name}', f'{published["title"]}: {metrics_in_words(published)}.{after}']
    missing = [entry for entry in found if entry.verdict == NOT_RUN]
    shown = [entry for entry in found if entry.verdict != NOT_RUN]
    causes = {why: number for number, why in enumerate({e.why: 0 for e in shown if e.why}, 1)}
    if shown:
        rows = [[*e[:4], _off(e.judged), e.verdict + _note(causes.get(e.why))] for e in shown]
        lines.append(
            markdown_table(['claim', 'published', 'ours', 'seeds', 'off', 'verdict'], rows)
        )
    lines += [f'[{number}] {why[0].upper()}{why[1:]}.' for why, number in causes.items()]
    if missing or 'not_run' in published:
        numbers = f', {counted(len(missing), "number")}' if missing else ''
        why = f': {published["not_run"]}' if 'not_run' in published else ''
        lines.append(f'Not run{numbers}{why}.')
    return '\n\n'.join(lines)


def _off(judged: Judged) -> str:
    """The distance in tolerances."""
    return '' if judged.tolerances is None else f'{judged.tolerances:+.1f}'


def _note(number: int | None) -> str:
    return f' [{number}]' if number else ''
