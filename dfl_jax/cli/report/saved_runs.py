"""The runs of a report: read below a folder and grouped over seeds."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.experiment.run_directory import Row, RunDirectory, shown
from dfl_jax.plain_text import in_a_line
from dfl_jax.results.curves import FREE, checked_columns, fault_of
from dfl_jax.results.directories import directories
from dfl_jax.tasks import CLASSIFICATION

# Columns that are shown, too
NUMBERS = ('mbytes_total', 'mbytes_busiest_client', 'seconds', 'simulated_seconds')
MADE = ('device', 'cores', 'commit', 'versions')  # of a config, shown beside settings
UNGROUPED = (*FREE, 'chunk', *MADE)  # settings in which the runs of a group may differ
UNRESOLVED = ('rounds', 'chunk')  # arguments of a method that no setting of a run tells


class SavedRun(NamedTuple):
    """A run directory that can be read."""

    name: str  # its path below the folder of the report
    path: Path
    settings: dict[str, str]  # those in effect, as they are typed
    rows: list[Row]
    done: bool
    label: str  # of its method

    @property
    def seed(self) -> str:
        return self.settings.get('seed', '-')

    @property
    def status(self) -> str:
        """finished, or how far it got."""
        if self.done:
            return 'finished'
        if not self.rows:
            return 'unfinished, no evaluation yet'
        return f'unfinished, round {self.rows[-1]["round"]} of {self.settings.get("rounds", "?")}'


class Group(NamedTuple):
    """Runs that differ in nothing but their seed."""

    label: str  # the method, and what sets the group apart from the others
    runs: list[SavedRun]

    @property
    def repeats(self) -> bool:
        """Whether several runs have one seed."""
        return len({run.seed for run in self.runs}) < len(self.runs)

    @property
    def counted(self) -> list[SavedRun]:
        """Those whose numbers stand for the group: the finished ones, where there are any.

        Of runs with the same seed, such as a copy of a run, the first of the longest.
        """
        evaluated = [run for run in self.runs if run.rows]
        of_seed: dict[str, SavedRun] = {}
        for run in [run for run in evaluated if run.done] or evaluated:
            longest = of_seed.setdefault(run.seed, run)
            if run.rows[-1]['round'] > longest.rows[-1]['round']:
                of_seed[run.seed] = run
        return [*of_seed.values()]


def find_runs(source: Path) -> tuple[list[SavedRun], dict[str, str]]:
    """The runs at and below `source`, and {directory: why it cannot be read}.

    Raises ValueError when there is no run that can be read.
    """
    if not source.is_dir():
        raise ValueError(f'{source} is no folder')
    runs, broken = [], {}
    for path in directories(source):
        name = path.relative_to(source).as_posix()
        name = in_a_line(source.resolve().name if name == '.' else name)
        try:
            runs.append(_read(name, path))
        except (ValueError, OSError) as error:
            broken[name] = fault_of(error, path)
    if not runs:
        reasons = ''.join(f'; {name}: {reason}' for name, reason in [*broken.items()][:3])
        raise ValueError(f'{source} holds no run that can be read{reasons}')
    return runs, broken


def _read(name: str, path: Path) -> SavedRun:
    """Raises ValueError or OSError with what is wrong."""
    from dfl_jax.results.labels import METHOD_LABELS

    directory = RunDirectory(path)
    if not os.path.lexists(directory.config_file):
        raise ValueError('has metrics.jsonl but no config.json')
    for file in (directory.config_file, directory.metrics_file):
        if not is_inside(path, file):
            raise ValueError(f'{file.name} leads outside the run directory')
    try:
        config = directory.config()
        settings = settings_in_effect(config)
        _ = 1 / max(0, int(settings['clients'])), int(settings['rounds'])
        settings |= {name: str(config.get(name) or '-') for name in MADE}
        method = settings.get('algorithm', 'unknown method')
        label = METHOD_LABELS.get(method) or str(config.get('label') or method)
        settings['versions'] = ', '.join(map(' '.join, dict(config.get('versions', {})).items()))
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError('config.json is damaged, or not of a run') from error
    rows = directory.rows()
    metric, _ = metric_of(rows)
    try:
        checked_columns(name, rows, (f'consensus_{metric}', f'client_{metric}_mean'), NUMBERS)
    except ValueError as error:
        raise ValueError(f'metrics.jsonl is damaged: {error}') from error
    return SavedRun(name, path, settings, rows, directory.done.exists(), label)


def metric_of(rows: Sequence[Row]) -> tuple[str, bool]:
    """The metric of the task that a run learns, e.g. accuracy, and whether less of it is better.

    rows: of metrics.jsonl, which have it as consensus_METRIC, beside the worst client's.
    """
    names = rows[0] if rows else {}
    metrics = (name.removeprefix('consensus_') for name in names if name.startswith('consensus_'))
    metric = next(metrics, CLASSIFICATION.metric)
    return metric, f'client_{metric}_max' in names


def is_inside(folder: Path, file: Path) -> bool:
    """Whether a file of the folder is there itself, and no link to a place outside."""
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # of links in a circle
        return False


def settings_in_effect(config: Row) -> dict[str, str]:
    """The settings of a run that are in effect, as they are typed.

    Those given and the method's defaults, without data and network settings that have no effect
    beside the others.
    """
    from dfl_jax.cli.flags.run_flags import flag_of
    from dfl_jax.experiment.applicable import unused_inputs
    from dfl_jax.experiment.table_rows import is_own

    settings = dict(config['settings'])
    own = is_own(str(settings.get('algorithm')))
    for argument, value in config.get('algorithm', {}).items():
        # A method's own arguments are flags of these names
        flag = argument if own and argument in settings else flag_of(argument)
        if flag and argument not in UNRESOLVED and value is not None:
            settings[flag] = value
    typed = {
        name: shown([str(each) for each in value] if isinstance(value, list) else value)
        for name, value in settings.items()
        if value is not None
    }
    unused = unused_inputs(typed.get)
    return {name: value for name, value in typed.items() if name not in unused}


def group_runs(runs: Sequence[SavedRun]) -> list[Group]:
    """The runs by all settings but the seed, in the order of their names."""
    by_settings: dict[tuple, list[SavedRun]] = {}
    for run in runs:
        key = tuple(sorted(_grouping(run.settings).items()))
        by_settings.setdefault(key, []).append(run)
    several = [_grouping(those[0].settings) for those in by_settings.values()]
    telling = _telling(several)
    groups = []
    for settings, those in zip(several, by_settings.values(), strict=True):
        notes = [f'{name} {settings[name]}' for name in telling if name in settings]
        groups.append(Group(', '.join([those[0].label, *notes]), those))
    return groups


def _grouping(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in UNGROUPED}


def differing(several: Sequence[dict[str, str]]) -> list[str]:
    """The settings that are not the same in all."""
    names = dict.fromkeys(name for settings in several for name in settings)
    return [name for name in names if len({settings.get(name) for settings in several}) > 1]


def _telling(several: Sequence[dict[str, str]]) -> list[str]:
    """Few settings that, beside the method, tell all groups apart; rounds only where none else."""

    def apart(names: Sequence[str]) -> int:
        return len({tuple(map(settings.get, names)) for settings in several})

    left, chosen = differing(several), ['algorithm']
    while apart(chosen) < len(several):
        others = [n for n in left if n != 'rounds' and apart([*chosen, n]) > apart(chosen)]
        chosen.append(max(others or ['rounds'], key=lambda name: apart([*chosen, name])))
    return [name for name in left if name in chosen[1:]]
