"""Plain NumPy references of DFML and its baselines, participant after participant.

Parameters are those of `reference.mlp`, everything is float64. A batch is a list of the numbers of
its samples; a client's data is (x [N, d], y [N, C] one-hot).
"""

import numpy as np
import reference_robust
from reference import flatten, jacobian, mlp, softmax, unflatten


def supervision(z, y, shares, how):
    """Mean loss of logits [B, C] against one-hot y, and its gradient by z; Eq. (2)."""
    weights = {'ce': np.ones_like(shares), 'ace': (shares > 0).astype(float), 'wsm': shares}[how]
    shifted = z - z.max(axis=1, keepdims=True)
    exponentials = weights * np.exp(shifted)
    total = exponentials.sum(axis=1, keepdims=True)
    losses = np.log(total[:, 0]) - (shifted * y).sum(axis=1)
    return losses.mean(), (exponentials / total - y) / len(z)


NOBODY = reference_robust.Liars(np.zeros(100, bool), None)


def told_at_meeting(models, positions, data, liars, averaged):
    """{client: the model that is heard of it} at one meeting, the aggregator first.

    Senders lie to an honest aggregator; one that lies does so about its own model, where that is
    averaged with those of honest senders.
    """
    attackers, told = liars.attackers, {n: models[n] for n in positions}
    aggregator, *senders = positions
    lying = [n for n in senders if attackers[n]]
    if attackers[aggregator]:
        heard = averaged and any(not attackers[n] for n in senders)
        lying = [aggregator] if heard else []
    for n in lying:
        alike = [m for m in positions if shapes_of(models[m]) == shapes_of(models[n])]
        liars_of_it = [m for m in lying if m in alike]
        honest = [m for m in alike if not attackers[m]] or liars_of_it  # all that they know
        known = honest + liars_of_it
        vectors = np.array([flatten(models[m]) for m in known])
        own = vectors[: len(honest)].mean(axis=0)
        if aggregator in alike:
            own = flatten(models[aggregator])
        weights = np.array([len(data[m][0]) for m in known])
        lies = np.arange(len(known)) >= len(honest)
        told[n] = unflatten(liars.lie(vectors, lies, weights, own), models[n])
    return told


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


def mutual_learning(
    models, data, batches, *, how, gamma, alpha, by_size=True, students, told=None, **options
):
    """Aggregation of Algorithm 1: all `models` on the aggregator's data, Eq. (1) to (3), Eq. (10).

    students: the numbers of the models that learn; the others only teach. told: (n, logits, sizes)
    -> the first model's logits as model n hears them.
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
                heard = told(n, logits, sizes) if told and q == 0 else logits[q]
                by_kl = (softmax(logits[n]) - softmax(heard)) / len(rows)
                by_logits = by_logits + alpha * weight * by_kl
            w = optimisers[n].step(flatten(model), gradient(model, x[rows], by_logits))
            updated.append(unflatten(w, model))
        models = updated
    return models


def dfml_round(
    models,
    peaks,
    best,
    data,
    participants,
    alpha,
    *,
    balance,
    batches,
    mutual_batches,
    liars=NOBODY,
    **options,
):
    """One round of Algorithm 1; participants[0] is the aggregator.

    An aggregator lies to honest members about its logits. A sender that lied keeps its own model.

    balance: (gamma, alpha) of Eq. (10); batches: every client's of local training; best: alpha_n.
    Returns the new (models, peaks, best).
    """
    models, peaks, best = list(models), list(peaks), list(best)
    alone = {k: v for k, v in options.items() if k not in ('by_size', 'students')}
    for n in participants:
        models[n] = train_alone(models[n], data[n], batches[n], **alone)
    heard = told_at_meeting(models, participants, data, liars, averaged=False)
    lying = liars.attackers[participants]

    def told(n, logits, sizes):
        if not lying[0] or lying[n]:
            return logits[0]
        known = [*np.flatnonzero(~lying), 0]
        vectors, lies = np.array([logits[q].ravel() for q in known]), np.array(known) == 0
        lie = liars.lie(vectors, lies, np.array(sizes)[known], logits[n].ravel())
        return lie.reshape(logits[n].shape)

    learnt = mutual_learning(
        [heard[n] for n in participants],
        data[participants[0]],
        mutual_batches,
        gamma=balance[0],
        alpha=balance[1],
        told=told,
        **options,
    )
    for n, model in zip(participants, learnt, strict=True):
        if heard[n] is models[n]:
            models[n] = model
        model = models[n]
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


def shapes_of(model):
    return [weights.shape for weights, _ in model]


def fedavg_round(models, data, meetings, *, batches, server=False, liars=NOBODY, **options):
    """One round of Algorithm 2; meetings: lists of participants, the aggregators first."""
    models = list(models)
    for positions in meetings:
        trained = {n: train_alone(models[n], data[n], batches[n], **options) for n in positions}
        trained = told_at_meeting(trained, positions, data, liars, averaged=True)
        for n in positions:
            alike = [m for m in positions if shapes_of(trained[m]) == shapes_of(trained[n])]
            mean = averaged([trained[m] for m in alike], [len(data[m][0]) for m in alike])
            models[n] = mean
            if server:
                everyone = [i for i, m in enumerate(models) if shapes_of(m) == shapes_of(mean)]
                for i in everyone:
                    models[i] = mean
    return models


def partial_round(models, data, meetings, held, *, batches, **options):
    """One round of Algorithm 3; held(n, d, J): the channels of client n's layer of d in one of J.

    Every weight of the global model is the mean over the participants that hold it, Eq. (6).
    """
    models = list(models)
    for positions in meetings:
        trained = {n: train_alone(models[n], data[n], batches[n], **options) for n in positions}
        largest = max((trained[n] for n in positions), key=lambda m: flatten(m).size)
        totals, counts = ([[np.zeros(p.shape) for p in w] for w in largest] for _ in range(2))
        places = {}
        for n in positions:
            places[n] = []
            before = range(largest[0][0].shape[0])  # the inputs, all of them
            for layer, (weights, _) in enumerate(trained[n]):
                width = largest[layer][0].shape[1]
                last = layer == len(largest) - 1
                after = range(width) if last else held(n, weights.shape[1], width)
                places[n].append((list(before), list(after)))
                before = after
            for layer, (into, out_of) in enumerate(places[n]):
                weights, bias = trained[n][layer]
                for i, row in enumerate(into):
                    for j, column in enumerate(out_of):
                        totals[layer][0][row, column] += weights[i, j]
                        counts[layer][0][row, column] += 1
                for j, column in enumerate(out_of):
                    totals[layer][1][column] += bias[j]
                    counts[layer][1][column] += 1
        for n in positions:
            models[n] = [
                (
                    (totals[layer][0] / np.maximum(counts[layer][0], 1))[into][:, out_of],
                    (totals[layer][1] / np.maximum(counts[layer][1], 1))[out_of],
                )
                for layer, (into, out_of) in enumerate(places[n])
            ]
    return models


def def_kt_round(models, data, meetings, *, batches, mutual_batches, **options):
    """Def-KT: a sender trains, and it and the aggregator's model teach each other.

    mutual_batches: of every aggregator.
    """
    models = list(models)
    for aggregator, *senders in meetings:
        for n in senders:
            models[n] = train_alone(models[n], data[n], batches[n], **options)
            _, models[aggregator] = mutual_learning(
                [models[aggregator], models[n]],
                data[aggregator],
                mutual_batches[aggregator],
                gamma=1,
                alpha=1,
                students=(0, 1),
                **options,
            )
    return models


def fml_round(models, memes, data, meetings, *, batches, alpha, **options):
    """Decentralized FML, A.3.4: (own models, memes) of all clients."""
    models, memes = list(models), list(memes)
    for positions in meetings:
        for n in positions:
            models[n], memes[n] = mutual_learning(
                [models[n], memes[n]],
                data[n],
                batches[n],
                gamma=1 - alpha,
                alpha=alpha,
                students=(0, 1),
                **options,
            )
        mean = averaged([memes[n] for n in positions], [len(data[n][0]) for n in positions])
        for n in positions:
            memes[n] = mean
    return models, memes
