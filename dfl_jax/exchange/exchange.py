"""The exchange of a round: what clients send is coded, tampered with, combined and counted here."""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree, Round, Sent, State
from dfl_jax.exchange.aggregation import Aggregation, weighted_sum
from dfl_jax.exchange.attacks import Attack
from dfl_jax.exchange.compression import Codec, chain
from dfl_jax.execution import bytes_of, map_in_chunks
from dfl_jax.gossip import mix
from dfl_jax.setting_error import InputError

# Streams of keys that are split, too, into the small numbers: of a round's what is sent, and of
# that what receivers draw
SENT = COMBINED = 2**31
CODING_COPIES = 10  # of a message that is coded: random numbers, masks (BEER, 2026-12-01)
OLD_STEP = (
    'this method is written for an earlier version of dfl_jax: write its step as step(key, state, '
    'round), with round.graph, round.clients, round.sizes and round.number in place of what it '
    'took or kept in its state, and send by round.exchange.mean, which counts the traffic, in '
    'place of unit_bits and Info.sent'
)


@dataclass
class Ledger:
    """What the round that is being traced has done with its exchange."""

    sent: dict[str, Sent] = field(default_factory=dict)  # by kind of message
    heard: bool = False  # whether lies would have been told
    combined: bool = False  # whether anything was combined by the exchange
    coded: bool = False  # whether anything was coded
    rows: bool = False  # whether rows of Jacobians were received


class CodingErrors:
    """What coding lost of each message, in the order in which the round sends them."""

    def __init__(self, before: list[PyTree] | None) -> None:
        """before: of the rounds before, leaves [M, ...]; None for nothing yet."""
        self.before, self.after = before, list[PyTree]()

    def with_before(self, content: PyTree) -> PyTree:
        """The next message of the round, leaves [M, ...], and what was lost before."""
        if self.before is None:
            return content
        return optax.tree.add(content, self.before[len(self.after)])

    def keep(self, content: PyTree, decoded: PyTree) -> None:
        """Keeps what coding lost of that message."""
        self.after.append(optax.tree.sub(content, decoded))


@dataclass(frozen=True)
class Exchange:
    """How the messages of a method are coded, tampered with and combined.

    Args:
      codec: of every message of models or of what is averaged like them; None leaves them.
      attack: what some clients send in place of their messages; None for honest clients.
      aggregation: how one receiver combines what it receives; None for the weighted mean.
      most_bits: of one number that is sent, at most: a rate widens weights of 16 bits, which are
        sent as such; None for those of its type.
      errors: of coding, which are fed back (`with_error_feedback`); None: they are not.
      loss: (x [N, ...], y [N, ...], mask [N], params) -> that of a model, for an aggregation that
        takes the loss on the receiver's own samples; None for one that does not.
      ledger: of the round that is being traced.

    >>> from dfl_jax.exchange.compression import quantization
    >>> Exchange(quantization(8)).bits(jnp.zeros(100))
    832
    """

    codec: Codec | None = None
    attack: Attack | None = None
    aggregation: Aggregation | None = None
    most_bits: int | None = None
    errors: CodingErrors | None = None
    loss: Callable[[Array, Array, Array, PyTree], Array] | None = None
    ledger: Ledger = field(default_factory=Ledger, compare=False, repr=False)

    @property
    def plain(self) -> bool:
        """Whether receivers take the weighted mean of what their members sent."""
        return self.aggregation is None and (self.attack is None or self.attack.tamper is None)

    def _replace(self, **fields: Any) -> 'Exchange':
        """The exchange with other fields, that counts into the same round."""
        return dataclasses.replace(self, **fields)

    def bits(self, shapes: PyTree) -> int:
        """Exact bits of one message that holds a tensor of each of these shapes, coded."""
        return (self.codec or chain()).bits(shapes, self.most_bits)

    def decoded(self, key: Array, tree: PyTree) -> PyTree:
        """One message as its receiver decodes it, leaves of any shape."""
        self.ledger.coded = True
        return (self.codec or chain()).transmit(key, tree)

    def count(self, kind: str, messages: Array, bits: int) -> None:
        """Counts messages of each client, [M] int32, of so many bits each.

        For what is sent within a loop over aggregators; `send` counts by itself.
        """
        before = self.ledger.sent.get(kind)
        if before is not None and before.bits != bits:
            raise ValueError(f'{kind} of {before.bits} and of {bits} bits in one round')
        total = messages if before is None else before.messages + messages
        self.ledger.sent[kind] = Sent(total, bits)

    def send(
        self,
        key: Array,
        round: Round,
        tree: PyTree,
        around: PyTree | None = None,
        *,
        kind: str = 'weights',
    ) -> PyTree:
        """What the receivers decode of every client's message, leaves [M, ...].

        Args:
          tree: what each client sends to all that hear it, leaves [M, ...].
          around: leaves [M, ...] that sender and receivers have in common, so that the difference
            from it is coded alone.
          kind: what the message holds, by which it is counted.
        """
        if around is not None and self.errors is not None:
            raise InputError(
                '`error_feedback` is of models that are sent as they are, and this method sends '
                'differences, which lose nothing for good; leave it out'
            )
        messages, _ = heard_messages(round.graph, len(round.sizes))
        self.count(kind, messages, self.bits(_one(tree)))
        if self.codec is None:
            return tree
        if self.errors is not None:
            tree = self.errors.with_before(tree)

        def of_client(inputs: tuple[Array, PyTree, PyTree | None]) -> PyTree:
            key, content, around = inputs
            if around is None:
                return self.decoded(key, content)
            return optax.tree.add(around, self.decoded(key, optax.tree.sub(content, around)))

        inputs = jax.random.split(key, len(round.sizes)), tree, around
        sent = map_in_chunks(of_client, inputs, None, CODING_COPIES * bytes_of(_one(tree)))
        if self.errors is not None:
            self.errors.keep(tree, sent)
        return sent

    def send_to_each(
        self, key: Array, round: Round, tree: PyTree, *, kind: str = 'weights'
    ) -> PyTree:
        """`send` of another message to each neighbour: leaves [H, K - 1, ...], by receiver."""
        messages, _ = heard_messages(round.graph, len(round.sizes))
        self.count(kind, messages, self.bits(_one(_one(tree))))
        if self.codec is None:
            return tree
        keys = jax.random.split(key, round.graph.members[:, 1:].shape)
        return jax.vmap(jax.vmap(self.decoded))(keys, tree)

    def reply(self, key: Array, round: Round, tree: PyTree, *, kind: str = 'weights') -> PyTree:
        """What the members decode of what each aggregator sends back to them, leaves [H, ...]."""
        _, messages = heard_messages(round.graph, len(round.sizes))
        self.count(kind, messages, self.bits(_one(tree)))
        if self.codec is None:
            return tree
        keys = jax.random.split(key, len(round.graph.members))
        return jax.vmap(self.decoded)(keys, tree)

    def heard(
        self,
        key: Array,
        sent: PyTree,
        members: Array,
        delivered: Array,
        weights: Array,
        own: PyTree | None = None,
        hearers: Array | None = None,
    ) -> PyTree:
        """What one receiver hears of what its members send, leaves [K, ...]: a lie, where an honest
        client hears an attacker.

        Args:
          sent: leaves [K, ...], those of the receiver first.
          members: [K], the clients that send.
          delivered: [K] bool.
          weights: [K], of the members in an average.
          own: the receiver's, leaves [...], which attacks know; None for the first of `sent`.
          hearers: the client that hears each member, [K]; None for the first member.
        """
        self.ledger.heard = True
        if self.attack is None or self.attack.tamper is None:
            return sent
        attackers = jnp.asarray(self.attack.attackers)
        hearers = members[0] if hearers is None else hearers
        lies = attackers[members] & delivered & ~attackers[hearers]
        known = delivered & (lies | ~attackers[members])  # others who attack are no honest members
        return self.attack.tamper(
            key, sent, lies, _one(sent) if own is None else own, weights, known
        )

    def combine(self, key: Array, round: Round, rows: Array, decoded: PyTree) -> PyTree:
        """What every receiver makes of what its members sent, leaves [M, ...] -> [H, ...].

        rows: [H, K], the weights of the members, which sum to one.
        """
        self.ledger.heard = self.ledger.combined = True
        if self.plain:
            return mix(rows, round.graph.members, decoded)

        def at_receiver(inputs: tuple) -> PyTree:
            key, members, delivered, weights, *samples = inputs
            sent = jax.tree.map(lambda a: jnp.take(a, members, axis=0, mode='clip'), decoded)
            own, received = _one(sent), self.heard(key, sent, members, delivered, weights)
            if self.aggregation is None:
                return weighted_sum(weights, received)
            loss = [] if self.loss is None else [partial(self.loss, *samples)]
            return self.aggregation(own, received, weights, delivered, *loss)

        members, mask, active = round.graph[:3]
        itself = members[:, 0]
        samples = [] if self.loss is None else [leaf[itself] for leaf in round.clients[:3]]
        keys = jax.random.split(key, len(members))
        inputs = (keys, members, mask & active[:, None], rows, *samples)
        each = 4 * members.shape[1] * bytes_of(jax.eval_shape(_one, decoded))
        each += 3 * bytes_of(jax.eval_shape(_one, samples))  # and what the loss makes of them
        new = map_in_chunks(at_receiver, inputs, None, each)
        return jax.tree.map(
            lambda n, d: jnp.where(active.reshape(-1, *[1] * (d.ndim - 1)), n, d[itself]),
            *(new, decoded),
        )

    def mean(
        self,
        key: Array,
        round: Round,
        rows: Array,
        tree: PyTree,
        around: PyTree | None = None,
        *,
        kind: str = 'weights',
    ) -> PyTree:
        """`send` and `combine`: leaves [M, ...] -> [H, ...]."""
        decoded = self.send(key, round, tree, around, kind=kind)
        return self.combine(jax.random.fold_in(key, COMBINED), round, rows, decoded)

    def row_factors(self, graph: Graph, server: bool = False) -> Array | None:
        """By what the rows of Jacobians that aggregators hear are multiplied, [H, K]; None: by one.

        server: whether the aggregator is none of the clients; else it is its first member, who
        hears the truth if it lies itself.
        """
        self.ledger.rows = True
        if self.attack is None or self.attack.row_factor is None:
            return None
        lies = jnp.asarray(self.attack.attackers)[graph.members]
        return jnp.where(lies if server else lies & ~lies[:, :1], self.attack.row_factor, 1.0)


def heard_messages(graph: Graph, clients: int) -> tuple[Array, Array]:
    """Messages over delivered links: (from the members to aggregators, from the aggregators back),
    int32 [M].

    What an aggregator sends is counted for the client that it is, its column 0.
    """
    delivered = (graph.mask[:, 1:] & graph.active[:, None]).astype(jnp.int32)
    to_aggregators = jax.ops.segment_sum(delivered.ravel(), graph.members[:, 1:].ravel(), clients)
    from_aggregators = jax.ops.segment_sum(delivered.sum(axis=1), graph.members[:, 0], clients)
    return to_aggregators, from_aggregators


def round_of(
    number: Array | int,
    graph: Graph,
    clients: Clients,
    exchange: Exchange | None = None,
    judged: Array | None = None,
) -> Round:
    """The round of this number, from 0, with the samples that have arrived.

    judged: [M] bool, clients over whom means are taken; None: all.
    """
    clients = clients.arrived_in(number)
    mask = jnp.asarray(clients.mask)
    sizes = mask.sum(axis=1, dtype=jnp.int32)
    exchange = (exchange or Exchange())._replace(ledger=Ledger())
    number = jnp.asarray(number, jnp.int32)
    return Round(number, graph, clients._replace(mask=mask), sizes, exchange, judged)


def one_round(
    algorithm: Algorithm,
    key: Array,
    state: State,
    number: Array | int,
    graph: Graph,
    clients: Clients,
    judged: Array | None = None,
) -> tuple[State, Info]:
    """One step of a method, and what it reports with what its clients sent.

    Args:
      number: of the round, from 0.
      judged: [M] bool, clients over whom means are taken; None: all.

    Raises ValueError for an aggregation where the method's theory asks for a linear average, and
    for a codec, an aggregation or an attack that the method does not use.
    """
    if len(inspect.signature(algorithm.step).parameters) == 4:
        raise TypeError(OLD_STEP)
    round = round_of(number, graph, clients, algorithm.exchange, judged)
    exchange: Exchange = round.exchange
    if exchange.aggregation is not None and algorithm.linear:
        raise ValueError(
            f'this method needs a linear average: {algorithm.linear}; leave the aggregation out'
        )
    state, info = algorithm.step(key, state, round)
    if exchange.codec is not None and not exchange.ledger.coded:
        raise ValueError('this method sends nothing that is coded; leave the compression out')
    attack, ledger = exchange.attack, exchange.ledger
    if attack is not None and attack.tamper is not None and not ledger.heard:
        raise ValueError(
            'attacks on models do not reach a method that combines them in a way of its own; leave '
            'them out'
        )
    if attack is not None and attack.row_factor is not None and not ledger.rows:
        raise ValueError(
            'this attack is on the rows of Jacobians, and this method sends none; take one on '
            'models, or `algorithm=ntk_dfl`, `algorithm=spark` or `algorithm=ntk_fl`'
        )
    if exchange.aggregation is not None and not ledger.combined:
        raise ValueError(
            'rules of aggregation do not reach a method that combines models in a way of its own, '
            'as at meetings or without rounds; leave them out'
        )
    if not isinstance(info, Info):  # a method of one's own, of which `algorithm_check` says so
        return state, info
    if clients.arrival is not None:
        # Of those without samples yet: that of the others, so that means are of these
        trains = round.sizes[: len(info.loss)] > 0  # without what fills the shares of devices
        mean = jnp.sum(jnp.where(trains, info.loss, 0)) / jnp.maximum(trains.sum(), 1)
        info = info._replace(loss=jnp.where(trains, info.loss, mean))
    return state, info._replace(sent=exchange.ledger.sent)


def _one(tree: PyTree) -> PyTree:
    """The first entry of stacked leaves."""
    return jax.tree.map(lambda leaf: leaf[0], tree)
