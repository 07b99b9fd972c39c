"""pfl-research: FederatedAveraging on its SimulatedBackend, one process, no client left out."""

from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import get_user_sampler
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers import _common as common
from benchmarks.peers import _torch


class Network(_torch.Network):
    """The shared network with the loss that this simulator trains by."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of a batch."""
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        """Nothing but training is timed."""
        del x, y
        return {}


def main() -> None:
    args = common.arguments()
    torch.set_num_threads(args.threads)
    datasets = [
        Dataset(raw_data=samples, user_id=str(i))
        for i, samples in enumerate(_torch.tensors(args.clients, args.samples))
    ]
    users = FederatedDataset(
        datasets.__getitem__, get_user_sampler('minimize_reuse', range(args.clients))
    )
    network = Network()
    model = PyTorchModel(
        network, torch.optim.SGD, central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0)
    )
    clock = common.Clock()

    class Rounds(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            del aggregate_metrics, model, central_iteration
            clock()
            return False, Metrics()

    clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=common.WARM_UP + args.rounds,
            evaluation_frequency=common.WARM_UP + args.rounds,
            train_cohort_size=args.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=common.LR, local_batch_size=args.batch_size
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Rounds()],
    )
    common.report('pfl-research', version('pfl'), args, clock, _torch.weights_of(network))


if __name__ == '__main__':
    main()
