"""The MLP in PyTorch, for the peers that train with it."""

import numpy as np
import torch

from benchmarks.peers import _common as common


class Network(torch.nn.Module):
    """784-100-10, ReLU, with the shared first weights."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(common.FEATURES, common.HIDDEN)
        self.outputs = torch.nn.Linear(common.HIDDEN, common.CLASSES)
        self.init_weights()

    def init_weights(self) -> None:
        """Sets the shared first weights."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), common.first_weights(), strict=True):
                parameter.copy_(torch.from_numpy(value.T))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, 784] -> logits [B, 10]."""
        return self.outputs(torch.relu(self.hidden(x)))


def weights_of(network: torch.nn.Module) -> common.Weights:
    """The network's weights in the shared layout."""
    return [p.detach().numpy().T.copy() for p in network.parameters()]


def tensors(clients: int, samples: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every client's samples and labels; the samples are views of the shared array."""
    x, y = common.data(clients, samples)
    return [
        (torch.from_numpy(inputs), torch.from_numpy(labels))
        for inputs, labels in zip(x, y.astype(np.int64), strict=True)
    ]
