"""What a run is said to take, and what it takes."""

import functools
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import psutil
import pytest

from dfl_jax import Clients, host_memory, simulate, topology
from dfl_jax.exchange import one_round
from dfl_jax.execution.devices import client_mesh
from dfl_jax.execution.memory import (
    Footprint,
    available_bytes,
    bytes_of,
    choose_chunk,
    client_bytes,
    in_bytes,
)
from dfl_jax.experiment.placement import bytes_of_graphs, footprint_of
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind


def abstract_clients(clients, samples, features) -> Clients:
    """Shapes and dtypes, no data."""
    shape = (clients, samples)
    return Clients(
        jax.ShapeDtypeStruct((*shape, features), jnp.float32),
        jax.ShapeDtypeStruct(shape, jnp.int32),
        jax.ShapeDtypeStruct(shape, jnp.bool),
    )


def test_numbers_of_bytes():
    assert in_bytes(3.5 * 2**20) == '3.5 MiB' and in_bytes(2**31) == '2.0 GiB'
    found = Footprint(2**20, 2**30, 2**31, 0)
    assert found.total == 2**20 + 3 * 2**30
    assert (
        str(found)
        == '3.0 GiB (data 1.0 MiB, state 1.0 GiB, copies 2.0 GiB, work 0.0 MiB, graphs 0.0 MiB)'
    )
    assert bytes_of(abstract_clients(3, 5, 7)) == 3 * 5 * (7 * 4 + 4 + 1)


@pytest.mark.skipif(not Path('/proc/meminfo').exists(), reason='Linux says what is available')
def test_the_file_cache_counts_as_free():
    fields = dict(line.split(':', 1) for line in Path('/proc/meminfo').read_text().splitlines())
    expected = 1024 * int(fields['MemAvailable'].split()[0])
    assert available_bytes() == pytest.approx(expected, rel=0.2)


def test_what_is_available_is_not_all_that_there_is(monkeypatch, tmp_path):
    memory = types.SimpleNamespace(total=1000, available=600, free=100, used=400)
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: memory)
    assert host_memory.free_bytes(tmp_path / 'no control groups', tmp_path) == 600


def test_what_cannot_fit_is_refused_before_anything_is_allocated():
    model = bind(MLP(10, (100_000,)), (784,))
    clients = abstract_clients(1000, 20, 784)
    test = simulate.Holdout(*clients[:2])
    with pytest.raises(ValueError, match=r'needs about \d+\.\d GiB .* are free; use fewer cl'):
        footprint_of(make('dpsgd', model), clients, test, 0, None)
    with pytest.raises(ValueError, match=r'1 at once need 1048576.0 GiB .* a smaller model'):
        choose_chunk(5, 2**50, advice='a smaller model')


def test_graphs_count_and_so_do_the_rounds_of_a_block():
    model, clients = bind(MLP(10, (8,)), (16,)), abstract_clients(6, 20, 16)
    test = simulate.Holdout(*(jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in clients[:2]))
    static = topology.schedule('complete', 6, 10**9, seed=0, static=True)
    round_ = 6 * 6 * 5 + 6
    assert bytes_of_graphs(static, 100) == 101 * round_
    changing = topology.schedule('ring', 6, 12, seed=0)
    assert bytes_of_graphs(changing, 4) == (12 + 4) * (6 * 3 * 5 + 6)
    of = (make('dpsgd', model), clients, test, 0, None)
    with pytest.raises(ValueError, match=r'graphs 173.2 GiB\) .* lower .* eval_every'):
        footprint_of(*of, bytes_of_graphs(static, 10**12))
    assert footprint_of(*of, 77).graphs == 77


def test_the_orders_of_many_steps_count():
    model = bind(MLP(10, (8,)), (16,))
    assert client_bytes(20, model, 10**6) - client_bytes(20, model) == 12 * 20 * (10**6 - 1)


@pytest.mark.parametrize('count', [6, 7])
def test_cores_as_devices_share_a_memory(count):
    """Data and state are split, the last share filled up; each device mixes all weights."""
    model, clients = bind(MLP(10, (8,)), (16,)), abstract_clients(count, 20, 16)
    test = simulate.Holdout(*(jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in clients[:2]))
    one, two = (
        footprint_of(make('dpsgd', model), clients, test, 100, mesh)
        for mesh in (None, client_mesh(2))
    )
    times = 2 * -(-count // 2) / count
    assert two.data == round(times * bytes_of(clients)) + 2 * bytes_of(test)
    assert two.state == pytest.approx(times * one.state, abs=8)
    assert two.copies == pytest.approx(times * one.copies + 2 * one.state, abs=16)
    assert two.work == 200


# Where it once took nine copies of the state, a large network no longer fitted.
@pytest.mark.parametrize(
    'name', ['ntk_dfl', 'dfedavg', pytest.param('decavg', marks=pytest.mark.slow)]
)
def test_a_round_makes_no_more_than_two_copies_of_the_state(name):
    model = bind(MLP(10, (100,)), (784,))
    clients = abstract_clients(600, 20, 784)
    algorithm = make(name, model, chunk=1)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), clients)
    graph = jax.tree.map(lambda a: a[0], topology.schedule('regular', 600, 1, seed=0, degree=5))
    # As it is compiled for a run; conftest.py turns optimisations off.
    options = {'xla_backend_optimization_level': 2}
    step = jax.jit(
        functools.partial(one_round, algorithm), donate_argnums=1, compiler_options=options
    )
    found = step.lower(jax.random.key(0), state, 0, graph, clients).compile().memory_analysis()
    assert found.temp_size_in_bytes < 2 * bytes_of(state) + bytes_of(clients)


def test_a_control_group_bounds_what_is_available(tmp_path):
    def group(folder, cache, **files):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, number in files.items():
            (tmp_path / folder / f'memory.{name}').write_text(f'{number}\n')
        (tmp_path / folder / 'memory.stat').write_text(f'anon 7\n{cache} 30\n')

    def free(groups):
        (tmp_path / 'cgroup').write_text(groups)
        return host_memory.free_bytes(tmp_path / 'cgroup', tmp_path)

    group('job/step', 'inactive_file', max='max', current=400)
    group('job', 'inactive_file', max=1000, current=400)
    assert free('0::/job/step\n') == 630
    group('memory', 'total_inactive_file', limit_in_bytes=500, usage_in_bytes=100)
    assert free('4:cpuset,memory:/not/seen/here\n2:cpu:/job\n0::/job\n') == 430
    assert free('2:cpu:/\n') > 2**20 and host_memory.free_bytes(tmp_path / 'none', tmp_path) > 2**20
