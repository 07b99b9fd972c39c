"""Many runs: `dfl-jax sweep`."""
