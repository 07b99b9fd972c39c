"""The results of a study without training: its lines, and what theory says of them."""

from typing import NamedTuple

from dfl_jax.cli.tables.fits import Points

Value = tuple[str, float, float, float | None]  # label, x, measured, what theory says
FITTED = ('steady', 'stabilisation')
HEADS = {
    'steady': ('n', '||v_steady||'),
    'assortativity': ('rho', '||v_steady||', 'before rewiring', 'ratio'),
    'limits': ('n', 'sigma_ap', '||v_steady||', 'ratio'),
    'stabilisation': ('n', 'rounds', 'by the gap', 'ratio'),
    'evolution': ('round', 'deviation', 'limit', 'ratio'),
}


class Result(NamedTuple):
    """The lines of a study and what theory says of them, both by label."""

    measured: dict[str, Points]
    theory: dict[str, Points]
