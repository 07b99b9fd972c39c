"""One run after the other: its flags, and a group of runs from start to end in this process."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags
from tqdm import tqdm

from dfl_jax.cli.command import in_flags
from dfl_jax.cli.flags.run_flags import experiment_of_flags
from dfl_jax.cli.sweep.group import Member, begun_together, ended, train_group
from dfl_jax.cli.sweep.plan import Run
from dfl_jax.experiment.config_file import begin, with_chunk_of
from dfl_jax.experiment.experiment import Experiment
from dfl_jax.experiment.recall import recorded_settings
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.flagfiles import with_flagfiles

FLAGS = flags.FLAGS
Read = Callable[[Run], Experiment]  # how the experiment of a run is found; raises ValueError
CHECKPOINTS = 'checkpoints'  # in the folder of a group
# The same for all runs
OF_THE_SWEEP = (
    *('sweep', 'flagfiles', 'together', 'shard', 'out', 'progress', 'compilation_cache'),
    *('launcher', 'launcher_workers', 'launcher_cores', 'launcher_gpus'),
    *('ray_address', 'submitit_cluster', 'slurm'),
)


class Command:
    """The command line, and the flags of each of its runs."""

    def __init__(self, argv: Sequence[str]):
        self.name, self.arguments = argv[0], _without(OF_THE_SWEEP, argv[1:])

    def read(self, one: Run) -> Experiment:
        """The experiment of one run, with all flags set to its own.

        Raises flags.Error or ValueError for what a flag cannot be, and for a flagfile that cannot
        be read.
        """
        # A worker of a launcher has not all of them
        kept = {name: FLAGS[name].value for name in OF_THE_SWEEP if name in FLAGS}
        first = [f'--flagfile={one.flagfile}'] if one.flagfile else []
        swept = [f'--{name}={value}' for name, value in one.values.items()]
        try:
            FLAGS.unparse_flags()
            given = with_flagfiles([*first, *self.arguments, *swept])
            _, *rest = FLAGS([self.name, *given])
        finally:  # absl looks at flags of its own when the process ends
            FLAGS.mark_as_parsed()
            for name, value in kept.items():
                FLAGS[name].value = value
        if rest:
            raise ValueError(f'{one.flagfile or "the command"} holds {rest[0]!r}, which is no flag')
        return experiment_of_flags()


def _without(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The arguments but the flags of these names, with their values."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.lstrip('-').partition('=')
        known = name if name in FLAGS else name.removeprefix('no')
        takes_next = not equals and known in FLAGS and not FLAGS[known].boolean
        whole = [argument, next(rest)] if takes_next else [argument]
        if known not in names:
            kept += whole
    return kept


def train(read: Read, group: Sequence[Run], out: Path, folder: Path, bar: tqdm) -> None:
    """Brings the runs of a group to their ends.

    Raises ValueError or OSError for wrong flags. Where only some runs cannot start, the others are
    trained before; not so where all have begun as one program, which would be lost.
    """
    if all(ended(RunDirectory(out / one.name)) for one in group):
        bar.update(rounds_of(read, group))
        return
    with contextlib.ExitStack() as lock:
        members: dict[int, Member] = {}
        faults = []
        for number, one in enumerate(group):
            experiment = read(one)
            directory, config = RunDirectory(out / one.name), None
            if directory.config_file.exists():
                lock.enter_context(directory.locked())
                config = directory.config()
                directory.check_settings(recorded_settings(config), experiment.settings())
                experiment = with_chunk_of(experiment, config)
            else:
                directory.check_free()
            try:
                built = experiment.build()
            except ValueError as error:
                faults.append(f'run {one.name} cannot start: {in_flags(error)}')
                continue
            begin(directory, built, config, lock)
            members[number] = Member(built, directory)
        if not (faults and begun_together(folder)):
            train_group(members, folder, bar, whole=not faults)
    if faults:
        raise ValueError('; '.join(faults))


def rounds_of(read: Read, group: Sequence[Run]) -> int:
    """The rounds of all runs of a group together."""
    return sum(read(one).rounds for one in group)


def bring_to_end(read: Read, group: Sequence[Run], out: Path, bar: tqdm) -> str | None:
    """Trains a group in this process; returns why that failed, None where it did not.

    A group that fails for lack of memory is tried a second time, from its last evaluation. `bar`
    advances by a round of each run.
    """
    folder = group_folder(out, group)
    folder.mkdir(parents=True, exist_ok=True)
    before, why = bar.n, None
    for _ in range(2):
        try:
            with RunDirectory(folder).locked():
                train(read, group, out, folder / CHECKPOINTS, bar)
            return None
        except RuntimeError as error:  # of the device, its memory above all
            bar.update(before - bar.n)
            why = str(error)
        except (ValueError, OSError, flags.Error) as error:
            return in_flags(error)
    return why


def train_groups(
    read: Read, groups: Sequence[Sequence[Run]], out: Path, progress: bool
) -> dict[str, str]:
    """Trains the groups one after the other; returns why runs could not be, by name."""
    failed: dict[str, str] = {}
    total = sum(rounds_of(read, group) for group in groups)
    with tqdm(total=total, unit='round', disable=not progress, dynamic_ncols=True) as bar:
        for group in groups:
            why = bring_to_end(read, group, out, bar)
            if why is not None:
                failed |= dict.fromkeys(unfinished(group, out), why)
    return failed


def unfinished(group: Sequence[Run], out: Path) -> list[str]:
    """The names of the runs that have not ended."""
    return [one.name for one in group if not ended(RunDirectory(out / one.name))]


def group_folder(out: Path, group: Sequence[Run]) -> Path:
    """The folder of a group, which holds its lock and the checkpoints of its runs."""
    return out / 'groups' / group[0].name
