"""The curves of a table's runs: read from run directories or from a file that stands for them."""

import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dfl_jax.experiment.run_directory import Row, RunDirectory, shown
from dfl_jax.files import read_json, to_json, write_atomically
from dfl_jax.flagfiles import with_flagfiles
from dfl_jax.plain_text import in_a_line
from dfl_jax.results.run_notes import Note, left_out, read_note

CURVES = ('consensus_accuracy', 'client_accuracy_mean')
CLIENT_LOSS = 'client_loss_mean'
LOCAL_ACCURACY = 'local_accuracy_mean'
COARSE = ('accuracy', 'mbytes', 'model_deviation')  # columns of four decimals
SECONDS = 'seconds_a_round'  # of a run, evaluation apart
FREE = ('seed', 'data_dir', 'devices')  # a run may differ from its flagfile in these
ALSO_FREE = (*FREE, 'partition_file', 'chunk')  # and be given these, which the flagfile has not
REPLACED = ('partition', 'partition_overlap', 'alpha')  # by a partition_file

# Its name as 'run', SECONDS, and as lists 'round', CURVES and what a table adds
Run = dict[str, Any]
Runs = dict[str, list[Run]]  # by cell


def find_runs(
    flagfiles: Mapping[str, Path], sources: Sequence[Path], needed: Mapping[str, Sequence[str]]
) -> tuple[Runs, list[Note]]:
    """The runs of every cell that has some, and notes on other settings and unfinished runs.

    flagfiles: of every cell. sources: folders of runs, or files that stand for them; a run is that
    of the first that has one of its name. needed: columns, by cell; a run that is damaged or lacks
    any of them is left out, and a note says so.
    """
    runs: Runs = {}
    notes: list[Note] = []
    for source in sources:
        read = load_curves if source.suffix == '.json' else read_directories
        more, more_notes = read(source, flagfiles, needed)
        known = {run['run'] for several in runs.values() for run in several}
        for cell, several in more.items():
            runs.setdefault(cell, []).extend(run for run in several if run['run'] not in known)
        notes += [note for note in more_notes if not note.is_about(known)]
    runs = {cell: sorted(runs[cell], key=seed_order) for cell in flagfiles if cell in runs}
    return runs, notes


def no_run_found(
    flagfiles: Mapping[str, Path], sources: Sequence[Path], notes: Sequence[Note]
) -> str:
    """The message where `find_runs` has found none."""
    known = ', '.join([*flagfiles][:6]) + (', ...' if len(flagfiles) > 6 else '')
    where = ','.join(map(str, sources))
    unread = next((f' ({note})' for note in notes if note.kind == 'left out'), '')
    advice = f'name them {known}, or train them by --run'
    return f'--runs={where} holds no run of the table{unread}; {advice}'


def read_directories(
    folder: Path, flagfiles: Mapping[str, Path], needed: Mapping[str, Sequence[str]]
) -> tuple[Runs, list[Note]]:
    """The runs of every cell in the subfolders of a folder, and notes on them."""
    named = {cell: (folder / cell, *folder.glob(f'{cell}-*')) for cell in flagfiles}
    paths = {cell: sorted(filter(Path.is_dir, those)) for cell, those in named.items()}
    return read_runs(paths, flagfiles, needed)


def read_runs(
    paths: Mapping[str, Sequence[Path]],
    flagfiles: Mapping[str, Path],
    needed: Mapping[str, Sequence[str]],
    strict: bool = False,
) -> tuple[Runs, list[Note]]:
    """The runs of every cell, by their directories, and notes on them.

    strict: whether a run whose settings differ from the cell's flagfile is left out.
    """
    runs: Runs = {}
    notes: list[Note] = []
    for cell, those in paths.items():
        wanted = read_flagfile(flagfiles[cell])
        for path in those:
            directory = RunDirectory(path)
            try:
                run = rounded_columns(path.name, directory.rows(), needed[cell])
                mismatches = differences(path.name, wanted, directory.config())
            except (ValueError, OSError) as error:
                notes.append(left_out(path.name, f': {fault_of(error, path)}'))
                continue
            if strict and (other := [n for n in mismatches if n.kind == 'setting']):
                notes.append(left_out(path.name, f'; {other[0]}'))
                continue
            if not run['round']:
                notes.append(Note(path.name, 'holds no evaluation yet', 'unfinished'))
                continue
            if not directory.done.exists():
                notes.append(Note(path.name, f'stopped at round {run["round"][-1]}', 'unfinished'))
            notes += mismatches
            runs.setdefault(cell, []).append(run)
    return runs, notes


def read_flagfile(path: Path) -> dict[str, str]:
    """{flag: value} of a flagfile and those that it names; --flag is True, --noflag False."""
    pairs = (line.lstrip('-').partition('=') for line in with_flagfiles([f'--flagfile={path}']))
    return {
        name if sign else name.removeprefix('no'): value if sign else str(name[:2] != 'no')
        for name, sign, value in pairs
    }


def differences(name: str, wanted: dict[str, str], config: Row) -> list[Note]:
    """Notes on the settings in which a run differs from its flagfile.

    Raises ValueError for settings that no run has.
    """
    notes = []
    try:
        settings = config['settings']
        beyond = [flag for flag in config.get('given', ()) if flag not in (*wanted, *ALSO_FREE)]
        if settings.get('partition_file'):
            text = f'partition from {Path(settings["partition_file"]).name}'
            notes.append(Note(name, text, 'partition'))
            wanted = {flag: value for flag, value in wanted.items() if flag not in REPLACED}
        for flag, value in wanted.items():
            had = shown(settings.get(flag))
            longer = flag == 'rounds' and settings['rounds'] > int(value)  # serves too
            if flag not in FREE and had != value and not longer:
                text = f'--{flag}={had}, the flagfile says {value}'
                notes.append(Note(name, text, 'setting'))
        for flag in beyond:
            text = f'--{flag}={shown(settings.get(flag))}, the flagfile has no --{flag}'
            notes.append(Note(name, text, 'setting'))
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError('config.json is damaged, or not of a run') from error
    return notes


def rounded_columns(name: str, rows: Sequence[Row], needed: Sequence[str]) -> Run:
    """What a table keeps of the rows of a run, rounded. Raises ValueError as `columns_of` does."""
    run = checked_columns(name, rows, needed)
    if rows and is_number(seconds := rows[-1].get('seconds')):
        run[SECONDS] = rounded(seconds / run['round'][-1], SECONDS)
    return run | {c: [rounded(value, c) for value in run[c]] for c in needed if c in run}


def fault_of(error: Exception, directory: Path) -> str:
    """What is wrong with a run, in a line and without the place of its directory."""
    return in_a_line(str(error).replace(f'{directory}{os.sep}', ''))


def checked_columns(
    name: str, rows: Sequence[Row], needed: Sequence[str], more: Sequence[str] = ()
) -> Run:
    """The rounds of a run and the columns `needed`, `more` where it has them.

    rows: of metrics.jsonl. Raises ValueError, one line, for what no run writes, and where the run
    lacks a column.
    """
    if not rows:
        return {'run': name, 'round': []}
    known = ['round', *needed, *(m for m in more if all(m in row for row in rows))]
    run = {'run': name} | {column: [row.get(column) for row in rows] for column in known}
    check_run(run, needed)
    return run


def check_run(run: Any, needed: Iterable[str]) -> None:
    """Raises ValueError where it is no Run, or lacks any of these columns.

    Rounds increase, and all other numbers are finite.
    """
    if not isinstance(run, dict) or not isinstance(run.get('run'), str):
        raise ValueError('it is no run')
    rounds = run.get('round')
    whole = isinstance(rounds, list) and all(type(r) is int and r < 2**53 for r in rounds)
    if not rounds or not whole:
        raise ValueError('its rounds are not whole numbers')
    if any(later <= earlier for earlier, later in itertools.pairwise([0, *rounds])):
        raise ValueError('its rounds do not increase from 1')
    never = [None] * len(rounds)
    if absent := [n for n in needed if run.get(n, never) == never]:
        raise ValueError(f'it has no {" and no ".join(absent)}')
    for name in run.keys() - {'run', SECONDS}:
        column = run[name]
        if not isinstance(column, list) or len(column) != len(rounds):
            raise ValueError(f'its {name} is not a value a round')
        for round, value in zip(rounds, column, strict=True):
            several = value if name.endswith('_quantiles') else [value]
            if not isinstance(several, list) or not several or not all(map(is_number, several)):
                shown = 'missing' if value is None else in_a_line(repr(value))[:40]
                raise ValueError(f'its {name} of round {round} is {shown}')


def scale_of(column: str) -> int:
    """100 for a share that is shown in percent, else 1."""
    return 100 if 'accuracy' in column or column == 'attack_success' else 1


def is_number(value: Any) -> bool:
    """Whether it is a finite number, of a size that can be worked with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def panel_curves(panel: Row) -> list[str]:
    """The columns that a panel of curves shows, the default being the first of CURVES."""
    if 'lines' in panel:
        return [line_curve(panel, line) for line in panel['lines']]
    return panel.get('curves', [CURVES[0]])


def line_curve(panel: Row, line: Row) -> str:
    return str(line.get('curve', panel.get('curve', CURVES[0])))


def rounded(value: Any, name: str = 'accuracy') -> Any:
    """Six digits; of accuracies and the like four decimals below 1; lists likewise."""
    if isinstance(value, list):
        return [rounded(v, name) for v in value]
    coarse = any(word in name for word in COARSE)
    return round(value, 4) if coarse and value < 1 else float(f'{value:.6g}')


def load_curves(
    path: Path, cells: Collection[str], needed: Mapping[str, Sequence[str]]
) -> tuple[Runs, list[Note]]:
    """What `save_curves` wrote of these cells. Raises ValueError."""
    runs: Runs = {}
    try:
        content = read_json(path)
        kept = content['warnings'] if 'warnings' in content else content['remarks']  # older files
        notes = [note for note in map(read_note, kept) if note.is_about(cells)]
        pairs = [
            (c, run) for c, several in content['runs'].items() if c in cells for run in several
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f': {error}' if isinstance(error, ValueError) else ''
        raise ValueError(
            f'--runs={path} cannot be read as the curves of a table{reason}'
        ) from error
    for cell, run in pairs:
        try:
            check_run(run, needed[cell])
            runs.setdefault(cell, []).append(run)
        except ValueError as error:
            name = run.get('run', cell) if isinstance(run, dict) else cell
            notes.append(left_out(str(name), f': {error}'))
    return runs, notes


def seed_order(run: Run) -> tuple[str, int, str]:
    """Sorts runs whose names end with a number, e.g. -seed10 after -seed9."""
    name = run['run']
    stem = name.rstrip('0123456789')
    return stem, int(name[len(stem) :] or -1), name


def save_curves(path: Path, runs: Runs, notes: Iterable[Note]) -> None:
    """Writes {"warnings": [...], "runs": {cell: [run, ...]}}, a run a line."""
    text = to_json({'warnings': [*map(str, notes)], 'runs': runs}, separators=(',', ':'))
    write_atomically(path, text.replace('{"run":', '\n{"run":') + '\n')
