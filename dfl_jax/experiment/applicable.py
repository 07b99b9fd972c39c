"""Which settings have an effect beside the others: one rule a setting, for checks and for help."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dfl_jax import data
from dfl_jax.experiment.method import flat_settings, flat_settings_of_all
from dfl_jax.experiment.run_settings import (
    OF_FAMILIES,
    OF_PARTITIONS,
    Architectures,
    Gain,
    Graphs,
    Privacy,
)
from dfl_jax.experiment.table_rows import is_own, name_of, row_of
from dfl_jax.methods import EVENTS, Method
from dfl_jax.setting_error import SettingError
from dfl_jax.topology import FAMILIES, Family


def _fields(part: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(part))


def unused_inputs(value: Callable[[str], Any]) -> dict[str, str]:
    """The settings of data and network without effect, each with the setting that makes it so.

    value: of a setting by its name, None where it has none.
    """
    dataset, partition, topology = (
        name_of(value(name) or '') for name in ('dataset', 'partition', 'topology')
    )
    from_file = value('partition_file') is not None
    # A file of parts is as often made by alpha, and its flagfile says so
    file_says = ('alpha', 'partition_overlap') if from_file else ()
    split = row_of(value('partition'), data.PARTITIONS, data.Partition)
    family = row_of(value('topology'), FAMILIES, Family)
    try:
        source = data.SOURCES[data.kind_of(dataset)]
        of_source = {name: name in source.takes for name in data.OPTIONS}
    except data.DataError:
        # A loader of one's own takes none of them. Of an unknown name --help shows all flags.
        of_source = dict.fromkeys(data.OPTIONS, False) if is_own(dataset) else {}
    gain = value('gain')
    rules = {
        f'`partition={partition}`': {
            name: split is None or setting in split.takes or name in file_says
            for name, setting in OF_PARTITIONS.items()
        },
        '`partition_file`, whose indices mean the whole set': {'train_samples': not from_file},
        f'`dataset={dataset}`': of_source,
        f'`topology={topology}`': {
            name: family is None or field in family.takes for name, field in OF_FAMILIES.items()
        }
        | {'static_topology': family is None or family.static is not False},
    }
    if value('world') is None:
        rules['the default, no `world`'] = {'barrier': False, 'round_seconds': False}
    if value('attackers') is None:
        rules['the default, no `attackers`'] = {'attack': False, 'attackers_each': False}
    if not value('link_dropout'):
        rules['`link_dropout=0`'] = {'directed_dropout': False}
    if value('init') == 'gain_corrected':
        rules[f'`gain={gain}`'] = {
            'gain_size_factor': gain in ('family', 'degrees', 'size'),
            'gain_exponent': gain in ('size', 'push_sum'),
            'gain_polled': gain == 'degrees',
            'gain_rounds': gain == 'push_sum',
        }
    else:
        init = f'`init={value("init")}`' if value('init') else 'the default `init`'
        rules[init] = dict.fromkeys(_fields(Gain), False)
    return {
        name: against
        for against, settings in rules.items()
        for name, applies in settings.items()
        if not applies
    }


def unused_settings(value: Callable[[str], Any], method: Method) -> dict[str, str]:
    """All settings without effect, each with what makes it so and the remedy.

    value: as in `unused_inputs`, a method's defaults among them.
    """
    unused = {name: f'{why}; leave it out' for name, why in unused_inputs(value).items()}
    of_method = f'`algorithm={name_of(value("algorithm"))}`'
    settings = flat_settings(method)
    unused |= {n: f'{of_method}; leave it out' for n in flat_settings_of_all() if n not in settings}
    if 'dp_clip' not in settings:
        covered = f'{of_method}, whose messages no noise covers; leave it out'
        unused |= {n: covered for n in unused if n.startswith('dp_')}
        unused |= dict.fromkeys(_fields(Privacy), covered)
    if method.graphs == EVENTS:
        clocks = f'{of_method}, whose clients have clocks of their own; leave it out'
        of_rounds = ('client_dropout', 'receive_dropout', 'isolate_dropout', 'barrier')
        of_links = ('link_dropout_directed', 'directed_dropout')
        unused |= dict.fromkeys((*of_rounds, *of_links, 'arrival'), clocks)
    if method.graphs != 'neighbours':
        no_neighbours = f'{of_method}, where clients have no neighbours; leave it out'
        unused['attackers_each'] = no_neighbours
        not_all = f'{of_method}, where not all clients send in every round; leave it out'
        unused['message_error_feedback'] = not_all
    if method.graphs == 'cohort':
        server = f'{of_method}, whose server hears a cohort; leave it out'
        unused |= {n: server for n in _fields(Graphs) if n != 'client_dropout'}
    if method.heterogeneous:
        name_them = f'{of_method}; name the networks by `architectures`'
        unused |= dict.fromkeys(('model', 'hidden'), name_them)
    else:
        alike = f'{of_method}, whose clients have one `model`; leave it out'
        unused |= dict.fromkeys(_fields(Architectures), alike)
    return unused


def check_applicable(given: Mapping[str, Any], value: Callable[[str], Any], method: Method) -> None:
    """Raises SettingError for a setting that was given and would be ignored."""
    for name, reason in unused_settings(value, method).items():
        if name in given:
            raise SettingError(name, given[name], f'does not apply to {reason}', colon=False)
