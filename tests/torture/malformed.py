"""Input that is wrong: refused in a line or two, soon, and nothing is left behind."""

import random
from functools import cache

from tests.torture import malformed_files
from tests.torture.malformed_commands import OF_A_RUN
from tests.torture.malformed_flags import generated
from tests.torture.malformed_inputs import OF_FILES
from tests.torture.malformed_others import OF_OTHERS
from tests.torture.processes import Command
from tests.torture.runs import Case
from tests.torture.verdict import nothing_begun, refused

PATIENCE = 20.0  # seconds, an answer
PLAIN = 40  # every so many cases are run by a new interpreter, not by a fork
HAS_OUT = ('run', 'sweep', 'theory', 'reconstruct', 'select', 'tables')  # and are given one


@cache
def cases() -> list[Command]:
    """All of them, shuffled, so that the first ones are of all kinds. {in} is the input files."""
    found = list(dict.fromkeys([*OF_A_RUN, *OF_FILES, *OF_OTHERS, *generated()]))
    random.Random('malformed').shuffle(found)
    return found


COUNT = len(cases())


def check(case: Case) -> None:
    inputs = case.world.once('inputs', malformed_files.write)
    malformed = cases()[case.number % COUNT]
    arguments = [each.replace('{in}', str(inputs)) for each in malformed.arguments]
    if malformed.name in HAS_OUT and not any(each.startswith('--out=') for each in arguments):
        arguments.append(f'--out={case.folder}/out')
    modules = any(each.startswith(('--algorithm=bad_', '--model=bad_')) for each in arguments)
    outcome = case.finish(
        Command(malformed.name, tuple(arguments)),
        PATIENCE,
        cwd=inputs / 'modules' if modules else case.folder,  # where Python looks for them
        plain=case.number % PLAIN == 0,
    )
    refused(outcome)
    nothing_begun(case.folder)
