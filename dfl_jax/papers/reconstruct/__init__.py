"""The reconstruction attack: `dfl-jax reconstruct`."""
