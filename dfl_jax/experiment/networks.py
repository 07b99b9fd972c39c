"""The networks of the clients: one model, or several architectures."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from dfl_jax import data, files, models
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.table_rows import TableRows, is_own
from dfl_jax.heterogeneous import Population, assign_architectures, populate
from dfl_jax.models import MODES, Model, bind, with_initializer
from dfl_jax.setting_error import SettingError


def build_network(
    experiment: Description, rows: TableRows, dataset: data.Dataset
) -> tuple[Model, Population | None]:
    """The model of every client; or the largest, and all of them where clients may differ.

    Raises SettingError for what does not fit the settings or the data.
    """
    task, population = rows.task, None
    if rows.method.heterogeneous:
        population = build_population(experiment, rows, dataset)
        model = max(population.models.values(), key=lambda each: each.size)
    else:
        with rows.reporting('model', f'factory, called with the {dataset.classes} classes,'):
            module = rows.module(dataset.classes)
        if not isinstance(module, nn.Module):
            text = f'returns {type(module).__name__}, not a flax.linen.Module'
            raise SettingError('model', rows.name('model'), text, colon=False)
        with rows.reporting('model', 'module'):
            model = bind(module, dataset.train_x.shape[1:], task)
        if initializer := experiment.network.initializer:
            model = with_initializer(model, initializer)
    check_outputs(rows, model, dataset)
    return model, population


def check_outputs(rows: TableRows, model: Model, dataset: data.Dataset) -> None:
    """Raises ValueError where the network's outputs do not fit the task and the targets."""
    task, needed = model.task, dataset.classes
    name, of_data, given = (rows.name(setting) for setting in ('model', 'dataset', 'task'))
    fewer = model.classes < needed if task.whole_targets else model.classes != needed
    if task.one_output_each and fewer:
        text = (
            f'returns {model.classes} outputs, and `task={task.name}` on `dataset={of_data}` needs '
            f'{needed}'
        )
        remedy = 'use the number that the factory is given'
        raise SettingError('model', name, text, remedy, colon=False)
    x = jax.ShapeDtypeStruct((2, *model.input_shape), jnp.float32)
    outputs = jax.eval_shape(model.apply, model.shapes, x)
    y = jax.ShapeDtypeStruct((2, *dataset.train_y.shape[1:]), dataset.train_y.dtype)
    for what, function in (('losses', task.losses), ('scores', task.scores)):
        try:
            with rows.reporting('task', what):
                found = jax.eval_shape(function, outputs, y).shape
        except (TypeError, ValueError) as error:
            if is_own(given):
                raise
            text = (
                f'outputs {outputs.shape[1:]} of `model={name}` and targets {y.shape[1:]} of '
                f'`dataset={of_data}` do not fit each other'
            )
            raise SettingError('task', given, text) from error
        if found != (2,):
            text = f'its {what} of 2 samples have the shape {found}, not (2,)'
            raise SettingError('task', given, text)


def build_population(experiment: Description, rows: TableRows, dataset: data.Dataset) -> Population:
    """Who has which network. Raises SettingError for what does not fit the settings or images."""
    given, method, task = experiment.architectures, experiment.method, rows.task
    if not task.of_classes:
        text = f'the clients of `algorithm={method.name}` learn classes from each other'
        raise SettingError('task', task.name, text, 'take a gradient method, such as dfedavg')
    if method.given.get('init') == 'gain_corrected':
        text = f'does not apply to `algorithm={method.name}`'
        raise SettingError('init', 'gain_corrected', text, colon=False)
    clients, initializer = experiment.partition.clients, experiment.network.initializer
    listed = None
    if given.architecture_file is not None:
        if given.architecture_ratios:
            text = 'excludes `architecture_ratios`; leave one of the two out'
            raise SettingError('architecture_file', given.architecture_file, text, colon=False)
        listed = _listed(given.architecture_file, clients)
    if not (given.architectures or listed or rows.method.architectures):
        remedy = 'name those of the clients, e.g. `architectures=cnn-32-64,cnn-16-32`'
        raise SettingError('algorithm', method.name, 'names no networks', remedy, colon=False)
    asked = given.architectures or list(dict.fromkeys(listed or [rows.method.architectures]))
    names = models.expand(asked)
    shape = dataset.train_x.shape[1:]
    networks: dict[str, Model] = {}
    for name in names:
        try:
            bound = bind(models.architecture(name, dataset.classes, given.dfml_width), shape, task)
        except ValueError as error:
            text, modes = f'{name} on inputs of shape {shape}: {error}', ', '.join(MODES)
            remedy = f'take others (the modes {modes}, or e.g. cnn-32-64) or another `dataset`'
            raise SettingError('architectures', asked, text, remedy) from error
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
        text = f'cannot be read: {error}'
        raise SettingError('architecture_file', path, text, colon=False) from None
    if len(listed) != clients:
        text = f'lists {len(listed)} architectures for `clients={clients}`'
        remedy = 'name one a line, client by client'
        raise SettingError('architecture_file', path, text, remedy, colon=False)
    return listed
