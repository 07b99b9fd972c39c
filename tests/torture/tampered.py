"""Run directories that were damaged: refused, set aside or skipped, and never another result."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.torture.damage import tamper
from tests.torture.processes import Command, Outcome, command
from tests.torture.runs import OFTEN, RECIPES, Case, fresh, lines_in, resumed, stopped
from tests.torture.verdict import Fault, refused, same_bits, succeeded, tidy

COUNT = 240
PLAIN = 40  # every so many cases are run by a new interpreter, not by a fork
RECIPE = 'dpsgd'  # of the runs that are shown
TABLE = 'ntk_dfl/figure2'
NAMES = tuple(f'dpsgd-alpha0.1-seed{seed}' for seed in range(3))  # of its runs
SWEEP = (*RECIPES[RECIPE], '--sweep=seed:0..1')
SWEPT = ('seed=0', 'seed=1')


def check(case: Case) -> None:
    case.rng.choice(WAYS)(case)


def _finish(case: Case, command: Command) -> Outcome:
    return case.finish(command, plain=case.number % PLAIN == 0)


def of_resume(case: Case) -> None:
    recipe = case.rng.choice(OFTEN)
    whole, out = case.world.undisturbed(recipe), case.folder / 'run'
    if case.rng.random() < 0.3:
        shutil.copytree(whole, out)
        case.note(f'a finished run of {recipe}')
    else:
        stopped(whole, out, newest=case.rng.random() < 0.5)
        case.note(f'a stopped run of {recipe}, {_checkpoints(out)}')
    case.note(tamper(out, case.rng))
    ended = tidy(_finish(case, resumed(out)))
    if ended.status:
        refused(ended)
    else:
        _told(partial(same_bits, out, whole), ended)


def of_select(case: Case) -> None:
    whole, out = case.world.undisturbed(RECIPE), case.folder / 'run'

    def make(folder: Path) -> Any:
        succeeded(case.world.starter.finish(_select(whole, folder), folder))
        return json.loads((folder / 'selection.json').read_text())

    expected = case.world.once('selection', make)
    shutil.copytree(whole, out)
    case.note(tamper(out, case.rng))
    ended = tidy(_finish(case, _select(out, case.folder / 'out')))
    if ended.status:
        refused(ended)
    elif json.loads((case.folder / 'out' / 'selection.json').read_text()) != expected:
        raise Fault('another selection.json than that of the undisturbed run', ended)


def of_tables(case: Case) -> None:
    def shown(outcome: Outcome, out: Path) -> Any:
        return json.loads((out / f'{TABLE.replace("/", "-")}.json').read_text())['runs']

    _shown(case, 'tables', _tables, shown)


def of_report(case: Case) -> None:
    def shown(outcome: Outcome, out: Path) -> Any:
        page = (out / 'report.html').read_text()
        return re.split(r'<h2', page, maxsplit=2)[1]  # the summary

    _shown(case, 'report', _report, shown)


def _shown(
    case: Case,
    what: str,
    of: Callable[[Path, Path], Command],
    shown: Callable[[Outcome, Path], Any],
) -> None:
    """Damages one of three runs: a reader shows what it shows of all, or of the other two."""
    hurt = case.rng.choice(NAMES)
    runs = case.world.once('three runs', lambda folder: _three_runs(case, folder))

    def make_without(left_out: str | None) -> Callable[[Path], Any]:
        def make(folder: Path) -> Any:
            kept = shutil.copytree(runs, folder / 'runs')
            if left_out:
                shutil.rmtree(kept / left_out)
            done = case.world.starter.finish(of(kept, folder / 'out'), folder)
            return shown(succeeded(done), folder / 'out')

        return make

    whole = case.world.once(f'{what} of three', make_without(None))
    rest = case.world.once(f'{what} without {hurt}', make_without(hurt))
    damaged = shutil.copytree(runs, case.folder / 'runs')
    case.note(f'{hurt}: {tamper(damaged / hurt, case.rng)}')
    out = case.folder / 'out'
    ended = succeeded(_finish(case, of(damaged, out)))
    found = shown(ended, out)
    if found == whole:
        return
    if found != rest:
        raise Fault('other numbers than of all runs, or of all but the damaged one', ended)
    pages = ''.join(page.read_text() for page in out.glob('*.html'))
    if hurt not in ended.out + ended.err + pages:
        raise Fault(f'{hurt} is left out and nothing says so', ended)


def of_sweep(case: Case) -> None:
    def make(folder: Path) -> Path:
        succeeded(case.world.starter.finish(_sweep(folder / 'out'), folder))
        return folder / 'out'

    def interrupt(folder: Path) -> Path:
        process = case.world.starter.start(_sweep(folder / 'out'), folder)
        process.until(lambda: lines_in(folder / 'out' / SWEPT[0]) >= 3)
        process.kill()
        process.outcome()
        return folder / 'out'

    whole = case.world.once('sweep', make)
    halfway = case.rng.random() < 0.4
    base = case.world.once('interrupted sweep', interrupt) if halfway else whole
    out = case.folder / 'out'
    shutil.copytree(base, out)
    for name in ('results.csv', 'results.md'):
        (out / name).unlink(missing_ok=True)
    case.note('an interrupted sweep' if halfway else 'a finished sweep')
    hurt = out / case.rng.choice(('.', *SWEPT, *SWEPT))
    case.note(f'{hurt.name}: {tamper(hurt, case.rng)}')
    ended = tidy(_finish(case, _sweep(out)))
    if not (out / 'results.csv').exists():
        refused(ended)
        return
    expected, found = (_results(path) for path in (whole, out))
    for name in SWEPT:
        if found.get(name) == expected[name]:
            _told(partial(same_bits, out / name, whole / name), ended)
        elif found.get(name, {}).get('state') == 'done':
            raise Fault(f'other results of {name}: {found[name]}, not {expected[name]}', ended)
        elif name not in ended.out + ended.err:
            raise Fault(f'{name} is left out and nothing says so', ended)


WAYS = (
    *(of_resume,) * 9,
    *(of_select,) * 3,
    *(of_tables,) * 3,
    *(of_report,) * 2,
    *(of_sweep,) * 3,
)


def _told(check: Callable[[], None], ended: Outcome) -> None:
    """Raises the Fault of a check together with what the command said."""
    try:
        check()
    except Fault as fault:
        raise Fault(str(fault), ended) from None


def _three_runs(case: Case, folder: Path) -> Path:
    for seed, name in enumerate(NAMES):
        started = fresh(RECIPE, folder / 'runs' / name, f'--seed={seed}')
        succeeded(case.world.starter.finish(started, folder))
    return folder / 'runs'


def _select(run: Path, out: Path) -> Command:
    return command('select', f'--run={run}', f'--out={out}', '--noprogress')


def _tables(runs: Path, out: Path) -> Command:
    return command('tables', TABLE, f'--runs={runs}', f'--out={out}')


def _report(runs: Path, out: Path) -> Command:
    return command('report', f'--runs={runs}', f'--out={out}/report.html')


def _sweep(out: Path) -> Command:
    return command('sweep', *SWEEP, f'--out={out}')


def _results(out: Path) -> dict[str, dict[str, str]]:
    """The lines of results.csv by run."""
    with open(out / 'results.csv', newline='') as file:
        return {line['run']: line for line in csv.DictReader(file)}


def _checkpoints(out: Path) -> str:
    return 'checkpoints ' + ', '.join(sorted(path.name for path in (out / 'checkpoints').iterdir()))
