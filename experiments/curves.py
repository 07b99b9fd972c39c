"""The curves of a table's runs: read from run directories or from a file that stands for them."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.rundir import Row, RunDirectory, shown, write_atomically

FREE = ('seed', 'data_dir')  # a run may differ from its flagfile in these
BESIDE = (*FREE, 'partition_file', 'chunk')  # and be given these, which the flagfile has not
CURVES = ('consensus_accuracy', 'client_accuracy_mean')
LOSS = 'client_loss_mean'
LOCAL = 'local_accuracy_mean'
COARSE = ('accuracy', 'mbytes', 'model_deviation')  # columns of four decimals

Run = dict[str, Any]  # its name as 'run', and as lists 'round', CURVES, what a table adds to them
Runs = dict[str, list[Run]]  # by cell


def find_runs(
    table: str,
    flagfiles: Mapping[str, Path],
    sources: Sequence[Path],
    names: Sequence[str] = CURVES,
    only: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[Runs, list[str]]:
    """The runs of every cell that has some, and remarks about those that stray or are unfinished.

    flagfiles: of every cell. sources: folders of runs, or files that stand for them; a cell's runs
    are those of the first that has any. only: {column: the cells that need it}, of those that not
    all need. Raises ValueError when there is none at all, or one lacks any of the columns `names`.
    """
    found: Runs = {}
    remarks = []
    for source in sources:
        wanted = {cell: file for cell, file in flagfiles.items() if cell not in found}
        if source.suffix == '.json':
            new, said = load_curves(source, wanted)
        else:
            new, said = read_directories(source, wanted, names)
        found |= new
        remarks += said
    found = {cell: found[cell] for cell in flagfiles if cell in found}
    if not found:
        known = ', '.join([*flagfiles][:6]) + (', ...' if len(flagfiles) > 6 else '')
        where = ','.join(map(str, sources))
        raise ValueError(f'--runs={where} holds no run of {table}; name them {known}')
    for cell, run in ((cell, run) for cell, those in found.items() for run in those):
        needed = [name for name in names if cell in only.get(name, [cell])]
        if absent := [name for name in needed if name not in run]:
            raise ValueError(f'{run["run"]} has no {" and no ".join(absent)}, which {table} needs')
    return found, remarks


def read_directories(
    runs: Path, flagfiles: Mapping[str, Path], names: Sequence[str]
) -> tuple[Runs, list[str]]:
    found: Runs = {}
    remarks = []
    for cell, flagfile in flagfiles.items():
        wanted = read_flagfile(flagfile)
        paths = [runs / cell, *runs.glob(f'{cell}-*')]
        for path in sorted(path for path in paths if path.is_dir()):
            directory = RunDirectory(path)
            rows = directory.rows()
            if not rows:
                remarks.append(f'{path.name} holds no evaluation yet')
                continue
            if not directory.done.exists():
                remarks.append(f'{path.name} stopped at round {rows[-1]["round"]}')
            remarks += differences(path.name, wanted, json.loads(directory.config_file.read_text()))
            run = {'run': path.name, 'round': [row['round'] for row in rows]}
            for name in names:
                if all(name in row for row in rows):
                    run[name] = [rounded(row[name], name) for row in rows]
            found.setdefault(cell, []).append(run)
    return found, remarks


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


def load_curves(path: Path, cells: Iterable[str]) -> tuple[Runs, list[str]]:
    """What `save_curves` wrote of these cells. Raises ValueError."""
    try:
        content = json.loads(path.read_text())
        found = {cell: content['runs'][cell] for cell in cells if cell in content['runs']}
        return found, [remark for remark in content['remarks'] if concerns(remark, cells)]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f'--runs={path} cannot be read as the curves of a table') from error


def concerns(remark: str, cells: Iterable[str]) -> bool:
    """Whether it is about a run of these cells, whose name it begins with."""
    run = remark.partition(' ')[0].rstrip(':')
    return any(run == cell or run.startswith(f'{cell}-') for cell in cells)


def save_curves(path: Path, runs: Runs, remarks: Sequence[str]) -> None:
    """Writes {"remarks": [...], "runs": {cell: [run, ...]}}, a run a line."""
    text = json.dumps({'remarks': remarks, 'runs': runs}, separators=(',', ':'))
    write_atomically(path, text.replace('{"run":', '\n{"run":') + '\n')


def read_flagfile(path: Path) -> dict[str, str]:
    """{flag: value} of a flagfile without nested ones; --flag is True, --noflag False."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.lstrip('-').partition('=') for line in lines if line.startswith('--'))
    return {
        name if sign else name.removeprefix('no'): value if sign else str(name[:2] != 'no')
        for name, sign, value in pairs
    }


def differences(name: str, wanted: dict[str, str], config: Row) -> list[str]:
    """Remarks on the settings in which a run strays from its flagfile."""
    settings = config['settings']
    beyond = [flag for flag in config.get('given', ()) if flag not in (*wanted, *BESIDE)]
    if settings.get('partition_file'):
        file = Path(settings['partition_file']).name
        replaced = ('partition', 'partition_overlap', 'alpha')
        wanted = {flag: value for flag, value in wanted.items() if flag not in replaced}
        remarks = [f'{name}: partition from {file}']
    else:
        remarks = []
    remarks += [
        f'{name}: --{flag}={shown(settings.get(flag))}, the flagfile says {value}'
        for flag, value in wanted.items()
        if flag not in FREE
        and shown(settings.get(flag)) != value
        and not (flag == 'rounds' and settings['rounds'] > int(value))  # longer serves too
    ]
    return remarks + [
        f'{name}: --{flag}={shown(settings.get(flag))}, the flagfile has no --{flag}'
        for flag in beyond
    ]
