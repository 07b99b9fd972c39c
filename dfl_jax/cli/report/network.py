"""The clients of runs: who hears whom, who holds what, and what each had reached in every round."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from dfl_jax.cli.report.curves import TOOLS, brief
from dfl_jax.cli.report.saved_runs import Group, SavedRun, is_inside
from dfl_jax.evaluation import ATTACKER
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.files import read_json
from dfl_jax.plain_text import in_a_line
from dfl_jax.plots import COLOURS, MUTED
from dfl_jax.results.curves import fault_of, is_number, scale_of

MOST_RUNS = 8  # whose clients a page shows
MOST_VALUES = 400_000  # of all clients of these
MOST_CLIENTS = 10_000  # of a run that is drawn
MOST_PLACED, MOST_LINKS = 1000, 5000  # clients and links of a network whose links are drawn
MOST_CLASSES = 100  # of samples that are told apart


def clients(groups: Sequence[Group]) -> Row:
    """What the page draws of the clients of the first run of each group.

    `runs`: see `drawing_of`; `notes` on others; `metrics` of all; `figures`, where there are runs.
    """
    chosen = [(each.counted or each.runs)[0] for each in groups]
    runs, notes = [], []
    for run in chosen[:MOST_RUNS]:
        try:
            runs.append(drawing_of(run, MOST_VALUES // min(len(chosen), MOST_RUNS)))
        except (ValueError, OSError) as error:
            notes.append(f'The clients of {run.name} are not shown: {fault_of(error, run.path)}.')
    if len(chosen) > MOST_RUNS:
        notes.append(f'The clients of the first {MOST_RUNS} of {len(chosen)} settings are shown.')
    classes = max((len(run['samples']) for run in runs), default=0)
    metrics = [*dict.fromkeys(name for run in runs for name in run['values'])]
    lying = any(run['attackers'] for run in runs)
    drawn = figures(classes, lying) if runs else None
    return {'runs': runs, 'metrics': metrics, 'notes': notes, 'figures': drawn}


def drawing_of(run: SavedRun, most: int) -> Row:
    """What is drawn of a run of M clients, of `most` values of them at most.

    `x` and `y` [M], places; `links` [E, 2]; `samples` [C, M]; `attackers`, their numbers;
    `caption`; `rounds` [T] and `values` {metric: [T, M]}, of every n-th evaluation where these are
    many, and `range` {metric: lowest and highest}. Raises ValueError for files that are missing,
    damaged or of too many clients.
    """
    count, directory = int(run.settings['clients']), RunDirectory(run.path)
    if count > MOST_CLIENTS:
        raise ValueError(f'{count} clients are too many for a picture')
    for file in (directory.network_file, directory.clients_file):
        if not is_inside(run.path, file):
            raise ValueError(f'{file.name} leads outside the run directory')
    if not directory.network_file.exists():
        raise ValueError('it has no network.json, which runs of this version write')
    network = read_json(directory.network_file)
    try:
        samples = np.array(network['samples'], dtype=np.int64).reshape(count, -1)
        links = np.array(network['links'] or [], dtype=np.int64).reshape(-1, 2)
        if (links < 0).any() or (links >= count).any():
            raise ValueError
        liars = [range(count)[client] for client in network.get('attackers', ())]
    except (ValueError, TypeError, LookupError, OverflowError):
        raise ValueError(f'network.json is damaged, or not of {count} clients') from None
    if samples.shape[1] > MOST_CLASSES:
        samples = samples.sum(axis=1, keepdims=True)
    graph = nx.empty_graph(count)
    graph.add_edges_from(links.tolist())
    text = caption(run, graph if network['links'] is not None else None)
    if liars:
        text += f'; attackers ({run.settings.get("attack")}): {", ".join(map(str, liars))}'
    if len(links) > MOST_LINKS or count > MOST_PLACED:
        links, graph = links[:0], nx.empty_graph(count)
    x, y = client_layout(graph).T
    drawn = {'x': brief(x), 'y': brief(y), 'links': links.tolist(), 'samples': samples.T.tolist()}
    drawn['attackers'] = liars
    values = values_of(run, directory, count, most)
    if left_out := values.pop('left_out'):
        text += f'; no {", ".join(left_out)}, which is not finite in some rounds'
    return {'name': run.name, 'caption': text, **drawn, **values}


def values_of(run: SavedRun, directory: RunDirectory, count: int, most: int) -> Row:
    """`rounds`, `values` and `range` of clients.jsonl, and in `left_out` the names that have values
    which are not finite. Raises ValueError where it is damaged."""
    evaluated = {row['round'] for row in run.rows}
    rows = [row for row in directory.client_rows() if row['round'] in evaluated]
    names = [name for name in (rows[0] if rows else ()) if name not in ('round', ATTACKER)]
    step = max(1, -(-len(rows) * len(names) * count // most))
    kept = rows[::-step][::-1]  # with the last
    values: dict[str, list[list[float]]] = {}
    left_out: list[str] = []
    for name in names:
        lists: list[Any] = [row.get(name) for row in kept]
        whole = all(isinstance(each, list) and len(each) == count for each in lists)
        if whole and any(
            isinstance(v, float) and not math.isfinite(v) for each in lists for v in each
        ):
            left_out.append(name)
            continue
        if not whole or not all(is_number(value) for each in lists for value in each):
            raise ValueError(f'clients.jsonl has no {in_a_line(name)} of {count} clients')
        values[name] = [brief(scale_of(name) * np.array(each), 4) for each in lists]
    if rows and not values:
        raise ValueError('clients.jsonl has no finite numbers')
    ranges = {name: [min(map(min, lists)), max(map(max, lists))] for name, lists in values.items()}
    rounds = [row['round'] for row in kept]
    return {'rounds': rounds, 'values': values, 'range': ranges, 'left_out': left_out}


def caption(run: SavedRun, graph: Any) -> str:
    """The network, None where it is not recorded, and the partition of a run in words."""
    settings, count = run.settings, run.settings['clients']
    kind = Path(settings.get('partition_file') or settings.get('partition', '-')).name
    if kind.startswith('dirichlet'):
        kind += f', alpha {settings.get("alpha")}'
    held = f'{Path(settings.get("dataset", "-")).stem}, {kind.replace("_", " ")} (seed {run.seed})'
    if graph is None:
        return f'{count} clients whose links are not recorded; {held}'
    ends = sorted({degree for _, degree in graph.degree})
    each = str(ends[0]) if len(ends) == 1 else f'{ends[0]} to {ends[-1]}'
    whole = 'connected' if nx.is_connected(graph) else 'not connected'
    hidden = ', too many to be drawn' * (graph.size() > MOST_LINKS or len(graph) > MOST_PLACED)
    family = settings.get('topology', '-').replace('_', ' ')
    network = f'{family}: {count} clients, {graph.size():,} links{hidden}, {each} a client, {whole}'
    return f'{network}, in round 1; {held}'


def client_layout(graph: Any) -> np.ndarray:
    """Where the clients are drawn, [M, 2]: row by row where they have no links."""
    if not graph.size():
        width = int(np.ceil(np.sqrt(len(graph))))
        row, column = np.divmod(np.arange(len(graph)), width)
        return np.stack([column, -row], axis=1)
    if {degree for _, degree in graph.degree} == {2} and nx.is_connected(graph):
        found = nx.circular_layout([node for node, _ in nx.find_cycle(graph)])
    elif len(graph) <= 100 and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph)
    else:
        found = nx.spring_layout(graph, seed=0, method='force')
    return np.array([found[client] for client in range(len(graph))])


def figures(classes: int, lying: bool) -> Any:
    """The two figures as JSON; the page fills their sources. lying: whether some clients do."""
    from bokeh.embed import json_item
    from bokeh.layouts import column
    from bokeh.models import ColorBar, ColumnDataSource, HoverTool, LinearColorMapper
    from bokeh.palettes import Category20_20, Turbo256
    from bokeh.plotting import figure

    held = [f'class {c}' for c in range(classes)]
    nodes, ends, liars, counts = (
        ColumnDataSource({column: [] for column in columns}, name=name)
        for name, columns in (
            ('clients', ('x', 'y', 'client', 'links', 'samples', 'value')),
            ('links', ('x0', 'y0', 'x1', 'y1')),
            ('attackers', ('x', 'y')),
            ('samples', ('client', 'samples', *held)),
        )
    )
    colours = LinearColorMapper('Viridis256', low=0, high=1, nan_color=COLOURS[0], name='colours')
    network = figure(
        height=520, tools=TOOLS, match_aspect=True, sizing_mode='stretch_width',
        x_axis_type=None, y_axis_type=None, active_scroll='wheel_zoom',
    )  # fmt: skip
    network.grid.visible = False
    network.segment('x0', 'y0', 'x1', 'y1', source=ends, color=MUTED, alpha=0.5)
    look = {'field': 'value', 'transform': colours}
    dots = network.scatter('x', 'y', size=13, color=look, line_color='white', source=nodes)
    if lying:
        look = {'color': COLOURS[1], 'fill_color': None, 'line_width': 3}
        network.scatter('x', 'y', size=18, legend_label='attacker', source=liars, **look)
    tips = [(name, f'@{name}') for name in ('client', 'links', 'samples')]
    tips.append(('value', '@value{0.[0000]}'))
    network.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    network.add_layout(ColorBar(color_mapper=colours, width=12), 'right')
    bars = figure(
        height=260, tools=TOOLS, sizing_mode='stretch_width',
        x_axis_label='client', y_axis_label='training samples',
    )  # fmt: skip
    palette = Category20_20 if classes <= 20 else Turbo256[:: 256 // classes]
    stack = bars.vbar_stack(held, x='client', width=0.9, color=palette[:classes], source=counts)
    tips = [('client', '@client'), ('samples of $name', '@$name'), ('samples', '@samples')]
    bars.add_tools(HoverTool(renderers=stack, tooltips=tips))
    for each in (network, bars):
        each.toolbar.logo = None
    return json_item(column(network, bars, sizing_mode='stretch_width'))
