"""Sets our numbers beside a paper's: `dfl-jax tables ntk_dfl/figure2 --runs=DIR`

A table is a folder experiments/PAPER/TABLE with published.json (see docs/tables.md) and one
flagfile a cell, named METHOD-COLUMN.flags. Its runs are the directories METHOD-COLUMN or
METHOD-COLUMN-ANYTHING below --runs, one a seed, e.g. ntk_dfl-alpha0.1-seed0. Prints the table;
writes it (.md), the figure (.png) and the curves of both (.json) into --out. Such a .json stands
for its runs in --runs; of two runs of one name the one named first counts.

With --list it says which runs there are, which are missing and what they take; with --run it trains
those that are missing first, the cheapest first. The same command goes on after an interruption.
`all` in place of PAPER/TABLE writes one page of every published number, with a verdict.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from dfl_jax.cli import command
from dfl_jax.experiment.run_directory import Row
from dfl_jax.files import write_atomically
from dfl_jax.papers.tables import missing, reproduction
from dfl_jax.papers.tables.latex import latex_table
from dfl_jax.results.curves import find_runs, no_run_found, save_curves
from dfl_jax.results.measured import metrics_in_words
from dfl_jax.results.published import (
    flagfiles_of,
    known_tables,
    needed_columns,
    read_published,
    table_named,
)
from dfl_jax.results.run_notes import note_lines
from dfl_jax.results.table import head_and_rows, report, words_on_brackets

FLAGS = flags.FLAGS
OF_RUNS = ('seeds', 'cells', 'shard', 'data_dir', 'partitions', 'progress')  # of --run and --list


def define_flags(_: Sequence[str], known: flags.FlagValues = FLAGS) -> None:
    """Defines the flags of this command, whose names others use for something else."""
    define: list[Any] = [flags.DEFINE_string, flags.DEFINE_list, flags.DEFINE_bool]
    define += [command.define_path, command.define_paths]
    text, several, switch, path, paths = (partial(each, flag_values=known) for each in define)
    paths(
        'runs',
        None,
        'Folders whose subfolders are the runs, or .json files of their curves; --run writes '
        'into the first (default: runs/PAPER/TABLE).',
    )
    path(
        'out',
        None,
        'Folder for the table, its curves and its figure (default: the first of --runs).',
    )
    text('seeds', '0', 'Seeds of every cell, e.g. 0..4 or 0,2,3. With --run or --list.')
    text(
        'shard',
        '0/1',
        'Written i/n: this process takes every n-th run, beginning with run i, counted from 0. '
        'With --run or --list.',
    )
    path('data_dir', None, 'Folder of the data sets. With --run.')
    path(
        'partitions',
        None,
        "Folder of the authors' own partitions of the data, where the table has some; without it "
        'partitions are drawn. With --run.',
    )
    several('cells', [], 'Only these cells, e.g. dfedavg-*. With --run or --list.')
    switch('run', False, 'Train the runs that are missing, and then show the table.')
    switch('progress', True, 'Show a progress bar of each run. With --run.')
    switch('latex', False, 'Print the table in LaTeX, and write it as .tex, too.')
    switch(
        'list', False, 'Only list which runs there are, which are missing, and how long these take.'
    )


@command.one_line_errors('interrupted; the same command goes on', None)
def main(argv: list[str]) -> int:
    if len(argv) != 2:
        known = ', '.join(sorted(known_tables()))
        raise ValueError(f'name one table of {known}, all, or a folder that holds published.json')
    if argv[1] == 'all':
        _refuse(('run', 'list', 'latex', *OF_RUNS), 'one table; name it in place of all, or')
        return _write_pages(known_tables())
    name, file = table_named(argv[1])
    if FLAGS.latex and file.stem == 'computed':
        raise ValueError(f'--latex is of one table of runs, which {name} is not; leave it out')
    if FLAGS.runs is not None and not any(FLAGS.runs):
        raise ValueError('--runs is empty; name a folder of runs, or leave it out')
    sources = [Path(source) for source in FLAGS.runs or [f'runs/{name}'] if source]
    if FLAGS.list and FLAGS.latex:
        raise ValueError('--list writes no table; leave --latex out, or --list')
    if FLAGS.list or FLAGS.run:
        return _list_or_train(name, file, sources)
    _refuse(OF_RUNS, '--run and --list; add one of them, or')
    write_table(name, file, sources)
    return 0


def _refuse(names: Sequence[str], what_for: str) -> None:
    """Raises ValueError where any of these flags is given."""
    if given := next((name for name in names if FLAGS[name].present), None):
        raise ValueError(f'--{given} is of {what_for} leave it out')


def _write_pages(tables: dict[str, Path]) -> int:
    """The pages of all tables, from the curves that --runs holds, into --out; the exit status."""
    if not FLAGS.runs or len(FLAGS.runs) > 1 or not Path(FLAGS.runs[0]).is_dir():
        raise ValueError('all tables: name one folder of PAPER-TABLE.json, --runs=docs/results')
    out = Path(FLAGS.out or FLAGS.runs[0])
    command.check_writable(out, [reproduction.PAGE, reproduction.NUMBERS])
    pages = reproduction.pages(tables, Path(FLAGS.runs[0]))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        write_atomically(out / name, text)
    print(f'written: {", ".join(str(out / name) for name in pages)}')
    return 0


def _list_or_train(name: str, file: Path, sources: Sequence[Path]) -> int:
    """--list, or --run and then the table; the exit status."""
    if file.stem == 'computed':
        raise ValueError(f'{name} is computed and has no runs; leave --run and --list out')
    published = read_published(file)
    flagfiles = flagfiles_of(published, file.parent)
    chosen = missing.chosen_cells(flagfiles, FLAGS.cells)
    partitions = missing.partition_files(published, FLAGS.partitions)
    runs, notes = find_runs(flagfiles, sources, needed_columns(published, flagfiles))
    jobs = missing.jobs_of(chosen, _seeds(FLAGS.seeds), runs, partitions)
    mine = [jobs[i] for i in command.share(FLAGS.shard, jobs)]
    if FLAGS.list:
        print(missing.listing(mine, runs), *note_lines(notes), sep='\n')
        kept = sources[0] / f'{name.replace("/", "-")}.json'
        if not runs and kept.is_file():
            print(f'note: {sources[0]} holds no run; --runs={kept} reads the curves kept there')
        return 0
    if sources[0].suffix == '.json':
        raise ValueError(f'--runs={sources[0]}: runs are written into the first, name a folder')
    command.check_writable(sources[0], flag='runs')
    if 'partition_files' in published and not partitions:
        print("note: partitions are drawn; --partitions=DIR takes the authors' own")
    failed = missing.train(mine, runs, sources[0], FLAGS.data_dir, FLAGS.progress)
    write_table(name, file, sources)
    if failed:
        raise ValueError(f'{", ".join(failed)} failed, see above')
    return 0


def _seeds(text: str) -> list[int]:
    """Raises ValueError for what is no list of seeds."""
    numbers: Sequence[int] | None = command.whole_numbers(text)
    if numbers is None and all(part.isascii() and part.isdecimal() for part in text.split(',')):
        numbers = sorted({int(part) for part in text.split(',')})
    if not numbers or numbers[0] < 0 or len(numbers) > 1000:
        raise ValueError(f'--seeds={text}: write --seeds=0..4 or --seeds=0,2,3, at most 1000')
    return list(numbers)


def write_table(table_name: str, file: Path, sources: Sequence[Path]) -> None:
    """Prints the table and writes its files. Raises ValueError or OSError, one line."""
    name, first = table_name.replace('/', '-'), sources[0]
    out = Path(FLAGS.out or (first.parent if first.suffix == '.json' else first))
    kinds = ('md', 'json', 'png', *['tex'] * FLAGS.latex)
    names_of_files = [f'{name}.{kind}' for kind in kinds]
    command.check_writable(out, names_of_files, flag='out' if FLAGS.out else 'runs')
    try:
        if file.stem == 'computed':
            from dfl_jax.experiment.environment import check_jax
            from dfl_jax.papers.tables import studies

            check_jax()
            studies.main(studies.read_computed(file), name, out)
        else:
            _tabulate(read_published(file), file.parent, sources, out, name)
    except (LookupError, TypeError, AttributeError) as error:
        why = f'{type(error).__name__}: {error}'
        raise ValueError(f'{file} is no table as it should be ({why})') from error
    written = ', '.join(str(out / each) for each in names_of_files)
    print(f'written: {written}', file=sys.stderr if FLAGS.latex else sys.stdout)


def _tabulate(published: Row, folder: Path, sources: Sequence[Path], out: Path, name: str) -> None:
    flagfiles = flagfiles_of(published, folder)
    runs, notes = find_runs(flagfiles, sources, needed_columns(published, flagfiles))
    if not runs:
        raise ValueError(no_run_found(flagfiles, sources, notes))
    text, title = report(published, runs), f'{published["title"]}: {metrics_in_words(published)}'
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f'{name}.md', text + '\n')
    if FLAGS.latex:
        caption = f'{title}. {words_on_brackets(published)}'
        source = latex_table(*head_and_rows(published, runs), caption)
        write_atomically(out / f'{name}.tex', source + '\n')
        print(source)
    else:
        print(f'{title}\n({published["source"]})\n\n{text}')
    for line in note_lines(notes):
        print(line, file=sys.stderr if FLAGS.latex else sys.stdout)
    save_curves(out / f'{name}.json', runs, notes)

    from dfl_jax.papers.tables.panels import table_panels, ylabel
    from dfl_jax.papers.tables.plot_panels import draw_panels
    from dfl_jax.plots import save

    target, abreast = published.get('target'), published.get('abreast')
    figure = draw_panels(table_panels(published, runs), ylabel(published), target, abreast)
    save(figure, out / f'{name}.png', dpi=160)
