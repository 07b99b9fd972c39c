"""The networks of the clients: one model, or several architectures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dfl_jax import data, files, models
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.own_code import is_own, name_of, named, reporting
from dfl_jax.heterogeneous import Population, assign_architectures, populate
from dfl_jax.models import MLP, MODELS, MODES, Model, bind, with_initializer
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import TASKS, Task


def build_network(
    experiment: Description, dataset: data.Dataset
) -> tuple[Model, Population | None]:
    """The model of every client; or the largest, and all of them where clients may differ.

    Raises SettingError for what does not fit the settings or the data.
    """
    task = task_named(experiment.data.task)
    network, initializer = experiment.network, experiment.network.initializer
    if experiment.method.row.heterogeneous:
        if not task.of_classes:
            raise SettingError(
                'task',
                task.name,
                f'the clients of `algorithm={experiment.method.name}` learn classes from each '
                'other',
                'take a gradient method, such as dfedavg',
            )
        population = build_population(experiment, dataset, task)
        largest = max(population.models.values(), key=lambda each: each.size)
        check_outputs(experiment, largest, dataset)
        return largest, population
    shape = dataset.train_x.shape[1:]
    factory = model_named(network.model)
    if network.hidden is None:
        what = f'factory, called with the {dataset.classes} classes,'
        with reporting('model', network.model, what):
            module = factory(dataset.classes)
        if not isinstance(module, nn.Module):
            raise SettingError(
                'model',
                name_of(network.model),
                f'returns {type(module).__name__}, not a flax.linen.Module',
                colon=False,
            )
        with reporting('model', network.model, 'module'):
            model = bind(module, shape, task)
    elif network.model != 'mlp':
        raise ValueError(
            f'`hidden` shapes `model=mlp`, not `model={name_of(network.model)}`; leave it out'
        )
    else:
        widths = tuple(map(int, network.hidden))
        if any(width < 1 for width in widths):
            raise SettingError('hidden', network.hidden, 'use widths of at least 1')
        model = bind(MLP(dataset.classes, widths), shape, task)
    check_outputs(experiment, model, dataset)
    return with_initializer(model, initializer) if initializer else model, None


def check_outputs(experiment: Description, model: Model, dataset: data.Dataset) -> None:
    """Raises ValueError where the network's outputs do not fit the task and the targets."""
    task, needed = model.task, dataset.classes
    name, of_data = name_of(experiment.network.model), name_of(experiment.data.dataset)
    fewer = model.classes < needed if task.whole_targets else model.classes != needed
    if task.one_output_each and fewer:
        raise SettingError(
            'model',
            name,
            f'returns {model.classes} outputs, and `task={task.name}` on `dataset={of_data}` needs '
            f'{needed}',
            'use the number that the factory is given',
            colon=False,
        )
    x = jax.ShapeDtypeStruct((2, *model.input_shape), jnp.float32)
    outputs = jax.eval_shape(model.apply, model.shapes, x)
    y = jax.ShapeDtypeStruct((2, *dataset.train_y.shape[1:]), dataset.train_y.dtype)
    given = name_of(experiment.data.task)
    for what, function in (('losses', task.losses), ('scores', task.scores)):
        try:
            with reporting('task', given, what):
                found = jax.eval_shape(function, outputs, y).shape
        except (TypeError, ValueError) as error:
            if is_own(given):
                raise
            raise SettingError(
                'task',
                given,
                f'outputs {outputs.shape[1:]} of `model={name}` and targets {y.shape[1:]} of '
                f'`dataset={of_data}` do not fit each other',
            ) from error
        if found != (2,):
            raise SettingError(
                'task', given, f'its {what} of 2 samples have the shape {found}, not (2,)'
            )


def model_named(value: Any) -> Callable[[int], Any]:
    """What makes the network of that name from the number of classes. Raises SettingError."""
    if is_own(value) or '-' not in value:
        return named('model', value, MODELS)
    try:
        models.architecture(value, classes=1)
    except ValueError as error:
        raise SettingError('model', value, str(error)) from error
    return partial(models.architecture, value)


def task_named(value: Any) -> Task:
    """A task of the library, or one's own: what package.module:factory returns, or the task itself.

    Raises SettingError.
    """
    if isinstance(value, Task):
        return value
    with reporting('task', value, 'factory'):
        task = named('task', value, {known: lambda known=known: TASKS[known] for known in TASKS})()
    if not isinstance(task, Task):
        raise SettingError(
            'task',
            name_of(value),
            f'returns {type(task).__name__}, not a dfl_jax.tasks.Task',
            colon=False,
        )
    return task


def build_population(experiment: Description, dataset: data.Dataset, task: Task) -> Population:
    """Who has which network. Raises SettingError for what does not fit the settings or images."""
    given, method = experiment.architectures, experiment.method
    if method.given.get('init') == 'gain_corrected':
        raise SettingError(
            'init',
            'gain_corrected',
            f'does not apply to `algorithm={method.name}`',
            colon=False,
        )
    clients, initializer = experiment.partition.clients, experiment.network.initializer
    listed = None
    if given.architecture_file is not None:
        if given.architecture_ratios:
            raise ValueError('`architecture_ratios` and `architecture_file` exclude each other')
        listed = _listed(given.architecture_file, clients)
    if not (given.architectures or listed or method.row.architectures):
        raise SettingError(
            'algorithm',
            method.name,
            'names no networks',
            'name those of the clients, e.g. `architectures=cnn-32-64,cnn-16-32`',
            colon=False,
        )
    asked = given.architectures or list(dict.fromkeys(listed or [method.row.architectures]))
    names = models.expand(asked)
    shape = dataset.train_x.shape[1:]
    networks: dict[str, Model] = {}
    for name in names:
        try:
            bound = bind(models.architecture(name, dataset.classes, given.dfml_width), shape, task)
        except ValueError as error:
            raise SettingError(
                'architectures',
                asked,
                f'{name} on inputs of shape {shape}: {error}',
                f'take others (the modes {", ".join(MODES)}, or e.g. cnn-32-64) or another '
                '`dataset`',
            ) from error
        networks[name] = with_initializer(bound, initializer) if initializer else bound
    if listed is not None:
        return populate(networks, listed)
    ratios = given.architecture_ratios or [1.0] * len(names)
    try:
        assigned = assign_architectures(names, clients, [float(ratio) for ratio in ratios])
    except ValueError as error:
        raise SettingError('architecture_ratios', ratios, str(error)) from error
    return populate(networks, assigned)


def _listed(path: str, clients: int) -> list[str]:
    """The architecture of every client in a file. Raises SettingError where it names others."""
    try:
        listed = files.read_text(path).split()
    except (OSError, ValueError) as error:
        raise SettingError(
            'architecture_file', path, f'cannot be read: {error}', colon=False
        ) from None
    if len(listed) != clients:
        raise SettingError(
            'architecture_file',
            path,
            f'lists {len(listed)} architectures for `clients={clients}`',
            'name one a line, client by client',
            colon=False,
        )
    return listed
