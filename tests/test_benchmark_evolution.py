"""The benchmark of the evolution: its last line, and what it refuses."""

import json
from pathlib import Path

import pytest
from helpers import started

ROOT = Path(__file__).resolve().parent.parent


def printed(*argv):
    # A process of its own: benchmarks define flags of the same names.
    return started('benchmarks.evolution', *argv, cwd=ROOT).outcome()


@pytest.mark.integration
@pytest.mark.parametrize('method', ['ntk_dfl', 'spark'])
def test_the_last_line(method):
    done = printed(f'--method={method}', '--aggregators=2', '--rounds=1')
    assert done.status == 0, done
    found = json.loads(done.out.splitlines()[-1])
    assert list(found) == ['worst', 'median', 'products']
    assert 0 < found['median'] <= found['worst'] < 0.01
    assert 10 < found['products'] < 150


@pytest.mark.integration
@pytest.mark.parametrize(
    ('flag', 'message'),
    [
        ('--rounds=1,x', '--rounds=1,x takes positive whole numbers'),
        ('--partition_file=none.json', '--partition_file=none.json needs --data_dir'),
    ],
)
def test_bad_flags(flag, message):
    done = printed(flag)
    assert done.status == 1 and not done.out
    assert done.err.startswith(message) and done.err.count('\n') == 1
