"""Tables of test loss: metrics, power laws in n, confidence bands, axes."""

import json
import math

import numpy as np
import pytest
from scipy.stats import linregress, t
from test_tables import SETTINGS, curve, draw, legend_of, table_of, write_run

from dfl_jax.papers.tables import claims, verdict
from dfl_jax.papers.tables.panels import table_panels, ylabel
from dfl_jax.papers.tables.plot_panels import draw_panels
from dfl_jax.results import curves, table
from dfl_jax.results import fits as table_fits
from dfl_jax.results import measured as metrics
from dfl_jax.results import published as table_files
from dfl_jax.results.curves import read_flagfile
from dfl_jax.results.measured import Measured, measure

LOSS = 'client_loss_mean'
SIZES = {'n8': 8, 'n16': 16, 'n32': 32, 'n64': 64}
PUBLISHED = {
    'metric': 'loss_to',
    'target_loss': 1.0,
    'columns': [*SIZES],
    'rows': {'he': [None] * 4, 'gain': [None] * 4},
    'fit': {'he': SIZES},
    'panels': [],
}


def losses(*values, every=1, **more):
    """A run with these losses, evaluated in every so many rounds."""
    run = curve(*[0.5] * len(values), client_loss_mean=list(values), **more)
    return run | {'round': [every * r for r in run['round']]}


def falling(round):
    """A run whose loss is 1 from that round on, and 2 before."""
    return losses(2.0, 1.0) | {'round': [round - 1, round]}


def law(exponent, factor=3.0):
    """{cell: runs} of He that take exactly factor * n^exponent rounds, one seed."""
    return {f'he-{column}': [falling(factor * n**exponent)] for column, n in SIZES.items()}


def test_the_round_of_a_loss_is_where_its_curve_meets_the_target():
    runs = [losses(2.3, 1.0, 1.1, 0.4, every=10), losses(2.3, 1.1, 0.9), losses(2.3, 1.01, every=5)]
    assert measure(PUBLISHED, runs) == [Measured(20), Measured(2.5), Measured(10, bound=True)]
    at_once = measure(PUBLISHED, [losses(0.9, every=10)])
    assert at_once == [Measured(10)]
    assert [str(value) for value in measure(PUBLISHED, runs)] == ['20', '2.5', '>10']
    assert metrics.metrics_in_words(PUBLISHED) == 'rounds to a mean test loss of 1'


def test_a_mean_curve_is_measured_with_the_deviation_of_the_jackknife():
    published = PUBLISHED | {'mean_of': 32}
    # Straight lines of one slope: the mean curve meets the target in the mean of their rounds
    lines = [losses(*(start - 0.1 * r for r in range(30)), every=2) for start in (2.0, 2.2, 3.0)]
    each = [value.value for value in measure(PUBLISHED, lines)]
    assert [v.value for v in measure(published, lines)] == pytest.approx(each) == [22, 26, 42]
    # One that comes down late: by hand, for the mean curve 4, 2.5, 1, 0.7 and those of two runs
    late = [losses(2, 1, 0.5, 0.2), losses(2, 1.5, 0.5, 0.4), losses(8, 5, 2, 1.5)]
    found = [value.value for value in measure(published, late)]
    without = [3 + (1.25 - 1) / (1.25 - 0.95), 3 + 0.25 / (1.25 - 0.85), 2 + 0.25 / 0.75]
    assert np.mean(found) == pytest.approx(3)
    assert np.std(found, ddof=1) == pytest.approx(2 * np.std(without, ddof=1))
    assert measure(published, late[2:]) == [Measured(4, bound=True)]
    assert measure(published, [late[0], losses(9, 9, 9, 9)]) == [Measured(4, bound=True)] * 2
    (alone,) = measure(published, [late[0], losses(2, 1.2, 1.2, 1.2)])
    assert alone.value == pytest.approx(2 + 0.1 / 0.25) and not alone.bound
    with pytest.raises(ValueError, match='no round is evaluated in all of'):
        measure(published, [losses(2, 1), losses(2, 1) | {'round': [3, 4]}])
    other = losses(2, 1, 0.5) | {'round': [1, 3, 4]}  # the rounds that both have
    found = [v.value for v in measure(published, [late[0], other])]
    assert np.mean(found) == pytest.approx(1 + 2 * 1 / 1.25)


@pytest.mark.parametrize('number, found', [(0.45, 'equal'), (1, 'differs')])
def test_an_exponent_beside_a_published_one(number, found):
    claim = {'text': 'grows', 'exponent': 'he', 'number': number}
    table = PUBLISHED | {'title': 'losses', 'claims': [claim]}
    (entry,) = claims.entries(table, law(0.45))
    assert (entry.verdict, entry.ours, entry.published) == (found, '0.45 ± 0.00', f'{number:g}')
    assert claims.entries(table, {})[0].verdict == 'not run'
    noisy = [verdict.judge_interval(0.4, half, 0.45, 0.07).verdict for half in (0.01, 0.06, 0.03)]
    assert noisy == ['equal', 'consistent', 'inconclusive']


def test_the_loss_at_a_round_is_not_in_percent():
    published = PUBLISHED | {'metric': 'loss_at', 'round': 20}
    runs = [losses(2.3, 0.4, every=10), losses(2.3, 0.2), losses(2.3, 0.2, every=10)]
    assert measure(published, runs) == [Measured(0.4), Measured(0.2)]
    assert metrics.metrics_in_words(published) == 'mean test loss at round 20'
    several = {'metrics': ['loss_to', 'loss_at'], 'rows': {'he': [[5, None, None, None]] * 2}}
    lines = table_of(published | several, {'he-n8': runs}).splitlines()
    assert lines[0].startswith('| method | n8 rounds paper | n8 rounds ours | n8 loss paper |')
    loss = '0.3 ± 0.14 (2 seeds, -1.0 to 1.6) ≠'
    assert lines[2].startswith(f'| he | 5 | 11.55 ± 8.6 (3 seeds, -10 to 33) | 5 | {loss} |')


def test_what_losses_and_other_columns_need():
    panels = [
        {'title': '', 'column': 'n8', 'curves': ['client_accuracy_mean', 'sigma_an']},
        {'title': '', 'lines': [{'cell': 'a', 'curve': 'sigma_ap'}], 'x': 'minibatches'},
        {'title': '', 'lines': [{'cell': 'a'}], 'curve': 'change_total_mean', 'x': 'mbytes_total'},
    ]
    needed = table_files.needed_columns(PUBLISHED | {'panels': panels}, ['a', 'b'])
    shared = [LOSS, 'mbytes_total', 'sigma_an']
    assert needed == {
        'a': [*curves.CURVES, 'change_total_mean', *shared, 'sigma_ap'],
        'b': [*curves.CURVES, *shared],
    }


def test_losses_and_small_columns_keep_their_digits(tmp_path):
    more = {LOSS: [0.01234567], 'change_cosine_mean': [-1.234567e-6], 'model_deviation': [0.01234]}
    write_run(tmp_path / 'he-n8-seed0', [0.84996], more=more, **SETTINGS)
    (tmp_path / 'he-n8.flags').touch()
    flagfiles = {'he-n8': tmp_path / 'he-n8.flags'}
    needed = {'he-n8': [*curves.CURVES, *more]}
    found, _ = curves.find_runs(flagfiles, [tmp_path], needed)
    (run,) = found['he-n8']
    assert [run[name] for name in more] == [[0.0123457], [-1.23457e-6], [0.0123]]
    assert run['consensus_accuracy'] == [0.85]


@pytest.mark.parametrize('exponent', [0.4, 1.0, -0.5])
def test_a_known_exponent_is_found(exponent):
    runs = law(exponent)
    found = table_fits.fitted_laws(PUBLISHED, runs)['he']
    assert found.exponent == pytest.approx(exponent)
    assert found.factor == pytest.approx(3)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.at(100) == pytest.approx(3 * 100**exponent)
    assert table.report(PUBLISHED, runs).splitlines()[-1] == (
        f'- he: rounds ~ n^{exponent:.2f} ± 0.00 (4 sizes, 4 runs)'
    )


def test_the_interval_is_that_of_the_regression_over_all_runs():
    rng = np.random.default_rng(0)
    values = {n: [n**0.7 * math.exp(rng.normal(0, 0.2)) for _ in range(3)] for n in SIZES.values()}
    found = table_fits.power_law(values)
    x = np.log([n for n in values for _ in range(3)])
    line = linregress(x, np.log([value for group in values.values() for value in group]))
    assert found.exponent == pytest.approx(line.slope)
    assert found.error == pytest.approx(t.ppf(0.975, 10) * line.stderr)
    runs = {f'he-{c}': [falling(10 * v) for v in values[n]] for c, n in SIZES.items()}
    text = f'he: rounds ~ n^{found} ± {found.error:.2f} (4 sizes, 12 runs)'
    assert table_fits.fit_lines(PUBLISHED, runs) == [text]


def test_bounds_are_left_out_of_the_fit():
    runs = law(0.5)
    runs['he-n8'].append(losses(2.0, 1.5))
    runs['he-n64'] = [losses(2.0, 1.5)]
    assert table_fits.fit_lines(PUBLISHED, runs) == [
        'he: rounds ~ n^0.50 ± 0.00 (3 sizes, 3 runs; 2 bounds left out)'
    ]


def test_two_sizes_are_no_fit():
    runs = {cell: 2 * cells for cell, cells in law(0.5).items() if cell in ('he-n8', 'he-n16')}
    assert table_fits.fitted_laws(PUBLISHED, runs) == {}
    text = 'he: rounds ~ n^mu not fitted, it takes 3 sizes (2 sizes, 4 runs)'
    assert table_fits.fit_lines(PUBLISHED, runs) == [text]
    runs['he-n32'] = [losses(2.0)]
    text = text.replace('4 runs)', '4 runs; 1 bound left out)')
    assert table_fits.fit_lines(PUBLISHED, runs) == [text]
    assert table_fits.fit_lines(PUBLISHED, {}) == []


def test_no_exponent_is_a_negative_zero():
    assert str(table_fits.PowerLaw(-0.001, 0.0, 1.0)) == '0.00'


def test_the_slowdown_is_against_the_first_column():
    published = PUBLISHED | {'slowdown': {'n8': 40, 'n16': 20, 'n32': 10}}
    runs = {
        'he-n8': [falling(10), falling(30)],
        'he-n16': [falling(40), falling(80)],
        'he-n32': [losses(2.0)],
    }
    half = 12.71 * 0.25  # t of one degree of freedom
    assert table_fits.slowdown_lines(published, runs) == [
        f'he: slowdown against n8: n8 1.33 ± {12.71 * 2 / 3:.1f}, n16 0.75 ± {half:.1f}'
    ]
    del runs['he-n8']
    assert table_fits.slowdown_lines(published, runs) == []


FACTOR = {'title': '', 'label': 'n', 'columns': SIZES, 'xscale': 'log', 'yscale': 'log'}


def drawn(published, runs):
    """The figure as tables.main draws it."""
    return draw_panels(table_panels(published, runs), ylabel(published), None)


def test_a_power_law_is_a_dashed_line_through_its_sizes():
    published = PUBLISHED | {'panels': [FACTOR]}
    figure = drawn(published, law(0.5))
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ('log', 'log')
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ['8', '16', '32', '64']
    (dashed,) = (line for line in axes.lines if line.get_linestyle() == '--')
    assert dashed.get_xydata() == pytest.approx(np.array([[8, 3 * 8**0.5], [64, 24]]))
    assert [text.get_text() for text in axes.texts] == ['$n^{0.50}$']
    assert legend_of(figure) == ['He', 'power law']
    assert axes.get_ylabel() == 'rounds to a mean test loss of 1'
    other = FACTOR | {'columns': {'n8': 0.1, 'n16': 0.2, 'n32': 0.5}}  # another factor, no law
    assert not drawn(published | {'panels': [other]}, law(0.5)).axes[0].texts


def test_a_panel_draws_methods_as_others():
    published = PUBLISHED | {'rows': {'he_b': []}, 'fit': {}}
    panels = [FACTOR | {'methods': {'he_b': 'he'}}, FACTOR]
    runs = {'he_b-n8': [falling(10)]}
    first, second = table_panels(published | {'panels': panels}, runs)
    assert [line.label for line in (*first.lines, *second.lines)] == ['He', 'he_b']
    assert first.lines[0].colour != second.lines[0].colour


def test_bands_are_ranges_or_confidence_intervals():
    panel = {'title': '', 'column': 'n8', 'curves': [LOSS]}
    runs = {'he-n8': [losses(1.0, 0.5), losses(2.0, 0.5), losses(3.0, 0.5)]}
    half = t.ppf(0.975, 2) * 1 / 3**0.5
    for errors, low, high in (('range', 1, 3), ('confidence', 2 - half, 2 + half)):
        figure = draw(PUBLISHED | {'panels': [panel], 'errors': errors}, runs)
        ((band,), (line, _)) = figure.axes[0].collections, figure.axes[0].lines
        assert line.get_ydata() == pytest.approx([2, 0.5])
        extents = band.get_paths()[0].get_extents().get_points()[:, 1]
        assert extents == pytest.approx([min(low, 0.5), high])
    assert table_fits.confidence([2.0]) == 0
    runs = {'he-n8': [falling(10), falling(20), falling(30)]}
    (bars,) = drawn(PUBLISHED | {'panels': [FACTOR], 'errors': 'confidence'}, runs).axes
    ((low, high),) = bars.collections[0].get_segments()
    assert (low[1], high[1]) == pytest.approx((20 - 10 * half, 20 + 10 * half))


def test_losses_are_drawn_as_they_are_below_the_line_of_the_target():
    panel = {'title': '', 'column': 'n8', 'curves': [LOSS], 'xscale': 'log', 'yscale': 'log'}
    figure = draw(PUBLISHED | {'panels': [panel]}, {'he-n8': [losses(2.0, 0.5)]})
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[2.0, 0.5], [1.0, 1.0]]
    assert (axes.get_xscale(), axes.get_yscale()) == ('log', 'log')
    assert legend_of(figure) == ['He', 'test loss of the mean client', 'loss 1']
    assert ylabel(PUBLISHED | {'panels': [panel]}) == 'mean test loss'


def test_several_columns_are_lines_with_own_axes():
    def lines(*names):
        return [{'cell': 'he-n8', 'label': name, 'curve': name} for name in names]

    own = {'title': 'b', 'ylabel': 'norm', 'yscale': 'log'}
    panels = [
        {'title': 'a', 'lines': lines(LOSS)},
        {**own, 'lines': lines('change_training_mean', 'change_total_mean'), 'legend': True},
        {'title': 'c', 'ylabel': 'cosine', 'lines': lines('change_cosine_mean')},
        {'title': 'd', 'lines': lines(LOSS), 'xscale': 'linear'},
        {'title': 'e', 'lines': lines(LOSS)},
    ]
    more = {'change_training_mean': [1e-4, 1e-3], 'change_total_mean': [10.0, 1.0]}
    run = losses(2.0, 0.5, change_cosine_mean=[0.0, -0.5], **more)
    figure = draw(PUBLISHED | {'panels': panels, 'target_loss': None}, {'he-n8': [run]})
    a, b, c, d, e = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == ['y', 'norm', 'cosine', 'y', '']
    assert [axes.get_yscale() for axes in figure.axes] == ['linear', 'log', *['linear'] * 3]
    assert a.get_ylim() == d.get_ylim() == e.get_ylim() != c.get_ylim()
    assert c.get_ylim()[0] < -0.5 < 0 < c.get_ylim()[1] < 0.5
    assert sorted(line.get_ydata()[0] for line in b.lines) == [1e-4, 10]
    own = [text.get_text() for text in b.get_legend().get_texts()]
    assert own == ['change_training_mean', 'change_total_mean']
    assert legend_of(figure) == [LOSS, 'change_cosine_mean']


def test_minibatches_are_rounds_times_the_scale():
    lines = [{'cell': 'he-n8', 'label': 'a'}, {'cell': 'he-n8', 'label': 'b', 'scale': 2.5}]
    panel = {'title': 'P', 'lines': lines, 'curve': LOSS, 'x': 'minibatches', 'xscale': 'log'}
    runs = {'he-n8': [losses(2.0, 0.5, every=10)]}
    published = PUBLISHED | {'panels': [panel | {'scale': 40}]}
    (found,) = table_panels(published, runs)
    assert [line.points for line in found.lines] == [{400: [2], 800: [0.5]}, {25: [2], 50: [0.5]}]
    (axes,) = draw(published, runs).axes
    assert (axes.get_xlabel(), axes.get_xscale()) == ('minibatches of a client', 'log')
    with pytest.raises(KeyError, match='scale'):
        table_panels(PUBLISHED | {'panels': [panel]}, runs)


def test_panels_stand_abreast_in_rows():
    panels = [{'title': str(i), 'column': 'n8', 'curves': [LOSS]} for i in range(5)]
    runs = {'he-n8': [losses(2.0, 0.5)]}
    figure = draw_panels(table_panels(PUBLISHED | {'panels': panels}, runs), 'y', None, 2)
    assert [axes.get_ylabel() for axes in figure.axes] == ['y', '', 'y', '', 'y']
    assert {axes.get_subplotspec().get_geometry()[:2] for axes in figure.axes} == {(3, 2)}


@pytest.mark.parametrize(
    'figure', ['figure1', 'figure2', 'figure3', 'figure4', 'figure6', 'figure7']
)
def test_settings_of_the_initialisation_paper(figure):
    folder = table_files.PAPERS / 'init_topology' / figure
    content = json.loads((folder / 'published.json').read_text())
    # on these logarithmic axes an interval of means may fall below zero
    ranges = figure in ('figure2', 'figure4')
    assert content.get('errors', 'range') == ('range' if ranges else 'confidence')
    for cell, file in table_files.flagfiles_of(content, folder).items():
        wanted = read_flagfile(file)
        clients = int(wanted['clients'])
        assert wanted['partition'] == 'balanced' or int(wanted['train_samples']) % clients == 0
        assert int(wanted['rounds']) % int(wanted['eval_every']) == 0
        assert wanted['static_topology'] == 'True'
        column = cell.partition('-')[2]
        assert clients == content.get('fit', {}).get(cell.partition('-')[0], {}).get(
            column, clients
        )
    for panel in content['panels']:
        for line in panel.get('lines', ()) if panel.get('x') == 'minibatches' else ():
            wanted = read_flagfile(table_files.flagfiles_of(content, folder)[line['cell']])
            batches = -(-int(wanted['samples_per_client']) // 16)
            assert line['scale'] == batches * int(wanted['local_epochs'])
