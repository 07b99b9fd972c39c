"""What all tests share: the CPU, no silent broadcasting, compiled programs kept between runs."""

import os
import pathlib
from collections.abc import Iterator

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # JAX_PLATFORMS=cuda runs everything on the GPU

import jax
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    jax.config.update('jax_numpy_rank_promotion', 'raise')
    cache = getattr(config, 'cache', None)
    if cache is not None:  # absent under -p no:cacheprovider
        jax.config.update('jax_compilation_cache_dir', str(cache.mkdir('jax')))
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker('gpu')]
    if marked and jax.default_backend() != 'gpu':
        for item in marked:
            item.add_marker(pytest.mark.skip(reason='no GPU, or JAX_PLATFORMS=cuda is not set'))


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
