"""What is computed beside or after a run: convergence theory, attacks, final averaging."""
