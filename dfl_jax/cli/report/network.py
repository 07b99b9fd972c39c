"""The clients of runs: who hears whom, who holds what, and what each had reached in every round."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from dfl_jax.cli.command import in_a_line
from dfl_jax.cli.report.curves import short
from dfl_jax.cli.report.runs import Group, SavedRun, inside, scale_of
from dfl_jax.cli.run.plots import COLOURS, MUTED
from dfl_jax.cli.run.rundir import Row, RunDirectory, read_json
from dfl_jax.cli.tables.curves import is_number, reason

MOST_RUNS = 8  # whose clients a page shows
MOST_VALUES = 400_000  # of all clients of these
MOST_CLIENTS, MOST_LINKS = 10_000, 5000  # of a run that is drawn
MOST_CLASSES = 100


def clients(groups: Sequence[Group]) -> tuple[Row | None, list[str]]:
    """What the page draws of the clients of the first run of each group, and notes.

    `runs`: see `of_run`; `figures`: the network and who holds what. None without any such run.
    """
    chosen = [(each.counted or each.runs)[0] for each in groups]
    runs, notes = [], []
    for run in chosen[:MOST_RUNS]:
        try:
            runs.append(of_run(run, MOST_VALUES // min(len(chosen), MOST_RUNS)))
        except (ValueError, OSError) as error:
            notes.append(f'The clients of {run.name} are not shown: {reason(error, run.path)}.')
    if len(chosen) > MOST_RUNS:
        notes.append(f'The clients of the first {MOST_RUNS} of {len(chosen)} settings are shown.')
    classes = max((len(run['samples']) for run in runs), default=0)
    metrics = [*dict.fromkeys(name for run in runs for name in run['values'])]
    drawn = {'runs': runs, 'metrics': metrics, 'figures': figures(classes)}
    return drawn if runs else None, notes


def of_run(run: SavedRun, most: int) -> Row:
    """What is drawn of a run of M clients, of `most` values of them at most.

    `x` and `y` [M], places; `links` [E, 2]; `samples` [C, M]; `caption`; `rounds` [T] and `values`
    {metric: [T, M]}, of every n-th evaluation where these are many, and `range` {metric: lowest and
    highest}. Raises ValueError for files that are missing, damaged or of too many clients.
    """
    count, directory = int(run.settings['clients']), RunDirectory(run.path)
    if count > MOST_CLIENTS:
        raise ValueError(f'{count} clients are too many for a picture')
    for file in (directory.network_file, directory.clients_file):
        if not inside(run.path, file):
            raise ValueError(f'{file.name} leads outside the run directory')
    if not directory.network_file.exists():
        raise ValueError('it has no network.json, which runs of this version write')
    network = read_json(directory.network_file)
    try:
        samples = np.array(network['samples'], dtype=np.int64).reshape(count, -1)
        links = np.array(network['links'] or [], dtype=np.int64).reshape(-1, 2)
        if (links < 0).any() or (links >= count).any() or samples.shape[1] > MOST_CLASSES:
            raise ValueError
    except (ValueError, TypeError, LookupError, OverflowError):
        raise ValueError(f'network.json is damaged, or not of {count} clients') from None
    values = values_of(run, directory, count, most)
    text = caption(run, links, network['links'] is None)
    links = links if len(links) <= MOST_LINKS else links[:0]
    x, y = places(count, links).T
    drawn = {'x': short(x), 'y': short(y), 'links': links.tolist(), 'samples': samples.T.tolist()}
    return {'name': run.name, 'caption': text, **drawn, **values}


def values_of(run: SavedRun, directory: RunDirectory, count: int, most: int) -> Row:
    """`rounds`, `values` and `range` of clients.jsonl. Raises ValueError where it is damaged."""
    evaluated = {row['round'] for row in run.rows}
    rows = [row for row in directory.client_rows() if row['round'] in evaluated]
    names = [name for name in (rows[0] if rows else ()) if name != 'round']
    step = max(1, -(-len(rows) * len(names) * count // most))
    kept = rows[::-step][::-1]  # with the last
    values: dict[str, list[list[float]]] = {}
    for name in names:
        lists = [row.get(name) for row in kept]
        if not all(isinstance(each, list) and len(each) == count for each in lists) or not all(
            is_number(value) for each in lists for value in each or ()
        ):
            raise ValueError(f'clients.jsonl has no {in_a_line(name)} of {count} clients')
        values[name] = [short(scale_of(name) * np.array(each), 4) for each in lists]
    ranges = {name: [min(map(min, lists)), max(map(max, lists))] for name, lists in values.items()}
    return {'rounds': [row['round'] for row in kept], 'values': values, 'range': ranges}


def caption(run: SavedRun, links: np.ndarray, server: bool) -> str:
    """The network and the partition of a run in words."""
    settings, count = run.settings, int(run.settings['clients'])
    kind = Path(settings.get('partition_file') or settings.get('partition', '-')).name
    if kind.startswith('dirichlet'):
        kind += f', alpha {settings.get("alpha")}'
    held = f'{Path(settings.get("dataset", "-")).stem}, {kind.replace("_", " ")} (seed {run.seed})'
    if server:
        return f'{count} clients whose links are not recorded; {held}'
    graph = nx.empty_graph(count)
    graph.add_edges_from(links.tolist())
    low, *_, high = sorted([0] * (count < 2) + [degree for _, degree in graph.degree])
    each = str(low) if low == high else f'{low} to {high}'
    whole = 'connected' if nx.is_connected(graph) else 'not connected'
    hidden = ', too many to be drawn' * (len(links) > MOST_LINKS)
    family = settings.get('topology', '-').replace('_', ' ')
    return (
        f'{family}: {count} clients, {len(links):,} links{hidden}, {each} a client, {whole}, in '
        f'round 1; {held}'
    )


def places(count: int, links: np.ndarray) -> np.ndarray:
    """Where the clients are drawn, [M, 2]: row by row where they have no links."""
    if not len(links):
        width = int(np.ceil(np.sqrt(count)))
        return np.stack([np.arange(count) % width, -(np.arange(count) // width)], axis=1)
    graph = nx.empty_graph(count)
    graph.add_edges_from(links.tolist())
    if {degree for _, degree in graph.degree} == {2} and nx.is_connected(graph):
        found = nx.circular_layout([node for node, _ in nx.find_cycle(graph)])
    elif count <= 100 and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph)
    else:
        found = nx.spring_layout(graph, seed=0, method='force')
    return np.array([found[client] for client in range(count)])


def figures(classes: int) -> Any:
    """The two figures as JSON; the page fills their sources."""
    from bokeh.embed import json_item
    from bokeh.layouts import column
    from bokeh.models import ColorBar, ColumnDataSource, HoverTool, LinearColorMapper
    from bokeh.palettes import Category20_20, Turbo256
    from bokeh.plotting import figure

    held = [f'class {c}' for c in range(classes)]
    nodes, ends, counts = (
        ColumnDataSource({column: [] for column in columns}, name=name)
        for name, columns in (
            ('clients', ('x', 'y', 'client', 'links', 'samples', 'value')),
            ('links', ('x0', 'y0', 'x1', 'y1')),
            ('samples', ('client', 'samples', *held)),
        )
    )
    colours = LinearColorMapper('Viridis256', low=0, high=1, nan_color=COLOURS[0], name='colours')
    tools = 'pan,wheel_zoom,box_zoom,reset,save'
    network = figure(
        height=520, tools=tools, match_aspect=True, sizing_mode='stretch_width',
        x_axis_type=None, y_axis_type=None, active_scroll='wheel_zoom',
    )  # fmt: skip
    network.grid.visible = False
    network.segment('x0', 'y0', 'x1', 'y1', source=ends, color=MUTED, alpha=0.5)
    look = {'field': 'value', 'transform': colours}
    dots = network.scatter('x', 'y', size=13, color=look, line_color='white', source=nodes)
    tips = [(name, f'@{name}') for name in ('client', 'links', 'samples')]
    tips.append(('value', '@value{0.[0000]}'))
    network.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    network.add_layout(ColorBar(color_mapper=colours, width=12), 'right')
    bars = figure(
        height=260, tools=tools, sizing_mode='stretch_width',
        x_axis_label='client', y_axis_label='training samples',
    )  # fmt: skip
    palette = Category20_20 if classes <= 20 else Turbo256[:: 256 // classes]
    stack = bars.vbar_stack(held, x='client', width=0.9, color=palette[:classes], source=counts)
    tips = [('client', '@client'), ('samples of $name', '@$name'), ('samples', '@samples')]
    bars.add_tools(HoverTool(renderers=stack, tooltips=tips))
    for each in (network, bars):
        each.toolbar.logo = None
    return json_item(column(network, bars, sizing_mode='stretch_width'))
