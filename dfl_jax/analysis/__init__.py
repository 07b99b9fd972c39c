"""What is computed beside or after a run: convergence theory, attacks, final averaging.

Nothing here takes part in training. The modules are imported by name:
`from dfl_jax.analysis import reconstruction`.
"""
