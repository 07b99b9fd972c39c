"""network.json: what the clients of a run hold, who hears whom, and on what they are evaluated."""

import numpy as np

from dfl_jax.base import Graph
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.files import to_json, write_atomically

MOST_LINKS = 100_000  # that are written


def write_network(directory: RunDirectory, built: BuiltExperiment) -> None:
    """Writes network.json of a run: `samples`, `links`, `evaluated` and, if there are, `attackers`.

    samples: [M, C], training samples of each client by class; [M, 1] where a target is no class.
    links: [E, 2], of round 1 before any failure; None where a server hears all, or of more than
      MOST_LINKS.
    evaluated: [n], indices of the test samples of `client_eval_samples`; None for all.
    attackers: the numbers of the clients that lie.
    """
    labels, classes = np.asarray(built.dataset.train_y), built.dataset.classes
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        samples = [np.bincount(labels[p], minlength=classes).tolist() for p in built.parts]
    else:
        samples = [[len(part)] for part in built.parts]
    links = None if 'cohort' in built.resolved else links_of(built.first)
    if links is not None and len(links) > MOST_LINKS:
        links = None
    content = {
        'samples': samples,
        'links': None if links is None else links.tolist(),
        'evaluated': None if built.evaluated is None else built.evaluated.tolist(),
    }
    if built.attackers is not None:
        content['attackers'] = np.flatnonzero(built.attackers).tolist()
    write_atomically(directory.network_file, to_json(content) + '\n')


def links_of(graph: Graph) -> np.ndarray:
    """The links of one round without their directions, [E, 2], each once.

    graph: arrays [H, K], whose aggregators are clients.
    """
    members, mask = np.asarray(graph.members), np.asarray(graph.mask)
    aggregators = np.broadcast_to(members[:, :1], members.shape)
    pairs = np.stack([aggregators[mask], members[mask]], axis=1)
    return np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
