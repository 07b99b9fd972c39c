"""DFedADMM: Li, Shen, Li, Yin & Tao, arXiv 2308.08290, TPAMI 2025.

The alternating direction method of multipliers with gossip in place of a server: what training
moved a client in all rounds, h, holds it back in the next ones, so that clients of different data
do not drift apart. With f the client's loss and 1 / lambda the weight of its proximal term:

    w <- argmin f(w) + (h, w) / lambda + |w - x|^2 / (2 lambda)    by local training from x
    h <- h + w - x                                                 -h / lambda is the dual variable
    x <- W (w + h)

These are the updates of FedSpeed (Sun, Shen, Huang, Ding & Tao, ICLR 2023) as its authors' program
has them, with W in place of the server's mean; the text of DFedADMM itself was not at hand. Where
nothing moves any more, h = -lambda grad f(x) and x = W (x - lambda grad f(x)), as for D-PSGD with a
learning rate of lambda, whatever the local training. On a complete graph that is the optimum.

With `--sam_radius` it is DFedADMM-SAM. One message a round.
"""

from typing import NamedTuple

import jax
import optax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import gossip_method
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.checks import check_range
from dfl_jax.exchange import SENT
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining, local_training

TRAINING = LocalTraining(lr=0.1, batch_size=25, local_epochs=5, proximal=0.1)


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    moved: PyTree  # h, leaves [M, ...]


def dfed_admm(
    model: Model, *, training: LocalTraining = TRAINING, gossip: Gossip = Gossip()
) -> Algorithm:
    """ADMM with gossip.

    Args:
      training: of every client; its `proximal` is 1 / lambda, and must not be 0.
      gossip: averages, start and consensus.
    """
    check_range('proximal (1 / lambda)', training.proximal, above=0)
    train = local_training(model, training, gossip.chunk)

    def step(key: Array, state: State, round: Round) -> tuple:
        x, moved = state
        dual_term = optax.tree.scale(training.proximal, moved)
        trained, losses = train(key, x, round.clients, round.number, linear=dual_term)
        now = jax.tree.map(lambda h, w, x: h + (w - x), moved, trained, x)
        message = optax.tree.add(trained, now)
        k_sent = jax.random.fold_in(key, SENT)
        new = round.exchange.mean(k_sent, round, gossip.rows(round), message)
        return (new, now), losses

    return gossip_method(model, gossip, [training], step, State, private=True)
