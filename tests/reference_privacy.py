"""DP-SGD and DECOR in plain NumPy, written from the papers, one client and one sample at a time.

Abadi et al., CCS 2016, Algorithm 1; Allouah et al., ICML 2024, Algorithms 1 and 2.
"""

import numpy as np


def sample_gradient(layers, x, y):
    """Of the cross-entropy of one sample at an MLP with ReLU: [(kernel, bias), ...] as `layers`."""
    inputs, h = [], x
    for number, (kernel, bias) in enumerate(layers):
        inputs.append(h)
        h = h @ kernel + bias
        if number + 1 < len(layers):
            h = np.maximum(h, 0)
    p = np.exp(h - h.max())
    signal = p / p.sum() - np.eye(len(h))[y]
    gradient = []
    for number in reversed(range(len(layers))):
        gradient.append((np.outer(inputs[number], signal), signal))
        signal = (layers[number][0] @ signal) * (inputs[number] > 0)
    return gradient[::-1]


def clipped(gradient, clip):
    """The gradient of one sample, at most `clip` long."""
    norm = np.sqrt(sum((k**2).sum() + (b**2).sum() for k, b in gradient))
    return [(k / max(1, norm / clip), b / max(1, norm / clip)) for k, b in gradient]


def clipped_sum(layers, xs, ys, clip):
    """The sum of the clipped gradients of a batch."""
    total = [(np.zeros_like(k), np.zeros_like(b)) for k, b in layers]
    for x, y in zip(xs, ys, strict=True):
        each = clipped(sample_gradient(layers, x, y), clip)
        total = [(a + k, c + b) for (a, c), (k, b) in zip(total, each, strict=True)]
    return total


def rdp_of_a_step(adjacency, sigma, sigma_cor, clip):
    """DECOR, Algorithm 2 without subsampling: the largest over clients of the Renyi divergence
    over alpha, 2 C^2 [(sigma^2 I + sigma_cor^2 L)^-1]_ii."""
    n = len(adjacency)
    largest = 0.0
    for i in range(n):
        covariance = np.zeros((n, n))
        for j in range(n):
            covariance[j, j] = sigma**2 + sigma_cor**2 * adjacency[j].sum()
            for k in range(n):
                if adjacency[j, k]:
                    covariance[j, k] -= sigma_cor**2
        unit = np.zeros(n)
        unit[i] = 1
        largest = max(largest, np.linalg.solve(covariance, unit)[i])
    return 2 * clip**2 * largest
