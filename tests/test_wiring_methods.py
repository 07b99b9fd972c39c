"""Every setting of every method reaches its program, and every flag its setting.

Generated over the factories: a setting of text needs an entry in OTHER, its value apart from the
default; those of other types have one by their type. What stands beside a setting that has no
effect alone is in BESIDE.
"""

import dataclasses
import functools
import inspect
import operator
import sys
import warnings
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr
from wiring import experiment, given, write_images

from dfl_jax.cli.flags.run_flags import GROUPS, METHOD
from dfl_jax.exchange import Compression, one_round
from dfl_jax.experiment.configured_method import configure
from dfl_jax.experiment.method import flat_settings
from dfl_jax.method_settings import described
from dfl_jax.methods import METHODS, make
from dfl_jax.training import LocalTraining

local = sys.modules['dfl_jax.training.local']

OTHER = {  # setting -> values; the first that is not the default of a method is tried
    'loss': ('mse',),
    'evolution': ('euler', 'sampled'),
    'selection': ('linearized',),
    'precision': ('default',),
    'kernel': ('output_scan',),
    'mixing': ('uniform', 'size'),
    'jacobian_weights': ('neighbours',),
    'aggregation': ('median',),
    'rounding': ('nearest', 'stochastic'),  # the defaults differ by method
    'sparsifier': ('random_k',),
    'quantizer': ('qsgd',),
    'consensus': ('size',),
    'init': ('independent', 'same'),
    'round_order': ('average_first', 'train_first'),
    'regrow': ('random',),
    'projection': ('gaussian',),
    'projection_refresh': ('round',),
    'projection_dim': (9,),
    'kernel_form': ('trace',),
    'step_form': ('exact',),
    'exchange': ('float16',),
    'schedule': ('fixed',),
    'scheduled': ('supervision',),
    'teachers': ('equal',),
    'transfer': ('vanilla',),
    'channels': ('rolled', 'first'),
    'warmup': (2,),
    'meme': ('cnn-2',),
    'head': ('Dense_0',),
    'head_lr': (0.02,),
    'timesteps': ((3, 5),),
    'chunk': (2,),
    'batch_sampling': ('poisson',),
    'dp_unit': ('client',),
    'momentum': (0.3,),
    'lr_schedule': ('cosine:7',),
    'optimizer': ('adam',),
    'optimizer_options': ('b1=0.8',),
    'supervision': ('ace',),
    'augmentation': ('standard',),
    'lr_decay': (0.75,),
    'local_steps': (3,),
    'places': (90,),
    'members': (9,),
    'dim': (9,),
    'period_growth': (3,),
    'density': (0.25,),
    'search': ('all',),
}
SMALL = {'ntk_dfl': {'timesteps': (2, 4, 8)}, 'ntk_fl': {'timesteps': (2, 4, 8)}, 'spark': {
    'timesteps': (2, 4, 8), 'projection_dim': 8,
}}  # fmt: skip
WITHOUT_FEEDBACK = (  # which code other than models, or not all of them in every round
    *('ntk_dfl', 'ntk_fl', 'choco_sgd', 'beer', 'relay_sgd', 'dispfl'),
    *(name for name, row in METHODS.items() if row.graphs != 'neighbours'),
)
WITHOUT_RULES = (  # whose theory needs a mean, or which combine models in a way of their own
    *('dispfl', 'dsgt', 'd2', 'relay_sgd', 'qg_dsgdm', 'sgp', 'choco_sgd', 'beer'),
    *(name for name, row in METHODS.items() if row.graphs != 'neighbours'),
)
BESIDE = {  # setting -> what makes it matter, where the method has it
    'lasting_optimizer': {'momentum': 0.5},
    'dp_correlated_noise': {'dp_clip': 1.0, 'dp_unit': 'client'},
    'rounding': {'bits': 4},
    'error_feedback': {'bits': 4},
    'quantizer': {'bits': 4},
    'sparsifier': {'sparsity': 0.5},
    'sam_adaptive': {'sam_radius': 0.1},
    'batch_sampling': {'dp_clip': 1.0, 'sam_radius': 0.0, 'supervision': 'ce'},
    'dp_unit': {'dp_clip': 1.0},
    'dp_clip': {'dp_unit': 'client'},
    'dp_noise_multiplier': {'dp_clip': 1.0, 'dp_unit': 'client'},
    'optimizer_options': {'optimizer': 'adam', 'momentum': 0.0},
    'optimizer': {'momentum': 0.0},
    'rounds': {'schedule': 'annealed'},
    'warmup': {'rounds': 8},
    'period_growth': {'period': 2},
    'peak_updates': {'period': 2},
}
AWAY = {  # what graphs follow from, see test_wiring.py, and what has a single value
    'ntk_fl': ('cohort',),
    'divshare': ('recipients',),
    'spark': ('loss',),
}
OF_CODECS = {field.name for field in dataclasses.fields(Compression)} - {'bits'}
CODED = ('dpsgd', 'ntk_dfl', 'ntk_fl', 'choco_sgd', 'beer')  # all others by `compressible`
LATE = {
    'ntk_dfl',
    'ntk_fl',
    'spark',
    *(name for name, method in METHODS.items() if method.heterogeneous),
}
TRAINING = {field.name for field in dataclasses.fields(LocalTraining)}


def distinct() -> list[str]:
    """A method of each factory; published settings of one factory share its code.

    Asynchronous methods share theirs, and are told apart by what they do at an event.
    """
    found: dict[object, str] = {}
    for name, method in METHODS.items():
        factory = inspect.unwrap(method.factory)
        while isinstance(factory, functools.partial):
            factory = inspect.unwrap(factory.func)
        found.setdefault(name if method.graphs == 'events' else factory, name)
    return [*found.values()]


FACTORIES = [
    pytest.param(
        name,
        marks=[pytest.mark.integration] * (name in LATE),
    )
    for name in distinct()
]


@functools.cache
def small(name: str, data: str):
    """A small experiment of a method."""
    argv = [f'--dataset={data}', '--clients=6', '--rounds=4', f'--algorithm={name}', '--alpha=1']
    method = METHODS[name]
    if method.heterogeneous:
        argv += [f'--architectures=cnn-2{",cnn-3" * (name != "def_kt")}']
    else:
        argv += ['--hidden=4']
    if method.graphs == 'events':
        argv += ['--world=speed=lognormal:1e7:0.3,uplink=1e6', '--round_seconds=0.03']
    argv += ['--spark_projection_dim=8'] if name == 'spark' else []
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return experiment(*argv)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return str(write_images(tmp_path_factory.mktemp('data') / 'images.npz'))


def program(name: str, made, settings: dict) -> Iterator[str]:
    """All that a method does, as texts: its functions without what nothing follows from, and what
    it says of itself. The round, which most settings are of, comes first."""
    algorithm = make(
        made.configured.method.factory,
        made.population or made.model,
        **made.configured.settings | SMALL.get(name, {}) | settings,
    )
    graph = jax.tree.map(lambda a: np.asarray(a[0]), made.graphs)
    state = jax.eval_shape(algorithm.init, made.key, made.clients)
    x = made.test.x[:2]
    step = functools.partial(one_round, algorithm)
    traced = (
        (step, made.key, state, 0, graph, made.clients),
        (algorithm.init, made.key, made.clients),
        (algorithm.predict, state, x),
    )
    results = []
    for function, *arguments in traced:
        # A function that was traced before may be remembered
        anew = jax.make_jaxpr(lambda *a, function=function: function(*a), return_shape=True)
        closed, shapes = anew(*arguments)
        results.append(shapes)
        kept, _ = dce_jaxpr(closed.jaxpr, True)
        constants = [np.asarray(c).tobytes() for c in closed.consts if not _is_key(c)]
        yield f'{kept}{constants}'
    _, info = results[0]  # of the round
    bits = sorted((kind, sent.bits) for kind, sent in info.sent.items())
    yield repr((bits, algorithm.overlaps, algorithm.replies, algorithm.by_size))


def _is_key(array) -> bool:
    return jax.dtypes.issubdtype(getattr(array, 'dtype', np.float32), jax.dtypes.prng_key)


def others(setting, default) -> list:
    """Other values of a setting than its default, one of which is to have an effect."""
    if setting.name in OTHER:
        return [value for value in OTHER[setting.name] if value != default]
    if setting.kind is bool:
        return [not default]
    if setting.kind is int:
        return [2 if not isinstance(default, int) else default + 1]
    if setting.kind is float:
        return [default / 2 if default else 0.25]
    raise AssertionError(f'{setting.name} needs an entry in OTHER')


def own_settings(name: str) -> dict:
    """The settings of a method but those of local training, by name."""
    known = described(METHODS[name].factory)
    away = {*AWAY.get(name, ())} | (OF_CODECS if name not in CODED else set())
    return {
        n: each
        for n, each in known.items()
        if each.kind and each.part != 'training' and n not in away
    }


@pytest.mark.parametrize('name', FACTORIES)
def test_every_setting_of_a_method_changes_its_program(name, data):
    made = small(name, data)
    known, now = described(METHODS[name].factory), made.configured.resolved | SMALL.get(name, {})
    programs: dict[str, list[str]] = {}
    idle = []
    for setting in own_settings(name).values():
        beside = {n: v for n, v in BESIDE.get(setting.name, {}).items() if n in known}
        if setting.name == 'aggregation' and name in WITHOUT_RULES:
            with pytest.raises(ValueError, match=r'linear average|in a way of its own'):
                [*program(name, made, {setting.name: 'median'})]
            continue
        if setting.name == 'error_feedback' and name in WITHOUT_FEEDBACK:
            with pytest.raises(ValueError, match=r'error.feedback'):
                [*program(name, made, beside | {setting.name: True})]
            continue
        plain = repr(beside)
        if plain not in programs:
            programs[plain] = [*program(name, made, beside)]
        values = others(setting, (now | beside)[setting.name])
        changed = (program(name, made, beside | {setting.name: value}) for value in values)
        if all(all(map(operator.eq, programs[plain], texts)) for texts in changed):
            idle.append(setting.name)
    assert not idle


# ------------------------------------------------------------------------------- local training

FIRST = {
    'lr': 0.07,
    'lr_decay': 0.9,
    'lr_schedule': 'cosine:9',
    'batch_size': 3,
    'local_epochs': 2,
    'momentum': 0.4,
    'weight_decay': 0.01,
    'clip_norm': 1.5,
    'sam_radius': 0.05,
    'sam_adaptive': True,
    'supervision': 'ace',
    'loss_cap': 5.0,
    'proximal': 0.02,
    'augmentation': 'standard',
    'dp_unit': 'client',
    'dp_clip': 0.7,
    'dp_noise_multiplier': 1.5,
}
SECOND = {
    'lr': 0.07,
    'batch_size': 5,
    'local_steps': 3,
    'optimizer': 'adam',
    'optimizer_options': 'b1=0.8',
    'momentum': 0.0,
    'batch_sampling': 'poisson',
    'dp_clip': 0.5,
}
REPLACED = {'dfed_alt': {'lr': 0.001, 'local_epochs': 1, 'local_steps': None}}  # of its head


def test_the_two_sets_name_every_setting_of_local_training():
    assert set(FIRST) | set(SECOND) == TRAINING


@pytest.mark.parametrize('name', FACTORIES)
def test_local_training_has_all_of_its_settings_in_every_method(name, data, monkeypatch):
    """What a method hands on to the code that trains is what it was given, whole."""
    known = described(METHODS[name].factory)
    if not any(each.part == 'training' for each in known.values()):
        assert 'training' not in known
        return
    made = small(name, data)
    for chosen in (FIRST, SECOND):
        seen: set[LocalTraining] = set()
        read = local.optimiser_of

        def optimiser(settings, round, seen=seen, read=read):
            seen.add(settings)
            return read(settings, round)

        for module in [m for n, m in sys.modules.items() if n.startswith('dfl_jax')]:
            if getattr(module, 'optimiser_of', None) is not None:
                monkeypatch.setattr(module, 'optimiser_of', optimiser)
        refused: set[str] = set()
        while True:
            given_now = {n: v for n, v in chosen.items() if n not in refused}
            try:
                next(program(name, made, given_now))
                break
            except ValueError as error:  # a setting that its theory does not allow
                words = str(error).replace('=', ' ').replace(',', ' ').split()
                named = [n for n in given_now if n in words][:1]
                assert named, error
                refused |= {*named}
        monkeypatch.undo()
        assert len(refused) <= 6
        assert seen, 'it trains without an optimiser'
        for change in ({}, REPLACED.get(name, {})):
            expected = given_now | change
            assert any(all(getattr(each, n) == expected[n] for n in expected) for each in seen)
        assert len(seen) == 1 + (name in REPLACED)


# ---------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize('name', METHODS)
def test_every_flag_of_a_method_is_its_setting(name):
    """The value that a flag gives is that of the setting which is recorded and made from."""
    method = METHODS[name]
    loss_cap, lost = described(method.factory).get('loss_cap'), []
    for flag, setting in flat_settings(method).items():
        if setting.name in method.from_run and flag not in GROUPS[METHOD]:
            continue
        if setting.name == 'error_feedback' and method.graphs != 'neighbours':
            continue  # which is refused
        if setting.name == 'batch_sampling' and loss_cap.default is not None:
            continue  # likewise: by it the gradient of a sample depends on the others
        beside = {
            n: v for n, v in BESIDE.get(setting.name, {}).items() if n in described(method.factory)
        }
        names = {each.name: f for f, each in flat_settings(method).items()}
        default = setting.default if isinstance(setting.default, int | float | str) else None
        value = others(setting, beside.get(setting.name, default))[0]
        argv = [f'--{names[n]}={_written(v)}' for n, v in beside.items()]
        argv += [f'--algorithm={name}', f'--{flag}={_written(value)}']

        configured = given(*argv, then=lambda e: configure(e, {}, 0))
        found = configured.resolved[setting.name]
        if found != value and setting.name != 'chunk':
            lost.append((flag, value, found))
    assert not lost


def _written(value) -> str:
    return ','.join(map(str, value)) if isinstance(value, tuple) else str(value)
