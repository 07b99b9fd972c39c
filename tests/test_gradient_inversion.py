"""What one local step reveals: the image, unless there is noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_reconstruct import command

from dfl_jax.models import MLP, bind
from dfl_jax.papers.reconstruct import gradient, reconstruction
from dfl_jax.papers.reconstruct.gradient import Setting, invert, sent_gradient
from dfl_jax.papers.reconstruct.reconstruction import match, psnr

SHAPE, CLASSES = (8, 8, 1), 10
MODEL = bind(MLP(CLASSES, (30,)), SHAPE)
W = jax.jit(MODEL.init)(jax.random.key(0))
Y = jnp.array([3, 8])


def images(count=2, dtype=jnp.float32):
    """Smooth images in [0, 1], [count, 8, 8, 1]."""
    across = jnp.linspace(0, np.pi, 8, dtype=dtype)
    waves = [jnp.outer(jnp.sin((i + 1) * across), jnp.cos(across)) for i in range(count)]
    return (jnp.stack(waves)[..., None] + 1) / 2


def sent(setting, x, y, w=W):
    """What one client sends whose minibatch is x and y."""
    of_all = all_sent(setting, x[None], y[None], w)
    return jax.tree.map(lambda leaf: leaf[0], of_all)


def all_sent(setting, x, y, w=W):
    """What clients send, leaves [M, ...]."""
    key = jax.random.key(4)
    return jax.jit(lambda w, x, y: sent_gradient(MODEL, setting.training, key, w, x, y))(w, x, y)


def expected_gradient(setting, w, x, y):
    return jax.jit(lambda *of: gradient.expected_gradient(MODEL, setting.training, *of))(w, x, y)


@jax.jit
def gradient_by_hand(w, x, y):
    """That of the mean cross-entropy of a batch."""

    def loss(w):
        log_p = jax.nn.log_softmax(MODEL.apply(w, x))
        return -jnp.mean(log_p[jnp.arange(len(y)), y])

    return jax.grad(loss)(w)


def in_double():
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), W)


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)


# ------------------------------------------------------------------------------------- what is sent


def test_the_gradient_is_that_of_the_minibatch(x64):
    w, x = in_double(), images(dtype=jnp.float64)
    expected = gradient_by_hand(w, x, Y)
    assert_close(sent(Setting(2), x, Y, w), expected)
    assert_close(expected_gradient(Setting(2), w, x, Y), expected)


def test_every_sample_is_clipped(x64):
    w, x, clip = in_double(), images(dtype=jnp.float64), 0.5
    each = [gradient_by_hand(w, x[i : i + 1], Y[i : i + 1]) for i in range(2)]
    norms = [np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(g))) for g in each]
    assert min(norms) > clip
    expected = jax.tree.map(
        lambda a, b: (clip / norms[0] * a + clip / norms[1] * b) / 2, each[0], each[1]
    )
    clipped = Setting(2, clip)
    assert_close(sent(clipped, x, Y, w), expected)
    noisy = Setting(2, clip, 0.1)
    assert_close(expected_gradient(noisy, w, x, Y), expected)
    of_two = all_sent(noisy, jnp.stack([x, x]), jnp.stack([Y, Y]), w)
    noise = jax.tree.map(lambda a, b: a - b[None], of_two, expected)
    one, other = np.concatenate([leaf.reshape(2, -1) for leaf in jax.tree.leaves(noise)], axis=1)
    assert np.std(one) == pytest.approx(0.1 * clip / 2, rel=0.06)  # of 2260 numbers
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1  # every client has noise of its own


# --------------------------------------------------------------------------------------- the attack


def inverted(setting, x, y):
    search = {'bounds': (0.0, 1.0), 'smoothness': 1e-3, 'steps': 600, 'restarts': 2}
    training, received = setting.training, sent(setting, x, y)
    run = jax.jit(lambda g: invert(jax.random.key(1), MODEL, training, W, g, y, **search))
    return run(received), received


@pytest.mark.parametrize(
    ('setting', 'least', 'most'),
    [(Setting(1), 30, 200), (Setting(1, 0.1, 1.0), 0, 12)],
)
def test_a_single_image_is_found_without_noise(setting, least, most):
    x = images(1)
    found, received = inverted(setting, x, Y[:1])
    assert least < psnr(found, x) < most
    row = jax.tree.map(lambda leaf: leaf[None], received)
    divided = np.clip(reconstruction.closed_form(MODEL, row), 0, 1)
    assert 3 * least < psnr(divided[None], x) < most


def test_two_images_of_one_minibatch_are_found():
    x = images()
    found, _ = inverted(Setting(2), x, Y)
    assert min(psnr(found[i], x[i]) for i in range(2)) > 20


def test_the_length_of_the_target_does_not_matter():
    """A search by the angle alone sees the direction."""
    target = jnp.array([3.0, 4.0])
    search = {'restarts': 1, 'steps': 300}
    key = jax.random.key(0)
    near, far = (
        match(key, jnp.asarray, scale * target, (2,), by_angle=True, **search)
        for scale in (1.0, 100.0)
    )
    for x, value in (near, far):
        assert value < 1e-4
        np.testing.assert_allclose(x[1] / x[0], 4 / 3, rtol=0.02)
    np.testing.assert_allclose(near[0], far[0], rtol=0.02)


def test_the_variation_of_several_images_is_their_mean():
    x = images(3)
    each = [reconstruction.variation(image) for image in x]
    np.testing.assert_allclose(reconstruction.variation(x), np.mean(each), rtol=1e-6)


def test_images_are_compared_in_the_nearest_order():
    originals = np.asarray(images(4))
    swapped = originals[[1, 0, 2, 3]] + 0.01
    found = gradient.in_order(swapped, originals, 2)
    np.testing.assert_allclose(found, originals + 0.01, rtol=1e-6)
    np.testing.assert_array_equal(gradient.in_order(swapped, originals, 1), swapped)


# -------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_attacks_a_step(tmp_path):
    pytest.importorskip('sklearn')
    given = ('--sent=gradient', '--images=2', '--batch_size=1', '--dp_clip=0.3')
    given += ('--dp_noise_multiplier=20', '--attack_training=0', '--attack_steps=3')
    out = tmp_path / 'out'
    done = command(*given, f'--out={out}', '--noprogress').succeeded()
    assert sorted(path.name for path in out.iterdir()) == [
        'reconstruction.md',
        'reconstruction.png',
    ]
    text = (out / 'reconstruction.md').read_text()
    rows = [line.split(' | ') for line in text.splitlines() if line.startswith('| initial')]
    private = 'batch_size 1, dp_clip 0.3', 'batch_size 1, dp_clip 0.3, dp_noise_multiplier 20'
    assert [row[1] for row in rows[::2]] == ['batch_size 1', *private]
    exact = [row[3].startswith('120.0') for row in rows if row[2] == 'closed form']
    assert exact == [True, True, False]
    assert [row[5] for row in rows[:2]] == ['2 of 2 |'] * 2  # labels
    assert text in done.out and 'total variation with weight 0.01' in text
    assert 'exists and is not an empty folder' in command(*given, f'--out={out}').error


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ('--sent=weights', '--sent=weights: value should be one of <jacobians|gradient>'),
        ('--batch_size=2', '--batch_size=2 has no effect with --sent=jacobians; leave it out, or'),
        ('--dp_clip=1', '--dp_clip=1.0 has no effect with --sent=jacobians'),
        ('--sent=gradient --attack_known=5', '--attack_known=5 has no effect with --sent=gradient'),
        ('--sent=gradient --dp_clip=-1', 'dp_clip has to be above 0, got -1.0'),
        ('--sent=gradient --dp_noise_multiplier=0', 'dp_noise_multiplier has to be above 0'),
        ('--sent=gradient --batch_size=0', 'batch_size has to be at least 1, got 0'),
        ('--sent=gradient --images=6', '--images=6 make no whole minibatches of 4; choose a mult'),
        ('--sent=gradient --lr=0.2', '--lr=0.2 does not apply to the attack; leave it out'),
    ],
)
def test_a_bad_flag_is_named_before_data_are_read(given, message, tmp_path, monkeypatch):
    monkeypatch.setattr('dfl_jax.data.load', None)
    assert message in command(f'--out={tmp_path / "out"}', *given.split()).error
    assert not (tmp_path / 'out').exists()
