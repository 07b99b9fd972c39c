"""A run directory keeps what it holds."""

import json

from experiments.rundir import RunDirectory

CONFIG = {'settings': {'seed': 0}, 'versions': {'jax': '1'}, 'device': 'cpu'}


def test_a_resumed_run_is_told_what_changed_around_it(tmp_path):
    directory = RunDirectory(tmp_path / 'run')
    assert directory.claim(CONFIG) == []
    assert directory.claim(CONFIG) == []
    (remark,) = directory.claim(CONFIG | {'device': 'gpu'})
    assert remark.startswith('device was cpu when the run began and is gpu now')
    assert json.loads(directory.config_file.read_text()) == CONFIG


def test_rows_after_the_checkpoint_and_a_torn_line_are_dropped(tmp_path):
    directory = RunDirectory(tmp_path / 'run')
    directory.claim(CONFIG)
    for r in (1, 2, 3):
        directory.append({'round': r})
    with directory.metrics_file.open('a') as file:
        file.write('{"round": 4, "consens')
    assert [row['round'] for row in directory.rows()] == [1, 2, 3]
    assert [row['round'] for row in directory.keep_until(2)] == [1, 2]
    directory.append({'round': 3})
    assert [row['round'] for row in directory.rows()] == [1, 2, 3]
