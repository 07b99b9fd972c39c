"""Tables in Markdown, as all commands print and write them."""

from collections.abc import Iterable, Sequence


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    text_columns: int | None = None,
    number_rule: str = '--:',
) -> str:
    """The lines of a table.

    Args:
      head: a heading a column.
      rows: a cell a column each.
      text_columns: columns, from the left, that hold text; those after them are aligned right.
        None for text in all of them.
      number_rule: what stands below the heading of a column that is aligned right.
    """
    texts = len(head) if text_columns is None else text_columns
    rules = ['---'] * texts + [number_rule] * (len(head) - texts)
    return '\n'.join(f'| {" | ".join(cells)} |' for cells in (head, rules, *rows))


def bullets(lines: Iterable[str]) -> str:
    """A list, a line an item."""
    return '\n'.join(f'- {line}' for line in lines)
