"""Runs that are watched elsewhere: what a program, TensorBoard and Weights & Biases get to see."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers import write_clusters
from tensorboardX.proto.event_pb2 import Event, SessionLog
from test_cli import NETWORK, SMALL, command, contents, finish, here, rows_of, wait_for

from dfl_jax.cli.report.command import write_report
from dfl_jax.cli.run.loggers import SUFFIX, TensorBoard
from dfl_jax.experiment.run_directory import RunDirectory
from tests.torture import runs

ROUNDS = 4
LISTS = ('client_accuracy_quantiles',)


@pytest.fixture(scope='module')
def argv(tiny):
    return (f'--dataset={tiny}', *SMALL, f'--rounds={ROUNDS}', '--eval_every=2')


@pytest.fixture(scope='module')
def plain(argv, tmp_path_factory):
    """The run that nobody watched; the tests leave it as it is."""
    out = tmp_path_factory.mktemp('runs') / 'plain'
    assert here(*argv, f'--out={out}').status == 0
    return out


@pytest.fixture
def stopped(plain, tmp_path):
    """A copy of it without its last checkpoint and what comes after."""
    return runs.stopped(plain, tmp_path / 'stopped', newest=False)


def events_of(out: Path) -> list[Event]:
    """What the event files say: length, its checksum, event, its checksum, and so on."""
    events = []
    for file in sorted(out.glob(f'events.out.tfevents.*{SUFFIX}')):
        data, at = file.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], 'little')
            events.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += 12 + length + 4
    return events


def values_of(out: Path) -> list[tuple]:
    """(step, name, value), a number or the histogram."""
    return [
        (event.step, value.tag, value.histo if value.HasField('histo') else value.simple_value)
        for event in events_of(out)
        for value in event.summary.value
    ]


def expected(rows: list[dict]) -> dict[tuple[int, str], object]:
    """By step and name: numbers, and lists for histograms."""
    shown: dict[tuple[int, str], object] = {}
    for row in rows:
        for name, value in row.items():
            if name.endswith('_counts'):
                shown |= {(row['round'], f'{name}/{k}'): count for k, count in value.items()}
            elif name != 'round':
                shown[row['round'], name] = value
    return shown


def assert_mirrored(out: Path) -> None:
    """Every entry of every row once, and nothing else."""
    values, wanted = values_of(out), expected(rows_of(out))
    assert Counter((step, name) for step, name, _ in values) == Counter(wanted.keys())
    for step, name, value in values:
        if name in LISTS:
            each = np.array(wanted[step, name])
            assert (value.num, sum(value.bucket)) == (len(each), len(each))
            assert (value.min, value.max) == pytest.approx((each.min(), each.max()))
            assert value.sum == pytest.approx(each.sum())
        else:
            assert value == pytest.approx(wanted[step, name], rel=1e-6)


# --------------------------------------------------------------------------------- lines of JSON


@pytest.mark.integration
def test_standard_output_can_be_lines_of_json_alone(argv, plain, stopped, tmp_path):
    for out, more in ((tmp_path / 'out', ()), (stopped, ('--resume',))):
        done = here(*argv, f'--out={out}', '--log=json', *more)
        start, *shown, end = map(json.loads, done.out.splitlines())
        assert done.status == 0
        config = json.loads((out / 'config.json').read_text())
        assert start == {'event': 'start', 'out': str(out), 'config': config}
        assert shown == [{'event': 'evaluation'} | row for row in rows_of(out)]
        assert end == {'event': 'end', 'status': 0}
        assert 'consensus accuracy' in done.err
    assert 'log' not in config['settings']


@pytest.mark.integration
def test_lines_of_json_end_with_the_status_of_a_failure(argv, tmp_path):
    failed = here(*argv, f'--out={tmp_path}/out', '--log=json', '--lr=1e30')
    events = [json.loads(line) for line in failed.out.splitlines()]
    assert failed.status == 1
    assert events[-1] == {'event': 'end', 'status': 1}
    assert 'not finite' in failed.err


@pytest.mark.integration
def test_losses_that_are_no_number_are_json_for_every_reader(tmp_path):
    """In what is printed and kept, by a resume and by the report."""
    with np.load(write_clusters(tmp_path / 'set.npz')) as file:
        arrays = {name: file[name] for name in file.files}
    x = arrays['test_x']
    arrays['test_x'] = (x / np.abs(x).max() * 3e38).astype(np.float32)
    np.savez(tmp_path / 'set.npz', **arrays)
    out = tmp_path / 'out'
    argv = (*NETWORK, f'--dataset={tmp_path}/set.npz', '--algorithm=dpsgd', f'--out={out}')
    shown = here(*argv, '--hidden=64', '--log=json')
    resumed = here('--resume', f'--out={out}', '--rounds=4', '--log=json')
    assert (shown.status, resumed.status) == (0, 0)
    kept = [(out / name).read_text() for name in ('metrics.jsonl', 'clients.jsonl')]
    lost = 0
    for line in ''.join([shown.out, resumed.out, *kept]).splitlines():
        lost += 'not_finite' in json.loads(line, parse_constant=pytest.fail)
    assert lost == 2 + 4 + 4 + 4
    row = RunDirectory(out).rows()[-1]
    assert not np.isfinite(row['client_loss_mean']) and np.isfinite(row['consensus_accuracy'])
    assert write_report(out, tmp_path / 'page.html', 0.85, False) == '1 run'
    page = (tmp_path / 'page.html').read_text(encoding='utf-8')
    data = re.search(r'id="page-data">(.*?)</script>', page, re.DOTALL)
    clients = json.loads(data[1], parse_constant=pytest.fail)['clients']
    assert 'has no loss' not in page and clients


# ---------------------------------------------------------------------------------- TensorBoard


@pytest.mark.integration
def test_tensorboard_shows_every_row(argv, plain, tmp_path):
    out = tmp_path / 'out'
    assert here(*argv, f'--out={out}', '--tensorboard').succeeded().err == ''
    assert [row['round'] for row in rows_of(out)] == [2, 4]
    assert_mirrored(out)
    names = {name for _, name, _ in values_of(out)}
    assert {'consensus_accuracy', 'train_loss_mean', 'timestep_counts/20', *LISTS} <= names
    assert rows_of(out, without='seconds') == rows_of(plain, without='seconds')
    model = 'consensus.safetensors'
    assert (out / model).read_bytes() == (plain / model).read_bytes()
    settings = [json.loads((run / 'config.json').read_text())['settings'] for run in (out, plain)]
    assert settings[0] == settings[1]


@pytest.mark.integration
def test_a_resumed_run_shows_every_round_once(argv, stopped):
    board = TensorBoard()
    board.open(RunDirectory(stopped))  # as the session that was stopped left it
    for row in rows_of(stopped):
        board.row(row)
    board.close(1)
    assert len(rows_of(stopped)) == 2
    assert here(*argv, f'--out={stopped}', '--resume', '--tensorboard').status == 0
    assert_mirrored(stopped)
    (start,) = [event for event in events_of(stopped) if event.HasField('session_log')]
    assert (start.step, start.session_log.status) == (0, SessionLog.START)


@pytest.mark.integration
def test_a_mirror_that_comes_late_shows_the_rounds_before_it(argv, stopped):
    assert here(*argv, f'--out={stopped}', '--resume', '--tensorboard').status == 0
    assert_mirrored(stopped)


def test_a_row_can_be_seen_while_the_run_goes_on(tmp_path):
    board = TensorBoard()
    board.open(RunDirectory(tmp_path))
    board.row({'round': 3, 'consensus_accuracy': 0.5})
    wait_for(lambda: values_of(tmp_path) == [(3, 'consensus_accuracy', 0.5)], seconds=10)
    board.close(0)


def test_what_becomes_of_earlier_event_files(tmp_path):
    """The last session's is emptied, the empty ones before it go, another's stay."""
    before_last, last, theirs = (
        tmp_path / f'events.out.tfevents.{name}'
        for name in (f'1.host{SUFFIX}', f'2.host{SUFFIX}', '3.host')
    )
    before_last.touch()
    last.write_bytes(b'rows')
    theirs.write_bytes(b'rows')
    board = TensorBoard()
    board.open(RunDirectory(tmp_path))
    board.row({'round': 1, 'consensus_accuracy': 0.5})
    board.close(0)
    assert not before_last.exists()
    assert (last.read_bytes(), theirs.read_bytes()) == (b'', b'rows')
    assert values_of(tmp_path) == [(1, 'consensus_accuracy', 0.5)]


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(('flag', 'package'), [('tensorboard', 'tensorboardX'), ('wandb', 'wandb')])
def test_a_missing_package_is_named_before_anything_begins(
    flag, package, argv, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    line = here(*argv, f'--out={tmp_path}/out', f'--{flag}').error
    assert f'--{flag} needs {package} (pip install {package})' in line
    assert not (tmp_path / 'out').exists()


@pytest.mark.skipif(find_spec('wandb') is not None, reason='wandb is installed')
@pytest.mark.integration
def test_the_folder_of_wandb_is_not_the_package(tmp_path):
    (tmp_path / 'wandb').mkdir()
    done = finish(command('--wandb', f'--out={tmp_path}/out', cwd=tmp_path))
    assert '--wandb needs wandb' in done.error


def test_nothing_is_imported_unasked(argv, tmp_path, monkeypatch):
    for package in ('tensorboardX', 'wandb'):
        monkeypatch.setitem(sys.modules, package, None)
    assert here(*argv, f'--out={tmp_path}/out').status == 0


def test_a_project_without_wandb_is_refused(argv, tmp_path):
    line = here(*argv, f'--out={tmp_path}/out', '--wandb_project=mine').error
    assert '--wandb_project=mine does not apply without --wandb' in line


# -------------------------------------------------------------------------------- Weights & Biases


def wandb_records(file: Path) -> Iterator:
    """What a session left offline: a LevelDB log of protobuf records, 7 bytes of header first."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = file.read_bytes(), 7, b''
    header, block, whole, last = 7, 2**15, 1, 4
    while at + header <= len(data):
        if block - at % block < header:
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], 'little'), data[at + 6]
        record += data[at + header : at + header + length]
        at += header + length
        if kind in (whole, last):
            yield Record.FromString(record)
            record = b''


@pytest.mark.integration
def test_wandb_shows_every_round_once(argv, stopped, monkeypatch):
    pytest.importorskip('wandb')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    monkeypatch.delenv('WANDB_PROJECT', raising=False)
    flags = (f'--out={stopped}', '--resume', '--wandb', '--wandb_project=mine')
    before = contents(stopped)
    monkeypatch.setenv('WANDB_API_KEY', '')
    assert here(*argv, *flags).status == 0
    name = (stopped / 'wandb' / 'id').read_text().strip()
    (file,) = (stopped / 'wandb' / 'latest-run').glob('*.wandb')
    records = list(wandb_records(file))

    (run,) = [record.run for record in records if record.HasField('run')]
    assert (run.run_id, run.project, run.display_name) == (name, 'mine', 'stopped')
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert config['settings']['rounds'] == ROUNDS
    assert {record.exit.exit_code for record in records if record.HasField('exit')} == {0}

    shown = {}
    for record in records:
        if record.HasField('history'):
            items = record.history.item
            row = {
                '/'.join([i.key, *i.nested_key]).lstrip('/'): json.loads(i.value_json)
                for i in items
            }
            assert row['_step'] not in shown
            shown[row['_step']] = row
    assert list(shown) == [2, 4]
    for (step, entry), value in expected(rows_of(stopped)).items():
        if entry in LISTS:
            assert sum(shown[step][f'{entry}/values']) == len(value)
        else:
            assert shown[step][entry] == pytest.approx(value, rel=1e-6)
    assert contents(stopped)['config.json'] == before['config.json']
