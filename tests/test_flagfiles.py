"""Every flagfile of the papers is read, and its method takes its settings."""

import pytest
from absl import flags
from absl.testing import flagsaver

from dfl_jax.experiment.method import choose_method
from dfl_jax.experiment.own_code import settle_defaults
from dfl_jax.flagfiles import with_flagfiles
from dfl_jax.paper_folder import PAPERS
from dfl_jax.papers.reconstruct import command as _reconstruct  # noqa: F401  its flags

FLAGS = flags.FLAGS
FILES = sorted(PAPERS.rglob('*.flags'))


@pytest.mark.parametrize('paper', ['dfml', 'init_topology', 'ntk_dfl', 'spark'])
def test_the_flagfiles_of_a_paper(paper):
    files = [file for file in FILES if paper in file.parts]
    for file in files:
        with flagsaver.flagsaver():
            FLAGS(['run', *with_flagfiles([f'--flagfile={file}'])])
            if not FLAGS['images'].present:  # of the attack
                settle_defaults(FLAGS)
                choose_method(FLAGS, 0)


def test_none_is_missed():
    assert len(FILES) == 495
