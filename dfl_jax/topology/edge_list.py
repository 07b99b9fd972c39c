"""A graph from a file of links."""

import os
import re

import numpy as np

from dfl_jax.files import read_text
from dfl_jax.topology.family_settings import TopologyError
from dfl_jax.topology.own_graphs import all_or_none

WEIGHT = re.compile(r"""['"]weight['"]\s*:\s*([^,}\s]+)""")  # in a dictionary of networkx
COMMENT = re.compile(r'#[^}]*$')  # and not a # in a dictionary
SCALAR = re.compile(r'np\.\w+\((.*)\)')  # how NumPy 2 prints a number of its own


def read_edges(
    path: str | os.PathLike, clients: int, directed: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """Links [E, 2] of an edge list, each once and self loops left out, and their weights [E].

    Two node ids a line, apart by spaces or a comma, and what networkx writes after them: the weight
    of the link, or a dictionary that may have one. None where no line has a weight.

    directed: a line `j i` says that i hears j, which is the link (i, j).
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise TopologyError(f'edge list {path} cannot be read: {error}; correct the path') from None
    weights: dict[tuple[int, int], float | str | None] = {}
    for number, line in enumerate(lines, 1):
        fields = COMMENT.sub('', line).replace(',', ' ').split(None, 2)
        if not fields:
            continue
        more = _plain(fields[2].strip()) if len(fields) > 2 else ''
        ids = all(f.isdecimal() and len(f) < 20 for f in fields[:2])
        if len(fields) < 2 or not ids or not (_is_number(more) or more[:1] in ('', '{')):
            raise TopologyError(
                f'{path}:{number}: two node ids expected, and perhaps a weight, '
                f'got {line.strip()[:60]!r}; the nodes are the clients 0 to {clients - 1}: number '
                'them by networkx.convert_node_labels_to_integers before networkx.write_edgelist'
            )
        link = [int(f) for f in fields[:2]]
        if max(link) >= clients:
            raise TopologyError(
                f'{path}:{number}: node {max(link)} is not one of the {clients} clients '
                f'0 to {clients - 1}; raise clients to {max(link) + 1} or renumber the file'
            )
        found = WEIGHT.search(more)
        text = _plain(found[1]) if found else more if _is_number(more) else ''
        weight = float(text) if _is_number(text) else text or None
        ends = (link[0], link[1]) if directed else (min(link), max(link))
        if ends in weights and weights[ends] != weight:
            raise TopologyError(
                f'{path}:{number}: link {ends[0]} {ends[1]} had the weight {weights[ends]} before '
                f'and has {weight} here; write it once'
            )
        if link[0] != link[1]:
            weights[ends] = weight
    if not weights:
        raise TopologyError(f'edge list {path} holds no link; write two node ids a line')
    links = np.array(list(weights), np.int32).reshape(-1, 2)
    return links[:, ::-1] if directed else links, all_or_none(list(weights.values()), str(path))


def _plain(text: str) -> str:
    """0.3 of np.float64(0.3), any other text as it is."""
    found = SCALAR.fullmatch(text)
    return found[1] if found else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
