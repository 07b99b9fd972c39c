import os
import sys
import warnings

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import scipy.stats

from dfl_jax.gossip.gain import gain_of, uniform_matrix
from dfl_jax.gossip.spectra import mixing_matrix, spectrum
from dfl_jax.setting_error import SettingError
from dfl_jax.topology import (
    FAMILIES,
    Family,
    Settings,
    TopologyError,
    by_cluster,
    cohorts,
    drop_clients,
    drop_links,
    drop_receivers,
    from_networkx,
    graph_bytes,
    isolate_clients,
    schedule,
)
from dfl_jax.topology import family as of_family
from dfl_jax.topology.random_graphs import REGULAR_BY_NETWORKX
from tests.helpers import assortativity, host_round

drawing = sys.modules['dfl_jax.topology.schedule']

DRAWN = tuple(f for f, row in FAMILIES.items() if 'path' not in row.takes)
SEQUENCES = tuple(f for f in DRAWN if FAMILIES[f].sequence)
RELABELLED = tuple(f for f in DRAWN if f not in SEQUENCES)
CLIENTS, ROUNDS = 36, 4


def drawn(family, clients=None, rounds=ROUNDS, seed=0, degree=4, **options):
    clients = clients or (32 if family == 'hypercube' else CLIENTS)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return schedule(family, clients, rounds, seed=seed, degree=degree, **options)


def draw(family, settings, rng):
    return of_family.draw(FAMILIES[family], settings, rng)[0]


def adjacency(graph, t):
    """[M, M] bool, the delivered links of round t without self."""
    dense = np.zeros((graph.members.shape[1],) * 2, bool)
    aggregators, columns = np.nonzero(graph.mask[t, :, 1:])
    dense[aggregators, graph.members[t][aggregators, columns + 1]] = True
    return dense


def degrees(graph):
    return graph.mask[:, :, 1:].sum(axis=2)  # [T, M]


@pytest.mark.parametrize(
    ('family', 'static'),
    [(f, static) for f in DRAWN for static in (False, True) if not (static and f in SEQUENCES)],
)
def test_layout(family, static):
    graph = drawn(family, static=static)
    width, clients = 1 + degrees(graph).max(), graph.active.shape[1]
    assert graph.members.shape == graph.mask.shape == (ROUNDS, clients, width)
    assert graph.members.dtype == np.int32 and graph.mask.dtype == graph.active.dtype == bool
    assert graph.active.shape == (ROUNDS, clients) and graph.active.all()
    assert graph.mask[:, :, 0].all() and (graph.weights is None) == (family not in SEQUENCES)
    aggregators = np.broadcast_to(np.arange(clients)[None, :, None], graph.members.shape)
    assert (graph.members[:, :, 0] == aggregators[:, :, 0]).all()
    assert (graph.members[~graph.mask] == aggregators[~graph.mask]).all()
    for t in range(ROUNDS):
        links = adjacency(graph, t)
        assert not links.diagonal().any()
        assert FAMILIES[family].directed or (links == links.T).all()
        assert (links.sum(axis=1) == degrees(graph)[t]).all(), 'a neighbour is listed twice'


@pytest.mark.parametrize('family', RELABELLED)
def test_seed_and_rounds(family):
    graph, again, other = drawn(family), drawn(family), drawn(family, seed=1)
    assert all((a == b).all() for a, b in zip(graph[:3], again[:3], strict=True))
    fixed = drawn(family, static=True)
    assert (fixed.members == fixed.members[:1]).all() and (fixed.mask == fixed.mask[:1]).all()
    assert fixed.members.strides[0] == 0, 'a static schedule is held once'
    if family != 'complete':
        assert not (adjacency(graph, 0) == adjacency(other, 0)).all()
        for t in range(1, ROUNDS):
            assert not (adjacency(graph, 0) == adjacency(graph, t)).all()


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize(
    ('family', 'expected'),
    [
        ('regular', [4] * 36),
        ('ring', [2] * 36),
        ('line', [1] * 2 + [2] * 34),
        ('complete', [35] * 36),
        ('star', [1] * 35 + [35]),
        ('torus', [4] * 36),
        ('two_group', [17] * 34 + [18] * 2),
        ('hypercube', [5] * 32),
        ('directed_ring', [1] * 36),
        ('exponential', [6] * 36),
    ],
)
def test_degrees(family, expected, static):
    for row in degrees(drawn(family, static=static)):
        assert sorted(row) == expected


def test_fixed_families_are_what_they_say():
    references = {
        'ring': nx.cycle_graph(36),
        'line': nx.path_graph(36),
        'star': nx.star_graph(35),
        'torus': nx.grid_2d_graph(6, 6, periodic=True),
    }
    for family, reference in references.items():
        ours = nx.from_numpy_array(adjacency(drawn(family), 1))
        assert nx.is_isomorphic(ours, reference), family
    groups = nx.from_numpy_array(adjacency(drawn('two_group'), 1))
    (bridge,) = nx.bridges(groups)
    groups.remove_edge(*bridge)
    parts = list(nx.connected_components(groups))
    assert sorted(map(len, parts)) == [18, 18]
    assert all(nx.density(groups.subgraph(p)) == 1 for p in parts)


@pytest.mark.parametrize('degree', [1, 4, 5, 30, 34, 35])
def test_regular_of_any_degree(degree):
    assert (degrees(drawn('regular', degree=degree)) == degree).all()


@pytest.mark.parametrize('degree', [1, 4, 60])
def test_regular_of_more_clients_than_networkx_draws_is_random_and_simple(degree):
    """60 neighbours each: about 1,800 pairs of stubs are loops or repeat another at first."""
    clients = REGULAR_BY_NETWORKX + 2
    settings = Settings(clients, degree=degree)
    links, again, other = (
        draw('regular', settings, np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert (links == again).all() and not (links == other).all()
    low, high = np.sort(links, axis=1).T
    assert (low < high).all(), 'a client is its own neighbour'
    assert len(np.unique(low * clients + high.astype(np.int64))) == clients * degree // 2
    assert (np.bincount(links.ravel(), minlength=clients) == degree).all()
    ends = np.concatenate([links, links[:, ::-1]]).T
    graph = scipy.sparse.coo_array((np.ones(ends.shape[1]), ends)).tocsr()
    triangles, expected = ((graph @ graph) * graph).sum() / 6, (degree - 1) ** 3 / 6  # Poisson
    assert triangles == pytest.approx(expected, abs=5 * np.sqrt(expected), rel=0.05)


@pytest.mark.parametrize('family', ['erdos_renyi', 'barabasi_albert', 'watts_strogatz'])
@pytest.mark.parametrize('degree', [4, 10])
def test_mean_degree(family, degree):
    graph = drawn(family, clients=300, rounds=5, degree=degree)
    assert degrees(graph).mean() == pytest.approx(degree, rel=0.1)
    assert degrees(graph).std() > 0.3


@pytest.mark.parametrize('degree', range(2, 10))
def test_the_mean_degree_of_few_nodes_by_preferential_attachment_is_the_nearest(degree):
    """m links of each new node make a mean of 2 m (n - m) / n, less than 2 m where n is small."""
    links = draw('barabasi_albert', Settings(20, degree), rng_of(0))
    means = np.array([2 * m * (20 - m) / 20 for m in range(1, 11)])
    assert 2 * len(links) / 20 == means[np.argmin(np.abs(means - degree))]


def test_barabasi_albert_has_aggregators():
    graph = drawn('barabasi_albert', clients=300, degree=4)
    assert degrees(graph).max() > 6 * degrees(graph).mean()


def rng_of(seed):
    return np.random.default_rng(seed)


def law_of(clients, degree, exponent):
    """The k and p(k) of the law whose mean is nearest the degree, one k_min after the other."""
    laws = [np.arange(least, clients) for least in range(1, 2 * degree)]
    laws = [(k, k**-exponent / (k**-exponent).sum()) for k in laws]
    return min(laws, key=lambda law: abs(law[0] @ law[1] - degree))


@pytest.mark.parametrize('exponent', [2.3, 2.5, 3.5])
@pytest.mark.parametrize('degree', [2, 8])
def test_configuration_degrees_follow_the_law(degree, exponent):
    clients = 5000
    links = draw('configuration', Settings(clients, degree, exponent=exponent), rng_of(3))
    found = np.bincount(links.ravel(), minlength=clients)
    k, law = law_of(clients, degree, exponent)
    # Aggregators lose repeated links, which moves few clients down by one: bins of several degrees.
    edges = k[0] * 2 ** np.arange(1, 4)
    expected = np.bincount(np.digitize(k, edges), law) * clients
    counts = np.bincount(np.digitize(found, edges), minlength=4)
    # A draw of the law itself fails with probability 1e-6.
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-6
    assert (found < k[0]).mean() < 0.05
    assert found.max() > 8 * k[0]


@pytest.mark.parametrize('clients', [2, 3, 4, 9, 30])
@pytest.mark.parametrize('exponent', [2.1, 400])
def test_configuration_of_few_clients(clients, exponent):
    for degree in range(1, clients):
        for seed in range(5):
            settings = Settings(clients, degree, exponent=exponent)
            links = draw('configuration', settings, rng_of(seed))
            assert (links[:, 0] < links[:, 1]).all()
            assert len(np.unique(links, axis=0)) == len(links)
            assert np.bincount(links.ravel(), minlength=clients).max() < clients


@pytest.mark.parametrize(
    ('dimensions', 'clients', 'sides'),
    [
        (1, 3, [3]),
        (1, 37, [37]),
        (2, 36, [6, 6]),
        (2, 60, [6, 10]),
        (3, 27, [3, 3, 3]),
        (3, 125, [5, 5, 5]),
        (3, 180, [5, 6, 6]),
        (4, 240, [3, 4, 4, 5]),
    ],
)
def test_torus_of_any_dimension(dimensions, clients, sides):
    graph = drawn('torus', clients, rounds=2, dimensions=dimensions)
    assert (degrees(graph) == 2 * dimensions).all()
    ours = nx.from_numpy_array(adjacency(graph, 1))
    distances = nx.single_source_shortest_path_length(ours, 0).values()
    lattice = nx.grid_graph(sides, periodic=True)
    expected = nx.single_source_shortest_path_length(lattice, next(iter(lattice))).values()
    assert sorted(distances) == sorted(expected)
    if clients < 50:
        assert nx.is_isomorphic(ours, lattice)


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('target', [-0.3, 0.3])
def test_assortativity(target, static):
    plain = drawn('erdos_renyi', 300, static=static)
    graph = drawn('erdos_renyi', 300, static=static, assortativity=target)
    for t in range(ROUNDS):
        assert (degrees(graph)[t] == degrees(plain)[t]).all(), 'of another draw'
        assert assortativity(np.argwhere(np.triu(adjacency(graph, t)))) == pytest.approx(
            target, abs=0.01
        )
    again = drawn('erdos_renyi', 300, static=static, assortativity=target)
    assert (graph.members == again.members).all()


def test_assortativity_of_an_edge_list(tmp_path):
    links = draw('barabasi_albert', Settings(60, 4), rng_of(0))
    file = tmp_path / 'links.txt'
    file.write_text(''.join(f'{i} {j}\n{j} {i}\n' for i, j in links))
    graph = drawn('edge_list', 60, path=file, assortativity=0.0)
    assert (degrees(graph)[0] == np.bincount(links.ravel())).all()
    assert assortativity(np.argwhere(np.triu(adjacency(graph, 0)))) == pytest.approx(0, abs=0.01)


def test_rewiring():
    lattice = drawn('watts_strogatz', rewiring=0.0, static=True)
    assert set(lattice.members[0, 10]) == {8, 9, 10, 11, 12}
    rewired = drawn('watts_strogatz', rewiring=1.0, static=True)
    kept = (adjacency(lattice, 0) & adjacency(rewired, 0)).sum() / adjacency(lattice, 0).sum()
    assert kept < 0.4


@pytest.mark.parametrize('clients', [36, 38, 300, 301])
def test_clustered(clients):
    graph = drawn('clustered', clients=clients, degree=5)
    parts = list(nx.connected_components(nx.from_numpy_array(adjacency(graph, 0))))
    sizes = [len(p) for p in parts]
    assert sum(sizes) == clients and max(sizes) - min(sizes) <= 1
    assert abs(np.mean(sizes) - 6) < 0.5
    assert all(degrees(graph)[0, list(p)].tolist() == [len(p) - 1] * len(p) for p in parts)


def test_edge_list(tmp_path):
    file = tmp_path / 'links.txt'
    file.write_text('# a path\n0 1\n\n2 1  # warning\n1 2\n3 3\n2 3\n')
    graph = schedule('edge_list', 4, 3, seed=0, path=file)
    assert (adjacency(graph, 2) == nx.to_numpy_array(nx.path_graph(4))).all()
    assert graph.members.shape == (3, 4, 3)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('0 1\n1 4\n', r'links\.txt:2: node 4 .* 4 clients'),
        ('0 1 2 3\n', r'links\.txt:1: two node ids'),
        ('0\n', r'links\.txt:1: two node ids'),
        ('0 1 x\n', r"links\.txt:1: two node ids .* got '0 1 x'"),
        ('a b {}\n', r'links\.txt:1: two node ids .*number them by .*convert_node_labels_to'),
        ('New York Los Angeles {}\n', r"got 'New York .* clients 0 to 3: number them by networkx"),
        ('São Paulo,Rio,0.5\n', r"two node ids .*got 'São Paulo"),
        ('source,target\n0,1\n', r'links\.txt:1: two node ids'),
        ('0 1 np.float64(nan)\n', r'links\.txt: weight nan is no finite number'),
        ('0 1 np.float64(x)\n', r'links\.txt:1: two node ids'),
        ('0 1\n# x\n0 -1\n', r'links\.txt:3: two node ids'),
        ('0 1.0\n', r'links\.txt:1: two node ids'),
        ('0 ' + '9' * 5000, r'links\.txt:1: two node ids'),
        ('0 1\0\n', r'links\.txt cannot be read: it is no text'),
        ('0 1 .3\n1 2\n2 3 .3\n', r'links\.txt: 2 of 3 links have a weight; give one to all'),
        ('0 1 .3\n1 0 .4\n', r'links\.txt:2: link 0 1 had the weight 0\.3 before and has 0\.4'),
        ('0 1 .6\n1 2 .7\n', r'links\.txt: .* links of client 1 sum to 1\.3, .* divide them all'),
        ('0 1 nan\n', r'links\.txt: weight nan is no finite number'),
        ("0 1 {'weight': None}\n", r'links\.txt: weight None is no finite number'),
        (b'\xff\xfe\x00', r'links\.txt cannot be read: it is no text in UTF-8, from byte 0'),
    ],
)
def test_bad_edge_list(tmp_path, text, message):
    file = tmp_path / 'links.txt'
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TopologyError, match=message) as raised:
        schedule('edge_list', 4, 1, seed=0, path=file)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize('written', ['edgelist', 'weights in data', 'weights', 'commas', 'spare'])
def test_edge_lists_of_networkx(tmp_path, written):
    file, graph = tmp_path / 'links.txt', nx.cycle_graph(5)
    if written == 'weights in data':
        nx.set_edge_attributes(graph, {link: {'weight': 0.25, 'a': '#'} for link in graph.edges})
    if written == 'weights':
        nx.set_edge_attributes(graph, 0.25, 'weight')
        nx.write_weighted_edgelist(graph, file)
    else:
        if written == 'spare':
            nx.set_edge_attributes(graph, 'b', 'a')
        nx.write_edgelist(graph, file, delimiter=',' if written == 'commas' else ' ')
    drawn = schedule('edge_list', 5, 2, seed=0, path=file)
    expected = schedule('ring', 5, 2, seed=0, static=True)
    for ours, theirs in zip(drawn[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if 'weights' in written:
        np.testing.assert_array_equal(drawn.weights, np.tile([0.5, 0.25, 0.25], (2, 5, 1)))
    else:
        assert drawn.weights is None


@pytest.mark.parametrize('kind', [np.float64, np.float32, np.float16, np.int64, float, int])
@pytest.mark.parametrize('form', ['{}', "{{'weight': {}}}", "{{'a': 'b', 'weight': {}, 'c': 1}}"])
@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
def test_weights_as_numpy_prints_them(tmp_path, kind, form, encoding):
    weight = kind(0.25 if np.dtype(kind).kind == 'f' else 0)
    file = tmp_path / 'links.txt'
    text = '\n'.join(f'{i} {(i + 1) % 5} {form.format(repr(weight))}' for i in range(5))
    file.write_text(text, encoding=encoding)
    drawn = schedule('edge_list', 5, 1, seed=0, path=file)
    expected = [1 - 2 * float(weight), float(weight), float(weight)]
    np.testing.assert_allclose(drawn.weights, np.tile(expected, (1, 5, 1)))


def test_a_graph_of_cities_once_its_nodes_are_numbered(tmp_path):
    cities = nx.cycle_graph(5)
    cities = nx.relabel_nodes(cities, {i: f'City {i}' for i in range(5)})
    nx.set_edge_attributes(cities, np.float64(0.25), 'weight')
    nx.write_edgelist(nx.convert_node_labels_to_integers(cities), tmp_path / 'links.txt')
    drawn = schedule('edge_list', 5, 1, seed=0, path=tmp_path / 'links.txt')
    np.testing.assert_array_equal(drawn.weights, np.tile([0.5, 0.25, 0.25], (1, 5, 1)))


@pytest.mark.parametrize('weighted', [False, True])
def test_directed_edge_lists_of_networkx(tmp_path, weighted):
    """Client 2 is heard by 0 and 1 and hears 0 alone; 3 only hears."""
    graph = nx.DiGraph([(0, 1), (2, 1), (2, 0), (0, 2), (1, 3)])
    if weighted:
        for number, link in enumerate(graph.edges, 1):
            graph.edges[link]['weight'] = number / 16
    nx.write_edgelist(graph, tmp_path / 'links.txt')
    drawn = schedule('directed_edge_list', 4, 2, seed=0, path=tmp_path / 'links.txt')
    assert adjacency(drawn, 0).tolist() == [[0, 0, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    expected = from_networkx(nx.DiGraph(sorted(graph.edges(data=True))), 2)
    for ours, theirs in zip(drawn[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if weighted:
        np.testing.assert_array_equal(drawn.weights, expected.weights)
    assert (drawn.weights is not None) == weighted
    with pytest.raises(SettingError, match='only undirected links'):
        options = {'seed': 0, 'path': tmp_path / 'links.txt', 'assortativity': 0.1}
        schedule('directed_edge_list', 4, 2, **options)


def test_a_directed_link_may_weigh_less_than_its_reverse(tmp_path):
    file = tmp_path / 'links.txt'
    file.write_text('0 1 .3\n1 0 .4\n')
    graph = schedule('directed_edge_list', 2, 1, seed=0, path=file)
    np.testing.assert_allclose(graph.weights[0], [[0.6, 0.4], [0.7, 0.3]])
    file.write_text('0 1 .3\n0 1 .4\n')
    with pytest.raises(TopologyError, match=r'links\.txt:2: link 0 1 had the weight 0\.3 before'):
        schedule('directed_edge_list', 2, 1, seed=0, path=file)


def test_what_is_no_plain_file(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path, what in ((tmp_path / 'pipe', 'a named pipe'), (tmp_path, 'a folder')):
        with pytest.raises(TopologyError, match=f'cannot be read: it is {what}, not a file'):
            schedule('edge_list', 5, 2, seed=0, path=path)
    with pytest.raises(TopologyError, match='it is a device'):
        schedule('edge_list', 5, 2, seed=0, path='/dev/zero')


# ------------------------------------------------------------------------------------ of memory


@pytest.fixture
def narrow(monkeypatch):
    """A machine on which 100 MiB are free, and drawing a graph is a failure."""
    monkeypatch.setattr('dfl_jax.host_memory.free_bytes', lambda: 100 * 2**20)
    monkeypatch.setattr(drawing, 'draw', lambda *_: pytest.fail('a graph was drawn'))


@pytest.mark.parametrize(
    ('family', 'static'),
    [(f, static) for f in DRAWN for static in (True, False) if not (static and f in SEQUENCES)],
)
def test_what_cannot_be_held_is_refused_before_it_is_drawn(narrow, family, static):
    size = {'clients': 2**24} if static or family == 'complete' else {'rounds': 10**7}
    arguments = {'clients': 64, 'rounds': 5, 'degree': 4} | size
    message = r'(?s)take about .* GiB, and 100.0 MiB are free; lower the clients'
    with pytest.raises(TopologyError, match=message):
        schedule(family, **arguments, seed=0, static=static)


def test_sizes_beyond_all_machines_are_refused_at_once():
    for family in ('complete', 'configuration', 'barabasi_albert', 'ring', 'clustered'):
        with pytest.raises(TopologyError, match=r'GiB are free'):
            schedule(family, 10**18, 1, seed=0, degree=4)
    with pytest.raises(TopologyError, match=r'cohorts of 30 clients in 10+ rounds take'):
        cohorts(30, 10**12, 5, seed=0)


def test_an_edge_list_with_a_aggregator_is_refused_before_it_is_laid_out(monkeypatch, tmp_path):
    (tmp_path / 'star.txt').write_text(''.join(f'0 {leaf}\n' for leaf in range(1, 5000)))
    monkeypatch.setattr('dfl_jax.host_memory.free_bytes', lambda: 100 * 2**20)
    with pytest.raises(TopologyError, match=r'of 5000 clients take about 119\.2 MiB, and 100'):
        schedule('edge_list', 5000, 100, seed=0, path=tmp_path / 'star.txt')


def test_failures_of_a_long_static_schedule_are_refused(monkeypatch):
    graphs = schedule('ring', 10, 10**9, seed=0, static=True)
    for drop in FAILURES:
        with pytest.raises(TopologyError, match=r'graphs that lose .* take about'):
            drop(graphs, 0.1, 0)


@pytest.mark.parametrize('family', DRAWN)
def test_the_estimate_of_members(family):
    """No less than what is drawn, and where the family fixes it, just that."""
    for clients, degree, rounds in ((36, 4, 20), (100, 6, 3), (9, 2, 5)):
        if family == 'hypercube':
            clients = 2**degree
        settings = Settings(clients, degree, rounds=rounds)
        found = drawn(family, clients, rounds, degree=degree).members.shape[-1]
        estimate = of_family.most_members(FAMILIES[family], settings)
        assert found <= estimate <= clients
        if family == 'regular' or not (
            FAMILIES[family].by_networkx(settings)
            or family in ('configuration', 'epidemic', 'base_graph')
        ):
            assert found == estimate


@pytest.mark.parametrize('family', [f for f in RELABELLED if f != 'complete'])
def test_families_of_a_fixed_shape_are_isomorphic_in_all_rounds(family):
    """And their clients are relabelled; families that are drawn have other graphs."""
    graphs = drawn(family, 16, rounds=5)
    each = [nx.from_numpy_array(adjacency(graphs, t), create_using=nx.DiGraph) for t in range(5)]
    alike = all(nx.faster_could_be_isomorphic(each[0], other) for other in each[1:])
    alike = alike and all(nx.is_isomorphic(each[0], other) for other in each[1:])
    assert alike == FAMILIES[family].fixed_shape or family == 'regular'
    assert any((adjacency(graphs, 0) != adjacency(graphs, t)).any() for t in range(1, 5))


@pytest.mark.parametrize('family', DRAWN)
def test_the_estimate_of_links(family):
    """From which the memory of drawing is planned; of directed families no half is left out."""
    for clients, degree in ((64, 4), (128, 6)):
        settings = Settings(clients, degree)
        if family in SEQUENCES:
            first = drawn(family, clients, 1, degree=degree)
            found = first.mask[0, :, 1:].sum()
        else:
            found = len(draw(family, settings, np.random.default_rng(0)))
        estimate = of_family.links_of(FAMILIES[family], settings)
        assert 0.6 * found <= estimate
        assert estimate <= 2.5 * found or family == 'base_graph', 'whose rounds are unlike'


def wheel(settings, rng):
    return nx.wheel_graph(settings.clients)


def test_a_family_of_your_own():
    graphs = schedule(Family(wheel), 6, 4, seed=0)
    assert (np.sort(degrees(graphs)) == [3, 3, 3, 3, 3, 5]).all()
    assert len({degrees(graphs)[t].argmax() for t in range(4)}) > 1, 'relabelled'
    hears = Family(lambda s, rng: nx.DiGraph([(0, 1), (1, 2), (1, 1)]), directed=True)
    assert adjacency(schedule(hears, 3, 1, seed=0, static=True), 0)[[1, 2], [0, 1]].all()
    with pytest.raises(TopologyError, match='wheel draws a Graph of 6 nodes; draw 6, in a'):
        schedule(Family(wheel, directed=True), 6, 1, seed=0)
    with pytest.raises(TopologyError, match=r'give links \[E, 2\] between the clients 0 to 2'):
        schedule(Family(lambda s, rng: np.array([[0, 3]])), 3, 1, seed=0)
    with pytest.raises(SettingError, match='wheel has no probability of a link'):
        schedule(Family(wheel), 6, 1, seed=0, probability=0.5)


def test_weights_of_a_family_of_your_own():
    def lazy_ring(settings, rng):
        graph = nx.cycle_graph(settings.clients)
        nx.set_edge_attributes(graph, rng.choice([0.1, 0.2]), 'weight')
        return graph

    graphs = schedule(Family(lazy_ring), 5, 8, seed=0)
    np.testing.assert_allclose(graphs.weights.sum(axis=2), 1)
    assert set(np.unique(graphs.weights[:, :, 1:])) == {0.1, 0.2}


def test_bytes_of_a_schedule():
    changing, static = (schedule('ring', 6, 4, seed=0, static=s) for s in (False, True))
    assert graph_bytes(changing) == 4 * (6 * 3 * 5 + 6) == 4 * graph_bytes(static)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (
            {'family': 'regular', 'clients': 301},
            'degree 5 needs clients.degree even, got clients=3',
        ),
        ({'family': 'regular', 'clients': 5}, 'degree 5 needs more than 5 clients, got clients=5'),
        ({'family': 'erdos_renyi', 'degree': 0}, 'degree=0'),
        ({'family': 'moebius'}, "unknown topology 'moebius'; choose one of ring.*edge_list"),
        ({'family': 'hypercube'}, 'a power of two of clients, got clients=36; take 32 or 64'),
        ({'family': 'base_graph', 'degree': 0}, 'base_graph needs a degree of at least 1'),
        ({'family': 'base_graph', 'static': True}, 'base_graph is a sequence .* leave out static'),
        ({'family': 'one_peer_exponential', 'assortativity': 0.1}, 'those of one_peer_exponential'),
        ({'family': 'k_random', 'assortativity': 0.1}, 'those of k_random are not'),
        ({'family': 'matrix'}, r'matrix needs the path of a file of weights \[M, M\]'),
        ({'family': 'watts_strogatz'}, 'even degree, got degree=5; take 4'),
        ({'family': 'watts_strogatz', 'degree': 4, 'rewiring': 1.5}, 'between 0 and 1, got 1.5'),
        ({'family': 'torus', 'clients': 37}, 'got clients=37; take 39'),
        ({'family': 'torus', 'clients': 8}, 'got clients=8; take 9'),
        ({'family': 'torus', 'clients': 37, 'dimensions': 3}, '3 sides .* clients=37; take 45'),
        ({'family': 'torus', 'clients': 80, 'dimensions': 4}, 'got clients=80; take 81'),
        ({'family': 'torus', 'dimensions': 0}, 'dimensions=0'),
        ({'family': 'configuration', 'exponent': 2}, 'exponent above 2, .* got exponent=2;'),
        ({'family': 'configuration', 'exponent': float('nan')}, 'got exponent=nan'),
        ({'family': 'configuration', 'exponent': float('inf')}, 'got exponent=inf'),
        ({'family': 'configuration', 'exponent': 1e308}, r'got exponent=1e\+308'),
        ({'family': 'torus', 'dimensions': 10**6}, 'got clients=36; take dimensions=3$'),
        ({'family': 'torus', 'dimensions': 10**18}, 'got clients=36; take dimensions=3$'),
        ({'family': 'torus', 'clients': 2, 'dimensions': 1}, 'clients=2; take 3$'),
        ({'family': 'regular', 'degree': 10**18}, 'lower the degree to 35'),
        ({'family': 'configuration', 'degree': 36}, 'degree 36 needs more than 36 clients'),
        ({'family': 'erdos_renyi', 'assortativity': 1.5}, 'between -1 and 1, got 1.5'),
        ({'family': 'erdos_renyi', 'assortativity': float('nan')}, 'between -1 and 1, got nan'),
        ({'family': 'ring', 'assortativity': 0.0}, 'clients of ring .* got assortativity=0.0'),
        ({'family': 'regular', 'degree': 4, 'assortativity': 0.1}, 'clients of regular'),
        ({'family': 'torus', 'assortativity': 0.1}, 'clients of torus'),
        ({'family': 'complete', 'assortativity': 0.1}, 'clients of complete'),
        ({'family': 'star', 'assortativity': 0.1}, 'closest was -1.0000'),
        ({'family': 'ring', 'clients': 2}, 'at least 3 clients, got clients=2'),
        ({'family': 'star', 'clients': 1}, 'at least 2 clients, got clients=1'),
        ({'family': 'ring', 'rounds': 0}, 'rounds=0'),
        ({'family': 'edge_list'}, 'needs the path'),
        ({'family': 'ring', 'path': 'links.txt'}, 'take edge_list'),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(SettingError, match=message) as raised:
        schedule(**{'clients': 36, 'rounds': 2, 'seed': 0, **arguments})
    assert '\n' not in str(raised.value)


def test_disconnected_static_graph_warns():
    with pytest.warns(UserWarning, match='clustered graph is not connected: 6 components'):
        schedule('clustered', 36, 2, seed=0, static=True)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        schedule('clustered', 36, 2, seed=0)
        schedule('ring', 36, 2, seed=0, static=True)


FAILURES = (drop_links, drop_clients, drop_receivers, isolate_clients)


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('drop', FAILURES)
def test_what_fails_follows_from_the_seed_and_nothing_comes_back(drop, static):
    graph = drawn('regular', clients=300, rounds=10, degree=40, static=static)
    lossy, again, other = (drop(graph, 0.2, seed=seed) for seed in (0, 0, 1))
    assert lossy.mask[:, :, 0].all() and not (lossy.mask[0] == lossy.mask[1]).all()
    assert (again.mask == lossy.mask).all() and (again.active == lossy.active).all()
    assert not (other.mask == lossy.mask).all()
    assert graph.mask.all() and graph.active.all(), 'the schedule given stays as it was'
    before = drop_clients(drop_links(graph, 0.1, seed=0), 0.2, seed=1)
    unchanged, less = drop(before, 0.0, seed=0), drop(before, 0.2, seed=0)
    assert all((a == b).all() for a, b in zip(unchanged[:3], before[:3], strict=True))
    assert not (less.active & ~before.active).any() and not (less.mask & ~before.mask).any()
    alone = drop(graph, 1.0, seed=0)
    assert alone.mask[:, :, 0].all() and not alone.mask[:, :, 1:].any()
    assert all(each.active.all() == (drop is not drop_clients) for each in (lossy, alone))


@pytest.mark.parametrize('static', [False, True])
def test_drop_links(static):
    graph = drawn('regular', clients=300, rounds=10, static=static)
    lossy = drop_links(graph, 0.3, seed=0)
    lost = 1 - degrees(lossy).sum() / degrees(graph).sum()
    assert lost == pytest.approx(0.3, abs=0.03)
    for t in range(10):
        assert (adjacency(lossy, t) == adjacency(lossy, t).T).all()


def test_each_direction_of_a_link_may_fail_by_itself():
    graph = drawn('complete', clients=40, rounds=10)
    lossy = drop_links(graph, 0.7, seed=0, directed=True)
    assert lossy.mask[:, :, 0].all() and lossy.active.all()
    there = np.stack([adjacency(lossy, t) for t in range(10)])
    back = there.transpose(0, 2, 1)
    assert there.sum() / (10 * 40 * 39) == pytest.approx(0.3, abs=0.02)
    assert (there & back).sum() / there.sum() == pytest.approx(0.3, abs=0.03)
    assert not (there[0] == there[1]).all()


def test_everybody_hears_k_others_drawn_at_random():
    graph = drawn('k_random', clients=50, rounds=40, degree=4)
    assert graph.mask.all() and graph.members.shape == (40, 50, 5)
    heard = np.stack([adjacency(graph, t) for t in range(40)])
    assert (heard.sum(axis=2) == 4).all() and not heard[:, np.arange(50), np.arange(50)].any()
    # A pair is linked with probability 4 / 49, in either direction, whatever the other does.
    assert (heard & heard.transpose(0, 2, 1)).sum() / heard.sum() == pytest.approx(4 / 49, abs=0.02)
    assert np.std(heard.sum(axis=(0, 1))) < 3 * (40 * 4) ** 0.5
    everybody = drawn('k_random', clients=6, rounds=2, degree=5)
    assert (np.sort(everybody.members) == np.arange(6)).all()


def test_the_probability_of_a_link():
    graph = drawn('erdos_renyi', clients=100, rounds=50, degree=90, probability=0.04)
    assert degrees(graph).mean() == pytest.approx(0.04 * 99, rel=0.05)
    with pytest.raises(SettingError, match='regular has no probability of a link; leave it out'):
        drawn('regular', probability=0.04)
    with pytest.raises(SettingError, match=r'the probability of a link is .* got 1\.5'):
        drawn('erdos_renyi', probability=1.5)


def test_expected_degrees_follow_the_power_law():
    """The exponents that the authors of Initialisation and topology found: -0.403 for 3."""
    sizes = (128, 512, 2048)
    norms = []
    for n in sizes:
        options = {'clients': n, 'degree': 64, 'exponent': 3.0}
        links = draw('chung_lu', Settings(**options), np.random.default_rng(n))
        norms.append(1 / gain_of(uniform_matrix(links, n)))
    slope = np.polyfit(np.log(sizes), np.log(norms), 1)[0]
    assert 2 * len(links) / sizes[-1] == pytest.approx(60, abs=8)  # hubs hear all, and no more
    assert slope == pytest.approx(-0.4, abs=0.04)


@pytest.mark.parametrize('static', [False, True])
def test_drop_clients(static):
    graph = drawn('barabasi_albert', clients=300, rounds=10, static=static)
    lossy = drop_clients(graph, 0.2, seed=0)
    assert 1 - lossy.active.mean() == pytest.approx(0.2, abs=0.03)
    assert not (lossy.active[0] == lossy.active[1]).all()
    for t in range(10):
        both = lossy.active[t][:, None] & lossy.active[t][None, :]
        assert (adjacency(lossy, t) == (adjacency(graph, t) & both)).all()


@pytest.mark.parametrize('static', [False, True])
def test_drop_receivers(static):
    """They receive nothing, others receive from them all the same, and all train."""
    graph = drawn('regular', clients=300, rounds=10, degree=40, static=static)
    cut = drop_receivers(graph, 0.2, seed=0)
    receives = cut.mask[:, :, 1:].any(axis=2)
    assert 1 - receives.mean() == pytest.approx(0.2, abs=0.03)
    assert (cut.mask[:, :, 1:] == receives[:, :, None]).all()
    assert not (receives[0] == receives[1]).all()
    dropped = drop_clients(graph, 0.2, seed=0)
    assert not (dropped.active == receives).all(), 'one stream of random numbers for both'


@pytest.mark.parametrize('static', [False, True])
def test_isolate_clients(static):
    """Cut off in both directions, and all train."""
    graph = drawn('regular', clients=300, rounds=10, degree=40, static=static)
    cut = isolate_clients(graph, 0.2, seed=0)
    linked = cut.mask[:, :, 1:].any(axis=2)
    assert 1 - linked.mean() == pytest.approx(0.2, abs=0.03)
    for t in range(10):
        both = linked[t][:, None] & linked[t][None, :]
        assert (adjacency(cut, t) == (adjacency(graph, t) & both)).all()
    assert not (linked[0] == linked[1]).all()
    for other in (drop_clients(graph, 0.2, seed=0), drop_receivers(graph, 0.2, seed=0)):
        receives = other.mask[:, :, 1:].any(axis=2)
        assert not (receives == linked).all(), 'one stream of random numbers for both'


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('lost', [0.0, 0.5])
def test_by_cluster(static, lost):
    graph = drop_clients(drawn('clustered', 37, static=static), lost, seed=0)  # of 4, 5 and 6
    shared = by_cluster(graph)
    aggregators = round(37 / 5)
    assert (
        shared.members.shape == shared.mask.shape == (ROUNDS, aggregators, graph.members.shape[2])
    )
    assert shared.members.dtype == np.int32 and shared.mask.dtype == shared.active.dtype == bool
    for t in range(ROUNDS):
        heard = shared.members[t][shared.mask[t]]
        assert sorted(heard) == np.flatnonzero(graph.active[t]).tolist()  # each of them once
        assert (shared.mask[t].any(axis=1) == shared.active[t]).all()
        for members, mask in zip(shared.members[t], shared.mask[t], strict=True):
            assert mask[0] == mask.any() and (members[~mask] == members[0]).all()
            for client in members[mask]:
                assert set(graph.members[t, client][graph.mask[t, client]]) == set(members[mask])


def test_by_cluster_of_what_is_no_cluster():
    for graph in (drawn('regular'), drop_links(drawn('clustered'), 0.3, seed=0), drawn('ring')):
        with pytest.raises(TopologyError, match='cliques without lost links'):
            by_cluster(graph)


@pytest.mark.parametrize('drop', FAILURES)
@pytest.mark.parametrize('probability', [-0.1, 1.1, float('nan')])
def test_dropout_errors(drop, probability):
    with pytest.raises(SettingError, match='between 0 and 1'):
        drop(drawn('ring'), probability, seed=0)


def test_cohorts():
    graph = cohorts(30, 60, 5, seed=0)
    assert graph.members.shape == graph.mask.shape == (60, 1, 5)
    assert graph.members.dtype == np.int32 and graph.mask.dtype == graph.active.dtype == bool
    assert graph.active.shape == (60, 1) and graph.active.all() and graph.mask.all()
    drawn_in = np.zeros((60, 30), int)
    np.add.at(drawn_in, (np.arange(60)[:, None], graph.members[:, 0]), 1)  # fails out of range
    assert graph.members.min() == 0 and graph.members.max() == 29
    assert drawn_in.max() == 1, 'a client is drawn twice in a round'
    assert len(np.unique(drawn_in, axis=0)) == 60
    # each client is drawn 10 times in the mean, with a standard deviation of 2.9
    assert drawn_in.sum(axis=0).min() >= 1 and drawn_in.sum(axis=0).max() <= 25
    assert (cohorts(30, 60, 5, seed=0).members == graph.members).all()
    assert not (cohorts(30, 60, 5, seed=1).members == graph.members).all()
    everyone = cohorts(7, 3, 7, seed=0)
    assert (np.sort(everyone.members[:, 0], axis=1) == np.arange(7)).all()


def test_dropout_of_a_cohort():
    full, lossy = cohorts(300, 200, 4, seed=0), cohorts(300, 200, 4, seed=0, dropout=0.5)
    assert (lossy.members == full.members).all(), 'who drops out is replaced'
    assert 1 - lossy.mask.mean() == pytest.approx(0.5, abs=0.06)
    assert len(np.unique(lossy.mask, axis=0)) > 10
    assert (lossy.active == lossy.mask.any(axis=2)).all()
    assert (~lossy.active).sum() >= 3 and lossy.active.any()
    again = cohorts(300, 200, 4, seed=0, dropout=0.5)
    assert (again.mask == lossy.mask).all()
    nobody = cohorts(300, 5, 4, seed=0, dropout=1.0)
    assert not nobody.mask.any() and not nobody.active.any()


@pytest.mark.parametrize(
    ('size', 'dropout', 'message'),
    [
        (0, 0.0, r'a cohort of 0 .* \[1, 30\]'),
        (-1, 0.0, r'a cohort of -1 .* \[1, 30\]'),
        (31, 0.0, r'a cohort of 31 .* \[1, 30\]'),
        (5, 1.5, 'client dropout .* between 0 and 1, got 1.5'),
        (5, -0.1, 'client dropout .* between 0 and 1, got -0.1'),
        (5, float('nan'), 'client dropout .* between 0 and 1, got nan'),
    ],
)
def test_cohorts_that_are_refused(size, dropout, message):
    with pytest.raises(SettingError, match=message):
        cohorts(30, 2, size, seed=0, dropout=dropout)


def matrix_of(family, clients, kind='uniform', sizes=None, **options):
    graph = drawn(family, clients=clients, rounds=1, static=True, **options)
    sizes = np.full(clients, 100) if sizes is None else sizes
    return mixing_matrix(host_round(graph, 0), sizes, kind)


@pytest.mark.parametrize('clients', [10, 37, 1500])
def test_spectrum_of_ring(clients):
    angles = 2 * np.pi * np.arange(1, clients) / clients
    expected = np.abs((1 + 2 * np.cos(angles)) / 3).max()
    result = spectrum(matrix_of('ring', clients))
    assert result.second_modulus == pytest.approx(expected, abs=1e-10)
    assert result.spectral_gap == pytest.approx(1 - expected, rel=1e-4)


@pytest.mark.parametrize(('clients', 'rows'), [(36, 6), (1600, 40)])
def test_spectrum_of_torus(clients, rows):
    expected = (3 + 2 * np.cos(2 * np.pi / rows)) / 5
    assert spectrum(matrix_of('torus', clients)).second_modulus == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize('clients', [2, 36, 1100])
def test_spectrum_of_complete(clients):
    sizes = np.arange(1, clients + 1)
    result = spectrum(matrix_of('complete', clients, 'size', sizes))
    assert result == pytest.approx((0, 1), abs=1e-6)


def test_spectrum_of_star_and_disconnected():
    # Metropolis on a star: 1 - 1/M with multiplicity M - 2, and 0.
    result = spectrum(matrix_of('star', 20, 'metropolis'))
    assert result.second_modulus == pytest.approx(19 / 20, abs=1e-12)
    assert spectrum(matrix_of('clustered', 36)) == (1.0, 0.0)
    assert spectrum(matrix_of('clustered', 1200)) == (1.0, 0.0)


def test_the_second_eigenvalue_may_be_negative():
    """Four clients that hear the four others: 1, 1/5 and -3/5."""
    halves = np.kron(np.eye(2)[::-1], np.ones((4, 4)))
    result = spectrum(scipy.sparse.csr_array((halves + np.eye(8)) / 5))
    assert result == pytest.approx((3 / 5, 2 / 5))


def test_spectrum_iterative_agrees_with_dense(monkeypatch):
    sizes = np.random.default_rng(0).integers(20, 400, 150)
    for family, kind in [('erdos_renyi', 'size'), ('line', 'size'), ('regular', 'metropolis')]:
        matrix = matrix_of(family, 150, kind, sizes, degree=12)
        expected = np.sort(np.abs(np.linalg.eigvals(matrix.toarray())))[-2]
        monkeypatch.setattr('dfl_jax.gossip.spectra.DENSE_SPECTRUM_UP_TO', 10)
        assert spectrum(matrix).second_modulus == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize('dense', [True, False])
def test_the_second_eigenvalue_is_that_of_largest_modulus(dense, monkeypatch):
    """Also where it is complex or negative, as of links of one direction and of uneven weights."""
    if not dense:
        monkeypatch.setattr('dfl_jax.gossip.spectra.DENSE_SPECTRUM_UP_TO', 4)
    rng, other_by_real_part = np.random.default_rng(0), 0
    circle = np.eye(70)[np.arange(70) - 1]
    matrices = [0.3 * np.eye(70) + 0.7 * circle]  # each hears one: |0.3 + 0.7 exp(2 pi i / 70)|
    for density in (0.05, 0.1, 0.3):
        links = circle + (rng.random((70, 70)) < density) * rng.random((70, 70)) ** 4
        matrices.append(links / links.sum(axis=1, keepdims=True))
    blocks = np.kron(np.eye(2)[::-1], rng.random((35, 35)) + 0.1)  # two halves that hear each other
    matrices.append(0.9 * blocks / blocks.sum(axis=1, keepdims=True) + 0.1 * np.eye(70))
    for matrix in matrices:
        values = np.linalg.eigvals(matrix)
        moduli = np.sort(np.abs(values))
        found = spectrum(scipy.sparse.csr_array(matrix))
        assert moduli[-1] == pytest.approx(1)
        assert found.second_modulus == pytest.approx(moduli[-2], abs=1e-8)
        assert found.spectral_gap == pytest.approx(1 - moduli[-2], abs=1e-8)
        by_real_part = values[np.argsort(values.real)[-2]]
        other_by_real_part += abs(abs(by_real_part) - moduli[-2]) > 1e-3
    assert other_by_real_part >= 2
