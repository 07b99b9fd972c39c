"""Random projections of SPARK: inner products survive on average, and what their tables hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from jax.flatten_util import ravel_pytree

from dfl_jax.models import MLP, bind
from dfl_jax.ntk import projection as module
from dfl_jax.ntk.projection import PROJECTIONS, projection

MODEL = bind(MLP(4, (4,)), (4,))  # two layers of the same shape, 20 weights each
LAYER = 20
RANDOM = [kind for kind in PROJECTIONS if kind != 'none']
every_kind = pytest.mark.parametrize('kind', RANDOM)


def matrix(random, table):
    """P [P, k], the weights in the order of `ravel_pytree`."""
    columns = jax.vmap(lambda u: random.lift(table, u))(jnp.eye(random.dimension))
    return jax.vmap(lambda tree: ravel_pytree(tree)[0])(columns).T


# --------------------------------------------------------------------------------- E[P P^T] = I

KEYS = 4000
LIMIT = -scipy.stats.norm.ppf(1e-6 / 2 / 5)  # five z-tests a kind, wrong with probability 1e-6


def pairs():
    """Vectors u and v [5, 40]: equal, correlated, of outer products, in different layers."""
    rng = np.random.default_rng(0)
    u, w = rng.normal(size=(2, 2 * LAYER))
    rows, columns = rng.normal(size=(2, 2, 5)), rng.normal(size=(2, 2, 4))
    outer, other = np.einsum('plr,plc->plrc', rows, columns).reshape(2, -1)
    first, second = np.kron(np.eye(2), u[None, :LAYER])  # what shared matrices would correlate
    firsts, seconds = [u, u, outer, outer, first], [u, u + 0.5 * w, outer, outer + other, second]
    return np.array(firsts), np.array(seconds)


def z_scores(products, expected):
    """Holds the means over the first axis against their standard errors."""
    products = np.asarray(products, np.float64)
    return (products.mean(axis=0) - expected) / (products.std(axis=0) / np.sqrt(len(products)))


@every_kind
def test_inner_products_are_unbiased(kind):
    random = projection(kind, MODEL.shapes, 23)
    u, v = pairs()

    @jax.jit
    def products(keys):
        def of_key(key):
            p = matrix(random, random.draw(key))
            return jnp.sum((u @ p) * (v @ p), axis=1)

        return jax.lax.map(of_key, keys, batch_size=100)

    found = products(jax.random.split(jax.random.key(0), KEYS))
    expected = np.sum(u * v, axis=1)
    assert expected[-1] == 0 and (expected[:-1] > 1).all()
    assert np.abs(z_scores(found, expected)).max() < LIMIT
    # and the test would notice: a P of 1.1 times the length, or one P_l for both layers
    assert np.abs(z_scores(1.1**2 * found, expected))[:-1].min() > LIMIT
    assert np.abs(z_scores(found, u[-1] @ u[-1])[-1]) > LIMIT


def test_gaussian_entries_are_normal_of_variance_one_over_k():
    k, keys = 30, 100
    random = projection('gaussian', MODEL.shapes, k)
    draws = jax.jit(jax.vmap(lambda key: matrix(random, random.draw(key))))
    entries = np.asarray(draws(jax.random.split(jax.random.key(1), keys)), np.float64)
    assert entries.shape == (keys, MODEL.size, k)
    assert abs(entries.mean()) < 5 / np.sqrt(k * entries.size)
    assert k * entries.var() == pytest.approx(1, abs=5 * np.sqrt(2 / entries.size))
    fits = lambda sample: scipy.stats.kstest(sample.ravel(), 'norm').pvalue  # noqa: E731
    normal = np.sqrt(k) * entries
    assert fits(normal) > 1e-6
    assert fits(1.05 * normal) < 1e-6 and fits(normal + 0.05) < 1e-6


# ----------------------------------------------------------------------------- tables and layers

TWO, THREE = (bind(MLP(4, hidden), (4,)) for hidden in ((4,), (4, 4)))


@pytest.mark.parametrize('k', [50, 120])
def test_a_matrix_drawn_again_equals_the_stored_one(k, monkeypatch):
    """In blocks of 50 columns, of which the last may be a part; up to the rounding of a fusion."""
    model = bind(MLP(4, (9,)), (9,))
    random, blocks = projection('gaussian', model.shapes, k), -(-k // 50)
    u = jax.random.normal(jax.random.key(4), (k,))

    def used():
        """What is kept of P, P u, and all of its columns."""

        def use(table):
            columns = jax.lax.map(lambda b: random.columns(table, b), jnp.arange(blocks))
            flat = jax.vmap(jax.vmap(lambda tree: ravel_pytree(tree)[0]))(columns)
            return ravel_pytree(random.lift(table, u))[0], flat.reshape(-1, model.size).T

        table = random.draw(jax.random.key(3))
        return table, *map(np.asarray, jax.jit(use)(table))

    stored, lifted, p = used()
    monkeypatch.setattr(module, 'STORED', 0)
    key_alone, lifted_again, p_again = used()
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(stored)) >= k * model.size
    assert all(key.shape == () for key in jax.tree.leaves(key_alone))
    np.testing.assert_allclose(p_again, p, rtol=1e-6)
    np.testing.assert_allclose(lifted_again, lifted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(p[:, :k] @ u, lifted, rtol=1e-4, atol=1e-5)
    assert p.shape == (model.size, 50 * blocks) and p[:, :k].all() and not p[:, k:].any()


@every_kind
def test_a_layer_s_matrix_depends_on_key_and_name_alone(kind):
    def of_layers(model, seeds):
        random = projection(kind, model.shapes, 23)

        @jax.jit
        def columns(key):
            trees = jax.vmap(random.lift, (None, 0))(random.draw(key), jnp.eye(23))
            return {name: ravel_pytree(layer)[0] for name, layer in trees.items()}

        return [jax.device_get(columns(jax.random.key(seed))) for seed in seeds]

    (two, other), (three,) = of_layers(TWO, (0, 1)), of_layers(THREE, (0,))
    for name in ('Dense_0', 'Dense_1'):
        np.testing.assert_array_equal(two[name], three[name])
        assert (two[name] != other[name]).mean() > 0.03
    matrices = [*three.values(), *other.values()]
    assert all(p.shape == (23 * LAYER,) and p.any() for p in matrices)
    for i, p in enumerate(matrices):  # of equal shape, and yet no two of them alike
        for q in matrices[:i]:
            assert abs(p @ q) < 0.5 * np.linalg.norm(p) * np.linalg.norm(q)


@pytest.mark.parametrize('k', [20, 23])
def test_the_factors_of_low_rank_multiply_to_the_step(k):
    model = bind(MLP(3, (8,)), (6,))
    random = projection('low_rank', model.shapes, k)
    u = jax.random.normal(jax.random.key(1), (k,))

    @jax.jit
    def of_key(key):
        table = random.draw(key)
        factors = {name: (of.left, of.weights(u)) for name, of in table.items()}
        return random.lift(table, u), factors

    step, factors = of_key(jax.random.key(0))
    rank = -(-k // 10)
    for name, layer in step.items():
        a, v = np.asarray(factors[name][0]), np.asarray(factors[name][1])
        assert a.shape[1] == v.shape[0] == rank and v.shape[1] == len(layer['bias'])
        layer = jax.tree.map(np.asarray, layer)
        weights = np.concatenate([layer['bias'][None, :], layer['kernel']])
        np.testing.assert_allclose(a @ v, weights, rtol=1e-5, atol=1e-6)
        assert np.linalg.matrix_rank(weights) == min(rank, *weights.shape)


def test_what_each_kind_offers():
    given = {kind: projection(kind, MODEL.shapes, 5) for kind in RANDOM}
    assert [kind for kind, random in given.items() if random.factored] == ['low_rank']
    assert [kind for kind, random in given.items() if random.columns] == ['gaussian']
    assert all((random.kind, random.dimension) == (kind, 5) for kind, random in given.items())
    wide = bind(MLP(10, (100,)), (784,))
    assert projection('low_rank', wide.shapes).dimension == 1000


def test_none_is_the_identity():
    random = projection('none', MODEL.shapes)
    assert random.dimension == MODEL.size
    table = random.draw(jax.random.key(0))
    assert not jax.tree.leaves(table)
    tree = jax.tree.map(lambda leaf: np.random.default_rng(0).normal(size=leaf.shape), MODEL.shapes)
    lifted = jax.jit(lambda tree: random.lift(table, ravel_pytree(tree)[0]))(tree)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.float32(b)), lifted, tree)


@pytest.mark.parametrize(
    ('kind', 'k', 'message'),
    [
        ('gaussian', 0, 'to 0 dimensions of a network with 40 weights; choose from 1 to 40'),
        ('sparse_sign', -3, 'to -3 dimensions of a network with 40 weights; choose from 1 to 40'),
        ('sparse_sign', 41, 'to 41 dimensions of a network with 40 weights; choose from 1 to 40'),
        ('low_rank', None, 'to 1000 dimensions of a network with 40 weights'),
        ('dense', 5, f"unknown projection 'dense'; choose one of {', '.join(PROJECTIONS)}"),
        ('none', 40, 'to 40 dimensions by projection=none; leave one of them out'),
    ],
)
def test_what_is_refused(kind, k, message):
    with pytest.raises(ValueError, match=message) as caught:
        projection(kind, MODEL.shapes, k)
    assert '\n' not in str(caught.value)
