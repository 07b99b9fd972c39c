"""The flags of the methods, which come from the settings of their factories.

A flag is typed by the setting, and its help is what the factory's docstring says; a method of one's
own gets flags for its arguments in the same way. The default is None, which leaves the setting at
the method's own default.
"""

from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from dfl_jax.cli.command import warn
from dfl_jax.cli.flags.old_names import OLD_NAMES, OLD_VALUES
from dfl_jax.cli.flags.run_flags import FLAGS, GROUPS, NOT_SETTINGS
from dfl_jax.method_settings import Setting, described
from dfl_jax.methods import METHODS, Method

METHOD = 'method'  # title of their group
GROUPS[METHOD] = []
PREFIXES = {  # of the flags of settings whose names alone would say too little
    'message': ('sparsity', 'bits', 'rounding'),
    'ntk': (
        *('precision', 'timesteps', 'patience', 'averaging', 'jacobian_weights'),
        *('batches', 'subsampling', 'by_cluster'),
    ),
    'ntk_fl': ('cohort',),
    'spark': (
        *('projection', 'projection_dim', 'projection_refresh', 'exchange', 'sampling'),
        *('warmup', 'alpha_init', 'alpha_final', 'tau_init', 'tau_final'),
    ),
    'dfml': (
        *('mutual_epochs', 'schedule', 'alpha', 'period', 'period_growth', 'peak_updates'),
        *('scheduled', 'teachers', 'transfer', 'weighted_samples', 'temperature'),
    ),
    'dec_fedavg': ('server',),
    'partial': ('channels',),
    'fml': ('meme',),
    'dispfl': ('density', 'prune_rate', 'anneal_rounds', 'regrow'),
}
NAMES = {  # setting -> flag, where they differ
    'proximal': 'fedprox_mu',
    'selection': 'timestep_selection',
    'kernel_form': 'spark_kernel',
    'step_form': 'spark_step',
    'rounds': 'spark_schedule_rounds',
} | {name: f'{prefix}_{name}' for prefix, names in PREFIXES.items() for name in names}
WITHOUT_FLAG = ('projection_seed',)  # a stream of --seed
DEFINE: dict[type, Callable] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


def settings_with_flags(method: Method) -> dict[str, Setting]:
    """The settings of a method that flags can give, by the names of the flags.

    A setting of the library has its flag everywhere; an argument of a method of one's own is named
    by itself, and so is what follows from a flag of the run, such as its rounds.
    """
    known = any(method.factory is each.factory for each in METHODS.values())
    of_the_run = method.from_run.keys() & FLAGS

    def flag(name: str, setting: Setting) -> str:
        renamed = (known or setting.part) and name not in of_the_run
        return NAMES.get(name, name) if renamed else name

    return {
        flag(name, setting): setting
        for name, setting in described(method.factory).items()
        if setting.kind is not None and name not in WITHOUT_FLAG
    }


def define_flags(method: Method) -> None:
    """Defines the flags of a method's settings that there are not yet.

    Raises ValueError where a setting is named like a flag of every run.
    """
    for name, setting in settings_with_flags(method).items():
        known = name in GROUPS[METHOD]
        if name in FLAGS:
            if known or setting.name in method.from_run:
                continue
            raise ValueError(
                f'its argument {name} is named like the flag --{name}, which every run has; rename '
                'it, or take it from the run by Method(..., from_run=...)'
            )
        DEFINE[setting.kind](name, None, setting.help)  # type: ignore[index]
        if not known:
            GROUPS[METHOD].append(name)


def given_settings(flags: flags.FlagValues, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings that flags give, of those by the flags' names; `values` has checked them."""
    given: dict[str, Any] = {}
    for name, setting in settings.items():
        value = flags[name].value if name in GROUPS[METHOD] else None
        if value is not None:
            given[setting.name] = tuple(map(int, value)) if setting.kind is tuple else value
    return given


FLAGS['algorithm'].help = f'One of {", ".join(METHODS)}, or package.module:factory.'
for _method in METHODS.values():
    define_flags(_method)
for _old, _new in OLD_NAMES.items():
    flags.DEFINE_alias(_old, _new)


def renew(given: flags.FlagValues) -> None:
    """Replaces old values by the new, with a warning of one line for these and for old names."""
    for old, new in OLD_NAMES.items():
        if given[old].present:
            warn(f'--{old} is now --{new}')
    for (name, old), new in OLD_VALUES.items():
        if given[name].value == old:
            warn(f'--{name}={old} is now --{name}={new}')
            given[name].value = new


def settings_of_a_run() -> dict[str, Any]:
    """Every flag that decides a run's result, by name."""
    return {flag.name: flag.value for flag in of_a_run() if flag.name not in NOT_SETTINGS}


def defaults_of_a_run() -> dict[str, Any]:
    """The default of each of these: what a run had of a flag that is younger than the run."""
    return {flag.name: flag.default for flag in of_a_run() if flag.name not in NOT_SETTINGS}


def flag_of(setting: str) -> str | None:
    """The flag of a setting of the library's methods, None where it has none."""
    name = NAMES.get(setting, setting)
    return name if name in GROUPS[METHOD] else None


def of_a_run() -> list[flags.Flag]:
    """Every flag of a run and of its methods."""
    # A flag of a method of one's own is gone where a process has put its flags back
    return [FLAGS[name] for names in GROUPS.values() for name in names if name in FLAGS]
