"""The commit of dfl_jax that computes a run."""

import contextlib
import os
import subprocess
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
UNCOMMITTED = '-dirty'  # as `git describe` has it


def commit(package: Path = PACKAGE) -> str | None:
    """The commit of the checkout that the package is part of, followed by `-dirty` where files of
    the package are not committed.

    None where the package is in no checkout of its own, as when it is installed, even inside of
    another repository.
    """
    checkout = package.parent
    with contextlib.suppress(OSError, ValueError, LookupError, subprocess.CalledProcessError):
        project = tomllib.loads((checkout / 'pyproject.toml').read_text(encoding='utf-8'))
        top = Path(_git(checkout, 'rev-parse', '--show-toplevel'))
        if project['project']['name'] != package.name or top.resolve() != checkout.resolve():
            return None
        changed = _git(checkout, 'status', '--porcelain', '--', package.name)
        return _git(checkout, 'rev-parse', 'HEAD') + UNCOMMITTED * bool(changed)
    return None


def _git(folder: Path, *arguments: str) -> str:
    """What git prints of the repository of a folder. Raises OSError or CalledProcessError."""
    # GIT_DIR and the like, as in a hook, would lead to another repository
    environment = {name: value for name, value in os.environ.items() if not name.startswith('GIT_')}
    done = subprocess.run(
        ['git', *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=True,
        encoding='utf-8',
    )
    return done.stdout.strip()
