"""The evolution under a fixed kernel: against loops, closed forms and a fine integration."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from dfl_jax.ntk import evolution, evolve, low_rank, rkc

CLASSES = 4
TIMESTEPS = (100, 200, 300, 400, 500, 600, 700, 800)
SPARK_TIMESTEPS = (100, 200, 400, 800)
IRREGULAR = ((7, 50, 800), (1,), (800,))
LOSSES = ('cross_entropy', 'mse')
LARGE = evolution.LOW_RANK_SAMPLES


def softmax(f):
    e = np.exp(f - f.max(axis=-2, keepdims=True))
    return e / e.sum(axis=-2, keepdims=True)


def prediction(f, loss):
    return f if loss == 'mse' else softmax(f)


def problem(n=20, seed=0, stiffest=0.05, lr=0.1):
    """H, f0, y, lr in float64: one Perron-like mode, lr lambda / N = `stiffest`, and a tail."""
    rng = np.random.default_rng(seed)
    directions = np.column_stack([1 + 0.2 * rng.random(n), rng.normal(size=(n, n - 1))])
    vectors, _ = np.linalg.qr(directions)
    spectrum = np.concatenate([[1], 0.1 * 0.8 ** np.arange(n - 1)])
    kernel = vectors * (stiffest * n / lr * spectrum) @ vectors.T
    y = np.eye(CLASSES)[rng.integers(CLASSES, size=n)].T
    return (kernel + kernel.T) / 2, rng.normal(size=(CLASSES, n)), y, lr


def terms(loss):
    """The terms of a sample's loss, by which `mse` divides lr: flows here are those of lr / N."""
    return CLASSES if loss == 'mse' else 1


def loop(kernel, f0, y, lr, timesteps, loss):
    """Eq. (5) and (11) one step at a time, outputs updated as they are."""
    n, f, total, found = f0.shape[1], f0, np.zeros_like(f0), []
    for t in range(1, max(timesteps) + 1):
        residual = prediction(f, loss) - y
        total, f = total + residual, f - lr / n * residual @ kernel
        if t in timesteps:
            found.append(total)
    return np.stack(found)


def fine_flow(kernel, f0, y, lr, timesteps, loss, substeps=20):
    """dS/dt = prediction(f0 - lr/N S H) - Y by the classical Runge-Kutta method, fine steps.

    Problems stacked along leading axes are followed at once: the price is that of the calls.
    """
    h, rate = 1 / substeps, lr / f0.shape[-1] * kernel

    def slope(s):
        return prediction(f0 - s @ rate, loss) - y

    total, found = np.zeros_like(f0), []
    for t in range(1, max(timesteps) + 1):
        for _ in range(substeps):
            k1 = slope(total)
            k2 = slope(total + h / 2 * k1)
            k3 = slope(total + h / 2 * k2)
            total = total + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(total + h * k3))
        if t in timesteps:
            found.append(total)
    return np.stack(found)


@functools.cache
def _evolving(**options):
    """A compiled `evolve`, which all tests of these options share: a program takes a second."""
    return jax.jit(functools.partial(evolve, **options))


def evolved(kernel, f0, y, lr, *, mask=None, dtype=jnp.float64, **options):
    mask = np.ones(f0.shape[1], bool) if mask is None else mask
    lr = lr * terms(options.get('loss'))
    arrays = (np.asarray(a, dtype) for a in (kernel, f0, y))
    return np.asarray(_evolving(**options)(*arrays, mask, lr))


def relative_errors(actual, expected):
    """[len(timesteps)], the error of each S_t by the norm of that S_t."""
    assert actual.shape == expected.shape
    axes = (1, 2)
    return np.linalg.norm(actual - expected, axis=axes) / np.linalg.norm(expected, axis=axes)


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('timesteps', [(1, 2, 10, 37), (5,)])
def test_euler_equals_a_loop(x64, timesteps, loss):
    given = problem(stiffest=0.5)
    totals = evolved(*given, timesteps=timesteps, loss=loss, method='euler')
    assert relative_errors(totals, loop(*given, timesteps, loss)).max() < 1e-12


@pytest.mark.parametrize('loss', LOSSES)
def test_outputs_follow_from_the_residuals(x64, loss):
    """S_{t+1} - S_t is the residual of f^(t) = f^(0) - lr/N S_t H."""
    kernel, f0, y, lr = problem()
    totals = evolved(kernel, f0, y, lr, timesteps=tuple(range(1, 12)), loss=loss, method='euler')
    totals = np.concatenate([np.zeros((1, *f0.shape)), totals])
    for before, after in itertools.pairwise(totals):
        f = f0 - lr / f0.shape[1] * before @ kernel
        np.testing.assert_allclose(after - before, prediction(f, loss) - y, atol=1e-12)


def test_eigh_equals_the_summed_closed_form(x64):
    """Eq. (4), f^(u) = Y + exp(-lr u H / N) (f0 - Y), its residuals added up one by one."""
    kernel, f0, y, lr = problem(stiffest=3)
    values, vectors = np.linalg.eigh(kernel)
    total, found, timesteps = np.zeros_like(f0), [], (1, 7, 60)
    for u in range(max(timesteps)):
        decay = np.exp(-lr * u / f0.shape[1] * values)
        total = total + (f0 - y) @ (vectors * decay) @ vectors.T
        if u + 1 in timesteps:
            found.append(total)
    totals = evolved(kernel, f0, y, lr, timesteps=timesteps, loss='mse', method='eigh')
    assert relative_errors(totals, np.stack(found)).max() < 1e-12


def test_eigh_adds_up_directions_without_decay(x64):
    """A kernel of rank one leaves the other directions alone: there S_t = t (f0 - Y)."""
    _, f0, y, lr = problem()
    v = np.linspace(1, 2, f0.shape[1])
    kernel = np.outer(v, v)
    across = np.eye(len(v)) - kernel / (v @ v)
    (total,) = evolved(kernel, f0, y, lr, timesteps=(50,), loss='mse', method='eigh')
    np.testing.assert_allclose(total @ across, 50 * (f0 - y) @ across, rtol=1e-9, atol=1e-9)


def test_eigh_is_the_limit_of_euler(x64):
    kernel, f0, y, lr = problem(stiffest=0.1)

    def error(finer):
        given = (kernel, f0, y, lr / finer)
        options = {'timesteps': (20 * finer, 40 * finer), 'loss': 'mse'}
        return relative_errors(
            evolved(*given, method='eigh', **options), evolved(*given, method='euler', **options)
        ).max()

    assert error(100) < 1e-3
    assert error(200) == pytest.approx(error(100) / 2, rel=0.05)


def test_the_outputs_of_eigh_follow_from_its_integral(x64):
    """Eq. (4) as it stands; the sum of Eq. (5b) would relax them too far."""
    kernel, f0, y, lr = problem(stiffest=3)
    mask, timesteps = np.ones(f0.shape[1], bool), (1, 7, 60)
    options = {'timesteps': timesteps, 'loss': 'mse', 'method': 'eigh'}
    progress, reach = evolution.evolution(kernel, f0, y, mask, lr * CLASSES, **options)
    values, vectors = np.linalg.eigh(kernel)
    for t in timesteps:
        progress, at = reach(progress, jnp.int32(t))
        decay = np.exp(-lr * t / f0.shape[1] * values)
        f = f0 - lr / f0.shape[1] * np.asarray(at.integral) @ kernel
        np.testing.assert_allclose(f, y + (f0 - y) @ (vectors * decay) @ vectors.T, atol=1e-10)


# ------------------------------------------------------------------- the flow at its whole steps

SAMPLED = (5, 16, 17, 100, 800)


@functools.cache
def _summed_flow(loss, stiffest):
    """S_t = sum_{u<t} (prediction(f(u)) - Y) and the integral at SAMPLED, by SciPy."""
    kernel, f0, y, lr = problem(n=30, stiffest=stiffest)

    def slope(_, total):
        f = f0 - lr / f0.shape[1] * total.reshape(f0.shape) @ kernel
        return (prediction(f, loss) - y).ravel()

    end = max(SAMPLED)
    options = {'method': 'DOP853', 'rtol': 1e-10, 'atol': 1e-10, 't_eval': np.arange(end + 1)}
    integrals = solve_ivp(slope, (0, end), np.zeros(f0.size), **options).y.T
    sums = np.cumsum([slope(None, total) for total in integrals], axis=0)
    at = np.array(SAMPLED)
    return sums[at - 1].reshape(-1, *f0.shape), integrals[at].reshape(-1, *f0.shape)


@pytest.mark.parametrize('stiffest', [0.1, 1, 5])
@pytest.mark.parametrize('loss', LOSSES)
def test_sampled_adds_up_the_flow_at_whole_steps(x64, loss, stiffest):
    """Largest error 2026-11-23: 1.1 %, where the integrator is exact 0.03 % (3.6 % by the
    trapezoidal rule from the start on).
    """
    given = problem(n=30, stiffest=stiffest)
    sums, _ = _summed_flow(loss, stiffest)
    options = {'timesteps': SAMPLED, 'loss': loss, 'method': 'sampled'}
    assert relative_errors(evolved(*given, **options, tolerance=1e-6), sums).max() < 4e-4
    for dtype in (jnp.float64, jnp.float32):
        errors = relative_errors(evolved(*given, **options, dtype=dtype), sums)
        assert errors.max() < 0.015 and errors[-2:].max() < 0.004


def test_the_outputs_of_sampled_follow_from_its_integral(x64):
    """The first SAMPLED, stopped there: what comes after is not computed."""
    kernel, f0, y, lr = problem(n=30, stiffest=5)
    sums, integrals = _summed_flow('cross_entropy', 5)
    mask = np.ones(f0.shape[1], bool)
    options = {'timesteps': SAMPLED, 'method': 'sampled', 'tolerance': 1e-6}
    begin, reach = evolution.evolution(kernel, f0, y, mask, lr, **options)
    (flow, reached, *_), at = jax.jit(reach)(begin, jnp.int32(SAMPLED[0]))
    assert reached == evolution.SAMPLED_STEPS and flow.time < 2 * SAMPLED[0]
    assert relative_errors(np.asarray(at.integral)[None], integrals[:1]) < 1e-5
    assert relative_errors(sums[:1], integrals[:1]) > 0.02


# ---------------------------------------------------------------------- Runge-Kutta-Chebyshev


@functools.cache
def _stiff_flow(loss):
    """{t: S_t} at all timesteps that are asked for: one integration, which takes a second."""
    timesteps = sorted({*TIMESTEPS, *itertools.chain(*IRREGULAR)})
    flow = fine_flow(*problem(n=30, stiffest=3), timesteps, loss)
    return dict(zip(timesteps, flow, strict=True))


def stiff(loss, timesteps=TIMESTEPS):
    """A stiff kernel, one mode of lr lambda / N = 3 a step, and the exact flow under it."""
    return problem(n=30, stiffest=3), np.stack([_stiff_flow(loss)[t] for t in timesteps])


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('timesteps', [TIMESTEPS, *IRREGULAR], ids=str)
def test_rkc_follows_the_gradient_flow(x64, timesteps, loss):
    given, flow = stiff(loss, timesteps)
    totals = evolved(*given, timesteps=timesteps, loss=loss)
    assert relative_errors(totals, flow).max() < 0.01
    single = evolved(*given, timesteps=timesteps, loss=loss, dtype=jnp.float32)
    assert single.dtype == np.float32
    assert relative_errors(single, flow).max() < 0.01


@pytest.mark.parametrize('scale', [1, 1e8])
def test_a_kernel_in_float16_follows_the_flow(scale):
    """Whatever the size of its entries, of which float16 has none above 65,504."""
    (kernel, f0, y, lr), flow = stiff('cross_entropy')
    given, options = (scale * kernel, f0, y, lr / scale), {'timesteps': TIMESTEPS}
    single, short = (
        evolved(*given, **options, dtype=jnp.float32, float16_kernel=each) for each in (False, True)
    )
    assert short.dtype == np.float32
    assert relative_errors(short, flow).max() < 0.01
    assert relative_errors(short, single).min() > 1e-6  # it was in use


def test_without_a_matrix_there_is_no_kernel_in_float16():
    kernel, f0, y, lr = problem()
    with pytest.raises(ValueError, match='needs the matrix of the kernel'):
        evolution.evolution(
            lambda s: s @ kernel, f0, y, y[0] >= 0, lr, timesteps=(3,), float16_kernel=True
        )


@pytest.mark.parametrize('loss', LOSSES)
def test_the_error_follows_the_tolerance(x64, loss):
    """Where a step is a hundred times the transient, it is the estimate that keeps it in bounds."""
    given, flow = stiff(loss)

    def error(tolerance):
        options = {'timesteps': TIMESTEPS, 'loss': loss, 'tolerance': tolerance}
        return relative_errors(evolved(*given, **options), flow).max()

    assert error(1e-5) < 1e-4 < error(1e-2) < 0.01 < error(1.0)


def concealed(stiffest, excited, samples=24, seed=2):
    """H, f0, y, lr and the direction of a mode `stiffest` times as stiff as all others.

    Samples come in equal pairs, and the mode is what sets the first of a pair against the second:
    nothing in the residuals excites it but `excited`, by which the outputs of a pair differ.
    """
    kernel, f0, y, lr = problem(n=samples // 2, seed=seed, stiffest=0.3)
    pairs = np.hstack([np.eye(samples // 2)] * 2)
    odd = np.concatenate([np.ones(samples // 2), -np.ones(samples // 2)]) / np.sqrt(samples)
    largest = np.linalg.eigvalsh(kernel)[-1]
    whole = pairs.T @ kernel @ pairs + 2 * stiffest * largest * np.outer(odd, odd)
    f0, y = f0 @ pairs, y @ pairs
    return whole, f0 + excited * odd * np.sqrt(samples), y, lr


CONCEALED = (  # (how stiff, by how much it is excited)
    *((10, 0), (100, 0), (1000, 0)),
    *((4, 1e-6), (10, 1e-6), (100, 1e-6), (10, 1e-3), (100, 1e-3)),
)


@functools.cache
def _concealed_flows():
    """{(stiffest, excited): S_t at SPARK_TIMESTEPS}; nothing reaches a mode without excitement."""
    reached = sorted({pair if pair[1] else (0, 0) for pair in CONCEALED})
    *arrays, (lr, *_) = zip(*itertools.starmap(concealed, reached), strict=True)
    flows = fine_flow(*map(np.stack, arrays), lr, SPARK_TIMESTEPS, 'cross_entropy')
    return {pair: flows[:, i] for i, pair in enumerate(reached)}


def concealed_flow(stiffest, excited):
    return _concealed_flows()[(stiffest, excited) if excited else (0, 0)]


@jax.jit
def _applied(kernel, f0, y, lr):
    mask = jnp.ones(len(kernel), bool)
    return evolve(lambda s: s @ kernel, f0, y, mask, lr, timesteps=SPARK_TIMESTEPS)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.float64], ids=['float32', 'float64'])
@pytest.mark.parametrize(('stiffest', 'excited'), CONCEALED)
def test_a_mode_that_the_start_does_not_show_is_found(x64, stiffest, excited, dtype):
    """The kernel applied as a function, whose stiffest mode is orthogonal to the residual."""
    totals = _applied(*(np.asarray(a, dtype) for a in concealed(stiffest, excited)))
    assert relative_errors(np.asarray(totals), concealed_flow(stiffest, excited)).max() < 0.01


@pytest.mark.parametrize('method', ['rkc', 'sampled'])
def test_aggregators_at_once_take_the_steps_that_each_takes_alone(x64, method):
    """Lanes of one program: stiff, calm, with a concealed mode, without samples, hopeless."""
    stiff, calm, hidden = concealed(0, 0), concealed(2, 0.1), concealed(10, 1e-3)
    still = (np.zeros_like(stiff[0]), *stiff[1:])
    hopeless = (np.full_like(stiff[0], np.nan), *stiff[1:])
    given = (stiff, calm, hidden, still, hopeless, stiff)
    lanes = [np.stack(arrays) for arrays in zip(*given, strict=True)]
    masks = np.ones((6, stiff[0].shape[0]), bool)
    masks[5] = False

    def alone(h, f, y, lr, mask):
        return evolve(lambda s: s @ h, f, y, mask, lr, timesteps=(5, 100), method=method)

    single = jax.lax.map(lambda lane: alone(*lane), (*lanes, masks))
    together = jax.jit(jax.vmap(alone))(*lanes, masks)
    np.testing.assert_allclose(together, single, rtol=1e-7, atol=1e-7)  # rounding grows, too
    assert np.isfinite(together[:4]).all() and np.isnan(together[4]).all()
    residual = softmax(still[1]) - still[2]
    np.testing.assert_allclose(together[3], np.stack([5 * residual, 100 * residual]), rtol=1e-12)
    assert not together[5].any()


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('scale', [1e30, np.nan, np.inf])
def test_what_is_hopelessly_stiff_ends(loss, scale):
    kernel, f0, y, lr = problem()
    totals = evolved(kernel * scale, f0, y, lr, timesteps=(3, 40), loss=loss, dtype=jnp.float32)
    assert np.isnan(totals).all()


def test_a_step_beyond_all_numbers_is_taken_back():
    """Half-MSE is linear: what is not stable overflows, and shows no mode to follow."""
    kernel, f0, y, lr = concealed(1e5, 0)
    h, mask = jnp.asarray(kernel, jnp.float32), jnp.ones(len(kernel), bool)
    f, target = jnp.asarray(f0, jnp.float32), jnp.asarray(y, jnp.float32)
    run = jax.jit(
        lambda h: evolve(
            lambda s: s @ h, f, target, mask, lr / 50 * CLASSES, timesteps=(20,), loss='mse'
        )
    )
    calm, *_ = concealed(0, 0)
    flow = fine_flow(calm, f0, y, lr / 50, (20,), 'mse')
    assert relative_errors(np.asarray(run(h), float), flow).max() < 0.01


@pytest.mark.parametrize('near', [False, True])
def test_rkc_is_of_second_order(x64, near):
    """Half the step, a quarter of the error: on a smooth problem, steps of the same stages, also
    where these have the stiffest mode alone and extrapolate what the others add."""
    kernel, f0, y, lr = problem(stiffest=0.05)
    rate = lr / f0.shape[1]
    exact = fine_flow(kernel, f0, y, lr, (64,), 'cross_entropy')[0]
    values, vectors = np.linalg.eigh(kernel)
    stiffest = values[-1] * np.outer(vectors[:, -1], vectors[:, -1])

    def residual(image):
        return jax.nn.softmax(f0 - image, axis=0) - y

    flow = rkc.Flow(
        lambda s: rate * s @ kernel,
        residual,
        lambda image, slope, _: image,
        jnp.array([64.0]),
        near=(lambda s: rate * s @ stiffest) if near else None,
        table=jnp.asarray(rkc.COEFFICIENTS),
    )

    @jax.jit
    def error(length):
        def advance(_, at):
            total = rkc._stages(flow, at, length, jnp.int32(3))
            image, last = flow.linear(total), at.time - at.last_time
            rest = at.rest and at.rest.moved(image - flow.near(total), length, last)
            return at._replace(
                time=at.time + length,
                last_time=at.time,
                total=total,
                slope=residual(image),
                rest=rest,
            )

        begin, _ = rkc.integration(flow, jnp.zeros_like(f0), residual(jnp.zeros_like(f0)))
        steps = jnp.int32(64 // length)
        return jnp.linalg.norm(jax.lax.fori_loop(0, steps, advance, begin).total - exact)

    assert 3 < error(4.0) / error(2.0) < 5


# ------------------------------------------------------------------------- kernels of low rank


def large(seed=0):
    """A problem with as many samples as low rank is for, its spectrum that of NTK-DFL's kernels:
    of Fashion-MNIST (2026-12-01), times 800 lr / N, 2200, 870, 370, 190 and from there on 670 / k.
    """
    n, lr = LARGE, 0.1
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(np.column_stack([np.ones(n), rng.normal(size=(n, n - 1))]))
    spectrum = np.array([2200, 870, 370, 190, *(670 / np.arange(5, n + 1))]) / 800 * n / lr
    y = np.eye(CLASSES)[rng.integers(CLASSES, size=n)].T
    kernel = vectors * spectrum @ vectors.T
    return (kernel + kernel.T) / 2, 0.1 * rng.normal(size=(CLASSES, n)), y, lr


@functools.cache
def _large_flow(loss):
    return fine_flow(*large(), TIMESTEPS, loss, substeps=8)


@pytest.mark.parametrize('loss', LOSSES)
def test_stages_by_low_rank_follow_the_flow(x64, loss):
    for dtype in (jnp.float32, jnp.float64):
        totals = evolved(*large(), timesteps=TIMESTEPS, loss=loss, dtype=dtype)
        assert relative_errors(totals, _large_flow(loss)).max() < 0.01
    finer = evolved(*large(), timesteps=TIMESTEPS, loss=loss, tolerance=1e-5)
    assert relative_errors(finer, _large_flow(loss)).max() < 1e-4


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('rest', [400, 20_000])
def test_a_flat_spectrum_is_followed_all_the_same(monkeypatch, loss, rest):
    """What low rank leaves is as stiff as what it takes: rate times 800, of all modes but one."""
    kernel, f0, y, lr = large()
    _, vectors = np.linalg.eigh(kernel)
    spectrum = np.array([*(LARGE - 1) * [rest], max(rest, 2200)]) / 800 * LARGE / lr
    given = vectors * spectrum @ vectors.T, f0, y, lr
    options = {'timesteps': TIMESTEPS, 'loss': loss, 'dtype': jnp.float32}
    totals = evolved(*given, **options)
    monkeypatch.setattr(evolution, 'LOW_RANK_SAMPLES', LARGE + 1)
    whole = evolved(*given, **options, tolerance=1e-3)
    assert relative_errors(totals, whole).max() < 0.02


def test_what_low_rank_leaves_is_a_parabola_in_time():
    """Extrapolated by three values of it; a straight line would not be of third order."""
    value = lambda t: 2 - 3 * t + 0.5 * t**2  # noqa: E731
    rest, last, now = rkc.Rest(value(0.0), -3.0, 0.0), 0.0, 0.0
    for length in (0.5, 2.0, 1.0):
        rest, last, now = rest.moved(value(now + length), length, last), length, now + length
        assert rest.after(1.5, last) == pytest.approx(value(now + 1.5))


@pytest.mark.parametrize('short', [False, True])
def test_padding_and_lanes_leave_the_flow_by_low_rank(short):
    """A wide kernel with garbage in its padding, one without samples, and one alone."""
    kernel, f0, y, lr = large()
    wide = LARGE + 60
    mask = np.arange(wide) % 7 != 0
    mask[np.flatnonzero(mask)[LARGE:]] = False
    padded = np.full((wide, wide), np.nan, np.float32)
    padded[np.ix_(mask, mask)] = kernel
    padded_f0, padded_y = np.full((2, CLASSES, wide), 1e3, np.float32)
    padded_f0[:, mask], padded_y[:, mask] = f0, y

    def follow(mask):
        options = {'timesteps': (100, 800), 'float16_kernel': short}
        return evolve(padded, padded_f0, padded_y, mask, lr, **options)

    totals = np.asarray(jax.jit(jax.vmap(follow))(np.stack([mask, np.zeros_like(mask)])))
    exact = _large_flow('cross_entropy')[[0, 7]]
    assert relative_errors(totals[0][..., mask], exact).max() < 0.01
    assert not totals[0][..., ~mask].any() and not totals[1].any()


def test_low_rank_takes_a_third_of_the_products(monkeypatch):
    """Of the exact kernel, one a step."""

    def products():
        kernel, f0, y, lr = large()
        mask = np.ones(len(kernel), bool)
        begin, reach = evolution.evolution(kernel, f0, y, mask, lr, timesteps=TIMESTEPS)
        return reach(begin, jnp.int32(TIMESTEPS[-1]))[0].products

    by_low_rank = products()
    monkeypatch.setattr(evolution, 'LOW_RANK_SAMPLES', LARGE + 1)
    assert 10 < by_low_rank < products() / 3


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.float64])
def test_low_rank_leaves_what_is_small(x64, dtype):
    kernel, *_ = large()
    product = jax.jit(low_rank.low_rank(jnp.asarray(kernel, dtype)))
    rest = kernel - np.asarray(product(jnp.eye(len(kernel), dtype=dtype)))
    values, exact = np.linalg.eigvalsh(rest), np.linalg.eigvalsh(kernel)
    assert values[-1] < 2 * exact[-low_rank.RANK]
    assert values[0] > -1e-3 * exact[-low_rank.RANK]


@pytest.mark.parametrize('rank', [0, 1, 5])
def test_low_rank_of_a_singular_kernel_is_the_kernel(rank):
    tall = np.random.default_rng(0).normal(size=(40, rank)).astype(np.float32)
    kernel = tall @ tall.T
    found = low_rank.low_rank(jnp.asarray(kernel))(jnp.eye(40))
    np.testing.assert_allclose(found, kernel, atol=1e-2 * max(1, np.abs(kernel).max()))


@pytest.mark.parametrize('loss', LOSSES)
def test_rkc_stays_finite_far_beyond(loss):
    """A mode a thousand times stiffer than an explicit step bears, in float32."""
    kernel, f0, y, lr = problem(n=20, stiffest=1e3)
    totals = evolved(kernel, f0, y, lr, timesteps=TIMESTEPS, loss=loss, dtype=jnp.float32).astype(
        float
    )
    assert np.isfinite(totals).all()
    f = f0 - lr / f0.shape[1] * totals @ kernel
    start = np.asarray(evolution.sample_losses(f0, y, loss)).mean()
    for outputs in f:
        assert np.asarray(evolution.sample_losses(outputs, y, loss)).mean() < start


@pytest.mark.parametrize('short', [False, True], ids=['float32', 'float16'])
@pytest.mark.parametrize('method', ['rkc', 'sampled'])
def test_a_network_without_samples_stays_where_it_is(method, short):
    kernel, f0, y, lr = problem()
    options = {'timesteps': TIMESTEPS, 'method': method, 'float16_kernel': short}
    options['mask'] = np.zeros(f0.shape[1], bool)
    assert not evolved(kernel, f0, y, lr, **options).any()


# ---------------------------------------------------------------------------- padding, errors


@pytest.mark.parametrize(
    ('method', 'loss'),
    [(m, loss) for m in ('rkc', 'sampled', 'euler') for loss in LOSSES] + [('eigh', 'mse')],
)
def test_padding_changes_nothing(x64, method, loss):
    kernel, f0, y, lr = problem()
    options = {'timesteps': (3, 40), 'method': method, 'loss': loss}
    expected = evolved(kernel, f0, y, lr, **options)
    mask = np.ones(25, bool)
    mask[[0, 6, 7, 23, 24]] = False
    # What stands in the padding is never read, whatever it is.
    garbage = np.random.default_rng(1).choice([1e3, -1e12, np.nan, np.inf], (25, 25))
    wide, padded_f0, padded_y = garbage, *np.full((2, CLASSES, 25), 1e3)
    wide[np.ix_(mask, mask)], padded_f0[:, mask], padded_y[:, mask] = kernel, f0, y
    totals = evolved(wide, padded_f0, padded_y, lr, mask=mask, **options)
    assert not totals[..., ~mask].any()
    np.testing.assert_allclose(totals[..., mask], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'method': 'rk4'}, r"unknown evolution 'rk4'; choose one of rkc, sampled, euler, eigh"),
        ({'loss': 'hinge'}, r"unknown loss 'hinge'; choose one of cross_entropy, mse"),
        ({'method': 'eigh', 'loss': 'cross_entropy'}, r'half-MSE; use rkc, sampled or euler'),
        ({'timesteps': ()}, r'positive and increasing, got \(\)'),
        ({'timesteps': (0, 3)}, r'positive and increasing, got \(0, 3\)'),
        ({'timesteps': (3, 3)}, r'positive and increasing, got \(3, 3\)'),
        ({'timesteps': (8, 3)}, r'positive and increasing, got \(8, 3\)'),
    ],
)
def test_settings_that_cannot_be_followed(change, message):
    settings = {'timesteps': (3, 8), 'loss': 'cross_entropy', 'method': 'rkc'}
    evolution.check(**settings)
    with pytest.raises(ValueError, match=message) as caught:
        evolution.check(**settings | change)
    assert '\n' not in str(caught.value)


# ----------------------------------------------------------- losses that have no closed form


def huber(f, y):
    errors = jnp.abs(f - y)
    return jnp.sum(jnp.where(errors < 0.5, errors**2 / 2, 0.5 * errors - 0.125), axis=0)


def focal(f, y):
    losses = -jnp.sum(jax.nn.log_softmax(f, axis=0) * y, axis=0)
    return (1 - jnp.exp(-losses)) ** 2 * losses


def fourth_power(f, y):
    return jnp.sum((f - y) ** 4, axis=0) / 4


GRADIENTS = {  # of the losses by the outputs
    huber: lambda f, y: jnp.clip(f - y, -0.5, 0.5),
    fourth_power: lambda f, y: (f - y) ** 3,
    focal: jax.grad(lambda f, y: focal(f, y).sum()),
}


@pytest.mark.parametrize('stiffest', [0.05, 1.5])
@pytest.mark.parametrize('loss', GRADIENTS)
def test_any_loss_evolves_by_its_gradient(x64, loss, stiffest):
    """dS/dt = grad l(f0 - lr/N S H), against an integration by SciPy and a loop of its samples."""
    kernel, f0, y, lr = problem(stiffest=stiffest)
    gradient, rate = jax.jit(GRADIENTS[loss]), lr / f0.shape[1] * kernel

    def slope(_, s):
        return np.asarray(gradient(f0 - s.reshape(f0.shape) @ rate, y)).ravel()

    timesteps = (1, 7, 50, 300)
    options = {'rtol': 1e-9, 'atol': 1e-11, 't_eval': timesteps}
    flow = solve_ivp(slope, (0, 300), np.zeros(f0.size), 'LSODA', **options).y.T
    flow = flow.reshape(len(timesteps), *f0.shape)
    found = evolved(kernel, f0, y, lr, timesteps=timesteps, loss=loss, method='rkc')
    assert relative_errors(found, flow).max() < 0.02
    euler = evolved(kernel, f0, y, lr / 50, timesteps=(50, 2500), loss=loss, method='euler')
    assert relative_errors(euler / 50, flow[[0, 2]]).max() < 0.05


@pytest.mark.parametrize('method', ['rkc', 'sampled', 'euler'])
def test_the_gradient_of_a_known_loss_evolves_as_its_residual(x64, method):
    given = problem()

    def cross_entropy(f, y):
        return evolution.sample_losses(f, y, 'cross_entropy')

    found, known = (
        evolved(*given, timesteps=TIMESTEPS, loss=loss, method=method)
        for loss in (cross_entropy, 'cross_entropy')
    )
    assert relative_errors(found, known).max() < (1e-12 if method == 'euler' else 2e-3)


def test_eigh_is_for_no_other_loss():
    with pytest.raises(ValueError, match='eigh is the closed form of half-MSE'):
        evolution.check((3,), huber, 'eigh')
