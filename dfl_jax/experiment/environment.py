"""What JAX is told beside the flags, by its variables of the environment, and whether it works."""

import enum
import os
from typing import Any

import jax
import numpy as np

from dfl_jax.execution import cores_as_devices
from dfl_jax.experiment.run_settings import Placement
from dfl_jax.plain_text import in_a_line

# Options of JAX under which the same run has other numbers, or other last bits
OF_NUMBERS = (
    *('jax_default_prng_impl', 'jax_threefry_partitionable', 'jax_random_seed_offset'),
    *('jax_enable_x64', 'jax_default_dtype_bits', 'jax_explicit_x64_dtypes'),
    *('jax_default_matmul_precision', 'jax_allow_f16_reductions', 'jax_softmax_custom_jvp'),
    *('jax_high_dynamic_range_gumbel', 'jax_threefry_gpu_kernel_lowering'),
    *('jax_disable_most_optimizations', 'jax_optimization_level', 'jax_memory_fitting_level'),
    *('jax_exec_time_optimization_effort', 'jax_memory_fitting_effort'),
    *('jax_compiler_enable_remat_pass', 'jax_enable_pgle', 'jax_use_direct_linearize'),
    *('jax_use_magma', 'jax_bcoo_cusparse_lowering', 'jax_use_shardy_partitioner'),
)
VARIABLES = ('NVIDIA_TF32_OVERRIDE',)  # of libraries below JAX, to the same effect
XLA = 'XLA_FLAGS'
HARMLESS = (  # beginnings of flags of XLA that change no number
    '--xla_force_host_platform_device_count',  # `devices` tells of them
    *('--xla_cpu_collective', '--xla_cpu_parallel_codegen', '--xla_dump', '--xla_hlo_profile'),
)
IMPOSSIBLE = {  # option -> its value under which nothing can run, and why
    'jax_disable_jit': (True, 'rounds are compiled'),
    'jax_no_tracing': (True, 'rounds are traced'),
    'jax_no_execution': (True, 'rounds are executed'),
    'jax_numpy_dtype_promotion': ('strict', 'the program promotes types as NumPy does'),
}


def settings_of_jax() -> dict[str, Any]:
    """What config.json records of these: a value by the name of the variable that sets it."""
    values = {name: value for name in OF_NUMBERS if (value := _option(name)) is not _ABSENT}
    flags = os.environ.get(XLA, '').split()
    return {
        **{name.upper(): value for name, value in values.items()},
        **{name: os.environ.get(name) for name in VARIABLES},
        XLA: ' '.join(sorted(flag for flag in flags if not flag.startswith(HARMLESS))),
    }


def check_settings_of_jax(before: dict[str, Any], now: dict[str, Any], path: Any) -> None:
    """Raises ValueError naming what was set otherwise when the run at `path` began.

    before, now: as by `settings_of_jax`; what only one of them knows, as versions of JAX differ, is
    not compared.
    """
    for name in sorted(before.keys() & now.keys()):
        was, has = before[name], now[name]
        if was != has:
            mend = f'unset {name}' if was in (None, '') else f'set {name}={was}'
            raise ValueError(
                f'{name} was {_shown(was)} when {path} began and is {_shown(has)} now, under which '
                f'it has other numbers; {mend}, or start a new run'
            )


def prepare_jax(asked: Placement, cores: int | None = None, compute: bool = True) -> None:
    """Makes devices of the cores of a CPU, where they are asked for.

    cores: that this process may use, None for all that the operating system lets it. compute: here,
    and not only by workers.

    Raises ValueError where JAX cannot compute.
    """
    if asked.devices != 'all' and not asked.distributed:
        cores_as_devices(int(asked.devices) if asked.devices.isdecimal() else cores)
    check_jax(compute)


def check_jax(compute: bool = True) -> None:
    """Raises ValueError, one line, where JAX is set so that nothing can run, or finds no device.

    compute: try it, which takes hold of the devices.
    """
    for name, (value, why) in IMPOSSIBLE.items():
        if _option(name) == value:
            raise ValueError(f'{name.upper()}={value}: {why}; unset it')
    if not compute:
        return
    try:
        jax.block_until_ready(jax.jit(lambda x: x + 1)(np.float32(1)))
    except Exception as error:  # of whatever backend
        platforms = _option('jax_platforms')
        chosen = f' under JAX_PLATFORMS={platforms}' if platforms else ''
        mend = 'unset it, or install JAX for it' if platforms else 'see docs/install.md'
        reason = in_a_line(str(error).partition('\n')[0])
        raise ValueError(f'JAX cannot compute{chosen} ({reason}); {mend}') from error


_ABSENT = object()


def _option(name: str) -> Any:
    """The value of an option as JSON has it; _ABSENT where this version of JAX has none."""
    value = jax.config.values.get(name, _ABSENT)
    return value.name.lower() if isinstance(value, enum.Enum) else value


def _shown(value: Any) -> str:
    return 'not set' if value in (None, '') else str(value)
