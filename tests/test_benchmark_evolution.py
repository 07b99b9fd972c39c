"""The benchmark of the evolution: its last line, and what it refuses."""

import json
import subprocess
import sys

import pytest


def printed(*argv):
    # A process of its own: benchmarks define flags of the same names.
    command = [sys.executable, '-m', 'benchmarks.evolution', *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize('method', ['ntk_dfl', 'spark'])
def test_the_last_line(method):
    done = printed(f'--method={method}', '--aggregators=2', '--rounds=1')
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == ['worst', 'median', 'products']
    assert 0 < found['median'] <= found['worst'] < 0.01
    assert 20 < found['products'] < 150


@pytest.mark.parametrize(
    ('flag', 'message'),
    [
        ('--rounds=1,x', '--rounds=1,x takes positive whole numbers'),
        ('--partition_file=none.json', '--partition_file=none.json needs --data_dir'),
    ],
)
def test_bad_flags(flag, message):
    done = printed(flag)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith(message) and done.stderr.count('\n') == 1
