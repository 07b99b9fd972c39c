"""Methods without rounds in plain NumPy, from the equations of their papers: one event at a time.

A queue of events in the order of time holds whole models: what is in flight is a copy. x[i] is a
client's vector of weights and gradients(i, x) its gradient. Every function returns the weights of
all clients at each of the times `ends`, and how many messages of each client arrived. `liars` tell
the honest lies in place of the models that an update takes in.
"""

import heapq

import numpy as np
import reference_robust

from dfl_jax.asynchronous.events import STREAM

BEGINS, DONE, ARRIVES, SENDS, BEGINS_AFTER = range(5)  # the order of what happens at one time
NOBODY = reference_robust.Liars(np.zeros(100, bool), None)


class Simulation:
    """The queue, the clock and the dice of a network; `hears` and `heard_by`: lists of lists."""

    def __init__(self, x, world, hears, *, flops, bits, loss, seed):
        self.x, self.world, self.hears = [each.copy() for each in x], world, hears
        clients = range(len(x))
        self.heard_by = [[i for i in clients if j in hears[i]] for j in clients]
        self.flops, self.bits, self.loss = flops, bits, loss
        self.dice = [np.random.default_rng([seed, STREAM, i]) for i in clients]
        self.queue, self.number, self.sent = [], 0, [0] * len(x)

    def put(self, time, what, client, content=None):
        if np.isfinite(time):
            self.number += 1
            heapq.heappush(self.queue, (time, what, client, self.number, content))

    def draw(self, i, count):
        return [self.heard_by[i][k] for k in self.dice[i].permutation(len(self.heard_by[i]))][
            :count
        ]

    def computing(self, i):
        return self.flops / self.world.speed[i]

    def online_from(self, i, time):
        return float(self.world.next_online(np.full(len(self.x), time))[i])

    def is_online(self, i, time):
        return self.online_from(i, time) == time

    def way(self, i, j, messages=1, bits=None):
        rate = min(self.world.uplink[i] / messages, self.world.downlink[j])
        return self.world.latency[i] + (bits or self.bits) / rate

    def neighbour(self, i):
        return self.heard_by[i][self.dice[i].integers(len(self.heard_by[i]))]

    def lost(self, i):
        return self.dice[i].random() < self.loss

    def run(self, ends, happens):
        """The weights at the ends, [ends][M]; happens: (time, what, client, content)."""
        found = []
        for end in ends:
            while self.queue and self.queue[0][0] <= end:
                time, what, i, _, content = heapq.heappop(self.queue)
                happens(time, what, i, content)
            found.append([each.copy() for each in self.x])
        return found, self.sent


def ad_psgd(x, gradients, world, hears, ends, *, lr, liars=NOBODY, **network):
    """Lian et al., Algorithm 1."""
    net = Simulation(x, world, hears, **network)

    def begin(i, time):
        """Draws the partner; the gradient is that of now."""
        j, lost = net.neighbour(i), [net.lost(i), net.lost(i)]
        took = net.computing(i) + max(net.way(i, j), net.way(j, i))
        net.put(time + took, DONE, i, (j, any(lost), gradients(i, net.x[i])))

    def happens(time, what, i, content):
        if what == BEGINS:
            begin(i, time)
            return
        j, lost, gradient = content
        if not lost and net.is_online(i, time) and net.is_online(j, time):
            of_i, of_j = (
                sum(liars.heard(pair, np.array([net.x[n] for n in pair]))) / 2
                for pair in ((i, j), (j, i))
            )
            net.x[i], net.x[j] = of_i, of_j
            net.sent[i] += 1
            net.sent[j] += 1
        net.x[i] = net.x[i] - lr * gradient
        if net.is_online(i, time):
            begin(i, time)
        else:
            net.put(net.online_from(i, time), BEGINS, i)

    for i in range(len(x)):
        net.put(net.online_from(i, 0.0), BEGINS, i)
    return net.run(ends, happens)


def gossip_learning(x, gradients, world, hears, ends, *, lr, liars=NOBODY, **network):
    """Hegedus et al., with a processor that is busy while it trains."""
    net = Simulation(x, world, hears, **network)
    clients = range(len(x))
    age, training, box = [0 for _ in clients], [False for _ in clients], [None for _ in clients]
    arrived = [0 for _ in clients]  # of each client, since its last update
    period = [max(net.computing(i), net.bits / world.uplink[i]) for i in clients]

    def train(i, time, message):
        training[i] = True
        net.put(net.online_from(i, time) + net.computing(i), DONE, i, message)

    def happens(time, what, i, content):
        if what == SENDS:
            j = net.neighbour(i)
            if not net.lost(i):
                net.put(time + net.way(i, j), ARRIVES, j, (i, net.x[i].copy(), age[i]))
            net.put(net.online_from(i, time + period[i]), SENDS, i)
        elif what == ARRIVES:
            if not net.is_online(i, time):
                return
            arrived[content[0]] += 1
            if not training[i]:
                train(i, time, content)
            elif box[i] is None:
                box[i] = content
        else:
            sender, theirs, their_age = content
            _, theirs = liars.heard((i, sender), np.array([net.x[i], theirs]))
            share = their_age / (age[i] + their_age) if age[i] + their_age else 0.5
            merged = (1 - share) * net.x[i] + share * theirs
            age[i] = max(age[i], their_age) + 1
            net.x[i] = merged - lr * gradients(i, merged)
            net.sent[i] += arrived[i]
            arrived[i] = 0
            training[i], message, box[i] = False, box[i], None
            if message is not None:
                train(i, time, message)

    for i in clients:
        net.put(net.online_from(i, period[i] * net.dice[i].random()), SENDS, i)
    return net.run(ends, happens)


def swift(x, gradients, world, hears, ends, *, lr, matrix, liars=NOBODY, **network):
    """Bornstein et al., Algorithm 1; the latest models lie in a mailbox at each client."""
    net = Simulation(x, world, hears, **network)
    mailbox = [{j: x[j].copy() for j in others} for others in hears]
    uplink_busy_until = [0.0 for _ in x]

    def happens(time, what, i, content):
        if what == ARRIVES:
            j, model = content
            mailbox[i][j] = model
            return
        gradient = gradients(i, net.x[i])  # nobody else changes it while it computes
        members, weights = (i, *mailbox[i]), matrix[i, (i, *mailbox[i])]
        models = liars.heard(members, np.array([net.x[i], *mailbox[i].values()]), weights)
        net.x[i] = weights @ models - lr * gradient
        if time >= uplink_busy_until[i] and net.is_online(i, time):
            hearers = net.heard_by[i]
            uplink_busy_until[i] = time + len(hearers) * net.bits / world.uplink[i]
            for j in hearers:
                arrival = time + net.way(i, j, len(hearers))
                if not net.lost(i) and net.is_online(j, arrival):
                    net.put(arrival, ARRIVES, j, (i, net.x[i].copy()))
                    net.sent[i] += 1
        net.put(net.online_from(i, time) + net.computing(i), DONE, i)

    for i in range(len(x)):
        net.put(net.online_from(i, 0.0) + net.computing(i), DONE, i)
    return net.run(ends, happens)


def divshare(
    x, gradients, world, hears, ends, *, lr, fragments, recipients, liars=NOBODY, **network
):
    """Biswas et al., Algorithm 1; fragments: lists of the places of their parameters in x[i]."""
    net = Simulation(x, world, hears, **network)
    boxes, queues = [{} for _ in x], [[] for _ in x]

    def begin(i, time):
        """Averages what has arrived, and trains until the local round ends."""
        average = net.x[i].copy()
        for fragment in fragments:
            senders = [j for j, of in boxes[i] if of == tuple(fragment)]
            copies = [[*boxes[i][j, tuple(fragment)].values()] for j in senders]
            told = liars.heard((i, *senders), np.array([average[fragment], *copies]))
            for j, copy in zip(senders, told[1:], strict=True):
                boxes[i][j, tuple(fragment)] = dict(zip(fragment, copy, strict=True))
        for p in range(len(average)):
            copies = [copy[p] for copy in boxes[i].values() if p in copy]
            average[p] = (average[p] + sum(copies)) / (1 + len(copies))
        boxes[i].clear()
        net.put(time + net.computing(i), DONE, i, average)

    def send_next(i, time, until):
        """Sends what is first in the queue, unless the local round has ended by then."""
        if not queues[i]:
            return
        fragment, model, j = queues[i].pop(0)
        start, bits = net.online_from(i, time), 32 * len(fragment)
        free = start + bits / world.uplink[i]
        if free > until or not np.isfinite(free):
            return
        arrival = start + net.way(i, j, bits=bits)
        if not net.lost(i) and net.is_online(j, arrival):
            content = i, tuple(fragment), {p: model[p] for p in fragment}
            net.put(arrival, ARRIVES, j, content)
            net.sent[i] += len(fragment)
        send_next(i, free, until)

    def happens(time, what, i, content):
        if what == BEGINS_AFTER:
            begin(i, time)
        elif what == ARRIVES:
            sender, fragment, copy = content
            boxes[i][sender, fragment] = copy
        else:
            net.x[i] = content - lr * gradients(i, content)
            pairs = [(f, j) for f in range(len(fragments)) for j in net.draw(i, recipients)]
            order = net.dice[i].permutation(len(pairs))
            queues[i] = [(fragments[f], net.x[i].copy(), j) for f, j in (pairs[n] for n in order)]
            start = net.online_from(i, time)
            send_next(i, time, start + net.computing(i))
            net.put(start, BEGINS_AFTER, i)

    for i in range(len(x)):
        net.put(net.online_from(i, 0.0), BEGINS_AFTER, i)
    return net.run(ends, happens)
