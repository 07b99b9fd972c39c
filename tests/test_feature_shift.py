"""Clients whose inputs look different."""

import numpy as np
import pytest
from test_cli import here, rows_of

from dfl_jax import data
from dfl_jax.data.feature_shift import parse, shift_clients, shift_test
from dfl_jax.data.feature_shift import shifted as shifted_all
from dfl_jax.setting_error import SettingError

M, N = 8, 6


@pytest.fixture
def clients():
    """Eight clients of 3 to 6 coloured pictures, the padding garbage."""
    rng = np.random.default_rng(0)
    sizes = [3, 6, 4, 6, 5, 6, 3, 6]
    x = rng.normal(size=(sum(sizes), 7, 7, 3)).astype(np.float32)
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    packed = data.pack(x, np.zeros(len(x), np.int32), parts)
    garbage = np.where(packed.mask[..., None, None, None], packed.x, 9.0)
    return packed._replace(x=garbage)


def shifted(clients, text, seed=0):
    found = shift_clients(clients, parse(text), seed)
    mask = np.asarray(clients.mask)
    assert (np.asarray(found.x)[~mask] == 9).all()  # padding as it was
    assert found.x.dtype == np.float32
    return [np.asarray(found.x)[i, mask[i]] for i in range(M)], [
        np.asarray(clients.x)[i, mask[i]] for i in range(M)
    ]


def test_quarter_turns(clients):
    after, before = shifted(clients, 'quarter_turns')
    turns = []
    for new, old in zip(after, before, strict=True):
        (k,) = (k for k in range(4) if np.array_equal(new, np.rot90(old, k, axes=(1, 2))))
        turns.append(k)
    assert sorted(turns) == [0, 0, 1, 1, 2, 2, 3, 3]
    again, _ = shifted(clients, 'quarter_turns')
    other, _ = shifted(clients, 'quarter_turns', seed=1)
    assert all(map(np.array_equal, again, after)) and not all(map(np.array_equal, other, after))


def test_angles():
    grid = np.mgrid[-10:11, -10:11]
    bar = (np.abs(grid[0]) < 2).astype(np.float32)[None, :, :, None]  # lies along the columns
    packed = data.pack(np.repeat(bar, 40, axis=0), np.zeros(40, np.int32), np.arange(40)[:, None])
    found = np.asarray(shift_clients(packed, parse('angle:30'), 0).x)[:, 0, ..., 0]
    inside = np.hypot(*grid) < 9
    rows, columns = (np.where(inside, axis, 0) for axis in grid)
    moment = lambda a, b: (found * a * b).sum(axis=(1, 2))  # noqa: E731
    angles = np.degrees(
        0.5 * np.arctan2(2 * moment(rows, columns), moment(columns, columns) - moment(rows, rows))
    )
    assert np.abs(angles).max() < 31 and angles.min() < -20 and angles.max() > 20
    assert len(np.unique(angles.round(1))) > 30  # each client has its own


def test_colours(clients):
    after, before = shifted(clients, 'colour:0.3')
    laws = []
    for new, old in zip(after, before, strict=True):
        for channel in range(3):
            gain, offset = np.polyfit(old[..., channel].ravel(), new[..., channel].ravel(), 1)
            np.testing.assert_allclose(
                gain * old[..., channel] + offset, new[..., channel], atol=1e-4
            )
            laws.append((np.log(gain), offset))
    assert np.std(laws, axis=0) == pytest.approx([0.3, 0.3], rel=0.4)  # 24 of each
    assert len(np.unique(np.round(laws, 4))) == 48


def test_noise_grows_with_the_client(clients):
    after, before = shifted(clients, 'noise:2')
    found = [(new - old).std() for new, old in zip(after, before, strict=True)]
    np.testing.assert_allclose(found, 2 * np.arange(1, M + 1) / M, rtol=0.15)
    again = shift_clients(clients, parse('noise:2'), 0, 'validation')
    assert not np.array_equal(np.asarray(again.x)[0, 0], after[0][0])


def test_the_test_set_is_of_all_clients_together():
    x = np.random.default_rng(0).normal(size=(4000, 5)).astype(np.float32)
    found = shift_test(x, 4, parse('noise:2'), seed=0) - x
    # Of the four variances 0.25, 1, 2.25 and 4, each for a quarter of the samples
    assert found.var() == pytest.approx(1.875, rel=0.1)
    sizes = np.sort(np.sqrt((found**2).mean(axis=1)))
    assert sizes[:800].mean() < 0.5 and sizes[-800:].mean() > 2

    pictures = x[:, :4].reshape(-1, 2, 2, 1)
    packed = data.pack(pictures, np.zeros(4000, np.int32), [[i] for i in range(4)])
    laws = np.asarray(shift_clients(packed, parse('colour:1'), 3).x)[:, 0] - pictures[:4]
    found = shift_test(pictures, 4, parse('colour:1'), 3) - pictures
    gains = {
        round(float(np.polyfit(p.ravel(), q.ravel(), 1)[0]), 2)
        for p, q in zip(pictures[:50], (pictures + found)[:50], strict=True)
    }
    theirs = {
        round(float(np.polyfit(p.ravel(), (p + q).ravel(), 1)[0]), 2)
        for p, q in zip(pictures[:4], laws, strict=True)
    }
    assert len(theirs) == 4 and gains == theirs


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('turns', "unknown feature_shift 'turns'; choose one of quarter_turns, angle, colour"),
        ('quarter_turns:2', 'quarter_turns has no strength'),
        ('noise', 'give a strength, as in noise:0.5'),
        ('noise:much', 'give a strength, as in noise:0.5'),
        ('noise:0', 'use a strength above 0 and at most 1000'),
        ('noise:nan', 'use a strength above 0'),
        ('angle:181', 'at most 180'),
    ],
)
def test_shifts_that_are_none(text, said, tmp_path):
    with pytest.raises(SettingError, match=said):
        parse(text)
    assert said in here(f'--feature_shift={text}', f'--out={tmp_path / "run"}').error


def test_inputs_that_cannot_be_shifted(tmp_path):
    packed = data.pack(np.zeros((4, 5), np.float32), np.zeros(4, np.int32), [[0, 1], [2, 3]])
    for kind in ('quarter_turns', 'angle:9', 'colour:1'):
        with pytest.raises(SettingError, match=r'is for images .*an input is \(5,\): use noise:S'):
            shift_clients(packed, parse(kind), 0)
    wide = packed._replace(x=np.zeros((2, 2, 4, 6, 1), np.float32))
    with pytest.raises(SettingError, match=r'needs square images, not \(4, 6, 1\)'):
        shift_clients(wide, parse('quarter_turns'), 0)
    line = here(
        *('--dataset=sonnets', '--task=next_token', '--model=gru', '--algorithm=dfedavg'),
        *('--partition=iid', '--feature_shift=noise:1', f'--out={tmp_path / "run"}'),
    ).error
    assert 'feature_shift is for numbers, and next_token has tokens' in line


def test_all_samples_of_a_run_are_shifted():
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    parts, kept = ([np.arange(i, 60, 6) for i in start] for start in ((0, 1, 2), (3, 4, 5)))
    packed = [data.pack(x, np.zeros(60, np.int32), each) for each in (parts, kept)]
    *noisy, test_x = shifted_all(parse('noise:1'), *packed, x[:20], 7)
    for before, after in zip(packed, noisy, strict=True):
        assert (np.abs(np.asarray(after.x) - np.asarray(before.x)) > 0).all()
        np.testing.assert_array_equal(after.mask, before.mask)
    assert (test_x != x[:20]).all()
    assert shifted_all(parse('noise:1'), packed[0], None, x[:20], 7)[1] is None


@pytest.mark.integration
def test_turned_clients_are_harder_to_agree_with(tmp_path):
    found = {}
    for shift in ((), ('--feature_shift=quarter_turns',)):
        here(
            *('--train_samples=600', '--clients=8', '--topology=complete', '--partition=iid'),
            *('--algorithm=dfedavg', '--hidden=16', '--lr=0.1', '--rounds=4', '--eval_every=4'),
            *('--validation_share=0.2', f'--out={tmp_path / str(len(shift))}', *shift),
        ).succeeded()
        found[bool(shift)] = rows_of(tmp_path / str(len(shift)))[-1]
    assert 0.3 < found[True]['consensus_accuracy'] < found[False]['consensus_accuracy'] - 0.1
