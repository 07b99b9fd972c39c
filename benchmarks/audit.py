"""Do runs keep the epsilon that they claim? An audit from outside, by canaries.

    python -m benchmarks.audit [--runs=20]

For each of 5,000 samples, the canaries, a coin decides whether a run has it (Steinke, Nasr &
Jagielski, 'Privacy auditing with one (1) training run', NeurIPS 2023). Whoever sees all models of
the run, and knows all but the coins, guesses a fifth of them, and the share of right guesses
bounds epsilon from below, at 95 % confidence. A bound above the claim would show a fault of
clipping, noise, sampling or accounting; one below it shows that this auditor found none.

20 clients with 250 canaries each take 20 steps of D-PSGD on a ring, with a small MLP and batches of
half of the samples (Poisson). Every canary has a pixel of its own and a random label: its gradient,
which is always clipped, lies almost alone in one row of the first layer. The auditor knows the
mixing matrix and solves for what each client sent. `all runs` is the bound by the coins of all runs
together, which is as if one run had them all. In the last row gradients are clipped and get no
noise.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from benchmarks import _common as common
from dfl_jax.base import Array
from dfl_jax.data import Dataset
from dfl_jax.exchange import one_round
from dfl_jax.experiment import Experiment
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.gossip.spectra import mixing_matrix

FLAGS = flags.FLAGS
NOISES, DELTA = (5.6, 1.8, None), 1e-6  # for an epsilon of 2 and of 8
CLIENTS, SAMPLES, ROUNDS = 20, 250, 20
GUESSES = 0.2  # of the canaries, chosen before any run: the best of several shares is no bound
CLASSES, PIXEL = 10, 10.0  # so bright that the rest of the network has little of a gradient's norm
WRONG = 0.05  # probability that a bound is wrong
LARGEST = 50.0  # no bound is sought above it


def define_flags() -> None:
    flags.DEFINE_integer('runs', 20, 'Runs with each noise.', lower_bound=1)


def main() -> None:
    print(common.about())
    table = common.Table(
        *('noise', 'claimed epsilon', 'lower bounds: least', 'median', 'most'),
        *('below the claim', 'all runs'),
    )
    canaries = CLIENTS * SAMPLES
    for noise in NOISES:
        built = build(noise, CLIENTS, SAMPLES, ROUNDS)
        right, guesses = audited(built, FLAGS.runs)
        bounds = np.array([lower_bound(v, guesses, canaries, DELTA) for v in right])
        claim = claimed_by(built)
        of_all = lower_bound(sum(right), FLAGS.runs * guesses, FLAGS.runs * canaries, DELTA)
        table.row(
            *((noise or 0, '.1f'), 'none' if claim is None else (claim, '.2f')),
            *((float(of(bounds)), '.2f') for of in (np.min, np.median, np.max)),
            '-' if claim is None else f'{np.sum(bounds < claim)} of {len(bounds)}',
            (of_all, '.2f'),
        )


def lower_bound(right: int, guesses: int, canaries: int, delta: float) -> float:
    """The least epsilon of a mechanism, with 95 % confidence, of which so many guesses are right.

    Were it (epsilon, delta)-private, the probability of v right ones or more would be at most
    P[B >= v] + 2 m delta max_i (P[B >= v - i] - P[B >= v]) / i, with B the number of guesses that
    are right if each is with probability e^epsilon / (1 + e^epsilon) (Theorem 5.2).

    Args:
      right: v.
      guesses: of the coins of some canaries.
      canaries: m, each there by a fair coin.

    All right without delta: log(p / (1 - p)), p^guesses = 0.05. The other is from Appendix D.

    >>> round(lower_bound(100, 100, 1000, 0.0), 3), round(lower_bound(75, 100, 1000, 1e-4), 3)
    (3.493, 0.673)
    """
    fewer = np.arange(1, right + 1)

    def excess(epsilon: float) -> float:
        """By how much that probability is above WRONG."""
        rate = expit(epsilon)
        tail = binom.sf(right - 1, guesses, rate)
        between = binom.sf(right - 1 - fewer, guesses, rate) - tail
        return tail + 2 * canaries * delta * np.max(between / fewer, initial=0) - WRONG

    return 0.0 if excess(0) >= 0 else brentq(excess, 0, LARGEST)


def build(noise: float | None, clients: int, samples: int, rounds: int) -> BuiltExperiment:
    """Everything of a run whose gradients are clipped and get noise of this multiplier, or none."""
    private = {} if noise is None else {'dp_noise_multiplier': noise, 'dp_delta': DELTA}
    return Experiment.of(
        **dict(algorithm='dpsgd', dataset=partial(canaries_of, clients, samples), hidden=('16',)),
        **dict(clients=clients, partition='natural', topology='ring', static_topology=True),
        **dict(rounds=rounds, local_steps=1, batch_size=samples // 2, batch_sampling='poisson'),
        **dict(lr=0.1, dp_clip=1.0, **private),
    ).build()


def canaries_of(clients: int, samples: int) -> Dataset:
    """Canaries with random labels, each with a pixel of its own among those of its client."""
    x = np.tile(PIXEL * np.eye(samples, dtype=np.float32), (clients, 1))
    y = np.random.default_rng(0).integers(CLASSES, size=len(x), dtype=np.int32)
    owners = np.repeat(np.arange(clients, dtype=np.int32), samples)
    return Dataset(x, y, x[:1], y[:1], CLASSES, owners)


def claimed_by(built: BuiltExperiment) -> float | None:
    """Epsilon that the run claims to spend; None where it claims none."""
    if built.spending is None:
        return None
    return float(built.spending.after(len(built.graphs.active)).max())


def audited(built: BuiltExperiment, runs: int) -> tuple[list[int], int]:
    """How many guesses of each run are right, and of how many."""
    scores, shape = jax.jit(scores_of(built)), built.clients.y.shape
    half = int(GUESSES * built.clients.y.size) // 2
    right = []
    for seed in range(runs):
        included = np.random.default_rng(seed).random(shape) < 0.5
        order = np.argsort(scores(jax.random.key(seed), included), axis=None)
        coins = included.reshape(-1)[order]
        right.append(int(coins[-half:].sum() + (~coins[:half]).sum()))
    return right, 2 * half


def scores_of(built: BuiltExperiment) -> Callable[[Array, Array], Array]:
    """(key, included [M, N] bool) -> the auditor's score of each canary, [M, N]: how far what its
    client sent moved along the canary's descent, summed over rounds."""
    algorithm, model, (x, y, *_) = built.algorithm, built.model, built.clients
    mixing = mixing_matrix(built.first, np.ones(len(x)), 'uniform').toarray()
    unmixing = jnp.asarray(np.linalg.inv(mixing), jnp.float32)

    def loss(params, x, y):
        return jnp.sum(model.task.losses(model.apply(params, x), y))

    def scores(key: Array, included: Array) -> Array:
        # One that is left out has no finite gradient, which counts as none: padding would change
        # the number of samples, which is public, and with it the rate of the others
        seen = built.clients._replace(x=jnp.where(included[..., None], x, jnp.nan))

        def step(state, round):
            number, graph = round
            k_round = jax.random.fold_in(key, number)
            new, _ = one_round(algorithm, k_round, state, number, graph, seen)
            # Row n is that of the pixel of canary n alone, so that one gradient has those of all
            ascent = jax.vmap(jax.grad(loss))(state.params, x, y)['Dense_0']['kernel']
            ascent /= jnp.maximum(jnp.linalg.norm(ascent, axis=2, keepdims=True), 1e-30)
            before, after = (s.params['Dense_0']['kernel'] for s in (state, new))
            sent = jnp.einsum('ij,jnh->inh', unmixing, after, precision='highest')
            return new, jnp.sum((before - sent) * ascent, axis=2)

        rounds = jnp.arange(len(built.graphs.active)), jax.tree.map(jnp.asarray, built.graphs)
        return lax.scan(step, algorithm.init(key, built.clients), rounds)[1].sum(axis=0)

    return scores


if __name__ == '__main__':
    define_flags()
    common.start(main)
