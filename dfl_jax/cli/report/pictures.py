"""Pictures of the curves, partitions and topologies of runs."""

import io
import tempfile
import warnings
from collections.abc import Callable, Collection, Sequence
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from dfl_jax import topology
from dfl_jax.cli.command import in_a_line
from dfl_jax.cli.experiment.build import partition, streams
from dfl_jax.cli.experiment.datasets import load_data
from dfl_jax.cli.experiment.flags import GROUPS
from dfl_jax.cli.experiment.graphs import neighbours
from dfl_jax.cli.report import html
from dfl_jax.cli.report.measures import columns
from dfl_jax.cli.report.runs import Group, SavedRun, inside
from dfl_jax.cli.run.plots import COLOURS, MUTED, plot_partition, plt
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.curves import CURVES
from dfl_jax.cli.tables.panels import table_panels
from dfl_jax.cli.tables.plot_panels import draw_panels

CLOCK = 'simulated_seconds'
PANELS = (  # curve, x, what they are
    (CURVES[0], 'round', 'Aggregated model over rounds'),
    (CURVES[1], 'round', 'Mean client over rounds'),
    (CURVES[0], 'mbytes_total', 'Aggregated model over traffic'),
    (CURVES[1], 'mbytes_total', 'Mean client over traffic'),
    (CURVES[0], CLOCK, 'Aggregated model over simulated seconds'),
    (CURVES[1], CLOCK, 'Mean client over simulated seconds'),
)
STYLES = ('solid', 'dashed', 'dotted')  # of lines whose colours come again
MOST_PICTURES = 8  # of partitions, and of topologies
MOST_CLIENTS, MOST_LINKS = 300, 4000  # of a picture of the topology
MOST_DIMENSIONS = 20  # of a torus
MOST_HOLDERS = 10_000  # clients of a picture of the partition
MOST_BYTES = 5_000_000  # of a partition.png
FILES = ('topology_file', 'partition_file', 'architecture_file', 'data_dir')  # settings
NUMBERED = 40  # clients up to which it names them
EMBEDDED = ('digits', 'synthetic')  # data sets at hand
HIDDEN = ('data_dir', 'test_samples', 'image_size', 'input_projection', 'plot_partition')
FAILURES = ('link_dropout', 'client_dropout', 'client_isolation')  # settings, likewise hidden


def curves(groups: Sequence[Group], target: float) -> str:
    """The PANELS side by side, a line a group; no traffic where a run sent none, and no simulated
    seconds where one has none."""
    runs = {
        str(place): [columns(run, (*CURVES, 'mbytes_total', CLOCK)) for run in group.counted]
        for place, group in enumerate(groups)
    }
    sent = all(run.get('mbytes_total', [0])[0] > 0 for cell in runs.values() for run in cell)
    clocked = all(CLOCK in run for cell in runs.values() for run in cell)
    reached = any(max(run[CURVES[0]]) >= target for cell in runs.values() for run in cell)
    lines = [
        {
            'cell': str(place),
            'label': in_a_line(group.label).replace('$', r'\$'),  # else it begins mathematics
            'colour': place,
            'style': STYLES[place // len(COLOURS) % len(STYLES)],
        }
        for place, group in enumerate(groups)
    ]
    panels = [
        {'title': title, 'lines': lines, 'curve': curve, 'x': x}
        for curve, x, title in PANELS
        if {'round': True, 'mbytes_total': sent, CLOCK: clocked}[x]
    ]
    drawn = table_panels({'rows': {}, 'panels': panels}, runs)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of glyphs that matplotlib lacks and a browser has
        figure = draw_panels(drawn, 'test accuracy (%)', target if reached else None, abreast=2)
        return html.figure(svg(figure), 'svg+xml', 'Test accuracy in percent, a line a group')


def svg(figure: Figure) -> bytes:
    """The figure as a file of its own; it is closed afterwards."""
    file = io.BytesIO()
    with plt.rc_context({'svg.fonttype': 'none'}):
        figure.savefig(file, format='svg')
    plt.close(figure)
    return file.getvalue()


def partitions(groups: Sequence[Group]) -> str:
    """The pictures of all partitions of the runs."""
    return _pictures(groups, {*GROUPS['data']} - {*HIDDEN}, partition_picture, 'grid')


def topologies(groups: Sequence[Group]) -> str:
    """The pictures of all topologies of the runs."""
    settings = {*GROUPS['network'], 'clients', 'ntk_fl_cohort'} - {*FAILURES}
    return _pictures(groups, settings, topology_picture, 'small grid')


def _pictures(
    groups: Sequence[Group],
    settings: Collection[str],
    draw: Callable[[Sequence[SavedRun]], str],
    style: str,
) -> str:
    """A picture for all runs that are alike in these settings, and why others have none.

    draw: from runs to the HTML of their picture.
    """
    alike: dict[tuple, list[SavedRun]] = {}
    for run in (run for group in groups for run in group.runs):
        alike.setdefault(tuple(map(run.settings.get, settings)), []).append(run)
    drawn: list[str] = []
    missing: dict[str, list[str]] = {}
    for runs in [*alike.values()][:MOST_PICTURES]:
        try:
            drawn.append(draw(runs))
        except Exception as error:  # of settings that are odd or old, whatever draws from them
            missing.setdefault(in_a_line(str(error)), []).append(runs[0].name)
    notes = [f'No picture for {", ".join(names)}: {why}.' for why, names in missing.items()]
    if len(alike) > MOST_PICTURES:
        notes.append(f'The first {MOST_PICTURES} of {len(alike)} are drawn.')
    below = ''.join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f'<div class="{style}">{"".join(drawn)}</div>\n{below}' if drawn else below


def namespace(run: SavedRun, **changed: Any) -> SimpleNamespace:
    """The settings of a run as the flags that they were, without the files that they name."""
    return SimpleNamespace(**(run.config['settings'] | dict.fromkeys(FILES) | changed))


def refuse_files(run: SavedRun, *names: str) -> None:
    """Raises ValueError where a picture would be drawn from one of these files.

    A config.json may be anybody's, and a page is made to be passed on: nothing that lies outside of
    the run directories goes into it, and be it in an error that quotes a line.
    """
    for name in names:
        if run.config['settings'].get(name) is not None:
            raise ValueError(
                f'it depends on the file of --{name}, outside the run directory, which is not read'
            )


def links(run: SavedRun) -> np.ndarray:
    """The links of a run's first round before any fails, [E, 2], each once.

    Raises ValueError where the settings draw none, or too many to be told apart.
    """
    refuse_files(run, 'topology_file')
    flags = namespace(run, rounds=1)
    if 'cohort' in run.config.get('algorithm', {}):
        raise ValueError('one server hears a cohort of clients')
    if flags.clients > MOST_CLIENTS:
        raise ValueError(f'{flags.clients} clients are too many for a picture')
    if getattr(flags, 'torus_dimensions', 0) > MOST_DIMENSIONS:  # powers of them would be tried
        raise ValueError(f'{flags.torus_dimensions} dimensions are too many for a picture')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the run has printed its warnings
        graph = neighbours(flags, streams(flags.seed)['graph'])
    members, mask = np.asarray(graph.members[0]), np.asarray(graph.mask[0])
    aggregators = np.broadcast_to(members[:, :1], members.shape)
    pairs = np.stack([aggregators[mask], members[mask]], axis=1)
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    if len(pairs) > MOST_LINKS:
        raise ValueError(f'{len(pairs):,} links are too many for a picture')
    return pairs


def topology_picture(runs: Sequence[SavedRun]) -> str:
    """The graph of the first of the runs. Raises ValueError as `links` does."""
    run, pairs = runs[0], links(runs[0])
    clients, family = run.config['settings']['clients'], run.config['settings']['topology']
    graph = nx.Graph()
    graph.add_nodes_from(range(clients))
    graph.add_edges_from(pairs.tolist())
    figure, axes = plt.subplots(figsize=(4.2, 4.2), layout='constrained')
    numbered = clients <= NUMBERED
    nx.draw(
        graph,
        _places(graph),
        axes,
        with_labels=numbered,
        node_size=170 if numbered else max(8, 5000 / clients),
        node_color=COLOURS[0],
        edgecolors='white',
        edge_color=MUTED,
        width=0.6,
        font_color='white',
        font_size=8,
    )
    axes.set_aspect('equal')
    degrees = [degree for _, degree in graph.degree]
    low, high = min(degrees), max(degrees)
    each = str(low) if low == high else f'{low} to {high}'
    whole = 'connected' if nx.is_connected(graph) else 'not connected'
    fixed = run.config['settings'].get('static_topology') or family == 'complete'
    when = 'the same in all rounds' if fixed else 'round 1; every round draws anew'
    if family in topology.SEQUENCES:
        when = 'round 1 of a sequence'
    caption = (
        f'{family.replace("_", " ")}: {clients} clients, {len(pairs):,} links, {each} a client, '
        f'{whole}; {when} (seed {run.seed})'
    )
    return html.figure(svg(figure), 'svg+xml', f'Graph of who hears whom, {caption}', caption)


def _places(graph: Any) -> dict[int, Any]:
    """Where clients are drawn: on a circle where all have two or all other neighbours."""
    clients = len(graph)
    degrees = {degree for _, degree in graph.degree}
    if degrees == {2} and nx.is_connected(graph):
        return nx.circular_layout([node for node, _ in nx.find_cycle(graph)])
    if degrees <= {clients - 1}:
        return nx.circular_layout(graph)
    if clients <= 100 and nx.is_connected(graph):
        return nx.kamada_kawai_layout(graph)
    return nx.spring_layout(graph, seed=0, method='force')


def _drawn_by_the_run(folder: Path) -> bytes | None:
    """The partition.png of a run directory, None where it has none, or one that is no picture."""
    file = folder / 'partition.png'
    if not file.is_file() or not inside(folder, file) or file.stat().st_size > MOST_BYTES:
        return None
    content = file.read_bytes()
    return content if content.startswith(b'\x89PNG\r\n') else None


def partition_picture(runs: Sequence[SavedRun]) -> str:
    """The partition of the first of the runs, or the partition.png of one that has it.

    Raises ValueError or OSError with the reason why there is none.
    """
    label = 'Training samples of every client, stacked by class'
    caption = f'{partition_words(runs[0].config["settings"])} (seed {runs[0].seed})'
    for run in runs:
        if (picture := _drawn_by_the_run(run.path)) is not None:
            return html.figure(picture, 'png', f'{label}, run {run.name}', caption)
    settings = runs[0].config['settings']
    if settings['dataset'] not in EMBEDDED:
        raise ValueError(
            f'{Path(settings["dataset"]).name}: the data is not read for this page; '
            '--plot_partition lets a run draw who holds what'
        )
    refuse_files(runs[0], 'partition_file')
    if settings['clients'] > MOST_HOLDERS:
        raise ValueError(f'{settings["clients"]} clients are too many for a picture')
    flags = namespace(runs[0], progress=False)
    seeds = streams(flags.seed)
    dataset = load_data(flags, seeds)
    parts, _ = partition(flags, dataset, seeds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'partition.svg'
        plot_partition(dataset.train_y, parts, dataset.classes, path)
        return html.figure(path.read_bytes(), 'svg+xml', label, caption)


def partition_words(settings: Row) -> str:
    """The partition in words, of the settings of a run."""
    kind = str(settings['partition']).replace('_', ' ')
    if settings.get('partition_file'):
        kind = Path(settings['partition_file']).name
    elif settings['partition'].startswith('dirichlet'):
        kind += f', alpha {settings["alpha"]}'
    return f'{Path(settings["dataset"]).stem}, {settings["clients"]} clients, {kind}'
