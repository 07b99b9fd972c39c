"""The stationary vector of gossip and the gain of independent initial weights."""

import networkx as nx
import numpy as np
import pytest
import reference
import scipy.sparse

from dfl_jax import topology
from dfl_jax.gossip import gain
from dfl_jax.setting_error import SettingError
from dfl_jax.topology import TopologyError


def mixing(graph: nx.Graph) -> scipy.sparse.csr_array:
    """Uniform averaging over a node and those that it hears, with link weights, one for itself."""
    with_self = nx.to_numpy_array(graph).T + np.eye(len(graph))  # row i: whom i hears
    return scipy.sparse.csr_array(with_self / with_self.sum(axis=1, keepdims=True))


def schedule_of(family, clients, **options):
    return topology.schedule(family, clients, 1, seed=2, static=True, **options)


GRAPHS = {
    'erdos_renyi': nx.erdos_renyi_graph(30, 0.3, seed=1),
    'star': nx.star_graph(12),
    'line': nx.path_graph(15),
    'directed': nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (4, 0), (2, 4)]),
    'weighted': nx.Graph([(0, 1, {'weight': 3.0}), (1, 2, {'weight': 0.5}), (2, 3), (3, 0)]),
}


@pytest.mark.parametrize('graph', GRAPHS.values(), ids=GRAPHS)
def test_steady_vector_is_the_eigenvector_of_eq_3(graph):
    # The reference's A_ij is the weight of i for j, so that of who hears to whom it listens.
    _, expected = reference.steady_vector(nx.to_numpy_array(graph))
    np.testing.assert_allclose(gain.steady_vector(mixing(graph)), expected, atol=1e-10)


@pytest.mark.parametrize('name', ['erdos_renyi', 'star', 'line'])
def test_undirected_weights_are_proportional_to_degree_plus_one(name):
    with_self = np.array([degree + 1 for _, degree in GRAPHS[name].degree])
    found = gain.steady_vector(mixing(GRAPHS[name]))
    np.testing.assert_allclose(found, with_self / with_self.sum(), atol=1e-10)


@pytest.mark.parametrize(
    'family, options', [('regular', {'degree': 3}), ('ring', {}), ('complete', {}), ('torus', {})]
)
def test_gain_of_regular_graphs_is_the_root_of_n(family, options):
    graphs = schedule_of(family, 36, **options)
    matrices = gain.mixing_matrices(graphs, np.ones(36), 'uniform')
    assert len(matrices) == 1
    assert gain.gain_of(*matrices) == pytest.approx(6, rel=1e-10)


def test_metropolis_weights_have_the_gain_of_regular_graphs():
    graphs = schedule_of('barabasi_albert', 50, degree=4)
    assert gain.gain_of(*gain.mixing_matrices(graphs, np.ones(50), 'metropolis')) == pytest.approx(
        50**0.5, rel=1e-9
    )
    assert gain.gain_of(*gain.mixing_matrices(graphs, np.ones(50), 'uniform')) < 0.97 * 50**0.5


def test_slow_networks_are_solved_directly():
    """A line of unequal link weights: power iteration would take a hundred thousand rounds."""
    graph = nx.path_graph(400)
    for i, j in graph.edges:
        graph.edges[i, j]['weight'] = 1 + i % 7
    matrix = mixing(graph)
    v = gain.steady_vector(matrix)
    np.testing.assert_allclose(matrix.T @ v, v, atol=1e-12)
    assert v.sum() == pytest.approx(1) and v.min() > 0


def test_a_changing_graph_weighs_by_the_product_of_its_rounds():
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 50, 20)
    graphs = topology.schedule('erdos_renyi', 20, 7, seed=4, degree=3)
    matrices = gain.mixing_matrices(graphs, sizes, 'size')
    product = np.eye(20)
    for matrix in matrices:
        product = matrix.toarray() @ product  # W_T ... W_1
    expected = np.linalg.matrix_power(product, 200)
    assert np.ptp(expected, axis=0).max() < 1e-12  # every client ends with the same mean
    np.testing.assert_allclose(gain.steady_vector(*matrices), expected[0], atol=1e-10)


def test_a_static_graph_whose_links_fail_is_not_one_matrix():
    graphs = topology.schedule('barabasi_albert', 16, 50, seed=0, static=True, degree=4)
    lossy = topology.drop_links(graphs, 0.5, 0)
    assert len(gain.mixing_matrices(graphs, np.ones(16), 'uniform')) == 1
    matrices = gain.mixing_matrices(lossy, np.ones(16), 'uniform')
    assert len(matrices) == 50
    assert gain.gain_of(*matrices) == pytest.approx(16**0.5, rel=0.15)


@pytest.mark.parametrize(
    ('fail', 'squares'),
    [
        (lambda graphs, seed: topology.drop_links(graphs, 0.98, seed), 1.11),
        (lambda graphs, seed: topology.drop_links(graphs, 0.98, seed, directed=True), 1.5),
        (lambda graphs, seed: topology.drop_receivers(graphs, 0.2, seed), 1.2),
        (lambda graphs, seed: topology.drop_clients(graphs, 0.2, seed), 1.0),
        (lambda graphs, seed: topology.isolate_clients(graphs, 0.2, seed), 1.0),
    ],
    ids=['links', 'links, each direction by itself', 'receivers', 'clients', 'isolated clients'],
)
def test_failures_leave_averages_too_large_for_the_gain(fail, squares):
    """n ||v||^2 of 64 clients on a complete graph, docs/results_init_topology.md."""
    graphs = topology.schedule('complete', 64, 60, seed=0, static=True)
    found = [
        64 / gain.gain_of(*gain.mixing_matrices(fail(graphs, seed), np.ones(64), 'uniform')) ** 2
        for seed in range(5)
    ]
    assert np.mean(found) == pytest.approx(squares, rel=0.05)


def test_disconnected_networks_are_refused():
    graph = nx.disjoint_union(nx.complete_graph(5), nx.complete_graph(3))
    with pytest.raises(SettingError, match='its 8 clients fall into 2 components'):
        gain.gain_of(mixing(graph))
    one_way = nx.DiGraph([(0, 1), (1, 2), (2, 1)])  # 0 is heard and hears nobody
    with pytest.raises(SettingError, match='not connected'):
        gain.gain_of(mixing(one_way))


def test_disjoint_clusters_that_change_are_connected_over_time():
    graphs = topology.schedule('clustered', 12, 6, seed=0, degree=3)
    assert gain.gain_of(*gain.mixing_matrices(graphs, np.ones(12), 'uniform')) > 1


# ------------------------------------------------------------------------------------- estimates


def test_degrees_of_everybody_give_the_exact_gain():
    graphs = schedule_of('barabasi_albert', 80, degree=4)
    degrees = gain.polled_degrees(graphs, 80, seed=0)
    exact = gain.gain_of(*gain.mixing_matrices(graphs, np.ones(80), 'uniform'))
    assert gain.gain_of_degrees(degrees, 80) == pytest.approx(exact, rel=1e-9)


def test_degrees_give_the_gain_of_a_simulated_configuration_model():
    rng = np.random.default_rng(0)
    degrees = 3 + rng.poisson(3, 600)
    degrees[0] += degrees.sum() % 2
    simulated = nx.Graph(nx.configuration_model(degrees.tolist(), seed=1))
    simulated.remove_edges_from(nx.selfloop_edges(simulated))
    exact = gain.gain_of(mixing(simulated))
    assert gain.gain_of_degrees(rng.choice(degrees, 300), 600) == pytest.approx(exact, rel=0.03)


def test_the_family_alone_comes_close():
    graphs = schedule_of('barabasi_albert', 300, degree=4)
    exact = gain.gain_of(*gain.mixing_matrices(graphs, np.ones(300), 'uniform'))
    assert gain.gain_of_family('barabasi_albert', 300, degree=4, seed=7) == pytest.approx(
        exact, rel=0.1
    )
    assert gain.gain_of_family('regular', 64, degree=4) == pytest.approx(8)
    metropolis = gain.gain_of_family('barabasi_albert', 64, degree=4, mixing='metropolis', draws=2)
    assert metropolis == pytest.approx(8)


def test_draws_of_a_family_that_are_not_connected_do_not_count():
    assert gain.gain_of_family('erdos_renyi', 100, degree=5, draws=4) == pytest.approx(10, rel=0.1)
    with pytest.raises(TopologyError, match='clustered of 12 clients is rarely connected, 0 times'):
        gain.gain_of_family('clustered', 12, degree=3, draws=2)


def test_push_sum_goes_along_the_links():
    graphs = topology.schedule('k_random', 12, 1, seed=3, static=True, degree=3)
    heard = np.zeros((12, 12))
    heard[np.arange(12)[:, None], graphs.members[0]] = 1
    values = np.stack([np.ones(12), np.arange(12) == 0], axis=1).astype(float)
    for _ in range(12):
        values = heard / heard.sum(axis=0) @ values  # a sender shares equally
    np.testing.assert_allclose(
        gain.push_sum_size(graphs, 12), values[:, 0] / values[:, 1], rtol=1e-12
    )


def test_push_sum_counts_the_clients():
    graphs = schedule_of('erdos_renyi', 40, degree=6)
    np.testing.assert_allclose(gain.push_sum_size(graphs, 200), 40, rtol=1e-6)
    changing = topology.schedule('regular', 40, 10, seed=0, degree=4)
    np.testing.assert_allclose(gain.push_sum_size(changing, 60), 40, rtol=1e-6)
    with pytest.raises(TopologyError, match=r'after 50 rounds of gossip .* themselves for 1'):
        gain.push_sum_size(schedule_of('ring', 64), 50)
    with pytest.warns(UserWarning, match='not connected'):
        apart = topology.schedule('clustered', 12, 1, seed=0, static=True, degree=3)
    with pytest.raises(SettingError, match='not connected: its 12 clients'):
        gain.push_sum_size(apart, 500)


def test_gain_of_size():
    assert gain.gain_of_size(64) == 8
    np.testing.assert_allclose(gain.gain_of_size(np.array([16, 81]), 0.25), [2, 3])


def test_polls_of_nobody_or_too_many_are_refused():
    graphs = schedule_of('ring', 9)
    with pytest.raises(SettingError, match='10 polled clients of 9: use 1 to 9'):
        gain.polled_degrees(graphs, 10, seed=0)
    with pytest.raises(SettingError, match='ask at least one'):
        gain.gain_of_degrees([], 9)


def test_the_uniform_matrix_of_links_is_that_of_their_schedule():
    """A link that is listed again, the other way round, counts once."""
    graph = topology.schedule('erdos_renyi', 60, 1, seed=0, static=True, degree=6)
    (expected,) = gain.mixing_matrices(graph, np.ones(60), 'uniform')
    links = np.argwhere(np.triu(expected.toarray(), 1)).astype(np.int32)
    found = gain.uniform_matrix(np.concatenate([links, links[:5, ::-1]]), 60)
    np.testing.assert_allclose(found.toarray(), expected.toarray())
