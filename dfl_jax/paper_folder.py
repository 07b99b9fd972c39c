"""Where the flagfiles and published numbers of the papers lie, a subfolder each."""

from pathlib import Path

# In a checkout, or packaged beside `dfl_jax.papers`
CHECKOUT = Path(__file__).parents[1] / 'experiments'
PAPERS = CHECKOUT if (CHECKOUT / 'ntk_dfl').is_dir() else Path(__file__).parent / 'papers'
