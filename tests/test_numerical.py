"""Studies without training: what they measure, and the table and figure of it."""

import json

import numpy as np
import pytest

from dfl_jax.papers.tables import studies as numerical
from dfl_jax.plots import COLOURS
from dfl_jax.results import published as files

RING = {'label': 'ring', 'family': 'ring'}
RANDOM = {'label': 'random', 'family': 'erdos_renyi', 'degree': 6}
MODEL = {'parameters': 400, 'rounds': 60, 'sigma_noise': 1e-4}


def study(name, **settings):
    return {'study': name, 'title': name, 'families': [RANDOM], 'draws': 2, **settings}


def test_the_steady_state_of_a_ring_falls_as_the_root_of_n():
    asked = study('steady', families=[RING], sizes=[9, 16, 64])
    result = numerical.run_study(asked)
    for n, values in result.measured['ring'].items():
        assert values == pytest.approx([n**-0.5] * 2)
    assert 'ring: ||v_steady|| ~ n^-0.50 ± ' in numerical.report(asked, result)


def test_rewiring_leaves_the_steady_state_alone():
    result = numerical.run_study(study('assortativity', sizes=[200], targets=[-0.3, 0.3]))
    assert result.measured['random'].keys() == {-0.3, 0.3}
    for rho, values in result.measured['random'].items():
        assert values == pytest.approx(result.theory['random'][rho], rel=0.02)


def test_the_limit_is_the_norm_of_the_steady_state():
    result = numerical.run_study(study('limits', sizes=[60, 120], **MODEL))
    for n, values in result.measured['random'].items():
        assert np.mean(values) == pytest.approx(np.mean(result.theory['random'][n]), rel=0.12)


@pytest.mark.slow
def test_stabilisation_takes_what_the_spectral_gap_says():
    result = numerical.run_study(study('stabilisation', families=[RING], sizes=[16, 32], **MODEL))
    for n, values in result.measured['ring'].items():
        assert 0.5 < np.mean(values) / np.mean(result.theory['ring'][n]) < 1.2
    assert np.mean(result.measured['ring'][32]) > 3 * np.mean(result.measured['ring'][16])


def test_the_evolution_ends_at_its_limits():
    result = numerical.run_study(study('evolution', sizes=[80], **MODEL))
    noise, limit = result.measured['sigma_an, random'], result.measured['sigma_ap, random']
    assert np.mean(noise[60]) == pytest.approx(1e-4, rel=0.3)
    assert np.mean(limit[60]) == pytest.approx(80**-0.5, rel=0.2)
    text = numerical.report(study('evolution'), result)
    assert '| sigma_an, random | 20 |' in text and '| 21 |' not in text


COMPUTED = sorted(files.PAPERS.glob('*/*/computed.json'))


@pytest.mark.integration
@pytest.mark.parametrize('path', COMPUTED, ids=lambda path: path.parent.name)
def test_every_shipped_study_is_known_and_draws(path, tmp_path):
    """One small graph of every family of it."""
    content = json.loads(path.read_text())
    assert {'title', 'source', 'studies'} == content.keys()
    found = []
    for each in content['studies']:
        small = {**each, 'sizes': [128], 'draws': 1}
        if 'rounds' in each:
            small['rounds'] = 20
        if each['study'] == 'assortativity':
            small['targets'] = [0.0]
        if each['study'] == 'quadratics':  # the cases of few rounds
            small['methods'] = [
                method | {'rounds': 1000, 'rates': {'0': method['rates']['0']}}
                for method in each['methods']
            ]
        found.append((small, numerical.run_study(small)))
        lines = each['families'] if 'families' in each else each['methods']
        assert len(found[-1][1].measured) >= len(lines)
    numerical.plot_studies(found, tmp_path / 'figure.png')
    assert (tmp_path / 'figure.png').stat().st_size > 10_000


def test_what_a_study_writes(tmp_path, capsys):
    asked = study('steady', families=[RING], sizes=[9, 16, 25])
    computed = {'title': 'Rings', 'source': 'nowhere', 'studies': [asked]}
    numerical.main(computed, 'paper-rings', tmp_path / 'out')
    assert 'n^-0.50' in capsys.readouterr().out
    assert {f.name for f in (tmp_path / 'out').iterdir()} == {
        f'paper-rings.{kind}' for kind in ('md', 'json', 'png')
    }


def test_a_figure_has_every_line_of_its_study(tmp_path):
    many = {f'ring {k}': {9: [0.3], 16: [0.25]} for k in range(len(COLOURS) + 2)}
    found = study('limits'), numerical.Result(many, {})
    numerical.plot_studies([found], tmp_path / 'figure.svg')
    drawn = (tmp_path / 'figure.svg').read_text()
    assert [label for label in many if f'<!-- {label} -->' not in drawn] == []
