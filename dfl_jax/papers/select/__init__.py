"""Whose models to average in the end: `dfl-jax select`."""
