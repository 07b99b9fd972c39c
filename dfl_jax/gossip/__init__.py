"""What averaging does: the mixing step, and how models approach each other by it.

Spectra of mixing matrices, the gain that makes up for averaging independent initial weights, and
gossip without learning.
"""

from dfl_jax.gossip.gain import (
    gain_of,
    gain_of_degrees,
    gain_of_family,
    gain_of_size,
    mixing_matrices,
    polled_degrees,
    push_sum_size,
)
from dfl_jax.gossip.mixing import MIXINGS, mix, mix_at_aggregator, mixing_weights, push_weights
from dfl_jax.gossip.spectra import Spectrum, mixing_matrix, spectrum
