"""Runs that are killed, once or several times, and end with the bits of those that were not."""

from pathlib import Path

from tests.torture.processes import Process
from tests.torture.runs import OFTEN, Case, fresh, lines_in, resumed
from tests.torture.verdict import Fault, rows_of, same_bits, succeeded

COUNT = 100
MOMENTS = ('first second', 'checkpoint', 'last round', 'any')
MOST = 4  # kills of one run
PLAIN = 25  # every so many cases are run by a new interpreter, not by a fork


def check(case: Case) -> None:
    recipe = case.rng.choice(OFTEN)
    whole, out = case.world.undisturbed(recipe), case.folder / 'run'
    length, evaluations = case.world.seconds(recipe), len(rows_of(whole))
    plain = case.number % PLAIN == 0
    for _ in range(case.rng.choice((1, 1, 1, 2, 2, MOST))):
        begun = (out / 'config.json').exists()
        process = case.start(resumed(out) if begun else fresh(recipe, out), plain=plain)
        moment = case.rng.choice(MOMENTS)
        _wait(case, process, moment, out, length, evaluations)
        hit = process.kill()
        case.note(f'{"killed" if hit else "ended before the kill"} ({moment}), {_state(out)}')
        case.counts['kills'] += hit
        ended = process.outcome()
        if not hit:
            succeeded(ended)
        if process.status not in (0, -9):
            raise Fault('neither killed nor done', ended)
    begun = (out / 'config.json').exists()
    succeeded(case.finish(resumed(out) if begun else fresh(recipe, out), plain=plain))
    same_bits(out, whole)


def _wait(
    case: Case, process: Process, moment: str, out: Path, length: float, evaluations: int
) -> None:
    """Until the moment of the kill, or the end of the process."""
    if moment == 'first second':
        delay = case.rng.uniform(0, 1)
    elif moment == 'any':
        delay = case.rng.uniform(0, length)
    else:  # a checkpoint is written right after its evaluation
        before = lines_in(out)
        later = case.rng.randint(1, max(evaluations - 1, 1))
        wanted = evaluations if moment == 'last round' else later
        process.until(lambda: lines_in(out) >= max(wanted, before + 1) or lines_in(out) < before)
        delay = case.rng.uniform(0, 0.3 if moment == 'last round' else 0.08)
    process.ended.wait(delay)


def _state(out: Path) -> str:
    if not (out / 'config.json').exists():
        return 'no config.json'
    folder = out / 'checkpoints'
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return f'{lines_in(out)} evaluations, checkpoints {", ".join(names) or "none"}'
