"""The operations that benchmarks/throughput.py counts, against the same by hand."""

import json
import subprocess
import sys

import pytest


def test_operations_of_a_gradient_round():
    clients, samples, degree = 8, 20, 3
    # A process of its own: benchmarks define flags of the same names.
    command = [sys.executable, '-m', 'benchmarks.throughput', '--worker=dpsgd', '--rounds=1']
    command += [f'--clients={clients}', f'--samples={samples}', f'--degree={degree}']
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])

    first, second = 784 * 100, 100 * 10  # no gradient of the images
    training = clients * samples * (4 * first + 6 * second)
    averages = 2 * (degree + 1) * clients * (first + second + 110)
    assert found['steps'] == clients * samples / 10
    assert found['flops'] == pytest.approx(training + averages, rel=0.06)
    assert found['timed'] == 1
    assert min(found[name] for name in ('compile', 'seconds', 'peak', 'product')) > 0
