"""The networks of the clients, as the flags describe them: one model, or several architectures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dfl_jax import data, files, models
from dfl_jax.experiment.own_code import named, of_others, reporting
from dfl_jax.heterogeneous import Population, assign_architectures, populate
from dfl_jax.methods import Method
from dfl_jax.models import MLP, MODELS, MODES, Model, bind, with_initializer
from dfl_jax.tasks import TASKS, Task


def build_network(
    flags: Any, dataset: data.Dataset, method: Method
) -> tuple[Model, Population | None]:
    """The model of every client; or the largest, and all of them where clients may differ.

    Raises ValueError for what does not fit the flags or the data.
    """
    task = task_named(flags.task)
    if method.heterogeneous:
        if not task.of_classes:
            raise ValueError(
                f'--task={flags.task}: the clients of --algorithm={flags.algorithm} learn classes '
                'from each other; take a gradient method, such as dfedavg'
            )
        population = build_population(flags, dataset, method, task)
        largest = max(population.models.values(), key=lambda each: each.size)
        check_outputs(flags, largest, dataset)
        return largest, population
    shape = dataset.train_x.shape[1:]
    factory = model_named(flags.model)
    if flags.hidden is None:
        with reporting(
            'model', flags.model, f'factory, called with the {dataset.classes} classes,'
        ):
            module = factory(dataset.classes)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f'--model={flags.model} returns {type(module).__name__}, not a flax.linen.Module'
            )
        with reporting('model', flags.model, 'module'):
            model = bind(module, shape, task)
    elif flags.model != 'mlp':
        raise ValueError(f'--hidden shapes --model=mlp, not --model={flags.model}; leave it out')
    else:
        widths = tuple(map(int, flags.hidden))
        if any(width < 1 for width in widths):
            raise ValueError(f'--hidden={",".join(flags.hidden)}: use widths of at least 1')
        model = bind(MLP(dataset.classes, widths), shape, task)
    check_outputs(flags, model, dataset)
    return with_initializer(model, flags.initializer) if flags.initializer else model, None


def check_outputs(flags: Any, model: Model, dataset: data.Dataset) -> None:
    """Raises ValueError where the network's outputs do not fit the task and the targets."""
    task, needed = model.task, dataset.classes
    fewer = model.classes < needed if task.whole_targets else model.classes != needed
    if task.one_output_each and fewer:
        raise ValueError(
            f'--model={flags.model} returns {model.classes} outputs, and --task={task.name} on '
            f'--dataset={flags.dataset} needs {needed}; use the number that the factory is given'
        )
    x = jax.ShapeDtypeStruct((2, *model.input_shape), jnp.float32)
    outputs = jax.eval_shape(model.apply, model.shapes, x)
    y = jax.ShapeDtypeStruct((2, *dataset.train_y.shape[1:]), dataset.train_y.dtype)
    for what, function in (('losses', task.losses), ('scores', task.scores)):
        try:
            with reporting('task', flags.task, what):
                found = jax.eval_shape(function, outputs, y).shape
        except (TypeError, ValueError) as error:
            if of_others(flags.task):
                raise
            raise ValueError(
                f'--task={flags.task}: outputs {outputs.shape[1:]} of --model={flags.model} and '
                f'targets {y.shape[1:]} of --dataset={flags.dataset} do not fit each other'
            ) from error
        if found != (2,):
            raise ValueError(
                f'--task={flags.task}: its {what} of 2 samples have the shape {found}, not (2,)'
            )


def model_named(name: str) -> Callable[[int], Any]:
    """What makes the network of that name from the number of classes. Raises ValueError."""
    if '-' not in name or of_others(name):
        return named('model', name, MODELS)
    try:
        models.architecture(name, classes=1)
    except ValueError as error:
        raise ValueError(f'--model={name}: {error}') from error
    return partial(models.architecture, name)


def task_named(name: str) -> Task:
    """A task of the library, or what package.module:factory returns. Raises ValueError."""
    with reporting('task', name, 'factory'):
        task = named('task', name, {known: lambda known=known: TASKS[known] for known in TASKS})()
    if not isinstance(task, Task):
        raise ValueError(f'--task={name} returns {type(task).__name__}, not a dfl_jax.tasks.Task')
    return task


def build_population(flags: Any, dataset: data.Dataset, method: Method, task: Task) -> Population:
    """Who has which network. Raises ValueError for what does not fit the flags or the images."""
    if flags.init == 'gain_corrected':
        raise ValueError(f'--init=gain_corrected does not apply to --algorithm={flags.algorithm}')
    listed = None
    if flags.architecture_file is not None:
        if flags.architecture_ratios:
            raise ValueError('--architecture_ratios and --architecture_file exclude each other')
        listed = _listed(flags.architecture_file, flags.clients)
    if not (flags.architectures or listed or method.architectures):
        raise ValueError(
            f'--algorithm={flags.algorithm} names no networks; name those of the clients, e.g. '
            '--architectures=cnn-32-64,cnn-16-32'
        )
    asked = flags.architectures or list(dict.fromkeys(listed or [method.architectures]))
    names = models.expand(asked)
    shape = dataset.train_x.shape[1:]
    networks: dict[str, Model] = {}
    for name in names:
        try:
            bound = bind(models.architecture(name, dataset.classes, flags.dfml_width), shape, task)
        except ValueError as error:
            modes = ', '.join(MODES)
            raise ValueError(
                f'--architectures={",".join(asked)}: {name} on inputs of shape {shape}: {error}; '
                f'take others (the modes {modes}, or e.g. cnn-32-64) or another --dataset'
            ) from error
        networks[name] = with_initializer(bound, flags.initializer) if flags.initializer else bound
    if listed is not None:
        return populate(networks, listed)
    ratios = flags.architecture_ratios or [1.0] * len(names)
    try:
        assigned = assign_architectures(names, flags.clients, [float(ratio) for ratio in ratios])
    except ValueError as error:
        given = ','.join(map(str, ratios))
        raise ValueError(f'--architecture_ratios={given}: {error}') from error
    return populate(networks, assigned)


def _listed(path: str, clients: int) -> list[str]:
    """The architecture of every client in a file. Raises ValueError where it names others."""
    try:
        listed = files.read_text(path).split()
    except (OSError, ValueError) as error:
        raise ValueError(f'--architecture_file={path} cannot be read: {error}') from None
    if len(listed) != clients:
        raise ValueError(
            f'--architecture_file={path} lists {len(listed)} architectures for '
            f'--clients={clients}; name one a line, client by client'
        )
    return listed
