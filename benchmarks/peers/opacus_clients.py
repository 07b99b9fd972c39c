"""Opacus: clients one after the other, for `python -m benchmarks.private --peer=PYTHON`.

The arguments are the numbers of clients, samples, steps and of samples a step, the learning rate
and the number of threads. Every line of the input trains all clients once, clipped and with noise;
the answer is the seconds that this took, a line of JSON.
"""

import json
import sys
import time
from importlib.metadata import version

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn


def main() -> None:
    clients, samples, steps, size = map(int, sys.argv[1:5])
    rate, threads = float(sys.argv[5]), int(sys.argv[6])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x = torch.randn(clients, samples, 784)
    y = torch.randint(10, (clients, samples))
    layers = (nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    model = GradSampleModule(nn.Sequential(*layers))  # of every client, one after the other
    loss_of = nn.CrossEntropyLoss()
    print(json.dumps(f'Opacus {version("opacus")}, PyTorch {torch.__version__}'), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for i in range(clients):
            optimiser = DPOptimizer(
                torch.optim.SGD(model.parameters(), lr=rate),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
                expected_batch_size=size,
            )
            order = torch.cat([torch.randperm(samples) for _ in range(1 + steps * size // samples)])
            for step in range(steps):
                rows = order[step * size : (step + 1) * size]
                optimiser.zero_grad()
                loss_of(model(x[i, rows]), y[i, rows]).backward()
                optimiser.step()
        print(json.dumps(time.perf_counter() - begin), flush=True)


if __name__ == '__main__':
    main()
