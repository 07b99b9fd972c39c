"""A page on finished runs: `dfl-jax report`."""
