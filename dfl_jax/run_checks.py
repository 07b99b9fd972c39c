"""Checks of the arrays of a run: data, graphs and test set that do not belong together."""

import jax
import numpy as np

from dfl_jax.base import Algorithm, Array, Clients, Graph
from dfl_jax.checks import ROW_SUM_TOLERANCE


def check_labels(
    algorithm: Algorithm,
    clients: Clients,
    test: tuple,
    validation: Clients | None = None,
    axis: int = 0,
) -> None:
    """Raises ValueError for a label that is none of the model's outputs.

    axis: the position of M in the data; test: (x, y).
    """

    def logits(key: Array, clients: Clients) -> Array:
        return algorithm.predict(algorithm.init(key, clients), test[0][:1])['consensus']

    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[axis:], a.dtype), clients)
    outputs = jax.eval_shape(logits, jax.random.key(0), one).shape[-1]
    named = [('clients', clients.y, clients.mask), ('test set', test[1], np.ones(len(test[1])))]
    if validation is not None:
        named.append(('validation', validation.y, validation.mask))
    for what, labels, counts in named:
        labels, counts = np.asarray(labels), np.asarray(counts, bool)
        counts = counts.reshape(counts.shape + (1,) * (labels.ndim - counts.ndim))
        least, most = (pick(np.where(counts, labels, 0)) for pick in (np.min, np.max))
        if least < 0 or most >= outputs:
            raise ValueError(
                f'{what}: labels from {least} to {most}, and the model has {outputs} outputs; '
                'number the classes from 0, or give the model as many outputs'
            )


def check_shapes(
    data: Clients, graphs: Graph, test: tuple, validation: Clients | None = None, axis: int = 0
) -> None:
    """Raises ValueError for data, graphs and a test set that do not belong together.

    axis: the position of M in the data and of T in the graphs; test: (x, y, ...).
    """
    inputs, targets = data.x.shape[axis + 2 :], data.y.shape[axis + 2 :]
    for what, each in (('clients', data), ('validation', validation)):
        if each is None:
            continue
        x, y, mask = (np.shape(array) for array in each[:3])
        if y[: axis + 2] != mask or x[: axis + 2] != mask or len(mask) != axis + 2:
            raise ValueError(
                f'{what}: inputs {x}, labels {y} and mask {mask} do not fit each other; use '
                'data.pack'
            )
        if each.arrival is not None and np.shape(each.arrival) != mask:
            raise ValueError(
                f'{what}: arrival {np.shape(each.arrival)} has not the shape of mask {mask}; give '
                'the round of every sample'
            )
        if x[axis + 2 :] != inputs:
            raise ValueError(f'{what} have samples of shape {x[axis + 2 :]}, and clients {inputs}')
        if y[axis + 2 :] != targets:
            raise ValueError(f'{what} have targets of shape {y[axis + 2 :]}, and clients {targets}')
    if data.x.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"clients have inputs of {data.x.dtype}; give float32, as x.astype('float32') / 255 of "
            'bytes'
        )
    clients = data.y.shape[axis]
    if validation is not None and validation.y.shape[axis] != clients:
        raise ValueError(
            f'validation samples of {validation.y.shape[axis]} clients, and data of {clients}'
        )
    samples, labels = (np.shape(array) for array in test[:2])
    if labels != (*samples[:1], *targets) or labels[:1] in ((), (0,)) or samples[1:] != inputs:
        raise ValueError(
            f'the test set has inputs {samples} and labels {labels}, and the clients samples of '
            f'shape {inputs} with labels of {targets}; give a test set of at least one such sample'
        )
    members, mask, active = (np.shape(array) for array in graphs[:3])
    if members != mask or members[:-1] != active or len(members) != axis + 3 or 0 in members:
        raise ValueError(
            f'graphs: members {members}, mask {mask} and active {active} do not fit each other; '
            'use topology.schedule'
        )
    if graphs.weights is not None and np.shape(graphs.weights) != members:
        raise ValueError(
            f'graphs: weights {np.shape(graphs.weights)} and members {members} do not fit each '
            'other; give one weight a member'
        )
    if graphs.weights is not None:
        sums = np.where(_once(graphs.mask), _once(graphs.weights), 0).sum(axis=-1, dtype=float)
        sums = np.where(_once(graphs.active), sums, 1)
        if (wrong := np.abs(sums - 1) > ROW_SUM_TOLERANCE).any():
            raise ValueError(
                f'graphs: the weights of an aggregator and its members sum to {sums[wrong][0]:g}, '
                'and have to sum to 1'
            )
    named = _once(graphs.members)
    least, most, aggregators = int(named.min()), int(named.max()), members[-2]
    # Aggregators may be fewer than clients where these meet, and then they are not all the members;
    # the events of an interval may be more.
    alone = 1 < aggregators < clients and most < aggregators
    if least < 0 or most >= clients or alone:
        raise ValueError(
            f'a graph of {aggregators if alone else most + 1} clients (members {least} to '
            f'{most}) with the data of {clients}; draw the graphs for as many clients as hold data'
        )


def check_theory(algorithm: Algorithm, clients: Clients, graphs: Graph) -> None:
    """Raises ValueError for a schedule on which the method's theory does not hold, with the samples
    of its first round or with those of its last."""
    if algorithm.check is None:
        return
    last = len(graphs.active) - 1
    for number in (0, last) if clients.arrival is not None else (0,):
        algorithm.check(graphs, clients.sizes_in(number))


def honest_among(
    judged: np.ndarray | None, attackers: np.ndarray | None, clients: int
) -> np.ndarray | None:
    """The judged clients, all for None, without the attackers, [M] bool; None where that is all.

    Raises ValueError for what is no choice of some of the clients.
    """
    for name, chosen in (('judged', judged), ('attackers', attackers)):
        if chosen is not None:
            _check_choice_of_clients(name, chosen, clients)
    if attackers is None:
        return judged
    honest = ~attackers if judged is None else judged & ~attackers
    _check_choice_of_clients('judged without attackers', honest, clients)
    return honest


def _check_choice_of_clients(name: str, chosen: np.ndarray, clients: int) -> None:
    """Raises ValueError for what is no choice of some of the clients."""
    if chosen.shape != (clients,) or chosen.dtype != bool or not chosen.any():
        raise ValueError(
            f'{name} is {chosen.dtype} {list(chosen.shape)} with {np.count_nonzero(chosen)} '
            f'clients; give bool [{clients}] with at least one'
        )


def _once(array: np.ndarray) -> np.ndarray:
    """One round of what is the same in all rounds of a schedule, else all of it."""
    array = np.asarray(array)
    return array[:1] if array.strides[0] == 0 else array
