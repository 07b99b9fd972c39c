"""What benchmarks/throughput.py says of one algorithm."""

import json

import pytest
from helpers import started


@pytest.mark.integration
def test_steps_and_times_of_a_gradient_round(tmp_path):
    clients, samples = 8, 20
    # A process of its own: benchmarks define flags of the same names.
    flags = ('--worker=dpsgd', '--rounds=1', f'--clients={clients}', f'--samples={samples}')
    done = started('benchmarks.throughput', *flags, '--degree=3', cwd=tmp_path).outcome()
    assert done.status == 0, done
    reported = json.loads(done.out.splitlines()[-1])

    assert reported['steps'] == clients * samples / 10
    assert reported['timed'] == 1
    assert min(reported[name] for name in ('compile', 'seconds', 'peak', 'product')) > 0
