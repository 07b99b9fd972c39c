"""Where the flagfiles and published numbers of the papers are: in a checkout, or in the package."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).parents[2] / 'experiments'
PACKAGED = Path(__file__).parents[1] / 'papers'


def folder() -> Path:
    """The folder with one subfolder a paper."""
    return CHECKOUT if (CHECKOUT / 'ntk_dfl').is_dir() else PACKAGED


def flagfile(name: str) -> str:
    """The path of a flagfile: `name` as it stands, or below the papers' folder.

    name: relative to the current directory, or to the papers' folder, where `experiments/`, as the
      documents write it from a checkout, may come first. A name that is in neither stays as it is.
    """
    path = Path(os.path.expanduser(name))
    if not path.is_absolute() and not os.path.lexists(path):
        parts = path.parts[1:] if path.parts[:1] == (CHECKOUT.name,) else path.parts
        shipped = folder().joinpath(*parts)
        if shipped.is_file():
            return str(shipped)
    return os.path.expanduser(name)
