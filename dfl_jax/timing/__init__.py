"""Seconds of a real network: what clients and links are like, and when each of them is done."""

from dfl_jax.timing.world import Online, World, parse, world
