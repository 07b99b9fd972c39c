"""How many rounds methods take on random quadratics, each at the best of its learning rates.

f_i(x) = |A_i x - b_i|^2, as in the appendix of RelaySGD (Vogels et al., NeurIPS 2021), whose
program takes A_i^T (A_i x - b_i), half of their gradient: learnt by `Linear` without a bias under
the task `regression` from the rows of A_i and the entries of b_i, whose loss, a mean over samples,
is f_i / d.

A study of `tables`: `methods` are [{label, method, settings, topology, lr: [least, largest], paper:
{zeta2: rounds}}, ...], of `clients` in `dimension` dimensions, heterogeneities `zeta2`, and `draws`
of each. A method trains at as many `learning_rates`, evenly spaced in logarithms, and on all draws,
together in one program. The rate at which the mean model reaches a suboptimality of `target` first
is the best; none has to within `rounds` rounds.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax import topology
from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree
from dfl_jax.exchange import one_round
from dfl_jax.experiment.run_directory import Row
from dfl_jax.methods import METHODS, make
from dfl_jax.models import Linear, bind
from dfl_jax.tasks import REGRESSION

BLOCK = 50  # rounds between looks at who has arrived


class Quadratics(NamedTuple):
    """The problems of a network, and where their mean is least."""

    clients: Clients  # x [M, d, d] the rows of A_i, y [M, d] b_i, all true samples
    optimum: Array  # x*, [d]
    hessian: Array  # mean of A_i^T A_i, [d, d]

    def suboptimality(self, params: PyTree) -> Array:
        """mean_i f_i(x) - mean_i f_i(x*) of a model's weights x, a kernel [d, 1]; scalar."""
        gap = params['Dense_0']['kernel'][:, 0] - self.optimum
        return gap @ self.hessian @ gap


def quadratics(clients: int, dimension: int, *, zeta2: float, seed: int = 0) -> Quadratics:
    """Problems of M clients in d dimensions; A_i has singular values from 0.5 to 1, |x*| = 1.

    Args:
      clients: M.
      dimension: d.
      zeta2: mean squared norm of the clients' A_i^T (A_i x - b_i) at the optimum, which RelaySGD's
        program calls their gradients.
      seed: of the directions: singular vectors, the clients' own minima, the optimum.

    Raises ValueError for one client with a zeta2: its gradient is zero at its own optimum.
    """
    if clients == 1 and zeta2:
        raise ValueError(f'one client has no gradient at its optimum; use zeta2=0, not {zeta2}')
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(clients, dimension, dimension)))[0] for _ in '12')
    minima, optimum = rng.normal(size=(clients, dimension)), rng.normal(size=dimension)
    return quadratics_of(left, right, minima, optimum, zeta2)


def quadratics_of(
    left: np.ndarray, right: np.ndarray, minima: np.ndarray, optimum: np.ndarray, zeta2: float
) -> Quadratics:
    """`quadratics` from their directions.

    Args:
      left, right: the singular vectors of every A_i, orthogonal [M, d, d].
      minima: where the clients' own minima lie from each other, [M, d].
      optimum: [d], of any length.
    """
    clients, dimension = minima.shape
    a = left * np.linspace(0.5, 1, dimension) @ right  # [M, d, d]
    hessian = np.einsum('mki,mkj->ij', a, a) / clients
    own = np.einsum('mki,mi->mk', a, minima)  # b_i
    centre = np.linalg.solve(hessian, np.einsum('mki,mk->i', a, own) / clients)
    own -= a @ centre  # now the optimum is zero
    gradients = np.einsum('mki,mk->mi', a, own)
    own *= np.sqrt(zeta2 / np.mean(np.sum(gradients**2, axis=1)))
    optimum = optimum / np.linalg.norm(optimum)
    data = a, own + a @ optimum, np.ones((clients, dimension), bool)
    return Quadratics(Clients(*map(jnp.asarray, data)), jnp.asarray(optimum), jnp.asarray(hessian))


def rounds_to_target(study: Row) -> Iterator[tuple[str, float, float, float | None]]:
    """(method, zeta^2, rounds of its best learning rate, the paper's rounds) of every draw."""
    from tqdm import tqdm

    cases = [(each, zeta2) for each in study['methods'] for zeta2 in study['zeta2']]
    for each, zeta2 in tqdm(cases, study['title'], leave=False):
        paper = each['paper'].get(str(zeta2))
        for rounds in fewest_rounds(study, each, zeta2):
            yield each['label'], zeta2, rounds, paper


def fewest_rounds(study: Row, method: Row, zeta2: float) -> list[float]:
    """The rounds of a method at the best of its learning rates, a number a draw.

    Raises ValueError where no learning rate arrives.
    """
    clients, dimension, draws = study['clients'], study['dimension'], study['draws']
    problems = [quadratics(clients, dimension, zeta2=zeta2, seed=seed) for seed in range(draws)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *problems)
    drawn = topology.schedule(method['topology'], clients, 1, seed=0, static=True)
    graph = jax.tree.map(lambda a: jnp.asarray(a[0]), drawn)
    model = bind(Linear(1, use_bias=False), (dimension,), REGRESSION)
    settings = {**method.get('settings', {}), 'batch_size': dimension, 'local_steps': 1}
    if 'members' in METHODS[method['method']].from_run:
        settings['members'] = graph.members.shape[1]
    # The loss of a client is f_i / d, a mean over d samples
    least, largest = method['lr']
    rates = jnp.geomspace(least, largest, study['learning_rates']) * dimension
    start, advance = _programs(lambda lr: make(method['method'], model, lr=lr, **settings), graph)
    states = start(rates, stacked)
    arrived = np.full((draws, len(rates)), np.inf)
    for first in range(0, study['rounds'], BLOCK):
        states, gaps = advance(rates, states, stacked, first)
        reached = np.asarray(gaps) <= study['target']  # [draws, rates, BLOCK]
        when = np.where(reached.any(axis=2), first + 1 + reached.argmax(axis=2), np.inf)
        arrived = np.minimum(arrived, when)
        if np.isfinite(arrived).any(axis=1).all():
            break
    best = arrived.min(axis=1)
    if not np.isfinite(best).all():
        raise ValueError(
            f'{method["label"]} does not reach {study["target"]} at zeta2={zeta2} within '
            f'{study["rounds"]} rounds; raise rounds, or try other lr'
        )
    return best.tolist()


def _programs(
    algorithm_of: Callable[[Array], Algorithm], graph: Graph
) -> tuple[Callable[..., PyTree], Callable[..., tuple[PyTree, Array]]]:
    """(states of all draws and rates, BLOCK rounds of them with the gap after each), compiled."""

    def start(lr: Array, problem: Quadratics) -> PyTree:
        return algorithm_of(lr).init(jax.random.key(0), problem.clients)

    def advance(lr: Array, state: PyTree, problem: Quadratics, first: Array):
        algorithm = algorithm_of(lr)

        def step(state: PyTree, k: Array) -> tuple[PyTree, Array]:
            key = jax.random.fold_in(jax.random.key(1), k)
            state, _ = one_round(algorithm, key, state, k, graph, problem.clients)
            return state, problem.suboptimality(algorithm.consensus(state))

        return lax.scan(step, state, first + jnp.arange(BLOCK))

    all_start = jax.vmap(jax.vmap(start, (0, None)), (None, 0))
    all_advance = jax.vmap(jax.vmap(advance, (0, 0, None, None)), (None, 0, 0, None))
    return jax.jit(all_start), jax.jit(all_advance, donate_argnums=1)
