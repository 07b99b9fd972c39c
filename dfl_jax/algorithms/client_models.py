"""How the models of the clients begin, are averaged and become one, in most methods."""

from dataclasses import dataclass

from dfl_jax.base import Array, Round
from dfl_jax.checks import check_choice
from dfl_jax.gossip import MIXINGS, mixing_weights
from dfl_jax.initialisation import Init, check_init


@dataclass(frozen=True, kw_only=True)
class ClientModels:
    """The models of the clients: their start, their mean, and how many are worked on at once.

    Args:
      consensus: the consensus model is the `mean` or `size`-weighted mean of the M models.
      init: `same` or `independent` initial weights, see `dfl_jax.initialisation`.
      chunk: clients or aggregators worked on at once; None for one on a CPU, elsewhere what memory
        holds.

    Raises SettingError for an unknown init.
    """

    consensus: str = 'mean'
    init: Init = 'same'
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_init(self.init)


@dataclass(frozen=True, kw_only=True)
class Gossip(ClientModels):
    """Models that are averaged with those of neighbours.

    Args:
      init: `same`, `independent` or `gain_corrected` weights, see `dfl_jax.initialisation`.
      mixing: weights of the average: `metropolis`, `uniform` or `size`, see
        `dfl_jax.gossip.mixing`.

    Raises SettingError for an unknown mixing.

    >>> Gossip(mixing='size').mixing
    'size'
    """

    mixing: str = 'metropolis'

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice('mixing', self.mixing, MIXINGS)

    def rows(self, round: Round) -> Array:
        """The rows of the mixing matrix W that a round's aggregators need, [H, K]."""
        return mixing_weights(round.graph, round.sizes, self.mixing)
