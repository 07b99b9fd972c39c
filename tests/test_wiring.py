"""Every flag of a run reaches what it is for: two values of it make two experiments.

The tests are generated over the tables of flags. A new flag needs an entry in PAIRS (two values,
and what has to stand beside them for it to have an effect), or in WATCHING where it changes how a
run is watched and not what it is; a test fails as long as it has none.
"""

import functools
from typing import NamedTuple
from unittest import mock

import pytest
from wiring import differing, digests, experiment, given, write_files, written_in

from dfl_jax.cli.flags.run_flags import GROUPS, METHOD, NOT_SETTINGS
from dfl_jax.experiment import description
from dfl_jax.experiment.applicable import unused_settings

SPEEDS = 'speed=lognormal:1e7:0.5,uplink=lognormal:1e6:0.5,latency=0.01'
CONTEXTS = {  # a method of each kind: in rounds, without, of meetings, with a server
    'rounds': '--algorithm=dpsgd --degree=2 --hidden=4',
    'events': '--algorithm=divshare --degree=2 --hidden=4 --fragments=3 '
    f'--world={SPEEDS} --round_seconds=0.02',
    'meetings': '--algorithm=dec_fedavg --architectures=cnn-2,cnn-3',
    'cohort': '--algorithm=ntk_fl --hidden=4 --ntk_fl_cohort=3',
}
SHARED = '--dataset={images.npz} --clients=6 --rounds=3 --nocheckpoint --noprogress'


class Pair(NamedTuple):
    """Two values of a flag that make two experiments."""

    first: str | None  # None leaves the flag out
    second: str | None
    beside: str = ''  # other flags that it needs; !NAME takes one of the context's away
    within: tuple[str, ...] = ()  # contexts; none: those of the flag's group that do not refuse it


GAIN = '--init=gain_corrected --round_order=average_first'
ONLY = ('rounds',)
NO_SERVER = ('rounds', 'events', 'meetings')
PRIVATE = '--dp_clip=1 --partition=iid'
TABLE = '--dataset={table.csv} --columns=target=kind --partition=iid'
TEXT = '--dataset={text.txt} --task=next_token --model=gru --partition=iid !hidden'
PAIRS: dict[str, Pair] = {
    # run
    'algorithm': Pair('dpsgd', 'decavg', within=ONLY),
    'model': Pair('mlp', 'linear', '!hidden'),
    'hidden': Pair('4', '5'),
    'initializer': Pair(None, 'orthogonal'),
    'rounds': Pair('3', '4'),
    'seed': Pair('0', '1'),
    # data
    'dataset': Pair('{images.npz}', '{others.npz}'),
    'task': Pair('regression', 'multi_label', '--dataset={labels.npz} --partition=iid'),
    'data_dir': Pair('{mnist0}', '{mnist1}', '--dataset=mnist'),
    'train_samples': Pair(None, '100'),
    'test_samples': Pair(None, '30'),
    'image_size': Pair('8', '9', '--dataset=image_folder --data_dir={pictures}'),
    'columns': Pair('target=kind', 'target=shop', TABLE),
    'test_share': Pair(None, '0.3', TABLE),
    'text_window': Pair('8', '9', TEXT),
    'clients': Pair('6', '7'),
    'partition': Pair('iid', 'dirichlet'),
    'alpha': Pair('0.5', '5'),
    'zipf_exponent': Pair('1.5', '2.5', '--partition=zipf'),
    'lognormal_sigma': Pair('0.5', '1.5', '--partition=lognormal'),
    'shards_per_client': Pair('2', '3', '--partition=shards'),
    'samples_per_client': Pair('3', '6', '--partition=balanced'),
    'partition_overlap': Pair(None, 'true', '--partition=dirichlet --alpha=1'),
    'partition_file': Pair('{partition0.json}', '{partition1.json}'),
    'arrival': Pair('linear:3', 'class_by_class:3'),
    'validation_share': Pair('0.1', '0.3', '--alpha=5'),
    'input_projection': Pair('4', '5'),
    'feature_shift': Pair(None, 'noise:0.1'),
    'evaluate_clients': Pair('{chosen0.json}', '{chosen1.json}', '--clients=6'),
    # clients that lie
    'attackers': Pair('1', '3', '--attack=label_flip'),
    'attack': Pair('label_flip', 'random_labels', '--attackers=2'),
    # privacy
    'dp_epsilon': Pair('4', '8', f'{PRIVATE} --dp_delta=0.001', ONLY),
    'dp_delta': Pair('0.001', '0.002', f'{PRIVATE} --dp_epsilon=4', ONLY),
    'dp_share_noise': Pair(
        None, 'true', f'{PRIVATE} --dp_epsilon=4 --dp_delta=0.001 --local_steps=1', ONLY
    ),
    'dp_adversary': Pair(
        'eavesdropper',
        'neighbour',
        f'{PRIVATE} --dp_epsilon=4 --dp_delta=0.001 --dp_correlated_noise=5 --local_steps=1',
        ONLY,
    ),
    # network
    'topology': Pair('regular', 'ring', '!degree'),
    'degree': Pair('2', '4', '--topology=regular'),
    'link_probability': Pair('0.5', '0.8', '--topology=erdos_renyi'),
    'degree_exponent': Pair('2.2', '3', '--topology=chung_lu --degree=4', ('rounds', 'meetings')),
    'rewiring': Pair('0.1', '0.9', '--topology=watts_strogatz --degree=2'),
    'torus_dimensions': Pair('1', '2', '--topology=torus --clients=9 !degree'),
    'assortativity': Pair(
        None,
        '-0.6',
        '--topology=erdos_renyi --degree=3 --clients=20 --alpha=5',
        ('rounds', 'meetings'),
    ),
    'static_topology': Pair(
        *(None, 'true', '--topology=regular --degree=2', ('rounds', 'meetings'))
    ),
    'topology_file': Pair('{edges0.txt}', '{edges1.txt}', '--topology=edge_list !degree'),
    'link_dropout': Pair('0', '0.4'),
    'directed_dropout': Pair(None, 'true', '--link_dropout=0.4'),
    'client_dropout': Pair('0', '0.4'),
    'receive_dropout': Pair('0', '0.9'),
    'link_dropout_directed': Pair('0', '0.4'),
    'isolate_dropout': Pair('0', '0.4'),
    # simulated time
    'world': Pair('speed=1e7,uplink=1e6', 'speed=1e7,uplink=2e6', '', NO_SERVER),
    'barrier': Pair(None, 'true', f'--world={SPEEDS}', NO_SERVER),
    'round_seconds': Pair('0.02', '0.03', f'--world={SPEEDS},online=sine:0.05:0.5', NO_SERVER),
    # clients of different architectures
    'architectures': Pair('cnn-2,cnn-3', 'cnn-2,cnn-4'),
    'architecture_ratios': Pair(None, '2,1'),
    'architecture_file': Pair('{architectures0.txt}', '{architectures1.txt}', '!architectures'),
    'dfml_width': Pair('1', '2'),
    'senders': Pair('2', '3'),
    'aggregators': Pair('1', '3'),
    'aggregator': Pair('uniform', 'fixed'),
    # gain
    'gain': Pair('graph', 'size', f'{GAIN} --topology=star !degree', ONLY),
    'gain_size_factor': Pair('1', '2', f'{GAIN} --gain=size', ONLY),
    'gain_exponent': Pair('0.5', '0.25', f'{GAIN} --gain=size', ONLY),
    'gain_polled': Pair(
        *('2', '6', f'{GAIN} --gain=degrees --topology=barabasi_albert --static_topology', ONLY)
    ),
    'gain_rounds': Pair('8', '9', f'{GAIN} --gain=push_sum --topology=ring !degree', ONLY),
}
WATCHING = (
    *NOT_SETTINGS,
    'eval_every',
    'client_eval_samples',
    'attackers_each',
    'membership',
    'stop_at_epsilon',
)  # see test_wiring_commands.py
OF_RUNS = [name for title, names in GROUPS.items() if title != METHOD for name in names]


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp('inputs')
    return write_files(folder)


def arguments(context: str, name: str, value: str | None, files) -> list[str]:
    """The command line of one value."""
    beside = PAIRS[name].beside.split()
    away = {each[1:] for each in beside if each.startswith('!')} | {name}
    own = [each for each in beside if not each.startswith('!')]
    away |= {each.lstrip('-').partition('=')[0] for each in own}
    argv = [
        each
        for each in f'{SHARED} {CONTEXTS[context]}'.split()
        if each.lstrip('-').partition('=')[0] not in away
    ] + [each for each in own if each.lstrip('-').partition('=')[0] != name]
    argv += [] if value is None else [f'--{name}={value}']
    return [written_in(each, files) for each in argv]


def applies_beside(name: str, argv: tuple[str, ...]) -> bool:
    """Whether a flag of a command line has an effect beside the others."""
    with mock.patch.object(description, 'check_applicable') as check:
        given(*argv, then=lambda experiment: None)
    _, value, method = check.call_args.args
    return name not in unused_settings(value, method)


def test_every_flag_of_a_run_has_two_values():
    assert set(PAIRS) | set(WATCHING) == set(OF_RUNS)
    assert not set(PAIRS) & set(WATCHING)


@functools.cache
def made(argv: tuple[str, ...], initial: bool) -> dict[str, str]:
    return digests(experiment(*argv), initial)


@pytest.mark.parametrize('name', PAIRS)
def test_two_values_of_a_flag_make_two_experiments(name, files):
    """In a run of every kind that the flag applies to."""
    applies = 0
    # Data are the same for all methods
    for context in PAIRS[name].within or (ONLY if name in GROUPS['data'] else tuple(CONTEXTS)):
        first, second = (tuple(arguments(context, name, v, files)) for v in PAIRS[name][:2])
        if not applies_beside(name, first):
            continue
        applies += 1
        # Initial weights take the longest
        changed = differing(made(first, False), made(second, False))
        changed = changed or differing(made(first, True), made(second, True))
        assert changed, f'{first} and {second} are one experiment'
    assert applies


SCHEDULED = {  # flags of methods, and of runs of a method without rounds, that the schedule follows
    'cohort': (('ntk_fl_cohort', '3', '4'),),
    'events': (
        ('recipients', '1', '2'),
        ('fragments', '3', '4'),
        ('local_steps', '1', '2'),
        ('batch_size', '4', '8'),
        ('hidden', '4', '5'),
        ('partition', 'iid', 'lognormal'),
        ('link_dropout', '0', '0.4'),
        ('round_seconds', '0.02', '0.03'),
        ('seed', '0', '1'),
        ('topology', 'ring', 'complete'),
        ('world', 'speed=1e7,uplink=1e6', 'speed=2e7,uplink=1e6'),
        ('world', 'speed=1e7,uplink=1e6', 'speed=1e7,uplink=2e6'),
        ('world', 'speed=1e7,uplink=1e8', 'speed=1e7,uplink=1e8,downlink=1e5'),
        ('world', 'speed=1e7,uplink=1e8,latency=0', 'speed=1e7,uplink=1e8,latency=0.02'),
        ('world', SPEEDS, f'{SPEEDS},online=sine:0.05:0.5'),
    ),
}


@pytest.mark.parametrize(
    ('context', 'name', 'first', 'second'),
    [(context, *each) for context, several in SCHEDULED.items() for each in several],
)
def test_the_schedule_follows_from_a_flag(context, name, first, second, files):
    base = arguments(context, 'alpha', None, files)
    kept = [each for each in base if not each.startswith((f'--{name}=', '--degree'))]
    one, two = (made((*kept, f'--{name}={value}'), False) for value in (first, second))
    assert 'graphs' in differing(one, two)


SEEDED = {'dataset', 'parts', 'clients', 'validation', 'test', 'graphs', 'first', 'key', 'world'}


def test_everything_that_is_drawn_follows_from_the_seed(files):
    argv = (
        *arguments('rounds', 'seed', '0', files),
        *('--train_samples=100', '--validation_share=0.2', '--alpha=5', f'--world={SPEEDS}'),
        *('--feature_shift=noise:0.1', '--input_projection=5', '--topology=erdos_renyi'),
        '--init=independent',
    )
    changed = differing(made(argv, True), made((*argv, '--seed=1'), True))
    assert changed == SEEDED | {'initial'}


@pytest.mark.parametrize(
    ('flag', 'parts'),
    [
        ('--feature_shift=noise:0.1', {'clients', 'validation', 'test'}),
        ('--input_projection=5', {'dataset', 'clients', 'validation', 'test', 'shapes'}),
        ('--validation_share=0.4', {'parts', 'clients', 'validation'}),
        ('--test_samples=30', {'dataset', 'test'}),
        ('--train_samples=100', {'dataset', 'parts', 'clients', 'validation'}),
        ('--barrier', {'rules'}),
        ('--link_dropout=0.5', {'graphs'}),
        ('--topology=erdos_renyi', {'graphs', 'first'}),
        ('--initializer=orthogonal', {'initial'}),
        ('--world=speed=1,uplink=1', {'world'}),
    ],
)
def test_a_flag_changes_all_that_it_is_about_and_nothing_else(flag, parts, files):
    argv = (
        *arguments('rounds', 'alpha', '5', files),
        *('--validation_share=0.2', f'--world={SPEEDS}'),
    )
    initial = 'initial' in parts
    found = differing(made(argv, initial), made((*argv, flag), initial))
    assert found == parts
