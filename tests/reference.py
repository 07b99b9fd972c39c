"""Plain NumPy references: one client at a time, explicit Jacobians, straight from the equations.

Nothing here is fast and nothing here is shared with the package. The network is a ReLU MLP, its
parameters a list of (weights [d_in, d_out], bias [d_out]); everything is float64.
"""

import numpy as np


def mlp(params, x):
    """Logits [B, C] of inputs [B, d]."""
    for weights, bias in params[:-1]:
        x = np.maximum(x @ weights + bias, 0.0)
    weights, bias = params[-1]
    return x @ weights + bias


def jacobian(params, x):
    """The Jacobian of the logits [B, C] by all parameters, flattened: [B, C, P]. Eq. (2)."""
    rows = []
    for sample in x:
        activations = [sample]
        for weights, bias in params[:-1]:
            activations.append(np.maximum(activations[-1] @ weights + bias, 0.0))
        backward = np.eye(params[-1][0].shape[1])  # d logits / d (output of the layer), [C, d_out]
        blocks = []
        for layer in reversed(range(len(params))):
            weights, _ = params[layer]
            kernel_part = np.einsum('i,co->cio', activations[layer], backward)
            blocks.insert(0, [kernel_part.reshape(len(backward), -1), backward])
            backward = (backward @ weights.T) * (activations[layer] > 0)
        rows.append(np.concatenate([part for block in blocks for part in block], axis=1))
    return np.stack(rows)


def flatten(params):
    return np.concatenate([part.ravel() for layer in params for part in layer])


def unflatten(vector, like):
    params, start = [], 0
    for weights, bias in like:
        middle, end = start + weights.size, start + weights.size + bias.size
        params.append((vector[start:middle].reshape(weights.shape), vector[middle:end]))
        start = end
    return params


def kernel(jac):
    """Eq. (3): [H]_{mn} = 1/C <J(x_m), J(x_n)>_F, from the explicit Jacobian [B, C, P]."""
    return np.einsum('mcp,ncp->mn', jac, jac) / jac.shape[1]


def neighbours_of(members, mask):
    """M lists of the neighbours that are heard, from a round's members and mask [M, K]."""
    return [
        [int(j) for j, on in zip(row[1:], linked[1:], strict=True) if on]
        for row, linked in zip(members, mask, strict=True)
    ]


def softmax(f):
    e = np.exp(f - f.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def sample_loss(f, y, loss):
    """Mean loss over samples: cross-entropy, or half squared error, over the outputs, too."""
    if loss == 'mse':
        return 0.5 * np.mean((f - y) ** 2)
    shifted = f - f.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -np.mean(np.sum(log_p * y, axis=1))


def accumulated_residuals(h, f0, y, lr, timesteps, loss, evolution):
    """S_t = sum_{u<t} (prediction(f^(u)) - Y) of Eq. (5b) and f^(t) for each t in timesteps.

    A list of pairs ([B, C], [B, C]).
    """
    terms = f0.size if loss == 'mse' else len(f0)
    found = {}
    if evolution == 'eigh':  # Eq. (4), half-MSE only
        values, vectors = np.linalg.eigh(h)
        f, total = f0, np.zeros_like(f0)
        for u in range(max(timesteps)):
            total = total + f - y
            decay = np.exp(-lr * (u + 1) / terms * values)
            f = y + vectors @ (decay[:, None] * (vectors.T @ (f0 - y)))
            found[u + 1] = total, f
    else:
        f, total = f0, np.zeros_like(f0)
        for u in range(max(timesteps)):
            residual = (softmax(f) if loss == 'cross_entropy' else f) - y
            total = total + residual
            f = f - lr / terms * h @ residual  # Eq. (11), one time step of length lr
            found[u + 1] = total, f
    return [found[t] for t in timesteps]


def decoded(vector, like, sparsity, bits):
    """A flat vector as its receiver decodes it: every tensor of `like` on its own.

    The share `sparsity` of smallest modulus becomes zero, the rest the nearest of 2^bits - 1
    levels.
    """
    out, start = [], 0
    for size in (part.size for layer in like for part in layer):
        tensor = vector[start : start + size].copy()
        if sparsity is not None:
            kept = int(np.ceil(size * (1 - sparsity)))
            tensor[np.argsort(-np.abs(tensor), kind='stable')[kept:]] = 0
        if bits is not None and np.abs(tensor).max() > 0:
            step = np.abs(tensor).max() / (2 ** (bits - 1) - 1)
            tensor = step * np.floor(tensor / step + 0.5)
        out.append(tensor)
        start += size
    return np.concatenate(out)


def ntk_update(w, jac, f0, x, y, *, lr, timesteps, loss, evolution, selection):
    """Algorithm 4 with the Jacobian jac [B, C, P] and outputs f0: new w, chosen t, its loss."""
    h = kernel(jac)
    best = None
    evolved = accumulated_residuals(h, f0, y, lr, timesteps, loss, evolution)
    for t, (total, f_t) in zip(timesteps, evolved, strict=True):
        scale = lr / (y.size if loss == 'mse' else len(y))
        w_t = unflatten(flatten(w) - scale * np.einsum('ncp,nc->p', jac, total), w)  # Eq. (5a)
        value = sample_loss(mlp(w_t, x) if selection == 'network' else f_t, y, loss)
        if best is None or value < best[2]:
            best = (w_t, t, value)
    return best


def ntk_dfl_round(
    params,
    data,
    neighbours,
    *,
    mixing,
    averaging,
    batches=None,
    jacobian_weights='averaged',
    sparsity=None,
    bits=None,
    factor=lambda i, j: 1.0,
    **evolving,
):
    """One NTK-DFL round: Algorithms 2, 3 and 4, and appendix E.

    params: a list of M parameter lists; data: M pairs (x [N_i, d], y [N_i, C] one-hot);
    neighbours: M lists of client numbers; batches: for each client its index arrays, one a batch;
    factor(i, j): of the Jacobian that i hears of j. Returns the M new parameter lists, and for each
    client the timesteps chosen in its batches and the mean loss of the weights chosen.
    """
    if batches is None:
        batches = [[np.arange(len(x))] for x, _ in data]
    averaged = []
    for i, mine in enumerate(params):
        group = [i, *neighbours[i]]
        sizes = [len(data[j][0]) if mixing == 'size' else 1 for j in group]
        vector = sum(s * flatten(params[j]) for s, j in zip(sizes, group, strict=True)) / sum(sizes)
        averaged.append(unflatten(vector, mine) if averaging else mine)  # Eq. (1)

    new, chosen, losses = [], [], []
    for i, w in enumerate(averaged):
        of_batches = []
        for b in range(len(batches[i])):
            group = [(j, batches[j][b]) for j in [i, *neighbours[i]] if len(batches[j][b])]
            if not group:
                of_batches.append((evolving['timesteps'][0], 0.0))
                continue
            jacobians, outputs = [], []  # J_{j,i}, Eq. (2), at the weights reached so far
            for j, rows in group:
                at = averaged[j] if jacobian_weights == 'neighbours' else w
                outputs.append(mlp(at, data[j][0][rows]))
                jac = factor(i, j) * jacobian(at, data[j][0][rows])
                if j != i:
                    jac = np.array(
                        [[decoded(row, w, sparsity, bits) for row in sample] for sample in jac]
                    ).reshape(jac.shape)
                jacobians.append(jac)
            x, y = (np.concatenate([data[j][part][rows] for j, rows in group]) for part in (0, 1))
            received = np.concatenate(jacobians), np.concatenate(outputs)
            w, t, value = ntk_update(w, *received, x, y, **evolving)
            of_batches.append((t, value))
        new.append(w)
        chosen.append([t for t, _ in of_batches])
        losses.append(np.mean([value for _, value in of_batches]))
    return new, chosen, losses


# ------------------------------------------------------------------- local SGD and gossip averaging


def loss_and_gradient(params, x, y):
    """Mean cross-entropy of a batch (y one-hot) and its gradient by all parameters, flattened."""
    activations = [x]
    for weights, bias in params[:-1]:
        activations.append(np.maximum(activations[-1] @ weights + bias, 0.0))
    logits = activations[-1] @ params[-1][0] + params[-1][1]
    delta = (softmax(logits) - y) / len(x)  # d loss / d (output of the layer), [B, d_out]
    blocks = []
    for (weights, _), inputs in zip(params[::-1], activations[::-1], strict=True):
        blocks.insert(0, np.concatenate([(inputs.T @ delta).ravel(), delta.sum(axis=0)]))
        delta = (delta @ weights.T) * (inputs > 0)
    return sample_loss(logits, y, 'cross_entropy'), np.concatenate(blocks)


def local_training(
    params,
    x,
    y,
    batches,
    *,
    lr,
    optimizer='sgd',
    momentum=0.0,
    weight_decay=0.0,
    clip_norm=None,
    sam_radius=0.0,
    sam_adaptive=False,
    loss_cap=None,
    proximal=0.0,
    linear=0.0,
    support=1.0,
):
    """One client, one step for each index array of `batches`: the trained vector, the mean loss.

    linear: a vector that is added to every gradient; support: 0 where a weight is frozen, else 1.
    FedSpeed, Algorithm 1: SAM ascends and descends on the loss of the labels alone, and the
    proximal and the linear term are taken at the weights themselves.
    """
    w, losses = flatten(params), []
    start = w
    velocity, first, second = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for number, rows in enumerate(batches, start=1):
        loss, g = loss_and_gradient(unflatten(w, params), x[rows], y[rows])
        capped = loss_cap is not None and loss > loss_cap
        losses.append(loss_cap if capped else loss)
        if sam_radius:
            g = support * g
            scale = np.abs(w) if sam_adaptive else np.ones_like(w)
            ascent = sam_radius * scale**2 * g / np.linalg.norm(scale * g)
            _, g = loss_and_gradient(unflatten(w + ascent, params), x[rows], y[rows])
        g = 0 * g if capped else g
        g = support * (g + proximal * (w - start) + linear)
        if clip_norm is not None and np.linalg.norm(g) > clip_norm:
            g = g * clip_norm / np.linalg.norm(g)
        if optimizer == 'adamw':
            first = 0.9 * first + 0.1 * g
            second = 0.999 * second + 0.001 * g**2
            m_hat, v_hat = first / (1 - 0.9**number), second / (1 - 0.999**number)
            w = w - lr * support * (m_hat / (np.sqrt(v_hat) + 1e-8) + weight_decay * w)
        else:
            velocity = momentum * velocity + g + support * weight_decay * w
            w = w - lr * velocity
    return w, np.mean(losses)


def averaging_weights(neighbours, sizes, mixing):
    """The row of each client as a dictionary {client: weight}."""
    rows = []
    for i, linked in enumerate(neighbours):
        if mixing == 'metropolis':
            row = {j: 1 / (1 + max(len(linked), len(neighbours[j]))) for j in linked}
            row[i] = 1 - sum(row.values())
        else:
            share = {j: sizes[j] if mixing == 'size' else 1 for j in [i, *linked]}
            row = {j: s / sum(share.values()) for j, s in share.items()}
        rows.append(row)
    return rows


def gossip_sgd_round(
    params, data, neighbours, active, batches, *, mixing, round_order, gossip_steps, **training
):
    """One round of local training and averaging.

    params, data, neighbours: as in `ntk_dfl_round`; active: M booleans; batches: for each client
    its index arrays, one a step. Returns the M new parameter lists and the training losses.
    """
    rows = averaging_weights(neighbours, [len(x) for x, _ in data], mixing)

    def train(models):
        results = [
            local_training(unflatten(w, mine), *of_client, steps, **training)
            for w, mine, of_client, steps in zip(models, params, data, batches, strict=True)
        ]
        return [w for w, _ in results], [loss for _, loss in results]

    def gossip(models):
        for _ in range(gossip_steps):
            met = [sum(weight * models[j] for j, weight in row.items()) for row in rows]
            models = [m if on else kept for m, kept, on in zip(met, models, active, strict=True)]
        return models

    old = [flatten(mine) for mine in params]
    if round_order == 'average_first':
        new, losses = train(gossip(old))
    else:
        trained, losses = train(old)
        new = gossip(trained if round_order == 'train_first' else old)
        if round_order == 'parallel':
            new = [m + z - w for m, z, w in zip(new, trained, old, strict=True)]
    new = [n if on else w for n, w, on in zip(new, old, active, strict=True)]
    return ([unflatten(vector, mine) for vector, mine in zip(new, params, strict=True)], losses)


# ------------------------------------------------------------------------------------------- DisPFL


def erdos_renyi_kernel_counts(shapes, density):
    """Weights kept of each tensor, by the published iteration (Evci et al. 2020)."""
    raw = [sum(shape) / np.prod(shape) for shape in shapes]
    dense = [False] * len(shapes)
    while not all(dense):
        kept = divisor = 0.0
        for shape, density_of_one, full in zip(shapes, raw, dense, strict=True):
            if full:
                kept -= (1 - density) * np.prod(shape)
            else:
                kept += density * np.prod(shape)
                divisor += density_of_one * np.prod(shape)
        epsilon = kept / divisor
        most = max(r for r, full in zip(raw, dense, strict=True) if not full)
        if epsilon * most <= 1:
            break
        dense = [full or r == most for r, full in zip(raw, dense, strict=True)]
    return [
        int(np.prod(shape)) if full else max(1, int(epsilon * r * np.prod(shape)))
        for shape, r, full in zip(shapes, raw, dense, strict=True)
    ]


def largest(values, k, among):
    """The k candidates of the largest values, the first where values tie, as a set of indices."""
    order = sorted((i for i in range(len(values)) if among[i]), key=lambda i: (-values[i], i))
    return set(order[:k])


def dispfl_round(
    params,
    masks,
    data,
    neighbours,
    active,
    batches,
    regrow_batches,
    *,
    number,
    prune_rate,
    anneal_rounds,
    mixing,
    **training,
):
    """Round `number` of DisPFL: train under the mask, search it, average over the intersection.

    params, data, neighbours, active, batches: as in `gossip_sgd_round`; masks: M vectors of zeros
    and ones; regrow_batches: M index arrays. Returns the new params and masks, and the training
    losses.
    """
    rate = prune_rate / 2 * (1 + np.cos(np.pi * number / anneal_rounds))
    if number >= anneal_rounds:
        rate = 0.0
    trained, searched, losses = [], [], []
    for i, (x, y) in enumerate(data):
        w, of_steps = flatten(params[i]), []
        for batch in batches[i]:
            start = unflatten(w, params[i])
            w, loss = local_training(start, x, y, [batch], support=masks[i], **training)
            of_steps.append(loss)
        trained.append(w)
        losses.append(np.mean(of_steps))

        rows_of_batch = regrow_batches[i]
        _, g = loss_and_gradient(unflatten(w, params[i]), x[rows_of_batch], y[rows_of_batch])
        mask, start = np.zeros_like(masks[i]), 0
        for size in (part.size for layer in params[i] for part in layer):
            here = slice(start, start + size)
            count = int(masks[i][here].sum())
            replaced = int(np.ceil(rate * count))
            kept = largest(np.abs(w[here]), count - replaced, masks[i][here] > 0)
            outside = [j not in kept for j in range(size)]
            for j in kept | largest(np.abs(g[here]), replaced, outside):
                mask[start + j] = 1
            start += size
        searched.append(mask)

    new = list(zip(params, masks, strict=True))
    for i, row in enumerate(averaging_weights(neighbours, [len(x) for x, _ in data], mixing)):
        if active[i]:
            w = np.zeros_like(trained[i])
            for p in np.flatnonzero(searched[i]):
                holders = sum(weight * masks[j][p] for j, weight in row.items())
                if holders > 0:
                    w[p] = sum(weight * trained[j][p] for j, weight in row.items()) / holders
            new[i] = unflatten(w, params[i]), searched[i]
    return [list(part) for part in zip(*new, strict=True)], losses


# ------------------------------------------------------------------------------------------- NTK-FL


def ntk_fl_round(params, data, cohort, factors=None, **options):
    """One round of the server: NTK-DFL's of one aggregator that hears the cohort at its weights.

    params: of the server; data: as in `ntk_dfl_round`; cohort: the clients that answered, at least
    one; factors: of each client's Jacobian. Returns the new params, the chosen timestep and its
    loss.
    """
    heard, nobody = list(range(1, len(cohort))), [[] for _ in cohort[1:]]
    (new, *_), ((chosen,), *_), (loss, *_) = ntk_dfl_round(
        [params] * len(cohort),
        [data[i] for i in cohort],
        [heard, *nobody],
        mixing='uniform',
        averaging=False,
        factor=lambda _, j: 1.0 if factors is None else factors[cohort[j]],
        **options,
    )
    return new, chosen, loss


# ------------------------------------------------------------------------------------------- SPARK


def annealed(k, *, rounds, warmup, alpha, temperature):
    """SPARK, Algorithm 2, lines 1-7: alpha and tau of round k = 1, ..., R."""
    if k <= warmup:
        return 1.0, 1.0
    p = (k - warmup) / (rounds - warmup)
    share = alpha[1] + 0.5 * (alpha[0] - alpha[1]) * (1 + np.cos(np.pi * p))
    return share, temperature[0] + (temperature[1] - temperature[0]) * p


def spark_update(w, jac, f0, target, y, x, *, lr, timesteps, form, exact_step, selection):
    """Eq. (5), (6), (14) to (17) with the Jacobian [B, C, P], the projected one, and P [P, k]."""
    true, projected, matrix = jac
    n, classes = target.shape
    flat = projected.reshape(n * classes, -1)
    full = flat @ flat.T  # Eq. (6)
    if form == 'trace':
        full = np.kron(kernel(projected), np.eye(classes))  # Eq. (3) of NTK-DFL, of J P
    f, total, best = f0, np.zeros_like(f0), None
    for now in range(1, max(timesteps) + 1):
        residual = softmax(f) - target
        total = total + residual
        f = f - lr / n * (full @ residual.reshape(-1)).reshape(n, classes)  # Eq. (14), (15)
        if now not in timesteps:
            continue
        step = matrix @ (flat.T @ total.reshape(-1))  # Eq. (16), (17)
        if exact_step:
            step = true.reshape(n * classes, -1).T @ total.reshape(-1)
        w_t = unflatten(flatten(w) - lr / n * step, w)
        value = sample_loss(mlp(w_t, x) if selection == 'network' else f, y, 'cross_entropy')
        if best is None or value < best[2]:
            best = (w_t, now, value)
    return best


def spark_round(
    params,
    velocity,
    data,
    neighbours,
    matrices,
    *,
    alpha,
    tau,
    momentum,
    rows=None,
    averaging=True,
    decode=lambda jac: jac,
    factor=lambda i, j: 1.0,
    **evolving,
):
    """One SPARK round: Algorithm 1.

    params, velocity, data, neighbours: as in `ntk_dfl_round`; matrices: for each client the P
    [P, k] of its aggregator; rows: for each client the samples that it draws; decode: what the
    receiver makes of a projected Jacobian [N_j, C, k]; factor: as in `ntk_dfl_round`.
    """
    clients = len(params)
    sizes = [len(x) for x, _ in data]
    rows = rows or [np.arange(size) for size in sizes]

    def mean(trees, i):
        group = [i, *neighbours[i]]
        shares = np.array([sizes[j] for j in group]) / sum(sizes[j] for j in group)
        return unflatten(
            sum(s * flatten(trees[j]) for s, j in zip(shares, group, strict=True)), trees[i]
        )

    averaged = [mean(params, i) if averaging else params[i] for i in range(clients)]
    new_params, new_velocity, chosen, losses = [], [], [], []
    for i, w in enumerate(averaged):
        true, jacobians, outputs = [], [], []
        for j in [i, *neighbours[i]]:
            x = data[j][0][rows[j]]
            true.append(factor(i, j) * jacobian(w, x))
            projected = true[-1] @ matrices[i]  # Eq. (3)
            jacobians.append(projected if j == i else decode(projected))
            outputs.append(mlp(w, x))
        x, y = (
            np.concatenate([data[j][part][rows[j]] for j in [i, *neighbours[i]]]) for part in (0, 1)
        )
        target = alpha * y + (1 - alpha) * softmax(np.concatenate(outputs) / tau)  # Eq. (10), (11)
        evolved, t, value = spark_update(
            w,
            (np.concatenate(true), np.concatenate(jacobians), matrices[i]),  # Eq. (5)
            np.concatenate(outputs),
            target,
            y,
            x,
            **evolving,
        )
        delta = flatten(evolved) - flatten(w)
        v = momentum * flatten(velocity[i]) + delta  # Eq. (12)
        new_params.append(unflatten(flatten(w) + momentum * v + delta, w))  # Eq. (13)
        new_velocity.append(unflatten(v, w))
        chosen.append(t)
        losses.append(value)
    return new_params, new_velocity, chosen, losses


def steady_vector(adjacency):
    """Eq. (3) of Initialisation and topology: A' of the graph and its sum-normalised eigenvector.

    adjacency: [n, n], A_ij the weight that node j gives to i; a node gives itself one.
    """
    with_self = adjacency + np.eye(len(adjacency))
    transition = with_self / with_self.sum(axis=0)
    values, vectors = np.linalg.eig(transition)
    v = np.real(vectors[:, np.argmax(np.real(values))])
    return transition, v / v.sum()


def numerical_model_deviations(transition, rounds, sigma_init, sigma_noise):
    """Root mean squares over realisations of sigma_an and sigma_ap after rounds 0 to T, section 4.

    After t rounds W_init A'^t + sum of N A'^tau over tau < t, entries independent: node i has the
    variance V_ii and the nodes the covariance V. Over nodes the variance of one parameter is the
    mean of V_ii minus the variance of the mean; over many parameters that of node i is V_ii.
    """
    n = len(transition)
    covariance = sigma_init**2 * np.eye(n)
    among_nodes, among_parameters = [], []
    for _ in range(rounds + 1):
        variances = np.diag(covariance)
        among_nodes.append(np.sqrt(max(variances.mean() - covariance.mean(), 0)))
        among_parameters.append(np.sqrt(variances).mean())
        covariance = transition.T @ covariance @ transition + sigma_noise**2 * np.eye(n)
    return np.array(among_nodes), np.array(among_parameters)
