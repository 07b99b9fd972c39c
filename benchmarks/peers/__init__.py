"""One script per simulator, `python -m benchmarks.peers.NAME`; see benchmarks/vs_peers.md.

Each runs with that simulator's packages alone, so that none but `ours` may import dfl_jax.
`byzfl` has no rounds, but rules, for benchmarks/robust.py.
"""
