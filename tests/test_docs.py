"""The code in the documentation runs as it stands."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from absl import flags
from helpers import started

from dfl_jax import data, heterogeneous, models, simulate, topology
from dfl_jax.cli.run import command as run_command
from dfl_jax.data.npz import from_arrays
from dfl_jax.exchange import one_round
from dfl_jax.experiment.method import flat_settings
from dfl_jax.methods import IN_ROUNDS, make
from dfl_jax.papers.tables import command as tables

ROOT = Path(__file__).resolve().parent.parent


def code_blocks(document, language):
    text = (ROOT / document).read_text()
    return re.findall(rf'```{language}\n(.*?)```', text, flags=re.DOTALL)


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, *arguments],
        check=True,
        cwd=cwd,
        env=os.environ | {'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(cwd)},
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


@pytest.mark.integration
def test_the_example_algorithm_learns(tmp_path):
    (tmp_path / 'gossip_gd.py').write_text(code_blocks('docs/adding_an_algorithm.md', 'python')[0])
    command, *_ = code_blocks('docs/adding_an_algorithm.md', 'sh')
    words = command.split()
    assert words[:2] == ['dfl-jax', 'run']
    # Without the folder of the command on the path, as a script that pip installs starts
    dfl_jax = ('-P', '-m', 'dfl_jax.cli')
    run(*dfl_jax, *words[1:], '--dataset=synthetic', f'--out={tmp_path / "run"}', cwd=tmp_path)
    lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last['round'] == 100
    assert last['consensus_accuracy'] > 0.9 > first['consensus_accuracy']


def test_the_example_with_local_steps_agrees_where_plain_averaging_drifts():
    """Clients of one class each that take ten full-batch steps a round, on a ring."""
    names = own_code('METHOD = Method(k_gt')
    rng = np.random.default_rng(0)
    y = np.arange(240) % 6
    x = (rng.normal(size=(240, 8)) + 2 * np.eye(6, 8)[y]).astype('float32')
    clients = data.pack(x, y, [np.flatnonzero(y == c) for c in range(6)])
    graphs = topology.schedule('ring', 6, 60, static=True, seed=0)
    model = models.bind(models.Linear(6), x.shape[1:])
    given = {'lr': 0.1, 'batch_size': 240, 'local_epochs': None, 'local_steps': 10}
    distance = {}
    for method in (names['METHOD'].factory, 'dfedavg'):
        algorithm = make(method, model, mixing='metropolis', momentum=0.0, **given)
        test, key = simulate.Holdout(x, y), jax.random.key(0)
        *_, (row, state, _) = simulate.run(algorithm, clients, graphs, test, key, eval_every=60)
        distance[method] = row['consensus_distance']
        if method != 'dfedavg':
            total = jax.tree.map(lambda leaf: np.abs(leaf.sum(axis=0)).max(), state.correction)
            assert max(jax.tree.leaves(total)) < 1e-4
    tracked, plain = distance.values()
    assert tracked < plain / 10


def run_of(factory, rounds=10, **settings):
    """The last evaluation of a method, eight clients on a static graph."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 6
    x = (rng.normal(size=(240, 8)) + 2 * np.eye(6, 8)[y]).astype('float32')
    clients = data.pack(x, y, np.split(rng.permutation(240), 8))
    graphs = topology.schedule('regular', 8, rounds, degree=4, static=True, seed=0)
    algorithm = make(factory, models.bind(models.Linear(6), x.shape[1:]), **settings)
    runs = simulate.run(
        *(algorithm, clients, graphs, simulate.Holdout(x, y), jax.random.key(0)), eval_every=rounds
    )
    return next(runs)[0]


def test_the_example_of_lazy_gossip_pays_for_what_it_sends():
    lazy = own_code('def lazy_gossip')['lazy_gossip']
    often, rarely = run_of(lazy, every=1), run_of(lazy, every=5)
    assert rarely['mbytes_total'] * 5 == pytest.approx(often['mbytes_total'], rel=1e-12)
    assert rarely['mbytes_total'] > 0
    assert often['moved_by_averaging_mean'] > 0


def test_the_example_of_a_codec_sends_a_bit_a_weight():
    signs = own_code('def sign_choco')['sign_choco']
    row, plain = run_of(signs, rounds=40), run_of('dpsgd', rounds=40, mixing='metropolis')
    weights, tensors = 8 * 6 + 6, 2
    assert row['mbytes_total'] * 32 * weights == pytest.approx(
        plain['mbytes_total'] * (weights + 32 * tensors)
    )
    assert row['consensus_accuracy'] > plain['consensus_accuracy'] - 0.03
    with pytest.raises(ValueError, match='codes its messages itself'):
        run_of(signs, bits=8)


def test_the_example_of_an_aggregation_takes_medians():
    names = own_code('def median_dpsgd')
    there = np.array([True, True, False, True])
    received = {'w': jax.numpy.array([[1.0, 5.0], [3.0, 1.0], [99.0, 99.0], [8.0, 2.0]])}
    own = {'w': received['w'][0]}
    found = names['median'](own, received, np.full(4, 0.25), there)
    np.testing.assert_array_equal(found['w'], [3.0, 2.0])
    assert run_of(names['median_dpsgd'], rounds=40)['consensus_accuracy'] > 0.7


def own_code(holds: str) -> dict:
    """The names of the one example on the page that holds some text, which is a screen long."""
    blocks = code_blocks('docs/adding_an_algorithm.md', 'python')
    (example,) = [block for block in blocks if holds in block]
    assert len(example.splitlines()) <= 45
    names: dict = {}
    exec(example, names)
    return names


def test_the_example_of_two_architectures_goes_a_part_of_the_way():
    """All of the way it is decentralized FedAvg, since the clients have equally many samples."""
    names = own_code('def halfway')
    x = np.random.default_rng(0).normal(size=(80, 8, 8, 1)).astype('float32')
    clients = data.pack(x, np.arange(80) % 4, np.split(np.arange(80), 8))
    listed = ['cnn-2', 'cnn-4'] * 4
    networks = {n: models.bind(models.architecture(n, 4), (8, 8, 1)) for n in ('cnn-2', 'cnn-4')}
    population = heterogeneous.populate(networks, listed)
    network = topology.schedule('complete', 8, 1, seed=0)
    graph = jax.tree.map(lambda a: a[0], topology.meetings(network, 5, seed=0))
    key = jax.random.key(1)

    def after(method, **settings):
        algorithm = make(method, population, init='independent', **settings)
        step = jax.jit(partial(one_round, algorithm))
        return step(key, algorithm.init(key, clients), 0, graph, clients)[0].params

    halfway, close = names['METHOD'], partial(np.testing.assert_allclose, atol=1e-6)
    none, half, whole = (after(halfway, share=share) for share in (0.0, 0.5, 1.0))
    jax.tree.map(close, whole, after('dec_fedavg'))
    middle = jax.tree.map(lambda a, b: (a + b) / 2, none, whole)
    jax.tree.map(close, half, middle)
    apart = jax.tree.map(lambda a, b: np.abs(a - b).max(), none, whole)
    assert min(jax.tree.leaves(apart)) > 1e-4


@pytest.mark.integration
def test_the_library_example_of_the_readme(tmp_path):
    pytest.importorskip('sklearn')
    (example,) = code_blocks('README.md', 'python')
    lines = run('-c', example, cwd=tmp_path).splitlines()
    assert [int(line.split()[0]) for line in lines] == [*range(1, 11)]
    assert float(lines[-1].split()[1]) > 0.9


@pytest.mark.integration
def test_the_page_of_experiments_runs_as_it_stands(tmp_path):
    example = ''.join(code_blocks('docs/experiment.md', 'python'))
    words = [line.split() for line in run('-c', example, cwd=tmp_path).splitlines()]
    first, settings, rates, loaded = words[:4], words[4], words[5:7], words[7]
    assert [each[0] for each in first] == ['1', '2', '3', '4']
    assert settings == ['ring', '4'] and [rate for rate, _ in rates] == ['0.05', '0.2']
    assert loaded == ['True', first[-1][1]]
    *longer, error, fields = words[9:]
    assert [each[:2] for each in longer[:4]] == [each[:2] for each in first]
    assert [each[0] for each in longer] == [str(r) for r in range(1, 7)]
    assert error[:3] == ['algorithm=swift', 'has', 'no'] and fields[:2] == ['algorithm', '|']


@pytest.mark.integration
def test_the_page_of_own_parts_runs_as_it_stands(tmp_path):
    """By flag, from Python, in a sweep and in a report; the loader and the loss, too."""
    page = 'docs/own_parts.md'
    focal = next(b for b in code_blocks('docs/how_it_works.md', 'python') if 'def focal' in b)
    (loader,) = code_blocks('docs/data.md', 'python')
    for script in (*code_blocks(page, 'python'), loader, f'# focal.py\n{focal}'):
        (name,) = re.match(r'# (\w+\.py)\n', script).groups()
        (tmp_path / name).write_text(script)
        assert len(script.splitlines()) <= 20
    lines = [block.replace('\\\n', ' ').splitlines() for block in code_blocks(page, 'sh')]
    commands = [line.split() for block in lines for line in block]
    other = ('--dataset=my_data:waves', '--algorithm=dfedavg', '--out=runs/waves')
    tasks = '--sweep=task:classification,focal:factory'
    commands.insert(0, ['dfl-jax', 'sweep', tasks, *other])
    few = ('--rounds=2', '--noprogress', '--train_samples=300')
    for program, *words in commands:
        if program == 'python':
            printed = run(*words, cwd=tmp_path).splitlines()
            continue
        rest = () if words[0] == 'report' else few
        done = started(*words, *rest, cwd=tmp_path, env={'XDG_CACHE_HOME': str(tmp_path)}).outcome()
        assert done.status == 0, done
    assert [line.split()[0] for line in printed] == ['1', '2']
    for each in (
        *('nearby', 'even_odd', 'top_two', 'signs'),
        *('waves/task=focal:factory', 'steps/optimizer=signs:signs'),
    ):
        assert (tmp_path / 'runs' / each / 'done').exists()
    swept = 'topology=nearby:NEARBY,partition=even_odd:EVEN_ODD'
    rows = (tmp_path / 'runs/parts' / swept / 'metrics.jsonl').read_text().splitlines()
    assert json.loads(rows[-1])['consensus_top_two'] > 0.2
    shown = (tmp_path / 'runs/report.html').read_text()
    parts = ('nearby:NEARBY', 'even_odd:EVEN_ODD', 'signs:signs', 'top_two', 'my_data:waves')
    assert all(part in shown for part in parts)
    config = json.loads((tmp_path / 'runs/from_python/config.json').read_text())
    named = {
        name: config['settings'][name] for name in ('topology', 'partition', 'task', 'optimizer')
    }
    assert named == {
        'topology': 'nearby:NEARBY',
        'partition': 'even_odd:EVEN_ODD',
        'task': 'top_two:task',
        'optimizer': 'signs:signs',
    }
    python = (
        'import dfl_jax, focal, my_data\n'
        "given = dict(algorithm='dfedavg', train_samples=300, rounds=2)\n"
        'own = dfl_jax.Experiment.of(dataset=my_data.waves, task=focal.factory, **given)\n'
        "print(own.run(progress=False).last()['consensus_loss'])\n"
    )
    rows = (tmp_path / 'runs/waves/task=focal:factory/metrics.jsonl').read_text().splitlines()
    loss = float(run('-c', python, cwd=tmp_path))
    assert loss == pytest.approx(json.loads(rows[-1])['consensus_loss'], rel=1e-4)
    again = ('run', '--resume', '--allow_imports', '--out=runs/from_python', '--rounds=3')
    done = started(*again, '--noprogress', cwd=tmp_path).outcome()
    assert done.status == 0, done


@pytest.mark.integration
def test_the_page_of_own_data_and_graphs_runs_as_it_stands(tmp_path):
    page = 'docs/own_data_and_graph.md'
    added = []  # to own.py: twice at its end, then in place of its loop
    for script in code_blocks(page, 'python'):
        if name := re.match(r'# (\w+\.py)\n', script):
            (tmp_path / name[1]).write_text(script)
        else:
            added.append(script)
    (edges,) = code_blocks(page, 'text')
    (tmp_path / 'own.edges').write_text(edges)
    lines = [block.replace('\\\n', ' ').splitlines() for block in code_blocks(page, 'sh')]
    commands = [line.split() for block in lines for line in block]
    assert {words[1] for words in commands if words[0] == 'python'} | {'my_net.py'} == {
        file.name for file in tmp_path.glob('*.py')
    }
    printed = {}
    for program, *words in commands:
        if program == 'python':
            printed[words[0]] = run(*words, cwd=tmp_path).splitlines()
        else:
            command = ('dfl_jax.cli', *words, '--rounds=1', '--noprogress')
            done = started(*command, cwd=tmp_path, env={'XDG_CACHE_HOME': str(tmp_path)}).outcome()
            assert done.status == 0, done
    for out in ('own', 'parts', 'edges', 'matrix', 'pairs', 'net', 'rates/lr=0.1,seed=1'):
        assert (tmp_path / 'runs' / out / 'done').exists()
    assert printed['own.py'][-1].startswith('10 0.') and len(printed['below.py']) == 1
    assert (tmp_path / 'rates.pdf').stat().st_size > 1000
    before, _, _ = (tmp_path / 'own.py').read_text().partition('for row, state')
    weights, gap, loop = added
    whole = (tmp_path / 'own.py').read_text()
    *_, accuracy, spectrum = run('-c', whole + weights + gap, cwd=tmp_path).splitlines()
    assert abs(float(accuracy) - float(printed['own.py'][-1].split()[1])) < 1e-3
    ring = (1 + 2 * np.cos(np.pi / 3)) / 3  # the second eigenvalue of a ring of six
    assert float(re.search(r'gap=([\d.]+)', spectrum)[1]) == pytest.approx(1 - ring)
    assert (tmp_path / 'client_2.safetensors').stat().st_size > 1000
    assert re.match(r'10 \[0\.\d+, ', run('-c', before + loop, cwd=tmp_path).splitlines()[-1])


def test_the_loader_and_the_format_of_the_data_page(tmp_path):
    (loader,) = code_blocks('docs/data.md', 'python')
    names: dict = {}
    exec(loader, names)
    given = names['waves']()
    assert isinstance(given, data.Dataset)
    found = from_arrays(given[:4], given.owners, 'waves')
    assert found.train_x.shape == (400, 40) and len(np.unique(found.owners)) == 10
    (content,) = code_blocks('docs/data.md', 'json')
    for half in ('train', 'test'):
        (tmp_path / half).mkdir()
        (tmp_path / half / 'data.json').write_text(content)
    assert data.load('leaf', tmp_path).train_y.tolist() == [12, 3]


OF_OTHERS = {  # of absl, make, Slurm, gcloud, Docker, TensorBoard, XLA and the methods of examples
    'every',
    *('help', 'helpfull', 'flagfile', 'array', 'account', 'cpus', 'gres', 'job', 'logdir', 'mem'),
    *('ntasks', 'time', 'worker', 'command', 'no', 'rm', 'gpus', 'build'),
    *('xla_cpu_multi_thread_eigen', 'xla_gpu_autotune_level', 'xla_gpu_enable_triton_gemm'),
}


def test_the_flags_of_the_documents_exist():
    """But for those that a line calls removed, with the commit that had them."""
    of_tables = flags.FlagValues()
    tables.define_flags((), of_tables)
    run_command.define_flags()
    known = {*flags.FLAGS, *of_tables, *OF_OTHERS}
    for folder in ('dfl_jax', 'benchmarks', 'tests/torture'):
        for file in (ROOT / folder).rglob('*.py'):
            defined = r"""(?:DEFINE_\w+|\bcount|define_paths?|add_argument)\(\s*'(?:--)?(\w+)'"""
            known.update(re.findall(defined, file.read_text()))
    pages = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *ROOT.glob('experiments/*/README.md')]
    for page in (*pages, *ROOT.glob('docs/*.md')):
        for line in page.read_text().splitlines():
            for name in re.findall(r'--([a-z]\w*[a-z0-9])\b(?!_)', line):
                exists = name in known or name.removeprefix('no') in known
                assert exists or '(removed; last in' in line, f'{page.name}: --{name}'


def test_the_links_of_the_documents_lead_somewhere():
    pages = [*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), *ROOT.glob('experiments/*/README.md')]
    for page in pages:
        for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text()):
            if '://' in target:
                continue
            path, _, heading = target.partition('#')
            file = page.parent / path if path else page
            assert file.exists(), f'{page.name}: {target}'
            if heading:
                lines = re.findall(r'^#+ (.*)$', file.read_text(), flags=re.MULTILINE)
                slugs = {re.sub(r'[^\w -]', '', line.lower()).replace(' ', '-') for line in lines}
                assert heading in slugs, f'{page.name}: {target}'


def test_choices_the_papers_leave_open_name_the_default_first():
    """That of ntk_dfl where it has one, else of the first method that does."""
    text = (ROOT / 'docs/how_it_works.md').read_text()
    (section,) = re.findall(
        r'^## Choices the papers.*?(?=^## )', text, flags=re.DOTALL | re.MULTILINE
    )
    (table,) = re.findall(r'\| flag \| values \(default first\)[^\n]*\n((?:\|[^\n]*\n)+)', section)
    assert table.count('\n|') == section.count('\n|') - 2, 'a blank line ends a table'
    defaults: dict[str, object] = {}
    for method in IN_ROUNDS.values():
        for name, setting in flat_settings(method).items():
            defaults.setdefault(name, setting.default)
    checked = 0
    for flag, first in re.findall(r'^\| `--(\w+)` \| `(\w+)`', table, flags=re.MULTILINE):
        if flag in defaults:
            assert first == str(defaults[flag]), flag
            checked += 1
    assert checked > 10
