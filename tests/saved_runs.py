"""Run directories with random numbers, for what reads them."""

import json
import statistics

import numpy as np

from dfl_jax.experiment.run_directory import RunDirectory


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


def save_wild_run(path, rng, *, seed=0, rounds=12, until=None, every=1, lower=False, **settings):
    """A run whose curves go up and down at random, as `save_run` writes it; returns its rows.

    until: the round at which it stopped, unfinished. lower: a regression, whose metric is an error.
    A third of the runs have losses that are no numbers in the end.
    """
    path.mkdir(parents=True)
    directory, task = RunDirectory(path), 'regression' if lower else 'classification'
    chosen = {'algorithm': 'dpsgd', 'seed': seed, 'clients': 6, 'rounds': rounds, 'task': task}
    chosen |= {'dataset': 'digits', 'partition': 'iid', 'topology': 'regular', **settings}
    directory.write_config({'settings': chosen, 'algorithm': {}, 'versions': {}})
    metric, diverges, rows, sent = 'rmse' if lower else 'accuracy', rng.random() < 1 / 3, [], 0.0
    for r in range(every, (until or rounds) + 1, every):
        values, sent = rng.uniform(0.3, 0.98, 3).round(6), sent + rng.uniform(1, 3)
        row = {
            'round': r,
            f'consensus_{metric}': values[0],
            'consensus_loss': np.nan if diverges and r > rounds / 2 else values[1],
            f'client_{metric}_mean': values[2],
            f'client_{metric}_{"max" if lower else "min"}': values[2] - 0.1,
            'mbytes_total': sent,
            'mbytes_busiest_client': sent / 3,
            'simulated_seconds': r * rng.uniform(2, 2.5),
            'seconds': r * rng.uniform(0.2, 0.3),
        }
        rows.append(
            {name: value if name == 'round' else float(value) for name, value in row.items()}
        )
        directory.append(rows[-1])
    if until is None:
        directory.done.touch()
    return rows
