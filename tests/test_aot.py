"""Rounds compiled for accelerators that are not there (benchmarks/aot.py says what to install)."""

import importlib.util
import subprocess
import sys

import pytest

from dfl_jax.execution import aggregator_bytes, client_bytes
from dfl_jax.execution.memory import ROUND_COPIES
from dfl_jax.models import MLP, bind

COMPILERS = {'cuda': 'jax_cuda12_plugin', 'tpu': 'libtpu'}
PLATFORMS = {'cuda': 'gpu', 'tpu': 'tpu'}
CLIENTS, SAMPLES, MEMBERS = 300, 197, 6
MODEL = bind(MLP(10), (28, 28, 1))


@pytest.mark.aot
@pytest.mark.parametrize('platform', COMPILERS)
def test_rounds_need_no_more_memory_than_planned(platform):
    """All aggregators or clients at once, and the copies that a round makes of their weights."""
    if importlib.util.find_spec(COMPILERS[platform]) is None:
        pytest.skip(f'no {COMPILERS[platform]} is installed')
    command = ['-m', 'benchmarks.aot', f'--platform={platform}', '--methods=ntk_dfl,dpsgd,dfedavg']
    table = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    rows = [line.strip('| ').split(' | ') for line in table.stdout.splitlines() if '|' in line]
    temporary = {name: float(gib) * 2**30 for name, _, _, gib, *_ in rows[2:]}
    planned = {
        'ntk_dfl': aggregator_bytes(MEMBERS * SAMPLES, MODEL, PLATFORMS[platform]),
        'dpsgd': client_bytes(SAMPLES, MODEL) + ROUND_COPIES * 4 * MODEL.size,
        'dfedavg': client_bytes(SAMPLES, MODEL, 20) + ROUND_COPIES * 4 * MODEL.size,
    }
    assert temporary.keys() == planned.keys()
    assert all(temporary[name] <= CLIENTS * planned[name] for name in planned)
    assert temporary['ntk_dfl'] > CLIENTS * planned['ntk_dfl'] / 2
