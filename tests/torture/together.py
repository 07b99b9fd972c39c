"""Several processes on one run directory at once: one works, and the others say so and leave."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.torture.processes import Command, Outcome, command
from tests.torture.runs import RECIPES, Case, fresh, resumed, stopped
from tests.torture.verdict import Fault, refused, same_bits, succeeded, tidy

COUNT = 40
PLAIN = 10  # every so many cases are run by new interpreters, not by forks
APART = 0.5  # seconds, at most, between two starts
KINDS = ('fresh', 'fresh', 'resumed', 'resumed', 'fresh and resumed', 'sweep and run', 'unnamed')
SWEEP = ('--sweep=seed:0..1', '--together=1')


def check(case: Case) -> None:
    kind = case.rng.choice(KINDS)
    recipe = case.rng.choice(('dpsgd', 'dpsgd', 'dpsgd', 'ntk_dfl'))
    many = case.rng.choice((2, 2, 3))
    case.note(f'{kind}, {many} processes')
    if kind == 'unnamed':
        return unnamed(case, recipe, many)
    if kind == 'sweep and run':
        return sweep_and_run(case, recipe)
    whole, out = case.world.undisturbed(recipe), case.folder / 'run'
    commands = [fresh(recipe, out)] * many
    if kind == 'resumed':
        stopped(whole, out, newest=False)
        commands = [resumed(out)] * many
    elif kind == 'fresh and resumed':
        commands = [fresh(recipe, out), resumed(out)]
    one_wins(at_once(case, commands))
    same_bits(out, whole)
    _again(case, out, whole)


def at_once(case: Case, commands: Sequence[Command]) -> list[Outcome]:
    processes = []
    for number, each in enumerate(commands):
        processes.append(case.start(each, plain=case.number % PLAIN == 0))
        if number + 1 < len(commands) and case.rng.random() < 0.6:
            processes[-1].ended.wait(case.rng.uniform(0, APART))
    return [tidy(process.outcome()) for process in processes]


def one_wins(outcomes: Sequence[Outcome]) -> None:
    """Raises Fault unless one process did the work, and all others refused it or found it done."""
    winners = [
        each for each in outcomes if each.status == 0 and 'nothing to resume' not in each.out
    ]
    if len(winners) != 1:
        told = '\n$ '.join(map(str, outcomes))
        raise Fault(f'{len(winners)} of {len(outcomes)} processes won\n$ {told}')
    for each in outcomes:
        if each.status:
            refused(each)


def unnamed(case: Case, recipe: str, many: int) -> None:
    """Runs without --out, started in the same folder."""
    whole = case.world.undisturbed(recipe)
    for ended in at_once(case, [command('run', *RECIPES[recipe])] * many):
        succeeded(ended)
    made = sorted((case.folder / 'runs').iterdir())
    if len(made) != many:
        raise Fault(f'{many} runs made the directories {", ".join(path.name for path in made)}')
    for path in made:
        same_bits(path, whole)


def sweep_and_run(case: Case, recipe: str) -> None:
    """A sweep, and a run in the directory of one of its own."""

    def make(folder: Path) -> Path:
        alone = command('sweep', *RECIPES[recipe], *SWEEP, f'--out={folder}/out')
        succeeded(case.world.starter.finish(alone, folder))
        return folder / 'out'

    swept = case.world.once(f'sweep of {recipe} one by one', make)
    single = case.world.undisturbed(recipe, '--seed=0')
    out = case.folder / 'out'
    sweep = command('sweep', *RECIPES[recipe], *SWEEP, f'--out={out}')
    commands = [sweep, fresh(recipe, out / 'seed=0', '--seed=0')]
    case.rng.shuffle(commands)
    outcomes = at_once(case, commands)
    if all(each.status for each in outcomes):
        told = '\n$ '.join(map(str, outcomes))
        raise Fault(f'neither the sweep nor the run was brought to its end\n$ {told}')
    for each in outcomes:
        if each.status and each.command is not sweep:
            refused(each)
    if any(each.status for each in outcomes if each.command is sweep):
        succeeded(case.finish(sweep))
    same_bits(out / 'seed=1', swept / 'seed=1')
    try:
        same_bits(out / 'seed=0', swept / 'seed=0')
    except Fault:  # one run, compiled by itself
        same_bits(out / 'seed=0', single)


def _again(case: Case, out: Path, whole: Path) -> None:
    """What is done stays done, and leaves no lock behind."""
    succeeded(case.finish(resumed(out)))
    same_bits(out, whole)
    shutil.rmtree(out)
