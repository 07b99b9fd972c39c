"""The stages of a Runge-Kutta-Chebyshev step of second order, and how stiff a flow they bear.

Sommeijer, Shampine & Verwer, "RKC: an explicit solver for parabolic PDEs", 1998.
"""

import numpy as np

MAX_STAGES = 32
DAMPING = 2 / 13


def stability_limit(stages):
    """Largest |eigenvalue| * step that s stages keep stable."""
    return 2 / 3 * (stages**2 - 1) * (1 - 2 / 15 * DAMPING)


def _coefficients() -> np.ndarray:
    """(mu, nu, mu~, gamma~) of stages 1..s for every s up to MAX_STAGES, [s, stage, 4].

    Sommeijer, Shampine & Verwer 1998, Eq. (2.3-2.7).
    """
    table = np.zeros((MAX_STAGES + 1, MAX_STAGES + 1, 4))
    for s in range(2, MAX_STAGES + 1):
        w0 = 1 + DAMPING / s**2
        t, dt, ddt = [1.0, w0], [0.0, 1.0], [0.0, 0.0]
        for _ in range(2, s + 1):  # Chebyshev polynomials and their derivatives at w0
            t.append(2 * w0 * t[-1] - t[-2])
            dt.append(2 * t[-2] + 2 * w0 * dt[-1] - dt[-2])
            ddt.append(4 * dt[-2] + 2 * w0 * ddt[-1] - ddt[-2])
        w1 = dt[s] / ddt[s]
        b = [ddt[2] / dt[2] ** 2] * 2 + [ddt[j] / dt[j] ** 2 for j in range(2, s + 1)]
        table[s, 1] = 0, 0, b[1] * w1, 0
        for j in range(2, s + 1):
            weight = 2 * b[j] * w1 / b[j - 1]
            table[s, j] = (
                2 * b[j] * w0 / b[j - 1],
                -b[j] / b[j - 2],
                weight,
                -(1 - b[j - 1] * t[j - 1]) * weight,
            )
    return table


COEFFICIENTS = _coefficients()
