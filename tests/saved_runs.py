"""Run directories with random numbers, for what reads them."""

import json
import statistics

import numpy as np

from dfl_jax.cli.run.rundir import RunDirectory


def save_run(path, algorithm='dpsgd', seed=0, clients=12, rounds=5, metric='accuracy', **settings):
    """A run directory as runs write it, with random numbers; returns its rows and its clients."""
    rng = np.random.default_rng([seed, clients, *algorithm.encode()])
    path.mkdir(parents=True)
    directory = RunDirectory(path)
    chosen = {'algorithm': algorithm, 'seed': seed, 'clients': clients, 'rounds': rounds}
    chosen |= {'dataset': 'digits', 'partition': 'iid', 'topology': 'regular', **settings}
    directory.write_config({'settings': chosen, 'algorithm': {}, 'versions': {'jax': '1'}})
    links = [[i, (i + step) % clients] for i in range(clients) for step in (1, 3)]
    network = {'samples': rng.integers(1, 9, (clients, 3)).tolist(), 'links': links}
    directory.network_file.write_text(json.dumps(network))
    rows = []
    for r in range(1, rounds + 1):
        values = (r / (rounds + 1) + rng.uniform(0, 0.1, clients)).round(5).tolist()
        losses = rng.uniform(0.1, 3, clients).round(5).tolist()
        row = {
            'round': r,
            f'consensus_{metric}': max(values),
            'consensus_loss': min(losses),
            f'client_{metric}_mean': statistics.mean(values),
            'client_loss_mean': statistics.mean(losses),
            'mbytes_total': 2.5 * r,
            'seconds': 0.5 * r,
        }
        rows.append(row | {'clients': {metric: values, 'loss': losses}})
        directory.append(rows[-1])
    directory.done.touch()
    return rows
