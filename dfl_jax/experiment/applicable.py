"""Which settings have an effect beside the others: one rule a setting, for checks and for help."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dfl_jax import data
from dfl_jax.experiment.method import flat_settings, flat_settings_of_all
from dfl_jax.experiment.own_code import is_own, name_of
from dfl_jax.experiment.run_settings import Architectures, Gain, Graphs
from dfl_jax.methods import EVENTS, Method
from dfl_jax.setting_error import SettingError
from dfl_jax.topology import FAMILIES, FROM_FILE, SEQUENCES, WITH_DEGREE


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
    dirichlet = partition.startswith('dirichlet') or from_file
    try:
        kind = data.kind_of(dataset)
        of_kind = {name: kind in kinds for name, kinds in data.TAKERS.items()}
    except data.DataError:
        # A loader of one's own takes none of them. Of an unknown name --help shows all flags.
        of_kind = dict.fromkeys(data.TAKERS, False) if is_own(dataset) else {}
    with_degree = topology in WITH_DEGREE or topology not in FAMILIES
    gain = value('gain')
    rules = {
        f'`partition={partition}`': {
            'alpha': dirichlet,
            'partition_overlap': dirichlet,
            'zipf_exponent': partition == 'zipf',
            'lognormal_sigma': partition == 'lognormal',
            'shards_per_client': partition == 'shards',
            'samples_per_client': partition == 'balanced',
        },
        '`partition_file`, whose indices mean the whole set': {'train_samples': not from_file},
        f'`dataset={dataset}`': of_kind,
        f'`topology={topology}`': {
            'topology_file': topology in FROM_FILE,
            'degree': with_degree,
            'static_topology': topology not in SEQUENCES,
            'link_probability': topology == 'erdos_renyi',
            'degree_exponent': topology in ('configuration', 'chung_lu'),
            'torus_dimensions': topology == 'torus',
            'rewiring': topology == 'watts_strogatz',
        },
    }
    if value('world') is None:
        rules['the default, no `world`'] = {'barrier': False, 'round_seconds': False}
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
    if method.graphs == EVENTS:
        clocks = f'{of_method}, whose clients have clocks of their own; leave it out'
        of_rounds = ('client_dropout', 'receive_dropout', 'isolate_dropout', 'barrier')
        of_links = ('link_dropout_directed', 'directed_dropout')
        unused |= dict.fromkeys((*of_rounds, *of_links), clocks)
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
