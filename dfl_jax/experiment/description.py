"""What describes a run: its settings in one value, from flat names and back to them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from dfl_jax.experiment.applicable import check_applicable
from dfl_jax.experiment.method import MethodSettings, flat_settings, flat_settings_of_all
from dfl_jax.experiment.run_settings import (
    PART_OF,
    PARTS,
    Adversaries,
    Architectures,
    Data,
    Evaluation,
    Gain,
    Graphs,
    Network,
    Partition,
    Placement,
    Privacy,
    Time,
    bounds_of,
    settings_of_runs,
)
from dfl_jax.experiment.table_rows import SETTINGS_OF_CODE, method_named, name_of
from dfl_jax.experiment.values import check_value, typed
from dfl_jax.method_settings import Setting, nearest
from dfl_jax.methods import METHODS

ALGORITHM = f'One of {", ".join(METHODS)}, or package.module:factory.'
OWN = {  # settings of the experiment itself
    'algorithm': Setting('algorithm', str, 'ntk_dfl', ALGORITHM, None),
    'rounds': Setting('rounds', int, 10, 'Communication rounds T.', None),
    'seed': Setting(
        'seed',
        int,
        0,
        'Seed of everything random: partition, graphs, initial weights and training.',
        None,
    ),
}
BOUNDS = {'rounds': {'least': 1}, 'seed': {'least': 0, 'traced': True}}


@dataclass(frozen=True)
class Description:
    """A method, its network and data, and for how long; one value.

    Args:
      method: The method, and what is given of its settings.
      network: The model of every client.
      data: The data set, and what is done to its inputs.
      partition: Which client has which training samples.
      graphs: Who hears whom in which round, and what fails.
      time: Simulated seconds.
      architectures: Clients of different architectures, and who meets.
      gain: What clients know of the network for a gain-corrected start.
      privacy: What an epsilon is claimed for.
      evaluation: When models are evaluated, and on what.
      placement: Where it is computed.
      rounds: Communication rounds T.
      seed: Seed of everything random: partition, graphs, initial weights and training.
      given: Names of settings that were given, which are refused where they have no effect.
    """

    method: MethodSettings = field(default_factory=MethodSettings)
    network: Network = field(default_factory=Network)
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    graphs: Graphs = field(default_factory=Graphs)
    time: Time = field(default_factory=Time)
    architectures: Architectures = field(default_factory=Architectures)
    gain: Gain = field(default_factory=Gain)
    adversaries: Adversaries = field(default_factory=Adversaries)
    privacy: Privacy = field(default_factory=Privacy)
    evaluation: Evaluation = field(default_factory=Evaluation)
    placement: Placement = field(default_factory=Placement)
    rounds: int = 10
    seed: int = 0
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        flat = self.flat()
        kinds = self.known()
        for name, value in flat.items():
            check_value(name, value, kinds[name].kind in (int, float))
        given = {name: flat[name] for name in self.given if name in flat}
        check_applicable(given, flat.get, self.method.row)

    @classmethod
    def of(cls, **flat: Any) -> Self:
        """An experiment of the settings that are given by their flat names, the flags' names.

        All others are at their defaults, some of which follow from the algorithm. A setting's help
        is what `dfl-jax run --help --algorithm=NAME` says of it.

        flat: an algorithm, a model, a task or a data set of one's own may be the factory itself.

        Raises TypeError for a name that is no setting, with the nearest that there is, and
        SettingError for a value that cannot be, or a setting that would have no effect.

        >>> Description.of(topolgy='ring')
        Traceback (most recent call last):
        TypeError: no setting 'topolgy', did you mean topology?
        """
        row = method_named(flat.get('algorithm', OWN['algorithm'].default))
        return cls.of_settings({**row.defaults, **flat}, given=flat)

    @classmethod
    def of_settings(cls, flat: Mapping[str, Any], given: Iterable[str]) -> Self:
        """An experiment of settings whose defaults do not follow from the algorithm.

        given: names of those that are refused where they have no effect.

        Raises TypeError and SettingError as `of` does.
        """
        algorithm = flat.get('algorithm', OWN['algorithm'].default)
        known = known_settings(algorithm)
        values: dict[str, Any] = {}
        for name, value in flat.items():
            if name not in known:
                where = (
                    ', it goes to .run()' if name in ('out', 'progress') else nearest(name, known)
                )
                raise TypeError(f'no setting {name!r}{where}')
            own = name in SETTINGS_OF_CODE and not isinstance(value, str)
            setting = known[name]._replace(name=name)
            values[name] = value if own else typed(setting, value, bounds(name))
        parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        of_method: dict[str, Any] = {}
        for name, value in values.items():
            if name in PART_OF:
                parts[PART_OF[name]][name] = value
            elif name not in OWN and value is not None:
                of_method[name] = value
        return cls(
            method=MethodSettings(algorithm, of_method),
            **{part: PARTS[part](**values) for part, values in parts.items()},
            rounds=values.get('rounds', OWN['rounds'].default),
            seed=values.get('seed', OWN['seed'].default),
            given=frozenset(given),
        )

    def known(self) -> dict[str, Setting]:
        """Every setting that an experiment of this algorithm has, by its flat name."""
        return known_settings(self.method.algorithm)

    def flat(self) -> dict[str, Any]:
        """Every setting by its flat name; None for what is left to the method or the run."""
        values: dict[str, Any] = dict.fromkeys(self.known())
        for part in PARTS:
            values |= vars(getattr(self, part))
        own = {'algorithm': self.method.algorithm, 'rounds': self.rounds, 'seed': self.seed}
        return {**values, **own, **self.method.given}

    def settings(self) -> dict[str, Any]:
        """`flat` as config.json has it: code of one's own by its name, lists in place of tuples."""
        values = {
            name: value for name, value in self.flat().items() if name not in vars(Placement())
        }
        of_code = {name: values[name] for name in SETTINGS_OF_CODE if values[name] is not None}
        values |= {name: name_of(value) for name, value in of_code.items()}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}

    @property
    def traced(self) -> list[str]:
        """The settings in which runs of one compiled program may differ."""
        row = self.method.row
        of_method = [n for n, each in flat_settings(row).items() if each.name in row.traced]
        return [*(name for name in (*OWN, *PART_OF) if bounds(name).get('traced')), *of_method]

    def replace(self, **flat: Any) -> Self:
        """The experiment with other values of some settings, by their flat names."""
        before = {name: value for name, value in self.flat().items() if value is not None}
        return type(self).of_settings(before | flat, {*self.given, *flat})

    def replace_unasked(self, **flat: Any) -> Self:
        """Likewise with values that nobody asked for, and that are not refused without effect."""
        before = {name: value for name, value in self.flat().items() if value is not None}
        return type(self).of_settings(before | flat, self.given)


def bounds(name: str) -> Mapping[str, Any]:
    """The bound, the choices and the path that a setting has (`run_settings.setting`)."""
    return BOUNDS.get(name) or bounds_of(name)


def known_settings(algorithm: Any = None) -> dict[str, Setting]:
    """Every setting by its flat name: of a run, of the library's methods, and of the algorithm."""
    known = OWN | settings_of_runs() | flat_settings_of_all()
    if algorithm is None:
        return known
    of_method = flat_settings(method_named(algorithm))
    return known | {name: each for name, each in of_method.items() if name not in OWN}


def default_settings() -> dict[str, Any]:
    """The default of every setting, None for those of methods."""
    of_runs = OWN | settings_of_runs()
    return dict.fromkeys(known_settings()) | {name: s.default for name, s in of_runs.items()}
