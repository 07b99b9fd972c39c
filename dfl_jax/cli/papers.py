"""Where the flagfiles and published numbers of the papers are: in a checkout, or in the package."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[2] / 'experiments'
PACKAGED = Path(__file__).parents[1] / 'papers'


def folder() -> Path:
    """The folder with one subfolder a paper."""
    return CHECKOUT if (CHECKOUT / 'ntk_dfl').is_dir() else PACKAGED
