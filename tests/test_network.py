"""The gain that flags ask for."""

from types import SimpleNamespace

import numpy as np
import pytest

from dfl_jax import topology
from dfl_jax.experiment import Experiment
from dfl_jax.experiment import gain as known
from dfl_jax.experiment import graphs as network
from dfl_jax.experiment.run_settings import Graphs
from dfl_jax.experiment.streams import streams
from dfl_jax.experiment.table_rows import table_rows
from dfl_jax.gossip import gain

CLIENTS = 64
SIZES = np.full(CLIENTS, 20)


@pytest.fixture
def found():
    """found(mixing, **flags) -> the gain of a static Barabasi-Albert graph."""
    settings = {
        'clients': CLIENTS,
        'topology': 'barabasi_albert',
        'degree': 4,
        'static_topology': True,
    }

    def of(mixing='uniform', graphs=None, method=None, **given):
        experiment = Experiment.of(init='gain_corrected', **settings, **given)
        method = SimpleNamespace(corrected=True, resolved={'mixing': mixing} | (method or {}))
        rows = table_rows(experiment.flat())
        return known.initial_gain(experiment, rows, method, graphs or drawn(), SIZES, 3)

    return of


def drawn(static=True):
    return topology.schedule('barabasi_albert', CLIENTS, 20, seed=5, degree=4, static=static)


def exact(graphs, mixing='uniform'):
    return gain.gain_of(*gain.mixing_matrices(graphs, SIZES, mixing))


def test_the_whole_graph_gives_the_exact_gain(found):
    assert found(gain='graph') == exact(drawn())
    assert found('metropolis', gain='graph') == pytest.approx(8)


@pytest.mark.parametrize('factor, expected', [(1.0, 8), (4.0, 16), (0.25, 4)])
def test_the_size_alone(factor, expected, found):
    assert found(gain='size', gain_size_factor=factor) == pytest.approx(expected)
    assert found(gain='size', gain_size_factor=factor, gain_exponent=1.0) == 64 * factor


def test_the_size_by_gossip_is_each_clients_own(found):
    estimates = found(gain='push_sum', gain_rounds=60, gain_exponent=0.25)
    assert estimates.shape == (CLIENTS,)
    np.testing.assert_allclose(estimates, 64**0.25, rtol=1e-3)


def test_the_family_and_degrees_come_close_and_scale_with_the_size(found):
    for how in ({'gain': 'family'}, {'gain': 'degrees', 'gain_polled': CLIENTS}):
        assert found(**how) == pytest.approx(exact(drawn()), rel=0.1)
        assert found(**how, gain_size_factor=4.0) > 1.7 * found(**how)
    assert found('metropolis', gain='family') == pytest.approx(8)


def test_a_changing_graph_is_drawn_as_one(found):
    changing = drawn(static=False)
    estimate = found(graphs=changing, gain='family')
    assert estimate == pytest.approx(exact(changing), rel=0.1)
    with pytest.raises(ValueError, match=r'gain=degrees .* not of a changing graph'):
        found(graphs=changing, gain='degrees')
    with pytest.raises(ValueError, match=r'gain=degrees .* not of mixing=metropolis'):
        found('metropolis', gain='degrees')


def test_training_before_the_first_average_is_warned_of(found, recwarn):
    found(method={'round_order': 'average_first'})
    assert not recwarn
    with pytest.warns(UserWarning, match=r'add `round_order=average_first` `loss_cap=10`'):
        found(method={'round_order': 'train_first'})


class Reads(dict):
    """Seeds that remember which of them were asked for."""

    def __getitem__(self, name):
        self.setdefault('asked', []).append(name)
        return super().get(name)


FAILURES = {  # flag -> the stream that its failures are drawn from
    'link_dropout': 'links',
    'link_dropout_directed': 'directions',
    'receive_dropout': 'receiving',
    'isolate_dropout': 'isolation',
    'client_dropout': 'participation',
}


def failed(**dropouts):
    """The failures of these probabilities on a graph, and the streams that they read."""
    none = dict.fromkeys(FAILURES, 0.0)
    asked = Graphs(**none | dropouts)
    seeds = Reads(streams(0))
    return network.with_failures(drawn(static=False), asked, False, seeds), seeds.get('asked')


def test_every_failure_has_a_stream_of_its_own():
    graphs, asked = failed(**dict.fromkeys(FAILURES, 0.5))
    assert asked == [*FAILURES.values()]
    assert not graphs.active.all()


@pytest.mark.parametrize('name', FAILURES)
def test_every_failure_is_what_its_flag_says(name):
    """And of its probability; streams that it does not need stay unread."""
    intact, (graphs, asked) = drawn(static=False), failed(**{name: 0.3})
    assert asked == [FAILURES[name]]
    links = [
        {(int(i), int(j)) for i, row in enumerate(m) for j in row[1:][k[i, 1:]]}
        for m, k in zip(graphs.members, graphs.mask, strict=True)
    ]
    one_way = any(pair[::-1] not in each for each in links for pair in each)
    assert one_way == (name in ('link_dropout_directed', 'receive_dropout'))
    assert graphs.active.all() == (name != 'client_dropout')
    lost = 1 - graphs.mask[:, :, 1:].sum() / intact.mask[:, :, 1:].sum()
    both_ends = name in ('isolate_dropout', 'client_dropout')
    assert lost == pytest.approx(0.51 if both_ends else 0.3, abs=0.08)


def test_the_streams_of_a_seed_are_all_different():
    """Those of neighbouring seeds, too."""
    drawn = [number for seed in range(20) for number in streams(seed).values()]
    assert len(set(drawn)) == len(drawn) == 20 * len(streams(0))
