"""A run that is resumed with any one of its inputs changed is refused.

Generated over the flags, over the files that flags name, and over the arrays of an experiment.
"""

import dataclasses
import json
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path

import jax
import numpy as np
import pytest
from test_cli import here
from test_wiring import PAIRS, SPEEDS
from test_wiring_methods import others
from wiring import CLIENTS, TRAIN, experiment, given, write_files, written_in

from dfl_jax.cli.flags.run_flags import GROUPS, METHOD, NOT_SETTINGS
from dfl_jax.experiment import config_file
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.config_file import describe
from dfl_jax.experiment.fingerprint import fingerprint
from dfl_jax.experiment.method import flat_settings
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.methods import METHODS

PLAIN = '--clients=6 --degree=2 --rounds=3 --hidden=4 --algorithm=dpsgd'


def begin(folder: Path, argv: list[str]) -> RunDirectory:
    """A run directory as a run has it before its first round."""
    directory = RunDirectory(folder)
    folder.mkdir(parents=True)
    directory.write_config(given(*argv, then=lambda experiment: describe(experiment.build())))
    return directory


def resumed(directory: RunDirectory, argv: list[str]) -> None:
    """Builds what the flags describe today, and checks that it is the run."""
    config = directory.config()
    given(
        *argv,
        then=lambda experiment: config_file.begin(
            directory, experiment.build(), config, ExitStack()
        ),
    )


# ---------------------------------------------------------------------------------------- flags

GO_ON = ('rounds', 'chunk')  # more rounds, and another chunk than memory chose; test_resume.py


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp('inputs'))


@pytest.fixture(scope='module')
def begun(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs') / 'begun'
    return begin(folder, [*PLAIN.split(), f'--dataset={files["images.npz"]}'])


OF_METHODS = {
    flag: setting
    for method in METHODS.values()
    for flag, setting in flat_settings(method).items()
    if flag in GROUPS[METHOD]
}


def another_value(name: str, recorded) -> str:
    """A value of a flag that a run has not."""
    if name in PAIRS:  # the second is never a default
        second, first = PAIRS[name][1::-1]
        return first if second in (None, str(recorded)) else second
    if name in OF_METHODS:
        value = others(OF_METHODS[name], recorded)[0]
        return ','.join(map(str, value)) if isinstance(value, tuple) else str(value)
    return str(not recorded).lower() if isinstance(recorded, bool) else '7'


@pytest.mark.parametrize(
    'name',
    [name for names in GROUPS.values() for name in names if name not in (*NOT_SETTINGS, *GO_ON)],
)
def test_another_value_of_a_flag_is_refused(name, begun, files):
    recorded = begun.config()['settings'][name]
    value = written_in(another_value(name, recorded), files)
    if name == 'dataset':  # a file may have moved, and what is in it is compared
        value = 'digits'
    flag = f'--{name}={value}'
    line = here('--resume', f'--out={begun.path}', flag).error
    assert f'was started with --{name}=' in line, line


# ---------------------------------------------------------------------------------------- files


def change_array(name: str):
    """Changes one number of an array in an .npz."""

    def change(path: Path) -> None:
        arrays = dict(np.load(path))
        array = arrays[name]
        changed = array.copy().reshape(-1)
        changed[3] = changed[4] if changed[3] != changed[4] else changed[5]
        arrays[name] = changed.reshape(array.shape)
        assert (arrays[name] != array).any()
        np.savez(path, **arrays)

    return change


def change_text(old: str, new: str):
    """Replaces the first `old` in a text file."""

    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def swap_the_last_lines(path: Path) -> None:
    """Two that differ, so that names come first in the same order."""
    *lines, first, second = path.read_text().split('\n')
    assert first != second
    path.write_text('\n'.join([*lines, second, first]))


def change_bytes(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] = (content[-1] + 1) % 3
    path.write_bytes(content)


def change_a_pixel(path: Path) -> None:
    from PIL import Image

    pixels = np.array(Image.open(path))
    Image.fromarray(255 - pixels).save(path)


def roll_clients(path: Path) -> None:
    np.save(path, np.roll(np.load(path), (1, 1), (0, 1)))


def swap_two_parts(path: Path) -> None:
    first, second, *rest = json.loads(path.read_text())
    path.write_text(json.dumps([second, first, *rest]))


IMAGES = f'{PLAIN} --dataset={{images.npz}}'
NETWORKED = '--clients=6 --rounds=3 --hidden=4 --algorithm=dpsgd --dataset={images.npz}'
MIXED = '--clients=6 --rounds=3 --algorithm=dec_fedavg --dataset={images.npz}'
ONE_LINK = change_text('0 1', '0 3')
INPUTS = {  # name -> (arguments, the file, what is changed in it, what is named)
    'inputs': (IMAGES, 'images.npz', change_array('train_x'), 'data'),
    'labels': (IMAGES, 'images.npz', change_array('train_y'), 'data'),
    'test inputs': (IMAGES, 'images.npz', change_array('test_x'), 'data'),
    'test labels': (IMAGES, 'images.npz', change_array('test_y'), 'data'),
    'users': (f'{IMAGES} --partition=natural', 'images.npz', change_array('client'), 'partition'),
    'targets': (
        f'{PLAIN} --dataset={{sums.npz}} --task=regression --partition=iid',
        *('sums.npz', change_array('train_y'), 'data'),
    ),
    'table': (
        f'{PLAIN} --dataset={{table.csv}} --columns=target=kind --partition=iid',
        *('table.csv', change_text(',0,', ',1,'), 'data'),
    ),
    'text': (
        '--clients=6 --degree=2 --rounds=3 --algorithm=dpsgd --dataset={text.txt} '
        '--task=next_token --model=gru --partition=iid --text_window=9',
        *('text.txt', change_text('a', 'b'), 'data'),
    ),
    'official files': (
        f'{PLAIN} --dataset=mnist --data_dir={{mnist0}}',
        *('mnist0/train-labels-idx1-ubyte', change_bytes, 'data'),
    ),
    'official test files': (
        f'{PLAIN} --dataset=mnist --data_dir={{mnist0}}',
        *('mnist0/t10k-images-idx3-ubyte', change_bytes, 'data'),
    ),
    'pictures': (
        f'{PLAIN} --dataset=image_folder --data_dir={{pictures}} --image_size=8',
        *('pictures/b/3.png', change_a_pixel, 'data'),
    ),
    'partition': (
        f'{IMAGES} --partition_file={{partition0.json}}',
        *('partition0.json', swap_two_parts, '`partition_file`'),
    ),
    'links': (
        f'{NETWORKED} --topology=edge_list --topology_file={{edges0.txt}}',
        *('edges0.txt', ONE_LINK, 'topology_file changed'),
    ),
    'links of one direction': (
        f'{NETWORKED} --topology=directed_edge_list --topology_file={{edges0.txt}}',
        *('edges0.txt', ONE_LINK, 'topology_file changed'),
    ),
    'a matrix': (
        f'{NETWORKED} --topology=matrix --topology_file={{weights.npy}}',
        *('weights.npy', roll_clients, 'graphs'),
    ),
    'architectures': (
        f'{MIXED} --architecture_file={{architectures0.txt}}',
        *('architectures0.txt', swap_the_last_lines, '`architecture_file`'),
    ),
    'world': (
        f'{IMAGES} --world={{world0.csv}}',
        *('world0.csv', change_text('1e7', '2e7'), '`world`'),
    ),
    'uplinks': (
        f'{IMAGES} --world={{world0.csv}}',
        *('world0.csv', change_text('100000.0', '100001.0'), '`world`'),
    ),
    'the world of events': (
        '--clients=6 --degree=2 --rounds=2 --hidden=4 --algorithm=swift --dataset={images.npz} '
        '--world={world0.csv} --round_seconds=0.5',
        *('world0.csv', change_text('1e7', '2e7'), 'graphs'),
    ),
}


@pytest.mark.parametrize('name', INPUTS)
def test_a_file_that_changed_is_refused(name, tmp_path):
    text, file, change, named = INPUTS[name]
    files = write_files(tmp_path)
    matrix = np.full((CLIENTS, CLIENTS), 0.1) + 0.4 * np.eye(CLIENTS)
    matrix[0, :2] += 0.05, -0.05
    np.save(tmp_path / 'weights.npy', matrix)
    files |= {'weights.npy': tmp_path / 'weights.npy'}
    argv = [written_in(each, files) for each in text.split()]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        directory = begin(tmp_path / 'run', argv)
        resumed(directory, argv)  # as it was
        change(tmp_path / file)
        with pytest.raises(ValueError, match=named):
            resumed(directory, argv)


def test_a_sample_that_a_client_keeps_for_validation_is_of_its_inputs(files, tmp_path):
    """Nobody trains on it, so that what is trained on is as it was."""
    path = tmp_path / 'partition.json'
    parts = [list(range(i, TRAIN - 6, CLIENTS)) for i in range(CLIENTS)]
    path.write_text(json.dumps(parts))
    argv = [*PLAIN.split(), f'--dataset={files["images.npz"]}', f'--partition_file={path}']
    argv += ['--validation_share=0.2']
    directory = begin(tmp_path / 'run', argv)
    training = experiment(*argv).parts[0]
    place = next(k for k, row in enumerate(parts[0]) if row not in training)
    parts[0][place] = TRAIN - 1
    path.write_text(json.dumps(parts))
    assert (experiment(*argv).parts[0] == training).all()
    with pytest.raises(ValueError, match='keep for validation'):
        resumed(directory, argv)


OWN = """
import flax.linen as nn
import numpy as np
from dfl_jax import algorithms, data

def model(classes):
    return Flat(classes)

class Flat(nn.Module):
    classes: int
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(len(x), -1))

def method(model, lr=0.1):
    return algorithms.dpsgd(model, training=algorithms.dpsgd.keywords['training'].replace(lr=lr))

def dataset():
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = np.arange(60) % 3
    return data.Dataset(x[:40], y[:40], x[40:], y[40:], 3)
"""


@pytest.mark.parametrize('flag', ['algorithm=own:method', 'model=own:model', 'dataset=own:dataset'])
def test_code_of_ones_own_that_changed_is_refused(flag, tmp_path, monkeypatch):
    (tmp_path / 'own.py').write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    argv = ['--clients=6', '--degree=2', '--rounds=3', '--algorithm=dpsgd', '--dataset=synthetic']
    argv = [*argv, '--train_samples=60', '--partition=iid', f'--{flag}', '--allow_imports']
    argv = [a for a in argv if not a.startswith('--train') or 'dataset' not in flag]
    try:
        directory = begin(tmp_path / 'run', argv)
        resumed(directory, argv)
        (tmp_path / 'own.py').write_text(f'{OWN}\nLATER = 1\n')
        with pytest.raises(ValueError, match='the source file of'):
            resumed(directory, argv)
    finally:
        sys.modules.pop('own', None)


# --------------------------------------------------------------------------------------- arrays

DERIVED = {  # fields of an experiment that follow from settings and from what the digests are of
    *('experiment', 'configured', 'clients', 'first', 'test', 'model', 'algorithm', 'key'),
    *('footprint', 'mesh', 'rules', 'spending'),
}


def arrays_of(made: BuiltExperiment):
    """(field, number of the leaf, array) of what a run is made of."""
    for field in dataclasses.fields(made):
        if field.name in DERIVED:
            continue
        value = getattr(made, field.name)
        if field.name == 'population':
            value = value and value.clients
        for number, leaf in enumerate(jax.tree.leaves(value)):
            if leaf is made.dataset.owners:  # what they decide is the partition
                continue
            if isinstance(leaf, np.ndarray | jax.Array) and np.size(leaf):
                yield field.name, number, leaf


def perturbed(made: BuiltExperiment, name: str, number: int) -> BuiltExperiment:
    """The experiment with one entry of one array changed."""
    value = getattr(made, name)
    part = value.clients if name == 'population' else value
    leaves, structure = jax.tree.flatten(part)
    array = np.array(leaves[number])
    flat = array.reshape(-1)
    flat[0] = ~flat[0] if array.dtype == bool else flat[0] + 1
    leaves[number] = array
    changed = jax.tree.unflatten(structure, leaves)
    if name == 'population':
        changed = (
            dataclasses.replace(value, clients=changed)
            if (dataclasses.is_dataclass(value))
            else value._replace(clients=changed)
        )
    return dataclasses.replace(made, **{name: changed})


@pytest.mark.parametrize(
    'text',
    [
        f'{PLAIN} --world={SPEEDS},online=sine:5:0.5 --topology=base_graph --validation_share=0.2',
        f'--clients=6 --degree=2 --rounds=2 --hidden=4 --algorithm=divshare --world={SPEEDS} '
        '--round_seconds=0.03',
        '--clients=6 --rounds=2 --algorithm=dec_fedavg --architectures=cnn-2,cnn-3',
        '--clients=6 --rounds=2 --algorithm=ntk_fl --hidden=4 --ntk_fl_cohort=3',
    ],
)
def test_every_array_of_an_experiment_is_in_its_fingerprint(text, files):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        made = experiment(f'--dataset={files["images.npz"]}', '--alpha=1', *text.split())
    before, fields = fingerprint(made), set()
    for name, number, _ in arrays_of(made):
        fields.add(name)
        assert fingerprint(perturbed(made, name, number)) != before, f'{name}, array {number}'
    assert {'dataset', 'parts', 'graphs'} <= fields


def test_a_new_part_of_an_experiment_is_in_the_fingerprint_or_derived():
    known = {'dataset', 'parts', 'validation', 'graphs', 'population', 'world', 'rows'}
    known |= {'evaluated', 'judged', 'attackers'}
    assert {field.name for field in dataclasses.fields(BuiltExperiment)} == known | DERIVED
