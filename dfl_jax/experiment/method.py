"""The settings of a method as an experiment has them: which, by which names, and what is given."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dfl_jax.experiment.run_settings import PART_OF
from dfl_jax.experiment.table_rows import method_named, name_of
from dfl_jax.method_settings import Setting, described
from dfl_jax.methods import FLAT_NAMES, METHODS, Method

OF_THE_RUN = ('algorithm', 'rounds', 'seed')  # beside PART_OF
FROM_STREAMS = ('projection_seed',)  # settings of methods that follow from the seed


@dataclass(frozen=True)
class MethodSettings:
    """The method, and what is given of its settings.

    Args:
      algorithm: One of METHODS, or package.module:factory.
      given: Settings of the method by their flat names; all others are the method's defaults.
    """

    algorithm: Any = 'ntk_dfl'
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name, or package.module:factory."""
        return name_of(self.algorithm)

    @property
    def row(self) -> Method:
        """Its row of METHODS, or what stands in place of one. Raises ValueError."""
        return method_named(self.algorithm)


def flat_settings(method: Method) -> dict[str, Setting]:
    """The settings of a method that can be given, by their flat names.

    A setting of the library has the same name for all methods; an argument of a method of one's own
    is named by itself, and so is what follows from a setting of the run, such as its rounds.
    """
    of_the_run = method.from_run.keys() & {*PART_OF, *OF_THE_RUN}

    def flat(name: str, setting: Setting) -> str:
        names = FLAT_NAMES if setting.part else method.flat_names
        return name if name in of_the_run else names.get(name, name)

    return {
        flat(name, setting): setting
        for name, setting in described(method.factory).items()
        if setting.kind is not None and name not in FROM_STREAMS
    }


@functools.cache
def flat_settings_of_all() -> dict[str, Setting]:
    """The settings of all methods of the library by their flat names."""
    found: dict[str, Setting] = {}
    for row in METHODS.values():
        found = flat_settings(row) | found
    return {n: each for n, each in found.items() if n not in (*PART_OF, *OF_THE_RUN)}
