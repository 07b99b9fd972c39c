"""What the scripts share, in plain NumPy: the work, its data, its first weights, the JSON line."""

import argparse
import functools
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

CLASSES = 10
FEATURES = 784
HIDDEN = 100
DEGREE = 5
LR = 0.01
WARM_UP = 2  # rounds before the timed ones

Weights = list[np.ndarray]  # W1 [784, 100], b1 [100], W2 [100, 10], b2 [10]


def arguments() -> argparse.Namespace:
    """The flags that every script takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--clients', type=int, default=20)
    parser.add_argument('--rounds', type=int, default=5, help='timed ones')
    parser.add_argument('--samples', type=int, default=200, help='of a client')
    parser.add_argument('--batch_size', type=int, default=20, help='samples of an SGD step')
    parser.add_argument('--threads', type=int, default=1, help='of a process, for PyTorch')
    return parser.parse_args()


def random_samples(
    clients: int, samples: int, shape: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """x [M, N, *shape] float32 and y [M, N] int32 of all benchmarks.

    Gaussian noise on a Gaussian image of each class and one that all share; random labels. Sized
    such that kernels are as stiff, and so `rkc` as dear, as on Fashion-MNIST: without the shared
    image the largest eigenvalue of the first H / N~ is 35 instead of 250, and with labels that
    cannot be learned it falls to a tenth in the first round.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=(clients, samples), dtype=np.int32)
    x = rng.standard_normal((clients, samples, *shape), np.float32)
    x += 0.6 * rng.standard_normal(shape, np.float32)
    for label in range(CLASSES):
        x[y == label] += 0.5 * rng.standard_normal(shape, np.float32)
    return x, y


@functools.cache
def data(clients: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """x [M, N, 784] float32 and y [M, N] int32."""
    return random_samples(clients, samples, (FEATURES,))


def first_weights() -> Weights:
    """He-normal matrices and zero biases, the same for every client."""
    rng = np.random.default_rng(1)
    w1 = rng.standard_normal((FEATURES, HIDDEN), np.float32) * np.float32(np.sqrt(2 / FEATURES))
    w2 = rng.standard_normal((HIDDEN, CLASSES), np.float32) * np.float32(np.sqrt(2 / HIDDEN))
    return [w1, np.zeros(HIDDEN, np.float32), w2, np.zeros(CLASSES, np.float32)]


def mean_of(networks: list[Weights]) -> Weights:
    """The mean of the clients' models."""
    return [np.mean(layer, axis=0) for layer in zip(*networks, strict=True)]


def loss(weights: Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy over x [M, N, 784], y [M, N]."""
    w1, b1, w2, b2 = weights
    total = 0.0
    for inputs, labels in zip(x, y, strict=True):
        logits = np.maximum(inputs @ w1 + b1, 0) @ w2 + b2
        logits -= logits.max(axis=1, keepdims=True)
        total += np.log(np.exp(logits).sum(axis=1)).sum() - logits[range(len(y[0])), labels].sum()
    return float(total / y.size)


def regular_graph(clients: int) -> Any:
    """A random DEGREE-regular networkx graph."""
    import networkx

    return networkx.random_regular_graph(DEGREE, clients, seed=0)


class Clock:
    """Notes when each round ends; to be called then, and once before the first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self) -> None:
        self.times.append(time.perf_counter())


def report(
    peer: str, version: str, args: argparse.Namespace, clock: Clock, weights: Weights
) -> None:
    """Prints the JSON line: the time of the rounds, and the loss of the mean model after them."""
    seconds = np.diff(clock.times).tolist()
    if len(seconds) != WARM_UP + args.rounds:
        raise RuntimeError(f'{peer} ran {len(seconds)} rounds, not {WARM_UP} + {args.rounds}')
    seconds = seconds[WARM_UP:]
    median = float(np.median(seconds))
    x, y = data(args.clients, args.samples)
    line = {
        'peer': peer,
        'version': version,
        'clients': args.clients,
        'seconds': seconds,
        'median': median,
        'steps_per_second': args.clients * -(-args.samples // args.batch_size) / median,
        'loss': [loss(first_weights(), x, y), loss(weights, x, y)],
    }
    print(f'\n{json.dumps(line)}')
