"""The gain of a gain-corrected start, as far as clients know the network."""

import math
import warnings

import numpy as np

from dfl_jax import gossip
from dfl_jax.base import Graph
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.table_rows import TableRows
from dfl_jax.setting_error import InputError, SettingError, by_flat_names

FAMILY_ROUNDS = 20  # of the schedules from which gain='family' takes the gain of a changing graph


def initial_gain(
    experiment: Description,
    rows: TableRows,
    configured: ConfiguredMethod,
    graphs: Graph,
    sizes: np.ndarray,
    seed: int,
) -> float | np.ndarray | None:
    """The gain of a gain-corrected start, of all clients or each one's own [M]; None without it.

    Args:
      graphs: the schedule before any failure, which nobody can foresee.
      sizes: [M], samples of each client.
      seed: of draws and polls.

    Warns of a method that trains on the corrected weights before it averages them.

    Raises SettingError where the network has no common gain, or a number of clients does not fit.
    """
    if not configured.corrected:
        return None
    asked = experiment.gain
    family = rows.name('topology')
    resolved = configured.resolved
    if 'mixing' not in resolved:
        method = f'`algorithm={configured.name}`'
        text = f'is for weights that are averaged by a `mixing`, and {method} has none'
        raise SettingError('init', 'gain_corrected', text, 'take another `init`', colon=False)
    mixing = resolved['mixing']
    if resolved.get('round_order', 'average_first') != 'average_first':
        warnings.warn(
            'training begins with weights that are too large by the gain, as they have not been '
            'averaged; add `round_order=average_first` `loss_cap=10`',
            stacklevel=2,
        )
    for name in ('gain_size_factor', 'gain_exponent'):
        if not 0 < (value := getattr(asked, name)) < math.inf:
            raise SettingError(name, value, 'has to be positive and finite', colon=False)
    if asked.gain == 'graph':
        return gossip.gain_of(*gossip.mixing_matrices(graphs, sizes, mixing))
    if asked.gain == 'push_sum':
        estimates = gossip.push_sum_size(graphs, asked.gain_rounds)
        return gossip.gain_of_size(estimates, asked.gain_exponent)
    known = experiment.partition.clients * asked.gain_size_factor
    if asked.gain == 'size':
        return float(gossip.gain_of_size(known, asked.gain_exponent))
    changing = np.asarray(graphs.members).strides[0] != 0
    if asked.gain == 'degrees':
        reasons = {
            f'the weights of `topology={family}`': graphs.weights is not None,
            '`mixing=metropolis`': mixing == 'metropolis',
            '`mixing=size` where clients differ in size': mixing == 'size' and len(set(sizes)) > 1,
            f'`topology={family}`, whose links go one way': rows.family.directed,
            'a changing graph': changing,
        }
        if against := next((reason for reason, holds in reasons.items() if holds), None):
            text = f'is of uniform weights on one graph, not of {against}'
            remedy = 'use `gain=graph`, of uniform weights `gain=family`, or `static_topology`'
            raise SettingError('gain', 'degrees', text, remedy, colon=False)
        with by_flat_names({'sample': 'gain_polled'}):
            polled = gossip.polled_degrees(graphs, asked.gain_polled, seed)
        return gossip.gain_of_degrees(polled, known)  # type: ignore[arg-type]
    try:
        return gossip.gain_of_family(
            *(rows.family, round(known)),
            mixing='metropolis' if mixing == 'metropolis' else 'uniform',
            rounds=FAMILY_ROUNDS if changing else 1,
            seed=seed,
            **rows.family_options,
        )
    except ValueError as error:
        raise InputError(f'`gain=family`, networks of {round(known)} clients: {error}') from error
