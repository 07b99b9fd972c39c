"""The reconstruction attack: `dfl-jax attack`."""
