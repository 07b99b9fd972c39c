"""Whether a method of one's own makes what the simulator runs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Algorithm, Clients, Graph, Info
from dfl_jax.exchange import one_round
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.table_rows import is_own, reporting
from dfl_jax.heterogeneous import Population
from dfl_jax.methods import make
from dfl_jax.models import Model
from dfl_jax.setting_error import SettingError, by_flat_names

BATCH = 2  # samples whose predictions are asked for


def make_checked(
    configured: ConfiguredMethod, network: Model | Population, targets: np.ndarray
) -> Algorithm:
    """The method of a run. Raises SettingError for settings out of range, and where a method of
    one's own makes no Algorithm; nothing is computed. targets: [n, ...], of the training set."""
    name = configured.name
    with by_flat_names(configured.flat_names), reporting('algorithm', name, 'factory'):
        try:
            algorithm = make(configured.method.factory, network, **configured.settings)
        except ImportError as error:  # a backend that is not installed
            raise SettingError('algorithm', name, str(error)) from error
    if is_own(name) and isinstance(network, Model):
        _check(configured, algorithm, network, targets)
    return algorithm


def _check(configured: ConfiguredMethod, algorithm: Any, model: Model, targets: np.ndarray) -> None:
    name, count = configured.name, configured.run.clients

    def fault(text: str, remedy: str = '', colon: bool = True) -> SettingError:
        return SettingError('algorithm', name, text, remedy, colon)

    def check_shapes(what: str, expected: dict[str, tuple], found: dict[str, Any], whose: str):
        for entry, shape in expected.items():
            if entry not in found:
                raise fault(f"its {what} returns no '{entry}' {whose}")
            if (other := tuple(found[entry].shape)) != shape:
                raise fault(f"its {what} returns '{entry}' {other} {whose}, not {shape}")

    if not isinstance(algorithm, Algorithm):
        kind = type(algorithm).__name__
        raise fault(f'returns {kind}, not a dfl_jax.base.Algorithm', colon=False)
    places = (
        (1, configured.resolved['cohort']) if configured.method.graphs == 'cohort' else (count, 3)
    )
    sample, link = np.zeros((count, BATCH), bool), np.zeros(places, np.int32)
    y = np.zeros((count, BATCH, *targets.shape[1:]), targets.dtype)
    graph = Graph(link, link > 0, link[:, 0] > 0)
    inputs = np.zeros((count, BATCH, *model.input_shape), np.float32)
    clients = Clients(inputs, y, sample)
    if algorithm.task != model.task:
        text = f'learns {algorithm.task.name}, and the run {model.task.name}'
        raise fault(text, 'give its Algorithm task=model.task, or leave `task` out', colon=False)
    key = jax.random.key(0)
    x = jax.ShapeDtypeStruct((BATCH, *model.input_shape), jnp.float32)
    with reporting('algorithm', name, 'init'):
        state = jax.eval_shape(algorithm.init, key, clients)
    with reporting('algorithm', name, 'step'):
        after, info = jax.eval_shape(partial(one_round, algorithm), key, state, 0, graph, clients)
    had, has = _shapes(state), _shapes(after)
    for leaf in had | has:
        if had.get(leaf) != has.get(leaf):
            raise fault(
                f'its step returns another state than it is given: state{leaf} is '
                f'{has.get(leaf, "missing")} and was {had.get(leaf, "missing")}'
            )
    with reporting('algorithm', name, 'predict'):
        logits = jax.eval_shape(algorithm.predict, state, x)
    outputs = jax.eval_shape(model.apply, model.shapes, x).shape
    expected = {'client': (count, *outputs), 'consensus': outputs}
    found = logits if isinstance(logits, dict) else {}
    check_shapes('predict', expected, found, f'of {BATCH} samples')
    if not isinstance(info, Info):
        kind = type(info).__name__
        raise fault(f'its step returns {kind} beside the state, not a dfl_jax.base.Info')
    reported = {'loss': info.loss} | {kind: sent.messages for kind, sent in info.sent.items()}
    each = dict.fromkeys(reported, (count,))
    check_shapes('step', each, reported, f'of {count} clients')


def _shapes(state: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): f'{leaf.dtype}{[*leaf.shape]}' for path, leaf in leaves}
