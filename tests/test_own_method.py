"""A method of one's own, `gradient_tracking.py`: its flags, a sweep over one, a report."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAME = '--algorithm=gradient_tracking:method'
SMALL = [
    '--train_samples=240',
    '--test_samples=100',
    '--clients=6',
    '--topology=ring',
    '--noprogress',
]


def dfl_jax(*arguments):
    return subprocess.run(
        [sys.executable, '-m', 'dfl_jax.cli', *map(str, arguments)],
        cwd=TESTS.parent,
        env=os.environ | {'PYTHONPATH': f'{TESTS.parent}{os.pathsep}{TESTS}'},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp('own') / 'sweep'
    done = dfl_jax(
        'sweep',
        NAME,
        '--sweep=beta:0.5,1.0',
        *SMALL,
        '--rounds=20',
        '--eval_every=20',
        '--out',
        out,
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_its_argument_is_swept(swept):
    _, table = swept
    rows = [line.split(' | ') for line in table.splitlines() if line.startswith('| ')]
    accuracy = {row[0].strip('| '): float(row[2].split()[0]) for row in rows[2:]}
    assert accuracy.keys() == {'0.5', '1.0'} and accuracy['1.0'] > accuracy['0.5']


def test_its_runs_are_in_a_report(swept):
    out, _ = swept
    done = dfl_jax('report', '--runs', out)
    assert done.returncode == 0, done.stderr
    page = (out / 'report.html').read_text()
    assert 'beta 0.5' in page and 'beta 1.0' in page


def test_its_help_is_its_docstring():
    done = dfl_jax('run', '--help', NAME)
    assert "Weight of the gradient's change in the tracker; 1 is DSGT (default 1.0)." in done.stdout
    assert '--momentum' not in done.stdout


def test_the_file_is_short():
    assert len((TESTS / 'gradient_tracking.py').read_text().splitlines()) <= 60
