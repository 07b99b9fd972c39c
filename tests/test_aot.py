"""Rounds compiled for accelerators that are not there (benchmarks/aot.py says what to install)."""

import importlib.util

import jax
import pytest

from benchmarks import _common as common
from benchmarks import aot
from dfl_jax.execution import aggregator_bytes, client_bytes
from dfl_jax.execution.memory import ROUND_COPIES

COMPILERS = {'cuda': 'jax_cuda12_plugin', 'tpu': 'libtpu'}
PLATFORMS = {'cuda': 'gpu', 'tpu': 'tpu'}
pytestmark = pytest.mark.aot


@pytest.fixture(params=COMPILERS)
def compiler(request):
    """A platform and a described device of it."""
    if importlib.util.find_spec(COMPILERS[request.param]) is None:
        pytest.skip(f'no {COMPILERS[request.param]} is installed')
    return request.param, jax.sharding.SingleDeviceSharding(aot.device(request.param))


def test_a_round_of_ntk_dfl_needs_no_more_than_planned(compiler):
    """All 300 aggregators at once: what `--chunk` is chosen by bounds what XLA asks for."""
    platform, sharding = compiler
    _, program = aot.compiled_round('ntk_dfl', platform, sharding)
    planned = 300 * aggregator_bytes(6 * aot.SAMPLES, common.mlp(), PLATFORMS[platform])
    assert 0.5 * planned < program.memory_analysis().temp_size_in_bytes <= planned


@pytest.mark.parametrize(('name', 'epochs'), [('dpsgd', 1), ('dfedavg', 20)])
def test_a_gradient_round_needs_no_more_than_planned(compiler, name, epochs):
    """All 300 clients at once, and the copies that a round makes of their weights."""
    platform, sharding = compiler
    _, program = aot.compiled_round(name, platform, sharding)
    model = common.mlp()
    each = client_bytes(aot.SAMPLES, model, epochs) + ROUND_COPIES * 4 * model.size
    assert program.memory_analysis().temp_size_in_bytes <= 300 * each
