"""Graphs that carry their weights, directed ones, and sequences that average exactly."""

import math
import warnings

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from dfl_jax import gossip, simulate, topology
from dfl_jax.base import Clients, Graph
from dfl_jax.cli.sweep.group import _wide
from dfl_jax.execution import client_mesh
from dfl_jax.experiment.fingerprint import digest_of_graphs
from dfl_jax.gossip import mixing_matrix, mixing_weights, spectrum
from dfl_jax.gossip.gain import gain_of, gain_of_family, mixing_matrices, push_sum_size
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind
from dfl_jax.setting_error import SettingError
from dfl_jax.topology import TopologyError, from_matrix, from_networkx
from tests.helpers import host_round


def schedule(family, clients, rounds=1, **options):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return topology.schedule(family, clients, rounds, seed=0, **options)


def matrices_of(graphs, kind='uniform'):
    """The mixing matrices [T, M, M] of a schedule, of equal sizes."""
    clients = graphs.active.shape[1]
    each = (host_round(graphs, r) for r in range(len(graphs.active)))
    return np.stack([mixing_matrix(g, np.ones(clients), kind).toarray() for g in each])


def second_modulus(graphs, kind='uniform'):
    return spectrum(gossip.mixing_matrices(graphs, np.ones(graphs.active.shape[1]), kind)[0])[0]


def after_all(matrices):
    """The matrix [M, M] of all rounds, the first one first."""
    product = np.eye(matrices.shape[1])
    for matrix in matrices:
        product = matrix @ product
    return product


# ------------------------------------------------------------------------------------ sequences


def test_one_peer_exponential_averages_exactly_where_it_can():
    graphs = schedule('one_peer_exponential', 32, 5)
    assert np.abs(after_all(matrices_of(graphs)) - 1 / 32).max() < 1e-16
    assert (graphs.weights == 0.5).all() and graphs.members.shape == (5, 32, 2)
    assert (graphs.members[3, :, 1] == (np.arange(32) - 8) % 32).all()
    assert (
        np.abs(after_all(matrices_of(schedule('one_peer_exponential', 33, 6))) - 1 / 33).max()
        > 0.01
    )


@pytest.mark.parametrize('clients', [2, 3, 25, 100])
def test_one_peer_equi_shrinks_as_fast_for_any_number_of_clients(clients):
    """The mean over rounds of |W x|^2 / |x|^2 is (1 - 1 / M) / 2 for x that sums to zero."""
    graphs = schedule('one_peer_equi', clients, 4000)
    matrices = matrices_of(graphs)
    np.testing.assert_allclose(matrices.sum(axis=1), 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(matrices.sum(axis=2), 1, rtol=0, atol=1e-14)
    assert graphs.members.shape == (4000, clients, 2)
    x = np.random.default_rng(0).normal(size=clients)
    x -= x.mean()
    shrunk = ((matrices @ x) ** 2).sum(axis=1) / (x @ x)
    error = shrunk.std() / math.sqrt(len(shrunk))
    assert abs(shrunk.mean() - (1 - 1 / clients) / 2) < 4 * error + 1e-12
    longer = schedule('one_peer_equi', clients, 5000)
    np.testing.assert_array_equal(longer.members[:4000], graphs.members)


@pytest.mark.parametrize('degree', [1, 2, 3, 4])
def test_base_graphs_average_any_number_of_clients_exactly(degree):
    for clients in range(max(2, degree + 1), 41):
        bound = 2 * math.log(clients) / math.log(degree + 1) + 2  # rounds
        graphs = schedule('base_graph', clients, 30, degree=degree)
        assert graphs.mask[:, :, 1:].sum(axis=2).max() <= degree
        matrices = matrices_of(graphs)
        assert (matrices >= 0).all()
        np.testing.assert_allclose(matrices.sum(axis=1), 1, rtol=0, atol=1e-14)
        np.testing.assert_allclose(matrices, matrices.swapaxes(1, 2), rtol=0, atol=1e-15)
        errors = [np.abs(after_all(matrices[:r]) - 1 / clients).max() for r in range(1, 31)]
        period = int(np.argmax(np.array(errors) < 1e-14)) + 1
        assert errors[period - 1] < 1e-14 and period <= bound
        np.testing.assert_array_equal(matrices[period:], matrices[: 30 - period])


def test_base_graphs_are_as_short_as_they_can_be():
    """Six clients take 4 rounds of one peer, as 2 x 3, and 5 by their binary digits, 4 + 2."""
    errors = [
        np.abs(after_all(matrices_of(schedule('base_graph', 6, rounds, degree=1))) - 1 / 6).max()
        for rounds in (3, 4)
    ]
    assert errors[0] > 0.1 and errors[1] < 1e-15
    assert (
        np.abs(after_all(matrices_of(schedule('base_graph', 5, 5, degree=1))) - 1 / 5).max() < 1e-15
    )


def test_a_sequence_starts_again_and_needs_no_more_rounds_than_there_are():
    graphs = schedule('one_peer_exponential', 8, 7)
    for array in graphs:
        np.testing.assert_array_equal(array[3:6], array[:3])
    assert len(schedule('base_graph', 40, 2, degree=1).active) == 2


# ------------------------------------------------------------------------------------- directed


def test_who_hears_whom_in_directed_families():
    ring = schedule('directed_ring', 5, static=True)
    assert (ring.members[0, :, 1] == (np.arange(5) - 1) % 5).all()
    exponential = schedule('exponential', 11, static=True)
    assert set(exponential.members[0, 9]) == {9, 8, 7, 5, 1}
    epidemic = schedule('epidemic', 30, 20, degree=4)
    heard = matrices_of(epidemic) > 0
    heard[:, np.arange(30), np.arange(30)] = False
    assert (heard.sum(axis=1) == 4).all() and np.ptp(heard.sum(axis=2)) > 3


@pytest.mark.parametrize('clients', [5, 12, 1001])
def test_spectrum_of_a_directed_ring(clients):
    expected = abs(1 + np.exp(2j * np.pi / clients)) / 2
    found = second_modulus(schedule('directed_ring', clients, static=True))
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize('power', [2, 5, 8])
def test_spectra_of_hypercubes_and_exponential_graphs(power):
    for family in ('hypercube', 'exponential'):
        graphs = schedule(family, 2**power, static=True)
        assert 1 - second_modulus(graphs) == pytest.approx(2 / (1 + power), abs=1e-12)


def test_spectra_of_directed_graphs_that_do_not_mix():
    leaders = np.array([[1, 0, 0], [0, 1, 0], [0.3, 0.3, 0.4]])  # two clients that hear nobody
    assert second_modulus(from_matrix(leaders, 1)) == 1
    one_leader = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 0.6, 0.4]])
    assert second_modulus(from_matrix(one_leader, 1)) == pytest.approx(0.5)
    diverging = np.array([[-0.4, 1.4], [1.4, -0.4]])
    assert spectrum(mixing_matrix(host_round(from_matrix(diverging, 1), 0), np.ones(2))) == (
        pytest.approx((1.8, -0.8))
    )


# -------------------------------------------------------------------------------------- weights


def weights_by_a_loop(graph):
    """One link at a time: the weight of a lost one goes to the receiver."""
    rows = np.zeros(graph.mask.shape)
    for h, members in enumerate(graph.members):
        rows[h, 0] = 1
        for k in range(1, len(members)):
            if graph.active[h] and graph.mask[h, k]:
                rows[h, k] = graph.weights[h, k]
                rows[h, 0] -= graph.weights[h, k]
    return rows


def random_matrix(clients=9, seed=0):
    """Directed, sparse, some weights and diagonal entries negative, rows that sum to one."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(clients, clients)) * (rng.random((clients, clients)) < 0.4)
    np.fill_diagonal(matrix, 0)
    return matrix + np.diag(1 - matrix.sum(axis=1))


@pytest.mark.parametrize('kind', gossip.MIXINGS)
def test_weights_of_the_graph_win_and_lost_ones_stay(kind):
    graphs = from_matrix(np.stack([random_matrix(seed=s) for s in range(3)]), 3)
    graphs = topology.drop_clients(topology.drop_links(graphs, 0.3, 0, directed=True), 0.2, 0)
    assert graphs.weights.dtype == np.float64 and not graphs.active.all()
    sizes = np.arange(1, 10)
    for r in range(3):
        graph = host_round(graphs, r)
        expected = weights_by_a_loop(graph)
        rows = mixing_weights(graph, sizes, kind)
        assert rows.dtype == np.float64
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-14)
        garbage = np.where(graph.mask, graph.weights, np.nan)
        garbage[:, 0] = 7
        on_device = jax.jit(mixing_weights, static_argnums=2)(
            graph._replace(weights=garbage), sizes, kind
        )
        assert on_device.dtype == jnp.float32
        np.testing.assert_allclose(on_device, expected, rtol=0, atol=1e-6)
        assert (rows[~graph.active, 0] == 1).all()


def test_symmetric_weights_stay_doubly_stochastic_where_links_are_lost():
    graphs = topology.drop_links(schedule('base_graph', 12, 6, degree=2), 0.4, 0)
    matrices = matrices_of(graphs)
    np.testing.assert_allclose(matrices.sum(axis=1), 1, atol=1e-14)
    assert (np.diagonal(matrices, axis1=1, axis2=2) > 0.99).any()


def test_the_gain_sees_the_weights():
    matrix = np.array([[0.5, 0.5, 0], [0.1, 0.8, 0.1], [0, 0.5, 0.5]])
    graphs = from_matrix(matrix, 4)
    assert len(mixing_matrices(graphs, np.ones(3), 'size')) == 1
    v = np.array([1, 5, 1]) / 7  # v = W^T v
    assert gain_of(*mixing_matrices(graphs, np.ones(3), 'size')) == pytest.approx(
        1 / np.linalg.norm(v)
    )
    np.testing.assert_allclose(push_sum_size(graphs, 200), 3, rtol=1e-6)
    assert gain_of_family('base_graph', 9, degree=2, rounds=4) == pytest.approx(3)


# --------------------------------------------------------------------------------------- inputs


def test_a_matrix_becomes_a_graph_and_back(tmp_path):
    matrix = random_matrix()
    graphs = from_matrix(matrix, 3)
    assert graphs.members.strides[0] == graphs.weights.strides[0] == 0
    np.testing.assert_allclose(matrices_of(graphs)[2], matrix, rtol=0, atol=1e-15)
    assert (np.diff(np.where(graphs.mask, graphs.members, 99)[0, :, 1:], axis=1) >= 0).all()
    several = np.stack([random_matrix(seed=s) for s in (1, 2)]).astype(np.float32)
    np.save(tmp_path / 'W.npy', several)
    graphs = schedule('matrix', 9, 5, path=tmp_path / 'W.npy')
    np.testing.assert_allclose(matrices_of(graphs), several[[0, 1, 0, 1, 0]], rtol=0, atol=1e-6)
    assert len(schedule('matrix', 9, 1, path=tmp_path / 'W.npy').active) == 1


@pytest.mark.parametrize(
    ('matrix', 'message'),
    [
        (np.ones((2, 3)) / 3, r'W.npy has the shape \(2, 3\); give \[M, M\]'),
        (np.eye(4), r'the shape \(4, 4\), and the network 3 clients; take clients=4'),
        (np.ones(3), r'the shape \(3,\)'),
        (np.float64(1), r'the shape \(\)'),
        (np.eye(3) * [1, 1.5, 1], r'row 1 sums to 1\.5, .* divide the row'),
        (np.stack([np.eye(3), np.diag([1, 1, 0])]), r'row 2 of round 2 sums to 0'),
        (np.diag([1, np.nan, 1]), 'row 1 sums to nan'),
        (np.array([[1, np.inf, -np.inf], [0, 1, 0], [0, 0, 1]]), 'row 0 sums to nan'),
        (np.eye(3).astype(complex), 'holds complex128; give real numbers'),
        (np.eye(3).astype(bool), 'holds bool'),
        (np.eye(3).astype(object), 'cannot be read: .* write it by numpy.save'),
        (b'', 'cannot be read'),
        (b'no array', 'cannot be read'),
        (None, 'No such file'),
    ],
    ids=str,
)
def test_bad_matrices(matrix, message, tmp_path):
    file = tmp_path / 'W.npy'
    if isinstance(matrix, bytes):
        file.write_bytes(matrix)
    elif matrix is not None:
        np.save(file, matrix, allow_pickle=True)
    with pytest.raises(TopologyError, match=message) as raised:
        schedule('matrix', 3, 2, path=file)
    assert '\n' not in str(raised.value) and len(str(raised.value)) < 400


def test_an_archive_is_no_matrix(tmp_path):
    np.savez(tmp_path / 'W.npz', np.eye(3))
    with pytest.raises(TopologyError, match=r'cannot be read: .* write it by numpy\.save'):
        schedule('matrix', 3, path=tmp_path / 'W.npz')


def test_graphs_of_networkx():
    graph = nx.star_graph(3)
    for ours, theirs in zip(
        from_networkx(graph, 2), schedule('star', 4, 2, static=True), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    nx.set_edge_attributes(graph, 0.2, 'weight')
    np.testing.assert_allclose(matrices_of(from_networkx(graph, 1))[0, 0], [0.4, 0.2, 0.2, 0.2])
    directed = nx.DiGraph()
    directed.add_weighted_edges_from([('a', 'b', 0.3), ('b', 'c', 0.6), ('c', 'c', 0.9)])
    expected = [[1, 0, 0], [0.3, 0.7, 0], [0, 0.6, 0.4]]  # b hears a
    np.testing.assert_allclose(matrices_of(from_networkx(directed, 1))[0], expected)


@pytest.mark.parametrize(
    ('graph', 'message'),
    [
        (nx.Graph(), 'has 0 nodes; take a Graph'),
        (nx.MultiGraph([(0, 1), (0, 1)]), 'several edges between two'),
        (nx.Graph([(0, 1, {'weight': 0.2}), (1, 2)]), '1 of 2 links have a weight'),
        (nx.Graph([(0, 1, {'weight': 'far'})]), 'weight far is no finite number'),
        (nx.Graph([(0, 1, {'weight': 1.2})]), r'client 0 sum to 1\.2'),
    ],
)
def test_networkx_graphs_that_are_refused(graph, message):
    with pytest.raises(TopologyError, match=message):
        from_networkx(graph, 1)


def test_what_has_no_use_for_weights_refuses_them():
    graphs = schedule('base_graph', 6, 4, degree=1)
    with pytest.raises(TopologyError, match='meetings average by the numbers of samples'):
        topology.meetings(graphs, 2, seed=0)
    with pytest.raises(TopologyError, match='a cluster that shares one model'):
        topology.by_cluster(graphs)


def test_links_with_weights_are_not_rewired(tmp_path):
    (tmp_path / 'links.txt').write_text('0 1 .2\n1 2 .2\n1 3 .2\n')
    with pytest.raises(SettingError, match=r'rewiring to assortativity=0\.5 would move; leave'):
        schedule('edge_list', 4, path=tmp_path / 'links.txt', assortativity=0.5)


def test_a_graph_without_weights_is_what_it_was():
    assert Graph(*np.zeros(3)).weights is None


# ------------------------------------------------------------------------------------------ runs

CLIENTS = 9


def gossip_without_learning(graphs, devices=None, seeds=(0,)):
    """The clients' kernels [R, M, ...] after D-PSGD of tiny steps from independent weights."""
    model = bind(MLP(3, (4,)), (5,))
    data = Clients(
        jnp.ones((CLIENTS, 2, 5)), jnp.zeros((CLIENTS, 2), int), jnp.ones((CLIENTS, 2), bool)
    )
    test = simulate.Holdout(np.ones((3, 5), np.float32), np.zeros(3, np.int32))
    keys = [jax.random.key(seed) for seed in seeds]
    rounds = len(graphs.active)
    if len(seeds) > 1:
        algorithm = lambda _: make('dpsgd', model, lr=1e-30, init='independent')  # noqa: E731
        several = jax.tree.map(lambda a: np.stack([a] * len(seeds)), (data, graphs))
        runs = simulate.run_together(
            algorithm, None, *several, test, jnp.stack(keys), eval_every=rounds
        )
        *_, (_, state, _) = runs
        return np.asarray(state.params['Dense_0']['kernel'])
    algorithm = make('dpsgd', model, lr=1e-30, init='independent')
    mesh = client_mesh(devices) if devices else None
    *_, (_, state, _) = simulate.run(
        algorithm, data, graphs, test, keys[0], eval_every=rounds, mesh=mesh
    )
    return np.asarray(state.params['Dense_0']['kernel'])[None]


@pytest.mark.integration
@pytest.mark.parametrize(
    'how',
    [{}, {'devices': 3}, pytest.param({'devices': 8}, marks=pytest.mark.slow), {'seeds': (0, 1)}],
    ids=str,
)
def test_a_run_over_a_base_graph_ends_in_consensus(how):
    for rounds in (1, 2):
        kernels = gossip_without_learning(schedule('base_graph', CLIENTS, rounds, degree=2), **how)
        apart = np.ptp(kernels, axis=1).max()
        assert (apart < 1e-6) == (rounds == 2) and np.ptp(kernels) > 0.1


def test_runs_of_different_widths_are_padded_with_weights():
    narrow, wide = (schedule('base_graph', CLIENTS, 2, degree=k) for k in (1, 2))
    together = _wide([narrow, wide])
    assert together.weights.shape == together.members.shape == (2, 2, CLIENTS, 3)
    np.testing.assert_allclose(together.weights.sum(axis=-1), 1)
    for graphs, one in zip((narrow, wide), range(2), strict=True):
        ours = jax.tree.map(lambda a, one=one: a[one], together)
        np.testing.assert_allclose(matrices_of(ours), matrices_of(graphs))


def test_arrays_that_do_not_fit_are_refused():
    graphs = schedule('base_graph', CLIENTS, 2, degree=2)
    with pytest.raises(ValueError, match=r'weights \(2, 9, 1\) and members \(2, 9, 3\)'):
        gossip_without_learning(graphs._replace(weights=graphs.weights[:, :, :1]))


def test_the_digest_of_graphs_sees_their_weights():
    graphs = from_matrix(random_matrix(), 3)
    others = graphs._replace(weights=graphs.weights * 1.5)
    plain = graphs._replace(weights=None)
    digests = {digest_of_graphs(g, 3, graphs.members.shape[2]) for g in (graphs, others, plain)}
    assert len(digests) == 3
    assert topology.graph_bytes(graphs) - topology.graph_bytes(plain) == graphs.weights[0].nbytes
