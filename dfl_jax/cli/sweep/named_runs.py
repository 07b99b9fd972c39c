"""Named runs without a plan of all: new ones that are alike as one program, others by themselves.

A run of a program goes on with it, and one that has checkpoints of its own with these.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_jax.cli.command import MISUSE, PathParser, in_flags
from dfl_jax.cli.sweep.group import diverged, fitting
from dfl_jax.cli.sweep.plan import Plan, Run, Values, grouped, read_plan, settled
from dfl_jax.cli.sweep.train_runs import group_folder, train_groups, unfinished
from dfl_jax.experiment.description import bounds, known_settings
from dfl_jax.experiment.experiment import Experiment
from dfl_jax.experiment.recall import recall, recorded_settings
from dfl_jax.experiment.run import Run as SingleRun
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.results.curves import read_flagfile
from dfl_jax.setting_error import SettingError

PLAN = 'plan.json'  # in the folder of a group, its runs


@dataclass(frozen=True)
class NamedRuns:
    """Runs below a folder, each in a directory of its name.

    more: settings of all of them, as a flagfile has them. progress: show their progress bars.
    """

    folder: Path
    more: Values
    progress: bool

    def settings(self, one: Run) -> dict[str, Any]:
        """The settings of a run by their names. Raises ValueError, one line."""
        texts = read_flagfile(Path(str(one.flagfile))) | one.values | self.more
        known = known_settings(texts.get('algorithm'))
        if other := next((name for name in texts if name not in known), None):
            raise ValueError(f'{one.flagfile}: --{other} is no setting of a run')
        return {name: _value(name, known[name].kind, text) for name, text in texts.items()}

    def read(self, one: Run) -> Experiment:
        """The experiment of a run. Raises ValueError, one line."""
        return Experiment.of(**self.settings(one))

    def directory(self, one: Run) -> RunDirectory:
        """The run directory."""
        return RunDirectory(self.folder / one.name)

    def groups(self, runs: Sequence[Run]) -> Iterator[list[Run]]:
        """The runs in groups, each of which is trained before the next is asked for.

        A group that has begun has all of its runs, those that were not asked for among them.
        """
        begun: dict[str, list[Run]] = {}
        for file in sorted(self.folder.glob(f'groups/*/{PLAN}')):
            group = read_plan(file).runs
            if unfinished(group, self.folder):
                begun |= dict.fromkeys((one.name for one in group), group)
        given: set[str] = set()
        for flagfile in dict.fromkeys(one.flagfile for one in runs):
            new = []
            for one in (one for one in runs if one.flagfile == flagfile):
                if one.name in begun and one.name not in given:
                    given |= {each.name for each in begun[one.name]}
                    yield begun[one.name]
                elif one.name not in begun and self.directory(one).config_file.exists():
                    yield [one]
                elif one.name not in begun:
                    new.append(one)
            traced, together = [[''] for _ in new], 1
            with contextlib.suppress(*MISUSE):  # `train` says what is wrong
                traced = [self.read(one).traced for one in new]
                together = fitting(self.read(new[0]).build()) if len(new) > 1 else 1
            yield from grouped(new, traced, together)

    def train(self, group: Sequence[Run]) -> dict[str, str]:
        """Trains the runs of a group to their ends; returns why runs could not be, by name."""
        failed: dict[str, str] = {}
        try:
            if len(group) == 1:
                self._train_alone(group[0])
            else:
                settled(group_folder(self.folder, group) / PLAN, Plan([], [list(group)]))
                failed = train_groups(self.read, [group], self.folder, self.progress)
            reasons = {one.name: diverged(self.directory(one)) for one in group}
            return failed | {name: reason for name, reason in reasons.items() if reason}
        except (*MISUSE, FloatingPointError, RuntimeError) as error:  # diverged; of the device
            return dict.fromkeys((one.name for one in group), in_flags(error))

    def _train_alone(self, one: Run) -> None:
        """From its own checkpoints, where there are some. Raises whatever ends a run."""
        directory, settings = self.directory(one), self.settings(one)
        if diverged(directory):
            return
        if not directory.config_file.exists():
            run = Experiment.of(**settings).run(directory.path, self.progress)
        else:
            before = recorded_settings(directory.config())
            before['rounds'] = settings['rounds'] = max(settings['rounds'], before['rounds'])
            experiment, config = recall(directory, settings)
            directory.check_settings(before, experiment.settings())
            run = SingleRun(experiment, directory.path, progress=self.progress, config=config)
        for _ in run:
            pass


def _value(name: str, kind: type | None, text: str) -> Any:
    """What a flagfile writes of a setting. Raises SettingError for what is no number."""
    before = bounds(name).get('path')
    if before is not None:
        return PathParser(before).parse(text)
    if kind is bool:
        return text.lower() in ('true', 't', '1')
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        raise SettingError(name, text, 'give a number') from None
