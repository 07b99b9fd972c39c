"""Wrong values for every flag of a run, generated from absl's registry, and flags out of place."""

from collections.abc import Iterator

from absl import flags

from dfl_jax.cli.flags import run_flags
from dfl_jax.experiment.method import flat_settings
from dfl_jax.methods import METHODS
from tests.torture.processes import Command

HUGE = '99999999999999999999'  # beyond 64 bits
FLOATS = ('nan', 'inf', '-inf', '-1.5', '1e999', 'much', '', '1,5')
INTEGERS = ('-1', '1.5', 'many', '', 'nan', HUGE, '0x')
LISTS = ('many', 'nan', '-8', '8,,8', ',', '1.5', '0', HUGE)
TABULAR = ('--dataset={in}/tiny.npz', '--clients=6', '--rounds=2', '--noprogress')
NETWORK = (*TABULAR, '--degree=2', '--hidden=8')
IMAGES = (
    *('--dataset={in}/images.npz', '--clients=6', '--rounds=2', '--noprogress'),
    *('--alpha=10', '--architectures=cnn-4'),
)
BASES = {  # of methods, a run that would start; the first that takes a flag is given it
    'ntk_dfl': (*NETWORK, '--evolution=euler', '--ntk_timesteps=10,20'),
    'dpsgd': NETWORK,
    'dfedsam': NETWORK,
    'dispfl': NETWORK,
    'spark': (*NETWORK, '--spark_projection_dim=20', '--spark_warmup=1'),
    'ntk_fl': (*TABULAR, '--hidden=8', '--ntk_fl_cohort=2'),
    'dfml': IMAGES,
    'def_kt': IMAGES,
    'dec_fml': IMAGES,
    'dec_fed_dropout': IMAGES,
}
BESIDE = {  # flags that need another to apply
    'zipf_exponent': ('--partition=zipf',),
    'lognormal_sigma': ('--partition=lognormal',),
    'shards_per_client': ('--partition=shards',),
    'samples_per_client': ('--partition=balanced',),
    'degree_exponent': ('--topology=configuration',),
    'torus_dimensions': ('--topology=torus',),
    'rewiring': ('--topology=watts_strogatz', '--degree=2'),
    'assortativity': ('--topology=erdos_renyi',),
    'image_size': ('--dataset=image_folder', '--data_dir={in}/images-good'),
    'columns': ('--dataset={in}/table.csv',),
    'test_share': ('--dataset={in}/table.csv', '--columns=target=y'),
    'text_window': ('--dataset=sonnets', '--task=next_token', '--model=gru'),
    'link_probability': ('--topology=erdos_renyi',),
    'gain': ('--init=gain_corrected',),
    'gain_size_factor': ('--init=gain_corrected', '--gain=size'),
    'gain_exponent': ('--init=gain_corrected', '--gain=size'),
    'gain_polled': ('--init=gain_corrected', '--gain=degrees', '--static_topology'),
    'gain_rounds': ('--init=gain_corrected', '--gain=push_sum'),
    'message_rounding': ('--message_bits=8',),
}
OF_POPULATIONS = (
    *('architectures', 'architecture_ratios', 'dfml_width', 'senders', 'aggregators'),
    'aggregator',
)
NO_VALUE_IS_WRONG = ('out', 'wandb_project', 'data_dir', 'compilation_cache')
FILES = ('partition_file', 'topology_file', 'architecture_file')
# Where more than enough does no harm
UNBOUNDED = ('seed', 'eval_every', 'batch_size', 'chunk', 'dfml_peak_updates')
GROWING = ('lr_decay',)  # a negative decay is a growth


def generated() -> Iterator[Command]:
    """Every flag with every value that is wrong for its type, then every flag out of place."""
    run_flags.define()
    takers = _takers()
    for flag in run_flags.of_a_run():
        if flag.name in (*NO_VALUE_IS_WRONG, *FILES):
            continue
        method = takers.get(flag.name, 'dfml' if flag.name in OF_POPULATIONS else 'ntk_dfl')
        for value in _wrong(flag):
            yield _run(method, flag.name, value)
    for name in takers:
        other = next((m for m in BASES if m not in _takers_of(name)), None)
        if other and name != 'rounds':  # those of the run serve every method
            yield _run(other, name, '1')


def _wrong(flag: flags.Flag) -> tuple[str, ...]:
    kind = flag.flag_type()
    if kind == 'float':
        return tuple(v for v in FLOATS if v != '-1.5' or flag.name not in GROWING)
    if kind == 'int':
        return tuple(v for v in INTEGERS if v != HUGE or flag.name not in UNBOUNDED)
    if kind == 'bool':
        return ('maybe', '2')
    if 'list' in kind:
        return tuple(v for v in LISTS if flag.name != 'architecture_ratios' or v != '1.5')
    return ('nonsense', '', 'None', 'ntk dfl', '../..')


def _run(method: str, name: str, value: str) -> Command:
    base = [each for each in BASES[method] if not each.startswith(f'--{name}=')]
    beside = BESIDE.get(name, ())
    for flag in beside:
        base = [each for each in base if each.split('=')[0] != flag.split('=')[0]]
    if any(each.startswith('--topology=') for each in (*beside, f'--{name}=')):
        base = [each for each in base if not each.startswith('--degree=')]
    return Command('run', (f'--algorithm={method}', *base, *beside, f'--{name}={value}'))


def _takers() -> dict[str, str]:
    """The first of BASES that takes a flag, for every flag of a method."""
    found: dict[str, str] = {}
    for method in BASES:
        for name in flat_settings(METHODS[method]):
            found.setdefault(name, method)
    return found


def _takers_of(name: str) -> list[str]:
    return [method for method in BASES if name in flat_settings(METHODS[method])]
