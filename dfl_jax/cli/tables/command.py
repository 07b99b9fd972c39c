"""Sets our numbers beside a paper's: `python -m experiments.tables ntk_dfl/figure2 --runs=DIR`

A table is a folder experiments/PAPER/TABLE with published.json (see docs/tables.md) and one
flagfile a cell, named METHOD-COLUMN.flags. Its runs are the directories METHOD-COLUMN or
METHOD-COLUMN-ANYTHING below --runs, one a seed, e.g. runs/figure2/ntk_dfl-alpha0.1-seed0. Prints
the table; writes it (.md), the figure (.png) and the curves of both (.json) into --out. Such a
.json stands for its runs in --runs. Where --runs names several folders or files, a cell's runs are
those of the first that has any.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dfl_jax.cli.command import check_writable, in_a_line, one_line_errors
from dfl_jax.cli.run.rundir import Row, write_atomically
from dfl_jax.cli.tables import files
from dfl_jax.cli.tables.curves import find_runs, save_curves
from dfl_jax.cli.tables.metrics import what
from dfl_jax.cli.tables.table import report

FLAGS = flags.FLAGS


def define_flags(_: Sequence[str]) -> None:
    """Defines the flags of this command, whose names others use for something else."""
    flags.DEFINE_list('runs', 'runs', 'Folders whose subfolders are the runs, or .json of them.')
    flags.DEFINE_string(
        'out', None, 'Where table, curves and figure go (default: with the first of --runs).'
    )


@one_line_errors('interrupted; start again', None)
def main(argv: list[str]) -> int:
    known = files.known_tables(files.PAPERS)
    if len(argv) != 2 or argv[1] not in known:
        raise ValueError(f'name one table of {", ".join(sorted(known))}')
    sources = [Path(source) for source in FLAGS.runs if source]
    if not sources:
        raise ValueError('--runs is empty; name a folder of runs, or leave it out')
    write_table(argv[1], known[argv[1]], sources)
    return 0


def write_table(table_name: str, file: Path, sources: Sequence[Path]) -> None:
    """Prints the table and writes its files. Raises ValueError or OSError, one line."""
    name, first = table_name.replace('/', '-'), sources[0]
    out = Path(FLAGS.out or (first.parent if first.suffix == '.json' else first))
    names_of_files = [f'{name}.{kind}' for kind in ('md', 'json', 'png')]
    check_writable(out, names_of_files, flag='out' if FLAGS.out else 'runs')
    try:
        if file.stem == 'computed':
            from dfl_jax.cli.tables import studies

            studies.main(files.read_computed(file), name, out)
        else:
            _write(files.read_published(file), file.parent, sources, out, name)
    except (LookupError, TypeError, AttributeError) as error:
        why = f'{type(error).__name__}: {error}'
        raise ValueError(f'{file} is no table as it should be ({why})') from error
    print('written: ' + ', '.join(str(out / each) for each in names_of_files))


def _write(published: Row, folder: Path, sources: Sequence[Path], out: Path, name: str) -> None:
    flagfiles = files.flagfiles(published, folder)
    needed = files.columns(published, flagfiles)
    runs, warnings = find_runs(folder.name, flagfiles, sources, needed)
    text = report(published, runs)
    print(f'{published["title"]}: {what(published)}\n({published["source"]})\n\n{text}')
    for warning in warnings:
        print(f'note: {in_a_line(warning)}')
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f'{name}.md', text + '\n')
    save_curves(out / f'{name}.json', runs, warnings)

    from dfl_jax.cli.run.plots import plt
    from dfl_jax.cli.tables.panels import table_panels, ylabel
    from dfl_jax.cli.tables.plot_panels import draw_panels

    target, abreast = published.get('target'), published.get('abreast')
    figure = draw_panels(table_panels(published, runs), ylabel(published), target, abreast)
    figure.savefig(out / f'{name}.png', dpi=160)
    plt.close(figure)
