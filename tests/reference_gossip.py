"""The methods that correct gossip, in plain NumPy from the equations of their papers.

One client at a time: x[i] is a client's vector of weights, W a dense mixing matrix, and
gradients(i, x) its gradient; `rates` are the learning rates of the rounds. Every function yields
the weights after each round.
"""

import numpy as np


def mixed(matrix, values):
    """sum_j W_ij values_j, of each client i."""
    clients = range(len(values))
    return [sum(matrix[i, j] * values[j] for j in clients) for i in clients]


def dsgt(x, gradients, matrix, rates):
    """Pu & Nedic: y starts as the gradient."""
    clients = range(len(x))
    g = [gradients(i, x[i]) for i in clients]
    y = list(g)
    for lr in rates:
        x = mixed(matrix, [x[i] - lr * y[i] for i in clients])
        new = [gradients(i, x[i]) for i in clients]
        y = [a + b - c for a, b, c in zip(mixed(matrix, y), new, g, strict=True)]
        g = new
        yield x


def d2(x, gradients, matrix, rates):
    """Tang et al., Algorithm 1."""
    clients, before, g_before = range(len(x)), None, None
    for lr in rates:
        g = [gradients(i, x[i]) for i in clients]
        if before is None:
            half = [x[i] - lr * g[i] for i in clients]
        else:
            half = [2 * x[i] - before[i] - lr * g[i] + lr * g_before[i] for i in clients]
        before, g_before, x = x, g, mixed(matrix, half)
        yield x


def qg_dsgdm(x, gradients, matrix, rates, mu):
    """Lin et al., Algorithm 1."""
    clients = range(len(x))
    m = [np.zeros_like(each) for each in x]
    for lr in rates:
        half = [x[i] - lr * (mu * m[i] + gradients(i, x[i])) for i in clients]
        new = mixed(matrix, half)
        m = [mu * m[i] + (1 - mu) * (x[i] - new[i]) / lr for i in clients]
        x = new
        yield x


def dfed_admm(x, gradients, matrix, rates, steps, penalty, radius=0.0):
    """ADMM by its dual variables d and local gradient descent; penalty: lambda. With a radius the
    gradient is that at the weights ascended along it, as in FedSpeed, Algorithm 1."""
    clients = range(len(x))
    d = [np.zeros_like(each) for each in x]
    for lr in rates:
        w = list(x)
        for i in clients:
            for _ in range(steps):
                g = gradients(i, w[i])
                g = gradients(i, w[i] + radius * g / np.linalg.norm(g))
                w[i] = w[i] - lr * (g - d[i] + (w[i] - x[i]) / penalty)
            d[i] = d[i] - (w[i] - x[i]) / penalty
        x = mixed(matrix, [w[i] - penalty * d[i] for i in clients])
        yield x


def dfed_alt(x, gradients, matrix, rates, head, head_rate, steps, clip):
    """Shi et al., Algorithm 1; head: 1 for a weight of the head, else 0. A gradient is clipped to
    the norm `clip` over the part that is trained."""
    clients = range(len(x))

    def descend(i, w, part, rate, count):
        for _ in range(count):
            g = part * gradients(i, w)
            w = w - rate * g * min(1, clip / np.linalg.norm(g))
        return w

    for lr in rates:
        half = [descend(i, x[i], head, head_rate, 1) for i in clients]
        half = [descend(i, half[i], 1 - head, lr, steps) for i in clients]
        met = mixed(matrix, half)
        x = [head * half[i] + (1 - head) * met[i] for i in clients]
        yield x


def sgp(x, gradients, matrix, rates):
    """Assran et al., Algorithm 1; matrix: column-stochastic. The ratios z of every round."""
    clients = range(len(x))
    w, z = [1.0] * len(x), list(x)
    for lr in rates:
        half = [x[i] - lr * gradients(i, z[i]) for i in clients]
        x, w = mixed(matrix, half), mixed(matrix, w)
        z = [x[i] / w[i] for i in clients]
        yield z


def choco_sgd(x, gradients, matrix, rates, gamma, compress):
    """Koloskova et al., Algorithm 2, with a copy at every neighbour: public[i][j], j's at i."""
    clients = range(len(x))
    public = [[np.zeros_like(x[0]) for _ in clients] for _ in clients]
    for lr in rates:
        half = [x[i] - lr * gradients(i, x[i]) for i in clients]
        messages = [compress(half[j] - public[j][j]) for j in clients]
        public = [[public[i][j] + messages[j] for j in clients] for i in clients]
        x = [
            half[i] + gamma * sum(matrix[i, j] * (public[i][j] - public[i][i]) for j in clients)
            for i in clients
        ]
        yield x


def beer(x, gradients, matrix, rates, gamma, compress):
    """Zhao et al., Algorithm 1, line by line: H and G, the copies of weights and of trackers, start
    at zero, V as the gradient."""
    clients = range(len(x))
    g = [gradients(i, x[i]) for i in clients]
    h, c, v = [0 * each for each in x], [0 * each for each in x], list(g)
    for lr in rates:
        pull = mixed(matrix, h)
        x = [x[i] + gamma * (pull[i] - h[i]) - lr * v[i] for i in clients]
        h = [h[i] + compress(x[i] - h[i]) for i in clients]
        new, pull = [gradients(i, x[i]) for i in clients], mixed(matrix, c)
        v = [v[i] + gamma * (pull[i] - c[i]) + new[i] - g[i] for i in clients]
        c = [c[i] + compress(v[i] - c[i]) for i in clients]
        g = new
        yield x


def relay_sgd(x, gradients, neighbours, rates):
    """Vogels et al., Algorithm 1; neighbours: of each client."""
    clients, start = range(len(x)), x
    links = [(i, j) for i in clients for j in neighbours[i]]
    m = {link: 0.0 for link in links}
    count = dict.fromkeys(links, 0)
    for lr in rates:
        half = [x[i] - lr * gradients(i, x[i]) for i in clients]
        m, count = (
            {(i, j): half[i] + sum(m[k, i] for k in neighbours[i] if k != j) for i, j in links},
            {(i, j): 1 + sum(count[k, i] for k in neighbours[i] if k != j) for i, j in links},
        )
        absent = [len(x) - 1 - sum(count[j, i] for j in neighbours[i]) for i in clients]
        x = [
            (half[i] + sum(m[j, i] for j in neighbours[i]) + absent[i] * start[i]) / len(x)
            for i in clients
        ]
        yield x
