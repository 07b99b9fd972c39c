"""The pictures and the table of docs/architecture.md, made from the imports of dfl_jax as they are.

    python -m tests.architecture

`test_architecture.py` fails when it is time to run it.
"""

import ast
import re
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).parent.parent
DOCS = ROOT / 'docs'

# From the ground up: name, floor, place on the floor, what belongs there. A package imports only
# those that come before it.
PACKAGES = [
    ('tasks', 0, 0.4, 'what clients learn: losses, metrics and targets of a sample'),
    ('base', 0, 3.2, 'the types: `Clients`, `Graph`, `Round`, `Algorithm`, `Info`'),
    ('host_memory', 0, 1.8, 'the free memory of the host'),
    ('setting_error', 0, 4.6, 'the error of a setting: which one, its value, why, the remedy'),
    ('method_settings', 0, 6.0, 'what a factory takes: names, types, defaults, help'),
    ('plain_text', 0, 7.4, 'texts for people: a line, a count, a table'),
    ('paper_folder', 0, 8.8, 'where the flagfiles and published numbers of the papers lie'),
    ('flagfiles', 1, 8.8, 'flagfiles, nested ones among them, and the lines of one'),
    ('checks', 1, 4.6, 'checks of a choice and of a range, for all settings'),
    ('files', 1, 1.8, 'files that are read and checked, or written whole, and JSON'),
    ('data', 2, 1.8, 'sources, partitions over clients, packing into `Clients`'),
    ('models', 2, 3.2, 'flax networks, and what binds one to the shapes of a data set'),
    ('topology', 2, 4.6, 'families of graphs, the schedule of a run, failures'),
    ('run_checks', 2, 6.0, 'data, graphs and a test set that do not belong together'),
    ('plots', 2, 7.4, 'the pictures of a run, and the colours of all pictures'),
    ('execution', 3, 2.7, 'devices, memory, chunks, flops: where, and how many at once'),
    ('gossip', 4, 4.6, 'what averaging does: mixing, spectra, the gain of initial weights'),
    ('training', 4, 1.8, 'what a client does alone: batches, losses, local training'),
    ('exchange', 5, 0.4, 'what clients send: coded, tampered with, combined and counted'),
    ('initialisation', 5, 3.2, 'initial weights: the same for all, independent, gain-corrected'),
    ('metrics', 5, 4.6, 'means over clients, and how far apart their models are'),
    ('ntk', 6, 0.4, 'kernels, linearized networks, evolution, random projections, the update'),
    ('heterogeneous', 6, 2.4, 'clients of several architectures: mutual learning in groups'),
    ('timing', 6, 6.0, 'network and device profiles; the clock of rounds'),
    ('membership', 5, 6.0, 'how well losses tell what a model was trained on from other samples'),
    ('evaluation', 6, 4.6, 'accuracy and loss of the clients and of the consensus model'),
    ('progress', 7, 6.0, 'what a run has done so far, and the rows of its metrics'),
    ('simulate', 7, 4.6, 'a run: blocks of rounds, evaluation between them, exact traffic'),
    ('orbax_checkpoint', 7, 8.0, 'checkpoints as orbax wrote them for earlier versions'),
    ('checkpoint', 8, 6.0, 'the state and progress of a run on disk'),
    ('algorithms', 8, 2.2, 'one file a method that advances in rounds'),
    ('asynchronous', 8, 0.4, 'asynchronous methods: events of the clients, packed into slots'),
    ('methods', 9, 1.4, 'the table of all methods, and how to make one'),
    ('experiment', 10, 3.2, 'an experiment as a value: what describes, builds and keeps a run'),
    ('results', 11, 4.6, 'finished runs as numbers: rows, metrics, intervals, published tables'),
    ('cli', 12, 3.2, 'flags derived from `experiment`; one package a command'),
    ('papers', 13, 4.6, 'what a table or a figure of a paper asks for, a package a command'),
]
ORDER = [name for name, *_ in PACKAGES]
CLI = [
    ('command', 'errors of one line, paths, folders that can be written'),
    ('interrupts', 'Ctrl-C while a command starts'),
    ('streams', 'standard streams that are closed'),
    ('flags', 'the flags of a run, derived from its settings'),
    ('run', 'one run from the command line'),
    ('sweep', 'many runs in one command'),
    ('report', 'an interactive page that compares runs'),
    ('watch', 'the same page while runs go on, for browsers of the same machine'),
    ('time', 'seconds of finished runs on any network and devices'),
    ('help', '`--help`, in groups, with what applies to a method'),
    ('start', 'how a command starts: its flags, or its help'),
    ('__main__', '`dfl-jax COMMAND`'),
]
COLOURS = ('#dfe7ef', '#d9ead3', '#fff2cc', '#fce5cd', '#ead1dc', '#d0e0e3', '#d9d2e9')
INK = '#37474f'
PAPER = '#fafafa'


def imports(root: Path = ROOT) -> dict[str, set[str]]:
    """The modules of dfl_jax that each of its modules imports, anywhere in the file."""
    files = {}
    for file in (root / 'dfl_jax').rglob('*.py'):
        parts = file.relative_to(root).with_suffix('').parts
        files['.'.join(parts[:-1] if parts[-1] == '__init__' else parts)] = file
    found: dict[str, set[str]] = {}
    for module, file in files.items():
        names = []
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f'{file}:{node.lineno}: a relative import'
                for alias in node.names:
                    inner = f'{node.module}.{alias.name}'
                    names.append(inner if inner in files else str(node.module))
        found[module] = {name for name in names if name in files} - {module}
    return found


def arrows(of_modules: dict[str, set[str]], below: int = 1) -> dict[str, set[str]]:
    """The parts that each part imports: packages and files of dfl_jax, or of dfl_jax.cli (2)."""

    def part(module: str) -> str | None:
        words = module.split('.')
        return words[below] if len(words) > below and (below == 1 or words[1] == 'cli') else None

    found: dict[str, set[str]] = {}
    for module, others in of_modules.items():
        if name := part(module):  # the face of dfl_jax hands on the types
            named = {part(other) for other in others} - {None, name}
            found.setdefault(name, set()).update(named)
    return found


def direct(of_packages: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that do not follow from others: those that the picture shows."""

    def below(name: str) -> set[str]:
        return of_packages[name].union(*map(below, of_packages[name]))

    return {
        (name, other)
        for name, others in of_packages.items()
        for other in others
        if not any(other in below(between) for between in others - {other})
    }


def table(parts: list[tuple], of_parts: dict[str, set[str]], first: str) -> str:
    """A Markdown row a part, with all the parts that it imports."""
    order = [name for name, *_ in parts]
    rows = [f'| {first} | what belongs there | imports |', '|---|---|---|']
    for name, *_, what in parts:
        others = ', '.join(other for other in order if other in of_parts[name])
        rows.append(f'| `{name}` | {what} | {others} |')
    return '\n'.join(rows) + '\n'


def page() -> str:
    """docs/architecture.md with its tables as the imports are."""
    text, modules = (DOCS / 'architecture.md').read_text(), imports()
    for parts, below, first in ((PACKAGES, 1, 'package'), (CLI, 2, 'part of `cli`')):
        new = table(parts, arrows(modules, below), first)
        old = rf'\| {re.escape(first)} \| what belongs there.*?\n(?!\|)'
        text = re.sub(old, lambda _, new=new: new, text, flags=re.DOTALL)
    return text


def box(ax, x, y, width, height, colour, title, text='', size=9, zorder=2):
    """A rounded box around (x, y), with a bold title and a text below it."""
    corner = (x - width / 2, y - height / 2)
    style = 'round,pad=0,rounding_size=0.06'
    ax.add_patch(
        FancyBboxPatch(
            corner, width, height, boxstyle=style, fc=colour, ec=INK, lw=0.8, zorder=zorder
        )
    )
    shift = 0.1 * (1 + text.count('\n')) if text else 0
    ax.text(x, y + shift, title, ha='center', va='center', size=size, weight='bold', zorder=3)
    if text:
        below = y + shift - 0.1
        ax.text(x, below, text, ha='center', va='top', size=size - 1.5, zorder=3, linespacing=1.35)


def arrow(ax, start, end, gid=None, bend=0.0):
    """An arrow from `start` to `end`, by the name `gid` in the file."""
    style = {'arrowstyle': '-|>', 'color': INK, 'lw': 0.9, 'shrinkA': 0, 'shrinkB': 1}
    drawn = ax.annotate(
        '', end, start, zorder=1, arrowprops=style | {'connectionstyle': f'arc3,rad={bend}'}
    )
    drawn.arrow_patch.set_gid(gid)


def sheet(width: float, height: float, xlim: tuple, ylim: tuple):
    """A figure of so many inches with one axes that shows nothing but what is drawn."""
    figure, ax = plt.subplots(figsize=(width, height))
    ax.set(xlim=xlim, ylim=ylim)
    ax.axis('off')
    figure.subplots_adjust(0, 0, 1, 1)
    return figure, ax


def draw_packages(of_packages: dict[str, set[str]]):
    """The packages on their floors, an arrow from each to what it imports directly."""
    figure, ax = sheet(12, 13, (-0.4, 9.5), (-0.4, 13.4))
    place = {name: (x, floor) for name, floor, x, _ in PACKAGES}
    for name, (x, y) in place.items():
        if name == 'cli':
            commands = 'run · sweep · report · watch · time'
            box(ax, x, y, 5.2, 0.66, '#eeeeee', 'cli', f'{commands}\nflags: those of a run')
        else:
            box(ax, x, y, 1.3, 0.4, COLOURS[y % len(COLOURS)], name)
    for name, other in sorted(direct(of_packages)):
        (x, y), (u, v) = place[name], place[other]
        wide = 0.55 if name != 'cli' else 1.9
        if y == v:
            side = 0.65 if u > x else -0.65
            arrow(ax, (x + side, y), (u - side, v), f'{name}->{other}')
            continue
        out = min(max(u - x, -wide), wide) * 0.8
        start = (x + out, y - (0.33 if name == 'cli' else 0.2))
        end = (u - min(max(u - start[0], -0.4), 0.4), v + 0.2)
        between = [n for n, (a, b) in place.items() if v < b < y and abs(a - u) < 0.5]
        arrow(ax, start, end, f'{name}->{other}', bend=0.25 if between and abs(x - u) < 0.8 else 0)
    return figure


AGGREGATOR = """Graph of round r: members, mask [H, K], active [H]
gossip.mixing: weights [H, K] · models [H, K, ...]

NTK: joint data [K N, ...], kernel [K N, K N],
residuals S [C, K N], new weights J^T S"""
ALONE = (
    'trains alone on its data, [M, ...] → [M, ...]\nNTK: rows of its Jacobian, never all at once'
)
STATE = 'parameters [M, ...] and\nwhat the method keeps,\ndonated to the next round'
LOGITS = 'logits of the clients\n[M, B, C], of the\nconsensus model [B, C]'
LANES = [(1.35, 2.5, 'host, before'), (5.0, 4.4, 'device, round r'), (8.65, 2.5, 'after a block')]
ROUND = [  # x, y, width, height, colour, title, text
    (1.35, 6.3, 2.1, 0.7, 1, 'data.load', 'train_x, train_y, test'),
    (1.35, 5.2, 2.1, 0.7, 1, 'data.partition', 'samples of each client'),
    (1.35, 4.1, 2.1, 0.7, 1, 'data.pack', 'pad to N samples'),
    (1.35, 2.2, 2.1, 0.95, 1, 'topology.schedule', 'the graphs of all rounds,\n[T, H, K]'),
    (1.35, 0.75, 2.1, 0.7, 0, 'seed', 'one key a round: fold_in(key, r)'),
    (3.95, 6.05, 1.9, 1.2, 0, 'Clients', 'x [M, N, ...]\ny [M, N]\nmask [M, N]'),
    (6.1, 6.05, 1.9, 1.2, 0, 'State', STATE),
    (4.7, 4.35, 3.4, 0.95, 5, 'every client', ALONE),
    (5.0, 2.2, 4.0, 1.7, 7, 'every aggregator', AGGREGATOR),
    (5.0, 0.75, 4.0, 0.7, 0, 'Info', 'loss [M], sent {kind: [M]}, metrics'),
    (8.65, 6.05, 2.1, 1.2, 6, 'predict', LOGITS),
    (8.65, 4.35, 2.1, 0.85, 6, 'evaluation', 'accuracies and losses\non the test set'),
    (8.65, 2.6, 2.1, 0.95, 6, 'metrics.jsonl', 'checkpoints, plots,\nprogress, loggers'),
    (8.65, 0.75, 2.1, 0.85, 0, 'exact traffic', 'messages times bits,\nin Python integers'),
]
FLOWS = [  # from x, y, to x, y, text
    (1.35, 5.95, 1.35, 5.56, ''),
    (1.35, 4.85, 1.35, 4.46, ''),
    (1.35, 1.1, 1.35, 1.71, ''),
    (2.4, 4.3, 2.98, 5.6, ''),
    (2.4, 2.2, 2.98, 2.2, ''),
    (2.4, 0.95, 2.98, 2.0, ''),
    (3.95, 5.44, 4.2, 4.84, ''),
    (5.7, 5.44, 5.4, 4.84, ''),
    (4.7, 3.87, 4.7, 3.07, 'models or rows, counted as sent'),
    (5.0, 1.34, 5.0, 1.11, ''),
    (6.72, 3.05, 6.72, 5.43, 'next round'),
    (7.05, 6.05, 7.58, 6.05, ''),
    (8.65, 5.44, 8.65, 4.79, ''),
    (8.65, 3.92, 8.65, 3.09, ''),
    (7.0, 0.75, 7.58, 0.75, ''),
    (8.65, 1.18, 8.65, 2.11, ''),
]


def draw_round():
    """What a run holds and computes, and the arrays that go from one to the other."""
    figure, ax = sheet(10, 7.6, (0, 10), (0, 7.6))
    for x, width, title in LANES:
        box(ax, x, 3.75, width, 7.1, PAPER, '', zorder=0)
        ax.text(x, 7.0, title, ha='center', size=10, style='italic')
    for x, y, width, height, colour, title, text in ROUND:
        box(ax, x, y, width, height, COLOURS[colour % len(COLOURS)], title, text)
    for x, y, u, v, text in FLOWS:
        arrow(ax, (x, y), (u, v))
        where = {'ha': 'center', 'va': 'center', 'zorder': 4}
        behind = {'fc': PAPER, 'ec': 'none', 'pad': 1.5}
        ax.text((x + u) / 2, (y + min(v, 3.87)) / 2, text, size=7.5, bbox=behind, **where)
    return figure


def save(figure, name: str) -> None:
    """Writes an SVG that is the same whenever the same is drawn."""
    with plt.rc_context({'svg.hashsalt': name}):
        figure.savefig(DOCS / name, metadata={'Date': None})
    plt.close(figure)


def main() -> None:
    (DOCS / 'architecture.md').write_text(page())
    save(draw_packages(arrows(imports())), 'architecture.svg')
    save(draw_round(), 'round.svg')


if __name__ == '__main__':
    main()
