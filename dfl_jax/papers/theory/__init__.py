"""The convergence theorem on a run: `dfl-jax theory`."""
