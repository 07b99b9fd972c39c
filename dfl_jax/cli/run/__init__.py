"""One run: `dfl-jax run`."""
