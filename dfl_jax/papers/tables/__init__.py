"""The tables and figures of the papers: `dfl-jax tables`."""
