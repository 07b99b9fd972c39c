"""The clients of a run that lie: which they are, and what they do."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.data import Dataset
from dfl_jax.evaluation import Holdout
from dfl_jax.exchange import (
    ATTACKS,
    ROW_FACTORS,
    Attack,
    attack_named,
    members_needed,
    one_round,
    row_and_value,
)
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.evaluated_clients import listed_clients
from dfl_jax.experiment.poisoning import POISONS, Poison, poisoned, with_triggered
from dfl_jax.experiment.table_rows import TableRows, function_of, is_code, name_of
from dfl_jax.setting_error import SettingError

FORMS = 'is neither a share of the clients, as 0.2, nor a number of them, as 3, nor file:PATH'


class Adversaries(NamedTuple):
    """Clients that lie."""

    liars: np.ndarray  # [M] bool
    attack: Attack | None  # on messages
    poison: Poison | None  # of their data
    named: str  # the attack, as it was given

    def on_data(
        self, clients: Clients, test: Holdout, dataset: Dataset, seed: int
    ) -> tuple[Clients, Holdout]:
        """The data on which all train, and on which models are evaluated. Raises SettingError."""
        if self.poison is None:
            return clients, test
        test = with_triggered(test, self.poison, dataset, self.named)
        return poisoned(self.poison, clients, self.liars, dataset, seed), test


def adversaries(experiment: Description, rows: TableRows, seed: int) -> Adversaries | None:
    """Who lies, None where all are honest. Raises SettingError, before data are read."""
    given, clients = experiment.adversaries, experiment.partition.clients
    if given.attackers is None:
        return None
    if given.attack is None:
        remedy = f'choose one of {", ".join((*ATTACKS, *ROW_FACTORS, *POISONS))}'
        raise SettingError('attackers', given.attackers, 'need an `attack`', remedy, colon=False)
    liars = _drawn(given.attackers, clients, seed)
    own = is_code('attack', given.attack)
    if not own and given.attack.partition(':')[0] in POISONS:
        if not rows.task.of_classes:
            text = f'needs targets that are classes, and `task={rows.task.name}` has others'
            raise SettingError('attack', given.attack, text, colon=False)
        row, value = row_and_value('attack', given.attack, POISONS)
        found = Adversaries(liars, None, row.make(*value), given.attack)
    else:
        lie = function_of('attack', given.attack) if own else given.attack
        attack = attack_named(liars, lie, POISONS)
        found = Adversaries(liars, attack, None, name_of(given.attack))
    return found if liars.any() else None


def _drawn(text: str, clients: int, seed: int) -> np.ndarray:
    """Who lies, [M] bool, drawn at random where their number is given."""
    kind, _, path = text.partition(':')
    if kind == 'file' and path:
        liars = listed_clients('attackers', text, Path(path), clients)
    else:
        try:
            share = float(text)
        except ValueError:
            raise SettingError('attackers', text, FORMS, colon=False) from None
        whole = text.isdecimal()
        if not (whole or 0 <= share < 1):
            raise SettingError('attackers', text, FORMS, colon=False)
        count = int(text) if whole else round(share * clients)
        if share and not count:
            text_, remedy = f'is nobody of {clients} clients', f'take at least {1 / clients:.3g}'
            raise SettingError('attackers', text, text_, remedy, colon=False)
        liars = np.zeros(clients, bool)
        liars[np.random.default_rng(seed).permutation(clients)[:count]] = True
    if liars.sum() >= clients:
        text_, remedy = f'leave nobody honest of {clients} clients', 'lower them'
        raise SettingError('attackers', text, text_, remedy, colon=False)
    return liars


def honest_of(found: Adversaries, judged: np.ndarray | None, path: str | None) -> np.ndarray:
    """Over whom means are taken, [M] bool: the honest among those that a file lists, if any.

    Raises SettingError where there is none.
    """
    honest = ~found.liars if judged is None else ~found.liars & judged
    if not honest.any():
        text = 'lists attackers alone, over whom no means are taken'
        raise SettingError('evaluate_clients', path, text, 'add an honest client', colon=False)
    return honest


def with_attack(configured: ConfiguredMethod, attack: Attack | None) -> ConfiguredMethod:
    """The method whose messages liars tamper with. Raises SettingError where it has a setting of
    its own of that name, and would not."""
    if attack is not None and not configured.takes('attack'):
        text = 'has an argument `attack` of its own, by which no attack of the run reaches it'
        raise SettingError('algorithm', configured.name, text, 'rename it', colon=False)
    return replace(configured, attack=attack)


def check_reached(rows: TableRows, algorithm: Algorithm, clients: Clients, graphs: Graph) -> None:
    """Raises SettingError for an attack or an aggregation of messages that the method does not
    send, and for one that makes models of other shapes."""
    exchange = algorithm.exchange
    if exchange is None or not (exchange.attack or exchange.aggregation):
        return
    state = jax.eval_shape(algorithm.init, jax.random.key(0), clients)
    first = jax.tree.map(lambda a: a[0], graphs)
    for name, parts in (('attack', exchange._replace(aggregation=None)), ('aggregation', exchange)):
        if getattr(parts, name) is None:
            continue
        step = partial(one_round, algorithm._replace(exchange=parts))
        try:
            new, _ = jax.eval_shape(step, jax.random.key(0), state, 0, first, clients)
        except SettingError:
            raise
        except ValueError as error:
            raise SettingError(name, rows.values[name], str(error)) from error
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        if before.shape != after.shape:
            text = f'makes weights of shape {after.shape[1:]} out of those of {before.shape[1:]}'
            raise SettingError('aggregation', rows.values['aggregation'], text, colon=False)


def check_neighbourhoods(
    experiment: Description, intact: Graph, liars: np.ndarray | None, configured: ConfiguredMethod
) -> None:
    """Raises SettingError for more liars around an honest client than are allowed, and for a rule
    that no neighbourhood of the graphs, before failures, is large enough for."""
    if configured.method.graphs != 'neighbours':
        return
    members, mask = (np.asarray(array) for array in intact[:2])
    rule = configured.given.get('aggregation', 'mean') if configured.takes('combining') else 'mean'
    largest, needed = int(mask.sum(axis=-1).max()), members_needed(rule)
    if needed > largest:
        text = (
            f'needs neighbourhoods of at least {needed} members, the client among them, and the '
            f'largest of these graphs has {largest}'
        )
        asked = 'raise RHO' if str(rule).startswith('mozi') else 'lower B'
        remedy = f'{asked}, or raise `degree`'
        raise SettingError('aggregation', rule, text, remedy, colon=False)
    most = experiment.adversaries.attackers_each
    if most is None or liars is None:
        return
    around = (liars[members] & mask)[..., 1:].sum(axis=-1)
    around = np.where(liars[members[..., 0]], 0, around)
    if (found := int(around.max())) > most:
        client = int(members[..., 0].flat[around.argmax()])
        text = f'client {client}, who is honest, has {found} attackers among its neighbours'
        remedy = 'set `static_topology`, or name others by `attackers=file:PATH`'
        raise SettingError('attackers_each', most, text, remedy)
