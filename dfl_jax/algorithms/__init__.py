"""The methods that advance in rounds, a file each that reads like its paper.

What they share is in `gossip_method`, what their theory asks of a network in `graph_requirements`;
the table of all methods is `dfl_jax.methods`.
"""
