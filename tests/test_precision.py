"""Every product of an NTK round asks for the precision of the run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dfl_jax import Clients, topology
from dfl_jax.base import Graph
from dfl_jax.exchange import one_round
from dfl_jax.methods import make
from dfl_jax.models import MLP, MODELS, bind
from dfl_jax.ntk import at_precision, kernel_fn
from dfl_jax.ntk.precision import gram

CLIENTS, CLASSES, COHORT = 6, 3, 3
PRODUCTS = ('dot_general', 'conv_general_dilated')
LOW = {None, lax.Precision.DEFAULT}
SMALL = {'timesteps': (3, 10)}
PROJECTED = {**SMALL, 'projection_dim': 12, 'projection_refresh': 'round'}
ROUNDS = [
    ('ntk_dfl', {}),
    ('ntk_dfl', {'evolution': 'euler', 'selection': 'linearized'}),
    ('ntk_dfl', {'loss': 'mse', 'evolution': 'eigh'}),
    ('ntk_dfl', {'kernel': 'output_scan'}),
    ('ntk_dfl', {'jacobian_weights': 'neighbours'}),
    ('ntk_dfl', {'sparsity': 0.5, 'bits': 8}),
    ('ntk_dfl', {'batches': 2, 'subsampling': 2}),
    ('ntk_dfl', {'by_cluster': True}),
    ('ntk_dfl', {'chunk': 3}),
    ('ntk_fl', {'cohort': COHORT}),
    *(('spark', {'projection': kind}) for kind in ('low_rank', 'sparse_sign', 'gaussian')),
    ('spark', {'projection': 'none', 'projection_dim': None}),
    ('spark', {'exchange': 'int8'}),
    ('spark', {'kernel_form': 'trace'}),
    ('spark', {'step_form': 'exact'}),
]


def precisions(jaxpr, found=None):
    """The precisions of all products of a program, of both operands each, by the primitive."""
    found = set() if found is None else found
    for equation in jaxpr.eqns:
        if equation.primitive.name in PRODUCTS:
            asked = equation.params['precision']
            pair = asked if isinstance(asked, tuple) else (asked, asked)
            short = equation.invars[0].aval.dtype == jnp.float16
            name = equation.primitive.name + ' of float16' * short
            found |= {(name, each) for each in pair}
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, 'eqns')
        ):
            inner = getattr(value, 'jaxpr', value)
            if hasattr(inner, 'eqns'):
                precisions(inner, found)
    return found


def of_round(name, model, **settings):
    """The precisions of all products of one round."""
    shape = (CLIENTS, 4)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(*shape, *model.input_shape)), jnp.float32)
    clients = Clients(x, jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool))
    if name == 'ntk_fl':
        graphs = topology.cohorts(CLIENTS, 1, COHORT, seed=0)
    else:
        family = 'clustered' if settings.get('by_cluster') else 'ring'
        graphs = topology.schedule(family, CLIENTS, 1, seed=0, degree=2)
        if settings.get('by_cluster'):
            graphs = topology.by_cluster(graphs)
    algorithm = make(name, model, **(PROJECTED if name == 'spark' else SMALL) | settings)
    key = jax.random.key(0)
    state = jax.eval_shape(algorithm.init, key, clients)
    graph = Graph(*(None if a is None else jnp.asarray(a[0]) for a in graphs))
    step = functools.partial(one_round, algorithm)
    return precisions(jax.make_jaxpr(step)(key, state, 0, graph, clients).jaxpr)


@pytest.mark.parametrize(('name', 'settings'), ROUNDS, ids=str)
def test_all_products_of_a_round_ask_for_the_highest(name, settings):
    found = of_round(name, bind(MLP(CLASSES, (8,)), (5,)), **settings)
    assert found == {('dot_general', lax.Precision.HIGHEST)}


@pytest.mark.parametrize('name', ['ntk_dfl', 'ntk_fl', 'spark'])
def test_convolutions_do_too(name):
    settings = {'cohort': COHORT} if name == 'ntk_fl' else {}
    found = of_round(name, bind(MODELS['cnn'](CLASSES), (8, 8, 1)), **settings)
    # Of layers and kernels: both multiply patches, which are copied at any precision.
    assert found == {('dot_general', lax.Precision.HIGHEST)}


@pytest.mark.parametrize(
    ('precision', 'asked'), [('high', lax.Precision.HIGH), ('default', lax.Precision.DEFAULT)]
)
@pytest.mark.parametrize('name', ['ntk_dfl', 'ntk_fl', 'spark'])
def test_a_run_may_ask_for_less(name, precision, asked):
    settings = {'cohort': COHORT} if name == 'ntk_fl' else {}
    model = bind(MLP(CLASSES, (8,)), (5,))
    found = {each for _, each in of_round(name, model, precision=precision, **settings)}
    assert asked in found and found <= {asked, lax.Precision.HIGHEST}  # averages never do
    if name == 'ntk_fl':  # which has none
        assert found == {asked}


@pytest.mark.parametrize('name', ['ntk_dfl', 'ntk_fl', 'spark'])
def test_a_kernel_in_float16_leaves_all_else_at_the_highest(name):
    settings = {'cohort': COHORT} if name == 'ntk_fl' else {}
    if name == 'spark':  # whose full kernel is never formed
        settings['kernel_form'] = 'trace'
    model = bind(MLP(CLASSES, (8,)), (5,))
    found = of_round(name, model, precision='float16_kernel', **settings)
    assert {asked for of, asked in found if of != 'dot_general of float16'} == {
        lax.Precision.HIGHEST
    }
    assert ('dot_general of float16', lax.Precision.DEFAULT) in found


def test_a_kernel_that_is_not_formed_cannot_be_in_float16():
    model = bind(MLP(CLASSES, (8,)), (5,))
    with pytest.raises(ValueError, match='the full kernel is not formed; use kernel_form=trace'):
        make('spark', model, precision='float16_kernel', projection_dim=12)
    with pytest.raises(ValueError, match='eigh factorizes it; use rkc, sampled or euler'):
        make('ntk_dfl', model, precision='float16_kernel', loss='mse', evolution='eigh')


def test_a_kernel_by_itself_asks_for_the_highest():
    """And under a precision for that one, whatever a caller has traced before."""
    model = bind(MLP(CLASSES, (8,)), (5,))
    params, x = model.init(jax.random.key(0)), jnp.ones((4, 5))
    for precision, asked in ((None, 'HIGHEST'), ('high', 'HIGH'), (None, 'HIGHEST')):
        kernel = kernel_fn(model)
        program = kernel if precision is None else at_precision(precision, kernel)
        found = {each for _, each in precisions(jax.make_jaxpr(program)(params, x).jaxpr)}
        assert lax.Precision[asked] in found and len(found - LOW) == 1


@pytest.mark.parametrize('name', ['ntk_dfl', 'ntk_fl', 'spark'])
def test_another_precision_is_refused(name):
    settings = {'projection_dim': 12} if name == 'spark' else {}
    with pytest.raises(ValueError, match="unknown precision 'tf32'; choose one of highest, high"):
        make(name, bind(MLP(CLASSES, (8,)), (5,)), precision='tf32', **settings)


@pytest.mark.parametrize('samples', [1, 5, 6, 7, 13, 40])
def test_a_gram_matrix_is_the_product_of_all_rows(samples):
    """Whatever is left for the last strip."""
    rows = np.random.default_rng(samples).normal(size=(samples, 3)).astype(np.float32)
    found = np.asarray(gram(jnp.asarray(rows)))
    np.testing.assert_allclose(found, rows @ rows.T, rtol=1e-5, atol=1e-6)
