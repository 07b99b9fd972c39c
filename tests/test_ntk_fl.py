"""NTK-FL against the plain NumPy reference, in float64."""

import jax
import numpy as np
import pytest
import reference
from helpers import compiled, drawn_samples, flipping, padded, round_of, widen

from dfl_jax import Graph, topology
from dfl_jax.exchange import one_round
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind

CLIENTS, FEATURES, CLASSES, COHORT = 6, 5, 3, 3
TIMESTEPS = (3, 10, 25)


def network():
    """Six clients of different sizes, as the reference takes them and padded."""
    return drawn_samples(), padded(drawn_samples())


def lossy_cohorts() -> Graph:
    """Four rounds: one loses a member, in the next nobody answers."""
    graphs = topology.cohorts(CLIENTS, 4, COHORT, seed=1)
    graphs.mask[1, 0, 1] = False
    graphs.mask[2], graphs.active[2] = False, False
    return graphs


def of_server(params):
    layers = [f'Dense_{i}' for i in range(len(params))]
    return [(np.asarray(params[n]['kernel']), np.asarray(params[n]['bias'])) for n in layers]


@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'selection': 'linearized'},
        {'loss': 'mse', 'evolution': 'eigh'},
        {'loss': 'mse', 'evolution': 'eigh', 'selection': 'linearized'},
        {'hidden': ()},
        {'flipped': 2.0},
    ],
    ids=str,
)
def test_three_rounds_equal_the_reference_and_an_empty_one_changes_nothing(settings, x64):
    (data, clients), graphs, lr, lr_decay = network(), lossy_cohorts(), 0.05, 0.2
    options = {'loss': 'cross_entropy', 'evolution': 'euler', 'selection': 'network'} | settings
    model = bind(MLP(CLASSES, options.pop('hidden', (8,))), (FEATURES,))
    options['timesteps'] = TIMESTEPS
    attack, factor = flipping(options.pop('flipped', None))
    method = compiled(
        'ntk_fl',
        model,
        cohort=COHORT,
        lr=lr,
        lr_decay=lr_decay,
        search='all',
        attack=attack,
        **options,
    )
    server = CLIENTS  # which is honest
    factors = [factor(server, j) for j in range(CLIENTS)]
    state = widen(method.init(jax.random.key(0), clients))
    params = of_server(state.params)
    for r, (members, present) in enumerate(zip(graphs.members, graphs.mask, strict=True)):
        before = state.params
        state, info = method.step(jax.random.key(r), state, r, round_of(graphs, r), clients)
        cohort = [int(j) for j in members[present]]
        if not cohort:
            for old, new in zip(*map(jax.tree.leaves, (before, state.params)), strict=True):
                np.testing.assert_array_equal(old, new)
            assert info.sent and not any(sent.messages.any() for sent in info.sent.values())
            continue
        params, chosen, loss = reference.ntk_fl_round(
            params, data, cohort, factors, lr=lr * np.exp(-lr_decay * r), **options
        )
        ours, theirs = reference.flatten(of_server(state.params)), reference.flatten(params)
        assert np.linalg.norm(ours - theirs) <= 1e-10 * np.linalg.norm(theirs)
        assert info.metrics['timestep'] == chosen
        np.testing.assert_allclose(info.loss, [loss] * CLIENTS, rtol=1e-10)


def test_all_clients_predict_what_the_server_predicts(x64):
    _, clients = network()
    model = bind(MLP(CLASSES, (8,)), (FEATURES,))
    algorithm = make('ntk_fl', model, cohort=COHORT, timesteps=TIMESTEPS)
    state = algorithm.init(jax.random.key(0), clients)
    x = np.random.default_rng(0).normal(size=(9, FEATURES))
    logits = algorithm.predict(state, x)
    expected = reference.mlp(of_server(algorithm.consensus(state)), x)
    np.testing.assert_allclose(logits['consensus'], expected, rtol=1e-6, atol=1e-7)
    assert logits['client'].shape == (CLIENTS, 9, CLASSES)
    assert all((one == logits['consensus']).all() for one in logits['client'])


def test_another_graph_is_refused():
    _, clients = network()
    model = bind(MLP(CLASSES, (8,)), (FEATURES,))
    algorithm = make('ntk_fl', model, cohort=COHORT, timesteps=TIMESTEPS)
    state = algorithm.init(jax.random.key(0), clients)
    for graphs, shape in (
        (topology.cohorts(CLIENTS, 1, 2, seed=0), r'\(1, 2\)'),
        (topology.schedule('ring', CLIENTS, 1, seed=0), r'\(6, 3\)'),
    ):
        with pytest.raises(ValueError, match=rf'cohort=3 .* got {shape}; .* topology\.cohorts'):
            one_round(algorithm, jax.random.key(0), state, 0, round_of(graphs, 0), clients)
