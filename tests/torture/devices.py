"""Runs that begin on some devices and go on, and are judged, on others."""

import itertools
import json
from pathlib import Path
from typing import Any

from tests.torture.processes import Outcome, command
from tests.torture.runs import Case, fresh, lines_in, resumed
from tests.torture.verdict import Fault, refused, rows_of, same_bits, succeeded, tidy

DEVICES = (1, 2, 4, 8)
METHODS = ('ntk_dfl', 'dfedavgm', 'spark', 'dfml')
CASES = [*itertools.product(METHODS, DEVICES, DEVICES)]
COUNT = len(CASES)
STRIDE = 27  # between the cases that follow each other, so that the first few are of all kinds
CLOSE = 0.06  # accuracies in [0, 1] and relative losses of runs whose last bits differ


def check(case: Case) -> None:
    method, first, second = CASES[case.number * STRIDE % COUNT]
    case.note(f'{method} on {first} devices, then on {second}')
    wholes = [case.world.undisturbed(method, f'--devices={n}') for n in (first, second)]
    out = case.folder / 'run'
    process = case.start(fresh(method, out, f'--devices={first}'))
    wanted = case.rng.randint(1, len(rows_of(wholes[0])) - 1)
    process.until(lambda: lines_in(out) >= wanted)
    process.ended.wait(case.rng.uniform(0, 0.1))
    process.kill()
    process.outcome()
    succeeded(case.finish(resumed(out, f'--devices={second}')))
    if first == second or _equal(*wholes):
        same_bits(out, wholes[0])
    else:
        _close(rows_of(out), rows_of(wholes[1]))
    _same_selection(case, out, (first, second))


def _equal(one: Path, other: Path) -> bool:
    try:
        same_bits(one, other)
    except Fault:
        return False
    return True


def _close(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Raises Fault where rounds, traffic or the rough course of a run differ."""
    for mine, theirs in zip(found, expected, strict=True):
        for name in ('round', 'mbytes_total'):
            if mine[name] != theirs[name]:
                raise Fault(f'{name} is {mine[name]}, not {theirs[name]}')
        for name in ('consensus_accuracy', 'client_accuracy_mean', 'client_loss_mean'):
            scale = max(1.0, abs(theirs[name]))
            if not abs(mine[name] - theirs[name]) <= CLOSE * scale:
                raise Fault(
                    f'{name} of round {theirs["round"]} is {mine[name]}, not {theirs[name]}'
                )


def _same_selection(case: Case, run: Path, devices: tuple[int, int]) -> None:
    """`select` says the same of one run whatever the devices; `--devices` is the machine's."""
    found, flags = [], case.world.starter.environment['XLA_FLAGS']
    for number, count in enumerate(dict.fromkeys(devices)):
        out = case.folder / f'selection-{number}'
        ended = case.finish(
            command('select', f'--run={run}', f'--out={out}', '--noprogress'),
            env={'XLA_FLAGS': f'{flags} --xla_force_host_platform_device_count={count}'},
        )
        found.append(_selection(ended, out))
    if any(not _alike(found[0], each) for each in found):
        raise Fault(f'select says something else on {devices[0]} than on {devices[1]} devices')


def _selection(ended: Outcome, out: Path) -> Any:
    """What selection.json holds, or the message of a method whose clients are not averaged."""
    if tidy(ended).status == 0:
        return json.loads((out / 'selection.json').read_text())
    refused(ended)
    if 'may differ in architecture' not in ended.err:
        raise Fault('select failed', ended)
    return ended.err


def _alike(one: Any, other: Any) -> bool:
    """Equal but for an accuracy in the last places."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= CLOSE
    return one == other
