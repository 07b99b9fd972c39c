"""What surrounds a command: how JAX is set, standard streams, the home folder, locks, git."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import pytest
from test_cli import NETWORK, here

from dfl_jax.cli.run import command as cli
from dfl_jax.experiment.commit import commit
from dfl_jax.experiment.environment import (
    OF_NUMBERS,
    check_jax,
    check_settings_of_jax,
    settings_of_jax,
)
from dfl_jax.experiment.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parent.parent
TINY = (
    *('--algorithm=dpsgd', *NETWORK, '--hidden=8', '--dataset=synthetic'),
    *('--train_samples=120', '--test_samples=40', '--noprogress', '--compilation_cache=off'),
)


@contextlib.contextmanager
def jax_set(**options):
    """JAX under other options, which are put back."""
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


# ------------------------------------------------------------------------------ how JAX is set


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
    """A run that lacks its last steps."""
    out = tmp_path_factory.mktemp('runs') / 'begun'
    assert here(*TINY, f'--out={out}').status == 0
    (out / 'done').unlink()
    return out


@pytest.fixture
def stopped(begun, tmp_path):
    return Path(shutil.copytree(begun, tmp_path / 'stopped'))


@pytest.mark.parametrize(
    ('option', 'value', 'mend'),
    [
        ('jax_default_prng_impl', 'rbg', 'set JAX_DEFAULT_PRNG_IMPL=threefry2x32'),
        ('jax_threefry_partitionable', False, 'set JAX_THREEFRY_PARTITIONABLE=True'),
        ('jax_enable_x64', True, 'set JAX_ENABLE_X64=False'),
        ('jax_default_matmul_precision', 'bfloat16', 'unset JAX_DEFAULT_MATMUL_PRECISION'),
        ('jax_random_seed_offset', 3, 'set JAX_RANDOM_SEED_OFFSET=0'),
    ],
)
def test_a_run_is_not_resumed_under_other_settings_of_jax(option, value, mend, stopped):
    with jax_set(**{option: value}):
        refused = here('--resume', f'--out={stopped}')
    name = option.upper()
    assert f'{name} was ' in refused.error and f'{mend}, or start a new run' in refused.error
    assert str(stopped) in refused.error and not (stopped / 'done').exists()
    assert here('--resume', f'--out={stopped}').status == 0


@pytest.mark.parametrize(
    ('flags', 'same'),
    [
        ('--xla_cpu_enable_fast_math=true', False),
        ('--xla_gpu_enable_triton_gemm=false --xla_dump_to=x', False),
        ('--xla_force_host_platform_device_count=3 --xla_dump_to=x', True),
    ],
)
def test_flags_of_xla_that_change_numbers_belong_to_a_run(flags, same, monkeypatch):
    now = settings_of_jax()
    monkeypatch.setenv('XLA_FLAGS', f'{os.environ.get("XLA_FLAGS", "")} {flags}')
    assert (settings_of_jax() == now) == same
    if not same:
        with pytest.raises(ValueError, match=r'XLA_FLAGS was .* when run began and is'):
            check_settings_of_jax(now, settings_of_jax(), 'run')
    monkeypatch.setenv('NVIDIA_TF32_OVERRIDE', '0')
    with pytest.raises(ValueError, match='NVIDIA_TF32_OVERRIDE was not set when run began and is'):
        check_settings_of_jax(now, {**now, 'NVIDIA_TF32_OVERRIDE': '0'}, 'run')


def test_all_options_are_recorded_as_json_and_those_of_other_versions_are_passed_over():
    now = settings_of_jax()
    assert json.loads(json.dumps(now)) == now
    assert {name.upper() for name in OF_NUMBERS if name in jax.config.values} < now.keys()
    check_settings_of_jax({'JAX_OF_LONG_AGO': 1}, now, 'run')


def test_a_run_from_before_says_that_its_settings_of_jax_are_not_known(stopped):
    config = RunDirectory(stopped).config()
    del config['inputs']['jax']
    RunDirectory(stopped).write_config(config)
    resumed = here('--resume', f'--out={stopped}').succeeded()
    assert 'warning: ' in resumed.err and 'did not record how JAX was set' in resumed.err


@pytest.mark.integration
def test_a_sweep_does_not_go_on_under_other_settings_of_jax(tmp_path):
    argv = [*TINY, '--sweep=seed:0..1', f'--out={tmp_path / "out"}']
    assert process('sweep', *argv, '--together=1').returncode == 0
    shutil.rmtree(tmp_path / 'out' / 'seed=1')
    again = process('sweep', *argv, '--together=1', JAX_THREEFRY_PARTITIONABLE='0')
    assert again.returncode == 1 and again.stderr.count('\n') == 1
    assert 'JAX_THREEFRY_PARTITIONABLE was True when' in again.stderr


def test_a_run_goes_on_with_the_chunk_that_it_had_chosen(stopped):
    """What was free when it began is not free now."""
    directory = RunDirectory(stopped)
    config = directory.config()
    assert config['algorithm']['chunk'] == 1  # of a CPU
    config['algorithm']['chunk'] = 3  # of six clients on one or two devices
    directory.write_config(config)
    resumed = here('--resume', f'--out={stopped}')
    assert (resumed.status, resumed.err) == (0, '') and '3 worked on at once' in resumed.out

    (stopped / 'done').unlink()
    other = here('--resume', f'--out={stopped}', '--chunk=2')
    assert other.status == 0 and '2 worked on at once' in other.out
    assert 'chunk was 3 when the run began and is 2 now; its last bits may differ' in other.err

    (stopped / 'done').unlink()
    directory.write_config(config | {'device': 'another kind'})
    elsewhere = here('--resume', f'--out={stopped}')
    assert elsewhere.status == 0 and '1 worked on at once' in elsewhere.out
    assert 'chunk was 3 when the run began and is 1 now' in elsewhere.err


@pytest.mark.parametrize(
    ('option', 'value', 'words'),
    [
        ('jax_disable_jit', True, 'JAX_DISABLE_JIT=True: rounds are compiled; unset it'),
        ('jax_numpy_dtype_promotion', 'strict', 'JAX_NUMPY_DTYPE_PROMOTION=strict: .*; unset it'),
        ('jax_no_tracing', True, 'JAX_NO_TRACING=True: rounds are traced; unset it'),
    ],
)
def test_settings_of_jax_under_which_nothing_runs_are_refused(option, value, words):
    with jax_set(**{option: value}), pytest.raises(ValueError, match=f'^{words}$'):
        check_jax()


@pytest.mark.integration
@pytest.mark.parametrize(
    ('name', 'arguments'),
    [
        ('run', TINY),
        ('sweep', (*TINY, '--sweep=seed:0..1')),
        ('select', ('--run=RUN',)),
        *(
            pytest.param(*command, marks=pytest.mark.slow)
            for command in (
                ('theory', ('--clients=4', '--degree=2', '--rounds=1')),
                ('reconstruct', ()),
                ('time', ('--runs=RUN',)),
                ('tables', ('init_topology/figure5',)),
            )
        ),
    ],
)
def test_a_device_that_is_not_there_is_said_in_a_line_and_nothing_is_left(
    name, arguments, begun, tmp_path
):
    given = [argument.replace('RUN', str(begun)) for argument in arguments]
    ended = process(name, *given, cwd=tmp_path, JAX_PLATFORMS='gpu')
    assert ended.returncode == 1 and ended.stderr.count('\n') == 1, ended.stderr
    assert ended.stderr.startswith('error: JAX cannot compute under JAX_PLATFORMS=gpu (')
    assert not [*tmp_path.rglob('config.json')]


@pytest.mark.integration
@pytest.mark.parametrize('setting', ['JAX_ENABLE_X64=maybe', 'JAX_DEFAULT_PRNG_IMPL=dice'])
def test_a_variable_that_jax_cannot_read_is_said_in_a_line(setting, tmp_path):
    name, _, value = setting.partition('=')
    for command in ('run', 'reconstruct'):
        ended = process(command, *(TINY if command == 'run' else ()), cwd=tmp_path, **{name: value})
        assert ended.returncode == 1 and ended.stderr.count('\n') == 1, ended.stderr
        assert name.lower() in ended.stderr.lower() and value in ended.stderr


@pytest.mark.integration
@pytest.mark.parametrize('algorithm', ['spark', 'ntk_dfl', 'dfedavg'])
def test_methods_run_in_double_precision(algorithm, tmp_path):
    of_it = ('--spark_projection_dim=20',) if algorithm == 'spark' else ()
    flags = [each for each in TINY if not each.startswith('--algorithm')]
    ended = process('run', f'--algorithm={algorithm}', *flags, *of_it, JAX_ENABLE_X64='1')
    assert (ended.returncode, ended.stderr) == (0, '')


# ----------------------------------------------------------------- streams, home, locks, git


def process(name: str, *arguments: str, cwd: Path | None = None, ends: str = '', **environment):
    """A command in a process of its own, under these variables; None takes one away.

    ends: what a shell does to its streams.
    """
    whole = os.environ | {'PYTHONPATH': str(ROOT)} | environment
    shell = ['sh', '-c', f'exec "$@" {ends}', 'sh']
    return subprocess.run(
        [*shell, sys.executable, '-m', 'dfl_jax.cli', name, *arguments],
        cwd=cwd,
        env={key: value for key, value in whole.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize('ends', ['>&-', '2>&-', '<&- >&- 2>&-', '--log=json >&-'])
def test_closed_streams_are_open_to_nowhere(ends, tmp_path):
    ended = process('run', *TINY, '--out=out', cwd=tmp_path, ends=ends)
    assert ended.returncode == 0 and 'Traceback' not in ended.stderr
    assert (tmp_path / 'out' / 'done').exists()
    text = (tmp_path / 'out' / 'metrics.jsonl').read_text()
    assert all(json.loads(line)['round'] for line in text.splitlines())  # and nothing printed


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize('ends', ['>&-', '2>&-'])
def test_a_refusal_with_closed_streams_has_its_status(ends, tmp_path):
    for name in ('run', 'report', 'tables', 'nothing'):
        ended = process(name, '--no_such_flag', cwd=tmp_path, ends=ends)
        assert ended.returncode == 1 and 'Traceback' not in ended.stderr
    assert process('run', '--help', cwd=tmp_path, ends=ends).returncode == 0


def test_a_user_without_a_home_folder_has_no_cache_by_default(monkeypatch):
    monkeypatch.delenv('HOME', raising=False)
    monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
    with mock.patch('pwd.getpwuid', side_effect=KeyError('uid not found')):
        assert cli.cache_folder(None) is None
        assert cli.cache_folder('folder') == 'folder'
        assert cli.cache_folder('off') is None
        monkeypatch.setenv('XDG_CACHE_HOME', '/cache')
        assert cli.cache_folder(None) == '/cache/dfl_jax/xla'
        monkeypatch.delenv('XDG_CACHE_HOME')
        refused = here('--dataset=mnist', '--out=~/x')
        assert '~ is no home folder here; write the path out, or ./~' in refused.error
        refused = here('--dataset=mnist')
        assert 'mnist: this user has no home folder to keep it in: give data_dir' in refused.error


@pytest.mark.parametrize('number', [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_before_anything_is_written(
    number, tmp_path, monkeypatch
):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, 'flock', flock)
    monkeypatch.chdir(tmp_path)
    for out in ('--out=new/out', '--rounds=2'):
        refused = here(*TINY, out)
        assert (
            'cannot be locked (' in refused.error
            and 'choose --out on a local disk' in refused.error
        )
        assert not [*tmp_path.iterdir()]
    with pytest.raises(ValueError, match='cannot be locked'), RunDirectory(tmp_path).locked():
        pass


def git(folder: Path, *arguments: str) -> str:
    who = ['-c', 'user.name=n', '-c', 'user.email=e']
    command = ['git', *who, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A checkout of a package, with one commit."""
    package = tmp_path / 'checkout' / 'dfl_jax'
    package.mkdir(parents=True)
    (package / '__init__.py').write_text('')
    (package.parent / 'pyproject.toml').write_text("[project]\nname = 'dfl_jax'\n")
    git(package.parent, 'init', '-q')
    git(package.parent, 'add', '.')
    git(package.parent, 'commit', '-qm', 'first')
    return package


def test_the_commit_is_that_of_the_programs_own_checkout(checkout, monkeypatch):
    head = git(checkout, 'rev-parse', 'HEAD').strip()
    (checkout.parent / 'notes.txt').write_text('beside the package')
    assert commit(checkout) == head
    monkeypatch.setenv('GIT_DIR', str(checkout / 'elsewhere'))
    assert commit(checkout) == head
    (checkout / 'new.py').write_text('')
    assert commit(checkout) == f'{head}-dirty'
    (checkout / 'new.py').unlink()
    (checkout / '__init__.py').write_text('changed')
    assert commit(checkout) == f'{head}-dirty'


def test_a_package_inside_of_another_repository_has_no_commit(checkout):
    installed = checkout.parent / 'venv' / 'site-packages' / 'dfl_jax'
    shutil.copytree(checkout, installed)
    assert commit(installed) is None  # as pip installs it
    vendored = checkout.parent / 'pyproject.toml'
    vendored.write_text("[project]\nname = 'theirs'\n")
    assert commit(checkout) is None
    vendored.unlink()
    assert commit(checkout) is None
