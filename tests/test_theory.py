"""The theory's constants against plain NumPy, its bound against numbers worked out by hand."""

import functools
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from helpers import drawn_samples, padded
from test_cli import QUIET, SMALL, called, rows_of
from test_cli import here as run_here

from dfl_jax import Graph, topology
from dfl_jax.models import MLP, bind
from dfl_jax.papers.theory import command, table
from dfl_jax.papers.theory.convergence import (
    GAMMA_ROOT,
    Terms,
    admissible_eta,
    bound,
    diagnose,
    mixing_of,
)

FEATURES, CLASSES = 4, 3
SIZES = (3, 6, 4, 1, 5, 2)


@pytest.fixture
def data(x64):
    return drawn_samples(SIZES, FEATURES, CLASSES, seed=5)


def draw_params(hidden, seed):
    """Stacked parameters of all clients, and the same as lists of layers, one a client."""
    rng, widths = np.random.default_rng(seed), (FEATURES, *hidden, CLASSES)
    networks = [
        [(rng.normal(size=(a, b)), rng.normal(size=b)) for a, b in itertools.pairwise(widths)]
        for _ in SIZES
    ]
    stacked = {
        f'Dense_{layer}': {
            'kernel': jnp.stack([network[layer][0] for network in networks]),
            'bias': jnp.stack([network[layer][1] for network in networks]),
        }
        for layer in range(len(widths) - 1)
    }
    return stacked, networks


@functools.cache
def diagnosis(hidden=(7,), chunk=1):
    return diagnose(bind(MLP(CLASSES, hidden), (FEATURES,)), chunk=chunk)


def one_round(seed=1, absent=()):
    """A random graph in which some clients take no part."""
    graph = jax.tree.map(
        lambda a: a[0].copy(), topology.schedule('erdos_renyi', 6, 1, seed=seed, degree=2)
    )
    for i in absent:
        graph.active[i] = False
        graph.mask[:, 1:] &= graph.members[:, 1:] != i
        graph.mask[i, 1:] = False
    return graph


def expected_diagnosis(before, after, data, graph):
    """The fields of Diagnosis from explicit Jacobians, one aggregator at a time."""
    deltas, norms, slopes = [], [], []
    for i in np.flatnonzero(graph.active):
        group = graph.members[i][graph.mask[i]]
        x, y = (np.concatenate([data[j][part] for j in group]) for part in (0, 1))
        sizes = np.array([SIZES[j] for j in group])
        flat = np.stack([reference.flatten(before[j]) for j in group])
        w_bar = reference.unflatten(sizes @ flat / sizes.sum(), before[i])
        residual = reference.softmax(reference.mlp(after[i], x)) - y
        ntk = np.einsum('ncp,nc->p', reference.jacobian(w_bar, x), residual) / len(x)
        _, gradient = reference.loss_and_gradient(after[i], x, y)
        _, start = reference.loss_and_gradient(w_bar, x, y)
        distance = np.linalg.norm(reference.flatten(after[i]) - reference.flatten(w_bar))
        deltas.append(np.linalg.norm(ntk - gradient))
        norms.append(np.linalg.norm(gradient))
        slopes.append(np.linalg.norm(gradient - start) / distance)

    def at_mean(networks):
        mean = np.mean([reference.flatten(network) for network in networks], axis=0)
        w = reference.unflatten(mean, networks[0])
        losses, own = zip(*(reference.loss_and_gradient(w, *d) for d in data), strict=True)
        shared = np.average(own, axis=0, weights=SIZES)
        variance = np.mean([np.sum((g - shared) ** 2) for g in own])
        largest = max(np.linalg.norm(g) for g in own)
        return np.average(losses, weights=SIZES), np.sum(shared**2), largest, variance

    loss, norm_sq, largest, variance = at_mean(before)
    loss_after, norm_sq_after, _, _ = at_mean(after)
    return {
        'delta_ntk_max': max(deltas),
        'delta_ntk_mean': np.mean(deltas),
        'aggregator_gradient_norm_mean': np.mean(norms),
        'smoothness_max': max(slopes),
        'smoothness_mean': np.mean(slopes),
        'gradient_norm_max': largest,
        'gradient_variance': variance,
        'consensus_gradient_norm_sq': norm_sq,
        'loss': loss,
        'consensus_gradient_norm_sq_after': norm_sq_after,
        'loss_after': loss_after,
    }


@pytest.mark.parametrize('hidden', [(7,), (5, 4)], ids=str)
@pytest.mark.parametrize('absent', [(), (1, 4)], ids=str)
def test_the_constants_equal_the_reference(data, hidden, absent):
    (before, befores), (after, afters) = draw_params(hidden, 0), draw_params(hidden, 1)
    graph = one_round(absent=absent)
    found = diagnosis(hidden)(before, after, graph, padded(data))
    expected = expected_diagnosis(befores, afters, data, graph)
    assert found._asdict().keys() == expected.keys()
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-10), name


def test_padding_and_chunks_change_nothing(data):
    (before, _), (after, _) = draw_params((7,), 0), draw_params((7,), 1)
    graph = one_round()
    usual = diagnosis()(before, after, graph, padded(data))
    garbage = padded(data, garbage=np.nan, label=99, extra=3)
    for chunk in (1, 4):
        found = diagnosis(chunk=chunk)(before, after, graph, garbage)
        np.testing.assert_allclose(found, usual, rtol=1e-12)


def test_a_linear_model_has_no_linearization_error(data):
    (before, _), (after, _) = draw_params((), 0), draw_params((), 1)
    found = diagnosis(hidden=())(before, after, one_round(), padded(data))
    assert found.delta_ntk_max < 1e-14
    assert found.aggregator_gradient_norm_mean > 0.01 and found.smoothness_mean > 0.01


def test_clients_that_stay_tell_nothing_of_the_smoothness(data):
    before, _ = draw_params((7,), 0)
    graph = one_round(absent=range(6))
    found = diagnosis()(before, before, graph, padded(data))
    assert found.smoothness_max == found.smoothness_mean == found.delta_ntk_max == 0
    assert found.loss == found.loss_after > 0


def test_aggregators_have_to_be_clients(data):
    before, _ = draw_params((7,), 0)
    graph = jax.tree.map(lambda a: a[:2], one_round())
    with pytest.raises(ValueError, match='2 aggregators and 6 clients'):
        diagnosis()(before, before, graph, padded(data))


@pytest.mark.parametrize(
    ('family', 'kind', 'second', 'symmetric'),
    [
        ('complete', 'uniform', 0, True),
        ('complete', 'size', 0, False),
        ('ring', 'metropolis', 2 / 3, True),  # (1 + 2 cos 60) / 3
    ],
)
def test_the_spectral_gap_is_that_of_definition_4_2(family, kind, second, symmetric):
    graph = jax.tree.map(lambda a: a[0], topology.schedule(family, 6, 1, seed=0))
    found = mixing_of(graph, np.array(SIZES), kind)
    assert found['lambda'] == pytest.approx(second, abs=1e-7)
    assert found['spectral_gap'] == pytest.approx((1 - second) ** 2, abs=1e-6)
    assert found['symmetric'] == symmetric


def test_the_gap_of_links_that_go_one_way():
    """The modulus of complex eigenvalues, on graphs whose clients hear one other each."""
    members = np.array([[i, (i + 1) % 6] for i in range(6)], np.int32)
    graph = Graph(members, np.ones((6, 2), bool), np.ones(6, bool))
    sizes = np.array(SIZES)
    share = sizes / (sizes + np.roll(sizes, -1))
    matrix = np.diag(share) + np.diag(1 - share) @ np.eye(6)[(np.arange(6) + 1) % 6]
    second = np.sort(np.abs(np.linalg.eigvals(matrix)))[-2]
    found = mixing_of(graph, sizes, 'size')
    assert found['lambda'] == pytest.approx(second, abs=1e-6)
    assert found['spectral_gap'] == pytest.approx((1 - second) ** 2, abs=1e-6)
    assert not found['symmetric']


# ------------------------------------------------------------------------------------- the bound

KNOWN = {
    'timesteps': 10,
    'rounds': 4,
    'smoothness': 2.0,
    'delta': 0.5,
    'gradient_norm': 2.0,
    'gradient_variance': 1.5,
    'second_modulus': 0.5,
    'descent': 3.0,
}


def test_the_bound_by_hand():
    found = bound(eta=0.001, **KNOWN)  # eta T = 0.01, eta T L = 0.02, delta^2 + sigma^2 = 1.75
    assert found.reach == pytest.approx(0.02)
    assert found.gamma == pytest.approx(0.01 - 0.006528)  # 32 * 1e-4 * 2 * 1.02
    assert found.numerators == pytest.approx(
        Terms(
            optimality=1.5,
            drift=0.005712,  # 16 * 1e-4 * 2 * 1.02 * 1.75
            linearization=0.02,  # 2 * 0.01 * 0.5 * 2
            consensus=0.0009609216,  # 512 * 1e-8 * 8 * 1.02 * 4 * 5.75
        )
    )
    assert found.total == pytest.approx(1.5266729216 / 0.003472)
    assert sum(found.terms) == pytest.approx(found.total)
    assert found.shares.optimality == pytest.approx(1.5 / 1.5266729216)
    assert sum(found.shares) == pytest.approx(1) and all(found.premises.values())


def test_the_premise_of_the_theorem_does_not_make_gamma_positive():
    assert math.isclose(32 * GAMMA_ROOT * (GAMMA_ROOT + 1), 1)
    for reach, allowed, positive in (
        (0.99 * GAMMA_ROOT, True, True),
        (1.01 * GAMMA_ROOT, True, False),
        (0.126, False, False),
    ):
        found = bound(eta=reach / (10 * 2), **KNOWN)
        assert found.premises['eta T L <= 1/8'] == allowed
        assert found.premises['gamma > 0'] == all(found.premises.values()) == positive
        assert (found.gamma > 0) == positive == math.isfinite(found.total)
        assert sum(found.shares) == pytest.approx(1)
    found = bound(eta=admissible_eta(10, 2.0), **KNOWN)
    assert found.reach == pytest.approx(GAMMA_ROOT / 2) and all(found.premises.values())


def test_clients_that_do_not_mix_have_no_bound():
    found = bound(eta=0.001, **KNOWN | {'second_modulus': 1.0})
    assert found.gamma > 0 and math.isinf(found.total) and not found.premises['lambda < 1']
    assert found.shares == Terms(0, 0, 0, 1)
    premises = bound(eta=0.001, **KNOWN | {'timesteps': 9}).premises
    assert not premises['T >= 10']  # Lemma G.6


# ------------------------------------------------------------------------------- the command line


here = functools.partial(called, command, *QUIET)


@pytest.fixture(scope='module')
def small(tiny):
    return (f'--dataset={tiny}', *SMALL)


@pytest.mark.integration
def test_the_files_of_a_run(small, tmp_path):
    done = here(*small, '--lr_decay=0.5', f'--out={tmp_path}/theory').succeeded()
    assert done.err == ''
    assert run_here(*small, '--lr_decay=0.5', '--nocheckpoint', f'--out={tmp_path}/run').status == 0

    lines = (tmp_path / 'theory' / 'theory.jsonl').read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row['round'] for row in rows] == [1, 2]
    for name in ('consensus_accuracy', 'timestep_mean'):
        assert [row[name] for row in rows] == [row[name] for row in rows_of(tmp_path / 'run')]
    assert rows[1]['rate'] == pytest.approx(0.01 * math.exp(-0.5))
    assert rows[1]['loss'] == rows[0]['loss_after'] < rows[0]['loss']
    assert all(0 < row['lambda'] <= 1 and row['delta_ntk_max'] > 0 for row in rows)
    assert all(row['spectral_gap'] == (1 - row['lambda']) ** 2 for row in rows)

    text = (tmp_path / 'theory' / 'theory.md').read_text()
    for words in (*table.COLUMNS, *table.TERMS.values(), 'admissible step', 'dominates with'):
        assert words in text
    assert text.count(f'{rows[0]["delta_ntk_max"]:.4g}') >= 1
    assert done.out.split('\n\n')[1].splitlines()[0] in text
    image = (tmp_path / 'theory' / 'theory.png').read_bytes()
    assert image.startswith(b'\x89PNG\r\n') and 20_000 < len(image) < 500_000


@pytest.mark.integration
def test_a_network_that_falls_apart_has_lambda_one(small, tmp_path):
    assert here(*small, '--client_dropout=0.5', f'--out={tmp_path}/out').status == 0
    text = (tmp_path / 'out' / 'theory.md').read_text()
    assert 'rounds lambda is 1' in text and '**inf**' in text


@pytest.mark.parametrize(
    ('flags', 'patterns'),
    [
        ('--algorithm=dpsgd', ('--algorithm=dpsgd', 'use --algorithm=ntk_dfl')),
        ('--loss=mse', ('--loss=mse', 'leave it out')),
        ('--nontk_averaging', ('--nontk_averaging', 'leave it out')),
        ('--ntk_batches=2', ('--ntk_batches=2', 'leave it out')),
        ('--message_bits=8', ('--message_bits=8', 'leave it out')),
        ('--topology=clustered', ('--topology=clustered', '--nontk_by_cluster')),
        ('--lr=0', ('--lr=0.0', 'raise it')),
        ('--resume', ('--resume', 'leave it out')),
        ('--eval_every=2', ('--eval_every=2', 'leave it out')),
        ('--world=devices', ('--world=devices', 'leave it out')),
        ('--devices=2', ('--devices=2', 'on one device')),
        ('--degree=6', ('degree 6', 'lower the degree to 5')),
        ('digits', ("'digits'", 'settings are flags')),
    ],
)
def test_what_is_refused(flags, patterns, small, tmp_path):
    line = here(*small, f'--out={tmp_path}/new', flags).error
    assert all(pattern in line for pattern in patterns), line
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_refused(small, tmp_path):
    (tmp_path / 'notes.txt').write_text('mine')
    line = here(*small, f'--out={tmp_path}').error
    assert str(tmp_path) in line and 'choose another --out' in line
    assert [path.name for path in tmp_path.iterdir()] == ['notes.txt']


@pytest.mark.integration
def test_divergence_ends_in_one_line(small, tmp_path):
    line = here(*small, '--lr=1e30', f'--out={tmp_path}/out').error
    assert 'round 1: ' in line and 'lower --lr' in line and '0 rounds' in line


def test_where_nothing_can_be_written_is_told_first(small, tmp_path):
    (tmp_path / 'file').touch()
    for out in (tmp_path / 'file', tmp_path / 'file' / 'deep', '/proc/x'):
        assert 'choose another --out' in here(*small, f'--out={out}').error
    assert [path.name for path in tmp_path.iterdir()] == ['file']
