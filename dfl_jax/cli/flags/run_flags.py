"""The flags of a run, which are derived from its settings and from those of its method.

A flag is typed by the setting, and its help is what the docstring says of it. The flag of a
method's setting has the default None, which leaves it at the method's own; a method of one's own
gets flags for its arguments in the same way.
"""

import dataclasses
import re
from collections.abc import Callable, Container, Sequence
from typing import Any

from absl import flags

from dfl_jax.cli.command import define_path
from dfl_jax.experiment import run_settings as parts
from dfl_jax.experiment.description import bounds, known_settings
from dfl_jax.experiment.experiment import Experiment
from dfl_jax.experiment.method import flat_settings, flat_settings_of_all
from dfl_jax.experiment.table_rows import is_own, method_named, reporting
from dfl_jax.experiment.values import check_value
from dfl_jax.method_settings import Setting
from dfl_jax.methods import FLAT_NAMES

FLAGS = flags.FLAGS
METHOD = 'method'  # title of the flags of methods
MOVED_MEANINGS = {  # of flags, in a command that looks into runs and is told where files are now
    'dataset': 'File of the data, where it has moved since the run',
    'data_dir': 'Folder of the data sets, where it has moved since the run',
    'partition_file': 'Partition file of the run, where it has moved',
    'topology_file': 'Topology file of the run, where it has moved',
    'architecture_file': 'Architecture file of the run, where it has moved',
    'arrival': 'file:PATH of the arrival of samples, where it has moved',
    'attackers': 'file:PATH of the clients that lie, where it has moved',
    'evaluate_clients': 'File of the clients that are evaluated, where it has moved',
}
# How a run is watched, and where its files are
OF_THE_COMMAND = (
    *('out', 'resume', 'allow_imports', 'checkpoint', 'progress', 'log'),
    *('tensorboard', 'wandb', 'wandb_project', 'compilation_cache'),
)
# What may differ between a run and its continuation
NOT_SETTINGS = (*OF_THE_COMMAND, 'plot_partition', 'devices', 'distributed')


def _names(*of: type) -> list[str]:
    return [field.name for part in of for field in dataclasses.fields(part)]


GROUPS: dict[str, list[str]] = {  # title in --help -> flags
    'run': ['algorithm', *_names(parts.Network), 'rounds', 'seed'],
    'data': [*_names(parts.Data, parts.Partition), 'plot_partition'],
    'network': _names(parts.Graphs),
    'simulated time': _names(parts.Time),
    'clients of different architectures': _names(parts.Architectures),
    'gain of --init=gain_corrected': _names(parts.Gain),
    'clients that lie': _names(parts.Adversaries),
    'privacy': _names(parts.Privacy),
    'evaluation and output': [*_names(parts.Evaluation, parts.Placement), *OF_THE_COMMAND],
    METHOD: [*flat_settings_of_all()],
}
SWITCHES = {  # flag of the command -> what it does; none is on by default
    'plot_partition': 'Draw which client has which samples into partition.png.',
    'resume': 'Continue the run in --out from its last checkpoint, with the settings that it has; '
    'a larger --rounds extends it.',
    'allow_imports': 'Let --resume and select import the algorithm, model, task or loader that '
    'config.json names as package.module:factory.',
    'tensorboard': 'Write event files for TensorBoard into the run directory.',
    'wandb': 'Log every evaluation to Weights & Biases; WANDB_MODE=offline works without an '
    'account.',
}
DEFINE: dict[type, Callable] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
    list: flags.DEFINE_list,
}


def define() -> None:
    """Defines all flags of a run, those of the library's methods among them, once."""
    if 'algorithm' in FLAGS:
        return
    of_methods = flat_settings_of_all()
    for name, setting in known_settings().items():
        _define(name, setting._replace(default=None) if name in of_methods else setting)
    _define_of_the_command()


def _define(name: str, setting: Setting) -> None:
    of, text = bounds(name), setting.help
    if name in parts.PART_OF:  # docstrings of methods have values in backticks
        text = re.sub(r'`(\w+)(=[^`]*)?`', r'--\1\2', text)
    least, choices, before = of.get('least'), of.get('choices'), of.get('path')
    if before is not None:
        define_path(name, setting.default, text, before=before)
    elif choices:
        flags.DEFINE_enum(name, setting.default, choices, text)
    elif least is not None:
        flags.DEFINE_integer(name, setting.default, text, lower_bound=least)
    else:
        default = list(setting.default) if isinstance(setting.default, tuple) else setting.default
        DEFINE[setting.kind](name, default, text)  # type: ignore[index]


def define_flags_of_others(arguments: Sequence[str]) -> None:
    """Defines the flags of the methods of one's own that a command line names.

    arguments: of the command, those of its flagfiles among them, which are not parsed yet.

    Raises ValueError, one line.
    """
    for argument in arguments:
        flag, _, value = argument.lstrip('-').partition('=')
        if flag == 'sweep':
            flag, _, value = value.partition(':')
        for name in value.split(',') if flag == 'algorithm' else ():
            if is_own(name):
                define_of_method(name)


def define_of_method(name: str) -> None:
    """Defines the flags of a method of one's own that there are not yet.

    Raises ValueError where a setting is named like a flag of every run.
    """
    with reporting('algorithm', name, 'factory'):
        method = method_named(name)
        for flat, setting in flat_settings(method).items():
            known = flat in GROUPS[METHOD]
            if flat in FLAGS:
                if known or setting.name in method.from_run:
                    continue
                raise ValueError(
                    f'its argument {flat} is named like the flag `{flat}`, which every run has; '
                    'rename it, or take it from the run by Method(..., from_run=...)'
                )
            _define(flat, setting._replace(default=None))
            if not known:
                GROUPS[METHOD].append(flat)


def given_settings() -> dict[str, Any]:
    """The settings of a run that the command line gives, by their names."""
    return {
        flag.name: flag.value
        for flag in of_a_run()
        if flag.present and flag.name not in (*OF_THE_COMMAND, 'plot_partition')
    }


def experiment_of_flags() -> Experiment:
    """The experiment that the flags describe. Raises ValueError naming what is wrong."""
    return Experiment.of(**given_settings())


def of_a_run() -> list[flags.Flag]:
    """Every flag of a run and of its methods."""
    # A flag of a method of one's own is gone where a process has put its flags back
    return [FLAGS[name] for names in GROUPS.values() for name in names if name in FLAGS]


def check_flags() -> None:
    """Raises ValueError for a text that is empty, and for a number that is not finite or larger
    than a run could ever use."""
    for name in FLAGS:
        flag = FLAGS[name]
        if flag.value != '' or flag.present:
            check_value(name, flag.value, flag.flag_type() in ('int', 'float'))


def refuse_others(shared: Container[str], why: str) -> None:
    """Raises ValueError for a flag of a run that was given and is not one of `shared`."""
    for flag in of_a_run():
        if flag.present and flag.name not in shared:
            raise ValueError(f'{flag.serialize()} does not apply{why}; leave it out')


def flag_of(setting: str) -> str | None:
    """The flag of a setting of the library's methods, None where it has none."""
    name = FLAT_NAMES.get(setting, setting)
    return name if name in GROUPS[METHOD] else None


def _define_of_the_command() -> None:
    for name, text in SWITCHES.items():
        flags.DEFINE_bool(name, False, text)
    define_path('out', None, 'Folder of the results (default: runs/ALGORITHM-DATASET-TIME).')
    flags.DEFINE_bool('checkpoint', True, 'Save a checkpoint at every evaluation.')
    flags.DEFINE_bool('progress', True, 'Show a progress bar.')
    flags.DEFINE_enum(
        'log',
        'text',
        ['text', 'json'],
        'Format of the standard output: text, or json, which writes one line of JSON at the '
        'start, for every evaluation and at the end, and the text to standard error.',
    )
    flags.DEFINE_string(
        'wandb_project', None, 'Project of --wandb (default $WANDB_PROJECT, else dfl_jax).'
    )
    define_path(
        'compilation_cache', None, "Folder of XLA's persistent compilation cache; off uses none."
    )
