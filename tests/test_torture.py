"""A fixed share of `make torture`, and whether that would notice a fault."""

import contextlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.torture.__main__ import PARTS, torture
from tests.torture.damage import tamper
from tests.torture.processes import Command, Outcome, Starter, command
from tests.torture.runs import Case, World
from tests.torture.verdict import Fault, nothing_begun, refused, same_bits, succeeded

pytestmark = pytest.mark.integration

# Numbers of cases: of the quickest method, and none whose commands are interpreters of their own,
# as those of other tests are.
SHARE = {
    'malformed': range(1, 25),
    'kills': (21,),
    'tampered': (6, 8, 13, 14),
    'together': (3,),
    'full_disk': (1,),
    'devices': (15,),
}


@pytest.fixture(scope='module')
def world(tmp_path_factory, request):
    scratch = tmp_path_factory.mktemp('torture')
    # To compile as the tests do, but on one device: that halves what the children take.
    flags = [flag for flag in os.environ['XLA_FLAGS'].split() if 'device_count' not in flag]
    fast = {'XLA_FLAGS': ' '.join(flags)}
    cache = getattr(request.config, 'cache', None)
    if cache is not None:
        fast['XDG_CACHE_HOME'] = str(cache.mkdir('torture'))
    with contextlib.closing(Starter(scratch, fast)) as started:
        yield World(started, scratch)


def test_every_part_has_its_share():
    assert SHARE.keys() == PARTS.keys()
    assert all(max(numbers) < PARTS[part].COUNT for part, numbers in SHARE.items())
    assert PARTS['malformed'].COUNT > 1000  # every flag among them


@pytest.mark.parametrize('part', SHARE)
def test_nothing_breaks(part, world):
    tally = torture(part, world, only=SHARE[part], progress=False)
    assert tally.cases == len(SHARE[part])
    assert not tally.failures, '\n\n'.join(map(str, tally.failures))


# ------------------------------------------------------------------------- what would be noticed


@pytest.fixture
def pair(tmp_path):
    """The directory of a run, and one of equal bits."""
    one, other = tmp_path / 'one', tmp_path / 'other'
    one.mkdir()
    rows = [{'round': r, 'consensus_accuracy': r / 8, 'seconds': 0.1 * r} for r in (1, 2, 3)]
    (one / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    (one / 'consensus.safetensors').write_bytes(b'weights')
    (one / 'config.json').write_text('{"settings": {"seed": 0}}')
    (one / 'done').touch()
    shutil.copytree(one, other)
    return one, other


def test_equal_runs_pass_whatever_the_time(pair):
    one, other = pair
    file = one / 'metrics.jsonl'
    file.write_text(file.read_text().replace('"seconds": 0.1', '"seconds": 7.5, "digest": "ab"'))
    same_bits(one, other)


@pytest.mark.parametrize(
    ('name', 'before', 'after', 'pattern'),
    [
        ('metrics.jsonl', b'0.25', b'0.26', 'consensus_accuracy of round 2 is 0.26, not 0.25'),
        ('metrics.jsonl', b'"round": 3', b'"round": 4', 'evaluations of rounds'),
        ('metrics.jsonl', b'{"round": 3', b'{"sent": 1, "round": 3', 'sent of round 3'),
        ('metrics.jsonl', b'{"round": 3', b'{round: 3', 'cannot be read'),
        ('consensus.safetensors', b'weights', b'weightr', 'other bits'),
    ],
)
def test_other_bits_are_noticed(name, before, after, pattern, pair):
    file = pair[0] / name
    assert before in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(before, after))
    with pytest.raises(Fault, match=pattern):
        same_bits(*pair)


def test_a_run_without_its_end_is_noticed(pair):
    (pair[0] / 'done').unlink()
    with pytest.raises(Fault, match='without the file done'):
        same_bits(*pair)


def ended(status: int | None, err: str, out: str = '') -> Outcome:
    return Outcome(command('run', '--lr=nan'), status, out, err, 1.0)


def test_an_error_of_a_line_or_two_is_a_refusal():
    refused(ended(1, 'warning: no links\nerror: --lr=nan is no number\n'))
    refused(ended(1, 'error: --lr=nan is no number;\nuse another\n'))
    succeeded(ended(0, 'warning: no links\n'))


@pytest.mark.parametrize(
    ('status', 'err', 'pattern'),
    [
        (0, '', 'accepted'),
        (None, '', 'no end'),
        (-11, '', 'signal 11'),
        (1, '', 'without an error message'),
        (1, 'Traceback (most recent call last):\nValueError: nan\n', 'a traceback'),
        (1, 'error: one\ntwo\nthree\n', 'more than 2 lines'),
        (1, 'error: one\nerror: two\n', '2 error messages'),
        (1, 'FATAL Flags parsing error\nerror: one\n', 'no message'),
    ],
)
def test_what_is_no_refusal_is_noticed(status, err, pattern):
    with pytest.raises(Fault, match=pattern):
        refused(ended(status, err))


def test_what_a_refused_run_leaves_is_noticed(pair, tmp_path):
    with pytest.raises(Fault, match=r'left one/config\.json'):
        nothing_begun(tmp_path)


def test_a_case_is_the_same_every_time(pair):
    for number in range(40):
        contents = []
        for run in pair:
            copy = Path(shutil.copytree(run, run.parent / f'{run.name}-{number}'))
            said = tamper(copy, random.Random(number))
            files = {p.name: p.read_bytes() for p in sorted(copy.iterdir()) if p.is_file()}
            contents.append((said, files))
        assert contents[0] == contents[1]


def test_a_process_can_be_killed_and_starved(world, tmp_path):
    case = Case('kills', 0, random.Random(0), tmp_path, world)
    flags = ('--algorithm=dpsgd', '--clients=6', '--noprogress', f'--out={tmp_path}/run')
    process = case.start(command('run', '--rounds=1000', *flags))
    assert process.until((tmp_path / 'run' / 'metrics.jsonl').exists)
    assert process.kill() and process.outcome().status == -9
    starved = case.finish(Command('run', (*flags[:-1], f'--out={tmp_path}/x')), file_size=100)
    assert starved.status != 0
    assert not (tmp_path / 'x' / 'metrics.jsonl').exists()
