"""What benchmarks/throughput.py says of one algorithm."""

import json
import subprocess
import sys


def test_steps_and_times_of_a_gradient_round():
    clients, samples = 8, 20
    # A process of its own: benchmarks define flags of the same names.
    command = [sys.executable, '-m', 'benchmarks.throughput', '--worker=dpsgd', '--rounds=1']
    command += [f'--clients={clients}', f'--samples={samples}', '--degree=3']
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    reported = json.loads(done.stdout.splitlines()[-1])

    assert reported['steps'] == clients * samples / 10
    assert reported['timed'] == 1
    assert min(reported[name] for name in ('compile', 'seconds', 'peak', 'product')) > 0
