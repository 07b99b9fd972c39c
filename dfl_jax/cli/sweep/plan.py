"""What a sweep consists of: the runs of a grid of flags, and which of them go together.

The plan is a file in the sweep's folder, written by whoever comes first and never changed: all
processes of a sweep, and all that continue it, do the same work in the same groups.
"""

import itertools
import math
import os
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dfl_jax.cli.command import whole_numbers
from dfl_jax.files import read_json, to_json

Values = dict[str, str]  # of the flags that a run gives, as they are typed
MOST_RUNS = 100_000  # of a sweep
JOBS = 'jobs'  # the folder of what submitit writes
RESULTS = ('results.csv', 'results.md', 'results.png')
RESERVED = ('groups', JOBS, 'sweep.json', *RESULTS)  # names in its folder


@dataclass(frozen=True)
class Run:
    """One run of a sweep."""

    name: str  # also of its directory
    flagfile: str | None
    values: Values


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep in groups, each of which is trained as one program."""

    arguments: list[str]  # of the command line, those of the sweep apart
    groups: list[list[Run]]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group]


def grid(specs: Sequence[str], flagfiles: Sequence[str]) -> list[Run]:
    """The runs of all combinations, the last of the specs running fastest.

    Args:
      specs: NAME:VALUES each, values separated by commas, or FIRST..LAST for whole numbers.
      flagfiles: every combination is run with each of them; empty for none.

    Raises ValueError for a spec that cannot be read, a flag twice, runs of the same name, or more
    than MOST_RUNS of them.
    """
    axes = dict(_axis(spec) for spec in specs)
    if len(axes) < len(specs):
        raise ValueError(f'--sweep names a flag twice: {", ".join(specs)}')
    count = math.prod(map(len, axes.values())) * max(1, len(flagfiles))
    if count > MOST_RUNS:
        raise ValueError(
            f'--sweep makes {count:,} runs, more than {MOST_RUNS:,}; sweep fewer values at a time'
        )
    runs = []
    for flagfile in flagfiles or (None,):
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, map(str, values), strict=True))
            parts = [Path(flagfile).stem] if flagfile else []
            parts += [
                f'{name}={Path(value).stem if "/" in value else value}'
                for name, value in chosen.items()
            ]
            runs.append(Run(','.join(parts), flagfile, chosen))
    names = Counter(run.name for run in runs)
    if twice := min((name for name, times in names.items() if times > 1), default=None):
        raise ValueError(f'two runs would be called {twice}; give each its own name')
    if bad := next((name for name in names if name in RESERVED or name != Path(name).name), None):
        raise ValueError(f'a run cannot be called {bad or "by no name"}; give it another name')
    if not specs and not flagfiles:
        raise ValueError('nothing to sweep: give --sweep=NAME:VALUES or --flagfiles')
    return runs


def _axis(spec: str) -> tuple[str, Sequence[str | int]]:
    """The flag of a spec and its values."""
    name, _, text = spec.partition(':')
    values: Sequence[str | int] | None = whole_numbers(text)  # counted before they are written out
    if values is None:
        values = text.split(',') if all(text.split(',')) else []
        if len(set(values)) < len(values):
            raise ValueError(f'--sweep={spec} has a value twice')
    if not name or not values:
        raise ValueError(
            f'--sweep={spec} cannot be read; write --sweep=alpha:0.1,0.5 or --sweep=seed:0..4'
        )
    return name, values


def grouped(
    runs: Sequence[Run], traced: Sequence[Container[str]], together: int
) -> list[list[Run]]:
    """Runs that differ in traced flags alone, at most `together` in a group, as equal as can be.

    traced: the flags of each run that may differ within a program.
    """
    alike: dict[Any, list[Run]] = {}
    for run, names in zip(runs, traced, strict=True):
        static = tuple((n, v) for n, v in run.values.items() if n not in names)
        alike.setdefault((run.flagfile, static), []).append(run)
    groups = []
    for of_kind in alike.values():
        pieces = -(-len(of_kind) // together)
        bounds = [len(of_kind) * piece // pieces for piece in range(pieces + 1)]
        groups += [of_kind[a:b] for a, b in itertools.pairwise(bounds)]
    return groups


def settled(path: Path, plan: Plan) -> Plan:
    """The plan in the file at `path`, which becomes `plan` where there is none.

    Raises ValueError when the file holds the plan of another sweep, or none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'{path.name}.{os.getpid()}')
    temporary.write_text(to_json(asdict(plan), indent=1) + '\n', encoding='utf-8')
    try:
        os.link(temporary, path)  # fails where another process was first
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    earlier = read_plan(path)
    if sorted(map(repr, earlier.runs)) != sorted(map(repr, plan.runs)):
        raise ValueError(
            f'{path.parent} holds another sweep, of {len(earlier.runs)} runs such as '
            f'{earlier.runs[0].name}; choose another --out'
        )
    if earlier.arguments != plan.arguments:
        raise ValueError(
            f'{path.parent} was started with {" ".join(earlier.arguments) or "no other flags"}, '
            f'not {" ".join(plan.arguments) or "none"}; use the same or choose another --out'
        )
    return earlier


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises ValueError, one line, for a file that is none."""
    content = read_json(path)
    try:
        groups = [[Run(**run) for run in group] for group in content['groups']]
        plan = Plan([*map(str, content['arguments'])], groups)
    except (LookupError, TypeError):
        groups = []
    if not groups or not all(groups):
        raise ValueError(f'{path} is damaged, or not of a sweep; choose another --out')
    return plan
