"""DFedAlt: Shi, Liu, Sun, Lin, Shen, Wang & Tao, "Towards More Suitable Personalization in
Decentralized Federated Learning via Decentralized Partial Model Training", 2023, Algorithm 1.

A client's model is a body, which clients average, and a head of its own, the last layer, which
never leaves it. Every round trains the head on the body that was averaged, then the body under the
new head, and averages the bodies; the defaults are those of the authors' program, which clips the
gradient of the part that it trains:

    v <- T(v; u),    u_half <- T(u; v),    u <- W u_half

Accuracy on the test set shared by all says little of such models: set `--validation_share` for
that on a client's own data.
"""

import jax
import jax.numpy as jnp

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import State, gossip_method
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.checks import check_choice, check_range
from dfl_jax.exchange import SENT
from dfl_jax.models import Model, layers
from dfl_jax.training import LocalTraining, local_training

TRAINING = LocalTraining(lr=0.1, batch_size=128, local_epochs=5, clip_norm=10.0)


def dfed_alt(
    model: Model,
    *,
    training: LocalTraining = TRAINING,
    head_epochs: int = 1,
    head_lr: float = 0.001,
    head: str | None = None,
    gossip: Gossip = Gossip(mixing='uniform'),
) -> Algorithm:
    """Alternating training of personal heads and a shared body.

    Args:
      training: of the body, and of the head but for its epochs and rate.
      head_epochs: passes over a client's data that train its head.
      head_lr: learning rate of the head.
      head: the layer that stays with each client, by its name in the parameters; None for the last
        one.
      gossip: averages of the bodies, start and consensus.
      consensus: the consensus model is the `mean` or `size`-weighted mean of the M models, heads
        included.

    Raises ValueError for a head that the parameters do not have.
    """
    check_range('head_epochs', head_epochs, least=1)
    check_range('head_lr', head_lr, above=0)
    kept = head or last_layer(model)
    check_choice('head', kept, tuple(model.shapes))
    train_body = local_training(model, training, gossip.chunk)
    of_head = training.replace(lr=head_lr, local_epochs=head_epochs)
    train_head = local_training(model, of_head, gossip.chunk)

    def trained_part(params: PyTree, in_head: bool) -> PyTree:
        """1 where a weight is trained, else 0; leaves [M, 1, ...]."""

        def filled(path: tuple, leaf: Array) -> Array:
            shape = (len(leaf), *[1] * (leaf.ndim - 1))
            return jnp.full(shape, (path[0].key == kept) == in_head, leaf.dtype)

        return jax.tree_util.tree_map_with_path(filled, params)

    def step(key: Array, state: State, round: Round) -> tuple:
        k_head, k_body = jax.random.split(key)
        (w,), clients, k = state, round.clients, round.number
        new_head, _ = train_head(k_head, w, clients, k, trained_part(w, in_head=True))
        trained, losses = train_body(k_body, new_head, clients, k, trained_part(w, in_head=False))
        bodies = {name: part for name, part in trained.items() if name != kept}
        k_sent = jax.random.fold_in(key, SENT)
        mixed = round.exchange.mean(k_sent, round, gossip.rows(round), bodies)
        return (trained | mixed,), losses

    return gossip_method(model, gossip, [training, of_head], step)


def last_layer(model: Model) -> str:
    """The name of the last top-level layer whose outputs are the model's.

    Raises ValueError where no layer is.
    """
    names = [path[0] for path in layers(model) if path]
    found = [
        name
        for name in names
        if any(w.shape[-1:] == (model.classes,) for w in jax.tree.leaves(model.shapes[name]))
    ]
    if not found:
        raise ValueError(
            f'no layer of {type(model.module).__name__} has {model.classes} outputs; name the head '
            f'by head={"|".join(model.shapes)}'
        )
    return found[-1]
