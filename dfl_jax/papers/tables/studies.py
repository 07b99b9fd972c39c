"""What needs no training: studies of the gain and of gossip on many graphs.

`dfl-jax tables init_topology/figure5` computes, prints and draws them. A study is an
object in the `studies` of experiments/PAPER/TABLE/computed.json:

  study         steady         ||v_steady|| against n, with its exponent
                assortativity  ||v_steady|| against the degree assortativity of rewired graphs
                limits         sigma_ap / sigma_init at the end of the numerical model against n,
                               beside ||v_steady||
                stabilisation  rounds until sigma_an is stable against n, beside the spectral gap's
                               ln(sigma_init / sigma_noise) / -ln |lambda_2|
                quadratics     `dfl_jax.papers.tables.quadratics`, which says what else it has
                evolution      sigma_an and sigma_ap of the numerical model against rounds, beside
                               the noise and the limit sigma_init ||v_steady||
  title         of its panel
  families      [{label, family, and what topology.Settings takes besides clients}, ...]
  sizes, draws  the numbers of clients n, and graphs of each
  targets       of assortativity
  parameters, rounds, sigma_noise
                of the numerical model; sigma_init is 1
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from dfl_jax.experiment.run_directory import Row
from dfl_jax.files import to_json, write_atomically
from dfl_jax.gossip import spectrum
from dfl_jax.gossip.gain import gain_of, uniform_matrix
from dfl_jax.papers import untrained_gossip
from dfl_jax.papers.tables.panels import Line, Panel, law_line
from dfl_jax.papers.tables.plot_panels import draw_panels
from dfl_jax.papers.tables.quadratics import rounds_to_target
from dfl_jax.plain_text import markdown_table
from dfl_jax.plots import COLOURS, save
from dfl_jax.results.fits import Points, confidence, power_law
from dfl_jax.results.measured import in_digits
from dfl_jax.results.published import read_titled
from dfl_jax.topology import Settings, family_named, rewire
from dfl_jax.topology.family import check_settings, draw

Value = tuple[str, float, float, float | None]  # label, x, measured, what theory says
FITTED = ('steady', 'stabilisation')
HEADS = {
    'steady': ('n', '||v_steady||'),
    'assortativity': ('rho', '||v_steady||', 'before rewiring', 'ratio'),
    'limits': ('n', 'sigma_ap', '||v_steady||', 'ratio'),
    'stabilisation': ('n', 'rounds', 'by the gap', 'ratio'),
    'evolution': ('round', 'deviation', 'limit', 'ratio'),
    'quadratics': ('zeta²', 'rounds', 'paper', 'ratio'),
}
XLABELS = {
    'n': 'number of clients n',
    'rho': 'degree assortativity',
    'zeta²': 'heterogeneity $\\zeta^2$',
}


class Result(NamedTuple):
    """The lines of a study and what theory says of them, both by label."""

    measured: dict[str, Points]
    theory: dict[str, Points]


def graphs(study: Row) -> Iterator[tuple[str, int, list[int], np.ndarray]]:
    """The graphs of a study, under a progress bar: label, n, seed and links [E, 2] of each."""
    from tqdm import tqdm

    each = [*itertools.product(enumerate(study['families']), study['sizes'], range(study['draws']))]
    for (place, family), n, number in tqdm(each, study['title'], leave=False):
        options = {k: value for k, value in family.items() if k not in ('label', 'family')}
        settings = Settings(n, **options)
        name, row = family_named(family['family'])
        check_settings(name, row, settings)
        seed = [number, n, place]
        links, _ = draw(row, settings, np.random.default_rng(seed))
        yield family['label'], n, seed, links


def steady(study: Row) -> Iterator[Value]:
    for label, n, _, links in graphs(study):
        yield label, n, 1 / gain_of(_largest_component(links, n)), None


def rewired(study: Row) -> Iterator[Value]:
    for label, n, seed, links in graphs(study):
        plain = 1 / gain_of(_largest_component(links, n))
        for target in study['targets']:
            moved = rewire(links, target, np.random.default_rng([*seed, 1]))
            matrix = _largest_component(moved, n)
            yield label, target, 1 / gain_of(matrix), plain


def limits(study: Row) -> Iterator[Value]:
    for label, n, seed, links in graphs(study):
        matrix = _largest_component(links, n)
        deviations = _simulate(study, matrix, seed, study['rounds'])
        yield label, n, float(deviations.among_parameters[-1]), 1 / gain_of(matrix)


def stabilisation(study: Row) -> Iterator[Value]:
    for label, n, seed, links in graphs(study):
        matrix = _largest_component(links, n)
        rate = -math.log(spectrum(matrix).second_modulus)
        expected = -math.log(study['sigma_noise']) / rate
        deviations = _simulate(study, matrix, seed, 2 * math.ceil(expected) + 40)
        yield label, n, untrained_gossip.stabilisation(deviations.among_nodes), expected


def evolution(study: Row) -> Iterator[Value]:
    for label, n, seed, links in graphs(study):
        matrix = uniform_matrix(links, n)
        deviations = _simulate(study, matrix, seed, study['rounds'])
        limit = 1 / gain_of(matrix)
        for t in range(1, study['rounds'] + 1):
            yield f'sigma_an, {label}', t, float(deviations.among_nodes[t]), study['sigma_noise']
            yield f'sigma_ap, {label}', t, float(deviations.among_parameters[t]), limit


STUDIES: dict[str, Callable[[Row], Iterator[Value]]] = {
    'steady': steady,
    'assortativity': rewired,
    'limits': limits,
    'stabilisation': stabilisation,
    'evolution': evolution,
    'quadratics': rounds_to_target,
}


def run_study(study: Row) -> Result:
    """What a study measures on all its graphs, and what theory says."""
    result = Result({}, {})
    for label, x, value, expected in STUDIES[study['study']](study):
        result.measured.setdefault(label, {}).setdefault(x, []).append(value)
        if expected is not None:
            result.theory.setdefault(label, {}).setdefault(x, []).append(expected)
    return result


def _simulate(study: Row, matrix: scipy.sparse.csr_array, seed: list[int], rounds: int):
    return untrained_gossip.simulate(
        jax.random.key(int(np.random.SeedSequence(seed).generate_state(1)[0]), impl='rbg'),
        matrix,
        parameters=study['parameters'],
        rounds=rounds,
        sigma_noise=study['sigma_noise'],
    )


def _largest_component(links: np.ndarray, n: int) -> scipy.sparse.csr_array:
    """The mixing matrix without the few clients that a sparse random graph leaves alone."""
    matrix = uniform_matrix(links, n)
    _, names = csgraph.connected_components(matrix, directed=False)
    kept = np.flatnonzero(names == np.bincount(names).argmax())
    return matrix[kept][:, kept]


def report(study: Row, result: Result) -> str:
    """Markdown: a row a line of the figure and x, means with 95 % intervals, and the exponents."""
    heads = HEADS[study['study']]
    lines = []
    for label, points in result.measured.items():
        for x, values in thinned(points).items():
            line = [label, f'{x:.4g}', interval(values)]
            if expected := result.theory.get(label, {}).get(x):
                theory = statistics.mean(expected)
                line += [f'{theory:.5g}', f'{statistics.mean(values) / theory:.3f}']
            lines.append(line)
    text = markdown_table(['', *(head.replace('|', '\\|') for head in heads)], lines, 1)
    if study['study'] in FITTED:
        laws = {label: power_law(points) for label, points in result.measured.items()}
        fits = [f'- {m}: {heads[1]} ~ n^{law} ± {law.error:.2g}' for m, law in laws.items() if law]
        text = '\n'.join([text, '', *fits])
    return text


def thinned(points: Points) -> Points:
    """All of a few points; of many the first, second, fifth, tenth, twentieth ... ."""
    if len(points) <= 20:
        return points
    kept = [x for x in points if f'{x:.0e}'[0] in '125' and x == float(f'{x:.0e}')]
    return {x: points[x] for x in kept}


def interval(values: list[float]) -> str:
    if len(values) == 1:
        return in_digits(values[0], 5)
    return f'{in_digits(statistics.mean(values), 4)} ± {in_digits(confidence(values), 1)}'


def plot_studies(results: Sequence[tuple[Row, Result]], path: Path) -> None:
    """A panel a study: means over draws with 95 % intervals, and what theory says, dashed."""
    figure = draw_panels([_panel(study, result) for study, result in results], '', None)
    for axes, (study, _) in zip(figure.axes, results, strict=True):
        if study['study'] == 'assortativity':  # where small differences are none
            axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    save(figure, path, dpi=150)


def _panel(study: Row, result: Result) -> Panel:
    head, y, *theory = HEADS[study['study']]
    scale = 'linear' if study['study'] == 'assortativity' else 'log'
    lines = []
    for (label, every), colour in zip(result.measured.items(), itertools.cycle(COLOURS)):
        points = {x: values for x, values in every.items() if x > 0 or scale == 'linear'}
        lines.append(Line(label, colour, points))
        if study['study'] in FITTED and (law := power_law(points)):
            lines.append(law_line(law, points, colour))
        if expected := result.theory.get(label):
            means = {x: [statistics.mean(expected[x])] for x in sorted(expected) if x in points}
            lines.append(Line(theory[0], colour, means, 'law'))
    kind = 'curve' if study['study'] == 'evolution' else 'factor'
    look = Panel(
        study['title'], kind, XLABELS.get(head, head), lines, errors='confidence', ylabel=y
    )
    return look._replace(xscale=scale, yscale=scale, percent=False, legend=True)


def main(computed: Row, name: str, out: Path) -> None:
    """Computes the studies of a computed.json, prints them and writes NAME.md, .json and .png."""
    results = [(study, run_study(study)) for study in computed['studies']]
    text = '\n\n'.join(f'{study["title"]}\n\n{report(study, result)}' for study, result in results)
    print(f'{computed["title"]}\n({computed["source"]})\n\n{text}')
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f'{name}.md', text + '\n')
    content = [{'study': study, **result._asdict()} for study, result in results]
    write_atomically(out / f'{name}.json', to_json(content, separators=(',', ':')) + '\n')
    plot_studies(results, out / f'{name}.png')


def read_computed(file: Path) -> Row:
    """The studies of a computed.json. Raises ValueError for what is none."""
    computed = read_titled(file, 'studies')
    if unknown := {str(study['study']) for study in computed['studies']} - {*STUDIES}:
        raise ValueError(f'{file}: its study {min(unknown)} is none of {", ".join(STUDIES)}')
    return computed
