"""GossiPy: its gossip learning on a 5-regular graph, one message a client and round.

A client pushes its model to one random neighbour, which averages it with its own and trains: as
many client-steps a round as the others, a fifth of their messages. The released version has no
node that averages with all its neighbours.
"""

from importlib.metadata import version

import networkx
import torch
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
from gossipy.data import DataDispatcher
from gossipy.data.handler import ClassificationDataHandler
from gossipy.model import TorchModel
from gossipy.model.handler import TorchModelHandler
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator, SimulationEventReceiver

from benchmarks.peers import _common as common
from benchmarks.peers import _torch


class Network(_torch.Network, TorchModel):
    """The shared network as this simulator wants it."""


def main() -> None:
    args = common.arguments()
    torch.set_num_threads(args.threads)
    network = StaticP2PNetwork(
        args.clients, networkx.to_numpy_array(common.regular_graph(args.clients))
    )
    handler = TorchModelHandler(
        Network(),
        torch.optim.SGD,
        {'lr': common.LR},
        torch.nn.CrossEntropyLoss(),
        local_epochs=1,
        batch_size=args.batch_size,
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    nodes = {
        i: GossipNode(i, (samples, None), 1, handler.copy(), network)
        for i, samples in enumerate(_torch.tensors(args.clients, args.samples))
    }
    x, y = next(iter(nodes.values())).data[0]
    no_test = DataDispatcher(ClassificationDataHandler(x, y), auto_assign=False)
    simulator = GossipSimulator(nodes, no_test, delta=1, protocol=AntiEntropyProtocol.PUSH)
    simulator.init_nodes()
    for node in nodes.values():  # which trained for a round on its own
        node.model_handler.init()
    clock = common.Clock()

    class Rounds(SimulationEventReceiver):
        def update_timestep(self, t: int) -> None:  # a round is one
            del t
            clock()

        def update_message(self, failed: bool, msg: object = None) -> None:
            """Nothing to count."""

        def update_end(self) -> None:
            """Nothing to finish."""

    simulator.add_receiver(Rounds())
    clock()
    simulator.start(common.WARM_UP + args.rounds)
    weights = common.mean_of([_torch.weights_of(n.model_handler.model) for n in nodes.values()])
    common.report('GossiPy', version('gossipy-dfl'), args, clock, weights)


if __name__ == '__main__':
    main()
