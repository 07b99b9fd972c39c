"""The page of experiments.report: what it says, what it needs, what it refuses."""

import json
import re
import shutil
import statistics
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from absl.testing import flagsaver
from helpers import started
from test_cli import NETWORK, SMALL, contents, here, rows_of, write_clusters

from dfl_jax.cli.experiment.build import build, load_data, partition, streams
from dfl_jax.cli.report import command as report
from dfl_jax.cli.report import html as report_html
from dfl_jax.cli.report import pictures
from dfl_jax.cli.report import runs as report_runs
from dfl_jax.cli.report.measures import number_column
from dfl_jax.cli.run import command as cli
from dfl_jax.cli.start import parse
from dfl_jax.cli.tables import files
from dfl_jax.cli.tables import table as tables_text
from dfl_jax.cli.tables.metrics import Measured

HOSTILE = '<b>x & "y"'
VOID = ('meta', 'img', 'br', 'wbr')
CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'chrome'))), None)
DIGITS = ('--algorithm=dpsgd', '--hidden=8', *NETWORK, '--seed=3', '--train_samples=90')


class Page(HTMLParser):
    """Tags with their attributes, the text outside <style>, and tables as lists of rows."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.text, self.tables = [], [], '', {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == 'table':
            self.rows = self.tables[dict(attrs)['aria-label']] = []
        elif tag == 'tr':
            self.rows.append([])
        elif tag in ('th', 'td'):
            self.rows[-1].append('')

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if 'style' not in self.open:
            self.text += data
        if {'th', 'td'} & set(self.open):
            self.rows[-1][-1] += data

    def table(self, start: str) -> list[list[str]]:
        """The rows of the table whose caption begins so, the first its head."""
        return next(rows for caption, rows in self.tables.items() if caption.startswith(start))


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Two seeds, a run of another method and a bad name, an unfinished one, broken ones."""
    folder = tmp_path_factory.mktemp('report') / 'runs'
    data = write_clusters(folder.parent / 'tiny.npz')
    for seed in (0, 1):
        out = folder / 'deep' / f'ntk_dfl-few-seed{seed}'
        options = ('--plot_partition', '--nocheckpoint', f'--seed={seed}', f'--out={out}')
        assert here(f'--dataset={data}', *SMALL, *options).status == 0
    out = folder / HOSTILE
    assert here(*DIGITS, '--nocheckpoint', f'--out={out}').status == 0
    stopped = folder / 'stopped'
    shutil.copytree(folder / 'deep' / 'ntk_dfl-few-seed0', stopped)
    (stopped / 'done').unlink()
    lines = (stopped / 'metrics.jsonl').read_text().splitlines(keepends=True)
    (stopped / 'metrics.jsonl').write_text(lines[0] + lines[1][:40])
    for name, file, text in (
        ('torn', 'config.json', '{"settings": '),
        ('foreign', 'config.json', '{"model_type": "bert"}'),
        ('headless', 'metrics.jsonl', lines[0]),
    ):
        (folder / name).mkdir()
        (folder / name / file).write_text(text)
    (folder / 'wrong').mkdir()
    shutil.copy(stopped / 'config.json', folder / 'wrong')
    (folder / 'wrong' / 'metrics.jsonl').write_text('{"round": 1}\n')
    return folder


@pytest.fixture(scope='module')
def written(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp('page') / 'page.html'
    said = report.write_report(runs, path, 0.85, False)
    assert said == '4 runs, 4 that cannot be read'
    return path


@pytest.fixture(scope='module')
def page(written):
    return Page(written.read_text())


def test_the_page_needs_nothing_else(written, page):
    for tag, attributes in page.tags:
        assert tag not in ('script', 'link', 'iframe', 'object', 'base'), tag
        for name, value in attributes.items():
            assert not name.startswith('on'), name
            if name in ('src', 'href', 'xlink:href', 'srcset', 'poster', 'data', 'action'):
                assert value.startswith(('#', 'data:')), value
    text = written.read_text()
    assert '@import' not in text
    assert set(re.findall(r'url\((.)', text)) <= {'#'}
    assert set(re.findall(r'(?<!xmlns=")(?<!xmlns:xlink=")https?://[^"\s]*', text)) == set()


def test_the_page_can_be_read_by_all(page):
    ids = Counter(attributes['id'] for _, attributes in page.tags if 'id' in attributes)
    assert set(ids.values()) == {1}
    targets = [a.get('href') or a.get('xlink:href') for _, a in page.tags]
    assert {target[1:] for target in targets if target} <= ids.keys()
    pictures = [a for tag, a in page.tags if tag == 'img']
    assert len(pictures) == 4  # curves, two partitions, a topology
    assert all(attributes['alt'] for attributes in pictures)
    assert dict(page.tags)['html'] == {'lang': 'en'}
    assert Counter(tag for tag, _ in page.tags)['h1'] == 1
    for rows in page.tables.values():
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1
    assert all(a['scope'] in ('row', 'col') for tag, a in page.tags if tag == 'th')


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize('line', [0, 1], ids=['light', 'dark'])
def test_text_stands_out_from_the_page(line):
    style = Path(report_html.__file__).with_name('style.css').read_text()
    scheme = dict(re.findall(r'--(\w+):(#\w{6})', style.splitlines()[line]))
    for name in ('ink', 'muted', 'link'):
        low, high = sorted((luminance(scheme[name]), luminance(scheme['paper'])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name  # WCAG AA


def test_every_run_has_the_numbers_of_its_metrics(runs, page):
    head, *listed = page.table('Every run')
    assert head[:3] == ['Run', 'Seed', 'Status']
    expected = {'deep/ntk_dfl-few-seed0', 'deep/ntk_dfl-few-seed1', HOSTILE, 'stopped'}
    assert {row[0] for row in listed} == expected
    for name, seed, status, rounds, last, best, client, seconds in listed:
        if name == 'stopped':
            assert (status, rounds) == ('unfinished, round 1 of 2', '1')
            continue
        rows = rows_of(runs / name)
        settings = json.loads((runs / name / 'config.json').read_text())['settings']
        assert (status, rounds, seed) == ('finished', '2', str(settings['seed']))
        assert last == f'{100 * rows[-1]["consensus_accuracy"]:.2f}'
        assert best == f'{100 * max(row["consensus_accuracy"] for row in rows):.2f}'
        assert client == f'{100 * rows[-1]["client_accuracy_mean"]:.2f}'
        assert seconds == f'{rows[-1]["seconds"]:.1f}'


def test_groups_have_mean_and_deviation_over_their_finished_seeds(runs, page):
    head, *groups = page.table('Test accuracy')
    assert head[0] == 'Setting'
    assert len(groups) == 2
    ntk = next(row for row in groups if row[0].startswith('NTK-DFL'))
    assert ntk[1] == '2 of 3'
    ends = [rows_of(runs / 'deep' / f'ntk_dfl-few-seed{seed}')[-1] for seed in (0, 1)]
    for place, column in ((2, 'consensus_accuracy'), (4, 'client_accuracy_mean')):
        values = [100 * row[column] for row in ends]
        expected = f'{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}'
        assert ntk[place] == expected
    assert 'An unfinished run counts only where' in page.text
    assert '4 runs, 2 settings, 1 unfinished, 4 unreadable.' in page.text


def test_a_name_is_text_and_not_markup(written, page):
    assert HOSTILE in page.text
    assert '<b>' not in written.read_text()


def test_broken_directories_are_listed_with_the_reason(page):
    listed = dict(row for row in page.table('Not counted')[1:])
    assert listed['headless'] == 'has metrics.jsonl but no config.json'
    assert listed['wrong'].startswith('metrics.jsonl is damaged: it has no consensus_accuracy')
    for name in ('foreign', 'torn'):
        assert listed.pop(name).startswith('config.json ')
    assert len(listed) == 2


def test_settings_are_said_once_or_as_a_difference(page):
    head, *rows = page.table('What differs')
    differing = {row[0]: row[1:] for row in rows}
    assert differing['algorithm'] in (['ntk_dfl', 'dpsgd'], ['dpsgd', 'ntk_dfl'])
    assert len(head) == 3
    assert 'clients' not in differing  # 6 in all
    assert 'zipf_exponent' not in page.text  # it has no effect here


def test_pictures_are_of_the_run_or_drawn_anew(page):
    pictures = [(a['alt'], a['src'].partition(';')[0]) for tag, a in page.tags if tag == 'img']
    kinds = [kind for label, kind in pictures if label.startswith('Training samples of every')]
    # the run's own partition.png, one of all seeds, and one of a run that drew none
    assert sorted(kinds) == ['data:image/png', 'data:image/svg+xml']
    assert sum(label.startswith('Graph of who hears whom') for label, _ in pictures) == 1
    assert 'regular: 6 clients, 6 links, 2 a client' in page.text


def test_what_is_drawn_anew_is_what_the_run_had(runs):
    with flagsaver.flagsaver():
        try:
            parse(['run.py', *DIGITS], cli)
            experiment = build(cli.FLAGS)
        finally:
            cli.FLAGS.unparse_flags()
    run = next(run for run in report_runs.find(runs)[0] if run.name == HOSTILE)
    flags = pictures.namespace(run, data_dir=None, progress=False)
    seeds = streams(flags.seed)
    parts, _ = partition(flags, load_data(flags, seeds), seeds)
    for ours, its in zip(parts, experiment.parts, strict=True):
        np.testing.assert_array_equal(ours, its)
    members, mask = experiment.graphs.members[0], experiment.graphs.mask[0]
    pairs = {
        frozenset((aggregator, other))
        for aggregator, (row, known) in enumerate(zip(members.tolist(), mask.tolist(), strict=True))
        for other, real in zip(row[1:], known[1:], strict=True)
        if real
    }
    assert {frozenset(pair) for pair in pictures.links(run).tolist()} == pairs


def test_runs_stand_in_the_tables_that_they_belong_to(runs, tmp_path, monkeypatch):
    home = tmp_path / 'experiments'
    small = '\n'.join((f'--dataset={runs.parent / "tiny.npz"}', *SMALL))
    for table, flag in (('table', '--clients=6'), ('other', '--clients=7'), ('bare', '')):
        folder = home / 'paper' / table
        folder.mkdir(parents=True)
        flagfile = f'{small}\n{flag}' if flag else '--clients=6\n--rounds=2'
        (folder / 'ntk_dfl-few.flags').write_text(flagfile + '\n')
        published = {
            'title': f'The {table}',
            'source': 'A paper',
            'metric': 'accuracy_at',
            'round': 2,
            'columns': ['few'],
            'rows': {'ntk_dfl': [98.5], 'dpsgd': [97]},
            'panels': [{'title': 'T', 'column': 'few'}],
        }
        (folder / 'published.json').write_text(json.dumps(published))
    monkeypatch.setattr(files, 'PAPERS', home)
    out = tmp_path / 'page.html'
    report.write_report(runs, out, 0.85, False)
    page = Page(out.read_text())
    ends = [rows_of(runs / 'deep' / f'ntk_dfl-few-seed{seed}')[-1] for seed in (0, 1)]
    shown = tables_text.ours(
        [Measured(100 * round(row['consensus_accuracy'], 4)) for row in ends], 98.5
    )
    assert page.table('The paper') == [
        ['method', 'few paper', 'few ours'],
        ['ntk_dfl', '98.5', shown],
        ['dpsgd', '97', '-'],
    ]
    assert 'paper/table: The table' in page.text
    assert 'The other' not in page.text
    assert 'The bare' not in page.text  # the runs were given more than its flagfile says


def test_one_run_is_a_report_too(runs, tmp_path):
    out = tmp_path / 'new' / 'page.html'
    assert report.write_report(runs / 'stopped', out, 0.5, False) == '1 run'
    page = Page(out.read_text())
    assert page.table('Every run')[1][0] == 'stopped'
    assert page.table('Test accuracy')[1][0].startswith('NTK-DFL (unfinished, round 1 of 2)')
    assert 'Rounds to 50\N{NO-BREAK SPACE}%' in page.table('Test accuracy')[0]
    assert not any(caption.startswith('What differs') for caption in page.tables)


def test_a_run_that_has_only_begun_is_named(runs, tmp_path):
    begun = tmp_path / 'begun'
    begun.mkdir()
    shutil.copy(runs / 'stopped' / 'config.json', begun)
    report.write_report(begun, tmp_path / 'page.html', 0.85, False)
    page = Page((tmp_path / 'page.html').read_text())
    assert page.table('Every run')[1][:3] == ['begun', '0', 'unfinished, no evaluation yet']
    assert 'None of the runs has an evaluation yet.' in page.text
    assert not any(caption.startswith('Megabytes') for caption in page.tables)


def test_only_a_report_is_replaced(runs, tmp_path):
    out = tmp_path / 'page.html'
    out.write_text('my own page')
    with pytest.raises(ValueError, match=r'exists and is no report.*--overwrite'):
        report.write_report(runs, out, 0.85, False)
    assert out.read_text() == 'my own page'
    for overwrite in (True, False):  # then it is a report
        report.write_report(runs, out, 0.85, overwrite)
        assert report.is_report(out)
    with pytest.raises(ValueError, match='is a folder'):
        report.write_report(runs, tmp_path, 0.85, True)


def test_errors_are_one_line(runs, tmp_path, monkeypatch, capsys):
    def fails(**flags):
        chosen = {'out': str(tmp_path / 'x.html'), 'target': 0.85, 'overwrite': False} | flags
        monkeypatch.setattr(report, 'FLAGS', SimpleNamespace(**chosen))
        assert report.main(['report']) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith('error: ')
        return line

    before = contents(tmp_path)
    assert 'absent is no folder' in fails(runs=str(tmp_path / 'absent'))
    (tmp_path / 'empty').mkdir()
    assert fails(runs=str(tmp_path / 'empty')).endswith('holds no run that can be read')
    assert 'torn: config.json ' in fails(runs=str(runs / 'torn'))
    assert '--target=85' in fails(runs=str(runs), target=85.0)
    assert contents(tmp_path) == before


def test_the_command_writes_beside_the_runs(runs, tmp_path):
    own = tmp_path / 'runs'
    shutil.copytree(runs / 'stopped', own)
    before = contents(own)
    finished = started('report', f'--runs={own}', cwd=tmp_path).outcome()
    assert (finished.status, finished.err) == (0, '')
    assert finished.out == f'1 run: {own / "report.html"}\n'
    after = contents(own)
    assert after.pop('report.html')
    assert after == before


# --------------------------------------------------------------------- runs of somebody else

SCRIPT = '<script>alert("x")</script>'


def copied(runs, folder, settings=None, rows=None, **config):
    """A copy of the finished run on the digits, tampered with. rows: of metrics.jsonl."""
    shutil.copytree(runs / HOSTILE, folder)
    whole = json.loads((folder / 'config.json').read_text()) | config
    whole.pop('digest', None)
    whole['settings'] |= settings or {}
    (folder / 'config.json').write_text(json.dumps(whole))
    if rows is not None:
        (folder / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return folder


def shown(source, tmp_path) -> tuple[str, str]:
    """The HTML of a report on it, and its text."""
    out = tmp_path / 'page.html'
    report.write_report(source, out, 0.85, True)
    return out.read_text(), Page(out.read_text()).text


def test_no_script_of_a_run_is_one_of_the_page(runs, tmp_path):
    folder = tmp_path / 'runs'
    names = ('algorithm', 'dataset', 'topology', 'partition', 'partition_file', 'hidden', SCRIPT)
    for place, name in enumerate(names):
        copied(
            runs,
            folder / f'{place}{SCRIPT}'.replace('/', ''),
            {name: SCRIPT, 'rounds': 1},
            rows=[{'round': 1, 'consensus_accuracy': 0.5, 'client_accuracy_mean': 0.4, SCRIPT: 1}],
            versions={SCRIPT: SCRIPT},
            device=SCRIPT,
            cores=SCRIPT,
            commit=SCRIPT,
            algorithm={'lr': SCRIPT, SCRIPT: SCRIPT},
            given=[SCRIPT],
        )
    (folder / SCRIPT.replace('/', '')).mkdir()
    (folder / SCRIPT.replace('/', '') / 'config.json').write_text(json.dumps({SCRIPT: SCRIPT}))
    html, text = shown(folder, tmp_path)
    assert '<script' not in html and 'alert("x")' in text


@pytest.mark.parametrize('name', ['topology_file', 'partition_file', 'architecture_file'])
def test_no_line_of_another_file_comes_into_the_page(name, runs, tmp_path):
    secret = tmp_path / 'secret'
    secret.write_text('hunter2\n')
    family = {'topology': 'edge_list'} if name == 'topology_file' else {}
    copied(runs, tmp_path / 'runs' / 'one', {name: str(secret), **family})
    html, text = shown(tmp_path / 'runs', tmp_path)
    assert 'hunter2' not in html
    if name != 'architecture_file':
        assert f'No picture for one: it depends on the file of --{name}, outside' in text


def test_no_link_leads_out_of_a_run(runs, tmp_path):
    (tmp_path / 'secret').write_bytes(b'\x89PNG\r\n\x1a\nhunter2')
    folder = copied(runs, tmp_path / 'runs' / 'one')
    (folder / 'partition.png').symlink_to(tmp_path / 'secret')
    assert 'image/png' not in shown(tmp_path / 'runs', tmp_path)[0]
    (folder / 'partition.png').unlink()
    (folder / 'partition.png').write_text('no picture')
    assert 'image/png' not in shown(tmp_path / 'runs', tmp_path)[0]
    for file in ('config.json', 'metrics.jsonl'):
        other = shutil.copytree(folder, tmp_path / 'runs' / f'of-{file}')
        (other / file).rename(tmp_path / file)
        (other / file).symlink_to(tmp_path / file)
    page = Page(shown(tmp_path / 'runs', tmp_path)[0])
    assert dict(page.table('Not counted')[1:]) == {
        f'of-{file}': f'{file} leads outside the run directory'
        for file in ('config.json', 'metrics.jsonl')
    }


@pytest.mark.parametrize(
    ('settings', 'config'),
    [
        ({'clients': 0}, {}),
        ({'clients': 'many'}, {}),
        ({'clients': 10**9}, {}),
        ({'rounds': None}, {}),
        ({'topology': 3}, {}),
        ({'partition': ['x']}, {}),
        ({'torus_dimensions': 10**9, 'topology': 'torus'}, {}),
        ({'degree': 10**9}, {}),
        ({'dataset': None}, {}),
        ({'dataset': '$\\frac{$'}, {}),
        ({'algorithm': 'a\nb\x1b[0m\ud800'}, {}),
        ({'seed': {'a': 1}}, {}),
        ({}, {'versions': 3}),
        ({}, {'algorithm': []}),
        ({}, {'given': 3}),
        ({}, {'commit': ['a'], 'device': {}}),
    ],
)
def test_odd_settings_do_not_stop_a_report(settings, config, runs, tmp_path):
    folder = tmp_path / 'runs'
    copied(runs, folder / 'ntk_dfl-iid', settings, **config)
    copied(runs, folder / 'good')
    text = shown(folder, tmp_path)[1]
    assert 'good' in text and 'ntk_dfl-iid' in text


@pytest.mark.parametrize(
    ('file', 'text'),
    [
        ('config.json', '[' * 100_000),
        ('config.json', 'null'),
        ('config.json', '[]'),
        ('config.json', '{}'),
        ('config.json', None),
        ('metrics.jsonl', None),
        ('metrics.jsonl', '[' * 100_000 + '\n'),
        ('metrics.jsonl', '3\n'),
        ('metrics.jsonl', '{"round": 1, "consensus_accuracy": NaN, "client_accuracy_mean": 1}\n'),
        ('metrics.jsonl', '{"round": 1, "consensus_accuracy": 1, "client_accuracy_mean": "1"}\n'),
    ],
)
def test_a_bad_run_is_listed_as_such(file, text, runs, tmp_path):
    copied(runs, tmp_path / 'runs' / 'good')
    bad = copied(runs, tmp_path / 'runs' / 'bad')
    (bad / file).unlink()
    (bad / file).mkdir() if text is None else (bad / file).write_text(text)
    page = Page(shown(tmp_path / 'runs', tmp_path)[0])
    ((name, reason),) = page.table('Not counted')[1:]
    assert name == 'bad' and file in reason and str(tmp_path) not in page.text


def test_where_no_page_can_be_written(runs, tmp_path):
    (tmp_path / 'file').touch()
    for out in (tmp_path / 'file' / 'page.html', Path('/proc/page.html'), tmp_path / ('x' * 300)):
        with pytest.raises(ValueError, match=r'--out=.*choose another --out'):
            report.write_report(runs, out, 0.85, False)


def test_ctrl_c_while_it_reads(monkeypatch, tmp_path, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, 'find', interrupt)
    chosen = {'runs': str(tmp_path), 'out': None, 'target': 0.85, 'overwrite': False}
    monkeypatch.setattr(report, 'FLAGS', SimpleNamespace(**chosen))
    assert report.main(['report']) == 130
    assert capsys.readouterr().err.startswith('error: interrupted')


@pytest.mark.parametrize(
    ('cells', 'expected'),
    [
        ([[10.0], [200.0, 100.0]], ['10.0', '150.0 ± 70.7']),
        ([[0.5], [12.25, 12.75]], ['0.500', '12.500 ± 0.354']),
        ([[]], ['-']),
    ],
)
def test_numbers_of_a_column_have_equally_many_decimals(cells, expected):
    column = number_column([[Measured(value) for value in cell] for cell in cells])
    assert column == expected


def test_bounds_stand_by_themselves():
    cells = [[Measured(12), Measured(20, True)], [Measured(1500, True), Measured(1600, True)]]
    column = number_column(cells)
    assert column == ['12, >20', '>1,500']


def browse(path: Path, profile: Path, *options: str) -> str:
    quiet = ('--headless=new', '--no-sandbox', '--disable-gpu', f'--user-data-dir={profile}')
    done = subprocess.run(
        [CHROMIUM, *quiet, *options, path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium is installed')
def test_a_browser_shows_it_at_any_width(written, tmp_path):
    probe = tmp_path / 'probe.html'
    measure = 'document.body.dataset.over=document.documentElement.scrollWidth-innerWidth'
    probe.write_text(written.read_text().replace('</body>', f'<script>{measure}</script></body>'))
    for width in (500, 1280):
        shown = browse(probe, tmp_path / 'profile', f'--window-size={width},900', '--dump-dom')
        assert int(re.search(r'data-over="(-?\d+)"', shown)[1]) <= 0
    picture = tmp_path / 'page.png'
    browse(written, tmp_path / 'profile', '--window-size=1280,2400', f'--screenshot={picture}')
    pixels = matplotlib.image.imread(picture)[..., :3]
    assert pixels.shape == (2400, 1280, 3)
    assert pixels.std() > 0.02
