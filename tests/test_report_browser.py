"""The page of a report in a browser: no errors, and each control does what it says."""

import json
import shutil
import statistics
import threading

import pytest
from saved_runs import save_run

from dfl_jax.cli.report.command import write_report
from dfl_jax.cli.watch.command import server
from dfl_jax.experiment.run_directory import RunDirectory

sync_api = pytest.importorskip('playwright.sync_api')
CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'chrome'))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason='no Chromium is installed')
HOSTILE = '<img src=x onerror=alert(1)>'


@pytest.fixture(scope='module')
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox'])
        yield browser
        browser.close()


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """{name: rows} of three runs of two methods, and the page."""
    folder = tmp_path_factory.mktemp('browser')
    rows = {
        'a-seed9': save_run(folder / 'a-seed9', seed=9),
        'a-seed10': save_run(folder / 'a-seed10', seed=10),
        'b': save_run(folder / 'b', HOSTILE, 3, clients=9),
    }
    of_b = folder / 'b' / 'network.json'
    of_b.write_text(json.dumps(json.loads(of_b.read_text()) | {'attackers': [2, 5]}))
    write_report(folder, folder / 'page.html', 0.85, False)
    return rows, folder / 'page.html'


@pytest.fixture
def page(runs, browser):
    """The page, opened; whatever the browser complains of in a test fails it."""
    context = browser.new_context(viewport={'width': 1280, 'height': 1000})
    opened, faults = context.new_page(), []
    opened.on('pageerror', lambda error: faults.append(str(error)))
    opened.on('console', lambda m: m.type in ('error', 'warning') and faults.append(m.text))
    opened.on('request', lambda request: faults.append(request.url))
    opened.on('dialog', lambda dialog: faults.append(dialog.message))
    ready(opened, runs[1])
    yield opened
    assert faults == [runs[1].as_uri()]
    context.close()


def ready(opened, path):
    opened.goto(path.as_uri())
    opened.wait_for_selector('body[data-ready]')


def model(page, name, expression):
    """The value of an expression of the Bokeh model `it` of that name."""
    found = 'Bokeh.documents.map((d) => d.get_model_by_name(name)).find((m) => m)'
    return page.evaluate(f'(name) => {{ const it = {found}; return {expression}; }}', name)


def line(page, place, column):
    name = f'line {place} of chart 0'
    return model(page, name, f'Array.from(it.data.{column})')


def charts(page, number, expression):
    """The value of an expression of each chart of a drawing: 0 the curves, 1 the clients."""
    return page.evaluate(f'Bokeh.documents[{number}].roots()[0].children.map((it) => {expression})')


def test_axes_are_chosen(page, runs):
    seeds = [[row['consensus_accuracy'] for row in runs[0][f'a-seed{s}']] for s in (9, 10)]
    means = [100 * statistics.mean(pair) for pair in zip(*seeds, strict=True)]
    assert line(page, 0, 'x') == [1, 2, 3, 4, 5]
    assert line(page, 0, 'y') == pytest.approx(means, rel=1e-4)
    page.select_option('#x', 'mbytes_total')
    page.select_option('#y', 'client_loss_mean')
    assert line(page, 0, 'x') == [2.5, 5, 7.5, 10, 12.5]
    seeds = [[row['client_loss_mean'] for row in runs[0][f'a-seed{s}']] for s in (9, 10)]
    assert line(page, 0, 'low') == pytest.approx([*map(min, zip(*seeds, strict=True))], rel=1e-4)
    assert line(page, 1, 'y') == pytest.approx(
        [row['client_loss_mean'] for row in runs[0]['b']], rel=1e-4
    )
    assert charts(page, 0, 'it.below[0].axis_label')[0] == 'mbytes total'
    assert charts(page, 0, 'it.left[0].axis_label')[0] == 'client loss mean'
    assert charts(page, 0, 'it.center.at(-1).visible')[0] is False  # the accuracy to reach


def test_axes_are_logarithmic_where_asked(page):
    assert charts(page, 0, 'it.visible') == [True, False, False, False]
    page.check('#log-y')
    assert charts(page, 0, 'it.visible') == [False, False, True, False]
    assert charts(page, 0, 'it.y_scale.type')[2] == 'LogScale'
    page.check('#log-x')
    assert charts(page, 0, 'it.visible') == [False, False, False, True]


def test_a_click_hides_a_setting_and_another_brings_it_back(page):
    before = page.locator('#curves-chart').screenshot()
    page.get_by_label('D-PSGD').uncheck()
    assert line(page, 0, 'y') == [] and len(line(page, 1, 'y')) == 5
    page.wait_for_timeout(100)
    assert page.locator('#curves-chart').screenshot() != before
    page.get_by_label('D-PSGD').check()
    assert len(line(page, 0, 'y')) == 5


def test_hovering_shows_the_values(page, runs):
    page.locator('#curves-chart').scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    pixel = """(place) => {
      const chart = Bokeh.documents[0].roots()[0].children[0];
      const [view] = Bokeh.index.query((each) => each.model === chart);
      const {left, top} = view.canvas_view.el.getBoundingClientRect();
      const {x, y} = Bokeh.documents[0].get_model_by_name(`line ${place} of chart 0`).data;
      return [left + view.frame.x_scale.compute(x[3]), top + view.frame.y_scale.compute(y[3])];
    }"""
    both = [[100 * row['consensus_accuracy'] for row in runs[0][f'a-seed{s}']] for s in (9, 10)]
    fourth = [values[3] for values in both]
    alone = 100 * runs[0]['b'][3]['consensus_accuracy']
    for place, name, mean, low, high in (
        (0, 'D-PSGD', statistics.mean(fourth), min(fourth), max(fourth)),
        (1, HOSTILE, alone, alone, alone),
    ):
        x, y = page.evaluate(pixel, place)
        page.mouse.move(x - 2, y)
        page.mouse.move(x, y)
        page.wait_for_timeout(300)
        said = page.locator('.bk-tooltip-row-value').all_inner_texts()
        assert said[:2] == [name, '4']
        assert float(said[2]) == pytest.approx(mean, abs=0.01)
        assert [float(end) for end in said[3].split(' to ')] == pytest.approx([low, high], abs=0.01)


def test_a_click_on_a_head_sorts(page):
    table = page.locator('table[aria-label^="Every run"]')
    names = lambda: table.locator('tbody th').all_inner_texts()  # noqa: E731
    head = table.get_by_role('button', name='Run', exact=True)
    head.click()
    assert names() == ['a-seed9', 'a-seed10', 'b']  # by number
    head.click()
    assert names() == ['b', 'a-seed10', 'a-seed9']
    table.get_by_role('button', name='Mean client accuracy (%)').click()
    numbers = [float(row.split('\t')[6]) for row in table.locator('tbody tr').all_inner_texts()]
    assert numbers == sorted(numbers)
    assert table.locator('th[aria-sort]').all_inner_texts() == ['Mean client accuracy (%)']


def test_two_runs_stand_side_by_side(page):
    rows = lambda: {  # noqa: E731
        row.locator('td').first.inner_text(): row.get_attribute('class')
        for row in page.locator('#compared tr').all()
    }
    assert rows() == {'algorithm': '', 'clients': '', 'seed': 'differs'}
    page.select_option('#second', label='b')
    assert rows() == {'algorithm': 'differs', 'clients': 'differs', 'seed': 'differs'}
    texts = page.locator('#compared tr').all_inner_texts()
    assert texts[1].split('\t') == ['clients', '12', '9'] and HOSTILE in texts[0]


def test_clients_are_coloured_by_round_and_metric(page, runs):
    values = lambda: model(page, 'clients', 'Array.from(it.data.value)')  # noqa: E731
    last = runs[0]['a-seed9'][-1]['clients']
    assert page.locator('#client-run option').all_inner_texts() == ['a-seed9', 'b']
    assert values() == pytest.approx([100 * v for v in last['accuracy']], rel=1e-3)
    assert page.locator('#client-at').inner_text() == '5'
    page.locator('#client-round').fill('1')
    second = runs[0]['a-seed9'][1]['clients']
    assert page.locator('#client-at').inner_text() == '2'
    assert values() == pytest.approx([100 * v for v in second['accuracy']], rel=1e-3)
    page.select_option('#client-metric', 'loss')
    assert values() == pytest.approx(second['loss'], rel=1e-3)
    of_all = [v for row in runs[0]['a-seed9'] for v in row['clients']['loss']]
    assert model(page, 'colours', '[it.low, it.high]') == pytest.approx(
        [min(of_all), max(of_all)], 1e-3
    )
    of = lambda name: model(page, name, 'Array.from(it.data.x)')  # noqa: E731
    assert of('attackers') == []
    page.select_option('#client-run', label='b')
    assert of('attackers') == [of('clients')[2], of('clients')[5]]
    assert len(values()) == 9 and len(model(page, 'links', 'Array.from(it.data.x0)')) == 18
    assert 'regular: 9 clients, 18 links' in page.locator('#client-caption').inner_text()
    held = [model(page, 'samples', f'Array.from(it.data["class {c}"])') for c in range(3)]
    assert model(page, 'samples', 'it.data.samples') == [*map(sum, zip(*held, strict=True))]


def test_the_network_can_be_zoomed(page):
    page.wait_for_timeout(300)
    span = lambda: charts(page, 1, 'it.x_range.end - it.x_range.start')[0]  # noqa: E731
    before = span()
    page.locator('#clients-chart').scroll_into_view_if_needed()
    box = page.locator('#clients-chart canvas').first.bounding_box()
    page.mouse.move(box['x'] + box['width'] / 2, box['y'] + box['height'] / 4)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(300)
    assert span() < 0.9 * before


def test_the_page_fits_at_any_width(page):
    for width in (420, 1280):
        page.set_viewport_size({'width': width, 'height': 900})
        page.wait_for_timeout(200)
        assert page.evaluate('document.documentElement.scrollWidth - innerWidth') <= 0


def test_300_clients_over_200_rounds_answer_at_once(browser, tmp_path):
    for seed in range(3):
        save_run(tmp_path / f'run-{seed}', seed=seed, clients=300, rounds=200, lr=0.1 + seed)
    write_report(tmp_path, tmp_path / 'page.html', 0.85, False)
    assert (tmp_path / 'page.html').stat().st_size < 5_000_000
    page = browser.new_page()
    ready(page, tmp_path / 'page.html')
    assert page.evaluate('document.getElementById("client-round").max') == '199'
    taken = page.evaluate("""async () => {
      const painted = () => new Promise((done) =>
        requestAnimationFrame(() => requestAnimationFrame(done)));
      const taken = {};
      for (const [id, values] of [['client-round', [0, 50, 100, 150, 199]],
          ['y', ['client_loss_mean', 'consensus_accuracy', 'consensus_loss']],
          ['x', ['mbytes_total', 'seconds', 'round']], ['client-metric', ['loss', 'accuracy']]]) {
        taken[id] = [];
        for (const value of values) {
          const begin = performance.now();
          document.getElementById(id).value = value;
          document.getElementById(id).dispatchEvent(new Event('input', {bubbles: true}));
          await painted();
          taken[id].push(performance.now() - begin);
        }
      }
      return taken;
    }""")
    print({name: [round(each) for each in times] for name, times in taken.items()})
    page.close()
    # Under 100 ms on a machine of its own (docs/report.md); the tests share theirs
    assert max(map(statistics.median, taken.values())) < 400, taken


def test_a_page_that_is_watched_follows_the_run_and_keeps_what_was_chosen(browser, tmp_path):
    rows = save_run(tmp_path / 'run', rounds=2)
    (tmp_path / 'run' / 'done').unlink()
    directory, page, faults = RunDirectory(tmp_path / 'run'), browser.new_page(), []
    page.on('pageerror', lambda error: faults.append(str(error)))

    def goes_on(r):
        directory.append(rows[-1] | {'round': r})
        page.wait_for_function(f'document.getElementById("client-round")?.max === "{r - 1}"')
        page.wait_for_selector('body[data-live]')

    with server(tmp_path / 'run', 0, 0.85) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        page.goto(f'http://127.0.0.1:{serving.server_port}')
        page.wait_for_selector('body[data-live]')
        page.select_option('#y', 'client_loss_mean')
        page.check('#log-y')
        goes_on(3)
        assert page.locator('#client-at').inner_text() == '3'
        assert page.input_value('#y') == 'client_loss_mean' and page.is_checked('#log-y')
        page.locator('#client-round').fill('0')  # then it does not follow
        goes_on(4)
        assert page.locator('#client-at').inner_text() == '1' and faults == []
        page.close()
        serving.shutdown()
