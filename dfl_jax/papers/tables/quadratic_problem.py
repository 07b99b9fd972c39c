"""Random quadratics with a known optimum, on which methods are proved.

f_i(x) = |A_i x - b_i|^2, as in the appendix of RelaySGD (Vogels et al., NeurIPS 2021), whose
program takes A_i^T (A_i x - b_i), half of their gradient: learnt by `Linear` without a bias under
the task `regression` from the rows of A_i and the entries of b_i, whose loss, a mean over samples,
is f_i / d.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Array, Clients, PyTree


class Quadratics(NamedTuple):
    """The problems of a network, and where their mean is least."""

    clients: Clients  # x [M, d, d] the rows of A_i, y [M, d] b_i, all true samples
    optimum: Array  # x*, [d]
    hessian: Array  # mean of A_i^T A_i, [d, d]

    def suboptimality(self, params: PyTree) -> Array:
        """mean_i f_i(x) - mean_i f_i(x*) of a model's weights x, a kernel [d, 1]; scalar."""
        gap = params['Dense_0']['kernel'][:, 0] - self.optimum
        return gap @ self.hessian @ gap


def quadratics(clients: int, dimension: int, *, zeta2: float, seed: int = 0) -> Quadratics:
    """Problems of M clients in d dimensions; A_i has singular values from 0.5 to 1, |x*| = 1.

    Args:
      clients: M.
      dimension: d.
      zeta2: mean squared norm of the clients' A_i^T (A_i x - b_i) at the optimum, which RelaySGD's
        program calls their gradients.
      seed: of the directions: singular vectors, the clients' own minima, the optimum.

    Raises ValueError for one client with a zeta2: its gradient is zero at its own optimum.
    """
    if clients == 1 and zeta2:
        raise ValueError(f'one client has no gradient at its optimum; use zeta2=0, not {zeta2}')
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(clients, dimension, dimension)))[0] for _ in '12')
    a = left * np.linspace(0.5, 1, dimension) @ right  # [M, d, d]
    hessian = np.einsum('mki,mkj->ij', a, a) / clients
    own = np.einsum('mki,mi->mk', a, rng.normal(size=(clients, dimension)))  # b_i
    centre = np.linalg.solve(hessian, np.einsum('mki,mk->i', a, own) / clients)
    own -= a @ centre  # now the optimum is zero
    gradients = np.einsum('mki,mk->mi', a, own)
    own *= np.sqrt(zeta2 / np.mean(np.sum(gradients**2, axis=1)))
    direction = rng.normal(size=dimension)
    optimum = direction / np.linalg.norm(direction)
    data = a, own + a @ optimum, np.ones((clients, dimension), bool)
    return Quadratics(Clients(*map(jnp.asarray, data)), jnp.asarray(optimum), jnp.asarray(hessian))
