"""Finished runs in any world: `dfl-jax time`."""
