"""The errors of what a run cannot be made of: one setting, or several that do not go together."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_QUOTED = re.compile(r'`(\w+)(?:=([^`]*))?`')  # a setting in a message, perhaps with its value


class InputError(ValueError):
    """What a run cannot be made of, and the remedy.

    Its text writes settings in backticks, also with a value, `` `topology=ring` ``: a command line
    spells them otherwise than Python does (`rendered`).
    """

    @property
    def whole(self) -> str:
        """The text, settings in backticks."""
        return self.args[0]

    def __str__(self) -> str:
        return plain(self.whole)


class SettingError(InputError):
    """A setting that cannot be: which one, what it was given as, why not, and the remedy.

    A message that begins with the setting's own name is a sentence by itself.

    colon: between the setting and a message that does not go on its sentence; None where the
    message is the whole text (`of`).

    >>> error = SettingError('degree', 40, 'there are 30 clients', 'lower it, or raise `clients`')
    >>> print(error)
    degree=40: there are 30 clients; lower it, or raise clients
    >>> print(rendered(error, lambda name, value: f'--{name}' + (f'={value}' if value else '')))
    --degree=40: there are 30 clients; lower it, or raise --clients
    """

    def __init__(
        self, setting: str, value: Any, message: str, remedy: str = '', colon: bool | None = True
    ):
        self.setting, self.value, self.message, self.remedy = setting, value, message, remedy
        self.colon = colon
        super().__init__(setting, value, message, remedy, colon)

    @classmethod
    def of(cls, message: str, **setting: Any) -> 'SettingError':
        """The error of one setting, given with its value, whose message is the whole text.

        >>> print(SettingError.of('the share is 2: use less than 1', test_share=2))
        the share is 2: use less than 1
        """
        ((name, value),) = setting.items()
        return cls(name, value, message, colon=None)

    def __str__(self) -> str:
        if re.match(rf'(unknown )?{re.escape(self.setting)}\b', self.message):
            return plain('; '.join(filter(None, (self.message, self.remedy))))
        return plain(self.whole)

    @property
    def whole(self) -> str:
        """The text that begins with setting and value, or the message, settings in backticks."""
        if self.colon is None:
            return self.message
        several = isinstance(self.value, list | tuple)
        value = ','.join(map(str, self.value)) if several else self.value
        begin = f'`{self.setting}={value}`{":" * self.colon} {self.message}'
        return '; '.join(filter(None, (begin, self.remedy)))


@contextlib.contextmanager
def by_flat_names(names: Mapping[str, str]) -> Iterator[None]:
    """Raises the SettingErrors of this block by the flat names of settings.

    names: of an argument that the library checks -> the flat name of its setting.
    """
    try:
        yield
    except SettingError as error:
        error.setting = names.get(error.setting, error.setting)
        raise


def plain(text: str) -> str:
    """The text with its settings as Python has them."""
    return _QUOTED.sub(lambda found: found[0].strip('`'), text)


def rendered(error: BaseException, spelled: Callable[[str, str | None], str]) -> str:
    """The text of an error; its settings are `spelled(name, value)`, the value None without one."""
    text = getattr(error, 'whole', None) or str(error)
    return _QUOTED.sub(lambda found: spelled(found[1], found[2]), text)
