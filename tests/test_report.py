"""The page of experiments.report: what it says, what it needs, what it refuses."""

import json
import re
import shutil
import statistics
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from helpers import started, write_clusters
from test_cli import NETWORK, SMALL, contents, here, rows_of

from dfl_jax.cli.report import command as report
from dfl_jax.cli.report.tables import in_words
from dfl_jax.results import published as files
from dfl_jax.results import table as tables_text
from dfl_jax.results.measured import Measured

pytestmark = pytest.mark.integration

HOSTILE = '<b>x & "y"'
VOID = ('meta', 'input', 'br', 'wbr')
DIGITS = ('--algorithm=dpsgd', '--hidden=8', *NETWORK, '--seed=3', '--train_samples=90')


class Page(HTMLParser):
    """Tags with their attributes, the text outside <style> and <script>, tables as lists of rows,
    and the data of its scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.text, self.tables, self.data = [], [], '', {}, None
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

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.tags and self.tags[-1] == (
            'script',
            {'type': 'application/json', 'id': 'page-data'},
        ):
            self.data = self.data or json.loads(data)
        if not {'style', 'script'} & {*self.open}:
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
        options = ('--nocheckpoint', f'--seed={seed}', f'--out={out}')
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
        assert tag not in ('link', 'iframe', 'object', 'base', 'img'), tag
        for name, value in attributes.items():
            assert not name.startswith('on'), name
            if name in ('src', 'href', 'xlink:href', 'srcset', 'poster', 'data', 'action'):
                assert value.startswith('#'), value
    text = re.sub('<script.*?</script>', '', written.read_text(), flags=re.DOTALL)
    assert '@import' not in text and 'url(' not in text and '://' not in text
    assert written.stat().st_size < 2_000_000


def test_the_page_can_be_read_by_all(page):
    ids = Counter(attributes['id'] for _, attributes in page.tags if 'id' in attributes)
    assert set(ids.values()) == {1}
    targets = [attributes.get('href') for _, attributes in page.tags]
    assert {target[1:] for target in targets if target} <= ids.keys()
    assert dict(page.tags)['html'] == {'lang': 'en'}
    assert Counter(tag for tag, _ in page.tags)['h1'] == 1
    for caption, rows in page.tables.items():
        if caption != 'Settings of two runs':  # which its script fills
            assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1
    assert all(a['scope'] in ('row', 'col') for tag, a in page.tags if tag == 'th')


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize('line', [0, 1], ids=['light', 'dark'])
def test_text_stands_out_from_the_page(line):
    style = Path(report.__file__).with_name('style.css').read_text()
    scheme = dict(re.findall(r'--(\w+):(#\w{6})', style.splitlines()[line]))
    for name in ('ink', 'muted', 'link'):
        low, high = sorted((luminance(scheme[name]), luminance(scheme['paper'])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name  # WCAG AA


def shown_as(value: float) -> str:
    return str(Measured(value))


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
        assert last == shown_as(100 * rows[-1]['consensus_accuracy'])
        assert best == shown_as(100 * max(row['consensus_accuracy'] for row in rows))
        assert client == shown_as(100 * rows[-1]['client_accuracy_mean'])
        assert seconds == shown_as(rows[-1]['seconds'])


def test_groups_have_mean_and_deviation_over_their_finished_seeds(runs, page):
    head, *groups = page.table('On the test set')
    assert head[0] == 'Setting'
    assert len(groups) == 2
    ntk = next(row for row in groups if row[0].startswith('NTK-DFL'))
    assert ntk[1] == '2 of 3'
    ends = [rows_of(runs / 'deep' / f'ntk_dfl-few-seed{seed}')[-1] for seed in (0, 1)]
    for place, column in ((2, 'consensus_accuracy'), (4, 'client_accuracy_mean')):
        values = [100 * row[column] for row in ends]
        assert ntk[place].split(' ± ')[0] == shown_as(statistics.mean(values))
        assert float(ntk[place].split(' ± ')[1]) == pytest.approx(statistics.stdev(values), 0.1)
    assert 'An unfinished run counts only where' in page.text
    assert '4 runs, 2 settings, 1 unfinished, 4 unreadable.' in page.text


def test_a_line_is_the_mean_of_the_seeds_and_a_band_their_range(runs, page):
    curves = page.data['curves']
    assert [*curves['x']] == ['round', 'mbytes_total', 'seconds', 'operations_total']
    assert [*curves['y']][:2] == ['consensus_accuracy', 'client_accuracy_mean']
    (line,) = (line for line in curves['lines'] if line['label'].startswith('NTK-DFL'))
    both = [rows_of(runs / 'deep' / f'ntk_dfl-few-seed{seed}') for seed in (0, 1)]
    assert line['columns']['round'] == [1, 2]
    for name, scale in (('client_accuracy_mean', 100), ('consensus_loss', 1), ('mbytes_total', 1)):
        pairs = [[scale * row[name] for row in pair] for pair in zip(*both, strict=True)]
        for part, of in (('columns', statistics.mean), ('low', min), ('high', max)):
            assert line[part][name] == pytest.approx([of(pair) for pair in pairs], rel=1e-4), name
    (other,) = (line for line in curves['lines'] if line['label'].startswith('D-PSGD'))
    assert other['low'] == {} and other['colour'] != line['colour']


def test_clients_are_as_their_run_recorded_them(runs, page):
    shown = page.data['clients']['runs']
    assert [run['name'] for run in shown] == [HOSTILE, 'deep/ntk_dfl-few-seed0']
    for run in shown:
        network = json.loads((runs / run['name'] / 'network.json').read_text())
        assert run['links'] == network['links'] and len(run['links']) == 6
        assert [list(row) for row in zip(*run['samples'], strict=True)] == network['samples']
        rows = rows_of(runs / run['name'])
        assert run['rounds'] == [1, 2]
        for values, losses, row in zip(
            run['values']['accuracy'], run['values']['loss'], rows, strict=True
        ):
            assert len(values) == len(run['x']) == len(run['y']) == 6
            assert statistics.mean(values) == pytest.approx(100 * row['client_accuracy_mean'], 1e-3)
            assert statistics.mean(losses) == pytest.approx(row['client_loss_mean'], rel=1e-3)
            assert min(values) == pytest.approx(100 * row['client_accuracy_min'], rel=1e-3)
        every = [value for values in run['values']['accuracy'] for value in values]
        assert run['range']['accuracy'] == [min(every), max(every)]
    assert 'regular: 6 clients, 6 links, 2 a client' in shown[0]['caption']


def test_a_name_is_text_and_not_markup(written, page):
    assert HOSTILE in page.text
    assert '<b>x' not in written.read_text()


def test_broken_directories_are_listed_with_the_reason(page):
    listed = dict(row for row in page.table('Directories that')[1:])
    assert listed['headless'] == 'has metrics.jsonl but no config.json'
    assert listed['wrong'].startswith('metrics.jsonl is damaged: it has no consensus_accuracy')
    for name in ('foreign', 'torn'):
        assert listed.pop(name).startswith('config.json ')
    assert len(listed) == 2


def test_settings_are_said_once_or_as_a_difference(runs, page):
    compared = page.data['compared']
    assert sorted(compared['algorithm']) == ['dpsgd', 'ntk_dfl', 'ntk_dfl', 'ntk_dfl']
    names = [row[0] for row in page.table('Every run')[1:]]
    for name, seed in zip(names, compared['seed'], strict=True):
        assert seed == ('3' if name == HOSTILE else name[-1] if name[-1].isdecimal() else '0')
    assert 'clients' not in compared  # 6 in all
    assert 'clients' in page.text and 'jax ' in page.text
    assert 'zipf_exponent' not in page.text  # it has no effect here


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
    shown = tables_text.with_interval(
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
    assert page.table('On the test set')[1][0].startswith('NTK-DFL (unfinished, round 1 of 2)')
    assert 'Rounds to 50\N{NO-BREAK SPACE}%' in page.table('On the test set')[0]
    assert 'first' not in {attributes.get('id') for _, attributes in page.tags}


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
    plain = shown(runs / HOSTILE, tmp_path)[0]
    html, text = shown(folder, tmp_path)
    assert html.count('<script') == plain.count('<script') and 'alert("x")' in text
    assert '<script>alert' not in html


@pytest.mark.parametrize('name', ['topology_file', 'partition_file', 'architecture_file'])
def test_no_line_of_another_file_comes_into_the_page(name, runs, tmp_path):
    secret = tmp_path / 'secret'
    secret.write_text('hunter2\n')
    family = {'topology': 'edge_list'} if name == 'topology_file' else {}
    copied(runs, tmp_path / 'runs' / 'one', {name: str(secret), **family})
    assert 'hunter2' not in shown(tmp_path / 'runs', tmp_path)[0]


def test_no_link_leads_out_of_a_run(runs, tmp_path):
    folder = copied(runs, tmp_path / 'runs' / 'one')
    names = ('config.json', 'metrics.jsonl', 'network.json', 'clients.jsonl')
    for file in names:
        other = shutil.copytree(folder, tmp_path / 'runs' / f'of-{file}')
        (other / file).rename(tmp_path / file)
        (other / file).symlink_to(tmp_path / file)
    html, text = shown(tmp_path / 'runs', tmp_path)
    assert dict(Page(html).table('Directories that')[1:]) == {
        f'of-{file}': f'{file} leads outside the run directory' for file in names[:2]
    }
    for file in names[2:]:
        html, text = shown(tmp_path / 'runs' / f'of-{file}', tmp_path)
        assert f'not shown: {file} leads outside the run directory.' in text
        assert Page(html).data['clients']['runs'] == []


@pytest.mark.parametrize(
    ('file', 'text', 'why'),
    [
        ('network.json', None, 'it has no network.json'),
        ('network.json', '{', 'network.json is damaged: no JSON'),
        ('network.json', '[]', 'network.json is damaged, or not of 6 clients'),
        ('network.json', '{"samples": [[1]], "links": []}', 'not of 6 clients'),
        ('network.json', '{"samples": [1, 1, 1, 1, 1, 1], "links": [[0, 6]]}', 'not of 6 clients'),
        ('network.json', '{"samples": [1, 1, 1, 1, 1, {}], "links": []}', 'not of 6 clients'),
        ('clients.jsonl', '3\n', 'line 1 of clients.jsonl is no evaluation'),
        ('clients.jsonl', '{"round": 1, "loss": [1, 2]}\n', 'has no loss of 6 clients'),
        ('clients.jsonl', '{"round": 1, "loss": [1, 2, 3, 4, 5, NaN]}\n', 'no finite numbers'),
        ('clients.jsonl', '{"round": 1, "loss": [1, 2, 3, 4, 5, "6"]}\n', 'no loss of 6 clients'),
    ],
)
def test_clients_that_cannot_be_shown_do_not_stop_a_report(file, text, why, runs, tmp_path):
    bad = copied(runs, tmp_path / 'runs' / 'bad')
    (bad / file).unlink()
    if text is not None:
        (bad / file).write_text(text)
    html, said = shown(tmp_path / 'runs', tmp_path)
    assert 'The clients of bad are not shown: ' in said and why in said
    assert Page(html).table('Every run')[1][0] == 'bad' and str(tmp_path) not in said


def test_a_run_without_values_of_its_clients_has_its_network(runs, tmp_path):
    old = copied(runs, tmp_path / 'runs' / 'old')
    (old / 'clients.jsonl').unlink()
    (run,) = Page(shown(tmp_path / 'runs', tmp_path)[0]).data['clients']['runs']
    assert len(run['links']) == 6 and run['values'] == {} and run['rounds'] == []


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
    ((name, reason),) = page.table('Directories that')[1:]
    assert name == 'bad' and file in reason and str(tmp_path) not in page.text


def test_where_no_page_can_be_written(runs, tmp_path):
    (tmp_path / 'file').touch()
    for out in (tmp_path / 'file' / 'page.html', Path('/proc/page.html'), tmp_path / ('x' * 300)):
        with pytest.raises(ValueError, match=r'--out=.*choose another --out'):
            report.write_report(runs, out, 0.85, False)


def test_ctrl_c_while_it_reads(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'find_runs', mock.Mock(side_effect=KeyboardInterrupt))
    chosen = {'runs': str(tmp_path), 'out': None, 'target': 0.85, 'overwrite': False}
    monkeypatch.setattr(report, 'FLAGS', SimpleNamespace(**chosen))
    assert report.main(['report']) == 130
    assert capsys.readouterr().err.startswith('error: interrupted')


@pytest.mark.parametrize(
    ('values', 'expected'),
    [
        ([10.0], '10'),
        ([200.0, 100.0], '150 ± 71'),
        ([None], '-'),
        ([None, 12.5], '12.5'),
        ([12, Measured(20, True)], '12, >20'),
        ([Measured(1500, True), Measured(1600, True)], '>1500'),
    ],
)
def test_a_cell_is_what_the_tables_print(values, expected):
    runs = [SimpleNamespace(rows=[value]) for value in values]

    def measure(run):
        (value,) = run.rows
        return value if value is None or isinstance(value, Measured) else Measured(value)

    assert in_words(runs, measure) == expected


def test_without_its_libraries_the_report_says_how_to_get_them(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'bokeh.resources', None)
    with pytest.raises(ImportError, match=r"pip install 'dfl_jax\[report\]'"):
        report.write_report(runs, tmp_path / 'page.html', 0.85, False)
