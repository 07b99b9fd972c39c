"""Gossip without learning against its closed-form variances."""

import jax
import networkx as nx
import numpy as np
import pytest
import reference
import scipy.sparse
import scipy.stats

from dfl_jax import topology
from dfl_jax.gossip import gain
from dfl_jax.papers import untrained_gossip as numerical_model


@pytest.mark.parametrize('graph', [nx.star_graph(6), nx.cycle_graph(9)], ids=['star', 'ring'])
def test_deviations_follow_their_closed_form(graph):
    """20,000 parameters: the standard error of a deviation is half a percent."""
    transition, _ = reference.steady_vector(nx.to_numpy_array(graph))
    options = {'rounds': 12, 'sigma_init': 2.0, 'sigma_noise': 0.3}
    found = numerical_model.simulate(
        jax.random.key(0), scipy.sparse.csr_array(transition.T), parameters=20_000, **options
    )
    squared_mean_is_below = 0.9  # E std <= sqrt(E var), by at most 10 % over seven nodes
    nodes, parameters = reference.numerical_model_deviations(transition, **options)
    np.testing.assert_allclose(found.among_parameters, parameters, rtol=0.03)
    assert (found.among_nodes <= 1.02 * nodes).all()
    assert (found.among_nodes >= squared_mean_is_below * nodes).all()


@pytest.mark.parametrize('family', ['complete', 'erdos_renyi', 'barabasi_albert'])
def test_weights_shrink_by_the_norm_of_the_steady_vector(family):
    """Dense and sparse products; the standard error is 1.6 %."""
    graphs = topology.schedule(family, 200, 1, seed=0, static=True, degree=6)
    (matrix,) = gain.mixing_matrices(graphs, np.ones(200), 'uniform')
    found = numerical_model.simulate(jax.random.key(1), matrix, parameters=2000, rounds=40)
    assert found.among_parameters[-1] * gain.gain_of(matrix) == pytest.approx(1, abs=0.05)
    assert found.among_nodes[-1] < 1e-4


@pytest.mark.parametrize('nodes', [24, 256], ids=['dense', 'sparse'])
@pytest.mark.parametrize('family', ['erdos_renyi', 'regular'])
def test_what_nodes_agree_on_does_not_round_away_a_small_noise(family, nodes):
    """Numbers of order 1, a noise of 1e-8: after 100 rounds nothing but the noise is left."""
    graphs = topology.schedule(family, nodes, 1, seed=0, static=True, degree=6)
    (matrix,) = gain.mixing_matrices(graphs, np.ones(nodes), 'uniform')
    options = {'rounds': 100, 'sigma_noise': 1e-8}
    found = numerical_model.simulate(jax.random.key(0), matrix, parameters=500, **options)
    # Of a start at zero: in float64 the square of the noise is lost beside that of the start.
    expected, _ = reference.numerical_model_deviations(matrix.T.toarray(), sigma_init=0, **options)
    assert found.among_nodes[-1] == pytest.approx(expected[-1], rel=0.05)
    silent = numerical_model.simulate(jax.random.key(0), matrix, parameters=20, rounds=200)
    assert silent.among_nodes[-1] < 1e-12
    shrunk = 1 / gain.gain_of(matrix)
    assert silent.among_parameters[-1] == pytest.approx(shrunk, rel=0.5)


def test_stabilisation_is_the_round_from_which_nothing_falls():
    curve = np.concatenate([2.0 ** -np.arange(10), np.full(40, 2.0**-10)])
    assert numerical_model.stabilisation(curve) == 10
    assert numerical_model.stabilisation(np.ones(30)) == 0
    with pytest.raises(ValueError, match='not stable after 29 rounds'):
        numerical_model.stabilisation(0.9 ** np.arange(30))


def test_bad_settings_are_refused():
    matrix = scipy.sparse.eye_array(3)
    with pytest.raises(ValueError, match='sigma_noise=-1'):
        numerical_model.simulate(
            jax.random.key(0), matrix, parameters=2, rounds=3, sigma_noise=-1.0
        )
    with pytest.raises(ValueError, match='rounds=0'):
        numerical_model.simulate(jax.random.key(0), matrix, parameters=2, rounds=0)
    with pytest.raises(ValueError, match='row 0 sums to 2'):
        numerical_model.simulate(jax.random.key(0), 2 * matrix, parameters=2, rounds=3)


def test_blocks_of_nodes_draw_apart_and_alike_every_time(monkeypatch):
    graphs = topology.schedule('regular', 64, 1, seed=0, static=True, degree=6)
    (matrix,) = gain.mixing_matrices(graphs, np.ones(64), 'uniform')
    monkeypatch.setattr(numerical_model, 'BLOCK', 7 * 4000)  # ten blocks, the last of one node
    options = {'rounds': 30, 'sigma_init': 1.0, 'sigma_noise': 1e-3}
    found, again = (
        numerical_model.simulate(jax.random.key(0), matrix, parameters=4000, **options)
        for _ in range(2)
    )
    nodes, parameters = reference.numerical_model_deviations(matrix.T.toarray(), **options)
    np.testing.assert_allclose(found.among_parameters, parameters, rtol=0.03)
    assert (found.among_nodes <= 1.02 * nodes).all()
    assert (found.among_nodes >= 0.9 * nodes).all()
    assert (again.among_nodes == found.among_nodes).all(), 'the threads share a stream'


def test_normal_numbers_are_normal_and_independent():
    stream = np.random.default_rng(0)
    drawn = numerical_model.normal(stream, (3, 33_333))  # an odd number of them
    assert drawn.shape == (3, 33_333) and drawn.dtype == np.float32
    values = drawn.ravel()
    assert scipy.stats.kstest(values, 'norm').pvalue > 0.01
    # The two of a pair have radius and angle in common, and are half of all apart.
    first, second = values[:49_999], values[50_000:]
    for one, other in ((first, second), (first**2, second**2)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 3 / np.sqrt(len(one))
    assert numerical_model.normal(stream, (2, 0)).shape == (2, 0)
    extremes = numerical_model.normal(np.random.default_rng(1), (2**22,))
    assert np.isfinite(extremes).all() and 4.5 < abs(extremes).max() < 5.8
