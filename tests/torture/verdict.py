"""What passes: how a command may end and speak, and which files are those of an undisturbed run."""

import json
import re
from pathlib import Path
from typing import Any

from tests.torture.processes import Outcome

LINES = 2  # of a message, at most
UNLIKE = ('seconds', 'digest')  # of a row, which differ between equal runs; a digest holds seconds
MESSAGE = re.compile(r'(error|warning|note|interrupted)\b.*|.*\w+\.py:\d+: \w*Warning: .*')

Row = dict[str, Any]


class Fault(AssertionError):
    """What the program did wrong, and what was seen of it."""

    def __init__(self, what: str, outcome: Outcome | None = None):
        super().__init__(what if outcome is None else f'{what}\n$ {outcome}')


def messages(err: str) -> list[list[str]]:
    """The lines on stderr, by message; the first list has those that belong to none."""
    found: list[list[str]] = [[]]
    for line in err.splitlines():
        if MESSAGE.fullmatch(line):
            found.append([])
        if line.strip():
            found[-1].append(line)
    return found


def tidy(outcome: Outcome) -> Outcome:
    """The outcome of a command that ended by itself and said what it had to say in short.

    Raises Fault for one that hung, crashed, showed its insides or talked on.
    """
    if outcome.status is None:
        raise Fault(f'no end within {outcome.seconds:.0f} s', outcome)
    if outcome.status < 0:
        raise Fault(f'ended by signal {-outcome.status}', outcome)
    if 'Traceback (most recent call last)' in outcome.out + outcome.err:
        raise Fault('a traceback', outcome)
    stray, *said = messages(outcome.err)
    if stray:
        raise Fault('lines on stderr that are no message', outcome)
    if any(len(message) > LINES for message in said):
        raise Fault(f'a message of more than {LINES} lines', outcome)
    return outcome


def refused(outcome: Outcome) -> Outcome:
    """The outcome of a command that failed and said so, once. Raises Fault for any other."""
    if outcome.status == 0:
        raise Fault('accepted', outcome)
    tidy(outcome)
    errors = [message for message in messages(outcome.err)[1:] if message[0].startswith('error')]
    if not errors:
        raise Fault('refused without an error message', outcome)
    if len(errors) > 1:
        raise Fault(f'{len(errors)} error messages', outcome)
    return outcome


def succeeded(outcome: Outcome) -> Outcome:
    if tidy(outcome).status != 0:
        raise Fault('failed', outcome)
    return outcome


def rows_of(run: Path) -> list[Row]:
    """The evaluations of a run without what differs between equal runs. Raises Fault."""
    try:
        # A half-written last line does not count
        lines = (run / 'metrics.jsonl').read_bytes().split(b'\n')[:-1]
        rows = [json.loads(line) for line in lines]
        return [{name: row[name] for name in row if name not in UNLIKE} for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise Fault(f'metrics.jsonl cannot be read: {error}') from None


def same_bits(run: Path, undisturbed: Path) -> None:
    """Raises Fault where a run did not end with the bits of the undisturbed one."""
    for name in ('done', 'consensus.safetensors'):
        if not (run / name).is_file():
            raise Fault(f'the run ended without the file {name}')
    mine, theirs = rows_of(run), rows_of(undisturbed)
    if [row.get('round') for row in mine] != [row.get('round') for row in theirs]:
        raise Fault(f'evaluations of rounds {[row.get("round") for row in mine]}')
    for one, other in zip(mine, theirs, strict=True):
        for name in one.keys() | other.keys():
            if one.get(name) != other.get(name):
                raise Fault(
                    f'{name} of round {other["round"]} is {one.get(name)}, not {other.get(name)}'
                )
    models = [(path / 'consensus.safetensors').read_bytes() for path in (run, undisturbed)]
    if models[0] != models[1]:
        raise Fault('consensus.safetensors has other bits')


def nothing_begun(folder: Path) -> None:
    """Raises Fault where a refused run has left something that looks like one."""
    left = sorted(path for name in ('config.json', 'metrics.jsonl') for path in folder.rglob(name))
    if left:
        raise Fault(f'refused, and left {left[0].relative_to(folder)}')
