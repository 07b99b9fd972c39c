"""Rounds compiled for accelerators that are not there (benchmarks/aot.py says what to install)."""

import importlib.util

import jax
import pytest

from benchmarks import _common as common
from benchmarks import aot
from dfl_jax.execution import aggregator_bytes

COMPILERS = {'cuda': 'jax_cuda12_plugin', 'tpu': 'libtpu'}
PLATFORMS = {'cuda': 'gpu', 'tpu': 'tpu'}
SAMPLES = 6 * 197  # N~ of an aggregator and its five neighbours

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
    planned = 300 * aggregator_bytes(SAMPLES, common.mlp(), PLATFORMS[platform])
    assert 0.5 * planned < program.memory_analysis().temp_size_in_bytes <= planned


@pytest.mark.parametrize('name', ['dpsgd', 'dfedavg'])
def test_a_gradient_round_needs_no_more_than_two_copies_of_the_state(compiler, name):
    platform, sharding = compiler
    _, program = aot.compiled_round(name, platform, sharding)
    memory, state = program.memory_analysis(), 300 * 4 * common.mlp().size
    # Tiles of 8 x 128 and the samples of a batch make a TPU's arrays larger
    copies = {'cuda': 3, 'tpu': 8}[platform]
    assert memory.temp_size_in_bytes <= copies * state
