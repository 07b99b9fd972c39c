"""Which flags have an effect beside the others: one rule a flag, for the checks and for --help."""

from collections.abc import Callable, Container
from typing import Any

from dfl_jax import data
from dfl_jax.cli.flags.method_flags import METHOD
from dfl_jax.cli.flags.run_flags import GROUPS
from dfl_jax.experiment.own_code import of_others
from dfl_jax.methods import EVENTS, Method
from dfl_jax.topology import FAMILIES

ARCHITECTURES = 'clients of different architectures'  # title of their flags
# Flags of a partition, by what they set of `data.partition`
OF_PARTITIONS = {
    'alpha': 'alpha',
    'partition_overlap': 'overlap',
    'zipf_exponent': 'exponent',
    'lognormal_sigma': 'lognormal_sigma',
    'shards_per_client': 'shards_per_client',
    'samples_per_client': 'samples_per_client',
}
# Flags of a graph family, by what they set of `topology.Settings`
OF_FAMILIES = {
    'topology_file': 'path',
    'degree': 'degree',
    'link_probability': 'probability',
    'degree_exponent': 'exponent',
    'torus_dimensions': 'dimensions',
    'rewiring': 'rewiring',
}


def idle_inputs(value: Callable[[str], Any]) -> dict[str, str]:
    """The data and network flags without effect, each with the flag that makes it so.

    value: of a flag by its name, None where it has none.
    """
    dataset, partition, topology = (
        str(value(name) or '') for name in ('dataset', 'partition', 'topology')
    )
    from_file = value('partition_file') is not None
    # A file of parts is as often made by alpha, and its flagfile says so
    file_says = ('alpha', 'partition_overlap') if from_file else ()
    split = data.PARTITIONS.get(partition)  # of unknown names --help shows all flags
    try:
        source = data.SOURCES[data.kind_of(dataset)]
        of_source = {name: name in source.takes for name in data.OPTIONS}
    except data.DataError:
        # A loader of one's own takes none of them. Of an unknown name --help shows all flags.
        of_source = dict.fromkeys(data.OPTIONS, False) if of_others(dataset) else {}
    family = FAMILIES.get(topology)
    gain = value('gain')
    rules = {
        f'--partition={partition}': {
            name: split is None or setting in split.takes or name in file_says
            for name, setting in OF_PARTITIONS.items()
        },
        '--partition_file, whose indices mean the whole set': {'train_samples': not from_file},
        f'--dataset={dataset}': of_source,
        f'--topology={topology}': {
            name: family is None or field in family.takes for name, field in OF_FAMILIES.items()
        }
        | {'static_topology': family is None or family.static is not False},
    }
    if value('world') is None:
        rules['the default, no --world'] = {'barrier': False, 'round_seconds': False}
    if not value('link_dropout'):
        rules['--link_dropout=0'] = {'directed_dropout': False}
    if value('init') == 'gain_corrected':
        rules[f'--gain={gain}'] = {
            'gain_size_factor': gain in ('family', 'degrees', 'size'),
            'gain_exponent': gain in ('size', 'push_sum'),
            'gain_polled': gain == 'degrees',
            'gain_rounds': gain == 'push_sum',
        }
    else:
        init = f'--init={value("init")}' if value('init') else 'the default --init'
        rules[init] = dict.fromkeys(GROUPS['gain of --init=gain_corrected'], False)
    return {
        name: against
        for against, flags in rules.items()
        for name, applies in flags.items()
        if not applies
    }


def idle_flags(flags: Any, method: Method, settings: Container[str]) -> dict[str, str]:
    """All flags without effect, each with what makes it so and the remedy.

    flags: with their values, a method's defaults among them; settings: the flags of the method.
    """
    idle = {n: f'{a}; leave it out' for n, a in idle_inputs(lambda n: flags[n].value).items()}
    of_method = f'--algorithm={flags.algorithm}'
    idle |= {
        n: f'{of_method}; leave it out' for n in GROUPS[METHOD] if n not in settings and n in flags
    }
    if method.graphs == EVENTS:
        clocks = f'{of_method}, whose clients have clocks of their own; leave it out'
        of_rounds = ('client_dropout', 'receive_dropout', 'isolate_dropout', 'barrier')
        of_links = ('link_dropout_directed', 'directed_dropout')
        idle |= dict.fromkeys((*of_rounds, *of_links), clocks)
    if method.graphs == 'cohort':
        server = f'{of_method}, whose server hears a cohort; leave it out'
        idle |= {n: server for n in GROUPS['network'] if n != 'client_dropout'}
    if method.heterogeneous:
        name_them = f'{of_method}; name the networks by --architectures'
        idle |= dict.fromkeys(('model', 'hidden'), name_them)
    else:
        alike = f'{of_method}, whose clients have one --model; leave it out'
        idle |= dict.fromkeys(GROUPS[ARCHITECTURES], alike)
    return idle


def check_applicable(flags: Any, method: Method, settings: Container[str]) -> None:
    """Raises ValueError for a flag that was given and would be ignored."""
    for name, reason in idle_flags(flags, method, settings).items():
        if flags[name].present:
            raise ValueError(f'{flags[name].serialize()} does not apply to {reason}')
