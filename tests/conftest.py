"""What all tests share: the CPU, no silent broadcasting, compiled programs kept between runs."""

import gc
import importlib.metadata
import os
import pathlib
from collections.abc import Iterator

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # JAX_PLATFORMS=cuda runs everything on the GPU
# Most of the time of a test is one compilation. A step of NTK-DFL takes 7.4 s of CPU, without
# optimisations 4.4 s, without the emitters of fused kernels and their threads 1.2 s (jaxlib 0.10.2,
# 2026-11-22). XLA ends the process at a flag that it does not know, and newer ones may not.
# Eight virtual devices are there for the tests of many; all others run on the first.
os.environ.setdefault(
    'XLA_FLAGS',
    '--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0'
    + ' --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
    * importlib.metadata.version('jaxlib').startswith('0.10.'),
)

import jax
import pytest
from helpers import drawn_samples, padded, write_clusters

from dfl_jax import topology

ROOT = pathlib.Path(__file__).resolve().parent.parent


# What `make quick` runs: files that cover every package and compile little.
QUICK = (
    *('algorithms', 'architecture', 'command', 'distillation', 'faults', 'gain'),
    *('gossip_sgd', 'memory', 'metrics', 'mixing', 'models', 'network', 'ntk_update'),
    *('peers', 'plugins', 'population', 'rewiring', 'rundir'),
    *('simulate', 'tables_loss', 'topology'),
)


# The longest files, in seconds of CPU with nothing compiled: `make test` begins with them, so that
# the workers end together.
LONGEST = (
    *(
        'wiring_methods',
        'contract',
        'exchange',
        'cli',
        'docs',
        'resume',
        'tasks',
        'sweep',
        'counts',
    ),
    *(
        'streams',
        'experiment',
        'environment',
        'wiring_commands',
        'cli_time',
        'ntk_dfl',
        'adversaries',
    ),
    *('dfml', 'timing', 'devices', 'compression', 'asynchronous', 'evolution', 'local', 'report'),
    *('wiring', 'baselines', 'architectures', 'torture', 'site', 'corrected_gossip', 'precision'),
    *('spark', 'plugins', 'kernels', 'cli_dfml', 'robust', 'dispfl', 'quadratics', 'reconstruct'),
    *('divshare', 'simulate', 'models', 'samples', 'gossip_sgd', 'docstrings', 'weighted_graphs'),
)


def pytest_configure(config: pytest.Config) -> None:
    jax.config.update('jax_numpy_rank_promotion', 'raise')
    # Programs carry tracebacks of every operation: 5 % of the time
    jax.config.update('jax_traceback_in_locations_limit', 0)
    cache = getattr(config, 'cache', None)
    if cache is not None:  # absent under -p no:cacheprovider
        jax.config.update('jax_compilation_cache_dir', str(cache.mkdir('jax')))
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """True for the other files under `-m quick`, whose imports would take as long as the tests."""
    others = collection_path.match('test_*.py') and not _is_quick(collection_path)
    return True if config.option.markexpr == 'quick' and others else None


def _is_quick(path: pathlib.Path) -> bool:
    return path.stem.removeprefix('test_') in QUICK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda i: place.get(i.path.stem.removeprefix('test_'), len(LONGEST)))
    for item in items:
        if _is_quick(item.path) and not any(map(item.get_closest_marker, ('slow', 'integration'))):
            item.add_marker(pytest.mark.quick)
    marked = [item for item in items if item.get_closest_marker('gpu')]
    if marked and jax.default_backend() != 'gpu':
        for item in marked:
            item.add_marker(pytest.mark.skip(reason='no GPU, or JAX_PLATFORMS=cuda is not set'))


def pytest_collection_finish() -> None:
    """Leaves what the imports made out of garbage collections, and makes those rare.

    Each walks the many objects of traced programs: 2 to 8 % of the CPU time of `make test`
    (2026-11-23).
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True, scope='module')
def every_program_is_kept() -> Iterator[None]:
    """No test changes what the cache keeps: a command does, unless it has --compilation_cache=off.

    All later tests of the process would compile again what they share.
    """
    names = ('jax_compilation_cache_dir', 'jax_persistent_cache_min_compile_time_secs')
    before = [getattr(jax.config, name) for name in names]
    yield
    assert [getattr(jax.config, name) for name in names] == before


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope='session')
def data_dir() -> pathlib.Path:
    """The folder of real data; skips where there is none."""
    path = pathlib.Path(os.environ.get('DFL_JAX_DATA') or ROOT.parent / 'shared' / 'data')
    if not path.is_dir():
        pytest.skip(f'no real data in {path}: set DFL_JAX_DATA to a folder that holds some')
    return path


@pytest.fixture(scope='session')
def tiny(tmp_path_factory):
    """The file of a dataset that is learned at once."""
    return write_clusters(tmp_path_factory.mktemp('data') / 'tiny.npz')


@pytest.fixture
def network(x64):
    """Six clients of different sizes, as the reference and the simulator see them, and graphs."""
    data = drawn_samples()
    return data, padded(data), topology.schedule('erdos_renyi', len(data), 3, seed=1, degree=2)
