"""Flower: FedAvg on its simulation engine, as many Ray actors as cores, one thread each."""

import os
from importlib.metadata import version

os.environ.setdefault('FLWR_TELEMETRY_ENABLED', '0')

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import _common as common
from benchmarks.peers import _torch


def main() -> None:
    args = common.arguments()
    client, server = ClientApp(), ServerApp()
    clock = common.Clock()
    final = _torch.Network()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(args.threads)
        x, y = common.data(args.clients, args.samples)
        i = int(context.node_config['partition-id'])
        network = _torch.Network()
        network.load_state_dict(message.content['arrays'].to_torch_state_dict())
        optimizer = torch.optim.SGD(network.parameters(), lr=common.LR)
        for at in torch.randperm(args.samples).split(args.batch_size):
            labels = torch.from_numpy(y[i][at]).long()
            optimizer.zero_grad()
            logits = network(torch.from_numpy(x[i][at]))
            torch.nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
        content = {
            'arrays': ArrayRecord(network.state_dict()),
            'metrics': MetricRecord({'num-examples': args.samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        strategy = FedAvg(
            fraction_evaluate=0, min_train_nodes=args.clients, min_available_nodes=args.clients
        )
        result = strategy.start(
            grid,
            ArrayRecord(final.state_dict()),
            num_rounds=common.WARM_UP + args.rounds,
            evaluate_fn=lambda *_: clock(),  # before the first round, and after each
        )
        final.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server,
        client,
        num_supernodes=args.clients,
        backend_config={'client_resources': {'num_cpus': 1, 'num_gpus': 0.0}},
    )
    common.report('Flower', version('flwr'), args, clock, _torch.weights_of(final))


if __name__ == '__main__':
    main()
