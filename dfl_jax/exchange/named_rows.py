"""Rows of tables whose names may be followed by a value: NAME or NAME:VALUE."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dfl_jax.method_settings import nearest
from dfl_jax.setting_error import SettingError


class NamedRow(NamedTuple):
    """A row of such a table."""

    make: Callable[..., Any]  # of the value, if it takes one
    value: str = ''  # what its value is; '' where it takes none
    parse: Callable[[str], Any] = float  # raises ValueError
    default: Any = None  # of the value; None where it has to be given
    # The members, the receiver among them, that a rule needs for its value
    members: Callable[[Any], int] = lambda _: 1
    takes_loss: bool = False  # whether a rule takes that of a model on the receiver's own samples


def row_and_value(
    setting: str, text: str, table: Mapping[str, NamedRow], others: Iterable[str] = ()
) -> tuple[NamedRow, tuple]:
    """The row of a name, and its value in a tuple, which is empty where it takes none.

    others: names without a value that are no rows. Raises SettingError.
    """
    name, colon, value = text.partition(':')
    names = [*others, *table]
    if name not in names:
        message = f'unknown {setting} {name!r}{nearest(name, names)}'
        remedy = f'choose one of {", ".join(names)}, or package.module:function'
        raise SettingError(setting, text, message, remedy)
    row = table.get(name)
    if row is None or not row.value:
        if colon or row is None:
            raise SettingError(setting, text, f'{name} takes no value', f'write {name}')
        return row, ()
    try:
        if not colon and row.default is None:
            raise ValueError
        return row, (row.parse(value) if colon else row.default,)
    except ValueError:
        remedy = f'write {name}:{row.value.partition(", ")[0].upper()}'
        raise SettingError(setting, text, f'{name} takes {row.value}', remedy) from None
