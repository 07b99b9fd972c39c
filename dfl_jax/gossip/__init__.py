"""What averaging does: the mixing step, and how models approach each other by it.

Spectra of mixing matrices, the gain that makes up for averaging independent initial weights, and
gossip without learning.
"""

from dfl_jax.gossip.mixing import MIXINGS, mix, mix_at_aggregator, mixing_weights
from dfl_jax.gossip.spectra import Spectrum, mixing_matrix, spectrum

__all__ = [
    'MIXINGS',
    'Spectrum',
    'mix',
    'mix_at_aggregator',
    'mixing_matrix',
    'mixing_weights',
    'spectrum',
]
