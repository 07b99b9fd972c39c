"""Plain NumPy references of DFML and its baselines, participant after participant.

Parameters are those of `reference.mlp`, everything is float64. A batch is a list of the numbers of
its samples; a client's data is (x [N, d], y [N, C] one-hot).
"""

import numpy as np
from reference import flatten, jacobian, mlp, softmax, unflatten


def supervision(z, y, shares, how):
    """Mean loss of logits [B, C] against one-hot y, and its gradient by z; Eq. (2)."""
    weights = {
        'ce': np.ones_like(shares),
        'ace': (shares > 0).astype(float),
        'wsm': shares,
    }[how]
    shifted = z - z.max(axis=1, keepdims=True)
    exponentials = weights * np.exp(shifted)
    total = exponentials.sum(axis=1, keepdims=True)
    losses = np.log(total[:, 0]) - (shifted * y).sum(axis=1)
    return losses.mean(), (exponentials / total - y) / len(z)


def gradient(params, x, by_logits):
    """The gradient by the flattened parameters, of a gradient [B, C] by the logits."""
    return np.einsum('bc,bcp->p', by_logits, jacobian(params, x))


class SGD:
    """Heavy-ball momentum and L2 decay, as of torch.optim.SGD."""

    def __init__(self, lr, momentum=0.0, weight_decay=0.0):
        self.lr, self.momentum, self.weight_decay, self.velocity = lr, momentum, weight_decay, 0.0

    def step(self, w, g):
        self.velocity = self.momentum * self.velocity + g + self.weight_decay * w
        return w - self.lr * self.velocity


def train_alone(params, data, batches, *, how, proximal=0.0, **optimiser):
    """Local training of Algorithm 1 (and 2, with the proximal weight mu)."""
    x, y = data
    shares, sgd = y.mean(axis=0), SGD(**optimiser)
    start = w = flatten(params)
    for rows in batches:
        now = unflatten(w, params)
        _, by_logits = supervision(mlp(now, x[rows]), y[rows], shares, how)
        w = sgd.step(w, gradient(now, x[rows], by_logits) + proximal * (w - start))
    return unflatten(w, params)


def mutual_learning(models, data, batches, *, how, gamma, alpha, by_size=True, students, **options):
    """Aggregation of Algorithm 1: all `models` on the aggregator's data, Eq. (1) to (3), Eq. (10).

    students: the numbers of the models that learn; the others only teach.
    """
    x, y = data
    shares = y.mean(axis=0)
    sizes = [flatten(m).size if by_size else 1 for m in models]
    optimisers = [SGD(**options) for _ in models]
    for rows in batches:
        logits = [mlp(m, x[rows]) for m in models]
        updated = []
        for n, model in enumerate(models):
            if n not in students:
                updated.append(model)
                continue
            _, by_logits = supervision(logits[n], y[rows], shares, how)
            by_logits = gamma * by_logits
            teachers = [q for q in range(len(models)) if q != n]
            for q in teachers:
                weight = sizes[q] / sum(sizes[u] for u in teachers)  # Eq. (3)
                by_kl = (softmax(logits[n]) - softmax(logits[q])) / len(rows)
                by_logits = by_logits + alpha * weight * by_kl
            w = optimisers[n].step(flatten(model), gradient(model, x[rows], by_logits))
            updated.append(unflatten(w, model))
        models = updated
    return models


def dfml_round(
    models, peaks, best, data, participants, alpha, *, balance, batches, mutual_batches, **options
):
    """One round of Algorithm 1; participants[0] is the aggregator.

    balance: (gamma, alpha) of Eq. (10); batches: every client's of local training; best: alpha_n.
    Returns the new (models, peaks, best).
    """
    models, peaks, best = list(models), list(peaks), list(best)
    alone = {k: v for k, v in options.items() if k not in ('by_size', 'students')}
    for n in participants:
        models[n] = train_alone(models[n], data[n], batches[n], **alone)
    learnt = mutual_learning(
        [models[n] for n in participants],
        data[participants[0]],
        mutual_batches,
        gamma=balance[0],
        alpha=balance[1],
        **options,
    )
    for n, model in zip(participants, learnt, strict=True):
        models[n] = model
        if alpha >= best[n]:
            peaks[n], best[n] = model, alpha
    return models, peaks, best


def cyclical_alpha(rounds, period, growth, top, half):
    """alpha of rounds 0, 1, ... (Eq. 4): from 0 to `top` and, unless `half`, back to 0.

    A cycle takes `period` rounds, and every next one `growth` more.
    """
    found = []
    while len(found) < rounds:
        rise = period if half else period // 2
        for t in range(period):
            at = t + 1 if half else t
            if at <= rise:
                found.append(top / 2 * (1 - np.cos(np.pi * at / rise)))
            else:
                found.append(top / 2 * (1 + np.cos(np.pi * (at - rise) / (period - rise))))
        period += growth
    return np.array(found[:rounds])


def averaged(models, weights):
    """Eq. (5) of models of one architecture."""
    total = sum(w * flatten(m) for w, m in zip(weights, models, strict=True))
    return unflatten(total / sum(weights), models[0])
