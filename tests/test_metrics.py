"""Consensus, spread and scores against plain NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax.metrics import consensus_model, dispersion, update_norms
from dfl_jax.tasks import CLASSIFICATION

CLIENTS = 5


@pytest.fixture
def params():
    rng = np.random.default_rng(0)
    shapes = {'a': {'kernel': (3, 4), 'bias': (4,)}, 'b': ()}
    return jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=(CLIENTS, *s)), jnp.float32),
        shapes,
        is_leaf=lambda s: isinstance(s, tuple),
    )


def flat(params):
    """[M, P]"""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


@pytest.mark.parametrize('weights', [None, [1, 2, 3, 0, 10], [0.1, 0.1, 0.1, 0.2, 0.5]])
def test_consensus_model(params, weights):
    given = None if weights is None else jnp.asarray(weights)
    mean = consensus_model(params, given)
    assert jax.tree.structure(mean) == jax.tree.structure(params)
    assert all(
        a.shape == b.shape[1:] and a.dtype == b.dtype
        for a, b in zip(jax.tree.leaves(mean), jax.tree.leaves(params), strict=True)
    )
    expected = np.average(flat(params), axis=0, weights=weights)
    ours = flat(jax.tree.map(lambda leaf: leaf[None], mean))[0]
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_model_spread(params):
    """NTK-DFL Eq. (12), one parameter after the other."""
    w = flat(params)
    deviation = 0.0
    for p in range(w.shape[1]):
        deviation += np.sqrt(sum((w[i, p] - w[:, p].mean()) ** 2 for i in range(CLIENTS)))
    distance = np.sqrt(np.mean(np.sum((w - w.mean(axis=0)) ** 2, axis=1)))
    spread = jax.jit(dispersion)(params)
    assert float(spread['model_deviation']) == pytest.approx(deviation / w.shape[1], rel=1e-5)
    assert float(spread['consensus_distance']) == pytest.approx(distance, rel=1e-5)
    assert float(spread['sigma_an']) == pytest.approx(w.std(axis=0).mean(), rel=1e-5)
    assert float(spread['sigma_ap']) == pytest.approx(w.std(axis=1).mean(), rel=1e-5)


def test_no_spread_in_consensus(params):
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), params)
    spread = dispersion(same)
    for name in ('model_deviation', 'consensus_distance', 'sigma_an'):
        assert float(spread[name]) == pytest.approx(0, abs=1e-6)


def test_update_norms(params):
    """Norms and angles of the active clients, one at a time; one of them does not move."""
    rng = np.random.default_rng(0)

    def moved(tree):
        still = np.arange(CLIENTS) == 0
        return jax.tree.map(
            lambda leaf: (
                leaf
                + jnp.asarray(
                    np.where(
                        still.reshape(-1, *[1] * (leaf.ndim - 1)), 0, rng.normal(size=leaf.shape)
                    ),
                    leaf.dtype,
                )
            ),
            tree,
        )

    trained = moved(params)
    after = moved(trained)
    active = np.arange(CLIENTS) != 1
    moves = (params, trained), (trained, after)
    found = jax.jit(partial(update_norms, first=('a', 'kernel')))(*moves, jnp.asarray(active))
    first = [
        np.asarray(jax.tree.leaves(tree)[1]).reshape(CLIENTS, -1)
        for tree in (params, trained, after)
    ]
    for part, (x, z, y) in {
        'change': map(flat, (params, trained, after)),
        'first_layer': first,
    }.items():
        for name, moved in (('training', z - x), ('aggregation', y - z), ('total', y - x)):
            expected = np.linalg.norm(moved, axis=1)[active].mean()
            assert float(found[f'{part}_{name}_mean']) == pytest.approx(expected, rel=1e-5)
        lengths = np.linalg.norm(z - x, axis=1) * np.linalg.norm(y - z, axis=1)
        cosines = np.sum((z - x) * (y - z), axis=1) / np.where(lengths > 0, lengths, 1)
        assert float(found[f'{part}_cosine_mean']) == pytest.approx(
            cosines[active].mean(), abs=1e-5
        )
    nobody = update_norms(*moves, jnp.zeros(CLIENTS, bool), ('a', 'kernel'))
    assert all(float(value) == 0 for value in nobody.values())


def test_correct_and_loss():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(9, 3)).astype(np.float32)
    y, mask = rng.integers(3, size=9), np.arange(9) < 7
    logits[7:] = np.nan  # what is masked counts for nothing
    hits, loss = CLASSIFICATION.summed(jnp.asarray(logits), jnp.asarray(y), jnp.asarray(mask))
    f = logits[:7].astype(np.float64)
    assert int(hits) == np.sum(f.argmax(axis=1) == y[:7])
    expected = np.sum(np.log(np.exp(f).sum(axis=1)) - f[np.arange(7), y[:7]])
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_dispersion_has_one_value_in_both_forms(x64, monkeypatch):
    """A loop over clients on a CPU, one reduction elsewhere."""
    params = {
        'w': jax.random.normal(jax.random.key(0), (7, 4, 3)),
        'b': jnp.arange(14.0).reshape(7, 2),
    }

    def loops(platform):
        traced = jax.jit(dispersion).trace(params)
        return traced.lower(lowering_platforms=(platform,)).as_text().count('stablehlo.while')

    assert (loops('cpu'), loops('cuda'), loops('tpu')) == (1, 0, 0)
    one_by_one = dispersion(params)
    monkeypatch.setattr(jax.lax, 'platform_dependent', lambda share, cpu, default: default(share))
    for name, value in dispersion(params).items():
        np.testing.assert_allclose(value, one_by_one[name], rtol=1e-13)
