"""A method of one's own, `gradient_tracking.py`: its flags, a sweep over one, a report."""

import shutil
from pathlib import Path

import pytest
from helpers import started

from dfl_jax.cli.report import saved_runs as runs

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parent
NAME = '--algorithm=gradient_tracking:method'
SMALL = [
    *('--train_samples=240', '--test_samples=100', '--clients=6'),
    *('--topology=ring', '--noprogress'),
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


def test_settings_at_their_default_and_copies_do_not_split_a_report(tmp_path):
    few = (*SMALL, NAME, '--rounds=1')
    assert dfl_jax('run', *few, '--out', tmp_path / 'left_out').status == 0
    assert dfl_jax('run', *few, '--beta=1', '--seed=1', '--out', tmp_path / 'given').status == 0
    shutil.copytree(tmp_path / 'left_out', tmp_path / 'copy')
    (group,) = runs.group_runs(runs.find_runs(tmp_path)[0])
    assert group.label == 'Gradient tracking' and group.repeats
    assert sorted(run.seed for run in group.counted) == ['0', '1']


def test_runs_of_other_code_are_not_gone_on_with(tmp_path):
    module = tmp_path / 'gradient_tracking.py'
    shutil.copy(TESTS / 'gradient_tracking.py', module)

    def here(command, *more):
        return started(command, NAME, *SMALL, *more, cwd=tmp_path).outcome()

    sweep = ('sweep', '--sweep=beta:0.5', '--rounds=1', '--out=s')
    assert here('run', '--rounds=1', '--out=a').status == here(*sweep).status == 0
    assert here('run', '--rounds=2', '--out=a', '--resume').status == here(*sweep).status == 0
    module.write_text(module.read_text().replace('y + beta', 'y - beta'))
    for again in (('run', '--rounds=3', '--out=a', '--resume'), sweep):
        assert 'source file of an algorithm, a model, a task or a loader' in here(*again).err


def test_its_help_is_its_docstring():
    done = dfl_jax('run', '--help', NAME)
    assert "Weight of the gradient's change in the tracker; 1 is DSGT (default 1.0)." in done.out
    assert '--momentum' not in done.out


def test_the_file_is_short():
    assert len((TESTS / 'gradient_tracking.py').read_text().splitlines()) <= 60
