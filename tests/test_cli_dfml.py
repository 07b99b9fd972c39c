"""The command line of the methods whose clients may have different architectures."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_cli import here, rows_of

from dfl_jax.methods import IN_ROUNDS

pytestmark = pytest.mark.integration

NETWORK = ('--clients=8', '--rounds=2', '--architectures=cnn-4-8,cnn-4', '--alpha=10')


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """Three classes of 8x8 images, a bright patch each."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (('train', 160), ('test', 40)):
        y = rng.integers(3, size=count).astype(np.int32)
        x = rng.normal(size=(count, 8, 8, 1)).astype(np.float32)
        for label in range(3):
            x[y == label, 2 * label : 2 * label + 3] += 2
        arrays |= {f'{part}_x': x, f'{part}_y': y}
    path = tmp_path_factory.mktemp('images') / 'images.npz'
    np.savez(path, **arrays)
    return path


def test_dfml_runs_resumes_and_reports(images, tmp_path):
    argv = ('--algorithm=dfml', f'--dataset={images}', *NETWORK, '--dfml_mutual_epochs=2')
    whole = here(*argv, f'--out={tmp_path}/whole')
    assert whole.status == 0 and whole.err == ''
    assert '2 architectures of' in whole.out and 'regular models' in whole.out
    rows = rows_of(tmp_path / 'whole')
    assert {
        *('alpha', 'regular_accuracy', 'client_accuracy/cnn-4', 'client_accuracy/cnn-4-8'),
        *('consensus_accuracy/cnn-4-8', 'local_accuracy_mean'),
    } <= set(rows[-1])
    clusters = [rows[-1][f'client_accuracy/{name}'] for name in ('cnn-4', 'cnn-4-8')]
    assert np.isclose(np.mean(clusters), rows[-1]['client_accuracy_mean'])
    assert rows[-1]['consensus_accuracy'] == rows[-1]['consensus_accuracy/cnn-4-8']
    config = json.loads((tmp_path / 'whole/config.json').read_text())
    assert config['settings']['topology'] == 'complete'
    assert config['settings']['partition'] == 'dirichlet_split'
    assert config['settings']['validation_share'] == 0.2
    assert config['algorithm']['rounds'] == 2 and config['algorithm']['peak_updates'] == 1
    saved = load_file(tmp_path / 'whole/consensus.safetensors')
    assert {name.split('.')[0] for name in saved} == {'cnn-4', 'cnn-4-8'}

    assert here(*argv, '--rounds=1', f'--out={tmp_path}/longer').status == 0
    assert here('--resume', f'--out={tmp_path}/longer', '--rounds=2').status == 0
    longer, whole = (rows_of(tmp_path / name, without='seconds') for name in ('longer', 'whole'))
    assert longer == whole


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name, m in IN_ROUNDS.items() if m.heterogeneous])
def test_every_baseline_runs_by_its_name(name, images, tmp_path):
    alike = name in ('def_kt', 'dec_fedprox', 'dec_heterofl', 'dec_fedrolex', 'dec_fed_dropout')
    names = {'def_kt': 'cnn-4'}.get(name, 'cnn-8,cnn-4' if alike else 'cnn-4-8,cnn-4')
    argv = (f'--algorithm={name}', f'--dataset={images}', *NETWORK, f'--architectures={names}')
    done = here(*argv, f'--out={tmp_path}/out', '--augmentation=standard').succeeded()
    assert done.err == ''
    assert rows_of(tmp_path / 'out')[-1]['mbytes_total'] > 0


@pytest.mark.parametrize(
    ('flags', 'patterns'),
    [
        ('--architectures=cnn-4-8-16-32', ['8x8 pixels allow 3 poolings', '--architectures']),
        ('--architectures=cnn-x', ["'cnn-x'", 'h2_cnn']),
        ('--senders=8', ['8 senders', 'use 1 to 7']),
        ('--senders=0', ['0 senders']),
        ('--clients=1 --architectures=cnn-4', ['clients=1']),
        ('--architecture_ratios=1', ['1 ratios for 2']),
        ('--architecture_ratios=1000,1', ['cnn-4 has no client']),
        ('--dfml_mutual_epochs=0', ['mutual_epochs (K)', 'got 0']),
        ('--dfml_alpha=2', ['alpha', 'got 2.0']),
        ('--dfml_width=0', ['width', 'positive']),
        ('--model=mlp', ['--model', '--architectures']),
        ('--init=gain_corrected', ['--init=gain_corrected', 'does not apply']),
        ('--spark_schedule_rounds=5', ['--spark_schedule_rounds=5', 'does not apply']),
        ('--validation_share=1', ['validation share', '1.0']),
        ('--supervision=mse', ["'mse'", 'wsm']),
        ('--augmentation=mixup', ["'mixup'", 'standard']),
        ('--fedprox_mu=1', ['mutual learning has no proximal', 'got 1.0']),
        ('--sam_radius=0.1', ['mutual learning has no sam_radius', 'got 0.1']),
        ('--algorithm=dec_fml --local_steps=3', ['dec_fml trains by epochs', 'local_steps=3']),
        ('--algorithm=def_kt', ['def_kt', 'same architecture']),
        ('--algorithm=dec_heterofl', ['differ in layers', 'h1_cnn']),
        ('--algorithm=dec_fml --fml_meme=cnn-9', ["'cnn-9'", 'cnn-4-8']),
        ('--algorithm=dfedavg', ['--architectures', 'dfedavg']),
        ('--algorithm=dec_fedavg --dfml_schedule=cycle', ['--dfml_schedule=cycle', 'leave it out']),
    ],
)
def test_a_bad_value_is_named_before_anything_is_written(flags, patterns, images, tmp_path):
    argv = ('--algorithm=dfml', f'--dataset={images}', *NETWORK, f'--out={tmp_path}/new')
    line = here(*argv, *flags.split()).error
    assert all(pattern in line for pattern in patterns), line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_architectures_from_a_file(images, tmp_path):
    listed = tmp_path / 'who.txt'
    listed.write_text('cnn-4\n' * 7 + 'cnn-8\n')
    argv = ('--algorithm=dec_heterofl', f'--dataset={images}', *NETWORK[:2])
    argv = (*argv, f'--architecture_file={listed}', '--augmentation=standard')
    assert here(*argv, f'--out={tmp_path}/out', '--rounds=1').succeeded().err == ''
    row = rows_of(tmp_path / 'out')[-1]
    assert row['mbytes_total'] > 0
    mean = (7 * row['client_accuracy/cnn-4'] + row['client_accuracy/cnn-8']) / 8
    assert np.isclose(mean, row['client_accuracy_mean'])
    assert 'lists 8 architectures' in here(*argv, f'--out={tmp_path}/new', '--clients=9').error
