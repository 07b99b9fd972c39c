"""Flags that are refused whatever the command: impossible values, and those that it lacks."""

import itertools
from collections.abc import Container

from dfl_jax.cli.flags.run_flags import FLAGS, GROUPS
from dfl_jax.experiment.values import check_value


def check_flags() -> None:
    """Raises ValueError for a text that is empty, and for a number that is not finite or larger
    than a run could ever use."""
    for name in FLAGS:
        flag = FLAGS[name]
        if flag.value != '' or flag.present:
            check_value(name, flag.value, flag.flag_type() in ('int', 'float'))


def refuse_others(shared: Container[str], why: str) -> None:
    """Raises ValueError for a flag of a run that was given and is not one of `shared`."""
    for name in itertools.chain(*GROUPS.values()):
        if name in FLAGS and FLAGS[name].present and name not in shared:
            raise ValueError(f'{FLAGS[name].serialize()} does not apply{why}; leave it out')
