"""How many rounds methods take on random quadratics: the appendix of RelaySGD.

f_i(x) = |A_i x - b_i|^2 (Vogels et al., NeurIPS 2021), learnt by `Linear` without a bias under the
task `regression` from the rows of A_i and the entries of b_i: its loss, a mean over samples, is
f_i / d. The authors' program takes A_i^T (A_i x - b_i), half of the gradient of f_i.

A study of `tables` on the problem that the authors' program draws, of `clients` in `dimension`
dimensions: `methods` are [{label, method, settings, topology, rounds, rates, rests, paper}, ...].
`rates` and `paper` are the learning rate of A_i^T (A_i x - b_i) and the published rounds, by
zeta^2; `rounds` are trained. `arrival` counts them, or `rest` where `rests`.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax import topology
from dfl_jax.base import Array, Clients, PyTree
from dfl_jax.exchange import one_round
from dfl_jax.experiment.run_directory import Row
from dfl_jax.methods import METHODS, make
from dfl_jax.models import Linear, bind
from dfl_jax.tasks import REGRESSION

TARGET, FLAT = 1e-6, 1e-8  # errors
LOOKS = 1000  # of the authors' program at the error, evenly spaced in logarithms
LAST, LAST_AT_REST = 10_000, 70_000  # round in which it would look


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
    return _assembled(left, right, minima, optimum, zeta2)


def as_the_authors_draw(clients: int, dimension: int, zeta2: float, seed: int = 0) -> Quadratics:
    """Such problems as RelaySGD's program draws them, with PyTorch's generator on a CPU."""
    rng = np.random.RandomState(seed)
    a, minima, optimum = (
        _torch_normal(rng, *shape)
        for shape in ((clients, dimension, dimension), (clients, dimension), (dimension,))
    )
    left, _, right = np.linalg.svd(a)
    return _assembled(left, right, minima, optimum, zeta2)


def _assembled(
    left: np.ndarray, right: np.ndarray, minima: np.ndarray, optimum: np.ndarray, zeta2: float
) -> Quadratics:
    """left, right: singular vectors of every A_i [M, d, d]; minima: where the clients' own lie from
    each other, [M, d]; optimum: [d], of any length."""
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


def _torch_normal(rng: np.random.RandomState, *shape: int) -> np.ndarray:
    """What torch.randn draws in double precision, by Box and Muller: 16 numbers and more in blocks
    of eight radii and eight angles, fewer in pairs of an angle and a radius."""
    words = rng.randint(0, 2**32, size=(np.prod(shape), 2), dtype=np.uint64)
    uniform = (words @ np.uint64([2**32, 1]) & np.uint64(2**53 - 1)) * 2.0**-53
    if len(uniform) < 16:
        angle, radius = uniform.reshape(-1, 2).T[:, :, None]
    else:
        radius, angle = uniform.reshape(-1, 2, 8).transpose(1, 0, 2)
    length, angle = np.sqrt(-2 * np.log1p(-radius)), 2 * np.pi * angle
    return np.stack([length * np.cos(angle), length * np.sin(angle)], 1).reshape(shape)


def rounds_to_target(study: Row) -> Iterator[tuple[str, float, float, float]]:
    """(method, zeta^2, its rounds, the paper's) of every case. Raises ValueError where a method
    does not get there."""
    from tqdm import tqdm

    cases = [(each, zeta2) for each in study['methods'] for zeta2 in each['rates']]
    for each, zeta2 in tqdm(cases, study['title'], leave=False):
        with jax.enable_x64(True):
            gaps = suboptimalities(study, each, zeta2)
        rounds = rest(gaps) if each.get('rests') else arrival(gaps)
        if rounds is None:
            raise ValueError(
                f'{each["label"]} does not reach {TARGET} at zeta2={zeta2} within '
                f'{each["rounds"]} rounds; raise them'
            )
        yield each['label'], float(zeta2), rounds, each['paper'][zeta2]


def suboptimalities(study: Row, method: Row, zeta2: str) -> np.ndarray:
    """Of the mean model after each round, [T]."""
    problem = as_the_authors_draw(study['clients'], study['dimension'], float(zeta2))
    schedule = topology.schedule(method['topology'], study['clients'], 1, seed=0, static=True)
    graph = jax.tree.map(lambda a: jnp.asarray(a[0]), schedule)
    settings = method.get('settings', {}) | {'batch_size': study['dimension'], 'local_steps': 1}
    if 'members' in METHODS[method['method']].from_run:
        settings['members'] = graph.members.shape[1]
    # A client's gradient is 2 / d of A_i^T (A_i x - b_i)
    lr = method['rates'][zeta2] * study['dimension'] / 2
    network = bind(Linear(1, use_bias=False), (study['dimension'],), REGRESSION)
    algorithm = make(method['method'], network, lr=lr, **settings)

    def step(state: PyTree, k: Array) -> tuple[PyTree, Array]:
        key = jax.random.fold_in(jax.random.key(1), k)
        state, _ = one_round(algorithm, key, state, k, graph, problem.clients)
        return state, problem.suboptimality(algorithm.consensus(state))

    doubled = functools.partial(jnp.asarray, dtype=float)
    start = jax.tree.map(
        lambda a: doubled(a) if jnp.issubdtype(a.dtype, jnp.floating) else a,
        algorithm.init(jax.random.key(0), problem.clients),
    )
    trained = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(method['rounds'])))
    return np.asarray(trained(start)[1])


def arrival(gaps: np.ndarray) -> int | None:
    """The first round with an error below TARGET in which the authors' program looks."""
    return next((int(k) for k in _looks(LAST, gaps) if gaps[k - 1] < TARGET), None)


def rest(gaps: np.ndarray) -> int | None:
    """The first such round from which the last three errors are flat, and below TARGET."""
    looks = _looks(LAST_AT_REST, gaps)
    for last in range(2, len(looks)):
        errors = gaps[looks[last - 2 : last + 1] - 1]
        if np.abs(errors - errors.mean()).max() < FLAT and errors[-1] < TARGET:
            return int(looks[last])
    return None


def _looks(last: int, gaps: np.ndarray) -> np.ndarray:
    rounds = np.unique(np.logspace(0, np.log2(last), LOOKS, base=2).round().astype(int))
    return rounds[rounds <= len(gaps)]
