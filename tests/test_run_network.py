"""network.json: what the clients of a run hold, and who hears whom."""

import json

import numpy as np
import pytest
from test_cli import write_sums
from wiring import experiment

from dfl_jax.experiment.network_file import write_network
from dfl_jax.experiment.run_directory import RunDirectory


@pytest.fixture
def network(tmp_path):
    """Flags to the experiment and its network.json."""

    def written(*flags):
        built = experiment(*flags, '--clients=6', '--rounds=3', '--hidden=4')
        directory = RunDirectory(tmp_path)
        write_network(directory, built)
        return built, json.loads(directory.network_file.read_text())

    return written


def test_what_is_written_is_what_the_run_has(network, tiny):
    flags = (f'--dataset={tiny}', '--algorithm=dpsgd', '--degree=2', '--link_dropout=0.9')
    experiment, written = network(*flags)
    labels = experiment.dataset.train_y
    for part, counts in zip(experiment.parts, written['samples'], strict=True):
        assert counts == [int(np.sum(labels[part] == c)) for c in range(3)]
    neighbours = {client: set() for client in range(6)}
    for a, b in written['links']:
        assert a < b
        neighbours[a].add(b)
        neighbours[b].add(a)
    members, mask = experiment.graphs.members[0], experiment.graphs.mask[0]
    assert [len(others) for others in neighbours.values()] == [2] * 6, 'also those that failed'
    for client, row, real in zip(range(6), members, mask, strict=True):
        assert {*row[real].tolist()} <= neighbours[client] | {client}
    assert mask.sum() < 18


def test_no_rewiring_leaves_the_lattice(network, tiny):
    flags = ('--algorithm=dpsgd', '--topology=watts_strogatz', '--degree=2', '--static_topology')
    lattice, random = (
        network(f'--dataset={tiny}', *flags, f'--rewiring={share}')[1]['links'] for share in (0, 1)
    )
    ring = [[0, 1], [0, 5], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert sorted(lattice) == ring and sorted(random) != ring


def test_a_server_has_no_links_and_a_number_no_class(network, tiny, tmp_path):
    assert (
        network(f'--dataset={tiny}', '--algorithm=ntk_fl', '--ntk_fl_cohort=3')[1]['links'] is None
    )
    sums = write_sums(tmp_path / 'sums.npz')
    flags = ('--algorithm=dpsgd', '--degree=2', '--task=regression', '--partition=iid')
    assert network(f'--dataset={sums}', *flags)[1]['samples'] == [[10]] * 6
