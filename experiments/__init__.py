"""The papers: flagfiles, published numbers, and the commands under their names in the documents."""

import sys

from dfl_jax.cli import interrupts

if sys.argv[:1] == ['-m']:  # until `python -m experiments.NAME` has found its module
    interrupts.watch()
