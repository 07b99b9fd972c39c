"""What a run has done so far, and what its rounds report."""

from dataclasses import dataclass, field

import numpy as np

from dfl_jax.base import Choices, Info, Mean
from dfl_jax.evaluation import Metrics
from dfl_jax.setting_error import plain


class DivergenceError(FloatingPointError):
    """The training loss of some clients stopped being a number."""

    def __init__(self, round: int, clients: np.ndarray, attacked: bool = False):
        some = ', '.join(map(str, clients[:5])) + (', ...' if len(clients) > 5 else '')
        super().__init__(
            f'round {round}: the training loss of {len(clients)} client(s) is not finite '
            f'(client {some}); lower `lr`'
            + ', or take an `aggregation` that stands the attack, where the method has one'
            * attacked
        )
        self.round, self.clients = round, clients

    @property
    def whole(self) -> str:
        """The text, settings in backticks (`setting_error.rendered`)."""
        return self.args[0]

    def __str__(self) -> str:
        return plain(self.whole)


@dataclass
class Progress:
    """What a run carries besides the state, saved with each checkpoint."""

    round: int = 0
    seconds: float = 0.0  # wall time of the rounds, compilation and evaluation apart
    # Messages sent by each client so far, and the bits of one, by kind of message
    sent: dict[str, list[int]] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    operations: float | None = 0.0  # of all clients so far; None where a method counts none
    clock: list[list[float]] | None = None  # the parts of timing.Clock, in the world of the run

    def add(self, rounds: int, seconds: float, info: Info) -> None:
        """Counts the rounds of a block, whose info has a leading axis."""
        self.round += rounds
        self.seconds += seconds
        for kind, sent in info.sent.items():
            block = np.asarray(sent.messages, np.int64).sum(axis=0)
            before = self.sent.get(kind, [0] * len(block))
            self.sent[kind] = [old + int(new) for old, new in zip(before, block, strict=True)]
            self.bits[kind] = sent.bits
        if info.flops is None or self.operations is None:
            self.operations = None
        else:
            self.operations += float(np.asarray(info.flops, np.float64).sum())


def divergence(losses: np.ndarray, start: int, attacked: bool = False) -> DivergenceError | None:
    """The error of the first of some rounds, after `start`, whose losses [rounds, M] diverge.

    attacked: whether some clients lie.
    """
    bad = ~np.isfinite(losses)
    if not bad.any():
        return None
    row = int(np.argmax(bad.any(axis=1)))
    return DivergenceError(start + row + 1, np.flatnonzero(bad[row]), attacked)


def totals(progress: Progress) -> Metrics:
    """Megabytes (10^6 bytes) sent so far, from exact bits in Python integers, operations and the
    clock of the last client."""
    by_client = [0] * max(map(len, progress.sent.values()), default=0)
    for kind, counts in progress.sent.items():
        bits = progress.bits[kind]
        by_client = [total + bits * count for total, count in zip(by_client, counts, strict=True)]
    metrics: Metrics = {
        'mbytes_total': sum(by_client) / 8e6,
        'mbytes_busiest_client': max(by_client, default=0) / 8e6,
    }
    if progress.operations is not None:
        metrics['operations_total'] = progress.operations
    if progress.clock is not None:
        metrics['simulated_seconds'] = max(progress.clock[0])
    return metrics


def diagnostics(info: Info, judged: np.ndarray | None = None) -> Metrics:
    """The metrics that the last round of a block reported.

    judged: [M] bool, over whom means of clients are taken; None for all.
    """

    def of_clients(values: np.ndarray) -> np.ndarray:
        return values if judged is None or values.shape[:1] != judged.shape else values[judged]

    losses = of_clients(np.asarray(info.loss[-1]))
    metrics: Metrics = {'train_loss_mean': float(losses.mean())}
    for name, metric in info.metrics.items():
        if not isinstance(metric, (Mean, Choices)):
            if np.size(metric[-1]) != 1:
                raise ValueError(
                    f'the metric {name} has shape {list(np.shape(metric[-1]))}; make it a scalar, '
                    'a base.Mean or base.Choices'
                )
            metrics[name] = metric[-1].item()
            continue
        last = of_clients(np.asarray(metric.values[-1]))
        if isinstance(metric, Choices):
            last = last[last >= 0]
        if not last.size:
            continue
        metrics[f'{name}_mean'] = float(last.mean())
        if isinstance(metric, Choices):
            choices, counts = np.unique(last, return_counts=True)
            metrics[f'{name}_counts'] = {
                str(choice): int(count) for choice, count in zip(choices, counts, strict=True)
            }
    return metrics
