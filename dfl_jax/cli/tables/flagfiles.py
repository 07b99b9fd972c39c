"""Whether a run has the settings that the flagfile of its cell asks for."""

from collections.abc import Collection
from pathlib import Path

from dfl_jax.cli.run.rundir import Row, shown

FREE = ('seed', 'data_dir')  # a run may differ from its flagfile in these
BESIDE = (*FREE, 'partition_file', 'chunk')  # and be given these, which the flagfile has not


def read_flagfile(path: Path) -> dict[str, str]:
    """{flag: value} of a flagfile without nested ones; --flag is True, --noflag False."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.lstrip('-').partition('=') for line in lines if line.startswith('--'))
    return {
        name if sign else name.removeprefix('no'): value if sign else str(name[:2] != 'no')
        for name, sign, value in pairs
    }


def differences(name: str, wanted: dict[str, str], config: Row) -> list[str]:
    """Warnings of the settings in which a run differs from its flagfile.

    Raises ValueError for settings that no run has.
    """
    try:
        return _differences(name, wanted, config['settings'], config.get('given', ()))
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError('config.json is damaged, or not of a run') from error


def _differences(
    name: str, wanted: dict[str, str], settings: Row, given: Collection[str]
) -> list[str]:
    beyond = [flag for flag in given if flag not in (*wanted, *BESIDE)]
    if settings.get('partition_file'):
        file = Path(settings['partition_file']).name
        replaced = ('partition', 'partition_overlap', 'alpha')
        wanted = {flag: value for flag, value in wanted.items() if flag not in replaced}
        warnings = [f'{name}: partition from {file}']
    else:
        warnings = []
    warnings += [
        f'{name}: --{flag}={shown(settings.get(flag))}, the flagfile says {value}'
        for flag, value in wanted.items()
        if flag not in FREE
        and shown(settings.get(flag)) != value
        and not (flag == 'rounds' and settings['rounds'] > int(value))  # longer serves too
    ]
    return warnings + [
        f'{name}: --{flag}={shown(settings.get(flag))}, the flagfile has no --{flag}'
        for flag in beyond
    ]
