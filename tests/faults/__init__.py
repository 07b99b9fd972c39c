"""Deliberate faults that the suite has to catch, and a script that tries them."""

from tests.faults.faults import FAULTS, Fault
from tests.faults.faults_of_numbers import NUMBERS
from tests.faults.faults_of_wiring import WIRING

ALL: list[Fault] = [*FAULTS, *WIRING, *NUMBERS]
