"""The code in the documentation runs as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from dfl_jax.algorithms import ALGORITHMS, REQUIRED, settings_of
from dfl_jax.cli.experiment.flags import POPULATIONS
from dfl_jax.cli.experiment.method_flags import ALGORITHM_FLAGS

ROOT = Path(__file__).resolve().parent.parent


def code_blocks(document, language):
    text = (ROOT / document).read_text()
    return re.findall(rf'```{language}\n(.*?)```', text, flags=re.DOTALL)


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, *arguments],
        check=True,
        cwd=cwd,
        env=os.environ | {'PYTHONPATH': f'{ROOT}:{cwd}', 'XDG_CACHE_HOME': str(cwd)},
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def test_the_example_algorithm_learns(tmp_path):
    (tmp_path / 'gossip_gd.py').write_text(code_blocks('docs/adding_an_algorithm.md', 'python')[0])
    (command,) = code_blocks('docs/adding_an_algorithm.md', 'sh')
    words = command.split()
    assert words[:3] == ['python', '-m', 'experiments.run']
    run(*words[1:], '--dataset=synthetic', f'--out={tmp_path / "run"}', cwd=tmp_path)
    lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last['round'] == 100
    assert last['consensus_accuracy'] > 0.9 > first['consensus_accuracy']


def test_the_library_example_of_the_readme(tmp_path):
    pytest.importorskip('sklearn')
    (example,) = code_blocks('README.md', 'python')
    lines = run('-c', example, cwd=tmp_path).splitlines()
    assert [int(line.split()[0]) for line in lines] == [1, 2, 3, 4, 5]
    assert float(lines[-1].split()[1]) > 0.9


OF_OTHERS = {  # of absl, make, Slurm, gcloud and XLA
    'help', 'flagfile', 'array', 'ntasks', 'worker', 'command', 'no', 'xla_cpu_multi_thread_eigen'
}  # fmt: skip


def test_the_flags_of_the_documents_exist():
    """But for those that a line calls removed, with the commit that had them."""
    known = {*flags.FLAGS, *OF_OTHERS}
    for folder in ('dfl_jax', 'benchmarks', 'tests/torture'):
        for file in (ROOT / folder).rglob('*.py'):
            defined = r"""(?:DEFINE_\w+\(\s*|add_argument\(\s*)'(?:--)?(\w+)'"""
            known.update(re.findall(defined, file.read_text()))
    pages = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *ROOT.glob('experiments/*/README.md')]
    for page in (*pages, *ROOT.glob('docs/*.md')):
        for line in page.read_text().splitlines():
            for name in re.findall(r'--([a-z]\w*[a-z0-9])\b(?!_)', line):
                exists = name in known or name.removeprefix('no') in known
                assert exists or '(removed; last in' in line, f'{page.name}: --{name}'


def test_the_links_of_the_documents_lead_somewhere():
    pages = [*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), *ROOT.glob('experiments/*/README.md')]
    for page in pages:
        for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text()):
            if '://' in target:
                continue
            path, _, heading = target.partition('#')
            file = page.parent / path if path else page
            assert file.exists(), f'{page.name}: {target}'
            if heading:
                lines = re.findall(r'^#+ (.*)$', file.read_text(), flags=re.MULTILINE)
                slugs = {re.sub(r'[^\w -]', '', line.lower()).replace(' ', '-') for line in lines}
                assert heading in slugs, f'{page.name}: {target}'


DEFAULTS = {  # by argument, of every method that takes it
    argument: {
        name: settings_of(factory)[argument]
        for name, factory in ALGORITHMS.items()
        if settings_of(factory).get(argument, REQUIRED) is not REQUIRED
    }
    for argument in ALGORITHM_FLAGS
}
SETTLED_BY_OTHER_FLAGS = {'by_cluster'}  # on the command line, whatever the signature says


def help_of(argument):
    return ' '.join(flags.FLAGS[ALGORITHM_FLAGS[argument].name].help.split())


def methods_in(text):
    text = text.replace('dfml and its baselines', ', '.join(POPULATIONS))
    names = re.split(r', | and ', text)
    return names if set(names) <= ALGORITHMS.keys() else []


def defaults_in(text):
    """(methods, default) as a help names them; the methods are None for those not named."""
    for word, of in re.findall(r'(?:^|[:,] |or )([\w]+) \(default(?: of ([^)]*))?\)', text):
        yield (methods_in(of) if of else None), word
    for group in re.findall(r'\(([^()]*)\)', text):
        for clause in group.split('; '):
            if found := re.fullmatch(r'(?:default(?! of)|others):? (\S+).*', clause):
                yield None, found[1].rstrip(',:')
            elif found := re.fullmatch(r'(.*?)(?:: (\S+)| ([\d.]+)).*', clause):
                yield methods_in(found[1]), (found[2] or found[3]).rstrip(',:')


def says(text, default):
    """Whether a help's word for a default is true; of prose, and of None, nothing is known."""
    if isinstance(default, tuple):
        numbers = [int(number) for number in text.split(',') if number != '...']
        if '...' in text:
            first, second, last = numbers
            numbers = range(first, last + 1, second - first)
        return default == tuple(numbers)
    if isinstance(default, bool):
        return text == str(default).lower()
    if isinstance(default, int | float):
        return not re.fullmatch(r'[\d.e-]+', text) or float(text) == default
    return default is None or text == default


@pytest.mark.parametrize('argument', sorted(ALGORITHM_FLAGS.keys() - SETTLED_BY_OTHER_FLAGS))
def test_defaults_in_the_help_are_those_of_the_signatures(argument):
    claims = list(defaults_in(help_of(argument)))
    named = {name for methods, _ in claims for name in methods or ()}
    assert named <= DEFAULTS[argument].keys(), 'methods that do not take it'
    for methods, text in claims:
        for name in DEFAULTS[argument].keys() - named if methods is None else methods:
            default = DEFAULTS[argument][name]
            assert says(text, default), f'{name}: {default!r}, the help says {text}'


def test_the_help_of_a_default_is_understood():
    """What the test above reads, so that it cannot pass because it reads nothing."""
    assert list(defaults_in('K (default 10; def_kt: 1).')) == [(None, '10'), (['def_kt'], '1')]
    assert list(defaults_in('K (default 10; def_kt 1).')) == [(None, '10'), (['def_kt'], '1')]
    assert list(defaults_in('Of it: a (default), b (default of dpsgd) or c.')) == [
        (None, 'a'),
        (['dpsgd'], 'b'),
    ]
    assert list(defaults_in('(ntk_dfl and spark: 0.5; others: 0)')) == [
        (['ntk_dfl', 'spark'], '0.5'),
        (None, '0'),
    ]
    assert says('1', 1.0) and not says('1', 10)
    assert says('1,2,...,4', (1, 2, 3, 4)) and not says('1,2,...,4', (1, 2, 4))


def test_the_help_of_the_decay_names_all_methods_that_take_a_rate():
    rates = {name for name, default in DEFAULTS['lr_decay'].items() if default == 0}
    (named,) = re.findall(r'\(([^()]*): a rate', help_of('lr_decay'))
    assert set(methods_in(named)) == rates


def test_choices_the_papers_leave_open_name_the_default_first():
    """That of ntk_dfl where it has one, else of the first method that does."""
    text = (ROOT / 'docs/how_it_works.md').read_text()
    (section,) = re.findall(
        r'^## Choices the papers.*?(?=^## )', text, flags=re.DOTALL | re.MULTILINE
    )
    (table,) = re.findall(r'\| flag \| values \(default first\)[^\n]*\n((?:\|[^\n]*\n)+)', section)
    assert table.count('\n|') == section.count('\n|') - 2, 'a blank line ends a table'
    arguments = {holder.name: argument for argument, holder in ALGORITHM_FLAGS.items()}
    checked = 0
    for flag, first in re.findall(r'^\| `--(\w+)` \| `(\w+)`', table, flags=re.MULTILINE):
        if flag in arguments:
            assert first == next(iter(DEFAULTS[arguments[flag]].values())), flag
            checked += 1
    assert checked > 10
