"""The settings of a run that is continued or looked into, as an experiment again."""

import json
import os
import re
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from dfl_jax.experiment.description import OWN, bounds, default_settings, known_settings
from dfl_jax.experiment.experiment import Experiment
from dfl_jax.experiment.run_directory import NAMED, Row, RunDirectory, names_a_file
from dfl_jax.experiment.run_settings import PART_OF, Placement
from dfl_jax.experiment.table_rows import SETTINGS_OF_CODE, is_code
from dfl_jax.experiment.values import typed
from dfl_jax.method_settings import Setting
from dfl_jax.setting_error import InputError, SettingError


def recall(
    directory: RunDirectory,
    given: Mapping[str, Any] | None = None,
    *,
    allow_imports: bool = False,
    may_differ: Container[str] | None = None,
) -> tuple[Experiment, Row]:
    """The experiment of a run, and what its config.json holds.

    Settings younger than the run have their defaults. A config.json may be anybody's: it is not
    trusted to name code, nor to be of the right types.

    Args:
      given: settings by their flat names that take the place of the run's.
      allow_imports: import the code that config.json names.
      may_differ: which of `given` do; None for all.

    Raises ValueError, one line.
    """
    given = {
        name: value
        for name, value in (given or {}).items()
        if may_differ is None or name in may_differ
    }
    file, config = directory.config_file, directory.config()
    recorded = config['settings']
    algorithm = recorded.get('algorithm')
    if allow_imports and isinstance(config.get('folder'), str):
        sys.path.append(config['folder'])  # where a module of one's own was found
    for name in SETTINGS_OF_CODE:
        value = recorded.get(name)
        if isinstance(value, str) and is_code(name, value) and not allow_imports:
            if name not in given:
                raise InputError(
                    f'{file} has `{name}={value}`, which is code that would be run; add '
                    '`allow_imports` if you trust it'
                )
            algorithm = given[name] if name == 'algorithm' else algorithm
    known = known_settings(algorithm if isinstance(algorithm, str) else None)
    values: dict[str, Any] = {}
    for name, value in recorded.items():
        if name not in known and value is None:
            continue
        if name not in known:
            raise InputError(f'{file} has `{name}={_in_short(value)}`, which is not known')
        if name in given:
            continue
        if value is None and name not in (*PART_OF, *OWN):
            continue
        try:
            _check_list(known[name], value)
            value = typed(known[name]._replace(name=name), value, bounds(name))
        except SettingError:
            raise InputError(
                f'{file} has `{name}={_in_short(value)}`, which that setting cannot be; bring back '
                'what the run wrote, or choose another'
            ) from None
        if isinstance(value, str) and (before := bounds(name).get('path')):
            mine = may_differ is None or name in may_differ
            value = _found_again(name, value, before, config.get('folder'), mine, file)
        values[name] = value
    checked = given if may_differ is not None else ()  # --resume compares them first
    return Experiment.of_settings(values | given, checked), config


def to_go_on(
    directory: RunDirectory, given: Mapping[str, Any], *, allow_imports: bool
) -> tuple[Experiment, Row, bool]:
    """The experiment of a run that is to go on, what its config.json holds, and whether a larger
    number of rounds extends it.

    Raises ValueError, one line, for another value than the run's.
    """
    experiment, config = recall(directory, given, allow_imports=allow_imports)
    before, rounds = recorded_settings(config), experiment.rounds
    began = before.get('rounds')
    extends = 'rounds' in given and isinstance(began, int) and rounds > began
    if extends:
        before = before | {'rounds': rounds}
    directory.check_settings(before, experiment.settings())
    return experiment, config, extends


def _check_list(setting: Setting, value: Any) -> None:
    """Raises SettingError for a list that is none of texts, as config.json has them."""
    texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if setting.kind in (tuple, list) and value is not None and not texts:
        raise SettingError(setting.name, value, 'is no list of texts')


def recorded_settings(config: Row) -> Row:
    """The settings of a run, those that are younger than it at their defaults."""
    of_placement = vars(Placement())
    younger = {n: value for n, value in default_settings().items() if n not in of_placement}
    return younger | config['settings']


def _found_again(
    name: str, value: str, before: str, folder: object, may_differ: bool, config: Path
) -> str:
    """A path among the settings of a run that may have begun in another folder.

    before: a pattern of what stands before the path.

    Raises ValueError for a file that is neither there nor here.
    """
    start = re.match(before, value)
    end = start.end() if start else 0
    begin, path = value[:end], value[end:]
    if name in NAMED and not names_a_file(value):
        return value
    there = Path(folder, path) if isinstance(folder, str) else Path(path)
    if there.exists():
        return value if os.path.realpath(path) == os.path.realpath(there) else f'{begin}{there}'
    if Path(path).exists() or begin or name == 'data_dir':  # of the hub, or not needed
        return value
    nor = f', nor in {folder}, where the run began' if isinstance(folder, str) else ''
    mend = f'say where it is now by `{name}=PATH`' if may_differ else 'bring it back'
    raise InputError(f'{config} has `{name}={value}`, and no such file is here{nor}; {mend}')


def _in_short(value: Any) -> str:
    return f'a {type(value).__name__}' if isinstance(value, (list, dict)) else json.dumps(value)
