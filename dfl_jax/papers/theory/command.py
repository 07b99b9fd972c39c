"""The theory of NTK-DFL on a run: `dfl-jax theory --flagfile=F --out=DIR`

Takes the flags of experiments.run with --algorithm=ntk_dfl and trains as that command does.
Measures in every round the constants of the convergence theorem (NTK-DFL, ICML 2025, section 4 and
appendix G) and evaluates the theorem with them, term by term. Writes theory.jsonl (one object a
round), theory.md and theory.png, besides config.json, into DIR.
"""

import contextlib
from pathlib import Path
from typing import Any

from absl import flags

from dfl_jax.cli.command import check_empty, fail, in_flags, one_line_errors
from dfl_jax.cli.run import command as run
from dfl_jax.files import to_json, write_atomically

FLAGS = flags.FLAGS
define_flags = run.define_flags
EXAMPLES = ('--rounds=5 --out=theory', '--topology=ring --alpha=0.5 --rounds=10 --out=theory-ring')

ONE_UPDATE = (
    'the theory is of one exact update on all data of a client and its neighbours; leave it out'
)
LOGGED = 'theory.jsonl is not shown there; leave it out'
FOLLOWED = 'every round is measured, from the first; leave it out'
MEASURED = {  # flag -> its values under which there is something to measure, and why no others
    'algorithm': (('ntk_dfl',), 'the theory is of ntk_dfl; use --algorithm=ntk_dfl'),
    'loss': ((None, 'cross_entropy'), 'gradients are of the cross-entropy; leave it out'),
    'ntk_averaging': ((None, True), 'without Eq. (1) nothing mixes; leave it out'),
    'ntk_batches': ((None, 1), ONE_UPDATE),
    'ntk_subsampling': ((None, 1), ONE_UPDATE),
    'message_sparsity': ((None,), ONE_UPDATE),
    'message_bits': ((None,), ONE_UPDATE),
    'ntk_jacobian_weights': ((None,), ONE_UPDATE),
    'world': ((None,), 'no seconds are counted here; leave it out'),
    'devices': (('auto',), 'every round is measured on one device; leave it out'),
    'distributed': ((None,), 'every round is measured in one process; leave it out'),
    'log': (('text',), LOGGED),
    'tensorboard': ((False,), LOGGED),
    'wandb': ((False,), LOGGED),
    'resume': ((False,), FOLLOWED),
    'eval_every': ((1,), FOLLOWED),
    'membership': ((False,), 'theory.jsonl has nothing of it; leave it out'),
}
REFUSED = tuple(MEASURED)  # of no use in the help


def check() -> None:
    """Raises ValueError for flags of experiments.run under which there is nothing to measure."""
    for name, (values, why) in MEASURED.items():
        if FLAGS[name].value not in values:
            raise ValueError(f'{FLAGS[name].serialize()}: {why}')
    if FLAGS.topology == 'clustered' and FLAGS.ntk_by_cluster is not False:
        raise ValueError(
            '--topology=clustered: the theory needs an aggregator a client; add --nontk_by_cluster'
        )
    if FLAGS.lr == 0:
        raise ValueError('--lr=0.0: no client moves, and nothing tells of L; raise it')
    check_empty(FLAGS.out)


@one_line_errors('interrupted before the first round; start again')
def main(_: list[str]) -> int:
    with contextlib.ExitStack() as lock:
        check()
        experiment, directory = run.prepare(lock)[:2]
        return follow(experiment, directory.path)


def follow(experiment: Any, path: Path) -> int:
    """Measures all rounds under a progress bar and writes the three files; the exit status."""
    from tqdm import tqdm

    from dfl_jax.papers.theory.measure import evaluate, measure
    from dfl_jax.papers.theory.plot import plot_theory
    from dfl_jax.papers.theory.table import report, terms_table, verdict
    from dfl_jax.simulate import DivergenceError

    total, rows = len(experiment.graphs.active), []
    bar = tqdm(total=total, unit='round', disable=not FLAGS.progress, dynamic_ncols=True)
    try:
        with bar, open(path / 'theory.jsonl', 'w', encoding='utf-8') as file:
            for row in measure(experiment):
                rows.append(row)
                file.write(to_json(row) + '\n')
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
        return fail(f'{in_flags(error)} and take another --out; {len(rows)} rounds are in {path}')
    bounds = evaluate(rows)
    write_atomically(path / 'theory.md', report(rows, bounds))
    print(f'{terms_table(rows, bounds)}\n\n{verdict(bounds)}\n{path / "theory.md"}')
    plot_theory(rows, bounds, path / 'theory.png')
    print(path / 'theory.png')
    return 0
