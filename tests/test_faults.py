"""The deliberate faults of tests/faults are faults of this program."""

import collections
from pathlib import Path

import pytest

from tests.faults import ALL

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize('fault', ALL, ids=lambda fault: fault.name.replace(' ', '_'))
def test_a_fault_still_applies(fault):
    text = (ROOT / fault.file).read_text()
    assert text.count(fault.old) == 1 and fault.new != fault.old
    changed = text.replace(fault.old, fault.new)
    compile(changed, fault.file, 'exec')
    file, _, test = fault.test.partition('::')
    test = test.partition('[')[0]  # of one case
    assert f'def {test}' in (ROOT / 'tests' / file).read_text()


def test_there_are_many_and_they_are_spread():
    assert len({fault.name for fault in ALL}) == len(ALL) >= 85
    packages = collections.Counter(fault.file.split('/')[1] for fault in ALL)
    assert len(packages) >= 12
