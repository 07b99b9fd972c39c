"""A file of rows, one JSON object a line, of which a line that was lost or changed is noticed."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dfl_jax.files import check_file, from_json, to_json, write_atomically

Row = dict[str, Any]


class RowsFile:
    """A file of JSON objects of increasing rounds, one a line, each with the digest of all before.

    A line is appended whole, or dropped by the next reader.
    """

    def __init__(self, file: Path):
        self.file = file
        self._digest: str | None = None  # of the rows in the file, once they were read

    def undamaged(self) -> tuple[list[tuple[Row, str]], str | None]:
        """The rows before the first damage, each with the digest of all up to it, and what the
        damage is, None where there is none."""
        rows: list[tuple[Row, str]] = []
        try:
            check_file(self.file)
            lines = self.file.read_bytes().split(b'\n')[:-1]
        except FileNotFoundError:
            return rows, None
        except OSError as error:
            return rows, f'{self.file} cannot be read ({error.strerror or error})'
        digest, plain = '', True  # plain: a file from before rows had digests
        for number, line in enumerate(lines, 1):
            try:
                row = from_json(line)
                kept = row.pop('digest', None)
                late = row['round'] > (rows[-1][0]['round'] if rows else 0)
            except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
                return rows, f'line {number} of {self.file} is no evaluation'
            digest = digest_of(row, digest)
            if not late or (kept != digest and not (plain and kept is None)):
                return rows, (
                    f'line {number} of {self.file} does not follow the line before as it '
                    'was written: one of them is lost, repeated or changed'
                )
            plain = plain and kept is None
            rows.append((row, digest))
        return rows, None

    def keep(self, rows: list[Row]) -> None:
        """Makes these rows all that the file holds."""
        self._digest, text = '', ''
        for row in rows:
            text += self._line(row)
        write_atomically(self.file, text)

    def append(self, row: Row) -> str:
        """Adds a row; returns the digest of those before it."""
        if self._digest is None:
            rows = self.undamaged()[0]
            self._digest = rows[-1][1] if rows else ''
        before = self._digest
        # A file that is gone is not begun again in the middle.
        create = 0 if before else os.O_CREAT
        where = os.open(self.file, os.O_WRONLY | os.O_APPEND | create, 0o666)
        with open(where, 'w', encoding='utf-8') as file:
            file.write(self._line(row))
            file.flush()
            os.fsync(file.fileno())
        return before

    def _line(self, row: Row) -> str:
        self._digest = digest_of(row, self._digest or '')
        return to_json(row | {'digest': self._digest}) + '\n'


def digest_of(content: Row, before: str = '') -> str:
    """16 hexadecimal digits of what JSON keeps of an object, and of what came before it."""
    text = before + json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
