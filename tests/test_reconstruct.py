"""The reconstruction attack: known inputs come back, and how close is measured right."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import jacobian
from test_cli import called

from dfl_jax.data import synthetic
from dfl_jax.data.projection import project, projection_matrix
from dfl_jax.exchange.compression import chain, quantization, top_k
from dfl_jax.models import MLP, SmallCNN, bind
from dfl_jax.papers.reconstruct import command as command_line
from dfl_jax.papers.reconstruct import reconstruction, scene
from dfl_jax.papers.reconstruct.reconstruction import closed_form, match, psnr, reconstruct, ssim

SHAPE, CLASSES, HIDDEN = (4, 3, 1), 3, 20
PIXELS = 12
MODEL = bind(MLP(CLASSES, (HIDDEN,)), SHAPE)


def weights(model=MODEL, dtype=jnp.float64, seed=0):
    """Initial weights with biases that are not zero, and an input."""
    k_w, k_b, k_x = jax.random.split(jax.random.key(seed), 3)
    w = jax.tree.map(lambda a: a.astype(dtype), model.init(k_w))
    for name, layer in w.items():
        layer['bias'] = 0.1 * jax.random.normal(
            jax.random.fold_in(k_b, len(name)), layer['bias'].shape, dtype
        )
    return w, jax.random.normal(k_x, SHAPE, dtype)


def sent_by(codec, w, x, model=MODEL):
    received = jax.jit(lambda w, x: reconstruction.received(model, codec, jax.random.key(5), w, x))
    return received(w, x)


# -------------------------------------------------------------------------------------------- rows


def test_the_rows_are_the_jacobian(x64):
    w, x = weights()
    layers = [(np.asarray(a['kernel']), np.asarray(a['bias'])) for a in w.values()]
    (expected,) = jacobian(layers, np.asarray(x).reshape(1, -1))
    rows = reconstruction.rows(MODEL, w, x)
    found = [rows[layer][part] for layer in w for part in ('kernel', 'bias')]
    np.testing.assert_allclose(
        np.concatenate([part.reshape(CLASSES, -1) for part in found], axis=1), expected, atol=1e-12
    )


def test_every_output_is_a_message_of_its_own(x64):
    w, x = weights()
    codec = chain(top_k(0.6), quantization(4))
    sent = sent_by(codec, w, x)
    transmit = jax.jit(codec.transmit)
    keys, rows = jax.random.split(jax.random.key(5), CLASSES), reconstruction.rows(MODEL, w, x)
    for c in range(CLASSES):
        row = jax.tree.map(lambda leaf: leaf[c], rows)  # noqa: B023
        for found, expected in zip(
            jax.tree.leaves(sent), jax.tree.leaves(transmit(keys[c], row)), strict=True
        ):
            np.testing.assert_allclose(found[c], expected, atol=1e-12)


# -------------------------------------------------------------------------------- gradient matching


def test_gradient_matching_finds_the_input(x64):
    w, x = weights()
    found, value = reconstruct(jax.random.key(1), MODEL, w, sent_by(None, w, x), SHAPE)
    np.testing.assert_allclose(found, x, atol=1e-3)
    assert value < 1e-6


def test_gradient_matching_of_sparse_rows_compares_what_was_received(x64):
    w, x = weights()
    sent = sent_by(top_k(0.7), w, x)
    plain, masked = (
        reconstruct(jax.random.key(1), MODEL, w, sent, SHAPE, on_support=on_support)[0]
        for on_support in (False, True)
    )
    large = np.abs(x) > np.quantile(np.abs(x), 0.5)
    np.testing.assert_allclose(masked[large], x[large], atol=1e-3)
    assert np.abs(plain - x)[large].max() > 0.01


def test_gradient_matching_through_a_projection_finds_the_projected_input(x64):
    projection = jnp.asarray(projection_matrix(PIXELS, 6, seed=0), jnp.float64)
    model = bind(MLP(CLASSES, (HIDDEN,)), (6,))
    w, x = weights(model)
    sent = sent_by(None, w, x.ravel() @ projection, model)
    found, _ = reconstruct(jax.random.key(1), model, w, sent, SHAPE, projection)
    np.testing.assert_allclose(found.ravel() @ projection, x.ravel() @ projection, atol=1e-3)
    assert np.abs(found - x).max() > 0.1  # six numbers do not tell twelve


def test_restarts_keep_the_best():
    """The search for the square root of 4 in [-1, 3] ends at -1 or at 2, by where it starts."""
    for seed in range(5):
        x, value = match(
            jax.random.key(seed), jnp.square, jnp.full(1, 4.0), (1,), bounds=(-1, 3), restarts=8
        )
        assert x == pytest.approx(2, abs=1e-3) and value < 1e-5
    alone = [
        match(jax.random.key(seed), jnp.square, jnp.full(1, 4.0), (1,), bounds=(-1, 3), restarts=1)[
            0
        ]
        for seed in range(8)
    ]
    assert min(alone) == -1


def test_the_priors(x64):
    """A flat image within its bounds comes back from fewer numbers than it has pixels."""
    image = jnp.zeros((8, 8, 1)).at[2:6, 2:6].set(1.0)
    projection = jnp.asarray(projection_matrix(64, 32, seed=0), jnp.float64)
    z = image.ravel() @ projection

    def encode(x):
        return x.ravel() @ projection

    plain, smooth = (
        match(jax.random.key(2), encode, z, image.shape, steps=3000, **prior)[0]
        for prior in ({}, {'bounds': (0.0, 1.0), 'smoothness': 0.003})
    )
    assert psnr(smooth, image) > 35
    assert psnr(plain, image) < 10
    assert smooth.min() >= 0 and smooth.max() <= 1


def test_total_variation_of_a_hand_made_image():
    image = jnp.array([[0.0, 1.0], [3.0, 3.0]])[..., None]
    assert reconstruction.variation(image) == (1 + 0 + 3 + 2) / 4


# -------------------------------------------------------------------------------------- closed form


def test_the_closed_form_is_exact(x64):
    w, x = weights()
    found = closed_form(MODEL, sent_by(None, w, x))
    np.testing.assert_allclose(found, x, rtol=1e-13)


def test_the_closed_form_of_a_deeper_network(x64):
    model = bind(MLP(CLASSES, (HIDDEN, 7)), SHAPE)
    w, x = weights(model)
    np.testing.assert_allclose(closed_form(model, sent_by(None, w, x, model)), x, rtol=1e-12)


def test_pixels_that_survive_sparsification_are_exact(x64):
    w, x = weights()
    exact, sent = reconstruction.rows(MODEL, w, x), sent_by(top_k(0.8), w, x)
    assert np.count_nonzero(sent['Dense_0']['kernel']) < np.count_nonzero(
        exact['Dense_0']['kernel']
    )
    found = closed_form(MODEL, sent, on_support=True)
    survived = found != 0
    assert 0.3 < survived.mean() < 1
    np.testing.assert_allclose(found[survived], x[survived], rtol=1e-12)
    assert np.abs(x[~survived]).max() < np.abs(x[survived]).max()


def test_dead_units_make_mild_sparsification_lossless(x64):
    w, x = weights()
    w['Dense_0']['bias'] = w['Dense_0']['bias'].at[: HIDDEN // 2].set(-100.0)
    for found, exact in zip(
        jax.tree.leaves(sent_by(top_k(0.25), w, x)['Dense_0']),
        jax.tree.leaves(reconstruction.rows(MODEL, w, x)['Dense_0']),
        strict=True,
    ):
        np.testing.assert_array_equal(found, exact)


def test_quantized_rows_are_averaged_over_units_and_outputs(x64):
    w, x = weights()
    sent = sent_by(quantization(6), w, x)
    found = closed_form(MODEL, sent)
    assert psnr(found / 4, x / 4) > 30


def test_a_projection_keeps_lengths_in_the_mean():
    """That of one has a standard deviation of 1; the mean is over 300."""
    lengths = [np.sum(projection_matrix(8, 2, seed)[0] ** 2) for seed in range(300)]
    assert np.mean(lengths) == pytest.approx(1, abs=0.2)


def test_with_a_projection_the_closed_form_is_z(x64):
    projection = jnp.asarray(projection_matrix(PIXELS, 6, seed=0), jnp.float64)
    model = bind(MLP(CLASSES, (HIDDEN,)), (6,))
    w, x = weights(model)
    z = closed_form(model, sent_by(None, w, x.ravel() @ projection, model))
    np.testing.assert_allclose(z, x.ravel() @ projection, rtol=1e-12)
    image = reconstruction.minimum_norm(z, projection)
    np.testing.assert_allclose(image @ projection, z, rtol=1e-9)
    expected = np.linalg.lstsq(np.asarray(projection).T, np.asarray(z), rcond=None)[0]
    np.testing.assert_allclose(image, expected, atol=1e-12)


def test_own_images_tell_what_the_projection_leaves_open(x64):
    """Inputs of a plane of three dimensions are found from six numbers."""
    rng = np.random.default_rng(0)
    plane, centre = rng.normal(size=(3, PIXELS)), rng.normal(size=PIXELS)
    known, x = centre + rng.normal(size=(50, 3)) @ plane, centre + rng.normal(size=3) @ plane
    projection = jnp.asarray(projection_matrix(PIXELS, 6, seed=0), jnp.float64)
    z = x @ projection
    found = reconstruction.most_likely(z, projection, jnp.asarray(known), ridge=1e-9)
    np.testing.assert_allclose(found, x, atol=1e-5)
    assert np.abs(reconstruction.minimum_norm(z, projection) - x).max() > 0.1


def test_the_closed_form_needs_a_dense_first_layer():
    model = bind(SmallCNN(CLASSES), (8, 8, 1))
    with pytest.raises(ValueError, match='takes an MLP, not SmallCNN: use reconstruct'):
        closed_form(model, model.shapes)


# -------------------------------------------------------------------------------------- PSNR, SSIM


def noise(seed, shape=(28, 28, 1)):
    return np.random.default_rng(seed).uniform(size=shape)


def test_psnr_of_hand_made_images():
    image = noise(0)
    assert psnr(image, image) == np.inf
    assert psnr(image, image + 0.1) == pytest.approx(20)
    assert psnr(np.zeros((2, 2)), np.ones((2, 2))) == 0
    assert psnr(np.zeros((2, 2)), [[0.2, 0], [0, 0]]) == pytest.approx(20)


@pytest.mark.parametrize('shape', [(28, 28, 1), (8, 8, 1), (32, 32, 3)])
def test_ssim_of_hand_made_images(shape):
    image, other = noise(0, shape), noise(1, shape)
    assert ssim(image, image) == pytest.approx(1, abs=1e-12)
    assert ssim(image, other) == pytest.approx(ssim(other, image), abs=1e-12)
    assert ssim(image, other) < 0.2
    slightly = image + 0.05 * (other - 0.5)
    assert ssim(image, other) < ssim(image, slightly) < 1
    assert ssim(image, 1 - image) < 0


def test_ssim_of_constant_images_is_the_luminance():
    a, b = np.full((28, 28, 1), 0.5), np.full((28, 28, 1), 0.7)
    expected = (2 * 0.5 * 0.7 + 1e-4) / (0.5**2 + 0.7**2 + 1e-4)
    assert ssim(a, b) == pytest.approx(expected, abs=1e-12)


def test_ssim_by_its_definition_at_one_pixel():
    """An 11 x 11 image mirrored at its border is, at its centre, the window itself."""
    a, b = noise(0, (11, 11, 1)), noise(1, (11, 11, 1))
    gaussian = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window = np.outer(gaussian, gaussian) / gaussian.sum() ** 2

    def mean(x):
        return np.sum(window * x[..., 0])

    va, vb = mean(a * a) - mean(a) ** 2, mean(b * b) - mean(b) ** 2
    cov = mean(a * b) - mean(a) * mean(b)
    c1, c2 = 1e-4, 9e-4
    centre = (2 * mean(a) * mean(b) + c1) * (2 * cov + c2)
    centre /= (mean(a) ** 2 + mean(b) ** 2 + c1) * (va + vb + c2)
    assert reconstruction.similarity(a, b)[5, 5, 0] == pytest.approx(centre, abs=1e-12)


# --------------------------------------------------------------------------------------- projection


def test_projected_data():
    data = synthetic(train=50, test=20, features=32)
    images = data._replace(
        train_x=data.train_x.reshape(50, 4, 4, 2), test_x=data.test_x.reshape(20, 4, 4, 2)
    )
    projected = project(images, 7, seed=3)
    matrix = projection_matrix(32, 7, seed=3)
    assert projected.train_x.shape == (50, 7) and projected.test_x.shape == (20, 7)
    assert projected.train_x.dtype == np.float32 and matrix.dtype == np.float32
    np.testing.assert_allclose(projected.train_x, data.train_x @ matrix, atol=1e-5)
    np.testing.assert_allclose(projected.test_x, data.test_x @ matrix, atol=1e-5)
    assert projected.train_y is data.train_y and projected.classes == data.classes


def test_a_seed_decides_the_projection():
    first, again, other = (projection_matrix(32, 7, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_inner_products_are_kept():
    """The error of unit vectors has a standard deviation of at most sqrt(2 / d1') = 0.1."""
    x = np.random.default_rng(0).normal(size=(40, 784))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    z = x @ projection_matrix(784, 200, seed=0)
    error = z @ z.T - x @ x.T
    assert np.abs(error).max() < 0.45 and np.sqrt(np.mean(error**2)) < 0.1
    assert abs(np.trace(error)) / 40 < 0.05


@pytest.mark.parametrize('dimensions', [0, -1, 33])
def test_dimensions_out_of_range(dimensions):
    message = rf'projection to {dimensions} dimensions of inputs with 32 features: .* 1 to 32'
    with pytest.raises(ValueError, match=message):
        projection_matrix(32, dimensions, 0)


# -------------------------------------------------------------------------------------- the command


def command(*flags):
    with jax.numpy_rank_promotion('allow'):
        return called(command_line, *flags)


@pytest.mark.slow
def test_the_command_writes_its_files(tmp_path):
    pytest.importorskip('sklearn')
    tiny = ('--images=2', '--attack_steps=30', '--attack_restarts=1', '--attack_training=0')
    flags = (f'--out={tmp_path / "out"}', '--noprogress', *tiny)
    done = command(*flags).succeeded()
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [
        'reconstruction.md',
        'reconstruction.png',
    ]
    text = (tmp_path / 'out' / 'reconstruction.md').read_text()
    rows = [line.split(' | ') for line in text.splitlines() if line.startswith('| initial')]
    assert len(rows) == 2 * 2 + 3 * 5
    assert [float(row[5].split()[0]) for row in rows if row[3] == 'closed form'] == [120, 120]
    assert {row[1] for row in rows} == {
        'no compression', 'sparsity 0.25', 'projection 16', 'sparsity 0.25, projection 16',
        'sparsity 0.5, 6 bits, projection 16',
    }  # fmt: skip
    assert (tmp_path / 'out' / 'reconstruction.png').read_bytes().startswith(b'\x89PNG')
    assert text in done.out
    assert 'exists and is not an empty folder; choose another --out' in command(*flags).error


def test_the_second_attack_is_at_trained_weights():
    dataset = synthetic(train=500, test=100)
    model = bind(MLP(10), (32,))
    w = model.init(jax.random.key(0))
    with jax.numpy_rank_promotion('allow'):
        trained = scene.trained(model, w, dataset, steps=300, seed=0)
    before, after = (
        np.mean(np.argmax(model.apply(at, dataset.test_x), axis=1) == dataset.test_y)
        for at in (w, trained)
    )
    assert before < 0.3 and after > 0.8


@pytest.mark.parametrize(
    ('flag', 'message'),
    [
        ('--clients=3', '--clients=3 does not apply to the attack; leave it out'),
        ('--dataset=synthetic', 'choose a --dataset of images [height, width, channels]'),
        ('--images=5000', '--images=5000 and --attack_known=200 of 1437 training samples'),
        ('--attack_sparsity=1', '--attack_sparsity has to lie in [0, 1), got 1.0'),
        ('--attack_projection=65', 'projection to 65 dimensions of inputs with 64 features'),
    ],
)
def test_a_bad_flag_is_named_in_one_line(flag, message, tmp_path):
    assert message in command(f'--out={tmp_path / "out"}', flag).error
    assert not (tmp_path / 'out').exists()


def test_where_nothing_can_be_written_is_told_first(tmp_path, monkeypatch):
    (tmp_path / 'file').touch()
    monkeypatch.setattr(scene, 'choose_victim', None)
    for out in (tmp_path / 'file', tmp_path / 'file' / 'deep', tmp_path / ('x' * 300), '/proc/x'):
        assert 'choose another --out' in command(f'--out={out}').error
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_ctrl_c_while_it_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(scene, 'choose_victim', mock.Mock(side_effect=KeyboardInterrupt))
    done = command(f'--out={tmp_path / "out"}')
    assert done.status == 130 and done.error.startswith('error: interrupted')
    assert not (tmp_path / 'out').exists()
