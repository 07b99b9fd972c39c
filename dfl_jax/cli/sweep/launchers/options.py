"""The flags of launchers, checked together."""

import re
from typing import Any

from dfl_jax.cli.sweep.launchers.task import Options
from dfl_jax.execution import own_cores

OF = {  # flags that only one launcher takes
    'ray': ('ray_address',),
    'submitit': ('submitit_cluster', 'slurm'),
}
LAUNCHERS = tuple(OF)
GENERAL = ('launcher_workers', 'launcher_cores', 'launcher_gpus')


def options(flags: Any) -> Options | None:
    """What the flags ask of a launcher, None without one. Raises ValueError for what cannot be."""
    chosen = flags.launcher
    given = [name for name in (*GENERAL, *sum(OF.values(), ())) if flags[name].present]
    if chosen is None:
        if given:
            needed = next((name for name, names in OF.items() if given[0] in names), 'ray')
            raise ValueError(f'--{given[0]} is of a launcher; add --launcher={needed}')
        return None
    for other, names in OF.items():
        if other != chosen and (wrong := [name for name in names if name in given]):
            raise ValueError(
                f'--{wrong[0]} is of --launcher={other}, not of {chosen}; leave it out'
            )
    elsewhere = flags.ray_address or (chosen == 'submitit' and flags.submitit_cluster == 'slurm')
    workers, cores, gpus = (flags[name].value for name in GENERAL)
    if flags.slurm and not elsewhere:
        raise ValueError('--slurm is of Slurm; leave it out with --submitit_cluster=local')
    if chosen == 'submitit' and not elsewhere and gpus:
        raise ValueError(
            f'--launcher_gpus={gpus}: local jobs of submitit would all get the same; take '
            '--launcher=ray, which gives each group its own'
        )
    if elsewhere:
        cores = cores or 1
    else:
        here = own_cores()
        cores = cores or max(1, here // (workers or here))
        workers = workers or max(1, here // cores)
    slurm = dict(map(_parameter, flags.slurm))
    return Options(workers, cores, gpus, flags.ray_address, flags.submitit_cluster, slurm)


def _parameter(text: str) -> tuple[str, str]:
    match = re.fullmatch(r'([a-z_]+)=(.+)', text)
    if not match:
        raise ValueError(f'--slurm={text}: write NAME=VALUE, e.g. --slurm=partition=gpu,mem=16GB')
    return match[1], match[2]
