"""What a run says of itself: before its first round, and at its end with curve and weights."""

from pathlib import Path
from typing import Any

import jax

from dfl_jax.cli.experiment.build import Experiment
from dfl_jax.cli.run.rundir import Row, RunDirectory, write_atomically
from dfl_jax.execution import fetched, leads

REPORTED = {  # of the methods that have it
    'regular_accuracy': '  regular models',
    'meme_accuracy': '  memes',
    'local_accuracy_mean': '  on data of their own',
}


def announce(experiment: Experiment, rounds: int, path: Path) -> None:
    """Prints who takes part, for how long, where, and how much memory it takes."""
    sizes = [len(part) for part in experiment.parts]
    samples = str(sizes[0]) if min(sizes) == max(sizes) else f'{min(sizes)} to {max(sizes)}'
    print(
        f'{len(sizes)} clients of {samples} samples, {_networks(experiment)}, '
        f'{rounds} rounds on {_devices(experiment)}, into {path}\n'
        f'memory: about {experiment.footprint}, '
        f'{experiment.resolved.get("chunk", 1)} worked on at once'
    )


def _devices(experiment: Experiment) -> str:
    kind = jax.devices()[0].device_kind
    return f'{experiment.mesh.size} devices ({kind})' if experiment.mesh else kind


def _networks(experiment: Experiment) -> str:
    if experiment.population is None or len(experiment.population.models) == 1:
        return f'{experiment.model.size:,} parameters each'
    sizes = [model.size for model in experiment.population.models.values()]
    return f'{len(sizes)} architectures of {min(sizes):,} to {max(sizes):,} parameters'


def save_consensus(params: Any, path: Path) -> None:
    """The consensus model's parameters as safetensors, named by their path joined with dots."""
    from flax.traverse_util import flatten_dict
    from safetensors.numpy import save

    whole = fetched(flatten_dict(params, sep='.'))
    if leads():
        write_atomically(path, save(whole))


def finish(directory: RunDirectory, rows: list[Row]) -> None:
    """Prints the result, draws the curves and marks the run as done."""
    from dfl_jax.cli.run.plots import plot_run

    last, best = rows[-1], max(rows, key=lambda row: row['consensus_accuracy'])
    lines = [
        ('round', f'{last["round"]}'),
        ('consensus accuracy', f'{last["consensus_accuracy"]:.4f}'),
        ('  best', f'{best["consensus_accuracy"]:.4f} at round {best["round"]}'),
        ('mean client accuracy', f'{last["client_accuracy_mean"]:.4f}'),
        ('  std over clients', f'{last["client_accuracy_std"]:.4f}'),
        ('  worst client', f'{last["client_accuracy_min"]:.4f}'),
        *((label, f'{last[name]:.4f}') for name, label in REPORTED.items() if name in last),
        ('sent by all clients', f'{last["mbytes_total"]:,.1f} MB'),
        ('seconds of rounds', f'{last["seconds"]:.1f}'),
    ]
    print('\n'.join(f'{name:<22}{value}' for name, value in lines))
    plot_run(rows, directory.path / 'curves.png')
    print(f'{"curves":<22}{directory.path / "curves.png"}')
    directory.finish()
