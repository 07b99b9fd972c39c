"""Drives one run from the command line: what it says, its loggers, its exit status."""

import contextlib
import sys
from collections.abc import Sequence

import jax
import numpy as np

from dfl_jax.cli import interrupts
from dfl_jax.cli.command import fail, in_flags
from dfl_jax.cli.run.loggers import Logger, LoggerError
from dfl_jax.data.dataset import one_line
from dfl_jax.experiment.privacy import Spending
from dfl_jax.experiment.restore import CheckpointError
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.experiment.session import Session
from dfl_jax.simulate import DivergenceError
from dfl_jax.tasks import Task
from dfl_jax.timing import NeverOnlineError

MOST_NAMED = 10  # attackers, in a line
REPORTED = {  # where there is such a metric
    'regular_accuracy': '  regular models',
    'meme_accuracy': '  memes',
    'local_accuracy_mean': '  on their own data',
    'membership_auc_mean': '  membership AUC',
    'epsilon': 'epsilon spent',
}


def train(session: Session, directory: RunDirectory, loggers: Sequence[Logger]) -> int:
    """Runs a session to the last round; returns the exit status.

    loggers: show every row of metrics.jsonl, those of the rounds before the checkpoint first.
    """
    path, rounds = directory.path, session.rounds
    opened: list[Logger] = []
    status = 1
    try:
        _announce(session, directory)
        for logger in loggers:
            logger.open(directory)
            opened.append(logger)
            for row in session.rows:
                logger.row(row)
        session.on_row = lambda row: [logger.row(row) for logger in opened]
        for _ in session:
            pass
        built = session.built
        _report(session.rows, built.model.task, directory, built.spending)
        status = 0
    except KeyboardInterrupt:
        goes_on = f'--resume --out={path} goes on from there'
        print(f'interrupted: {session.kept} of {rounds} rounds kept; {goes_on}', file=sys.stderr)
        status = interrupts.STATUS
    except DivergenceError as error:
        kept = f'{len(session.rows)} evaluations are kept in {path}'
        fail(f'{in_flags(error)} and take another --out; {kept}')
    except (CheckpointError, LoggerError, NeverOnlineError) as error:
        fail(in_flags(error))
    except OSError as error:  # a full disk, a folder that is gone
        goes_on = f'--resume --out={path} goes on from the last checkpoint'
        fail(f'{one_line(error)}; when that is mended, {goes_on}')
    finally:
        for logger in opened:
            with contextlib.suppress(BrokenPipeError):  # said above
                logger.close(status)
    return status


def _announce(session: Session, directory: RunDirectory) -> None:
    """Prints who takes part, for how long, where, how much memory it takes, who lies, and
    of a graph that could be one for all rounds that it is not."""
    built = session.built
    sizes = [len(part) for part in built.parts]
    samples = str(sizes[0]) if min(sizes) == max(sizes) else f'{min(sizes)} to {max(sizes)}'
    chunk = built.resolved.get('chunk')
    at_once = f', {chunk} worked on at once' if chunk else ''
    print(
        f'{len(sizes)} clients of {samples} samples, {_networks(session)}, {_length(session)} on '
        f'{_devices(session)}, into {directory.path}\n'
        f'memory: about {built.footprint}{at_once}'
    )
    if built.attackers is not None:
        lying = np.flatnonzero(built.attackers).tolist()
        named = ', '.join(map(str, lying[:MOST_NAMED])) + ', ...' * (len(lying) > MOST_NAMED)
        print(f'{len(lying)} of the clients lie, --attack={built.rows.name("attack")}: {named}')
    graphs = built.experiment.graphs
    moves = not graphs.static_topology and built.configured.method.graphs != 'cohort'
    if moves and built.rows.family.fixed_shape:
        print(
            f'--topology={built.rows.name("topology")}: which client has which place is drawn anew '
            'in every round; --static_topology keeps one graph'
        )


def _length(session: Session) -> str:
    steps, unit = session.steps
    if unit == 'round':
        return f'{session.rounds} rounds'
    return f'{steps[-1]:,} local updates in {session.rounds} intervals'


def _devices(session: Session) -> str:
    kind, mesh = jax.devices()[0].device_kind, session.built.mesh
    return f'{mesh.size} devices ({kind})' if mesh else kind


def _networks(session: Session) -> str:
    built = session.built
    if built.population is None or len(built.population.models) == 1:
        return f'{built.model.size:,} parameters each'
    sizes = [model.size for model in built.population.models.values()]
    return f'{len(sizes)} architectures of {min(sizes):,} to {max(sizes):,} parameters'


def _report(
    rows: list[Row], task: Task, directory: RunDirectory, spending: Spending | None = None
) -> None:
    """Prints the result of a run that is done."""
    metric, least = task.metric, task.lower_is_better
    consensus, worst = f'consensus_{metric}', f'client_{metric}_{"max" if least else "min"}'
    last, best = rows[-1], (min if least else max)(rows, key=lambda row: row[consensus])
    of_liars = {f'attackers_{metric}': '  mean attacker', 'attack_success': '  attack success'}
    lines = [
        ('round', f'{last["round"]}'),
        (f'consensus {metric}', f'{last[consensus]:.4f}'),
        ('  best', f'{best[consensus]:.4f} at round {best["round"]}'),
        (f'mean client {metric}', f'{last[f"client_{metric}_mean"]:.4f}'),
        ('  std over clients', f'{last[f"client_{metric}_std"]:.4f}'),
        ('  worst client', f'{last[worst]:.4f}'),
        *((label, f'{last[name]:.4f}') for name, label in REPORTED.items() if name in last),
        *((label, f'{last[name]:.4f}') for name, label in of_liars.items() if name in last),
        ('sent by all clients', f'{last["mbytes_total"]:,.1f} MB'),
        ('seconds of rounds', f'{last["seconds"]:.1f}'),
    ]
    if spending is not None:
        of = spending.asked
        lines.append(('epsilon is of', f'{of.dp_adversary}, delta {of.dp_delta:g}'))
    if 'simulated_seconds' in last:
        lines.append(('simulated seconds', f'{last["simulated_seconds"]:,.1f}'))
    lines.append(('curves', str(directory.path / 'curves.png')))
    print('\n'.join(f'{name:<22}{value}' for name, value in lines), flush=True)
