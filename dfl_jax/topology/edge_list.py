"""A graph from a file of links."""

import os
import warnings

import numpy as np

from dfl_jax.host import read_text
from dfl_jax.topology.settings import TopologyError


def read_edges(path: str | os.PathLike, clients: int) -> np.ndarray:
    """Links [E, 2] of an edge list, self loops left out.

    Two node ids a line, apart by spaces or a comma, and what networkx writes after them: a number
    or a dictionary. Neither is used; of weights a warning says so.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise TopologyError(f'edge list {path} cannot be read: {error}; correct the path') from None
    links, weighted = [], None
    for number, line in enumerate(lines, 1):
        fields = line.split('#')[0].replace(',', ' ').split(None, 2)
        if not fields:
            continue
        more = fields[2].strip() if len(fields) > 2 else ''
        ids = all(f.isdecimal() and len(f) < 20 for f in fields[:2])
        if len(fields) < 2 or not ids or not (_is_number(more) or more[:1] in ('', '{')):
            raise TopologyError(
                f'{path}:{number}: two node ids expected, and perhaps a weight, '
                f'got {line.strip()[:60]!r}; write it as networkx.write_edgelist does'
            )
        if weighted is None and (_is_number(more) or 'weight' in more):
            weighted = number
        link = [int(f) for f in fields[:2]]
        if max(link) >= clients:
            raise TopologyError(
                f'{path}:{number}: node {max(link)} is not one of the {clients} clients '
                f'0 to {clients - 1}; raise clients to {max(link) + 1} or renumber the file'
            )
        if link[0] != link[1]:
            links.append(link)
    if not links:
        raise TopologyError(f'edge list {path} holds no link; write two node ids a line')
    if weighted is not None:
        warnings.warn(
            f'{path}:{weighted}: the weights of links are not used; the averaging has its own',
            stacklevel=4,
        )
    return np.array(links, np.int32).reshape(-1, 2)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
