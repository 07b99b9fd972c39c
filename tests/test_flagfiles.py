"""Every flagfile of the papers is read, and its method takes its settings."""

import pytest
from absl import flags
from absl.testing import flagsaver

from dfl_jax.cli.flags.run_flags import experiment_of_flags
from dfl_jax.cli.run import command
from dfl_jax.experiment.configured_method import configure
from dfl_jax.flagfiles import with_flagfiles
from dfl_jax.paper_folder import PAPERS
from dfl_jax.papers.reconstruct import command as reconstruct

FLAGS = flags.FLAGS
FILES = sorted(PAPERS.rglob('*.flags'))


@pytest.mark.parametrize('paper', ['byzantine', 'dfml', 'init_topology', 'ntk_dfl', 'spark'])
def test_the_flagfiles_of_a_paper(paper):
    files = [file for file in FILES if paper in file.parts]
    command.define_flags()
    reconstruct.define_flags()
    for file in files:
        with flagsaver.flagsaver():
            FLAGS(['run', *with_flagfiles([f'--flagfile={file}'])])
            if not FLAGS['images'].present:  # of the attack
                experiment = experiment_of_flags()
                configure(experiment, {}, 0)


def test_none_is_missed():
    assert len(FILES) == 516
