"""Flags by the names that they had."""

import json

import pytest
from test_cli import here

from dfl_jax.cli.flags.old_names import renewed
from dfl_jax.experiment.run_directory import RunDirectory


@pytest.mark.integration
def test_an_old_name_works_and_says_the_new_one(tmp_path):
    small = ('--dataset=digits', '--train_samples=60', '--clients=6', '--rounds=1', '--degree=2')
    done = here(*small, '--algorithm=dpsgd', '--weight_bits=5', f'--out={tmp_path / "run"}')
    assert done.status == 0, done.err
    assert 'warning: --weight_bits is now --message_bits' in done.err
    config = RunDirectory(tmp_path / 'run').config()
    assert config['settings']['message_bits'] == 5 and 'weight_bits' not in config['settings']
    assert json.loads(json.dumps(config['algorithm']))['bits'] == 5


def test_the_settings_of_an_older_run():
    assert renewed({'weight_bits': 6, 'ntk_jacobian_bits': None, 'lr': 0.1}) == {
        'lr': 0.1,
        'message_bits': 6,
    }
    without_effect, with_effect = {'client_isolation': 0.0}, {'client_isolation': 0.5}
    assert renewed({'hidden': ['8'], **without_effect}) == {'hidden': ['8']}
    assert renewed(with_effect) == with_effect  # to be refused by its name
    assert renewed({'ntk_jacobian_weights': 'own'}) == {'ntk_jacobian_weights': 'neighbours'}
    assert renewed({'spark_projection_refresh': 'hub'})['spark_projection_refresh'] == 'aggregator'
