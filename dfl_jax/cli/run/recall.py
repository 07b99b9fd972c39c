"""The settings of a run that is continued or looked into, back in the flags."""

import json
import os
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from absl import flags

from dfl_jax.cli.command import PathParser
from dfl_jax.cli.flags.method_flags import NOT_SETTINGS, of_a_run
from dfl_jax.experiment.own_code import FLAGS_OF_CODE, define_flags_of_others, is_code
from dfl_jax.experiment.run_directory import NAMED, Row, RunDirectory, names_a_file

FLAGS = flags.FLAGS
MOVED_MEANINGS = {  # of flags, in a command that looks into runs and is told where files are now
    'dataset': 'File of the data, where it has moved since the run',
    'data_dir': 'Folder of the data sets, where it has moved since the run',
    'partition_file': 'Partition file of the run, where it has moved',
    'topology_file': 'Topology file of the run, where it has moved',
    'architecture_file': 'Architecture file of the run, where it has moved',
}
KINDS: dict[str, type | tuple[type, ...]] = {  # by absl's name of a flag's type
    'int': int,
    'float': (int, float),
    'bool': bool,
    'string': str,
    'string enum': str,
}


def recall(directory: RunDirectory, typed: Container[str] | None = None) -> Row:
    """Sets the flags to the settings of a run, and returns what its config.json holds.

    Settings younger than the run keep their defaults. A config.json may be anybody's: it is not
    trusted to name code, nor to be of the right types.

    typed: flags that keep a value from the command line, None for all.

    Raises ValueError, one line.
    """
    file, config = directory.config_file, directory.config()
    algorithm = config['settings'].get('algorithm')
    if FLAGS.allow_imports and isinstance(config.get('folder'), str):
        sys.path.append(config['folder'])  # where a module of one's own was found
    if FLAGS.allow_imports and isinstance(algorithm, str):
        define_flags_of_others([f'--algorithm={algorithm}'])
    known = {flag.name for flag in of_a_run()} - {*NOT_SETTINGS}
    for name, value in config['settings'].items():
        if name not in known and value is None:
            continue
        if name not in known:
            raise ValueError(f'{file} has --{name}={_in_short(value)}, which is not known')
        if FLAGS[name].present and (typed is None or name in typed):
            continue
        if not _fits(FLAGS[name], value):
            raise ValueError(
                f'{file} has --{name}={_in_short(value)}, which that flag cannot be; bring back '
                'what the run wrote, or choose another'
            )
        if name in FLAGS_OF_CODE and is_code(name, value) and not FLAGS.allow_imports:
            raise ValueError(
                f'{file} has --{name}={value}, which is code that would be run; add '
                '--allow_imports if you trust it'
            )
        parser = FLAGS[name].parser
        if isinstance(value, str) and isinstance(parser, PathParser):
            value = _found_again(name, parser.split(value), config.get('folder'), typed, file)
        FLAGS[name].value = value
    return config


def _found_again(
    name: str, split: tuple[str, str], folder: object, typed: Container[str] | None, config: Path
) -> str:
    """A path among the settings of a run that may have begun in another folder.

    split: the setting, as `PathParser.split` splits it.

    Raises ValueError for a file that is neither there nor here.
    """
    start, path = split
    value = start + path
    if name in NAMED and not names_a_file(value):
        return value
    there = Path(folder, path) if isinstance(folder, str) else Path(path)
    if there.exists():
        return value if os.path.realpath(path) == os.path.realpath(there) else f'{start}{there}'
    if Path(path).exists() or start or name == 'data_dir':  # of the hub, or not needed
        return value
    nor = f', nor in {folder}, where the run began' if isinstance(folder, str) else ''
    given = typed is None or name in typed
    mend = f'say where it is now by --{name}=PATH' if given else 'bring it back'
    raise ValueError(f'{config} has --{name}={value}, and no such file is here{nor}; {mend}')


def _fits(flag: Any, value: Any) -> bool:
    """Whether a setting is of the type and in the range of its flag."""
    if value is None:
        return flag.default is None
    if isinstance(flag.parser, flags.ListParser):
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    kind = flag.flag_type()
    typed = isinstance(value, KINDS[kind]) and isinstance(value, bool) == (kind == 'bool')
    if not typed:
        return False
    try:
        flag.parser.parse(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _in_short(value: Any) -> str:
    return f'a {type(value).__name__}' if isinstance(value, (list, dict)) else json.dumps(value)
