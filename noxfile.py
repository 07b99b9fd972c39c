"""The supported versions, a session each: `nox -s tests-3.13`, or `nox` for all of them.

A session installs dfl_jax as a user would, without constraints.txt but for the oldest, and runs the
tests of `make quick`. Other tests: `nox -s tests-3.12 -- -m 'not slow'`.
"""

import nox

PYTHONS = ('3.11', '3.12', '3.13')  # as `requires-python` and the classifiers of pyproject.toml
OLDEST = ('jax==0.10.0', 'jaxlib==0.10.0')
QUICK = ('-m', 'quick')

nox.options.default_venv_backend = 'venv'


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The newest versions of everything that this Python has."""
    session.install('-e', '.[test]')
    _run(session)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """The oldest JAX that pyproject.toml admits."""
    session.install('-e', '.[test]', *OLDEST)
    _run(session)


def _run(session: nox.Session) -> None:
    session.run('python', '-c', 'import jax; print("JAX", jax.__version__)')
    session.run('python', '-m', 'pytest', '-q', *(session.posargs or QUICK))
