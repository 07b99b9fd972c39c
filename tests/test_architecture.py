"""The imports of dfl_jax run downwards, and docs/architecture.md shows them as they are."""

import re
from graphlib import TopologicalSorter

import architecture
import pytest

MODULES = architecture.imports()
PACKAGES = architecture.arrows(MODULES)


@pytest.mark.parametrize('parts', [architecture.PACKAGES, architecture.CLI], ids=['all', 'cli'])
def test_no_arrow_runs_up(parts):
    order = [name for name, *_ in parts]
    found = architecture.arrows(MODULES, below=1 if parts is architecture.PACKAGES else 2)
    assert found.keys() == set(order), 'a package that architecture.py does not name, or too many'
    for name, others in found.items():
        above = [other for other in others if order.index(other) > order.index(name)]
        assert not above, f'{name} imports {above}, which stand above it'


def test_no_files_import_each_other_in_a_circle():
    tuple(TopologicalSorter(MODULES).static_order())


def test_imports_in_functions_and_for_types_count(tmp_path):
    package = tmp_path / 'dfl_jax'
    package.mkdir()
    (package / '__init__.py').write_text('')
    (package / 'base.py').write_text('import jax\n')
    (package / 'late.py').write_text('def f():\n    from dfl_jax.base import Graph\n')
    (package / 'typed.py').write_text('if TYPE_CHECKING:\n    from dfl_jax import base, late\n')
    (package / 'whole.py').write_text('import dfl_jax.typed as t\n')
    assert architecture.arrows(architecture.imports(tmp_path)) == {
        'base': set(),
        'late': {'base'},
        'typed': {'base', 'late'},
        'whole': {'typed'},
    }


def test_the_page_has_the_imports_as_they_are():
    written = (architecture.DOCS / 'architecture.md').read_text()
    assert written == architecture.page(), 'run `python -m tests.architecture`'
    rows = re.findall(r'^\| `(\w+)` \|.*\| ([\w, ]*) \|$', written, flags=re.MULTILINE)
    drawn = {name: set(filter(None, others.split(', '))) for name, others in rows}
    assert {name: drawn[name] for name in PACKAGES} == PACKAGES


def test_the_picture_has_the_arrows_that_do_not_follow_from_others():
    text = (architecture.DOCS / 'architecture.svg').read_text()
    drawn = set(re.findall(r'id="(\w+)-&gt;(\w+)"', text))
    assert drawn == architecture.direct(PACKAGES), 'run `python -m tests.architecture`'


def test_the_files_to_read_are_there():
    text = (architecture.DOCS / 'architecture.md').read_text()
    for name in re.findall(r'`([\w/]+/\w+\.py)`', text):
        top = architecture.ROOT if name.startswith('tests/') else architecture.ROOT / 'dfl_jax'
        assert (top / name).is_file(), name
