"""A page on runs while they go on: `dfl-jax watch`."""
