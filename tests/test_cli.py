"""The command line as its users meet it: what it refuses, what it says, what it leaves behind."""

import contextlib
import functools
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import pytest
from absl.flags import FloatParser as absl_float
from absl.flags import IntegerParser as absl_integer
from absl.testing import flagsaver
from helpers import started, write_clusters
from refused_flags import NETWORK, REFUSED, SMALL
from safetensors.numpy import load_file

from dfl_jax import data
from dfl_jax.cli.flags.run_flags import GROUPS, METHOD, experiment_of_flags, of_a_run
from dfl_jax.cli.report.command import write_report
from dfl_jax.cli.run import command as cli
from dfl_jax.cli.start import parse
from dfl_jax.exchange import Combining, Compression
from dfl_jax.experiment import Experiment
from dfl_jax.experiment.configured_method import configure
from dfl_jax.experiment.table_rows import table_rows
from dfl_jax.method_settings import settings_of
from dfl_jax.methods import METHODS
from dfl_jax.topology import FAMILIES
from tests.torture.processes import Process
from tests.wiring import write_mnist

drawing = sys.modules['dfl_jax.topology.schedule']

ROOT = Path(__file__).resolve().parent.parent
cli.define_flags()
QUIET = ('--noprogress', '--compilation_cache=off')


def without(name: str, flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith(f'--{name}=')]


class Finished(NamedTuple):
    """What is left of a command: its exit status and its two streams."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on stderr of a command that failed."""
        lines = self.err.splitlines()
        assert self.status not in (0, None), self
        assert len(lines) == 1, self
        assert lines[0].startswith('error: '), self
        return lines[0]

    def succeeded(self) -> 'Finished':
        """The same, where the command did not fail."""
        assert self.status == 0, self
        return self


def called(module: ModuleType, *arguments: object) -> Finished:
    """The command of a module in this process, which spares the imports."""
    out, err, argv = io.StringIO(), io.StringIO(), ['command.py', *map(str, arguments)]
    with (
        flagsaver.flagsaver(),
        mock.patch.dict(GROUPS, {METHOD: [*GROUPS[METHOD]]}),  # a method of one's own adds to it
        mock.patch.object(sys, 'argv', argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = module.main(parse(argv, module))
        except SystemExit as stop:
            status = stop.code
        finally:
            cli.FLAGS.unparse_flags()
    return Finished(status, out.getvalue(), err.getvalue())


here = functools.partial(called, cli, *QUIET)


def command(*argv: object, cwd: Path, **how: Any) -> Process:
    """The command in a process of its own."""
    cache = jax.config.jax_compilation_cache_dir or 'off'
    return started('run', f'--compilation_cache={cache}', *argv, cwd=cwd, **how)


def finish(process: Process) -> Finished:
    ended = process.outcome()
    return Finished(ended.status, ended.out, ended.err)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.01)


def write_sums(path: Path) -> Path:
    """A regression: four numbers and their sum."""
    x = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    np.savez(path, train_x=x[:60], train_y=x[:60].sum(1), test_x=x[60:], test_y=x[60:].sum(1))
    return path


def rows_of(directory: Path, without: str | None = None) -> list[dict]:
    """What metrics.jsonl holds, apart from the digests of its lines."""
    lines = (directory / 'metrics.jsonl').read_text().splitlines()
    hidden = ('digest', without)
    return [{k: v for k, v in json.loads(line).items() if k not in hidden} for line in lines]


def contents(directory: Path) -> dict[str, str]:
    """Every file below a folder, and the hash of what it holds."""
    files = (path for path in sorted(directory.rglob('*')) if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope='module')
def small(tiny):
    return (f'--dataset={tiny}', *SMALL)


@pytest.fixture(scope='module')
def finished(small, tmp_path_factory):
    """A run that is done; the tests leave it as it is."""
    out = tmp_path_factory.mktemp('runs') / 'done'
    assert here(*small, f'--out={out}').status == 0
    return out


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """A module of a user's own, importable for the length of one test."""
    (tmp_path / 'their_methods.py').write_text(
        'from flax import linen as nn\n'
        'from dfl_jax.methods import make\n\n'
        'number = 3\n\n'
        'def short(model, *, lr=0.02):\n'
        '    return make("ntk_dfl", model, lr=lr, timesteps=(5,), evolution="euler")\n\n'
        'class Linear(nn.Module):\n'
        '    classes: int\n\n'
        '    @nn.compact\n'
        '    def __call__(self, x):\n'
        '        return nn.Dense(self.classes)(x)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop('their_methods', None)


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ('base', 'flags', 'patterns'), [(b, f, p) for b, rows in REFUSED.items() for f, *p in rows]
)
def test_a_bad_value_is_named_in_one_line_and_nothing_is_written(
    base, flags, patterns, tiny, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if '--topology=' in flags:
        base = without('degree', base)
    line = here(f'--dataset={tiny}', *base, '--out=runs/new', *flags.split()).error
    assert all(pattern in line for pattern in patterns), line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('text', 'patterns'),
    [
        ('[[0], [1], [2], [3], [4, 120], [5]]', ('client 4', '120', '0 to 119')),
        ('[[0], [1]]', ('2 clients, not 6', 'set clients to 2')),
        ('[[0], [1\n', ('cannot read',)),
        ('', ('cannot read',)),
        ('[' * 10**5, ('cannot read', 'nest too deep')),
        ('\x93NUMPY\0\0', ('cannot read', 'it is no text')),
    ],
)
def test_a_partition_file_that_does_not_fit(text, patterns, small, tmp_path):
    file, out = tmp_path / 'parts.json', tmp_path / 'out'
    file.write_text(text)
    line = here(*small, f'--partition_file={file}', f'--out={out}').error
    assert all(pattern in line for pattern in (str(file), *patterns)), line
    assert not out.exists()


def test_a_partition_file_that_is_absent(small, tmp_path):
    line = here(*small, f'--partition_file={tmp_path}/a.json', f'--out={tmp_path}/out').error
    assert f'{tmp_path}/a.json' in line
    assert not list(tmp_path.iterdir())


def test_every_float_of_a_run_is_refused_where_it_is_no_number(tiny, tmp_path):
    """One check for all: a flag that is added is covered, whatever its method."""
    floats = [f.name for f in of_a_run() if isinstance(f.parser, absl_float)]
    assert len(floats) > 25
    for name in floats:
        for value in ('nan', 'inf', '-inf'):
            line = here(f'--dataset={tiny}', f'--{name}={value}', f'--out={tmp_path}/out').error
            assert f'--{name}={value}' in line and 'finite' in line, line
    assert not list(tmp_path.iterdir())


def test_every_whole_number_of_a_run_is_refused_where_it_is_absurd(tiny, tmp_path):
    whole = [f.name for f in of_a_run() if isinstance(f.parser, absl_integer)]
    assert len(whole) > 30
    for name in whole:
        if name != 'seed':
            line = here(f'--dataset={tiny}', f'--{name}={10**18}', f'--out={tmp_path}/out').error
            assert f'--{name}={10**18} is out of range' in line, line
            assert int(re.search(r'at most (\d+)', line)[1]) < 2**31, line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('flag', ['partition_file', 'topology_file', 'architecture_file'])
def test_an_input_that_is_no_text_file(flag, small, tiny, tmp_path):
    (tmp_path / 'binary').write_bytes(b'\xff\xfe\x80 0 1')
    (tmp_path / 'empty').touch()
    os.mkfifo(tmp_path / 'pipe')
    argv = {
        'partition_file': small,
        'topology_file': (*without('degree', small), '--topology=edge_list'),
        'architecture_file': (f'--dataset={tiny}', '--algorithm=dfml', '--clients=6'),
    }[flag]
    for name, pattern in (
        ('binary', 'it is no text in UTF-8'),
        ('pipe', 'it is a named pipe, not a file'),
        ('.', 'it is a folder, not a file'),
        ('absent', 'No such file'),
        ('empty', '' if flag == 'topology_file' else 'empty' if 'arch' in flag else 'cannot read'),
    ):
        path = tmp_path / name
        done = here(*argv, f'--{flag}={path}', f'--out={tmp_path}/out-{name}')
        if pattern:
            assert str(path) in done.error and pattern in done.error, done.error
    assert here(*argv, f'--{flag}=~nobody/x', f'--out={tmp_path}/out').error


@pytest.mark.parametrize('flag', ['--momentum=2.0', '--augmentation=mixup'])
def test_a_setting_out_of_range_is_refused_before_data_are_read(flag, tmp_path):
    """There are no data in the folder, which would be the next error."""
    argv = ('--algorithm=dfedavg', '--dataset=cifar10', f'--data_dir={tmp_path}', '--clients=8')
    line = here(*argv, flag, f'--out={tmp_path}/new').error
    assert flag.partition('=')[0][2:] in line and 'cifar10' not in line, line


@pytest.mark.parametrize(
    'flag',
    [
        '--clients=30000 --topology=complete',
        '--clients=3000',
        '--evolution=rk4',
        '--hidden=wide',
        '--init=none',
        '--message_bits=99',
    ],
)
def test_what_is_wrong_is_refused_before_a_graph_is_drawn(flag, small, tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, 'draw', lambda *_: pytest.fail('a graph was drawn'))
    small = without('degree', small) if 'complete' in flag else small
    assert here(*small, *flag.split(), f'--out={tmp_path}/out').error


def test_data_and_graphs_that_are_refused_by_the_memory(small, tmp_path, monkeypatch):
    monkeypatch.setattr('dfl_jax.execution.memory.free_bytes', lambda: 2**20)
    line = here(*small, '--rounds=20000', f'--out={tmp_path}/out').error
    assert 'graphs 1.8 MiB' in line and 'lower --degree or --eval_every' in line


@pytest.mark.parametrize('text', ['0 1\n1 x\n', '0 1\n1 6\n'])
def test_an_edge_list_that_does_not_fit(text, small, tmp_path):
    file, out = tmp_path / 'links.txt', tmp_path / 'out'
    file.write_text(text)
    flags = [*without('degree', small), '--topology=edge_list', f'--topology_file={file}']
    line = here(*flags, f'--out={out}').error
    assert f'{file}:2' in line
    assert not out.exists()


def test_a_disconnected_network_has_no_common_gain(small, tmp_path):
    (tmp_path / 'pairs.txt').write_text('0 1\n2 3\n4 5\n')
    network = ('--topology=edge_list', f'--topology_file={tmp_path}/pairs.txt')
    argv = (*without('degree', small), *network, '--init=gain_corrected')
    done = here(*argv, f'--out={tmp_path}/out')
    error = done.err.splitlines()[-1]
    assert done.status == 1
    assert 'the graph is not connected: its 6 clients fall into 3 components' in error
    assert not (tmp_path / 'out').exists()


def test_a_truncated_data_file(small, tmp_path):
    write_mnist(tmp_path / 'data', seed=0)
    damaged = tmp_path / 'data' / 'train-images-idx3-ubyte'
    damaged.write_bytes(damaged.read_bytes()[:1000])
    out = tmp_path / 'out'
    line = here(*small, '--dataset=mnist', f'--data_dir={tmp_path}/data', f'--out={out}').error
    assert str(damaged) in line
    assert not out.exists()


def test_a_truncated_npz(small, tiny, tmp_path):
    damaged = tmp_path / 'damaged.npz'
    damaged.write_bytes(tiny.read_bytes()[:-200])
    line = here(*small, f'--dataset={damaged}', f'--out={tmp_path}/out').error
    assert str(damaged) in line
    assert not (tmp_path / 'out').exists()


def test_a_model_that_does_not_fit(small, plugins):
    line = here(*without('hidden', small), '--model=cnn', f'--out={plugins}/out').error
    assert 'SmallCNN' in line and '(2, 8)' in line
    own = '--model=their_methods:Linear'
    assert f'not {own}' in here(*small, own, f'--out={plugins}/out').error


def test_an_unknown_model(tiny, tmp_path):
    line = here(f'--dataset={tiny}', '--model=vgg', '--clients=6', f'--out={tmp_path}/out').error
    assert '--model=vgg' in line and 'mlp, linear, cnn' in line


@pytest.mark.integration
def test_personal_heads_are_better_on_the_data_of_their_client(tmp_path):
    """A client has one or two classes, which a head of its own knows and a shared one does not."""
    common = ('--dataset=digits', '--partition=shards', '--clients=8', '--degree=3', '--rounds=4')
    more = (
        *('--validation_share=0.25', '--shards_per_client=1', '--eval_every=4'),
        *('--nocheckpoint', '--local_epochs=2', '--lr=0.1'),
    )
    found = {}
    for method, rest in (('dfed_alt', ('--head_lr=0.1',)), ('dpsgd', ())):
        out = tmp_path / method
        done = here(*common, *more, f'--algorithm={method}', *rest, f'--out={out}').succeeded()
        assert re.search(r'^  on their own data +0', done.out, re.M)
        found[method] = rows_of(out)[-1]['local_accuracy_mean']
    assert found['dfed_alt'] > found['dpsgd'] + 0.05 and found['dfed_alt'] > 0.9


def test_architectures_by_model(tiny, tmp_path):
    common = (f'--dataset={tiny}', *NETWORK, '--algorithm=dpsgd', '--nocheckpoint')
    line = here(*common, '--model=resnet-x', f'--out={tmp_path}/out').error
    assert '--model=resnet-x' in line and 'resnet' in line.split('the forms are')[1]
    module = table_rows(Experiment.of(model='vit-8-8').flat()).module(3)
    assert type(module).__name__ == 'ViT' and module.classes == 3


def test_a_flag_that_the_algorithm_does_not_take(small, plugins):
    out = plugins / 'out'
    own = '--algorithm=their_methods:short'
    for flag in ('--kernel=auto', '--ntk_timesteps=10,20', '--nontk_averaging', '--loss=mse'):
        line = here(*small[:4], own, flag, f'--out={out}').error
        assert f'{flag} does not apply to {own}' in line and 'leave it out' in line
    assert not out.exists()


@pytest.mark.integration
def test_a_run_is_not_overwritten(small, finished):
    before = contents(finished)
    assert '--resume' in here(*small, f'--out={finished}').error
    assert contents(finished) == before


def test_a_folder_of_other_things_is_left_alone(small, tmp_path):
    (tmp_path / 'thesis.tex').write_text('text')
    line = here(*small, f'--out={tmp_path}').error
    assert str(tmp_path) in line and 'another --out' in line and '--resume' not in line
    line = here(*small, f'--out={tmp_path}/thesis.tex').error
    assert 'another --out' in line
    assert 'thesis.tex' in here(*small, f'--out={tmp_path}/thesis.tex/run').error
    assert contents(tmp_path) == {'thesis.tex': hashlib.md5(b'text').hexdigest()}


def test_an_empty_folder_is_fine(small, tmp_path):
    assert here(*small, f'--out={tmp_path}').status == 0


def test_resume_with_other_settings(small, finished):
    before = contents(finished)
    for flags, change in (
        ('--rounds=1', '--rounds=2, not 1'),
        ('--lr=0.5', '--lr=(default), not 0.5'),
        ('--ntk_timesteps=10', '--ntk_timesteps=10,20, not 10'),
        ('--static_topology', '--static_topology=False, not True'),
    ):
        line = here(*small, f'--out={finished}', '--resume', flags).error
        assert change in line and str(finished) in line and 'same settings' in line
    assert contents(finished) == before


def test_resume_where_nothing_is(small, tmp_path):
    for out in (tmp_path, tmp_path / 'absent'):
        line = here(*small, f'--out={out}', '--resume').error
        assert str(out) in line and 'without --resume' in line
    assert not list(tmp_path.iterdir())


def test_resume_of_a_damaged_config(small, tmp_path):
    (tmp_path / 'config.json').write_text('{"settings"')
    line = here(*small, f'--out={tmp_path}', '--resume').error
    assert str(tmp_path / 'config.json') in line and 'bring a copy back' in line


@pytest.mark.integration
@pytest.mark.parametrize(
    ('flags', 'round', 'kept'),
    [
        ('--lr=1e30', 1, 0),
        ('--lr_decay=-60 --rounds=4', 2, 1),
        ('--lr_decay=-60 --rounds=4 --eval_every=2', 2, 0),
    ],
)
def test_divergence_stops_the_run_and_keeps_what_there_is(flags, round, kept, small, tmp_path):
    out = tmp_path / 'out'
    line = here(*small, f'--out={out}', *flags.split()).error
    assert f'round {round}: ' in line and '6 client(s)' in line and 'client 0, 1' in line
    assert 'lower --lr' in line and str(out) in line
    assert [row['round'] for row in rows_of(out)] == list(range(1, kept + 1))
    assert not (out / 'done').exists() and not (out / 'consensus.safetensors').exists()


@pytest.mark.integration
def test_divergence_of_the_default_evolution_ends_too(small, tmp_path):
    line = here(*small, '--evolution=rkc', '--lr=1e30', f'--out={tmp_path}/out').error
    assert 'round 1: ' in line and 'lower --lr' in line


# ------------------------------------------------------------------------------- what is warned of


@pytest.mark.integration
def test_a_disconnected_static_graph_is_only_a_warning(small, tmp_path):
    flags = ('--topology=clustered', '--static_topology', f'--out={tmp_path}/out')
    assert here(*small, *flags).succeeded().err.splitlines() == [
        'warning: the static clustered graph is not connected: 2 components never mix'
    ]


def hide(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Hides a module from this process, as if it were not installed, for the length of one test."""
    for name in [name for name in sys.modules if f'{name}.'.startswith(f'{module}.')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


def test_what_cannot_run_without_a_package_says_so(small, tmp_path, monkeypatch):
    hide(monkeypatch, 'neural_tangents')
    said = here(*small, f'--out={tmp_path}/out', '--kernel=nt').error
    assert 'pip install --no-deps neural-tangents' in said
    assert not (tmp_path / 'out').exists()


# ------------------------------------------------------------------------------ what a run leaves


@pytest.mark.integration
def test_the_files_of_a_run(tiny, tmp_path):
    argv = (
        f'--dataset={tiny}', '--clients=6', '--degree=2', '--rounds=3', '--ntk_timesteps=10,20',
        '--eval_every=2', '--plot_partition',
    )  # fmt: skip
    done = finish(command(*argv, cwd=tmp_path)).succeeded()
    assert '3/3' in done.err  # the progress bar
    (out,) = (tmp_path / 'runs').iterdir()
    assert re.fullmatch(r'ntk_dfl-tiny-\d{8}-\d{6}', out.name)
    assert f'runs/{out.name}' in done.out

    config = json.loads((out / 'config.json').read_text())
    assert config['settings'].keys() == Experiment().settings().keys()
    assert config['settings']['rounds'] == 3 and config['settings']['alpha'] == 0.1
    names = {flag.removeprefix('--').partition('=')[0] for flag in argv} - {'plot_partition'}
    assert set(config['given']) == names
    unset = {name for name, value in config['algorithm'].items() if value is None}
    assert unset == {'sparsity', 'bits', 'rounding'}
    assert config['algorithm']['evolution'] == 'sampled'
    assert config['algorithm']['timesteps'] == [10, 20] and config['algorithm']['lr'] == 0.01
    assert config['versions']['jax'] == jax.__version__
    assert config['device'] == jax.devices()[0].device_kind
    assert config['commit'] is None or re.fullmatch('[0-9a-f]{40}', config['commit'])

    rows = rows_of(out)
    assert [row['round'] for row in rows] == [2, 3]
    required = {
        'round', 'consensus_accuracy', 'consensus_loss', 'client_accuracy_mean',
        'client_accuracy_std', 'client_loss_mean', 'mbytes_total', 'seconds',
    }  # fmt: skip
    for row in rows:
        assert required <= row.keys()
        assert 0 <= row['consensus_accuracy'] <= 1 and row['seconds'] > 0
    assert f'{rows[-1]["consensus_accuracy"]:.4f}' in done.out

    assert (out / 'checkpoints').is_dir() and (out / 'done').exists()
    for name in ('curves.png', 'partition.png'):
        image = (out / name).read_bytes()
        assert image.startswith(b'\x89PNG\r\n') and 5_000 < len(image) < 500_000
        width, height = (int.from_bytes(image[i : i + 4], 'big') for i in (16, 20))
        assert 400 < width < 4000 and 300 < height < 3000


def test_the_consensus_model_is_the_one_evaluated(tiny, finished):
    params = load_file(finished / 'consensus.safetensors')
    test = data.load(str(tiny))
    hidden = np.maximum(test.test_x @ params['Dense_0.kernel'] + params['Dense_0.bias'], 0)
    logits = hidden @ params['Dense_1.kernel'] + params['Dense_1.bias']
    accuracy = np.mean(logits.argmax(axis=1) == test.test_y)
    assert accuracy == rows_of(finished)[-1]['consensus_accuracy']
    assert accuracy > 0.5


@pytest.mark.integration
def test_a_seed_decides_all(small, finished, tmp_path):
    assert here(*small, f'--out={tmp_path}/again').status == 0
    assert here(*small, f'--out={tmp_path}/other', f'--seed={10**18}').status == 0
    process = command(*small, '--noprogress', f'--out={tmp_path}/process', cwd=tmp_path, plain=True)
    assert finish(process).status == 0
    rows = rows_of(finished, without='seconds')
    assert rows_of(tmp_path / 'again', without='seconds') == rows
    assert rows_of(tmp_path / 'process', without='seconds') == rows
    assert rows_of(tmp_path / 'other', without='seconds') != rows
    models = [(p / 'consensus.safetensors').read_bytes() for p in (finished, tmp_path / 'again')]
    assert models[0] == models[1]


@pytest.mark.integration
def test_how_a_run_is_watched_does_not_change_it(small, finished, tmp_path):
    here(
        *small, f'--out={tmp_path}/run', '--nocheckpoint', '--progress', '--client_eval_samples=7'
    ).succeeded()
    assert not (tmp_path / 'run' / 'checkpoints').exists()
    names = ('consensus_accuracy', 'consensus_loss', 'train_loss_mean', 'mbytes_total')
    for row, same in zip(rows_of(tmp_path / 'run'), rows_of(finished), strict=True):
        assert [row[n] for n in names] == pytest.approx([same[n] for n in names], rel=1e-6)


# ------------------------------------------------------------------------------- what can be asked


def test_client_eval_samples_of_a_sorted_test_set_are_of_all_classes(tmp_path):
    path = write_clusters(tmp_path / 'sorted.npz', test=90)
    arrays = dict(np.load(path))
    order = np.argsort(arrays['test_y'], kind='stable')
    np.savez(path, **arrays | {name: arrays[name][order] for name in ('test_x', 'test_y')})
    argv = (f'--dataset={path}', *NETWORK, '--algorithm=dpsgd', '--rounds=1')

    def ran(name, *flags):
        done = here(*argv, *flags, f'--out={tmp_path}/{name}')
        assert done.status == 0 and not done.err, done
        network = json.loads((tmp_path / name / 'network.json').read_text())
        (row,) = rows_of(tmp_path / name, without='seconds')
        return network['evaluated'], row

    nothing, whole = ran('all')
    everything, every = ran('every', '--client_eval_samples=90')
    chosen, row = ran('some', '--client_eval_samples=12')
    others, _ = ran('seed1', '--client_eval_samples=12', '--seed=1')
    assert nothing is everything is None and every == whole
    labels = arrays['test_y'][order]
    for each in (chosen, others):
        assert np.bincount(labels[each]).tolist() == [4, 4, 4]
    assert chosen != others
    # Nothing but what the clients are evaluated on depends on it
    differ = {name for name in row if row[name] != whole[name]}
    assert 'client_loss_mean' in differ
    assert all(name.startswith('client_') for name in differ), differ


@pytest.mark.integration
def test_a_process_of_its_own_says_nothing_but_what_concerns_the_run(tmp_path):
    """Neither JAX of devices that are not there, nor what it imports."""
    flags = ['--rounds=1', '--algorithm=dpsgd', '--noprogress', f'--out={tmp_path}/run']
    others = {name: value for name, value in os.environ.items() if name != 'JAX_PLATFORMS'}
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', '-m', 'experiments.run', *flags],
        cwd=ROOT,
        env=others,  # JAX looks for every kind of device
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    said = done.stderr.splitlines()
    imported = {line.split('|')[-1].strip().split('.')[0] for line in said if '|' in line}
    assert 'numpy' in imported and not imported & {'orbax', 'sklearn'}
    assert [line for line in said if not line.startswith('import time:')] == []


def test_the_help_names_every_flag_and_imports_nothing_to_draw_or_save():
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', '-m', 'experiments.run', '--helpfull'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    imported = {line.split('|')[-1].strip().split('.')[0] for line in done.stderr.splitlines()}
    assert 'absl' in imported
    assert not imported & {'matplotlib', 'orbax', 'sklearn', 'pooch'}
    fixed = (
        'algorithm dataset data_dir partition alpha clients topology degree rounds eval_every seed '
        'out resume train_samples partition_file partition_overlap static_topology topology_file '
        'mixing link_dropout client_dropout init model kernel evolution lr lr_decay ntk_timesteps'
    )
    for name in fixed.split():
        assert re.search(rf'^  --(\[no\])?{name}(=|$)', done.stdout, re.MULTILINE), name
    assert 'None' not in done.stdout  # a value of Python, which no flag takes


def test_a_flagfile(tiny, finished, tmp_path):
    (tmp_path / 'small.flags').write_text('# a comment\n' + '\n'.join(SMALL))
    argv = (f'--flagfile={tmp_path}/small.flags', f'--dataset={tiny}', f'--out={tmp_path}/out')
    assert here(*argv).status == 0
    assert rows_of(tmp_path / 'out', without='seconds') == rows_of(finished, without='seconds')


@pytest.mark.integration
def test_a_model_and_an_algorithm_of_ones_own(tiny, plugins):
    argv = (f'--dataset={tiny}', *NETWORK, f'--out={plugins}/out')
    own = ('--algorithm=their_methods:short', '--model=their_methods:Linear', '--lr=0.03')
    done = here(*argv, *own).succeeded()
    assert done.err == ''
    assert load_file(plugins / 'out' / 'consensus.safetensors').keys() == {
        'Dense_0.bias',
        'Dense_0.kernel',
    }
    config = json.loads((plugins / 'out' / 'config.json').read_text())
    assert config['algorithm'] == {'lr': 0.03} | vars(Compression()) | vars(Combining())


@pytest.mark.integration
@pytest.mark.parametrize(
    'family',
    [
        f
        if f in ('star', 'edge_list', 'directed_edge_list', 'matrix', 'base_graph')
        else pytest.param(f, marks=pytest.mark.slow)
        for f in FAMILIES
    ],
)
def test_every_topology_runs_by_its_name(family, tiny, tmp_path):
    flags = []
    if family.endswith('edge_list'):
        (tmp_path / 'links.txt').write_text(''.join(f'{i} {(i + 1) % 9}\n' for i in range(9)))
        flags = [f'--topology_file={tmp_path}/links.txt']
    if family == 'matrix':
        np.save(tmp_path / 'W.npy', np.full((3, 9, 9), 1 / 9))
        flags = [f'--topology_file={tmp_path}/W.npy']
    out, clients = tmp_path / 'out', 8 if family == 'hypercube' else 9
    takes_degree = 'degree' in FAMILIES[family].takes
    done = here(
        f'--dataset={tiny}', *(SMALL if takes_degree else without('degree', SMALL)),
        f'--topology={family}', f'--clients={clients}', '--nocheckpoint', f'--out={out}', *flags,
    ).succeeded()  # fmt: skip
    assert done.err == ''
    assert rows_of(out)[-1]['mbytes_total'] > 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ('flags', 'said'),
    [
        ('--topology=ring', True),
        ('--topology=torus --clients=9', True),
        ('--topology=clustered --degree=2', True),
        ('--topology=directed_ring', True),
        ('--topology=ring --static_topology', False),
        ('--topology=complete', False),
        ('--topology=erdos_renyi --degree=3', False),
        ('--algorithm=relay_sgd --topology=star', False),
        ('--topology=exponential --nostatic_topology', True),
    ],
)
def test_a_run_says_where_its_graph_is_relabelled(flags, said, tiny, tmp_path):
    of_it = ('--clients=6', '--rounds=1', '--hidden=4', '--algorithm=dpsgd', *flags.split())
    done = here(f'--dataset={tiny}', *of_it, '--nocheckpoint', f'--out={tmp_path}/out').succeeded()
    lines = [line for line in done.out.splitlines() if '--static_topology keeps one' in line]
    family = flags.split('--topology=')[1].split()[0]
    assert len(lines) == said and all(family in line for line in lines)


@pytest.mark.integration
def test_a_run_says_who_lies_and_how_far_they_got(tiny, tmp_path):
    liars = tmp_path / 'liars.json'
    liars.write_text('[1, 4]')
    of_it = ('--clients=6', '--rounds=1', '--hidden=4', '--algorithm=dpsgd', '--nocheckpoint')
    lying = (f'--attackers=file:{liars}', '--attack=sign_flip', f'--out={tmp_path}/out')
    done = here(f'--dataset={tiny}', *of_it, *lying).succeeded()
    assert '2 of the clients lie, --attack=sign_flip: 1, 4' in done.out.splitlines()
    (row,) = rows_of(tmp_path / 'out')
    assert f'  mean attacker       {row["attackers_accuracy"]:.4f}' in done.out.splitlines()


@pytest.mark.integration
@pytest.mark.parametrize(
    'flags',
    [
        '--static_topology --degree=3',
        '--link_dropout=0.5 --client_dropout=0.5',
        '--link_dropout_directed=0.5',
        '--isolate_dropout=0.5',
        '--link_dropout=1',
        '--init=independent --mixing=metropolis --consensus=size',
        '--init=gain_corrected --gain=push_sum --receive_dropout=0.5',
        '--initializer=glorot_uniform --test_samples=30',
        '--evolution=eigh --loss=mse --timestep_selection=linearized',
        '--nontk_averaging --partition=shards --train_samples=60',
        '--kernel=output_scan --partition=dirichlet_split --alpha=10 --chunk=2',
    ],
)
def test_settings_run_and_are_recorded(flags, small, finished, tmp_path):
    out = tmp_path / 'out'
    assert here(*small, f'--out={out}', *flags.split()).succeeded().err == ''
    kept = json.loads((out / 'config.json').read_text())
    usual = json.loads((finished / 'config.json').read_text())
    assert kept['settings'] != usual['settings']
    rows, others = rows_of(out, 'seconds'), rows_of(finished, 'seconds')
    assert [r['round'] for r in rows] == [1, 2]
    assert rows != others
    if flags == '--link_dropout=1':
        assert rows[-1]['mbytes_total'] == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ('flags', 'recorded'),
    [
        ('', {'local_epochs': 1, 'local_steps': None, 'batch_size': 10, 'lr': 0.1}),
        (
            '--local_steps=1 --round_order=parallel --message_bits=8 --lr=0.2',
            {'local_epochs': None, 'local_steps': 1, 'round_order': 'parallel'}
            | {'bits': 8, 'rounding': None, 'lr': 0.2},
        ),
    ],
)
def test_a_gradient_method_runs_and_is_recorded(flags, recorded, tmp_path):
    pytest.importorskip('sklearn')
    out = tmp_path / 'out'
    argv = ('--algorithm=dpsgd', '--rounds=2', *flags.split())
    assert here(*argv, f'--out={out}').succeeded().err == ''
    settings = json.loads((out / 'config.json').read_text())['algorithm']
    assert recorded.items() <= settings.items()
    links, weights, tensors = 2 * 30 * 5, 64 * 100 + 100 + 100 * 10 + 10, 4
    bits = 8 * weights + 32 * tensors if 'bits' in recorded else 32 * weights
    assert [row['round'] for row in rows_of(out)] == [1, 2]
    assert rows_of(out)[-1]['mbytes_total'] == links * bits / 8e6


@pytest.mark.integration
def test_dispfl_anneals_over_the_run(tiny, tmp_path):
    argv = (f'--dataset={tiny}', *NETWORK, '--hidden=8', '--algorithm=dispfl', '--local_epochs=1')
    assert here(*argv, f'--out={tmp_path}/out', '--dispfl_density=0.9').succeeded().err == ''
    settings = json.loads((tmp_path / 'out' / 'config.json').read_text())['algorithm']
    assert {'anneal_rounds': 2, 'density': 0.9, 'prune_rate': 0.5}.items() <= settings.items()
    other = resolved('--algorithm=dispfl', '--dispfl_anneal_rounds=7')
    assert {'anneal_rounds': 7, 'density': 0.5}.items() <= other.items()


def resolved(*flags):
    """The settings of the method that flags choose."""
    with flagsaver.flagsaver():
        parse(['run.py', *QUIET, *NETWORK, *flags], cli)
        experiment = experiment_of_flags()
        settings = configure(experiment, {}, 0).resolved
        cli.FLAGS.unparse_flags()
    return settings


@pytest.mark.parametrize(
    ('flags', 'rounds'),
    [((), 30), (('--spark_schedule_rounds=0',), 2), (('--spark_schedule_rounds=7',), 7)],
)
def test_spark_anneals_over_the_rounds_of_its_schedule(flags, rounds):
    settings = resolved('--algorithm=spark', '--momentum=0.5', *flags)
    assert {'rounds': rounds, 'momentum': 0.5}.items() <= settings.items()


@pytest.mark.integration
def test_what_a_run_of_spark_sends(tiny, tmp_path):
    argv = (f'--dataset={tiny}', *NETWORK, '--hidden=8', '--algorithm=spark', '--partition=iid')
    small = ('--ntk_timesteps=10,20', '--spark_projection_dim=20')
    assert here(*argv, *small, '--nocheckpoint', f'--out={tmp_path}/out').succeeded().err == ''
    links = 2 * 6 * 2  # of two rounds
    samples = 32 * (3 * (20 + 1) + 1 + 8)  # a row and an output of each class, a label, inputs
    expected = links * (2 * 32 * 99 + 120 // 6 * samples) / 8e6  # w_j and w_bar_i
    assert rows_of(tmp_path / 'out')[-1]['mbytes_total'] == expected


@pytest.mark.integration
def test_ntk_fl_hears_cohorts(tiny, tmp_path):
    argv = (f'--dataset={tiny}', '--clients=6', '--rounds=3', '--algorithm=ntk_fl', '--hidden=8')
    sampled = ('--partition=iid', '--ntk_fl_cohort=4', '--ntk_timesteps=10,20', '--nocheckpoint')
    assert here(*argv, *sampled, f'--out={tmp_path}/out').succeeded().err == ''
    rows = rows_of(tmp_path / 'out')
    per_sample = 32 * (3 * (8 * 8 + 8 + 8 * 3 + 3) + 3 + 1)  # Jacobian rows, outputs and label
    assert rows[-1]['mbytes_total'] == 3 * 4 * (120 // 6) * per_sample / 8e6
    assert all(row['client_accuracy_mean'] == row['consensus_accuracy'] for row in rows)


@pytest.mark.integration
@pytest.mark.parametrize(
    'name',
    [
        name if name == 'dfedavgm' else pytest.param(name, marks=pytest.mark.slow)
        for name, method in sorted(METHODS.items())
        if method.graphs == 'neighbours' and 'mixing' in settings_of(method.factory)
    ],
)
def test_every_decentralized_method_takes_the_gain_correction(name, tiny, tmp_path):
    """The gain of a ring of six clients is the root of six."""
    out = tmp_path / 'out'
    done = here(
        f'--algorithm={name}', f'--dataset={tiny}', '--clients=6', '--topology=ring', '--rounds=8',
        '--eval_every=8', '--init=gain_corrected', '--nocheckpoint', f'--out={out}',
    )  # fmt: skip
    settings = json.loads((out / 'config.json').read_text())['algorithm']
    trains_first = settings.get('round_order') == 'train_first'
    assert done.status == 0 and ('--round_order=average_first' in done.err) == trains_first
    assert trains_first or done.err == ''
    assert settings['init'] == 'gain_corrected'
    assert settings['gain'] == pytest.approx(6**0.5)


def test_theory_is_asked_before_anything_runs(tiny, tmp_path):
    network = (f'--dataset={tiny}', '--clients=6', '--rounds=2', f'--out={tmp_path}/out')
    for flags, said in (
        (('--algorithm=d2', '--nostatic_topology', '--degree=3'), 'round 2 has another'),
        (('--algorithm=d2', '--topology=ring', '--nolazy'), 'the least is -0.333; use --lazy'),
        (('--algorithm=relay_sgd', '--topology=ring'), '6 clients have 6 links'),
        (('--algorithm=dsgt', '--topology=k_random', '--degree=2'), 'doubly stochastic'),
        (('--algorithm=beer', '--topology=ring', '--link_dropout=0.5'), 'no dropout'),
        (('--algorithm=choco_sgd', '--topology=ring', '--isolate_dropout=0.5'), 'no dropout'),
        (('--algorithm=relay_sgd', '--topology=line', '--isolate_dropout=0.5'), 'no dropout'),
        (('--algorithm=d2', '--topology=ring', '--link_dropout_directed=0.5'), 'no dropout'),
        (
            ('--algorithm=dsgt', '--degree=3', '--link_dropout_directed=0.5'),
            'leave out failures of one direction',
        ),
        (('--algorithm=sgp', '--degree=3', '--init=gain_corrected'), '--algorithm=sgp has none'),
    ):
        line = here(*network, *flags, '--nocheckpoint').error
        assert said in line, line
        assert not (tmp_path / 'out').exists()


@pytest.mark.integration
def test_a_run_of_another_task(tmp_path):
    path = write_sums(tmp_path / 'set.npz')
    of_it = (f'--dataset={path}', *NETWORK, '--algorithm=dfedavg', '--lr=0.02')
    out, task = f'--out={tmp_path}/out', '--task=regression'
    done = here(*of_it, task, '--partition=iid', out).succeeded()
    assert re.search(r'^consensus rmse +\d', done.out, re.M) and 'accuracy' not in done.out
    again = here('--resume', '--rounds=4', out)
    assert again.status == 0 and 'consensus_rmse' in rows_of(tmp_path / 'out')[-1]
    for flags, said in (
        ((task,), 'by class'),
        (('--partition=iid',), 'must be integers'),
        ((task, '--partition=iid', '--algorithm=ntk_dfl'), 'set loss=mse'),
        (
            (task, '--partition=iid', '--algorithm=dec_fedavg', '--topology=regular'),
            'take a gradient method',
        ),
        (('--task=ranking',), 'choose one of classification, regression'),
        (('--task=json:dumps',), '--task=json:dumps'),
    ):
        asked = [flag for flag in of_it if not flag.startswith('--algorithm')]
        method = () if any('algorithm' in flag for flag in flags) else ('--algorithm=dfedavg',)
        line = here(*without('lr', asked), *method, *flags, f'--out={tmp_path}/other').error
        assert said in line, line
    assert write_report(tmp_path / 'out', tmp_path / 'page.html', 0.85, False) == '1 run'
    page = (tmp_path / 'page.html').read_text()
    last = rows_of(tmp_path / 'out')[-1]['consensus_rmse']
    assert 'Aggregated rmse' in page and f'{float(f"{last:.4g}"):.12g}' in page
    assert 'accuracy' not in re.sub('<script.*?</script>', '', page, flags=re.DOTALL)


@pytest.mark.integration
@pytest.mark.skipif(find_spec('neural_tangents') is None, reason='make nt')
def test_the_kernel_of_neural_tangents(small, finished, tmp_path):
    assert here(*small, '--kernel=nt', f'--out={tmp_path}/out').status == 0
    for row, same in zip(rows_of(tmp_path / 'out'), rows_of(finished), strict=True):
        assert row['consensus_loss'] == pytest.approx(same['consensus_loss'], rel=1e-4)


@pytest.mark.integration
def test_everything_that_ntk_dfl_saves_at_once(tiny, tmp_path):
    """Two clusters of three, half of 20 samples, inputs of 4, half of the entries in 6 bits."""
    out = tmp_path / 'out'
    assert here(
        f'--dataset={tiny}', '--clients=6', '--rounds=2', '--hidden=8', '--partition=iid',
        '--ntk_timesteps=10,20', '--topology=clustered', '--degree=2', '--ntk_subsampling=2',
        '--input_projection=4', '--message_sparsity=0.5', '--message_bits=6',
        '--nocheckpoint', f'--out={out}',
    ).succeeded().err == ''  # fmt: skip
    settings = json.loads((out / 'config.json').read_text())['algorithm']
    assert settings['by_cluster'] and settings['subsampling'] == 2
    tensors = (4 * 8, 8, 8 * 3, 3)
    row = sum(-(-size // 2) * 6 + size + 32 for size in tensors)  # values, bitmap, step
    sent = 10 * (3 * row + 3 * 32 + 32) + 3 * 32 * sum(tensors)  # w_j, w_bar and the new weights
    senders = 2 * 2  # of each cluster all but one
    assert rows_of(out)[-1]['mbytes_total'] == 2 * senders * sent / 8e6
    assert rows_of(out)[-1]['consensus_accuracy'] > 0.5
