"""Texts for people: a line, a count, a table. Nothing heavy is imported here."""

from collections.abc import Iterable, Sequence

LONGEST = 1000  # characters of an error


def in_a_line(text: str) -> str:
    """The text without line breaks and what would steer a terminal, cut where it is endless."""
    line = ' '.join(text.splitlines())
    shown = ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}...'


def counted(number: int, noun: str) -> str:
    return f'{number} {noun}{"s" * (number != 1)}'


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int | None = None
) -> str:
    """A table as all commands print and write them.

    Args:
      head: a heading a column.
      rows: a cell a column each.
      text_columns: columns, from the left, that hold text; those after them are aligned right.
        None for text in all of them.
    """
    texts = len(head) if text_columns is None else text_columns
    rules = ['---'] * texts + ['--:'] * (len(head) - texts)
    return '\n'.join(f'| {" | ".join(cells)} |' for cells in (head, rules, *rows))
