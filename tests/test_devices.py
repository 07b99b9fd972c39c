"""Clients over many devices and processes. What every algorithm owes is in test_contract.py."""

import functools
import json
import os
import re
import shutil
import socket
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import started
from test_cli import ROOT, SMALL, here, rows_of

from dfl_jax import Clients, data, execution, simulate, topology
from dfl_jax.checkpoint import Checkpoints
from dfl_jax.execution import devices, memory
from dfl_jax.execution.chunks import map_in_chunks, map_present
from dfl_jax.experiment import placement
from dfl_jax.heterogeneous.population import assign_architectures, populate
from dfl_jax.methods import METHODS, make
from dfl_jax.models import MLP, bind
from dfl_jax.simulate import Progress


def test_the_mesh():
    assert devices.client_mesh().size == 8
    assert devices.client_mesh(3).devices.tolist() == jax.devices()[:3]
    for count in (0, 9):
        with pytest.raises(ValueError, match=f'{count} devices asked for, and JAX sees 8'):
            devices.client_mesh(count)


def test_arrays_are_split_and_filled_up_to_equal_shares():
    mesh = devices.client_mesh(4)
    keys = jax.random.split(jax.random.key(0), 6)
    tree = {'even': np.ones((8, 3)), 'uneven': np.ones((6, 3)), 'one': np.float32(1), 'keys': keys}
    found = devices.placed(tree, mesh)
    shapes = {name: leaf.addressable_shards[0].data.shape for name, leaf in found.items()}
    assert shapes == {'even': (2, 3), 'uneven': (2, 3), 'one': (), 'keys': (2,)}
    np.testing.assert_array_equal(found['uneven'], np.repeat([1, 0], [6, 2])[:, None] + np.zeros(3))
    second = devices.placed(np.zeros((2, 7)), mesh, axis=1)
    assert second.addressable_shards[0].data.shape == (2, 2)
    with jax.set_mesh(mesh):
        back = jax.jit(functools.partial(devices.unfilled, like=tree))(found)
    np.testing.assert_array_equal(back['uneven'], tree['uneven'])
    np.testing.assert_array_equal(*map(jax.random.key_data, (back['keys'], keys)))


@pytest.mark.parametrize('chunk', [1, 3, None])
@pytest.mark.parametrize('count', [1, 7, 16])
def test_work_is_spread_and_keeps_its_order(count, chunk):
    x, shift = jnp.arange(2.0 * count).reshape(count, 2), jnp.array([1.0, 5.0])
    present = jnp.arange(count) % 3 > 0

    def work(x, shift):
        mapped = map_in_chunks(lambda row: {'sum': row.sum(), 'moved': row + shift}, x, chunk)
        participants = map_present(lambda r: r + shift, lambda r: 0 * r, x, present, chunk)
        return mapped, participants

    expected = jax.jit(work)(x, shift)
    with jax.set_mesh(devices.client_mesh(8)):
        found = jax.jit(work)(x, shift)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    moved = np.asarray(x) + np.asarray(shift)
    np.testing.assert_array_equal(expected[1], np.where(np.asarray(present)[:, None], moved, 0))


def test_each_device_works_on_its_share_alone():
    """The program of one device holds a loop over a quarter of the clients."""
    x = jnp.ones((8, 2))
    with jax.set_mesh(devices.client_mesh(4)):
        text = jax.jit(lambda x: map_in_chunks(jnp.sin, x, 1)).lower(x).as_text()
    assert 'tensor<2x2xf32>' in text and 'sdy.manual_computation' in text


def shapes_of_sines(text):
    """Those of the sines of a lowered program, whatever JAX calls their operands."""
    return re.findall(r'stablehlo\.sine %\w+ : tensor<(\w+)>', text)


@pytest.mark.parametrize(('count', 'chunk', 'size'), [(8, 3, 3), (300, 128, 100), (7, 6, 4)])
def test_chunks_are_even_and_compiled_once(count, chunk, size):
    x = jnp.arange(2.0 * count).reshape(count, 2)
    mapped = jax.jit(lambda x: map_in_chunks(jnp.sin, x, chunk))
    assert shapes_of_sines(mapped.lower(x).as_text()) == [f'{size}x2xf32']
    np.testing.assert_array_equal(mapped(x), jnp.sin(x))


def test_without_a_chunk_memory_decides_but_on_a_cpu(monkeypatch):
    """One at a time on a CPU; elsewhere what half of the free memory holds, here four of them."""

    def lowered():
        program = jax.jit(lambda x: map_in_chunks(jnp.sin, x, None, 100)).lower(x)
        return shapes_of_sines(program.as_text())

    x = jnp.ones((8, 2))
    assert lowered() == ['2xf32']
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    monkeypatch.setattr(memory, 'available_bytes', lambda: 800)
    assert lowered() == ['4x2xf32']
    monkeypatch.setattr(memory, 'available_bytes', lambda: 100)
    with pytest.raises(ValueError, match=r'1 at once need .* use a smaller model'):
        lowered()


SHARED, SAMPLES, FEATURES = 31, 11, 7  # clients of eight devices, and shapes that nothing else has
MOVED = re.compile(r' = (.*?) (?:all-\w+|collective-\w+|reduce-scatter)(?:-start)?\(')


@pytest.mark.parametrize(
    ('name', 'data', 'weights'),  # how often a round moves those of all clients
    [
        ('dfedavg', 0, 1),
        *(
            pytest.param(name, 0, 1, marks=pytest.mark.slow)
            for name in ('dpsgd', 'dfedavgm', 'dfedsam', 'decavg')
        ),
        ('dispfl', 0, 2),  # and its masks, as weights of the average
        ('ntk_dfl', 1, 1),  # an aggregator evolves on its neighbours' data
        pytest.param('spark', 1, 1, marks=pytest.mark.slow),
    ],
)
def test_what_a_round_moves_between_devices(name, data, weights, monkeypatch):
    """No training data but where a method asks for it; and the devices hold equal shares."""
    x = np.ones((SHARED, SAMPLES, FEATURES), np.float32)
    clients = Clients(x, np.zeros(x.shape[:2], np.int32), np.ones(x.shape[:2], bool))
    settings = {'projection_dim': 20} if name == 'spark' else {}
    algorithm = make(name, bind(MLP(3, (5,)), (FEATURES,)), **settings)
    graphs = topology.schedule('regular', SHARED, 1, seed=0, degree=4)
    compiled = []

    def compile_only(*arguments):
        compiled.append(compile_block(*arguments)[0])
        raise InterruptedError

    compile_block = simulate._compile_block
    monkeypatch.setattr(simulate, '_compile_block', compile_only)
    options = {'mesh': devices.client_mesh(8)}
    test = simulate.Holdout(x[0], clients.y[0])
    with pytest.raises(InterruptedError):
        next(simulate.run(algorithm, clients, graphs, test, jax.random.key(0), **options))
    (program,) = compiled
    moved = ' '.join(MOVED.findall(program.as_text()))
    assert len(re.findall(rf'[\[,]{SAMPLES},{FEATURES}\]', moved)) == data
    assert len(re.findall(rf'\[\d+,({FEATURES},5|{FEATURES * 5})\]', moved)) == weights
    state = jax.eval_shape(algorithm.init, jax.random.key(0), clients)
    shared, whole = execution.bytes_of((state, clients)), execution.bytes_of(graphs)
    arguments = program.memory_analysis().argument_size_in_bytes
    assert shared / 8 < arguments - whole < 1.1 * shared / 8


@pytest.mark.parametrize('how', ['localhost', 'localhost:1,2', 'a:1,x,2', 'localhost,0,2'])
def test_a_place_that_cannot_be_read(how):
    with pytest.raises(ValueError, match=r'write auto, or HOST:PORT,i,n'):
        devices.join(how)


@pytest.fixture(scope='module')
def whole(tiny, tmp_path_factory):
    """The run on one device."""
    out = tmp_path_factory.mktemp('runs') / 'whole'
    assert here(f'--dataset={tiny}', *SMALL, '--devices=1', f'--out={out}').status == 0
    return out


def assert_close(out, whole):
    for row, other in zip(rows_of(out), rows_of(whole), strict=True):
        assert row['consensus_accuracy'] == pytest.approx(other['consensus_accuracy'], abs=0.03)
        assert row['consensus_loss'] == pytest.approx(other['consensus_loss'], rel=1e-3)
        assert row['mbytes_total'] == other['mbytes_total']


@pytest.mark.integration
def test_the_command_on_several_devices(tiny, whole, tmp_path):
    argv = (f'--dataset={tiny}', *SMALL)
    assert here(*argv, '--devices=3', f'--out={tmp_path}/three').status == 0
    assert_close(tmp_path / 'three', whole)
    assert '9 devices asked for' in here(*argv, '--devices=9').error
    assert '--devices=many: write a number, auto or all' in here(*argv, '--devices=many').error


@pytest.mark.integration
@pytest.mark.parametrize(
    'method',  # of one architecture, or of two
    [
        'dfedavgm',
        'dfml',
        *(pytest.param(name, marks=pytest.mark.slow) for name in ('ntk_dfl', 'spark')),
    ],
)
def test_a_checkpoint_is_read_on_any_number_of_devices(method, tmp_path):
    clients = Clients(jnp.ones((8, 2, 4)), jnp.zeros((8, 2), jnp.int32), jnp.ones((8, 2), bool))
    models = {name: bind(MLP(3, (width,)), (4,)) for name, width in (('a', 3), ('b', 5))}
    mixed = populate(models, assign_architectures(tuple(models), 8, [1, 1]))
    settings = {'spark': {'projection_dim': 5}, 'dfml': {'rounds': 3}}.get(method, {})
    algorithm = make(method, mixed if method == 'dfml' else models['a'], **settings)
    state = algorithm.init(jax.random.key(0), clients)
    like = jax.eval_shape(algorithm.init, jax.random.key(0), clients)

    def spread(state, count):
        """The state that a run on so many devices yields after no round."""
        if count == 1:
            return state
        with jax.set_mesh(devices.client_mesh(count)):
            whole = jax.jit(functools.partial(devices.unfilled, like=like))
            return whole(devices.placed(state, devices.client_mesh(count)))

    counts = 1, 2, 3, 8
    for count in counts:
        kept = Checkpoints(tmp_path / str(count))
        kept.save(spread(state, count), Progress(3, 1.5, {'weights': [1, 2]}))
    for count in counts:
        saved = Checkpoints(tmp_path / str(count)).restore(like)
        assert saved.progress == [Progress(3, 1.5, {'weights': [1, 2]})]
        for other in counts:
            jax.tree.map(np.testing.assert_array_equal, spread(saved.state, other), state)


def test_checkpoints_are_saved_in_the_order_of_their_rounds(tmp_path):
    kept = Checkpoints(tmp_path)
    kept.save({'weights': jnp.ones(3)}, Progress(5, 1.0, {}))
    for round in (5, 4):
        with pytest.raises(ValueError, match=f'round {round} cannot follow that of round 5'):
            kept.save({'weights': jnp.zeros(3)}, Progress(round, 1.0, {}))
    assert kept.restore({'weights': jnp.zeros(3)}).state['weights'].tolist() == [1, 1, 1]


@pytest.mark.integration
@pytest.mark.parametrize(('before', 'after'), [pytest.param(2, 1, marks=pytest.mark.slow), (3, 6)])
def test_a_run_goes_on_on_other_devices(before, after, tiny, whole, tmp_path):
    out = tmp_path / 'out'
    short = [flag for flag in SMALL if not flag.startswith('--rounds=')]
    argv = (f'--dataset={tiny}', *short, f'--devices={before}', f'--out={out}')
    assert here(*argv, '--rounds=1').status == 0
    done = here('--resume', f'--out={out}', '--rounds=2', f'--devices={after}').succeeded()
    assert done.err.startswith(f'warning: devices was {before} when the run began and is {after}')
    assert_close(out, whole)


@pytest.mark.parametrize(('clients', 'size'), [(5, 3), (6, 3), (8, 4), (10, 4), (2, 2), (1, 1)])
def test_no_more_cores_than_finish_as_early_as_all_would(clients, size, monkeypatch):
    monkeypatch.setattr(devices, '_cores', lambda: 4)
    mesh = devices.mesh_of_cores(clients)
    assert (mesh.size if mesh else 1) == size


@pytest.mark.integration
@pytest.mark.parametrize('asked', ['auto', pytest.param('3', marks=pytest.mark.slow)])
def test_a_command_of_its_own_makes_devices_of_the_cpu(asked, tiny, whole, tmp_path):
    """In a new process, as JAX can be told only before it is used."""
    out = tmp_path / 'cores'
    argv = [f'--dataset={tiny}', *SMALL, '--noprogress', '--compilation_cache=off', f'--out={out}']
    done = started('run', f'--devices={asked}', *argv, cwd=ROOT, env={'XLA_FLAGS': ''}).outcome()
    assert done.status == 0, done
    used = 3 if asked == '3' else next(n for n in (6, 3, 2, 1) if n <= len(os.sched_getaffinity(0)))
    assert json.loads((out / 'config.json').read_text())['devices'] == used
    assert_close(out, whole)


def test_cores_are_devices_where_their_copies_fit(monkeypatch):
    monkeypatch.setattr(devices, '_cores', lambda: 2)
    flags = SimpleNamespace(devices='auto', distributed=None)
    model = bind(MLP(3, (4,)), (5,))
    clients = Clients(np.zeros((6, 10, 5)), np.zeros((6, 10), int), np.ones((6, 10), bool))
    whole = 2 * 4 * 6 * (model.size + 10 * 5)  # weights and data on two devices
    for share, fits in ((1.01, True), (0.99, False)):
        monkeypatch.setattr(execution, 'available_bytes', lambda s=share: 4 * whole * s)
        assert bool(placement.cores_of(flags, model, clients, 6, METHODS['dpsgd'])) == fits
    assert placement.cores_of(flags, model, clients, 6, METHODS['dfml']) is None
    assert placement.cores_of(flags, model, clients, 1, METHODS['dpsgd']) is None
    flags.devices = '1'
    assert placement.cores_of(flags, model, clients, 6, METHODS['dpsgd']) is None


def processes(count, *argv):
    """The exit states of that many processes of one run, two devices each."""
    with socket.socket() as free:
        free.bind(('localhost', 0))
        port = free.getsockname()[1]
    cache = jax.config.jax_compilation_cache_dir or 'off'
    few = {'XLA_FLAGS': os.environ['XLA_FLAGS'].replace('count=8', 'count=2')}
    runs = [
        started(
            'run',
            f'--compilation_cache={cache}',
            f'--distributed=localhost:{port},{i},{count}',
            *argv,
            cwd=ROOT,
            env=few,
        )
        for i in range(count)
    ]
    ends = [run.outcome() for run in runs]
    assert [end.status for end in ends] == [0] * count, ends
    return [end.out for end in ends]


@pytest.mark.integration
def test_two_processes_are_one_run_and_resume(tiny, whole, tmp_path):
    out = tmp_path / 'two'
    argv = (f'--dataset={tiny}', *SMALL, '--noprogress', f'--out={out}')
    first, second = processes(2, *argv)
    assert 'consensus accuracy' in first and 'consensus accuracy' not in second
    assert_close(out, whole)
    model = (out / 'consensus.safetensors').read_bytes()

    (out / 'done').unlink()
    (out / 'consensus.safetensors').unlink()
    shutil.rmtree(out / 'checkpoints' / '2')
    processes(2, '--resume', '--noprogress', f'--out={out}')
    assert [row['round'] for row in rows_of(out)] == [1, 2]
    assert (out / 'consensus.safetensors').read_bytes() == model


def test_local_accuracy_where_devices_do_not_divide_the_clients():
    """Each client is evaluated on its own samples, whatever fills the shares of the devices."""
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=120)
    x = (rng.normal(size=(120, 5)) + 2 * np.eye(4, 5)[y]).astype('float32')
    clients = data.pack(x, y, np.split(np.arange(120), [7, 30, 40, 77, 100]))
    given = clients, topology.schedule('ring', 6, 2, seed=0), simulate.Holdout(x, y)

    def local(mesh):
        method = make('dpsgd', bind(MLP(4, (6,)), (5,)), lr=0.1)
        options = {'validation': clients, 'mesh': mesh}
        *_, (row, _, _) = simulate.run(method, *given, jax.random.key(0), **options)
        return row['local_accuracy_mean'], row['local_accuracy_std']

    alone = local(None)
    assert alone[1] > 0.01
    np.testing.assert_allclose(local(devices.client_mesh(4)), alone, atol=1e-3)
