"""theory.md: the measured rounds, and the bound of the theorem term by term."""

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.theory.convergence import GAMMA_ROOT, STEP_LIMIT, Bound
from dfl_jax.papers.theory.measure import constants
from dfl_jax.plain_text import markdown_table

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
TERMS = {  # of the bound, by the fields of dfl_jax.papers.theory.convergence.Terms
    'optimality': 'start: 2 (L(w_1) - L*) / K',
    'drift': 'alpha: delta^2 + sigma_g^2',
    'linearization': 'alpha: delta B',
    'consensus': 'beta: (delta^2 + sigma_g^2 + B^2) / (1 - lambda)^2',
}
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


def report(rows: list[Row], bounds: dict[str, Bound]) -> str:
    """theory.md: the rounds, the constants, the bound term by term and what dominates it."""
    cells = [[f'{row[n]:.4g}' for n in COLUMNS.values()] for row in rows]
    rounds = markdown_table(list(COLUMNS), cells, 1)
    measured = ['# Theory of NTK-DFL, measured', rounds, READING]
    theorem = ['## Theorem 4.5', _inputs(rows), terms_table(rows, bounds), verdict(bounds)]
    return '\n\n'.join([*measured, *theorem]) + '\n'


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


def terms_table(rows: list[Row], bounds: dict[str, Bound]) -> str:
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
    return markdown_table(['Eq. (8)', *bounds], body, 1)


def _term(bound: Bound, field: str) -> str:
    """A summand and its share, which stands alone where gamma is not positive."""
    share = f'{getattr(bound.shares, field):.2%}'
    return f'{getattr(bound.terms, field):.4g} ({share})' if bound.gamma > 0 else share


def verdict(bounds: dict[str, Bound]) -> str:
    """One paragraph: whether the bound speaks of the run, and which term dominates it."""
    taken, admissible = bounds.values()
    if taken.gamma > 0:
        says = f'gamma > 0, and {_dominant(taken)}'
    else:
        says = f'gamma <= 0 and the theorem gives no bound; of its numerators, {_dominant(taken)}'
    return (
        f'With the step of the run eta T L is {taken.reach:.4g}, {taken.reach / STEP_LIMIT:.3g} '
        f'times the 1/8 that the theorem allows and {taken.reach / GAMMA_ROOT:.3g} times the '
        f'{GAMMA_ROOT:.4f} where gamma changes its sign: {says}. With a step of '
        f'{admissible.eta:.3g}, at which gamma > 0, {_dominant(admissible)}.'
    )


def _dominant(bound: Bound) -> str:
    field, share = max(bound.shares._asdict().items(), key=lambda item: item[1])
    return f'"{TERMS[field]}" dominates with {share:.1%}'
