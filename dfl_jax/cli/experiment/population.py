"""The clients' networks where they may differ, and their meetings, as the flags describe them."""

from collections.abc import Sequence
from typing import Any

from dfl_jax import data
from dfl_jax.base import Graph
from dfl_jax.heterogeneous.population import Population, assign_architectures, populate
from dfl_jax.host import read_text
from dfl_jax.models import MODES, Model, architecture, bind, expand, with_initializer
from dfl_jax.topology.aggregators import meetings

ARCHITECTURES = {  # of the paper's comparison, where they are not those of mode H2
    'dec_fedprox': 'h0',
    'def_kt': 'h0',
    'dec_fed_dropout': 'h1_cnn',
    'dec_heterofl': 'h1_cnn',
    'dec_fedrolex': 'h1_cnn',
}
FLAGS = (
    'architectures',
    'architecture_ratios',
    'architecture_file',
    'dfml_width',
    'senders',
    'aggregators',
    'aggregator',
)


def check_no_population(flags: Any) -> None:
    """Raises ValueError for a flag of populations given to a method whose clients are alike."""
    for name in FLAGS:
        if flags[name].present:
            raise ValueError(
                f'--{name}={flags[name].serialize().split("=", 1)[-1]} does not apply to '
                f'--algorithm={flags.algorithm}, whose clients have one --model; leave it out'
            )


def build_population(flags: Any, dataset: data.Dataset) -> Population:
    """Who has which network. Raises ValueError for what does not fit the flags or the images."""
    for name in ('model', 'hidden'):
        if flags[name].present:
            raise ValueError(
                f'--{name} does not apply to --algorithm={flags.algorithm}; name the networks by '
                '--architectures'
            )
    if flags.init == 'gain_corrected':
        raise ValueError(f'--init=gain_corrected does not apply to --algorithm={flags.algorithm}')
    listed = None
    if flags.architecture_file is not None:
        listed = _listed(flags.architecture_file)
    usual = list(dict.fromkeys(listed or [ARCHITECTURES.get(flags.algorithm, 'h2_cnn')]))
    asked = flags.architectures or usual
    names = expand(asked)
    shape = dataset.train_x.shape[1:]
    models: dict[str, Model] = {}
    for name in names:
        try:
            bound = bind(architecture(name, dataset.classes, flags.dfml_width), shape)
        except ValueError as error:
            modes = ', '.join(MODES)
            raise ValueError(
                f'--architectures={",".join(asked)}: {name} on inputs of shape {shape}: {error}; '
                f'take others (the modes {modes}, or e.g. cnn-32-64) or another --dataset'
            ) from error
        models[name] = with_initializer(bound, flags.initializer) if flags.initializer else bound
    return populate(models, _assigned(flags, names, listed))


def _listed(path: str) -> list[str]:
    """The architectures of a file. Raises ValueError where it names none."""
    try:
        listed = read_text(path).split()
    except (OSError, ValueError) as error:
        raise ValueError(f'--architecture_file={path} cannot be read: {error}') from None
    if not listed:
        raise ValueError(
            f'--architecture_file={path} is empty; name one architecture a line, client by client'
        )
    return listed


def _assigned(flags: Any, names: Sequence[str], listed: list[str] | None) -> list[str]:
    """The architecture of every client: assigned evenly, in ratios, or as the file lists them."""
    if listed is None:
        ratios = flags.architecture_ratios or [1.0] * len(names)
        try:
            return assign_architectures(names, flags.clients, [float(ratio) for ratio in ratios])
        except ValueError as error:
            given = ','.join(map(str, ratios))
            raise ValueError(f'--architecture_ratios={given}: {error}') from error
    if flags.architecture_ratios:
        raise ValueError('--architecture_ratios and --architecture_file exclude each other')
    if len(listed) != flags.clients:
        raise ValueError(
            f'--architecture_file={flags.architecture_file} lists {len(listed)} architectures for '
            f'--clients={flags.clients}; name one a line, client by client'
        )
    return listed


def senders_of(flags: Any) -> int:
    """|S|: half of the clients unless the flag says otherwise."""
    return flags.clients // 2 if flags.senders is None else flags.senders


def draw_meetings(flags: Any, graphs: Graph, seed: int) -> Graph:
    """Who meets at whom in every round of a schedule of neighbours as it happens."""
    senders = senders_of(flags)
    aggregators = flags.aggregators
    if aggregators is None:
        aggregators = senders if flags.algorithm == 'def_kt' else 1
    return meetings(graphs, senders, seed=seed, aggregators=aggregators, choice=flags.aggregator)
