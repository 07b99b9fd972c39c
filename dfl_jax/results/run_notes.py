"""What is said of runs: that they have other settings than their flagfile, or no end."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from dfl_jax.plain_text import in_a_line


class Note(NamedTuple):
    """What is said of a run, in a line that begins with its name.

    kind: a setting or a partition that is not its flagfile's; left out, as it cannot be read.
    """

    run: str
    text: str
    kind: Literal['setting', 'partition', 'left out', 'unfinished']

    @property
    def of_settings(self) -> bool:
        return self.kind in ('setting', 'partition')

    def __str__(self) -> str:
        return f'{self.run}{":" * self.of_settings} {self.text}'

    def is_about(self, names: Iterable[str]) -> bool:
        """Whether it is of one of these runs, or of a run of these cells."""
        return any(f'{self.run}-'.startswith(f'{name}-') for name in names)


def left_out(run: str, why: str) -> Note:
    return Note(run, f'is left out{why}', 'left out')


def read_note(line: str) -> Note:
    """The note that was written as this line."""
    run, _, text = line.partition(' ')
    if run.endswith(':'):
        return Note(run[:-1], text, 'setting' if text.startswith('--') else 'partition')
    return Note(run, text, 'left out' if text.startswith('is left out') else 'unfinished')


def note_lines(notes: Iterable[Note]) -> list[str]:
    """The notes in lines, one for all runs that have the same other setting."""
    runs_of: dict[str, list[str]] = {}
    lines = []
    for note in notes:
        if note.of_settings:
            runs_of.setdefault(note.text, []).append(note.run)
        else:
            lines.append(str(note))
    for text, (first, *others) in runs_of.items():
        lines.append(f'{first}{f" and {len(others)} more" if others else ""}: {text}')
    return [f'note: {in_a_line(line)}' for line in lines]
