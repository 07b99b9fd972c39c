"""The tables of all papers with the curves that are kept of them, and what became of their claims.

The runs of a table are those of the file PAPER-TABLE.json in the folder, and those of other tables'
files whose cells have the same flagfile.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.tables.claims import Entry, entries
from dfl_jax.papers.tables.verdict import NOT_RUN
from dfl_jax.results.curves import SECONDS, Runs, find_runs
from dfl_jax.results.measured import by_metric
from dfl_jax.results.published import needed_columns

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


class Table(NamedTuple):
    """A table of a paper, and what has become of it."""

    name: str
    published: Row
    entries: list[Entry]  # without those that a table before has listed
    again: int  # of those
    links: str  # to its curves and its figure
    seconds: Seconds
    has_run: bool  # whether something of it was run, as the paper has it
    headline: str = ''

    @property
    def paper(self) -> str:
        return self.name.split('/')[0]


def judged_tables(
    read: Mapping[str, Row], flagfiles: Mapping[str, Mapping[str, Path]], stored: Stored
) -> Iterator[Table]:
    """Every table, in this order; a number is listed by the first that prints it."""
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
        new = [entry for entry in found if not entry.same or entry.same not in printed]
        printed |= {entry.same for entry in new}
        own = stored.link('Curves', name, 'json')
        links = own or ''.join(stored.link(f'Curves of {k}', k, 'json') for k in keepers)
        links += stored.link('Figure', name, 'png')
        headline = published.get('headline')
        words = _headline(headline, found) if headline else ''
        judged = not found or any(entry.verdict != NOT_RUN for entry in found)
        again, has_run = len(found) - len(new), bool(seconds) and judged
        yield Table(name, published, new, again, links, seconds, has_run, words)


def _headline(headline: Mapping[str, str], found: Sequence[Entry]) -> str:
    """One sentence on a claim of a table. headline: its `text` and the `claim`."""
    entry = next(entry for entry in found if entry.claim == headline['claim'])
    ours = f'{entry.ours} here' if entry.ours else 'not run here, or otherwise'
    verdict_of = f', {entry.verdict}' * bool(entry.ours)
    return f'* {headline["text"]}: {entry.published} in the paper, {ours}{verdict_of}.'
