"""What the commands share: where they may write, what they say, how Ctrl-C ends them."""

import ast
import functools
import gc
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl.testing import flagsaver
from saved_runs import save_run
from test_cli import ROOT

from dfl_jax import flagfiles
from dfl_jax.cli import command, help, interrupts, start
from dfl_jax.cli.__main__ import COMMANDS as COMMANDS_OF_THE_PROGRAM
from dfl_jax.cli.flags.run_flags import check_flags
from dfl_jax.paper_folder import PAPERS


def module_of(command):
    """The module of a command, its flags defined."""
    found = importlib.import_module(f'dfl_jax.{COMMANDS_OF_THE_PROGRAM[command][0]}.command')
    if command not in ('tables', 'report', 'watch'):  # whose flags others have, too
        found.define_flags(())
    return found


def test_a_check_of_a_folder_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'there').mkdir()
    (tmp_path / 'there' / 'notes').write_text('mine')
    for folder in ('new/deep', 'there', '.', ''):
        command.check_writable(Path(folder), ['notes', 'other'])
    there = tmp_path / 'there'
    assert sorted(tmp_path.rglob('*')) == [there, there / 'notes']
    assert (tmp_path / 'there' / 'notes').read_text() == 'mine'


def test_what_cannot_be_written(tmp_path):
    (tmp_path / 'file').touch()
    (tmp_path / 'loop').symlink_to('loop')
    (tmp_path / 'full' / 'a.md').mkdir(parents=True)
    for name in ('file', 'file/deep', 'loop', 'loop/deep', 'full', 'x' * 300):
        with pytest.raises(ValueError, match='choose another --out'):
            command.check_writable(tmp_path / name, ['a.md'])
    with pytest.raises(ValueError, match='choose another --runs'):
        command.check_writable(Path('/proc/nowhere'), flag='runs')


def test_an_error_is_one_line_that_steers_no_terminal(capsys):
    assert command.fail('a\nb\x1b[2J\ud800' + 'x' * 5000) == 1
    line = capsys.readouterr().err
    assert line.startswith('error: a b\\x1b[2J\\ud800x') and line.count('\n') == 1
    assert len(line) < 1100


@pytest.mark.parametrize(
    'words, unbuffered', [('--helpfull | head -1', '1'), ('--help | true', '')]
)
def test_help_whose_reader_leaves_ends_without_a_word(words, unbuffered):
    command = f'{sys.executable} -m experiments.run {words}'
    env = os.environ | {'PYTHONUNBUFFERED': unbuffered}
    ran = subprocess.run(command, shell=True, cwd=ROOT, env=env, capture_output=True, text=True)
    assert bool(ran.stdout) == ('head' in words) and not ran.stderr


@pytest.fixture
def help_of(capsys):
    """The help of a command, by its name and its arguments."""

    def shown(name, *arguments, full=False):
        command = module_of(name)
        with flagsaver.flagsaver():
            help.show(command, f'dfl-jax {name}', [name, *arguments], full=full)
        return capsys.readouterr().out

    return shown


@pytest.mark.parametrize('name', ['run', 'sweep'])
def test_the_stored_help_is_what_its_flags_say(name, help_of):
    """`dfl-jax NAME --helpshort > dfl_jax/cli/NAME/help.txt` makes it anew."""
    stored = (ROOT / 'dfl_jax' / 'cli' / name / 'help.txt').read_text(encoding='utf-8')
    assert stored == help_of(name)


@pytest.mark.parametrize('name, refused', [('sweep', '[no]resume'), ('theory', 'eval_every')])
def test_help_leaves_out_what_the_command_refuses(name, refused, help_of):
    for called, there in (('run', True), (name, False)):
        shown = help_of(called, full=True)
        assert '\n  --clients=' in shown and (f'\n  --{refused}' in shown) == there


@pytest.mark.parametrize(
    'name, said, unsaid',
    [
        ('select', 'Seed of the split of the test set', 'partition, graphs'),
        ('sweep', '(default: runs/sweep-TIME)', 'runs/ALGORITHM'),
        ('reconstruct', '(default: runs/reconstruct-TIME)', 'runs/ALGORITHM'),
    ],
)
def test_help_says_what_a_flag_means_here(name, said, unsaid, help_of):
    shown = help_of(name)
    assert said in shown and unsaid not in shown


def test_a_flag_that_may_be_repeated_is_explained_by_its_own_words(help_of):
    shown = help_of('sweep')
    assert '\n  --sweep=TEXT' in shown and 'several make a grid.\n' in shown


def test_help_of_a_method_has_its_defaults(help_of):
    shown = ' '.join(help_of('run', '--algorithm=relay_sgd').split())
    assert '(default line).' in shown and 'each round (default true).' in shown


def test_ctrl_c_is_not_lost_where_python_drops_exceptions(monkeypatch):
    """As in the callback that JAX gives to the garbage collector."""

    def once(*_):
        gc.callbacks.remove(once)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, 'unraisablehook', interrupts._come_again)
    before = signal.signal(signal.SIGINT, functools.partial(interrupts._end_or_raise, ''))
    gc.callbacks.append(once)
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect()
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.integration
@pytest.mark.parametrize(
    ('more', 'reader', 'done'), [('--log=json', 'head -1', False), ('--rounds=1', 'head -2', True)]
)
def test_a_run_whose_reader_leaves_says_so_in_a_line(more, reader, done, tmp_path):
    command = (
        f'{sys.executable} -m dfl_jax.cli run --algorithm=dpsgd --train_samples=200 --clients=6 '
        f'--degree=2 --rounds=200 --noprogress --devices=1 --out={tmp_path}/run {more} | {reader}'
    )
    ran = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in ran.stderr.splitlines() if line.startswith('error: ')]
    assert 'Traceback' not in ran.stderr and len(lines) == 1 and 'Broken pipe' in lines[0]
    assert (tmp_path / 'run' / 'done').exists() == done


def test_a_flagfile_may_stand_twice_but_not_in_itself(tmp_path):
    one, two = tmp_path / 'one', tmp_path / 'two'
    one.write_text('--rounds=2\n')
    two.write_text(f'# --flagfile={two}\n--flagfile={one}\n--flagfile {one}\n')
    given = [f'--flagfile={two}', '--flagfile', str(one), '--', '--flagfile=no']
    assert flagfiles.with_flagfiles(given) == [
        '--rounds=2',
        f'--flagfile {one}',  # of one word, which is no flag
        '--rounds=2',
        '--',
        '--flagfile=no',
    ]
    one.write_text(f'  --flagfile={two}\n')
    with pytest.raises(ValueError, match='includes itself'):
        flagfiles.with_flagfiles([f'--flagfile={two}'])


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
def test_a_flagfile_may_have_a_byte_order_mark(tmp_path, encoding):
    file = tmp_path / 'one.flags'
    file.write_text('--rounds=1\r\n  # größer\r\n--out=größe\r\n', encoding=encoding)
    assert flagfiles.flagfile_lines(str(file)) == ['--rounds=1', '--out=größe']
    file.write_text('--out=größe\n', encoding='latin-1')
    with pytest.raises(ValueError, match='cannot be read: it is no text in UTF-8'):
        flagfiles.flagfile_lines(str(file))


@pytest.mark.parametrize(
    'line', ['"--rounds=1"', "'--rounds=1'", '--out="a b"', "--out='a'", '--out "a"', '-out=""']
)
def test_quotes_in_a_flagfile_are_refused(tmp_path, line):
    file = tmp_path / 'one.flags'
    file.write_text(f'--degree=2\n{line}\n')
    with pytest.raises(ValueError, match=r'line 2, .*, is in quotes, .*; take them off'):
        flagfiles.flagfile_lines(str(file))
    file.write_text('--out=a"b\n--note=it\'s\n# "x"\n')
    assert len(flagfiles.flagfile_lines(str(file))) == 2


COMMANDS = {
    'select': ['--run=absent'],
    'report': ['--runs=.'],
    'tables': ['init_topology/figure5'],
    'sweep': ['--sweep=seed:0..20000'],
    'reconstruct': [],
    'theory': [],
}


@pytest.mark.integration
@pytest.mark.parametrize(
    'name', ['report', *(pytest.param(n, marks=pytest.mark.slow) for n in COMMANDS)]
)
def test_ctrl_c_at_any_moment_is_one_line(name, tmp_path):
    moments = random.Random(name)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job would ignore it
    try:
        for _ in range(3):
            process = subprocess.Popen(
                [sys.executable, '-m', f'experiments.{name}', *COMMANDS[name]],
                cwd=tmp_path,
                env=os.environ | {'PYTHONPATH': str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            time.sleep(moments.uniform(0.3, 2))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert 'Traceback' not in err, err
            said = [line for line in err.splitlines() if line.strip() and '%|' not in line]  # bars
            assert process.returncode != 0 and len(said) == 1, (out, err)
    finally:
        signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------------ paths and texts

PATHS = re.compile(r'\b(folder|file|files|folders|directory|directories)\b', re.IGNORECASE)
NO_PATHS = {  # flags whose help speaks of files and that name none
    *('columns', 'image_size', 'tensorboard', 'plot_partition', 'overwrite', 'map', 'test_share'),
    *('allow_imports', 'partition', 'topology', 'wandb', 'checkpoint', 'resume', 'text_window'),
    *('algorithm', 'model', 'task', 'flagfile', 'undefok', 'partition_overlap', 'train_samples'),
}


@pytest.fixture(scope='module')
def flags_of_all_commands():
    """{command: {name: flag}}, those of each in a process of its own, as they are there."""
    script = (
        'import importlib, json, sys\n'
        'from absl import flags\n'
        'command = importlib.import_module(f"dfl_jax.{sys.argv[1]}.command")\n'
        'getattr(command, "define_flags", lambda _: None)([])\n'
        'from dfl_jax.cli.command import PathParser, PathsParser\n'
        'known = flags.FLAGS\n'
        'print(json.dumps({n: [known[n].help, known[n].flag_type(),\n'
        '  isinstance(known[n].parser, (PathParser, PathsParser))] for n in known\n'
        '  if not known.find_module_defining_flag(n).startswith("absl")}))\n'
    )
    packages = dict.fromkeys(package for package, _ in COMMANDS_OF_THE_PROGRAM.values())
    return {
        package: json.loads(
            subprocess.run(
                [sys.executable, '-c', script, package],
                env=os.environ | {'PYTHONPATH': str(ROOT)},
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
        )
        for package in packages
    }


@pytest.mark.slow
@pytest.mark.integration
def test_every_flag_that_names_a_file_or_folder_expands_the_home_folder(flags_of_all_commands):
    for package, known in flags_of_all_commands.items():
        for name, (meaning, kind, is_path) in known.items():
            text = kind not in ('bool', 'int', 'float', 'string enum')
            if text and PATHS.search(meaning or '') and name not in NO_PATHS:
                assert is_path, f'--{name} of {package}: {meaning}'


def parsed(module: str, *arguments: str) -> dict[str, object]:
    """The values of flags and the other arguments, of a command's line."""
    found = module_of(module)
    with flagsaver.flagsaver():
        try:
            rest = start.parse(['name', *arguments], found)
            return {'rest': rest[1:]} | {name: start.flags.FLAGS[name].value for name in KEPT}
        finally:
            start.flags.FLAGS.unparse_flags()


KEPT = ('out', 'dataset', 'data_dir', 'world', 'compilation_cache', 'partition_file')


def test_a_path_is_expanded_wherever_it_stands(monkeypatch):
    monkeypatch.setenv('HOME', '/users/someone')
    of = parsed(
        'run',
        *('--out=~/x', '--dataset=hf:~/set', '--data_dir', '~', '--world=a=1;~/w.csv'),
        *('--compilation_cache=~/cache', '--partition_file=a/~/b', '~/argument'),
    )
    assert of == {
        'out': '/users/someone/x',
        'dataset': 'hf:/users/someone/set',
        'data_dir': '/users/someone',
        'world': 'a=1;/users/someone/w.csv',
        'compilation_cache': '/users/someone/cache',
        'partition_file': 'a/~/b',
        'rest': ['/users/someone/argument'],
    }
    paths = command.PathsParser().parse('~/a,b,~/c')
    assert paths == ['/users/someone/a', 'b', '/users/someone/c']
    assert parsed('run', '--dataset=~/d.npz')['dataset'] == '/users/someone/d.npz'


def test_a_file_of_the_papers_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = 'experiments/byzantine/graphs/attackers.json'
    assert command.PathParser('^file:').parse(f'file:{name}') == f'file:{PAPERS.parent / name}'
    Path(name).parent.mkdir(parents=True)
    Path(name).write_text('[0]')
    assert command.PathParser().parse(name) == name, 'one that is here comes first'


def test_a_home_folder_that_there_is_not_is_refused(capsys):
    for value in ('~nobody_of_that_name/x', '~nobody_of_that_name'):
        with pytest.raises(SystemExit):
            parsed('run', f'--out={value}')
        said = capsys.readouterr().err
        assert '~nobody_of_that_name is no home folder here' in said and said.count('\n') == 1


@pytest.mark.parametrize('text', ['20261129101500', 'nan', 'inf', '1e999', '-99999999999'])
def test_a_text_is_not_checked_as_a_number(text):
    for flag in ('out', 'dataset', 'wandb_project', 'model'):
        parsed_flags = check_of(f'--{flag}={text}')
        assert parsed_flags is None, parsed_flags


@pytest.mark.parametrize(
    'argument',
    ['--lr=nan', '--rounds=20261129101500', '--hidden=1e999', '--devices=4000', '--out='],
)
def test_a_number_is_checked_and_an_empty_text(argument):
    assert check_of(argument)


def check_of(argument: str) -> str | None:
    """What is wrong with the value of a flag of a run."""
    with flagsaver.flagsaver():
        try:
            start.parse(['name', argument], importlib.import_module('dfl_jax.cli.run.command'))
            start.parse(['name', argument], module_of('run'))
            check_flags()
        except ValueError as error:
            return str(error)
        finally:
            start.flags.FLAGS.unparse_flags()
    return None


def test_every_text_is_read_and_written_in_utf_8_by_name():
    """Else it would be in what the locale says."""
    bare = []
    folders = [ROOT / name for name in ('dfl_jax', 'experiments', 'benchmarks', 'docs')]
    for file in (file for folder in folders for file in folder.rglob('*.py')):
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.Call) and opens_a_text(node):
                bare.append(f'{file.relative_to(ROOT)}:{node.lineno}')
    assert not bare, f'no encoding: {", ".join(bare)}'


ELSE = ('os', 'tarfile', 'zipfile', 'Image', 'logger', 'files', 'webbrowser')  # .open(...) of these


def opens_a_text(call: ast.Call) -> bool:
    """Whether a call opens a text file and leaves its encoding to the locale."""
    name = getattr(call.func, 'attr', getattr(call.func, 'id', ''))
    given = {keyword.arg for keyword in call.keywords}
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    owner = getattr(getattr(call.func, 'value', None), 'id', '')
    if name in ('run', 'Popen', 'check_output') and owner == 'subprocess':
        return bool({'text', 'universal_newlines'} & given) and 'encoding' not in given
    if (name == 'read_text' and isinstance(call.func, ast.Name)) or owner in ELSE:
        return False
    if name in ('open', 'fdopen'):
        return 'encoding' not in given and not any('b' in text for text in texts[-1:])
    return name in ('read_text', 'write_text') and 'encoding' not in given


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize('locale', ['C', 'en_US.ISO-8859-1'])
def test_a_locale_of_ascii_or_latin_reads_what_the_package_holds(locale, tmp_path):
    environment = {'LC_ALL': locale, 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
    save_run(tmp_path / 'runs' / 'ntk_dfl-alpha0.1-seed0', rounds=2)
    commands = (
        ('report', f'--runs={tmp_path / "runs"}', f'--out={tmp_path / "page.html"}'),
        ('tables', 'ntk_dfl/figure2', '--list', f'--runs={tmp_path / "runs"}'),
        ('tables', 'all', f'--runs={ROOT / "docs/results"}', f'--out={tmp_path}'),
    )
    for name, *arguments in commands:
        ended = subprocess.run(
            [sys.executable, '-m', 'dfl_jax.cli', name, *arguments],
            env=os.environ | environment | {'PYTHONPATH': str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
        )
        assert (ended.returncode, ended.stderr) == (0, b''), ended.stderr
    page = (tmp_path / 'reproduction.md').read_bytes()
    assert page == (ROOT / 'docs/reproduction.md').read_bytes()
