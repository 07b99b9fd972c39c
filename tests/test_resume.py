"""Runs that are stopped, killed or damaged, and go on as if nothing had happened."""

import hashlib
import json
import shutil
import signal
import time
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.traverse_util import unflatten_dict
from helpers import write_clusters
from test_cli import NETWORK, SMALL, Finished, command, contents, finish, here, rows_of, wait_for

from dfl_jax.checkpoint import FILE, Checkpoints
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.progress import Progress
from tests.torture import runs
from tests.torture.processes import Process
from tests.torture.runs import lines_in

ROUNDS, EVERY = 12, 2
MODEL = 'consensus.safetensors'
# An evaluation, with its checkpoint, takes a tenth of a second: long enough to be hit.
OF_ANY_METHOD = (
    '--dataset=synthetic', '--train_samples=500', f'--rounds={ROUNDS}', f'--eval_every={EVERY}',
    '--noprogress',
)  # fmt: skip
# What happens to files is the same for all methods, and a run of D-PSGD takes 1.5 s of CPU where
# NTK-DFL takes 2.4, compiled before (2026-11-23); it is killed as well.
ARGV = ('--algorithm=dpsgd', *NETWORK, '--hidden=8', *OF_ANY_METHOD)
NTK_DFL = (*SMALL, *OF_ANY_METHOD, '--ntk_timesteps=20,40')


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """The run that nothing interrupted."""
    out = tmp_path_factory.mktemp('runs') / 'whole'
    assert here(*ARGV, f'--out={out}').status == 0
    return out


@pytest.fixture
def stopped(whole, tmp_path):
    """A copy of it that lacks its end, as a kill before the last steps leaves it."""
    return runs.stopped(whole, tmp_path / 'stopped')


def steps_of(out: Path) -> list[int]:
    names = [path.name for path in (out / 'checkpoints').iterdir()]
    return sorted(int(name) for name in names if name.isdecimal())


def start(out: Path, lines: int, *flags: str, argv: tuple[str, ...] = ARGV) -> Process:
    """A run in a process of its own that has made `lines` evaluations."""
    process = command(*argv, f'--out={out}', *flags, cwd=out.parent)
    assert process.until(lambda: lines_in(out) >= lines)
    assert not process.ended.is_set(), 'the run was done before it could be stopped'
    return process


def assert_same_result(out: Path, whole: Path) -> None:
    assert rows_of(out, without='seconds') == rows_of(whole, without='seconds')
    for name in (MODEL, 'clients.jsonl'):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert (out / 'done').exists()
    seconds = [row['seconds'] for row in rows_of(out)]
    assert seconds == sorted(seconds)


def resume(out: Path, whole: Path, *argv: str) -> Finished:
    """What is said by the command that resumes a run, which ends as the undisturbed one did."""
    done = here(*argv, f'--out={out}', '--resume').succeeded()
    assert_same_result(out, whole)
    return done


# --------------------------------------------------------------------------------------- killed


@pytest.mark.integration
# Right after an evaluation its checkpoint is being written; a moment later the next block runs.
@pytest.mark.parametrize(
    ('lines', 'delay'),
    [
        pytest.param(1, 0.0, marks=pytest.mark.slow),
        pytest.param(2, 0.03, marks=pytest.mark.slow),
        pytest.param(3, 0.15, marks=pytest.mark.slow),
        (2, 0.3),
    ],
)
def test_a_killed_run_ends_as_if_it_had_not_been(lines, delay, whole, tmp_path):
    out = tmp_path / 'out'
    process = start(out, lines)
    time.sleep(delay)
    process.kill()
    assert process.outcome().status == -signal.SIGKILL
    assert not (out / 'done').exists()
    resume(out, whole, *ARGV)


@pytest.mark.integration
def test_killed_twice_and_resumed_in_a_new_process(tmp_path):
    out, whole = tmp_path / 'out', tmp_path / 'whole'
    assert here(*NTK_DFL, f'--out={whole}').status == 0
    for lines, flags in ((1, ()), (3, ('--resume',))):
        process = start(out, lines, *flags, argv=NTK_DFL)
        process.kill()
        process.outcome()
    done = finish(command(f'--out={out}', '--resume', '--noprogress', cwd=tmp_path))
    assert done.succeeded().err == ''
    assert_same_result(out, whole)


@pytest.mark.integration
def test_a_run_killed_before_its_first_checkpoint_starts_over(whole, tmp_path):
    out = tmp_path / 'out'
    process = command(*ARGV, f'--out={out}', cwd=tmp_path)
    wait_for(lambda: (out / 'config.json').exists())
    process.kill()
    process.outcome()
    assert lines_in(out) == 0
    resume(out, whole, *ARGV)


# ----------------------------------------------------------------------------------- interrupted


@pytest.mark.integration
def test_an_interrupted_run_says_how_to_go_on(whole, tmp_path):
    out = tmp_path / 'out'
    process = start(out, 2)
    process.kill(signal.SIGINT)
    stopped = finish(process)
    assert stopped.status == 130
    (line,) = stopped.err.splitlines()
    kept = steps_of(out)[-1]
    assert kept == rows_of(out)[-1]['round']
    assert f'interrupted: {kept} of {ROUNDS} rounds kept' in line
    assert f'--resume --out={out} goes on' in line
    assert not (out / 'done').exists()
    resume(out, whole, *ARGV)


def test_interrupted_before_the_first_round(tmp_path, monkeypatch):
    interrupted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr('dfl_jax.cli.run.command.build', interrupted)
    stopped = here(*ARGV, f'--out={tmp_path}/out')
    assert stopped.status == 130
    assert 'start again' in stopped.error
    assert not (tmp_path / 'out').exists()
    monkeypatch.undo()
    monkeypatch.setattr('dfl_jax.experiment.config_file.write_network', interrupted)
    stopped = here(*ARGV, f'--out={tmp_path}/out')
    assert stopped.status == 130
    assert f'--resume --out={tmp_path}/out goes on' in stopped.error


@pytest.mark.integration
def test_interrupted_without_checkpoints(whole, tmp_path):
    out = tmp_path / 'out'
    process = start(out, 1, '--nocheckpoint')
    process.kill(signal.SIGINT)
    stopped = finish(process)
    assert stopped.status == 130
    assert f'interrupted: 0 of {ROUNDS} rounds kept' in stopped.err
    resume(out, whole, *ARGV)


# ---------------------------------------------------------------------------- what a kill leaves


@pytest.mark.integration
def test_resuming_what_is_done_changes_nothing(whole):
    before = contents(whole)
    done = here(*ARGV, f'--out={whole}', '--resume')
    assert (done.status, done.err) == (0, '')
    assert done.out == f'{whole} is done; nothing to resume\n'
    assert contents(whole) == before


def test_only_the_end_was_missing(stopped, whole):
    resume(stopped, whole, *ARGV)
    assert rows_of(stopped) == rows_of(whole)
    assert (stopped / 'curves.png').exists()


@pytest.mark.integration
def test_only_the_end_of_uneven_shares_was_missing(tmp_path):
    flags = ('--algorithm=dpsgd', '--dataset=synthetic', '--clients=9', '--degree=2', '--hidden=4')
    flags = (*flags, '--devices=2', '--rounds=2', '--train_samples=90', f'--out={tmp_path / "run"}')
    assert here(*flags).status == 0
    consensus = tmp_path / 'run' / 'consensus.safetensors'
    before = consensus.read_bytes()
    consensus.unlink()
    assert here(*flags, '--resume').status == 0
    assert consensus.read_bytes() == before


def test_a_half_written_last_line(stopped, whole):
    file = stopped / 'metrics.jsonl'
    file.write_bytes(file.read_bytes()[:-40])
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    assert steps_of(stopped) == [ROUNDS - EVERY]
    resume(stopped, whole, *ARGV)


def test_a_row_whose_checkpoint_was_not_saved(stopped, whole):
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    resume(stopped, whole, *ARGV)


def test_an_unfinished_checkpoint_is_ignored(stopped, whole):
    checkpoints = stopped / 'checkpoints'
    (checkpoints / str(ROUNDS)).rename(checkpoints / f'{ROUNDS}.partial')
    (checkpoints / '1.partial').mkdir()
    (checkpoints / '2.partial').symlink_to(whole)
    resume(stopped, whole, *ARGV)
    assert sorted(path.name for path in checkpoints.iterdir()) == [str(ROUNDS - EVERY), str(ROUNDS)]


@pytest.mark.parametrize(
    ('state', 'words'),
    [
        ({'a': np.ones(2), 'a.npy': np.zeros(2)}, 'names no part of a state'),
        ({'a/b': np.ones(2), 'a': {'b': np.zeros(2)}}, 'or two'),
        ({'a': np.array([None])}, 'holds object'),
        ({'a': jax.random.key(0)}, ''),
    ],
)
def test_what_an_archive_does_not_hold_is_refused_and_leaves_nothing(state, words, tmp_path):
    kept = Checkpoints(tmp_path)
    with pytest.raises(OSError, match=rf'checkpoint 3 in .*{words}'):
        kept.save(state, Progress(3, 1.0, {}))
    assert kept.rounds() == [] and [*tmp_path.iterdir()] == []


def test_a_checkpoint_is_of_one_structure_shape_and_type(tmp_path):
    kept = Checkpoints(tmp_path)
    state = {'weights': jnp.arange(3, dtype=jnp.bfloat16), 'empty': np.zeros((0, 2))}
    kept.save(state, Progress(3, 1.0, {}), notes=['a note'])
    found = kept.restore(state)
    assert found.notes == ['a note']
    jax.tree.map(np.testing.assert_array_equal, found.state, state)
    assert found.state['weights'].dtype == jnp.bfloat16
    for other in (
        {'weights': jnp.zeros(3, jnp.float16), 'empty': state['empty']},
        {'weights': jnp.zeros(4, jnp.bfloat16), 'empty': state['empty']},
        {'weights': state['weights']},
    ):
        with pytest.raises(ValueError, match=r'another method|not float16|not bfloat16'):
            kept.restore(other)


def flip_a_bit(checkpoint: Path, at: float = 0.5) -> None:
    content = bytearray((checkpoint / FILE).read_bytes())
    content[int(at * len(content))] ^= 1
    (checkpoint / FILE).write_bytes(content)


def change_the_progress(checkpoint: Path) -> None:
    content = (checkpoint / FILE).read_bytes()
    (checkpoint / FILE).write_bytes(content.replace(b'"seconds": ', b'"seconds":1', 1))


def cut(checkpoint: Path) -> None:
    (checkpoint / FILE).write_bytes((checkpoint / FILE).read_bytes()[:4000])


def of_another_version(checkpoint: Path) -> None:
    with np.load(checkpoint / FILE) as file:
        arrays = dict(file)
    changed = arrays['progress'].tobytes().replace(b'"format": 3', b'"format": 4')
    np.savez(checkpoint / FILE, **arrays | {'progress': np.frombuffer(changed, np.uint8)})


DAMAGES = {
    'file lost': (lambda path: (path / FILE).unlink(), 'No such file'),
    'file empty': (lambda path: (path / FILE).write_bytes(b''), 'No data left in file'),
    'file cut': (cut, 'not a zip file'),
    'bit flipped': (flip_a_bit, 'Bad CRC-32'),
    'progress changed': (change_the_progress, 'Bad CRC-32'),
    'another version': (of_another_version, 'it is of format 4, and this version reads 3'),
}


OFTEN = ('file lost', 'bit flipped', 'another version')


@pytest.mark.parametrize(
    'damage',
    [pytest.param(d, marks=() if d in OFTEN else pytest.mark.integration) for d in DAMAGES],
)
def test_a_damaged_checkpoint_is_set_aside(damage, stopped, whole):
    harm, reason = DAMAGES[damage]
    newest = stopped / 'checkpoints' / str(ROUNDS)
    harm(newest)
    before = contents(newest)
    (line,) = resume(stopped, whole, *ARGV).err.splitlines()
    assert line.startswith(f'warning: {newest} cannot be used (') and reason in line
    assert f'it is unreadable-{ROUNDS} now' in line
    assert f'goes on from round {ROUNDS - EVERY}' in line
    assert steps_of(stopped) == [ROUNDS - EVERY, ROUNDS]
    assert contents(stopped / 'checkpoints' / f'unreadable-{ROUNDS}') == before


def test_what_was_set_aside_before_stays(stopped, whole):
    checkpoints = stopped / 'checkpoints'
    (checkpoints / f'unreadable-{ROUNDS}').mkdir()
    flip_a_bit(checkpoints / str(ROUNDS))
    done = resume(stopped, whole, *ARGV, '--nocheckpoint')
    assert f'it is unreadable-{ROUNDS}-2 now' in done.err
    assert contents(checkpoints / f'unreadable-{ROUNDS}') == {}
    assert steps_of(stopped) == [ROUNDS - EVERY]


@pytest.mark.integration
def test_no_readable_checkpoint_is_an_error_with_the_way_out(stopped, whole, tmp_path):
    checkpoints = stopped / 'checkpoints'
    for round in steps_of(stopped):
        flip_a_bit(checkpoints / str(round))
    before = contents(stopped)
    line = here(*ARGV, f'--out={stopped}', '--resume').error
    assert f'no checkpoint in {checkpoints} can be used' in line
    assert f'({ROUNDS} and {ROUNDS - EVERY}: BadZipFile: Bad CRC-32' in line
    assert 'move that folder away, and --resume starts from the first round' in line
    assert contents(stopped) == before
    checkpoints.rename(tmp_path / 'away')
    resume(stopped, whole, *ARGV)


def test_no_more_checkpoints_does_not_lose_those_that_are(stopped, whole):
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    resume(stopped, whole, *ARGV, '--nocheckpoint')
    assert steps_of(stopped) == [ROUNDS - EVERY]
    kept = len(rows_of(whole)) - 1
    assert rows_of(stopped)[:kept] == rows_of(whole)[:kept]  # not made again: equal seconds


def test_progress_is_kept(stopped):
    with np.load(stopped / 'checkpoints' / str(ROUNDS) / FILE) as file:
        (progress,) = json.loads(file['progress'].tobytes())['runs']
    assert progress['round'] == ROUNDS
    assert progress['seconds'] == rows_of(stopped)[-1]['seconds']


def as_before(checkpoint: Path) -> None:
    """As orbax wrote it for dfl_jax before 2026-12."""
    with np.load(checkpoint / FILE) as file:
        record = json.loads(file['progress'].tobytes()) | {'format': 2}
        leaves = {name: file[name] for name in file.files if name != 'progress'}
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    tree = {}
    for name, leaf in leaves.items():
        first, *keys = name.removeprefix('state/').split('/')
        place = f'.{first}' + ''.join(f"['{key}']" for key in keys)
        digest.update(f'{place} {leaf.dtype} {leaf.shape}'.encode())
        digest.update(leaf.tobytes())
        tree[first, *keys] = leaf
    (checkpoint / FILE).unlink()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(checkpoint / 'state', unflatten_dict(tree))
    (checkpoint / 'progress').mkdir()
    text = json.dumps(record | {'digest': digest.hexdigest()})
    (checkpoint / 'progress' / 'metadata').write_text(text)


@pytest.mark.integration
def test_a_checkpoint_of_an_earlier_version_is_read(stopped, whole):
    newest = stopped / 'checkpoints' / str(ROUNDS)
    shutil.rmtree(newest)
    as_before(stopped / 'checkpoints' / str(ROUNDS - EVERY))
    resume(stopped, whole, *ARGV)
    assert [path.name for path in newest.iterdir()] == [FILE]


@pytest.mark.integration
def test_a_damaged_checkpoint_of_an_earlier_version_is_refused(stopped):
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    as_before(stopped / 'checkpoints' / str(ROUNDS - EVERY))
    record = stopped / 'checkpoints' / str(ROUNDS - EVERY) / 'progress' / 'metadata'
    record.write_text(record.read_text().replace('"seconds": ', '"seconds": 1'))
    assert 'it is not what was saved' in here(*ARGV, f'--out={stopped}', '--resume').error


# --------------------------------------------------------------------------------- what is recalled


def test_resume_recalls_the_settings(stopped, whole):
    shutil.rmtree(stopped / 'checkpoints' / str(ROUNDS))
    assert resume(stopped, whole).err == ''


@pytest.mark.integration
# At an evaluation of the longer run, which the next test and test_cli_time.py have too, or between
@pytest.mark.parametrize('at', [pytest.param(4, marks=pytest.mark.slow), 5])
def test_more_rounds_end_as_a_run_that_was_long_from_the_start(at, whole, tmp_path):
    out = tmp_path / 'out'
    short = [flag for flag in ARGV if not flag.startswith('--rounds=')]
    assert here(*short, f'--rounds={at}', f'--out={out}').status == 0
    assert resume(out, whole, f'--rounds={ROUNDS}').err == ''
    assert RunDirectory(out).config()['settings'] == RunDirectory(whole).config()['settings']


@pytest.mark.integration
def test_an_extension_that_is_killed_after_its_first_evaluation(whole, tmp_path):
    """Its checkpoint is of before, and follows an evaluation that the longer run has not."""
    out = tmp_path / 'out'
    short = [flag for flag in ARGV if not flag.startswith('--rounds=')]
    assert here(*short, '--rounds=1', f'--out={out}').status == 0
    shutil.copytree(out / 'checkpoints', tmp_path / 'kept')
    assert here('--resume', f'--out={out}', f'--rounds={ROUNDS}').status == 0
    shutil.rmtree(out / 'checkpoints')
    (tmp_path / 'kept').rename(out / 'checkpoints')
    (out / 'done').unlink()
    assert resume(out, whole).err == ''


TINY = ('--dataset=synthetic', '--clients=6', '--degree=2', '--hidden=4', '--noprogress')
SPARK = (
    *(*TINY, '--algorithm=spark', '--spark_projection_dim=5', '--evolution=euler'),
    *('--ntk_timesteps=10,20', '--spark_projection_refresh=client'),
)


@pytest.mark.integration
def test_more_rounds_of_spark_whose_schedule_and_projections_are_those_of_any_length(tmp_path):
    out, whole = tmp_path / 'out', tmp_path / 'whole'
    schedule = '--spark_warmup=1'  # of 30
    assert here(*SPARK, schedule, '--rounds=4', f'--out={whole}').status == 0
    assert here(*SPARK, schedule, '--rounds=2', f'--out={out}').status == 0
    assert resume(out, whole, '--rounds=4').err == ''


@pytest.mark.integration
@pytest.mark.parametrize(
    ('flags', 'setting'),
    [
        ((*TINY, '--algorithm=dispfl'), 'anneal_rounds'),
        ((*SPARK, '--spark_schedule_rounds=0'), 'rounds'),
    ],
)
def test_more_rounds_are_refused_where_the_method_follows_their_number(flags, setting, tmp_path):
    out = tmp_path / 'out'
    assert here(*flags, '--rounds=2', f'--out={out}').status == 0
    before = contents(out)
    line = here('--resume', f'--out={out}', '--rounds=3').error
    assert f'--rounds=3 cannot extend {out}, a run of 2 rounds: its {setting} follows' in line
    assert contents(out) == before


# ------------------------------------------------------------------------------- rows that are lost


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines(keepends=True)


def change_a_digit(lines: list[str]) -> list[str]:
    return [lines[0], lines[1].replace('"client_loss_mean": ', '"client_loss_mean": 1'), *lines[2:]]


ROWS = {
    'dropped': lambda lines: [lines[0], *lines[2:]],
    'repeated': lambda lines: [lines[0], lines[0], *lines[1:]],
    'swapped': lambda lines: [lines[1], lines[0], *lines[2:]],
    'changed': change_a_digit,
    'garbage': lambda lines: [lines[0], 'garbage\n', *lines[1:]],
    'a number': lambda lines: [lines[0], '7\n', *lines[2:]],
    'nested': lambda lines: [lines[0], '[' * 100_000 + '\n', *lines[2:]],
    'binary': lambda lines: [lines[0], '\udcff\n', *lines[1:]],
    'empty': lambda lines: [],
}


@pytest.mark.parametrize('harm', ROWS)
def test_rows_that_the_checkpoints_do_not_agree_with(harm, stopped):
    file = stopped / 'metrics.jsonl'
    file.write_text(''.join(ROWS[harm](lines_of(file))), errors='surrogateescape')
    before = contents(stopped)
    line = here('--resume', f'--out={stopped}').error
    assert 'can be used' in line and str(file) in line
    assert contents(stopped) == before


def test_a_metrics_file_that_is_a_folder(stopped):
    (stopped / 'metrics.jsonl').unlink()
    (stopped / 'metrics.jsonl').mkdir()
    assert 'it is a folder, not a file' in here('--resume', f'--out={stopped}').error


def test_a_last_row_that_is_damaged_is_made_again(stopped, whole):
    file = stopped / 'metrics.jsonl'
    lines = lines_of(file)
    file.write_text(''.join([*lines[:-1], lines[-1].replace('0', '1')]))
    assert f'line {len(lines)} of {file}' in resume(stopped, whole).err


@pytest.mark.integration
@pytest.mark.parametrize('name', [MODEL, 'metrics.jsonl'])
def test_a_done_run_that_lost_something_is_made_again(name, whole, tmp_path):
    out = tmp_path / 'out'
    shutil.copytree(whole, out)
    content = (out / name).read_bytes()
    (out / name).write_bytes(content[:-20])
    assert 'it is made again' in resume(out, whole).err


# ----------------------------------------------------------------------------------- who works here


@pytest.mark.integration
def test_one_process_at_a_time(tmp_path):
    out = tmp_path / 'out'
    process = start(out, 1)
    line = here('--resume', f'--out={out}').error
    assert line == (f'error: another process works in {out}; wait for it or choose another --out')
    process.kill()
    process.outcome()
    assert here('--resume', f'--out={out}').status == 0  # the lock died with the process


@pytest.mark.integration
def test_two_fresh_runs_at_once(whole, tmp_path):
    out = tmp_path / 'out'
    both = [command(*ARGV, f'--out={out}', '--nocheckpoint', cwd=tmp_path) for _ in range(2)]
    ends = sorted((finish(process) for process in both), key=lambda end: end.status)
    assert [end.status for end in ends] == [0, 1]
    assert f'--out={out} exists' in ends[1].error or 'another process works' in ends[1].error
    assert_same_result(out, whole)


@pytest.mark.integration
def test_runs_of_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('time.strftime', lambda _: 'now')
    for _ in range(2):
        assert here(*ARGV).status == 0
    names = sorted(path.name for path in (tmp_path / 'runs').iterdir())
    assert names == ['dpsgd-synthetic-now', 'dpsgd-synthetic-now-2']


def test_what_a_kill_left_before_the_first_line_is_no_run(whole, tmp_path):
    out = tmp_path / 'out'
    out.mkdir()
    (out / 'lock').touch()
    (out / 'config.json.4711.tmp').write_text('{"set')
    assert here(*ARGV, f'--out={out}').status == 0
    assert not list(out.glob('*.tmp'))
    assert_same_result(out, whole)


# -------------------------------------------------------------------------------------- full disk


@pytest.mark.integration
def test_a_full_disk_is_one_line_and_no_loss(whole, tmp_path):
    out = tmp_path / 'out'
    process = command(
        *ARGV, f'--out={out}', '--compilation_cache=off', cwd=tmp_path, file_size=9000
    )
    line = finish(process).error
    assert 'File too large' in line or 'EFBIG' in line
    assert f'--resume --out={out} goes on from the last checkpoint' in line
    assert not list(out.glob('*.tmp'))
    resume(out, whole)


@pytest.mark.integration
def test_a_folder_that_vanishes_is_one_line(tmp_path):
    out = tmp_path / 'out'
    process = start(out, 1)
    out.rename(tmp_path / 'gone')
    ended = finish(process)
    assert ended.status == 1 and len(ended.err.splitlines()) == 1
    assert str(out) in ended.error


# ------------------------------------------------------------------------------ inputs that changed


@pytest.mark.integration
def test_other_data_under_the_same_name(tmp_path):
    file, out = write_clusters(tmp_path / 'mine.npz'), tmp_path / 'out'
    small = ('--algorithm=dpsgd', '--clients=6', '--degree=2', '--hidden=4', '--partition=iid')
    assert here(*small, f'--dataset={file}', '--rounds=2', f'--out={out}').status == 0
    write_clusters(file, train=123)
    line = here('--resume', f'--out={out}', '--rounds=4').error
    assert line.startswith('error: the data (--dataset, --data_dir) changed since')


def write_network(folder: Path) -> tuple[Path, Path]:
    """Files of a partition of 120 samples over six clients, and of a ring of them."""
    partition, edges = folder / 'partition.json', folder / 'edges.txt'
    partition.write_text(json.dumps([list(range(i, 120, 6)) for i in range(6)]))
    edges.write_text('\n'.join(f'{i} {(i + 1) % 6}' for i in range(6)))
    return partition, edges


@pytest.fixture
def listed(tmp_path):
    """A run whose partition and graph come from files."""
    partition, edges = write_network(tmp_path)
    argv = (
        '--algorithm=dpsgd', '--clients=6', '--hidden=4', '--topology=edge_list', '--rounds=2',
        f'--dataset={write_clusters(tmp_path / "mine.npz")}', f'--partition_file={partition}',
        f'--topology_file={edges}', f'--out={tmp_path}/out',
    )  # fmt: skip
    assert here(*argv).status == 0
    return tmp_path / 'out', partition, edges


@pytest.mark.integration
def test_another_partition_under_the_same_name(listed):
    out, partition, _ = listed
    partition.write_text(json.dumps([list(range(i, 120, 6)) for i in (1, 0, 2, 3, 4, 5)]))
    line = here('--resume', f'--out={out}', '--rounds=4').error
    assert 'the partition of the data over the clients (--partition_file) changed since' in line


@pytest.mark.integration
def test_another_graph_under_the_same_name(listed):
    out, _, edges = listed
    edges.write_text('\n'.join(f'{i} {(i + 2) % 6}' for i in range(6)) + '\n0 1\n')
    line = here('--resume', f'--out={out}', '--rounds=4').error
    assert 'the graphs of the first 2 rounds' in line and '--topology_file changed' in line


@pytest.mark.integration
def test_files_may_move(listed):
    out, partition, _ = listed
    moved = partition.rename(partition.with_name('moved.json'))
    assert 'partition.json' in here('--resume', f'--out={out}', '--rounds=4').error
    assert here('--resume', f'--out={out}', '--rounds=4', f'--partition_file={moved}').status == 0


@pytest.mark.integration
def test_a_run_whose_clients_were_evaluated_on_the_first_samples(tiny, tmp_path):
    """As versions before did: its curves would not go on."""
    out = tmp_path / 'out'
    of_it = (f'--dataset={tiny}', *NETWORK, '--algorithm=dpsgd', f'--out={out}')
    assert here(*of_it, '--client_eval_samples=10').status == 0
    directory = RunDirectory(out)
    new = directory.config()
    old = new | {'inputs': {k: v for k, v in new['inputs'].items() if k != 'evaluated'}}
    rows = rows_of(out)
    for config, part in (
        (old, 'resume with the version that it was started with'),
        ({k: v for k, v in new.items() if k != 'inputs'}, 'were evaluated on the first'),
        (new | {'inputs': new['inputs'] | {'evaluated': '0' * 16}}, '(--client_eval_samples) chan'),
    ):
        directory.write_config(config)
        assert part in here('--resume', f'--out={out}', '--rounds=4').error
        assert rows_of(out) == rows
    directory.write_config(new)
    assert here('--resume', f'--out={out}', '--rounds=4').status == 0
    longer = ('--client_eval_samples=10', '--rounds=4', f'--out={tmp_path}/long')
    here(*of_it[:-1], *longer).succeeded()
    assert rows_of(out, without='seconds') == rows_of(tmp_path / 'long', without='seconds')


@pytest.mark.integration
def test_an_older_run_of_all_test_samples_goes_on(tiny, tmp_path):
    out = tmp_path / 'out'
    of_it = (f'--dataset={tiny}', *NETWORK, '--algorithm=dpsgd', f'--out={out}')
    assert here(*of_it).status == 0
    directory = RunDirectory(out)
    config = directory.config()
    del config['inputs']['evaluated']
    directory.write_config(config)
    assert here('--resume', f'--out={out}', '--rounds=4').status == 0


@pytest.mark.integration
def test_a_world_that_changed(tmp_path):
    world, out = tmp_path / 'world.csv', f'--out={tmp_path}/out'
    world.write_text('speed,uplink\n' + '1e9,1e6\n' * 6)
    tiny = write_clusters(tmp_path / 'tiny.npz')
    of_it = (f'--dataset={tiny}', *NETWORK, '--algorithm=dpsgd')
    assert here(*of_it, f'--world={world}', out).status == 0
    moved = tiny.rename(tmp_path / 'moved.npz')
    assert here('--resume', out, f'--dataset={moved}', '--rounds=4').status == 0
    world.write_text('speed,uplink\n' + '1e7,1e4\n' * 6)
    line = here('--resume', out, f'--dataset={moved}', '--rounds=6').error
    assert 'the network and device profile (--world) changed since' in line


@pytest.fixture
def relative(tmp_path, monkeypatch):
    """A run whose files are named from the folder in which it began, and another folder."""
    home, other = tmp_path / 'home', tmp_path / 'other'
    (home / 'data').mkdir(parents=True)
    other.mkdir()
    write_clusters(home / 'data' / 'mine.npz')
    write_network(home)
    (home / 'world.csv').write_text('speed,uplink\n' + '1e9,1e6\n' * 6)
    monkeypatch.chdir(home)
    argv = (
        '--algorithm=dpsgd', '--clients=6', '--hidden=4', '--topology=edge_list', '--rounds=2',
        '--dataset=data/mine.npz', '--partition_file=partition.json', '--topology_file=edges.txt',
        '--world=world.csv', '--out=out',
    )  # fmt: skip
    assert here(*argv).status == 0
    monkeypatch.chdir(other)
    return home


def test_relative_paths_start_where_the_run_began(relative):
    assert here('--resume', f'--out={relative}/out', '--rounds=4').status == 0
    settings = json.loads((relative / 'out' / 'config.json').read_text())['settings']
    assert settings['dataset'] == 'data/mine.npz'  # as it was typed


def test_files_that_have_moved_are_asked_for_one_by_one(relative):
    moved = relative.rename(relative.with_name('moved'))
    resume = ('--resume', f'--out={moved}/out', '--rounds=4')
    given = []
    names = {
        'dataset': 'data/mine.npz',
        'partition_file': 'partition.json',
        'topology_file': 'edges.txt',
        'world': 'world.csv',
    }
    while (ended := here(*resume, *given)).status:
        (name,) = (n for n in names if f'say where it is now by --{n}=PATH' in ended.error)
        missing = f'has --{name}={names[name]}, and no such file is here, nor in {relative}, where'
        assert missing in ended.error
        given.append(f'--{name}={moved}/{names.pop(name)}')
    assert not names


def test_where_a_run_began_may_be_anything_and_files_here_will_do(relative, monkeypatch):
    directory = RunDirectory(relative / 'out')
    for folder in (None, 7, '/no/such/folder'):
        config = directory.config() | {'folder': folder}
        directory.write_config(config)
        monkeypatch.chdir(relative)
        rounds = 2 + config['settings']['rounds']
        assert here('--resume', '--out=out', f'--rounds={rounds}').status == 0
        monkeypatch.chdir(relative.parent)
        line = here('--resume', f'--out={relative}/out', '--rounds=99').error
        assert 'and no such file is here' in line and 'by --' in line


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('mine.npz', 'mine.csv', 'mine.txt', 'mine.parquet'):
        task = ('--task=next_token', '--model=gru') if name.endswith('.txt') else ()
        line = here(f'--dataset={name}', *task, '--algorithm=dpsgd').error
        assert f'there is no file {name}, seen from {tmp_path}: write its whole path' in line


# -------------------------------------------------------------------------------------------- trust


def test_resume_imports_no_algorithm_that_only_the_config_names(stopped, tmp_path, monkeypatch):
    (tmp_path / 'evil.py').write_text('raise SystemExit("imported")')
    monkeypatch.syspath_prepend(tmp_path)
    config = RunDirectory(stopped).config()
    config['settings']['algorithm'] = 'evil:make'
    RunDirectory(stopped).write_config(config)
    line = here('--resume', f'--out={stopped}').error
    assert '--algorithm=evil:make' in line and '--allow_imports' in line


@pytest.mark.parametrize(
    ('change', 'part'),
    [
        ({'seed': 'zero'}, '--seed="zero", which that setting cannot be'),
        ({'clients': 0}, '--clients=0, which that setting cannot be'),
        ({'clients': None}, '--clients=null, which that setting cannot be'),
        ({'out': '/tmp/x'}, 'which is not known'),
        ({'unheard_of': 1}, 'which is not known'),
    ],
)
def test_a_config_with_settings_that_cannot_be(change, part, stopped):
    config = RunDirectory(stopped).config()
    config['settings'] |= change
    RunDirectory(stopped).write_config(config)
    assert part in here('--resume', f'--out={stopped}').error


def test_a_config_that_was_changed(stopped):
    file = stopped / 'config.json'
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))
    line = here('--resume', f'--out={stopped}').error
    assert f'{file} is damaged: it is not what was written' in line


@pytest.mark.parametrize('text', ['null', '[]', '{}', '{"settings": 1}', '[' * 100_000, ''])
def test_a_config_that_is_none(text, stopped):
    (stopped / 'config.json').write_text(text)
    line = here('--resume', f'--out={stopped}').error
    assert str(stopped / 'config.json') in line
