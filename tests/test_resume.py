"""Runs that are stopped, killed or damaged, and go on as if nothing had happened."""

import contextlib
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_cli import SMALL, blocker, command, contents, finish, here, rows_of, wait_for

ROUNDS, EVERY = 12, 2
MODEL = 'consensus.safetensors'
# About a tenth of a second a round, long enough to be hit.
ARGV = (
    '--dataset=synthetic', '--train_samples=1500', *SMALL, f'--rounds={ROUNDS}',
    f'--eval_every={EVERY}', '--ntk_timesteps=20,40', '--noprogress',
)  # fmt: skip


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """The run that nothing interrupted."""
    out = tmp_path_factory.mktemp('runs') / 'whole'
    assert here(*ARGV, f'--out={out}').status == 0
    return out


@pytest.fixture
def stopped(whole, tmp_path):
    """A copy of it that lacks its end, as a kill before the last steps leaves it."""
    out = tmp_path / 'stopped'
    shutil.copytree(whole, out)
    for name in ('done', MODEL, 'curves.png'):
        (out / name).unlink()
    return out


def steps_of(out: Path) -> list[int]:
    names = [path.name for path in (out / 'checkpoints').iterdir()]
    return sorted(int(name) for name in names if name.isdecimal())


def lines_in(out: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (out / 'metrics.jsonl').read_text().count('\n')
    return 0


def start(out: Path, lines: int, *flags: str) -> subprocess.Popen:
    """A run in a process of its own that has made `lines` evaluations."""
    process = command(*ARGV, f'--out={out}', *flags, cwd=out.parent)
    wait_for(lambda: lines_in(out) >= lines or process.poll() is not None)
    assert process.poll() is None, 'the run was done before it could be stopped'
    return process


def assert_same_result(out: Path, whole: Path) -> None:
    assert rows_of(out, without='seconds') == rows_of(whole, without='seconds')
    assert (out / MODEL).read_bytes() == (whole / MODEL).read_bytes()
    assert (out / 'done').exists()
    seconds = [row['seconds'] for row in rows_of(out)]
    assert seconds == sorted(seconds)


# --------------------------------------------------------------------------------------- killed


# Right after an evaluation its checkpoint is being written; a moment later the next block runs.
@pytest.mark.parametrize(
    ('lines', 'delay'),
    [
        pytest.param(1, 0.0, marks=pytest.mark.slow),
        pytest.param(2, 0.03, marks=pytest.mark.slow),
        (3, 0.15),
        (2, 0.3),
    ],
)
def test_a_killed_run_ends_as_if_it_had_not_been(lines, delay, whole, tmp_path):
    out = tmp_path / 'out'
    process = start(out, lines)
    time.sleep(delay)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (out / 'done').exists()
    assert here(*ARGV, f'--out={out}', '--resume').status == 0
    assert_same_result(out, whole)


def test_killed_twice_and_resumed_in_a_new_process(whole, tmp_path):
    out = tmp_path / 'out'
    for lines, flags in ((1, ()), (3, ('--resume',))):
        process = start(out, lines, *flags)
        process.kill()
        process.communicate()
    done = finish(command(*ARGV, f'--out={out}', '--resume', cwd=tmp_path))
    assert (done.status, done.err) == (0, '')
    assert_same_result(out, whole)


def test_a_run_killed_before_its_first_checkpoint_starts_over(whole, tmp_path):
    out = tmp_path / 'out'
    process = command(*ARGV, f'--out={out}', cwd=tmp_path)
    wait_for(lambda: (out / 'config.json').exists())
    process.kill()
    process.communicate()
    assert lines_in(out) == 0
    assert here(*ARGV, f'--out={out}', '--resume').status == 0
    assert_same_result(out, whole)


# ----------------------------------------------------------------------------------- interrupted


def test_an_interrupted_run_says_how_to_go_on(whole, tmp_path):
    out = tmp_path / 'out'
    process = start(out, 2)
    process.send_signal(signal.SIGINT)
    stopped = finish(process)
    assert stopped.status == 130
    (line,) = stopped.err.splitlines()
    kept = steps_of(out)[-1]
    assert kept == rows_of(out)[-1]['round']
    assert f'interrupted: {kept} of {ROUNDS} rounds kept' in line
    assert f'--out={out} --resume' in line
    assert not (out / 'done').exists()
    assert here(*ARGV, f'--out={out}', '--resume').status == 0
    assert_same_result(out, whole)


def test_interrupted_before_the_first_round(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr('experiments.setup.build', interrupt)
    stopped = here(*ARGV, f'--out={tmp_path}/out')
    assert stopped.status == 130
    assert 'start again' in stopped.error
    assert not (tmp_path / 'out').exists()


def test_interrupted_without_checkpoints(whole, tmp_path):
    out = tmp_path / 'out'
    process = start(out, 1, '--nocheckpoint')
    process.send_signal(signal.SIGINT)
    stopped = finish(process)
    assert stopped.status == 130
    assert f'interrupted: 0 of {ROUNDS} rounds kept' in stopped.err
    assert here(*ARGV, f'--out={out}', '--resume').status == 0
    assert_same_result(out, whole)


# ---------------------------------------------------------------------------- what a kill leaves


def test_resuming_what_is_done_changes_nothing(whole):
    before = contents(whole)
    done = here(*ARGV, f'--out={whole}', '--resume')
    assert (done.status, done.err) == (0, '')
    assert done.out == f'{whole} is done; nothing to resume\n'
    assert contents(whole) == before


def test_only_the_end_was_missing(stopped, whole):
    assert here(*ARGV, f'--out={stopped}', '--resume').status == 0
    assert_same_result(stopped, whole)
    assert rows_of(stopped) == rows_of(whole)
    assert (stopped / 'curves.png').exists()


def test_a_half_written_last_line(stopped, whole):
    file = stopped / 'metrics.jsonl'
    file.write_bytes(file.read_bytes()[:-40])
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    assert steps_of(stopped) == [ROUNDS - EVERY]
    assert here(*ARGV, f'--out={stopped}', '--resume').status == 0
    assert_same_result(stopped, whole)


def test_a_row_whose_checkpoint_was_not_saved(stopped, whole):
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    assert here(*ARGV, f'--out={stopped}', '--resume').status == 0
    assert_same_result(stopped, whole)


def test_an_unfinished_checkpoint_is_ignored(stopped, whole):
    checkpoints = stopped / 'checkpoints'
    (checkpoints / str(ROUNDS)).rename(checkpoints / f'{ROUNDS}.orbax-checkpoint-tmp')
    assert here(*ARGV, f'--out={stopped}', '--resume').status == 0
    assert_same_result(stopped, whole)


def flip_a_bit(checkpoint: Path) -> None:
    """In the arrays: what orbax reads without a word."""
    largest = max(checkpoint.rglob('*'), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def cut(checkpoint: Path) -> None:
    file = checkpoint / 'state' / 'manifest.ocdbt'
    file.write_bytes(file.read_bytes()[:40])


def empty(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def lose_the_checksums_too(checkpoint: Path) -> None:
    (checkpoint / 'checksums.json').unlink()
    (checkpoint / 'progress' / 'metadata').unlink()


DAMAGES = {
    'state lost': (lambda path: shutil.rmtree(path / 'state'), 'is missing'),
    'progress lost': (lambda path: shutil.rmtree(path / 'progress'), 'is missing'),
    'file cut': (cut, 'state/manifest.ocdbt is not what was saved'),
    'bit flipped': (flip_a_bit, 'is not what was saved'),
    'all lost': (empty, 'KeyError'),
    'checksums damaged': (lambda path: (path / 'checksums.json').write_text('{'), 'JSONDecode'),
    'checksums lost': (lose_the_checksums_too, 'progress/metadata not found'),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_checkpoint_is_set_aside(damage, stopped, whole):
    harm, reason = DAMAGES[damage]
    newest = stopped / 'checkpoints' / str(ROUNDS)
    harm(newest)
    before = contents(newest)
    done = here(*ARGV, f'--out={stopped}', '--resume')
    assert done.status == 0
    (line,) = done.err.splitlines()
    assert line.startswith(f'warning: {newest} cannot be read (') and reason in line
    assert f'it is unreadable-{ROUNDS} now' in line
    assert f'goes on from round {ROUNDS - EVERY}' in line
    assert_same_result(stopped, whole)
    assert steps_of(stopped) == [ROUNDS - EVERY, ROUNDS]
    assert contents(stopped / 'checkpoints' / f'unreadable-{ROUNDS}') == before


def test_what_was_set_aside_before_stays(stopped, whole):
    checkpoints = stopped / 'checkpoints'
    (checkpoints / f'unreadable-{ROUNDS}').mkdir()
    flip_a_bit(checkpoints / str(ROUNDS))
    done = here(*ARGV, f'--out={stopped}', '--resume', '--nocheckpoint')
    assert done.status == 0 and f'it is unreadable-{ROUNDS}-2 now' in done.err
    assert_same_result(stopped, whole)
    assert contents(checkpoints / f'unreadable-{ROUNDS}') == {}
    assert steps_of(stopped) == [ROUNDS - EVERY]


def test_no_readable_checkpoint_is_an_error_with_the_way_out(stopped, whole, tmp_path):
    checkpoints = stopped / 'checkpoints'
    for round in steps_of(stopped):
        flip_a_bit(checkpoints / str(round))
    before = contents(stopped)
    line = here(*ARGV, f'--out={stopped}', '--resume').error
    assert f'no checkpoint in {checkpoints} can be read' in line
    assert all(f'{round}: ValueError' in line for round in (ROUNDS, ROUNDS - EVERY))
    assert 'move that folder away, and --resume starts from the first round' in line
    assert contents(stopped) == before
    checkpoints.rename(tmp_path / 'away')
    assert here(*ARGV, f'--out={stopped}', '--resume').status == 0
    assert_same_result(stopped, whole)


def test_checkpoints_without_checksums_are_read(stopped, whole):
    for round in steps_of(stopped):
        (stopped / 'checkpoints' / str(round) / 'checksums.json').unlink()
    done = here(*ARGV, f'--out={stopped}', '--resume')
    assert (done.status, done.err) == (0, '')
    assert rows_of(stopped) == rows_of(whole)  # nothing was made again: equal seconds


def test_no_more_checkpoints_does_not_lose_those_that_are(stopped, whole):
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    assert here(*ARGV, f'--out={stopped}', '--resume', '--nocheckpoint').status == 0
    assert_same_result(stopped, whole)
    assert steps_of(stopped) == [ROUNDS - EVERY]
    kept = len(rows_of(whole)) - 1
    assert rows_of(stopped)[:kept] == rows_of(whole)[:kept]  # not made again: equal seconds


def test_checkpoints_without_orbax_are_not_lost_either(stopped, tmp_path):
    before = contents(stopped)
    hidden = blocker(tmp_path / 'site', 'orbax')
    process = command(*ARGV, f'--out={stopped}', '--resume', cwd=tmp_path, path=hidden)
    assert 'pip install orbax-checkpoint' in finish(process).error
    assert contents(stopped) == before


def test_progress_is_kept(stopped):
    (saved,) = (stopped / 'checkpoints' / str(ROUNDS) / 'progress').rglob('metadata')
    progress = json.loads(saved.read_text())
    (progress,) = progress['runs']
    assert progress['round'] == ROUNDS
    assert progress['seconds'] == rows_of(stopped)[-1]['seconds']
