"""What the commands share: where they may write, what they say, how Ctrl-C ends them."""

import gc
import importlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl.testing import flagsaver
from test_cli import ROOT

from dfl_jax.cli import command, help, interrupts


def test_a_check_of_a_folder_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'there').mkdir()
    (tmp_path / 'there' / 'notes').write_text('mine')
    for folder in ('new/deep', 'there', '.', ''):
        command.check_writable(Path(folder), ['notes', 'other'])
    assert sorted(map(str, tmp_path.rglob('*'))) == [
        str(tmp_path / 'there'),
        str(tmp_path / 'there' / 'notes'),
    ]
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


def test_help_whose_reader_leaves_ends_without_a_word():
    command = f'{sys.executable} -m experiments.run --helpfull | head -1'
    env = os.environ | {'PYTHONUNBUFFERED': '1'}
    ran = subprocess.run(command, shell=True, cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.stdout and not ran.stderr


@pytest.mark.parametrize('name, refused', [('sweep', '[no]resume'), ('theory', 'eval_every')])
def test_help_leaves_out_what_the_command_refuses(name, refused, capsys):
    for called, there in (('run', True), (name, False)):
        command = importlib.import_module(f'dfl_jax.cli.{called}.command')
        with flagsaver.flagsaver():
            help.show(command, called, [called], full=True)
        shown = capsys.readouterr().out
        assert '\n  --clients=' in shown and (f'\n  --{refused}' in shown) == there


@pytest.mark.parametrize(
    'name, said, unsaid',
    [
        ('final_averaging', 'Seed of the split of the test set', 'partition, graphs'),
        ('sweep', '(default: runs/sweep-TIME)', 'runs/ALGORITHM'),
        ('attack', '(default: runs/attack-TIME)', 'runs/ALGORITHM'),
    ],
)
def test_help_says_what_a_flag_means_here(name, said, unsaid, capsys):
    command = importlib.import_module(f'dfl_jax.cli.{name}.command')
    with flagsaver.flagsaver():
        help.show(command, name, [name], full=False)
    shown = capsys.readouterr().out
    assert said in shown and unsaid not in shown


def test_a_flag_that_may_be_repeated_is_explained_by_its_own_words(capsys):
    command = importlib.import_module('dfl_jax.cli.sweep.command')
    with flagsaver.flagsaver():
        help.show(command, 'sweep', ['sweep'], full=False)
    shown = capsys.readouterr().out
    assert '\n  --sweep=TEXT' in shown and 'several make a grid.\n' in shown


def test_help_of_a_method_has_its_defaults(capsys):
    command = importlib.import_module('dfl_jax.cli.run.command')
    with flagsaver.flagsaver():
        help.show(command, 'run', ['run', '--algorithm=relay_sgd'], full=False)
    shown = ' '.join(capsys.readouterr().out.split())
    assert '(default line).' in shown and 'each round (default true).' in shown


def test_ctrl_c_is_not_lost_where_python_drops_exceptions(monkeypatch):
    """As in the callback that JAX gives to the garbage collector."""

    def once(*_):
        gc.callbacks.remove(once)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, 'unraisablehook', interrupts._come_again)
    before = signal.signal(signal.SIGINT, interrupts._end_or_raise)
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
    assert command.with_flagfiles(given) == [
        '--rounds=2',
        f'--flagfile {one}',  # of one word, which is no flag
        '--rounds=2',
        '--',
        '--flagfile=no',
    ]
    one.write_text(f'  --flagfile={two}\n')
    with pytest.raises(ValueError, match='includes itself'):
        command.with_flagfiles([f'--flagfile={two}'])


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
def test_a_flagfile_may_have_a_byte_order_mark(tmp_path, encoding):
    file = tmp_path / 'one.flags'
    file.write_text('--rounds=1\r\n  # größer\r\n--out=größe\r\n', encoding=encoding)
    assert command.flagfile_lines(str(file)) == ['--rounds=1', '--out=größe']
    file.write_text('--out=größe\n', encoding='latin-1')
    with pytest.raises(ValueError, match='cannot be read: it is no text in UTF-8'):
        command.flagfile_lines(str(file))


@pytest.mark.parametrize(
    'line', ['"--rounds=1"', "'--rounds=1'", '--out="a b"', "--out='a'", '--out "a"', '-out=""']
)
def test_quotes_in_a_flagfile_are_refused(tmp_path, line):
    file = tmp_path / 'one.flags'
    file.write_text(f'--degree=2\n{line}\n')
    with pytest.raises(ValueError, match=r'line 2, .*, is in quotes, .*; take them off'):
        command.flagfile_lines(str(file))
    file.write_text('--out=a"b\n--note=it\'s\n# "x"\n')
    assert len(command.flagfile_lines(str(file))) == 2


COMMANDS = {
    'select': ['--run=absent'],
    'report': ['--runs=.'],
    'tables': ['init_topology/figure5'],
    'sweep': ['--sweep=seed:0..20000'],
    'attack': [],
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
