"""A method of one's own, `gradient_tracking.py`: its flags, a sweep over one, a report."""

from pathlib import Path

import pytest
from helpers import started

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parent
NAME = '--algorithm=gradient_tracking:method'
SMALL = [
    '--train_samples=240',
    '--test_samples=100',
    '--clients=6',
    '--topology=ring',
    '--noprogress',
]


def dfl_jax(name, *arguments):
    return started(name, *arguments, cwd=TESTS).outcome()


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp('own') / 'sweep'
    done = dfl_jax(
        'sweep',
        NAME,
        '--sweep=beta:0.5,1.0',
        *SMALL,
        '--rounds=10',
        '--eval_every=10',
        '--out',
        out,
    )
    assert done.status == 0, done
    return out, done.out


def test_its_argument_is_swept(swept):
    _, table = swept
    rows = [line.split(' | ') for line in table.splitlines() if line.startswith('| ')]
    accuracy = {row[0].strip('| '): float(row[2].split()[0]) for row in rows[2:]}
    assert accuracy.keys() == {'0.5', '1.0'} and accuracy['1.0'] > accuracy['0.5']


def test_its_runs_are_in_a_report(swept):
    out, _ = swept
    done = dfl_jax('report', '--runs', out)
    assert done.status == 0, done
    page = (out / 'report.html').read_text()
    assert 'beta 0.5' in page and 'beta 1.0' in page


def test_its_help_is_its_docstring():
    done = dfl_jax('run', '--help', NAME)
    assert "Weight of the gradient's change in the tracker; 1 is DSGT (default 1.0)." in done.out
    assert '--momentum' not in done.out


def test_the_file_is_short():
    assert len((TESTS / 'gradient_tracking.py').read_text().splitlines()) <= 60
