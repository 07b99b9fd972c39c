"""fluke: its GossipDFL on a 5-regular graph, every client to all its neighbours.

The stock client sends its model to one random neighbour a round, so that a third of the clients
receive nothing and do not train; this one sends it to all five, by the hook made for that. eta is
the share of the received mean in the next model: of its own and five others, each counts alike.
"""

from importlib.metadata import version

import torch
from fluke.algorithms.decentralized import GossipDFL, Topology
from fluke.algorithms.decentralized.client import GossipClient
from fluke.comm import TimedMessage
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver

from benchmarks.peers import _common as common
from benchmarks.peers import _torch


class Client(GossipClient):
    """A client that sends its model to every neighbour."""

    def send_model(self) -> None:
        stamp = self._num_updates + 1
        message = TimedMessage(self.model, 'model', self.index, inmemory=True, timestamp=stamp)
        for neighbour in self.neighbours:
            self.channel.send(message, neighbour)


def main() -> None:
    args = common.arguments()
    torch.set_num_threads(args.threads)
    graph = Topology(common.regular_graph(args.clients))
    clients = [
        Client(
            index=i,
            model=_torch.Network(),
            neighbours=graph[i],
            train_set=FastDataLoader(
                x, y, num_labels=common.CLASSES, batch_size=args.batch_size, shuffle=True
            ),
            test_set=None,
            optimizer_cfg=OptimizerConfigurator({'name': 'SGD', 'lr': common.LR}),
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=1,
            policy='aggregate',
            eta=common.DEGREE / (common.DEGREE + 1),
        )
        for i, (x, y) in enumerate(_torch.tensors(args.clients, args.samples))
    ]
    federation = GossipDFL(args.clients, None, None, topology=graph, clients=clients)
    clock = common.Clock()

    class Rounds(FederationObserver):
        def end_round(self, round: int) -> None:
            del round
            clock()

    federation.set_callbacks([Rounds()])
    clock()
    federation.run(common.WARM_UP + args.rounds)
    weights = common.mean_of([_torch.weights_of(client.model) for client in clients])
    common.report('fluke', version('fluke-fl'), args, clock, weights)


if __name__ == '__main__':
    main()
