"""Texts, and the network that learns them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_refused
from test_cli import here, rows_of

from dfl_jax import data
from dfl_jax.data import DataError, text
from dfl_jax.models import MODELS, bind
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import CLASSIFICATION, NEXT_TOKEN


def sonnets(**how):
    return data.load('sonnets', task=NEXT_TOKEN, **how)


def test_the_sonnets():
    found = sonnets()
    assert 10_000 < text.SONNETS.stat().st_size < 20_000
    assert found.train_x.shape == (260, 40) and found.test_x.shape == (65, 40)
    assert (found.train_x.dtype, found.train_y.dtype) == (np.float32, np.int32)
    assert len(np.unique(found.owners)) == 22
    np.testing.assert_array_equal(found.train_x[:, 1:], found.train_y[:, :-1])
    content = text.SONNETS.read_text()
    assert found.classes == len(set(content))
    alphabet = sorted(set(content))
    lines = [''.join(alphabet[int(token)] for token in row) for row in found.train_x]
    assert all(line in content for line in lines)
    first = [line for line, owner in zip(lines, found.owners, strict=True) if owner == 0]
    passages = content.split('\n\n')
    assert all(line in passages[0] for line in first)
    at = [content.index(line) for line in lines]
    assert at == sorted(at) and min(np.diff(at)) >= 40  # windows do not overlap


def test_a_text_of_one_s_own(tmp_path):
    path = tmp_path / 'own.txt'
    path.write_text('abcabcab \n\n\nab\n \nbacbacb\r\nacb\n')
    found = data.load(path, task=NEXT_TOKEN, text_window=3, test_share=0.2)
    # abcabcab is abc|a, abc|a and bac|b, bac|b, and then a line end: b\na|c
    assert found.classes == 4
    windows = np.concatenate([found.train_x, found.test_x])
    assert sorted(map(tuple, windows)) == [
        (1, 2, 3), (1, 2, 3), (2, 0, 1), (2, 1, 3), (2, 1, 3),
    ]  # fmt: skip
    assert set(found.owners) == {0, 1}
    whole = data.load(path, task=NEXT_TOKEN, text_window=7)
    assert len(whole.train_y) == len(whole.test_y) == 1
    with pytest.raises(DataError, match=r'1 windows of 8 characters .*smaller window'):
        data.load(path, task=NEXT_TOKEN, text_window=8)
    path.write_bytes(b'\xff\xfe\xff')
    assert_refused(r'cannot read .*own.txt: it is no text', path, task=NEXT_TOKEN)
    assert_refused(r'there is no file .*absent.txt', tmp_path / 'absent.txt', task=NEXT_TOKEN)


def test_arguments_that_do_not_fit():
    with pytest.raises(SettingError, match='sonnets is a text: set task to next_token, got classi'):
        data.load('sonnets', task=CLASSIFICATION)
    with pytest.raises(SettingError, match='the window has 0 characters'):
        sonnets(text_window=0)
    assert_refused(r'text_window is for sonnets, .txt, got digits', 'digits', text_window=9)


def test_a_gru_sees_no_later_token():
    model = bind(MODELS['gru'](7), (6,), NEXT_TOKEN)
    params = model.init(jax.random.key(0))
    x = jnp.array([[0, 1, 2, 3, 4, 5]], jnp.float32)
    outputs, changed = (np.asarray(model.apply(params, each)) for each in (x, x.at[0, 3].set(6)))
    assert outputs.shape == (1, 6, 7)
    np.testing.assert_allclose(outputs[0, :3], changed[0, :3], atol=1e-6)
    assert (np.abs(outputs[0, 3:] - changed[0, 3:]).max(axis=1) > 1e-3).all()  # memory
    with pytest.raises(ValueError, match=r'takes tokens \[B, L\]'):
        bind(MODELS['gru'](7), (4, 4, 1), NEXT_TOKEN)


@pytest.mark.slow  # test_tasks.py has a rule of next tokens that is learnt in a quarter of the time
def test_dfedavg_learns_the_sonnets(tmp_path):
    here(
        *('--dataset=sonnets', '--task=next_token', '--model=gru', '--algorithm=dfedavg'),
        *('--partition=natural', '--clients=8', '--optimizer=adam', '--lr=0.01'),
        *('--local_epochs=5', '--batch_size=4', '--rounds=4', '--eval_every=4'),
        f'--out={tmp_path / "run"}',
    ).succeeded()
    found = sonnets()
    # The unigram baseline: always the most frequent character, and its frequencies as forecast
    counts = np.bincount(found.train_y.ravel(), minlength=found.classes) + 1e-9
    share = np.mean(found.test_y == counts.argmax())
    loss = -np.log(counts / counts.sum())[found.test_y].mean()
    assert 0.15 < share < 0.2 and 3.0 < loss < 3.2
    last = rows_of(tmp_path / 'run')[-1]
    assert last['consensus_accuracy'] > share + 0.1
    assert last['consensus_loss'] < loss - 0.4
