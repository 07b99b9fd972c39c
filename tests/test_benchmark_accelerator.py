"""The queue of benchmarks/accelerator.py, what it writes, and one call of it in small."""

import json
import sys
import time

import pytest
from helpers import started

from benchmarks import _accelerator_tables as tables
from benchmarks._profile import by_kernel
from benchmarks._queue import Part, Queue, processes

SHARED = """
import json, os, sys
for name in sys.argv[1].split(','):
    print('a warning of somebody')
    print(json.dumps({'part': name, 'begun': True}), flush=True)
    if 'dies' in name:
        print('killed by a signal', file=sys.stderr, flush=True)
        os._exit(9)
    row = {'error': 'XlaRuntimeError: RESOURCE_EXHAUSTED'} if 'full' in name else {'ms': 2.5}
    print(json.dumps({'part': name} | row), flush=True)
"""


def alone(name, code, seconds=0, **more):
    return Part(name, seconds, (sys.executable, '-c', code), **more)


def measured(tmp_path, parts, seconds=60, code=SHARED):
    of = Queue(tmp_path, time.monotonic() + seconds, (sys.executable, '-c', code))
    return dict(processes(parts, of))


def test_what_fails_or_dies_does_not_end_the_queue(tmp_path):
    shared = [Part(name, 0) for name in ('a', 'full', 'b', 'dies', 'c', 'dies-again')]
    good = alone('good', 'print(\'{"ms": 1.5}\')')
    bad = alone('bad', "raise MemoryError('16 GiB')")
    silent = alone('silent', 'pass')
    rows = measured(tmp_path, [bad, *shared, silent, good, Part('d', 0)])
    assert list(rows) == ['bad', *(part.name for part in shared), 'silent', 'good', 'd']
    assert rows['bad']['error'] == 'MemoryError: 16 GiB'
    assert rows['full'] == {'error': 'XlaRuntimeError: RESOURCE_EXHAUSTED'}
    assert rows['a'] == rows['b'] == rows['c'] == rows['d'] == {'ms': 2.5}
    assert rows['dies'] == rows['dies-again'] == {'error': 'killed by a signal'}
    assert 'nothing to read' in rows['silent']['error']
    assert rows['good']['ms'] == 1.5


def test_a_process_that_never_begins_costs_one_part(tmp_path):
    rows = measured(
        tmp_path, [Part('a', 0), Part('b', 0)], code="import sys; sys.exit('no device')"
    )
    assert rows == {'a': {'error': 'no device'}, 'b': {'error': 'no device'}}


def test_what_does_not_fit_is_not_run_and_a_share_of_the_time_is_not_exceeded(tmp_path):
    (tmp_path / 'goes_on').mkdir()
    begins = 'import time, pathlib; pathlib.Path("{}").write_text("7"); time.sleep(60)'
    file = tmp_path / 'goes_on' / 'rounds'
    goes_on = alone(
        'goes_on',
        begins.format(file),
        share=0.4,
        read=lambda folder, out: {'rounds': int((folder / 'rounds').read_text()), 'goes_on': 9},
    )
    endless = alone('endless', 'import time; time.sleep(60)')
    later = alone('later', "print('{}')")
    began = time.monotonic()
    parts = [alone('long', "print('{}')", seconds=1e3), goes_on, endless, later]
    rows = measured(tmp_path, parts, seconds=8)
    assert time.monotonic() - began < 30
    assert 'it takes 1000' in rows['long']['not_run']
    assert rows['goes_on']['rounds'] == 7 and rows['goes_on']['wall'] < 8
    assert 'interrupted after' in rows['endless']['not_run']
    assert rows['later'] == {'not_run': 'no time was left'}


def test_kernels_are_summed_by_name_the_longest_first():
    calls = [('gemm', 3e6), ('copy', 1e6), ('gemm', 4e6), ('tiny', 5e5), ('small', 1.5e6)]
    found = by_kernel(calls, top=2)
    assert [(each['kernel'], each['calls'], each['ms']) for each in found] == [
        ('gemm', 2, 7.0),
        ('small', 1, 1.5),
        ('others', 2, 1.5),
    ]
    assert sum(each['share'] for each in found) == pytest.approx(1)


def test_the_page_has_numbers_kernels_and_what_is_missing():
    kernels = by_kernel([('gemm|x', 3e6)])
    parts = {
        'methods/dpsgd': {'ms': 6.123, 'arguments': 2**29},
        'methods/spark': {'error': 'out of memory'},
        'trace/ntk_dfl': {'kernels': kernels},
        'clients/10000-ntk_dfl': {'not_run': 'no time was left'},
    }
    about = {'device': 'gpu X', 'jax': '1.2', 'memory': None}
    text = tables.page({'about': about, 'command': 'c', 'date': '2026-11-29', 'parts': parts})
    assert 'device gpu X; jax 1.2' in text and 'memory None' not in text
    assert '| dpsgd | 6.12 | 0.50 |' in text and '* spark failed: out of memory' in text
    assert '| `gemm/x` | 1 | 3 | 100.0% |' in text
    assert '* 10000-ntk_dfl not run: no time was left' in text


@pytest.mark.slow
@pytest.mark.integration
def test_one_command_measures_and_the_next_goes_on(tmp_path):
    """In small; without data, on the handwritten digits."""
    some = '--parts=rounds/ntk_dfl-bfloat16,methods/dpsgd,trace/*,table8/dec_fedavg-iid'
    flags = ('--small', '--minutes=15', f'--out={tmp_path}/out')
    first = started('benchmarks.accelerator', *flags, '--parts=methods/dpsgd', cwd=tmp_path)
    assert first.outcome().status == 0
    done = started('benchmarks.accelerator', *flags, some, cwd=tmp_path).outcome()
    assert done.status == 0 and 'methods/dpsgd' not in done.out, done
    content = json.loads((tmp_path / 'out/accelerator.json').read_text())
    parts = content['parts']
    assert parts.keys() == {'methods/dpsgd', *(some.removeprefix('--parts=').split(','))} - {
        'trace/*'
    } | {'trace/ntk_dfl'}
    assert not any({'error', 'not_run'} & row.keys() for row in parts.values()), parts
    assert parts['methods/dpsgd']['ms'] > 0 and parts['methods/dpsgd']['temporary'] > 0
    run = parts['rounds/ntk_dfl-bfloat16']
    assert (
        run['rounds'] == 2
        and 0 < run['accuracy'] <= 1
        and run['peak'] > 2**20 < run['wall'] * 2**20
    )
    assert parts['table8/dec_fedavg-iid']['rounds'] == 2
    shares = [each['share'] for each in parts['trace/ntk_dfl']['kernels']]
    assert sum(shares) == pytest.approx(1) and shares[:-1] == sorted(shares[:-1], reverse=True)
    assert content['about']['device'].startswith('cpu') and 'jax' in content['about']
    assert (tmp_path / 'out/accelerator.md').read_text().count('## ') == 4
    other = started('benchmarks.accelerator', '--minutes=1', f'--out={tmp_path}/out', cwd=tmp_path)
    assert 'choose another --out' in other.outcome().err
