"""The convergence theory of NTK-DFL (ICML 2025, section 4 and appendix G) measured on a run.

`diagnose` estimates, from the models before and after one round, the constants that the theory
assumes: delta_NTK (Assumption 4.4), the smoothness L (G.1), the gradient variance sigma_g^2 (G.2)
and the gradient bound B (G.3). `bound` evaluates Theorem 4.5 with them.

Each constant bounds a quantity over all weights; measured at the weights that a run visits it is a
lower bound, and so is the bound computed from it.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dfl_jax.base import Array, Clients, Graph, PyTree
from dfl_jax.execution import client_bytes, map_in_chunks
from dfl_jax.gossip import mix, mixing_matrix, mixing_weights, spectrum
from dfl_jax.metrics import consensus_model
from dfl_jax.models import Model
from dfl_jax.ntk import aggregator_data

# gamma of Eq. (9a) is positive while a = eta T L stays below the positive root of 32 a (a + 1) = 1.
GAMMA_ROOT = (math.sqrt(1 + 1 / 8) - 1) / 2  # 0.0303
STEP_LIMIT = 1 / 8  # on eta T L, in Theorem 4.5
MIN_TIMESTEPS = 10  # of Lemma G.6


class Diagnosis(NamedTuple):
    """Estimates of the theory's constants from one round; scalars.

    Aggregator quantities belong to the loss on the joint data of an aggregator and its neighbours,
    at the weights w_i that the round ended with; inactive aggregators are left out. Consensus
    quantities belong to the plain mean w_bar of the M models.
    """

    # Over aggregators, the norm of NTK gradient minus true gradient, Eq. (7), (45b)
    delta_ntk_max: Array
    delta_ntk_mean: Array
    aggregator_gradient_norm_mean: Array  # of the true gradients
    # Over aggregators that moved, ||grad L_i(w_i) - grad L_i(w_bar_i)|| / distance
    smoothness_max: Array
    smoothness_mean: Array
    gradient_norm_max: Array  # over clients on their own data, at w_bar of the start: B of G.3
    gradient_variance: Array  # of the same gradients about the global one: sigma_g^2 of G.2
    consensus_gradient_norm_sq: Array  # ||grad L(w_bar)||^2 of Eq. (8), at the round's start
    loss: Array  # L(w_bar) of Definition 4.1, at the round's start
    consensus_gradient_norm_sq_after: Array  # the same two at the round's end
    loss_after: Array


class Terms(NamedTuple):
    """The summands on the right of Eq. (8)."""

    optimality: float  # 2 [L(w_bar^(1)) - L*] / (K gamma)
    drift: float  # the part of alpha, Eq. (9b), that holds delta^2 + sigma_g^2
    linearization: float  # the part of alpha that holds delta B
    consensus: float  # beta, Eq. (9c)


class Bound(NamedTuple):
    """Theorem 4.5 evaluated at one step size."""

    eta: float
    timesteps: float  # T
    reach: float  # eta T L, which decides alone whether the theorem speaks
    gamma: float  # Eq. (9a)
    numerators: Terms  # each summand times gamma: they compare even where gamma is not positive
    terms: Terms  # infinite where gamma is not positive, and the theorem says nothing
    total: float  # the bound on min_k ||grad L(w_bar^(k))||^2
    premises: Mapping[str, bool]

    @property
    def shares(self) -> Terms:
        """The share of each summand in their sum; an infinite one takes all."""
        total = sum(self.numerators)
        if math.isinf(total):
            return Terms(*(float(math.isinf(n)) for n in self.numerators))
        return Terms(*(n / total if total else 0.0 for n in self.numerators))


def mixing_of(graph: Graph, sizes: np.ndarray, kind: str) -> dict[str, float]:
    """One round's mixing matrix as Definition 4.2 sees it, on the host.

    Args:
      graph: one round, arrays without the axis T, H = M.
      sizes: [M], samples of each client.
      kind: `size`, `uniform` or `metropolis`.

    Returns `lambda` = max(|lambda_2|, |lambda_M|), `spectral_gap` = (1 - lambda)^2, and whether the
    matrix is `symmetric`, property (ii), which size weights of unequal clients break.
    """
    matrix = mixing_matrix(graph, sizes, kind)
    second = spectrum(matrix).second_modulus
    symmetric = bool(abs(matrix - matrix.T).max() < 1e-12)
    return {'lambda': second, 'spectral_gap': (1 - second) ** 2, 'symmetric': symmetric}


def diagnose(
    model: Model, *, mixing: str = 'size', chunk: int | None = None
) -> Callable[[PyTree, PyTree, Graph, Clients], Diagnosis]:
    """diagnosis(before, after, graph, clients), jitted, of a round of NTK-DFL with cross-entropy.

    `before` and `after` are the stacked parameters (leaves [M, ...]) at the start and the end of
    the round, `graph` is that round's, with H = M. No Jacobian is formed: J^T r is one VJP.

    Args:
      model: the network.
      mixing: weights of Eq. (1), those of the run.
      chunk: aggregators or clients worked on at once; None for one on a CPU, elsewhere what memory
        holds.

    Raises ValueError for a task with another loss, and, while tracing, when the aggregators are not
    the clients.
    """
    if not model.task.cross_entropy:
        raise ValueError(
            f'the theory is of the cross-entropy, and the loss of {model.task.name} is another; '
            'take a task whose loss it is'
        )

    @jax.value_and_grad
    def value_and_gradient(w: PyTree, x: Array, labels: Array, mask: Array) -> Array:
        """Mean cross-entropy over true samples, and by the decorator its gradient by w."""
        losses = optax.softmax_cross_entropy_with_integer_labels(
            model.apply(w, x), jnp.where(mask, labels, 0)
        )
        return jnp.sum(jnp.where(mask, losses, 0)) / jnp.sum(mask)

    def ntk_gradient(w_bar: PyTree, w: PyTree, x: Array, labels: Array, mask: Array) -> PyTree:
        """1/N~ J(w_bar)^T r(w), Eq. (21a)."""
        residual = jax.nn.softmax(model.apply(w, x)) - jax.nn.one_hot(labels, model.classes)
        _, vjp = jax.vjp(lambda v: model.apply(v, x), w_bar)
        (gradient,) = vjp(jnp.where(mask[:, None], residual, 0) / jnp.sum(mask))
        return gradient

    def at_aggregators(w_bar: PyTree, w: PyTree, graph: Graph, clients: Clients):
        """Norms [M] of each aggregator's NTK error, gradient, its change, and step."""

        def aggregator(inputs):
            w_bar, w, members, linked = inputs
            data = aggregator_data(jax.tree.map(lambda a: a[members], clients), linked)
            _, start = value_and_gradient(w_bar, *data)
            _, gradient = value_and_gradient(w, *data)
            linearized = ntk_gradient(w_bar, w, *data)
            sub = optax.tree.sub
            error, change, move = sub(linearized, gradient), sub(gradient, start), sub(w, w_bar)
            return tuple(map(optax.tree.norm, (error, gradient, change, move)))

        each = client_bytes(graph.members.shape[1] * clients.y.shape[1], model)
        return map_in_chunks(aggregator, (w_bar, w, graph.members, graph.mask), chunk, each)

    def at_consensus(params: PyTree, clients: Clients):
        """(B, sigma_g^2, squared norm of the gradient, loss) at the mean of the M models."""
        w_bar = consensus_model(params)

        def client_gradient(client: Clients):
            alone = jax.tree.map(lambda a: a[None], client)
            return value_and_gradient(w_bar, *aggregator_data(alone, jnp.ones(1, bool)))

        each = client_bytes(clients.y.shape[1], model)
        # [M], leaves [M, ...]
        losses, gradients = map_in_chunks(client_gradient, clients, chunk, each)
        sizes = clients.mask.sum(axis=1)
        shared = consensus_model(gradients, sizes)  # gradient of Eq. (6)
        norms = jax.vmap(optax.tree.norm)(gradients)
        distances = jax.vmap(lambda g: optax.tree.norm(optax.tree.sub(g, shared), squared=True))
        largest, variance = jnp.max(norms), jnp.mean(distances(gradients))
        loss = jnp.sum(losses * sizes) / jnp.sum(sizes)
        return largest, variance, optax.tree.norm(shared, squared=True), loss

    @jax.jit
    def diagnosis(before: PyTree, after: PyTree, graph: Graph, clients: Clients) -> Diagnosis:
        if graph.members.shape[0] != len(clients.x):
            raise ValueError(
                f'the diagnosis needs one aggregator a client: {len(graph.members)} aggregators '
                f'and {len(clients.x)} clients'
            )
        # Differences of nearby gradients do not survive TF32.
        with jax.default_matmul_precision('highest'):
            weights = mixing_weights(graph, clients.mask.sum(axis=1), mixing)
            w_bar = mix(weights, graph.members, before)  # Eq. (1)
            errors, norms, changes, distances = at_aggregators(w_bar, after, graph, clients)
            at_start, at_end = (at_consensus(params, clients) for params in (before, after))

        moved = graph.active & (distances > 0)
        slopes = changes / jnp.where(moved, distances, 1)
        return Diagnosis(
            *_max_and_mean(errors, graph.active),
            _max_and_mean(norms, graph.active)[1],
            *_max_and_mean(slopes, moved),
            *at_start,
            *at_end[2:],  # its gradient and its loss
        )

    return diagnosis


def _max_and_mean(values: Array, mask: Array) -> tuple[Array, Array]:
    """Maximum and mean of the masked values [M], non-negative; zeros where the mask is empty."""
    masked = jnp.where(mask, values, 0)
    return jnp.max(masked), jnp.sum(masked) / jnp.maximum(jnp.sum(mask), 1)


def admissible_eta(timesteps: float, smoothness: float) -> float:
    """The step size eta for which eta T L is half of that which makes gamma vanish.

    Theorem 4.5 asks for eta T L <= 1/8, but gamma, by which it divides, is positive only below
    `GAMMA_ROOT`; in the middle of that range the terms of Eq. (8) can be compared.
    """
    return GAMMA_ROOT / 2 / (timesteps * smoothness)


def bound(
    *,
    eta: float,
    timesteps: float,
    rounds: int,
    smoothness: float,
    delta: float,
    gradient_norm: float,
    gradient_variance: float,
    second_modulus: float,
    descent: float,
) -> Bound:
    """The right side of Theorem 4.5, Eq. (8) and (9), term by term.

    Args:
      eta: length of a time step.
      timesteps: T, time steps a round; only eta T enters.
      rounds: K.
      smoothness: L of Assumption G.1.
      delta: delta_NTK of Assumption 4.4.
      gradient_norm: B of Assumption G.3.
      gradient_variance: sigma_g^2 of Assumption G.2.
      second_modulus: lambda of Definition 4.2; at one, the consensus term is infinite.
      descent: L(w_bar^(1)) - L*, at least zero.
    """
    span = eta * timesteps
    reach = span * smoothness
    gamma = span - 32 * span**2 * smoothness * (reach + 1)  # Eq. (9a)
    scatter = delta**2 + gradient_variance
    gap = (1 - second_modulus) ** 2
    beta = 512 * span**4 * smoothness**3 * (reach + 1) * (scatter + gradient_norm**2)
    numerators = Terms(
        optimality=2 * descent / rounds,
        drift=16 * span**2 * smoothness * (reach + 1) * scatter,  # Eq. (9b)
        linearization=2 * span * delta * gradient_norm,
        consensus=beta / gap if gap else math.inf,  # Eq. (9c)
    )
    terms = Terms(*(n / gamma if gamma > 0 else math.inf for n in numerators))
    premises = {
        'eta T L <= 1/8': reach <= STEP_LIMIT,
        'gamma > 0': gamma > 0,
        'lambda < 1': second_modulus < 1,
        f'T >= {MIN_TIMESTEPS}': timesteps >= MIN_TIMESTEPS,
    }
    return Bound(eta, timesteps, reach, gamma, numerators, terms, sum(terms), premises)
