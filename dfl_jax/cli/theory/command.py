"""The theory of NTK-DFL on a run: `python -m experiments.theory --flagfile=F --out=DIR`

Takes the flags of experiments.run with --algorithm=ntk_dfl and trains as that command does.
Measures in every round the constants of the convergence theorem (NTK-DFL, ICML 2025, section 4 and
appendix G) and evaluates the theorem with them, term by term. Writes theory.jsonl (one object a
round), theory.md and theory.png, besides config.json, into DIR.
"""

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from dfl_jax.cli.command import check_writable, fail
from dfl_jax.cli.experiment import method_flags
from dfl_jax.cli.experiment.plugins import define_flags_of_others
from dfl_jax.cli.run import command as run
from dfl_jax.cli.run.rundir import Row, write_atomically

if TYPE_CHECKING:
    from dfl_jax.analysis.convergence import Bound

FLAGS = flags.FLAGS
EXAMPLES = (
    '--rounds=5 --out=theory',
    '--topology=ring --alpha=0.5 --rounds=10 --out=theory-ring',
)
flags.adopt_module_key_flags(method_flags)

COLUMNS = {  # of the table of rounds: heading -> name in theory.jsonl
    'round': 'round',
    'lambda': 'lambda',
    '(1 - lambda)^2': 'spectral_gap',
    'delta max': 'delta_ntk_max',
    'delta mean': 'delta_ntk_mean',
    'L max': 'smoothness_max',
    'L mean': 'smoothness_mean',
    'B': 'gradient_norm_max',
    'sigma_g^2': 'gradient_variance',
    'gradient^2': 'consensus_gradient_norm_sq',
    'loss': 'loss',
    'T': 'timestep_mean',
    'accuracy': 'consensus_accuracy',
}
TERMS = {  # of the bound, by the fields of dfl_jax.analysis.convergence.Terms
    'optimality': 'start: 2 (L(w_1) - L*) / K',
    'drift': 'alpha: delta^2 + sigma_g^2',
    'linearization': 'alpha: delta B',
    'consensus': 'beta: (delta^2 + sigma_g^2 + B^2) / (1 - lambda)^2',
}
# Under these a round is not the one update that the theory describes.
OTHER_UPDATES = (
    'ntk_batches',
    'ntk_subsampling',
    'message_sparsity',
    'message_bits',
    'ntk_jacobian_weights',
)


def check() -> None:
    """Raises ValueError for flags of experiments.run under which there is nothing to measure."""
    if FLAGS.algorithm != 'ntk_dfl':
        raise ValueError(
            f'--algorithm={FLAGS.algorithm}: the theory is of ntk_dfl; use --algorithm=ntk_dfl'
        )
    if FLAGS.loss not in (None, 'cross_entropy'):
        raise ValueError(f'--loss={FLAGS.loss}: gradients are of the cross-entropy; leave it out')
    if FLAGS.ntk_averaging is False:
        raise ValueError('--nontk_averaging: without Eq. (1) nothing mixes; leave it out')
    for name in OTHER_UPDATES:
        if FLAGS[name].value not in (None, 1):
            raise ValueError(
                f'{FLAGS[name].serialize()}: the theory is of one exact update on all data of a '
                'client and its neighbours; leave it out'
            )
    if FLAGS.topology == 'clustered' and FLAGS.ntk_by_cluster is not False:
        raise ValueError(
            '--topology=clustered: the theory needs an aggregator a client; add --nontk_by_cluster'
        )
    if FLAGS.lr == 0:
        raise ValueError('--lr=0.0: no client moves, and nothing tells of L; raise it')
    if FLAGS.tensorboard or FLAGS.wandb:
        given = '--tensorboard' if FLAGS.tensorboard else '--wandb'
        raise ValueError(f'{given}: theory.jsonl is not shown there; leave it out')
    if FLAGS.resume or FLAGS.eval_every != 1:
        given = '--resume' if FLAGS.resume else f'--eval_every={FLAGS.eval_every}'
        raise ValueError(f'{given}: every round is measured, from the first; leave it out')
    out = FLAGS.out and Path(FLAGS.out)
    check_writable(out or Path('runs'))
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f'--out={out} exists and is not an empty folder; choose another --out')


def measure(experiment: Any) -> Iterator[Row]:
    """Trains and yields the objects of theory.jsonl, round by round.

    All but `consensus_accuracy`, `timestep_mean` and the names ending in `_after` are of the
    round's start, where the theorem has w_bar^(k), or of its update.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from dfl_jax import simulate
    from dfl_jax.analysis import convergence as theory

    settings, sizes = experiment.resolved, np.array([len(part) for part in experiment.parts])
    clients = jax.device_put(experiment.clients)
    diagnosis = theory.diagnose(
        experiment.model, mixing=settings['mixing'], chunk=settings['chunk']
    )
    k_init, _ = jax.random.split(experiment.key)  # as simulate.run does
    initial = jax.jit(experiment.algorithm.init)(k_init, clients)
    before = jax.tree.map(jnp.copy, initial.params)  # every round donates its state
    for metrics, state, _ in simulate.run(
        experiment.algorithm,
        clients,
        experiment.graphs,
        experiment.test,
        experiment.key,
        client_eval_samples=FLAGS.client_eval_samples,
        resume=(initial, simulate.Progress()),
    ):
        k = metrics['round'] - 1
        graph = jax.tree.map(lambda a, k=k: np.asarray(a[k]), experiment.graphs)
        mixing = theory.mixing_of(graph, sizes, settings['mixing'])
        found = jax.device_get(diagnosis(before, state.params, graph, clients))
        yield {
            'round': metrics['round'],
            'lambda': mixing.second_modulus,
            'spectral_gap': mixing.spectral_gap,
            'symmetric': mixing.symmetric,
            **{name: float(value) for name, value in found._asdict().items()},
            'rate': settings['lr'] * math.exp(-settings['lr_decay'] * k),
            'timestep_mean': metrics['timestep_mean'],
            'consensus_accuracy': metrics['consensus_accuracy'],
        }
        before = jax.tree.map(jnp.copy, state.params)


def constants(rows: list[Row]) -> dict[str, Any]:
    """The arguments of `theory.bound` but eta: what bounds every round is the largest measured.

    T is the mean over rounds of the clients' mean chosen timestep, since so many steps were made.
    """
    largest = lambda name: max(row[name] for row in rows)  # noqa: E731
    lowest = min(*(row['loss'] for row in rows), rows[-1]['loss_after'])
    return {
        'timesteps': sum(row['timestep_mean'] for row in rows) / len(rows),
        'rounds': len(rows),
        'smoothness': largest('smoothness_max'),
        'delta': largest('delta_ntk_max'),
        'gradient_norm': largest('gradient_norm_max'),
        'gradient_variance': largest('gradient_variance'),
        'second_modulus': largest('lambda'),
        'descent': rows[0]['loss'] - lowest,
    }


def evaluate(rows: list[Row]) -> dict[str, 'Bound']:
    """The bound with the run's own step, its mean over rounds, and with an admissible one."""
    from dfl_jax.analysis.convergence import admissible_eta, bound

    known = constants(rows)
    own = sum(row['rate'] for row in rows) / len(rows)
    admissible = admissible_eta(known['timesteps'], known['smoothness'])
    return {
        "the run's step": bound(eta=own, **known),
        'admissible step': bound(eta=admissible, **known),
    }


def report(rows: list[Row], bounds: dict[str, 'Bound']) -> str:
    """theory.md: the rounds, the constants, the bound term by term and what dominates it."""
    heading = '# Theory of NTK-DFL, measured'
    parts = [heading, _rounds(rows), READING, '## Theorem 4.5', _inputs(rows), _terms(rows, bounds)]
    return '\n\n'.join([*parts, verdict(bounds)]) + '\n'


READING = (
    'lambda and the spectral gap (1 - lambda)^2 are of the mixing matrix (Definition 4.2). delta '
    'is the norm of NTK gradient minus true gradient at the weights that a round ends with '
    '(Assumption 4.4, Eq. 21, 45), L the change of the true gradient over the distance moved '
    '(G.1), both on the joint data of an aggregator and its neighbours. B is the largest norm and '
    "sigma_g^2 the variance of the clients' gradients on their own data (G.3, G.2), at the "
    'consensus model w_bar before the round, as are the squared norm of the global gradient and '
    'the loss. T is the mean chosen timestep; the accuracy is that after the round. delta, L, B '
    'and sigma_g^2 bound what happens at any weights: the values that a run met lie below them, '
    'and the bound below is lower than the true one.'
)


def _table(heading: list[str], body: list[list[str]]) -> str:
    lines = [heading, ['---', *['---:'] * (len(heading) - 1)], *body]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _rounds(rows: list[Row]) -> str:
    return _table(list(COLUMNS), [[f'{row[n]:.4g}' for n in COLUMNS.values()] for row in rows])


def _inputs(rows: list[Row]) -> str:
    known = constants(rows)
    text = (
        f'K = {known["rounds"]}, T = {known["timesteps"]:.4g} (mean), and the largest of all '
        f'rounds: L = {known["smoothness"]:.4g}, delta = {known["delta"]:.4g}, '
        f'B = {known["gradient_norm"]:.4g}, sigma_g^2 = {known["gradient_variance"]:.4g}, '
        f'lambda = {known["second_modulus"]:.4g}. L(w_1) - L* = {known["descent"]:.4g}, with L* '
        'the lowest loss met. A smaller step would also make delta smaller (Lemma G.9); it is the '
        'measured one in both columns.'
    )
    if not all(row['symmetric'] for row in rows):
        text += (
            ' The mixing matrix is not symmetric, as Definition 4.2 asks; --mixing=metropolis '
            'makes it so.'
        )
    if apart := sum(row['lambda'] == 1 for row in rows):
        text += (
            f' In {apart} of {len(rows)} rounds lambda is 1: not all clients were connected, and '
            'beta is infinite.'
        )
    return text


def _terms(rows: list[Row], bounds: dict[str, 'Bound']) -> str:
    measured = min(row['consensus_gradient_norm_sq'] for row in rows)
    each = list(bounds.values())
    body = [
        ['eta', *(f'{b.eta:.4g}' for b in each)],
        ['eta T L', *(f'{b.reach:.4g}' for b in each)],
        ['gamma', *(f'{b.gamma:.4g}' for b in each)],
        *(
            [name, *('yes' if b.premises[name] else 'no' for b in each)]
            for name in each[0].premises
        ),
        *([label, *(_term(b, field) for b in each)] for field, label in TERMS.items()),
        ['**bound**', *(f'**{b.total:.4g}**' if b.gamma > 0 else '**none**' for b in each)],
        ['measured: least squared gradient', *[f'{measured:.4g}'] * len(each)],
    ]
    return _table(['Eq. (8)', *bounds], body)


def _term(bound: 'Bound', field: str) -> str:
    """A summand and its share, which stands alone where gamma is not positive."""
    share = f'{getattr(bound.shares, field):.2%}'
    return f'{getattr(bound.terms, field):.4g} ({share})' if bound.gamma > 0 else share


def verdict(bounds: dict[str, 'Bound']) -> str:
    """One paragraph: whether the bound speaks of the run, and which term dominates it."""
    from dfl_jax.analysis.convergence import GAMMA_ROOT, STEP_LIMIT

    own, admissible = bounds.values()
    if own.gamma > 0:
        speaks = f'gamma > 0, and {_dominant(own)}'
    else:
        speaks = f'gamma <= 0 and the theorem gives no bound; of its numerators, {_dominant(own)}'
    return (
        f'With the step of the run eta T L is {own.reach:.4g}, {own.reach / STEP_LIMIT:.3g} times '
        f'the 1/8 that the theorem allows and {own.reach / GAMMA_ROOT:.3g} times the '
        f'{GAMMA_ROOT:.4f} where gamma changes its sign: {speaks}. With a step of '
        f'{admissible.eta:.3g}, at which gamma > 0, {_dominant(admissible)}.'
    )


def _dominant(bound: 'Bound') -> str:
    field, share = max(bound.shares._asdict().items(), key=lambda item: item[1])
    return f'"{TERMS[field]}" dominates with {share:.1%}'


def define_flags(arguments: Sequence[str]) -> None:
    """Defines the flags of a method of one's own."""
    define_flags_of_others(arguments)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.FATAL)
    if len(argv) > 1:
        return fail(f'unexpected argument {argv[1]!r}; settings are flags')
    with contextlib.ExitStack() as held:
        try:
            check()
            experiment, directory, _ = run.prepare(held)
        except (ValueError, OSError) as error:
            return fail(str(error))
        except KeyboardInterrupt:
            return fail('interrupted before the first round; start again', status=130)
        try:
            return follow(experiment, directory.path)
        except OSError as error:  # a full disk
            return fail(str(error))


def follow(experiment: Any, path: Path) -> int:
    """Measures all rounds under a progress bar and writes the three files; the exit status."""
    from tqdm import tqdm

    from dfl_jax.simulate import DivergenceError

    total, rows = len(experiment.graphs.active), []
    bar = tqdm(total=total, unit='round', disable=not FLAGS.progress, dynamic_ncols=True)
    try:
        with bar, open(path / 'theory.jsonl', 'w') as file:
            for row in measure(experiment):
                rows.append(row)
                file.write(json.dumps(row) + '\n')
                file.flush()
                bar.set_postfix_str(
                    f'delta {row["delta_ntk_max"]:.3g}, L {row["smoothness_max"]:.3g}, '
                    f'accuracy {row["consensus_accuracy"]:.4f}',
                    refresh=False,
                )
                bar.update()
    except KeyboardInterrupt:
        return fail(f'interrupted: {len(rows)} of {total} rounds are in {path}', status=130)
    except DivergenceError as error:
        return fail(f'{error} and take another --out; {len(rows)} rounds are in {path}')
    bounds = evaluate(rows)
    write_atomically(path / 'theory.md', report(rows, bounds))
    print(f'{_terms(rows, bounds)}\n\n{verdict(bounds)}\n{path / "theory.md"}')
    try:
        from dfl_jax.cli.theory.plot import plot_theory

        plot_theory(rows, bounds, path / 'theory.png')
        print(path / 'theory.png')
    except ImportError:
        print('no theory.png without matplotlib (pip install matplotlib)', file=sys.stderr)
    return 0
