"""Random numbers: a stream for every purpose on the host, a key for every draw on the device.

On the host: what of an experiment changes with each stream, generated over the streams; and no two
generators of an experiment begin in the same state. On the device: the keys of all draws of two
rounds are recorded, of every method, with everything random turned on; none is used twice, and
every draw of a client is its own.
"""

import collections
import functools
import sys
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr
from test_wiring_methods import distinct
from wiring import CLIENTS, differing, digests, experiment, write_images

from dfl_jax import simulate
from dfl_jax.base import Info
from dfl_jax.exchange import one_round
from dfl_jax.experiment import build as building
from dfl_jax.experiment.streams import STREAMS, streams
from dfl_jax.method_settings import described
from dfl_jax.methods import METHODS, make

NOISY = 'speed=lognormal:1e7:0.5,uplink=lognormal:1e6:0.5,latency=lognormal:0.01:0.5'
EVERYTHING = (  # of a run in rounds that is drawn
    '--algorithm=decavg --hidden=4 --rounds=6 --alpha=5 --train_samples=100 --test_samples=30 '
    '--validation_share=0.2 --input_projection=7 --feature_shift=noise:0.1 --mixing=uniform '
    '--init=gain_corrected --gain=degrees --gain_polled=2 --topology=barabasi_albert '
    f'--static_topology --degree=2 --link_dropout=0.2 --client_dropout=0.2 --receive_dropout=0.3 '
    '--link_dropout_directed=0.1 --isolate_dropout=0.1 --client_eval_samples=9 '
    '--attackers=2 --attack=random_labels '
    f'--world={NOISY}'
)
EVENTS = (
    '--algorithm=gossip_learning --hidden=4 --rounds=2 --degree=2 --link_dropout=0.3 '
    f'--world={NOISY} --round_seconds=0.05 --validation_share=0.2 --alpha=5'
)
MEETINGS = '--algorithm=dec_fedavg --architectures=cnn-2 --rounds=3 --client_dropout=0.2'
SPARK = '--algorithm=spark --hidden=4 --rounds=1 --degree=2 --spark_projection_dim=8'
SERVER = (
    '--algorithm=ntk_fl --hidden=4 --rounds=3 --ntk_fl_cohort=3 --client_dropout=0.3 '
    '--arrival=linear:3'
)
SAMPLES = {'parts', 'clients', 'validation'}
# What follows from a stream, and nothing else does; `settings` are those of the method
RUNS = {
    'rounds': EVERYTHING,
    'events': EVENTS,
    'meetings': MEETINGS,
    'spark': SPARK,
    'server': SERVER,
}
FOLLOWS = {
    'rounds': {
        'partition': SAMPLES,
        'subset': {'dataset', 'test', *SAMPLES, 'evaluated'},
        'graph': {'graphs', 'first', 'gain', 'initial'},
        'links': {'graphs'},
        'participation': {'graphs'},
        'receiving': {'graphs'},
        'directions': {'graphs'},
        'isolation': {'graphs'},
        'evaluation': {'evaluated'},
        'training': {'key', 'initial'},
        'projection': {'dataset', 'clients', 'validation', 'test'},
        'gain': {'gain', 'initial'},
        'validation': SAMPLES,
        'world': {'world'},
        'feature_shift': {'clients', 'validation', 'test'},
        'adversaries': {'clients', 'attackers', 'judged'},
    },
    'events': {
        'graph': {'graphs', 'first'},
        'links': {'graphs'},
        'world': {'graphs'},
        'validation': SAMPLES,
    },
    'meetings': {'meetings': {'graphs'}, 'graph': set(), 'participation': {'graphs'}},
    'spark': {'jacobians': {'settings'}},
    'server': {'graph': {'graphs', 'first'}, 'arrival': {'clients'}},
}


MAY = {'events': {'settings'}}  # how many past models are kept follows from the schedule


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    path = write_images(tmp_path_factory.mktemp('data') / 'images.npz')
    return f'--dataset={path} --clients={CLIENTS} --noprogress'


def drawn(argv: str, seeds: dict[str, int], monkeypatch) -> dict[str, str]:
    """The digests of an experiment whose streams begin so."""
    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        patched.setattr(building, 'streams', lambda seed: seeds)
        made = experiment(*argv.split())
        settings = {name: repr(v) for name, v in made.configured.settings.items() if name != 'init'}
        return digests(made) | {'settings': repr(sorted(settings.items()))}


def test_every_stream_is_looked_at():
    assert {name for follows in FOLLOWS.values() for name in follows} == set(STREAMS)


@pytest.mark.parametrize(
    ('kind', 'name'), [(kind, name) for kind, names in FOLLOWS.items() for name in names]
)
def test_what_follows_from_a_stream_and_what_does_not(kind, name, data, monkeypatch):
    argv = RUNS[kind]
    before = _usual(f'{data} {argv}', monkeypatch)
    seeds, wanted = streams(0), FOLLOWS[kind][name]
    for other in (1, 2, 3):  # a draw of few things may come out as it was
        changed = seeds | {name: streams(other)[name]}
        found = differing(before, drawn(f'{data} {argv}', changed, monkeypatch))
        found -= MAY.get(kind, set())
        assert found <= wanted, name
        if found == wanted:
            return
    raise AssertionError(f'{name} changes {sorted(found)}, and not {sorted(wanted - found)}')


_USUAL: dict[str, dict[str, str]] = {}


def _usual(argv: str, monkeypatch) -> dict[str, str]:
    if argv not in _USUAL:
        _USUAL[argv] = drawn(argv, streams(0), monkeypatch)
    return _USUAL[argv]


def generators(argv: str, monkeypatch) -> list[tuple[str, str]]:
    """The initial state of every generator that an experiment makes, and who makes it."""
    found = []
    default_rng = np.random.default_rng

    def recording(seed=None):
        generator = default_rng(seed)
        frame = sys._getframe(1)
        place = f'{frame.f_code.co_filename.rpartition("/")[2]}:{frame.f_code.co_name}'
        found.append((repr(generator.bit_generator.state['state']), place))
        return generator

    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        patched.setattr(np.random, 'default_rng', recording)
        experiment(*argv.split())
    return found


ON_PURPOSE = (  # generators that are made anew
    'feature_shift.py:_law',  # for the one law of all clients
    'dataset.py:choose_rows',  # for the rows of training and test set, which are other samples
)


@pytest.mark.parametrize('kind', ['rounds', 'events', 'meetings', 'server'])
def test_no_two_generators_begin_alike(kind, data, monkeypatch):
    """As they would where two purposes had one stream, or one seed were used twice."""
    found = generators(f'{data} {RUNS[kind]}', monkeypatch)
    places = collections.defaultdict(list)
    for state, place in found:
        places[state].append(place)
    twice = [
        names
        for names in places.values()
        if len(names) > 1 and (len(set(names)) > 1 or names[0] not in ON_PURPOSE)
    ]
    assert len(found) >= 4 and not twice


def test_a_purpose_that_is_not_used_moves_no_other(data):
    """Dropping one of the purposes leaves what the others drew."""
    changes = {
        '--link_dropout=0': {'graphs'},
        '--client_dropout=0': {'graphs'},
        '--receive_dropout=0': {'graphs'},
        '--link_dropout_directed=0': {'graphs'},
        '--isolate_dropout=0': {'graphs'},
        '--client_eval_samples=8': {'evaluated'},
        '--feature_shift=noise:1e-9': {'clients', 'validation', 'test'},
        '--world=speed=1,uplink=1': {'world'},
        '--validation_share=0': {'parts', 'clients', 'validation'},
        '--test_samples=29': {'dataset', 'test', 'evaluated'},
    }
    argv = f'{data} {EVERYTHING}'.split()
    before = digests(experiment(*argv))
    for flag, parts in changes.items():
        assert differing(before, digests(experiment(*argv, flag))) == parts, flag


def test_links_are_lost_alike_whoever_else_fails(data):
    """A link that is lost without other failures is lost with them, too."""
    base = f'{data} --algorithm=dpsgd --degree=2 --hidden=4 --rounds=4 --link_dropout=0.4'.split()
    alone = experiment(*base).graphs
    more = experiment(*base, '--client_dropout=0.3', '--receive_dropout=0.3').graphs
    assert (np.asarray(more.members) == np.asarray(alone.members)).all()
    assert not (np.asarray(more.mask) & ~np.asarray(alone.mask)).any()
    assert not (np.asarray(alone.mask) == np.asarray(more.mask)).all()


# ------------------------------------------------------------------------------- on the device

DRAWS = ('uniform', 'normal', 'bits', 'bernoulli', 'randint', 'permutation', 'choice', 'gumbel',
         'rademacher', 'truncated_normal', 'categorical')  # fmt: skip
# Where a draw is made again by who needs it: all that an aggregator hears has one P, which seed and
# round give, and the units of a client's sub-model are where they were when it comes back.
SAME_AGAIN = ('projection.py', 'submodels.py')


class Recorder:
    """Records the key of every draw of `jax.random` by who asks for it, while it is computed."""

    def __init__(self, monkeypatch):
        self.keys: dict[str, list[tuple]] = collections.defaultdict(list)
        for name in DRAWS:
            monkeypatch.setattr(jax.random, name, self._recorded(getattr(jax.random, name)))

    def _recorded(self, draw: Callable) -> Callable:
        @functools.wraps(draw)
        def recorded(key, *arguments, **options):
            jax.debug.callback(functools.partial(self._note, _place()), jax.random.key_data(key))
            return draw(key, *arguments, **options)

        return recorded

    def _note(self, place: str, data: np.ndarray) -> None:
        self.keys[place].append(tuple(np.asarray(data).ravel().tolist()))


def _place() -> str:
    """The line of the package, or of flax, that asks for a draw."""
    frame = sys._getframe(2)
    while '/dfl_jax/' not in frame.f_code.co_filename and 'flax/' not in frame.f_code.co_filename:
        frame = frame.f_back
    return f'{frame.f_code.co_filename.rpartition("/")[2]}:{frame.f_lineno}'


def only_effects(function: Callable, *arguments) -> Callable:
    """The function, of which nothing is left but what leads to its callbacks."""
    closed = jax.make_jaxpr(lambda *a: function(*a))(*arguments)
    jaxpr, used = dce_jaxpr(closed.jaxpr, [False] * len(closed.jaxpr.outvars))
    remaining = jax.jit(jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts)))

    def call(*arguments):
        leaves = jax.tree.leaves(arguments)
        return remaining(*(leaf for leaf, use in zip(leaves, used, strict=True) if use))

    return call


RANDOM = {  # settings under which a method draws
    'bits': 4,
    'rounding': 'stochastic',
    'regrow': 'random',
    'augmentation': 'standard',
    'subsampling': 2,
    'sampling': 0.5,
    'batches': 2,
    'gossip_steps': 2,
}
REFUSING = {'ntk_dfl': ('subsampling',)}  # settings that do not go with the others
COMMON = ('ntk_dfl', 'dpsgd', 'choco_sgd', 'beer', 'dispfl', 'dec_fed_dropout', 'swift')


def noisy(name: str, data: str):
    """A method with all that is random turned on, its clients of equal sizes, and its schedule."""
    method = METHODS[name]
    argv = [*data.split(), f'--algorithm={name}', '--rounds=2', '--partition=iid']
    if method.graphs == 'events':
        argv += [f'--world={NOISY}', '--round_seconds=0.03']
    if method.heterogeneous:
        argv += [f'--architectures=cnn-2{",cnn-3" * (name != "def_kt")}', '--senders=3']
    else:
        argv += ['--model=wiring:Dropping']
    argv += ['--spark_projection_dim=8'] if name == 'spark' else []
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        made = experiment(*argv)
    known = described(method.factory)
    settings = {n: v for n, v in RANDOM.items() if n in known and n not in REFUSING.get(name, ())}
    if 'timesteps' in known:
        settings |= {'timesteps': (2, 4)}
    if 'local_epochs' in known and made.configured.resolved.get('local_epochs'):
        settings |= {'local_epochs': 2}
    if 'sam_radius' in known:  # the same units drop out in both gradients of a step
        settings |= {'sam_radius': 0.0}
    if 'mutual_epochs' in known:
        settings |= {'mutual_epochs': 2}
    settings |= {'chunk': 1} if 'chunk' in known else {}
    network = made.population or made.model
    return make(method.factory, network, **made.configured.settings | settings), made


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=() if name in COMMON else pytest.mark.integration)
        for name in distinct()
    ],
)
def test_no_key_is_used_twice_in_two_rounds(name, data, monkeypatch):
    algorithm, made = noisy(name, data)
    state = jax.eval_shape(algorithm.init, made.key, made.clients)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
    if METHODS[name].graphs == 'events':  # the keys of its clients
        state = algorithm.init(made.key, made.clients)
    recorder = Recorder(monkeypatch)
    graph = jax.tree.map(lambda a: jnp.asarray(a[0]), made.graphs)
    step = functools.partial(one_round, algorithm)
    step = only_effects(step, made.key, state, 0, graph, made.clients)
    rounds = 1 if METHODS[name].graphs == 'events' else 2
    for round in range(rounds):
        step(jax.random.fold_in(jax.random.key(5), round), state, 0, graph, made.clients)
    jax.effects_barrier()
    everywhere: dict[tuple, str] = {}
    for place, keys in recorder.keys.items():
        # A version of a model is coded once for all that read it
        versions = name in READ_LATER and place.startswith('compression.py')
        if versions or place.split(':')[0] in SAME_AGAIN:
            assert len(set(keys)) > rounds, f'{place} draws the same for all'
            continue
        assert len(set(keys)) == len(keys), f'{place} draws twice with one key'
        assert not (others := set(keys) & everywhere.keys()), f'{place}, {everywhere[min(others)]}'
        everywhere |= dict.fromkeys(keys, place)
        if METHODS[name].graphs == 'neighbours':  # every client draws by itself
            assert len(keys) % (CLIENTS * rounds) == 0, f'{place} draws {len(keys)} times'
    assert everywhere or name in WITHOUT_DRAWS


WITHOUT_DRAWS = ('ntk_fl',)
READ_LATER = ('swift', 'gossip_learning', 'divshare')


def keys_of_a_run(data, **options) -> tuple[tuple, list[tuple]]:
    """The key that a run initialises with, and those of its rounds."""
    made = experiment(*data.split(), '--algorithm=dpsgd', '--degree=2', '--hidden=4', '--rounds=6')
    initial = []

    def init(key, clients):
        state = made.algorithm.init(key, clients)
        jax.debug.callback(lambda k: initial.append(tuple(k.tolist())), jax.random.key_data(key))
        return state

    def step(key, state, round):
        first, second = jax.random.key_data(key)
        return state, Info(jnp.zeros(len(round.sizes)), {'first': first, 'second': second})

    method = made.algorithm._replace(init=init, step=step)
    run = simulate.run(method, made.clients, made.graphs, made.test, made.key, **options)
    keys = [(row['first'], row['second']) for row, *_ in run]
    jax.effects_barrier()
    return initial[0], keys


def test_every_round_of_a_run_has_a_key_of_its_own(data):
    """Whatever rounds are computed at once."""
    initial, keys = keys_of_a_run(data)
    assert len({*keys, initial}) == 7
    _, some = keys_of_a_run(data, eval_every=3)
    assert some == [keys[2], keys[5]]
