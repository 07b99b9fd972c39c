"""A wheel owns one name, and its commands work from any directory."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers import started

from dfl_jax import flagfiles, paper_folder
from dfl_jax.cli.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
CELL = 'ntk_dfl/figure2/dpsgd-alpha0.1.flags'
SMALL = [
    *('--dataset=synthetic', '--clients=10', '--train_samples=200', '--rounds=1'),
    *('--client_eval_samples=50', '--nocheckpoint', '--noprogress'),
]


def python(*arguments, cwd, path=None):
    """What a process printed; its modules come from the folder `path` first, where one is named."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | ({'PYTHONPATH': str(path)} if path else {}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """A folder that holds what a wheel installs."""
    pytest.importorskip('hatchling')
    folder = tmp_path_factory.mktemp('wheel')
    python('-m', 'hatchling', 'build', '-t', 'wheel', '-d', str(folder), cwd=ROOT)
    (wheel,) = folder.glob('*.whl')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / 'site')
    return folder / 'site'


@pytest.fixture
def home(tmp_path):
    """A user's folder, with a folder `experiments` that is not ours."""
    (tmp_path / 'experiments').mkdir()
    (tmp_path / 'experiments' / '__init__.py').write_text("raise RuntimeError('the user\\'s own')")
    return tmp_path


def test_a_wheel_owns_one_name(installed):
    package, metadata = sorted(file.name for file in installed.iterdir())
    assert package == 'dfl_jax'
    assert re.fullmatch(r'dfl_jax-\d+\.\d+(\.\d+)?(\.dev\d+)?\.dist-info', metadata)
    version = python('-c', 'import dfl_jax; print(dfl_jax.__version__)', cwd=installed)
    assert metadata == f'dfl_jax-{version.strip()}.dist-info'
    script = (installed / metadata / 'entry_points.txt').read_text()
    assert script.split() == ['[console_scripts]', 'dfl-jax', '=', 'dfl_jax.cli.__main__:main']


def test_a_wheel_has_the_papers(installed):
    tracked = {
        str(file.relative_to(paper_folder.CHECKOUT))
        for kind in ('*.flags', '*.json', '*.md', '*.edges', '*/*.py')
        for file in paper_folder.CHECKOUT.glob(f'*/**/{kind}')
    }
    program = ROOT / 'dfl_jax' / 'papers'  # its modules lie beside them
    tracked |= {str(file.relative_to(program)) for file in program.rglob('*.py')}
    home = installed / 'dfl_jax' / 'papers'
    assert {str(f.relative_to(home)) for f in home.rglob('*') if f.is_file()} == tracked
    assert CELL in tracked


def test_a_wheel_has_the_sonnets(installed):
    assert (installed / 'dfl_jax' / 'data' / 'sonnets.txt').stat().st_size > 10_000


@pytest.mark.integration
def test_the_commands_of_a_wheel_beside_a_folder_of_the_same_name(installed, home):
    (home / 'own.flags').write_text(f'--flagfile=experiments/{CELL}\n--alpha=0.3\n')
    start = ('-c', 'from dfl_jax.cli.__main__ import main; main()')
    given = ('run', '--flagfile=own.flags', *SMALL, '--out=out')
    python(*start, *given, cwd=home, path=installed)
    settings = json.loads((home / 'out' / 'config.json').read_text())['settings']
    assert settings['alpha'] == 0.3 and settings['partition'] == 'dirichlet'
    assert (home / 'out' / 'done').exists()


def test_the_citation_has_the_version_that_the_changes_lead_to():
    version = re.search(
        r'(?:^## \[|^To become )(\d+\.\d+\.\d+)', (ROOT / 'CHANGELOG.md').read_text(), re.M
    )
    assert f'\nversion: {version[1]}\n' in (ROOT / 'CITATION.cff').read_text()


def test_a_flagfile_is_found_here_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = paper_folder.PAPERS / CELL
    for name in (CELL, f'experiments/{CELL}', f'./experiments/{CELL}', str(shipped)):
        assert flagfiles.found_file(name) == str(shipped)
    (tmp_path / CELL).parent.mkdir(parents=True)
    (tmp_path / CELL).write_text('--rounds=3\n')
    assert flagfiles.found_file(CELL) == CELL
    assert flagfiles.with_flagfiles(['--flagfile', CELL]) == ['--rounds=3']
    (tmp_path / 'own').write_text(f'--flagfile=experiments/{CELL}\n')
    assert '--algorithm=dpsgd' in flagfiles.with_flagfiles(['--flagfile=own'])
    for name in ('absent.flags', 'experiments/absent.flags', '../' + CELL, 'ntk_dfl/figure2'):
        with pytest.raises(ValueError, match=f'{name} cannot be read'):
            flagfiles.with_flagfiles([f'--flagfile={name}'])


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_keeps_its_name_in_the_documents(name):
    done = started(name, '--help', cwd=ROOT).outcome()
    assert done.status == 0 and done.out.strip(), done


def test_the_name_of_a_command_comes_first():
    first = started('dfl_jax.cli', 'report', '--help', cwd=ROOT).outcome()
    assert first.status == 0 and first.out == started('report', '--help', cwd=ROOT).outcome().out


def test_the_list_of_commands_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['dfl-jax', '--help']\n"
        'from dfl_jax.cli.__main__ import main\n'
        'try: main()\n'
        "finally: assert not {'jax', 'numpy', 'flax', 'scipy'} & sys.modules.keys()"
    )
    printed = python('-c', code, cwd=ROOT, path=ROOT)
    assert all(f'  {name} ' in printed for name in COMMANDS)


def test_no_folder_of_ours_shadows_the_standard_library():
    """`experiments/select` has no `__init__`, so that `import select` passes it by."""
    modules = {path.stem for path in paper_folder.CHECKOUT.glob('*.py')} | {
        path.parent.name for path in paper_folder.CHECKOUT.glob('*/__init__.py')
    }
    assert not modules & sys.stdlib_module_names - {'__init__'}
    code = 'import sys; sys.path.insert(0, "."); import select; select.select'
    python('-c', code, cwd=paper_folder.CHECKOUT)
    python('select', '--help', cwd=paper_folder.CHECKOUT, path=ROOT)


def test_every_target_of_make_has_one_rule():
    """A name that is also a folder, as docs, or has no rule at all would silently do nothing."""
    text = (ROOT / 'Makefile').read_text()
    (phony,) = re.findall(r'^\.PHONY: (.*)$', text, re.M)
    rules = re.findall(r'^([a-z]+):', text, re.M)
    assert sorted(rules) == sorted(phony.split())
