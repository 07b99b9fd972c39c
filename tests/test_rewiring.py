import numpy as np
import pytest

from dfl_jax.setting_error import SettingError
from dfl_jax.topology import FAMILIES, Settings
from dfl_jax.topology.family import draw
from dfl_jax.topology.rewiring import rewire
from tests.helpers import assortativity


def links_of(family, clients=300, degree=6):
    return draw(FAMILIES[family], Settings(clients, degree), np.random.default_rng(0))[0]


@pytest.mark.parametrize(
    ('family', 'clients', 'target'),
    [
        ('erdos_renyi', 2048, 0.4),
        ('erdos_renyi', 2048, -0.4),
        ('erdos_renyi', 300, 0.8),
        ('erdos_renyi', 40, -0.5),
        ('barabasi_albert', 300, 0.0),
        ('configuration', 300, -0.3),
    ],
)
def test_rewire(family, clients, target):
    links = links_of(family, clients)
    before = links.copy()
    rewired = rewire(links, target, np.random.default_rng(1))
    assert (links == before).all(), 'the links given stay as they were'
    assert rewired.dtype == np.int32 and rewired.shape == links.shape
    assert (rewired[:, 0] != rewired[:, 1]).all()
    assert len(np.unique(np.sort(rewired, axis=1), axis=0)) == len(links)
    assert (np.bincount(rewired.ravel()) == np.bincount(links.ravel())).all()
    assert assortativity(rewired) == pytest.approx(target, abs=0.01)
    assert (rewire(links, target, np.random.default_rng(1)) == rewired).all()
    assert not np.array_equal(rewire(links, target, np.random.default_rng(2)), rewired)


def test_what_is_near_enough_stays():
    links = links_of('erdos_renyi')
    target = assortativity(links) + 0.005
    assert (rewire(links, target, np.random.default_rng(1)) == np.sort(links, axis=1)).all()
    closer = rewire(links, target, np.random.default_rng(1), tolerance=0.001)
    assert assortativity(closer) == pytest.approx(target, abs=0.001)


def test_the_closest_is_reported():
    links = links_of('barabasi_albert', 60)
    with pytest.raises(SettingError, match=r'assortativity 1\.0 .* the closest was') as raised:
        rewire(links, 1.0, np.random.default_rng(1))
    closest = float(str(raised.value).split('closest was ')[1].split(';')[0])
    assert assortativity(links) < closest < 1
    rewire(links, closest, np.random.default_rng(1))


@pytest.mark.parametrize(
    ('family', 'target', 'message'),
    [
        ('erdos_renyi', 1.1, 'between -1 and 1, got 1.1'),
        ('erdos_renyi', float('nan'), 'between -1 and 1, got nan'),
        ('ring', 0.1, '300 links whose degrees are all equal'),
        ('star', 0.0, r'not reached within .* the closest was -1\.0000'),
    ],
)
def test_errors(family, target, message):
    with pytest.raises(SettingError, match=message) as raised:
        rewire(links_of(family), target, np.random.default_rng(0))
    assert '\n' not in str(raised.value)
