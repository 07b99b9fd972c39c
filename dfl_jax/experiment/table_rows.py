"""What the names in the settings of a run mean: rows of the library's tables, or code of one's own.

Own methods, models, tasks, data sets, families, partitions, optimizers, schedules, rules of
aggregation and attacks are given as package.module:factory, or as the object itself. Whatever their
code raises, and whatever else it returns than it should, becomes a SettingError of one line, before
the first round.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from dfl_jax import data, models
from dfl_jax.data import feature_shift
from dfl_jax.exchange import ATTACKS, ROW_FACTORS, RULES
from dfl_jax.experiment.poisoning import POISONS
from dfl_jax.experiment.run_settings import OF_FAMILIES, OF_PARTITIONS
from dfl_jax.method_settings import nearest
from dfl_jax.methods import METHODS, Method, exchanging
from dfl_jax.models import MLP, MODELS
from dfl_jax.plain_text import in_a_line
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import TASKS, Task
from dfl_jax.topology import FAMILIES, Family
from dfl_jax.training.optimisers import SCHEDULES, learning_rate_factor, named_optimiser

# Settings that may be package.module:factory
SETTINGS_OF_CODE = (
    *('algorithm', 'model', 'task', 'dataset', 'topology', 'partition'),
    *('optimizer', 'lr_schedule', 'aggregation', 'attack'),
)
# Of these the tables whose names may be followed by a colon and a value
WITH_VALUES: dict[str, Any] = {
    'lr_schedule': SCHEDULES,
    'aggregation': RULES,
    'attack': ATTACKS | ROW_FACTORS | POISONS,
}


def name_of(value: Any) -> str:
    """The name of a method, model, task, data set, ...; of an object MODULE:NAME, where it is."""
    if isinstance(value, str):
        return value
    # A row of a table lies in the module of its function, under a name of its own
    fields = value if isinstance(value, tuple) else getattr(value, '__dict__', {}).values()
    functions = (each for each in (value, *fields) if hasattr(each, '__qualname__'))
    where = next(functions, type(value))
    module = getattr(sys.modules.get(where.__module__), '__dict__', {})
    name = next((name for name, each in module.items() if each is value), where.__qualname__)
    return f'{where.__module__}:{name}'


def is_own(value: Any) -> bool:
    """Whether it is code that is not the library's, by its name or as an object."""
    return not isinstance(value, str) or ':' in value


def is_own_loader(value: Any) -> bool:
    """Whether a dataset is code, and neither a file nor of Hugging Face."""
    if not isinstance(value, str):
        return True
    try:
        data.kind_of(value)
    except data.DataError:
        return is_own(value)
    return False


def is_code(setting: str, value: Any) -> bool:
    """Whether the value of one of SETTINGS_OF_CODE runs code that is not the library's."""
    if setting in WITH_VALUES and isinstance(value, str):
        module, _, factory = value.partition(':')
        return factory.isidentifier() and module not in WITH_VALUES[setting]
    return value is not None and (is_own_loader if setting == 'dataset' else is_own)(value)


def digest_of_code(values: Mapping[str, Any]) -> str | None:
    """16 digits of the source files of the modules that SETTINGS_OF_CODE name; None without any.

    Of what these import in their turn nothing is known.

    Raises SettingError for a module that cannot be imported.
    """
    named = [(setting, values[setting]) for setting in SETTINGS_OF_CODE]
    modules = [_module_of(setting, value) for setting, value in named if is_code(setting, value)]
    files = sorted({file for each in modules if (file := getattr(each, '__file__', None))})
    digest = hashlib.sha256(b''.join(Path(file).read_bytes() for file in files))
    return digest.hexdigest()[:16] if modules else None


def _module_of(setting: str, value: Any) -> ModuleType:
    if isinstance(value, str):
        return _imported(setting, value)
    return sys.modules[name_of(value).partition(':')[0]]


def method_named(value: Any) -> Method:
    """A method of the table, or one's own: a factory, or a `Method` that says what it needs.

    Raises SettingError, one line.
    """
    found = named('algorithm', value, METHODS)
    row = found if isinstance(found, Method) else Method(found, name_of(value))
    return row._replace(factory=exchanging(row.factory))


def row_of(value: Any, table: Mapping[str, Any], kind: type) -> Any:
    """A row of a table by its name, one's own, or None for a name that there is not."""
    if isinstance(value, kind):
        return value
    return table.get(value) if not is_own(value) else None


def row_named(setting: str, value: Any, table: Mapping[str, Any], kind: type) -> Any:
    """A row of a table by its name, or one's own: package.module:NAME, which may be a function that
    returns it. Raises SettingError for what is no such row."""
    found: Any = value if isinstance(value, kind) else named(setting, value, table, kind)
    if not isinstance(found, kind):
        with reporting(setting, value, 'factory'):
            found = found()
    if not isinstance(found, kind):
        text = f'returns {type(found).__name__}, not a {kind.__module__}.{kind.__name__}'
        raise SettingError(setting, name_of(value), text, colon=False)
    return found


def named(setting: str, value: Any, known: Mapping[str, Any], kind: type = Method) -> Any:
    """A factory: of the table by its name, by package.module:factory, also of this folder, or the
    value itself. kind: what it may be beside a function. Raises SettingError."""
    if isinstance(value, str) and value in known:
        return known[value]
    if not is_own(value):
        text = f'unknown {setting} {value!r}{nearest(value, known)}'
        choices = f'choose one of {", ".join(known)}, or package.module:factory'
        raise SettingError(setting, value, text, choices)
    factory = value
    if isinstance(value, str):
        try:
            factory = getattr(_imported(setting, value), value.partition(':')[2])
        except SettingError:
            raise
        except Exception as error:
            raise _cannot_be_imported(setting, value, error) from error
    if not callable(factory) and not isinstance(factory, kind):
        raise SettingError(
            setting, value, f'is no factory but of type {type(factory).__name__}', colon=False
        )
    return factory


def _imported(setting: str, name: str) -> ModuleType:
    """The module of package.module:factory, also of this folder. Raises SettingError."""
    here = os.getcwd()
    if here not in sys.path and '' not in sys.path:
        sys.path.append(here)  # `dfl-jax` starts without it, unlike `python -m`
    try:
        return importlib.import_module(name.partition(':')[0])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may do anything while it is imported, even sys.exit
        raise _cannot_be_imported(setting, name, error) from error


def _cannot_be_imported(setting: str, name: str, error: BaseException) -> SettingError:
    return SettingError(setting, name, f'cannot be imported: {_reason(error)}', colon=False)


def _reason(error: BaseException) -> str:
    return in_a_line(f'{type(error).__name__}: {error}')


@contextlib.contextmanager
def reporting(
    setting: str, value: Any, what: str, but: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Raises what code of one's own raises in this block as a SettingError of one line.

    but: errors that are raised as they are.

    The library's own methods say themselves what is wrong, and a fault of theirs is to be seen.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if (
            isinstance(error, but)
            or not is_own(value)
            or (isinstance(error, SettingError) and error.setting == setting)
        ):
            raise
        text = getattr(error, 'whole', None) or str(error)  # settings stay in backticks
        reason = in_a_line(text) if isinstance(error, ValueError) else _reason(error)
        where = _line_of(error, name_of(value))
        message = f'its {what} failed: {reason}{where}'
        raise SettingError(setting, name_of(value), message) from error


def _line_of(error: BaseException, name: str) -> str:
    """' (line N of FILE)', the last of the module that raised the error; '' where none did."""
    module = sys.modules.get(name.partition(':')[0])
    file = getattr(module, '__file__', None)
    lines = [
        each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file
    ]
    return f' (line {lines[-1]} of {file})' if lines else ''


class TableRows(NamedTuple):
    """What the names in a run's settings mean: rows of the library's tables, and code of one's own.

    values: the settings by their flat names.
    """

    values: Mapping[str, Any]
    method: Method
    family: Family
    family_options: dict[str, Any]
    partition: data.Partition
    partition_options: dict[str, Any]
    task: Task
    module: Callable[[int], Any]  # of so many classes, where all clients have the same model
    loader: Callable[[], Any] | None  # of a data set that is code
    shift: feature_shift.FeatureShift | None
    functions: dict[str, Any]  # of the method that are code: optimizer, lr_schedule, aggregation
    digest: str | None  # of the modules of all that is code

    def name(self, setting: str) -> str:
        """What a setting names, of an object where it is."""
        return name_of(self.values[setting])

    def reporting(
        self, setting: str, what: str, but: tuple[type[BaseException], ...] = ()
    ) -> AbstractContextManager[None]:
        """Raises what the code that a setting names raises in this block as a SettingError."""
        return reporting(setting, self.values[setting], what, but)


def table_rows(values: Mapping[str, Any]) -> TableRows:
    """Looks up all that the settings of a run name. Raises SettingError for what there is not,
    before any data are read.

    >>> from dfl_jax.experiment import Experiment
    >>> table_rows(Experiment.of(algorithm='dfedavg', task='regression').flat()).task.name
    'regression'
    """
    shift, own = values['feature_shift'], is_own_loader(dataset := values['dataset'])
    return TableRows(
        values=values,
        method=method_named(values['algorithm']),
        family=row_named('topology', values['topology'], FAMILIES, Family),
        family_options={field: values[name] for name, field in OF_FAMILIES.items()}
        | {'assortativity': values['assortativity']},
        partition=row_named('partition', values['partition'], data.PARTITIONS, data.Partition),
        partition_options={field: values[name] for name, field in OF_PARTITIONS.items()},
        task=task_named(values['task']),
        module=_module(values['model'], values['hidden']),
        loader=named('dataset', dataset, {}) if own else None,
        shift=None if shift is None else feature_shift.parse(shift),
        functions={
            n: _function(n, values) for n in (*FUNCTIONS, 'aggregation') if is_code(n, values[n])
        },
        digest=digest_of_code(values),
    )


def task_named(value: Any) -> Task:
    """A task of the library, or one's own. Raises SettingError."""
    return row_named('task', value, TASKS, Task)


def _module(name: Any, hidden: Sequence[str] | None) -> Callable[[int], Any]:
    """What makes the network from the number of classes. Raises SettingError."""
    if hidden is not None:
        if name != 'mlp':
            text = f'shapes `model=mlp`, not `model={name_of(name)}`'
            raise SettingError('hidden', hidden, text, 'leave it out', colon=False)
        widths = tuple(map(int, hidden))
        if any(width < 1 for width in widths):
            raise SettingError('hidden', hidden, 'use widths of at least 1')
        return lambda classes: MLP(classes, widths)
    if is_own(name) or '-' not in name:
        return named('model', name, MODELS)
    try:
        models.architecture(name, classes=1)
    except ValueError as error:
        raise SettingError('model', name, str(error)) from error
    return partial(models.architecture, name)


FUNCTIONS: dict[str, Callable[[Any, str], Any]] = {  # what checks them, given optimizer_options
    'optimizer': lambda factory, options: named_optimiser(factory, options, 0.1),
    'lr_schedule': lambda schedule, _: learning_rate_factor(schedule),
}


def _function(name: str, values: Mapping[str, Any]) -> Any:
    """The optimizer, the schedule or the rule of one's own. Raises SettingError."""
    if name == 'aggregation':
        return function_of(name, values[name])
    found = named(name, values[name], {})
    with reporting(name, values[name], 'factory'):
        FUNCTIONS[name](found, values['optimizer_options'] or '')
    return found


def function_of(setting: str, value: Any) -> Callable[..., Any]:
    """A rule or an attack of one's own, whose errors are raised as a SettingError of one line."""
    function = named(setting, value, {})

    @functools.wraps(function)
    def reported(*arguments: Any) -> Any:
        with reporting(setting, value, 'function'):
            return function(*arguments)

    return reported
