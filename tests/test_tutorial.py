"""The tutorial notebook runs, and what it says of its curves holds."""

import json
from pathlib import Path

import matplotlib
import pytest

pytestmark = pytest.mark.integration

NOTEBOOK = Path(__file__).resolve().parent.parent / 'docs' / 'tutorial.ipynb'


@pytest.fixture(scope='module')
def cells():
    return json.loads(NOTEBOOK.read_text())['cells']


def source(cell):
    return ''.join(cell['source'])


@pytest.fixture(scope='module')
def names(cells):
    """What the code cells define, executed in order in one namespace, as a kernel does.

    Without Jupyter's magics, which `test_it_is_plain_python` rules out, a kernel adds nothing but
    its start and a dozen packages.
    """
    pytest.importorskip('sklearn')
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    plt.close('all')
    names = {'__name__': 'tutorial'}
    for cell in cells:
        if cell['cell_type'] == 'code':
            exec(compile(source(cell), f'{NOTEBOOK}:{cell["id"]}', 'exec'), names)
    assert len(plt.get_fignums()) == 2
    plt.close('all')
    return names


def test_it_is_plain_python(cells):
    for cell in cells:
        if cell['cell_type'] == 'code':
            assert not any(line.lstrip().startswith(('%', '!')) for line in cell['source'])


def test_nothing_is_stored_but_the_source(cells):
    for cell in cells:
        if cell['cell_type'] == 'code':
            assert (cell['outputs'], cell['execution_count']) == ([], None)
    assert NOTEBOOK.stat().st_size < 20_000


def test_links_lead_somewhere(cells):
    text = '\n'.join(source(cell) for cell in cells if cell['cell_type'] == 'markdown')
    targets = [part.split(')')[0] for part in text.split('](')[1:]]
    assert targets and all((NOTEBOOK.parent / target).exists() for target in targets)


def test_what_it_says_of_the_curves_holds(names):
    curves = names['curves']
    assert list(curves) == ['NTK-DFL', 'DFedAvg', 'Lazy gossip']
    ntk, averaging, lazy = ([row['consensus_accuracy'] for row in rows] for rows in curves.values())
    assert len(ntk) == len(averaging) == len(lazy) == names['ROUNDS']
    assert ntk[0] < averaging[0] and ntk[-1] > averaging[-1] + 0.01
    assert lazy[-1] > averaging[-1] - 0.04 > 0.85
    sent = {name: rows[-1]['mbytes_total'] for name, rows in curves.items()}
    assert sent['Lazy gossip'] == sent['DFedAvg'] / 2
    assert 1000 < sent['NTK-DFL'] / sent['DFedAvg'] < 2000
    between, met = (curves['Lazy gossip'][i]['client_accuracy_mean'] for i in (-2, -1))
    assert between < met - 0.05
