"""The figure of experiments.theory."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.theory.convergence import Bound
from dfl_jax.plots import COLOURS, MUTED, plt, save, tidy

TERMS = {  # by the fields of dfl_jax.papers.theory.convergence.Terms
    'optimality': r'start: $2\,[L(\bar w_1)-L^*]/K$',
    'drift': r'$\alpha$: $\delta^2+\sigma_g^2$',
    'linearization': r'$\alpha$: $\delta B$',
    'consensus': r'$\beta$: $(\delta^2+\sigma_g^2+B^2)/(1-\lambda)^2$',
}
GRADIENT = r'$\|\nabla L(\bar w)\|$'

Line = tuple[str, list[float], str, str]  # label, one value a round, colour, line style


def plot_theory(rows: Sequence[Row], bounds: Mapping[str, Bound], path: Path) -> None:
    """Above, the constants against the round; below, the terms of Theorem 4.5.

    rows: of theory.jsonl. bounds: by name; the last one has gamma > 0.
    """
    column = lambda name: [row[name] for row in rows]  # noqa: E731
    roots = [math.sqrt(v) for v in column('consensus_gradient_norm_sq')]
    figure = plt.figure(figsize=(12, 6.8), layout='constrained')
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.25, 1)).flat
    mixing, gradients, smoothness = above.subplots(1, 3)

    lines = [
        (r'$\lambda$', column('lambda'), COLOURS[0], '-'),
        (r'spectral gap $(1-\lambda)^2$', column('spectral_gap'), COLOURS[1], '-'),
    ]
    _against_rounds(mixing, rows, lines, 'mixing matrix')
    mixing.set_ylim(0, 1)
    aggregators = column('aggregator_gradient_norm_mean')
    lines = [
        ('B, largest client gradient', column('gradient_norm_max'), COLOURS[2], '-'),
        (r'$\sigma_g$', [math.sqrt(v) for v in column('gradient_variance')], COLOURS[3], '-'),
        (GRADIENT, roots, COLOURS[0], '-'),
        ('aggregator gradient after the round', aggregators, MUTED, '--'),
        (r'$\delta$, largest', column('delta_ntk_max'), COLOURS[1], '-'),
        (r'$\delta$, mean', column('delta_ntk_mean'), COLOURS[1], ':'),
    ]
    _against_rounds(gradients, rows, lines, 'linearization error and gradient norms', columns=2)
    gradients.set_yscale('log')
    lines = [
        ('largest of the aggregators', column('smoothness_max'), COLOURS[0], '-'),
        ('mean', column('smoothness_mean'), COLOURS[0], ':'),
    ]
    _against_rounds(smoothness, rows, lines, 'smoothness L along the update')
    smoothness.set_ylim(bottom=0)

    sizes, shares = below.subplots(1, 2, width_ratios=(1.15, 1))
    name, bound = list(bounds.items())[-1]
    _terms(sizes, bound, min(column('consensus_gradient_norm_sq')))
    sizes.set_title(f'Theorem 4.5, {name} ($\\eta$ = {bound.eta:.2g})', fontsize=11)
    _shares(shares, bounds)
    save(figure, path)


def _against_rounds(
    axes, rows: Sequence[Row], lines: Sequence[Line], title: str, columns: int = 1
) -> None:
    rounds = [row['round'] for row in rows]
    for label, values, colour, style in lines:
        marker = 'o' if len(rounds) == 1 else ''
        axes.plot(rounds, values, color=colour, ls=style, lw=1.9, marker=marker, label=label)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel('communication round')
    axes.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    below = {'loc': 'upper center', 'bbox_to_anchor': (0.5, -0.2)}
    axes.legend(frameon=False, fontsize=8, ncols=columns, **below)
    tidy(axes)


def _terms(axes, bound: Bound, measured: float) -> None:
    """The finite terms of one bound as bars on a log scale, and what the run measured."""
    names = [*TERMS.values(), 'bound', f'measured: least {GRADIENT}$^2$']
    values = [*bound.terms, bound.total, measured]
    colours = [*COLOURS[: len(TERMS)], '#3d4852', MUTED]
    shown = [v for v in values if 0 < v < math.inf]
    low, high = min(shown) / 10, max(shown) * 30
    for place, (value, colour) in enumerate(zip(values, colours, strict=True)):
        end = min(max(value, low), high)
        axes.barh(place, end - low, left=low, color=colour, height=0.66)
        text = r'$\infty$' if math.isinf(value) else f'{value:.3g}'
        axes.annotate(
            text, (min(end, high / 10), place), (4, 0), textcoords='offset points', va='center',
            fontsize=9,
        )  # fmt: skip
    axes.set_xscale('log')
    axes.set_xlim(low, high)
    _name_bars(axes, names)


def _shares(axes, bounds: Mapping[str, Bound]) -> None:
    """What each term makes of the sum, one stacked bar an evaluation; gamma cancels."""
    places, left = range(len(bounds)), np.zeros(len(bounds))
    shares = np.array([bound.shares for bound in bounds.values()])  # [evaluations, terms]
    for label, widths, colour in zip(TERMS.values(), shares.T, COLOURS, strict=False):
        bars = axes.barh(places, widths, left=left, color=colour, height=0.5, label=label)
        words = [f'{share:.0%}' if share > 0.08 else '' for share in widths]
        axes.bar_label(bars, words, label_type='center', color='white')
        left = left + widths
    names = [f'{name}\n$\\gamma$ = {b.gamma:.2g}' for name, b in bounds.items()]
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f'{value:.0%}')
    axes.set_title('share of each term', fontsize=11)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc='upper center', bbox_to_anchor=(0.5, -0.1))
    _name_bars(axes, names)


def _name_bars(axes, names: Sequence[str]) -> None:
    """Names horizontal bars, the first above."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    tidy(axes)
    axes.grid(axis='y', visible=False)
    axes.tick_params(axis='y', colors='black', length=0)
