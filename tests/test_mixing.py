import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax.base import Graph
from dfl_jax.gossip import mixing
from dfl_jax.gossip.mixing import (
    DENSE_UP_TO_CLIENTS_PER_MEMBER,
    MIXINGS,
    mix,
    mix_at_aggregator,
    mixing_weights,
)
from dfl_jax.gossip.spectra import mixing_matrix
from dfl_jax.topology import drop_clients, drop_links, schedule
from tests.helpers import host_round

CLIENTS = 24
FORMS = {'gather': 0, 'dense': CLIENTS, 'auto': DENSE_UP_TO_CLIENTS_PER_MEMBER}
jitted_weights = jax.jit(mixing_weights, static_argnums=2)


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Every mix takes this form of the multiply."""
    monkeypatch.setattr(mixing, 'DENSE_UP_TO_CLIENTS_PER_MEMBER', FORMS[request.param])


def lossy_graph(family='barabasi_albert', seed=0):
    graph = schedule(family, CLIENTS, 1, seed=seed, degree=4)
    graph = drop_clients(drop_links(graph, 0.2, seed), 0.15, seed)
    graph = host_round(graph, 0)
    assert not graph.active.all() and graph.active.any()
    return graph


def sizes_of(clients=CLIENTS):
    return np.random.default_rng(1).integers(20, 400, clients).astype(np.int32)


def tree_of(dtype=np.float64, clients=CLIENTS):
    rng = np.random.default_rng(2)
    shapes = {'kernel': (clients, 7, 3), 'bias': (clients, 5), 'scale': (clients,)}
    return {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}


def loop_weights(graph, sizes, kind):
    """One aggregator, one link at a time, in plain Python."""
    rows = np.zeros(graph.mask.shape)
    degrees = [sum(row[1:]) for row in graph.mask.tolist()]
    for h, (members, mask) in enumerate(zip(graph.members, graph.mask, strict=True)):
        if not graph.active[h]:
            rows[h, 0] = 1
            continue
        links = [k for k in range(1, len(members)) if mask[k]]
        if kind == 'metropolis':
            for k in links:
                rows[h, k] = 1 / (1 + max(degrees[h], degrees[members[k]]))
            rows[h, 0] = 1 - sum(rows[h])
        else:
            share = {k: sizes[members[k]] if kind == 'size' else 1 for k in [0, *links]}
            for k, value in share.items():
                rows[h, k] = value / sum(share.values())
    return rows


def loop_mix(rows, members, leaf):
    mixed = np.zeros((len(rows), *leaf.shape[1:]))
    for h, row in enumerate(rows):
        for weight, member in zip(row, members[h], strict=True):
            mixed[h] += weight * leaf[member]
    return mixed


@pytest.mark.parametrize('kind', MIXINGS)
def test_weights_agree_with_a_loop(kind):
    graph, sizes = lossy_graph(), sizes_of()
    expected = loop_weights(graph, sizes, kind)
    on_host = mixing_weights(graph, sizes, kind)
    assert isinstance(on_host, np.ndarray) and on_host.dtype == np.float64
    np.testing.assert_allclose(on_host, expected, rtol=0, atol=1e-14)
    with jax.enable_x64(True):
        on_device = jitted_weights(graph, sizes, kind)
        assert on_device.dtype == jnp.float64
        np.testing.assert_allclose(on_device, expected, rtol=0, atol=1e-14)
        np.testing.assert_allclose(on_device.sum(axis=1), 1, rtol=0, atol=1e-14)
    single = jitted_weights(graph, sizes, kind)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-6)
    assert (single[~graph.mask] == 0).all()


@pytest.mark.parametrize('kind', MIXINGS)
def test_mix_agrees_with_a_loop(form, kind):
    graph, tree = lossy_graph(), tree_of()
    rows = loop_weights(graph, sizes_of(), kind)
    with jax.enable_x64(True):
        mixed = jax.jit(lambda *args: mix(*args))(rows, graph.members, tree)
        for name, leaf in tree.items():
            assert mixed[name].dtype == jnp.float64 and mixed[name].shape == leaf.shape
            expected = loop_mix(rows, graph.members, leaf)
            np.testing.assert_allclose(mixed[name], expected, rtol=0, atol=1e-13)
        idle = ~graph.active
        assert (np.asarray(mixed['kernel'])[idle] == tree['kernel'][idle]).all()
        matrix = mixing_matrix(graph, sizes_of(), kind)
        np.testing.assert_allclose(mixed['bias'], matrix @ tree['bias'], rtol=0, atol=1e-13)


def test_a_mixing_matrix_is_of_one_round_and_its_clients():
    graphs = schedule('ring', 6, 4, seed=0)
    for graph, sizes in ((graphs, np.ones(6)), (host_round(graphs, 0), np.ones(5))):
        with pytest.raises(ValueError, match=r'give one round of a schedule.*the size of each'):
            mixing_matrix(graph, sizes)


@pytest.mark.parametrize(('dtype', 'tolerance'), [(np.float32, 1e-6), (jnp.bfloat16, 0.05)])
def test_leaf_dtype_is_kept(form, dtype, tolerance):
    graph, tree = lossy_graph(), tree_of()
    rows = loop_weights(graph, sizes_of(), 'size')
    mixed = mix(
        jnp.asarray(rows), graph.members, jax.tree.map(lambda a: jnp.asarray(a, dtype), tree)
    )
    assert mixed['kernel'].dtype == dtype
    expected = loop_mix(rows, graph.members, tree['kernel'])
    np.testing.assert_allclose(mixed['kernel'].astype(jnp.float32), expected, atol=tolerance)


@pytest.mark.parametrize('kind', MIXINGS)
def test_padding_and_masked_links_change_nothing(form, kind):
    graph, tree = lossy_graph(), tree_of(np.float32)
    rng = np.random.default_rng(3)
    garbage = np.where(graph.mask, graph.members, rng.integers(-9, 99, graph.members.shape))
    width = ((0, 0), (0, 3))
    garbage = np.pad(garbage, width, constant_values=7).astype(np.int32)
    dirty = Graph(garbage, np.pad(graph.mask, width), graph.active)
    clean_rows = jitted_weights(graph, sizes_of(), kind)
    dirty_rows = jitted_weights(dirty, sizes_of(), kind)
    np.testing.assert_array_equal(dirty_rows[:, :-3], clean_rows)
    assert (dirty_rows[:, -3:] == 0).all()
    clean = mix(clean_rows, jnp.asarray(graph.members), tree)
    mixed = mix(dirty_rows, jnp.asarray(garbage), tree)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), clean, mixed)


@pytest.mark.parametrize('kind', ['size', 'uniform'])
def test_an_aggregator_that_receives_no_sample_keeps_its_model(kind):
    graph = Graph(
        np.array([[0, 1], [1, 2], [2, 0]], np.int32), np.ones((3, 2), bool), np.ones(3, bool)
    )
    sizes = np.array([0, 0, 7])
    expected = {'size': [[1, 0], [0, 1], [1, 0]], 'uniform': [[0.5, 0.5]] * 3}[kind]
    for weights in (mixing_weights, jitted_weights):
        np.testing.assert_array_equal(weights(graph, sizes, kind), expected)


@pytest.mark.parametrize('family', ['regular', 'star', 'erdos_renyi'])
def test_metropolis_keeps_the_mean(family):
    graph, tree = lossy_graph(family), tree_of()
    matrix = mixing_matrix(graph, sizes_of(), 'metropolis').toarray()
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-14)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
    with jax.enable_x64(True):
        rows = jitted_weights(graph, sizes_of(), 'metropolis')
        mixed = mix(rows, graph.members, tree)
        for name, leaf in tree.items():
            np.testing.assert_allclose(mixed[name].mean(axis=0), leaf.mean(axis=0), atol=1e-14)
            assert not np.allclose(mixed[name], leaf)


def test_central_aggregator(form):
    graph = Graph(np.array([[4, 1, 9, 0]]), np.array([[True, True, True, False]]), np.array([True]))
    sizes, leaf = np.arange(1, 13), np.random.default_rng(0).standard_normal((12, 3))
    rows = mixing_weights(graph, sizes, 'size')
    np.testing.assert_allclose(rows, [[5 / 17, 2 / 17, 10 / 17, 0]])
    mixed = mix(jnp.asarray(rows), graph.members, jnp.asarray(leaf))
    assert mixed.shape == (1, 3)
    np.testing.assert_allclose(mixed[0], rows[0, :3] @ leaf[[4, 1, 9]], atol=1e-6)
    alone = mix_at_aggregator(
        jnp.asarray(rows)[0], jnp.asarray(graph.members)[0], jnp.asarray(leaf)
    )
    np.testing.assert_allclose(alone, mixed[0], atol=1e-6)
    with pytest.raises(ValueError, match='1 aggregators and 12 clients'):
        mixing_weights(graph, sizes, 'metropolis')


def test_auto_takes_the_dense_product_for_dense_graphs_only():
    def products(clients, width):
        shapes = ((clients, width), jnp.float32), ((clients, width), jnp.int32)
        leaf = jax.ShapeDtypeStruct((clients, 50), jnp.float32)
        return str(jax.make_jaxpr(mix)(*(jax.ShapeDtypeStruct(*s) for s in shapes), leaf)).count(
            'dot_general'
        )

    limit = 10 * DENSE_UP_TO_CLIENTS_PER_MEMBER
    assert products(limit, 10) == 1 and products(limit + 1, 10) == 0
    assert products(300, 300) == 1 and products(300, 6) == products(10_000, 6) == 0


def test_errors():
    graph = lossy_graph()
    with pytest.raises(ValueError, match="unknown mixing 'mean'; choose one of size"):
        mixing_weights(graph, sizes_of(), 'mean')
    rows = mixing_weights(graph, sizes_of(), 'size')
    with pytest.raises(TypeError, match='int32'):
        mix(jnp.asarray(rows), graph.members, {'count': jnp.ones(CLIENTS, jnp.int32)})
