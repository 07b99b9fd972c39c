"""The documentation as a site: complete, no warning, no dead link, nothing from elsewhere."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip('mkdocs')  # extra docs
pytest.importorskip('mkdocstrings')

from mkdocs.config import load_config

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {'tutorial.md', 'vs_peers.md'}  # by docs/hooks.py, beside commands and modules


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """The folder of the site, as `make docs` builds it, but for the output of the tutorial.

    Its code runs in test_tutorial.py.
    """
    folder = tmp_path_factory.mktemp('site')
    built = subprocess.run(
        [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', str(folder)],
        cwd=ROOT,
        env=os.environ
        | {'PYTHONPATH': str(ROOT), 'NO_MKDOCS_2_WARNING': '1', 'RUN_TUTORIAL': 'false'}
        | {'REPOSITORY': 'https://github.com/OWNER/NAME'},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


class Elements(html.parser.HTMLParser):
    """The anchors of a page, what its links lead to, and what it loads."""

    def __init__(self, page):
        super().__init__()
        self.anchors, self.links, self.loaded = {''}, set(), set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[name] for name in ('id', 'name') if values.get(name)}
        if tag == 'a' and values.get('href'):
            self.links.add(values['href'])
        if tag in ('script', 'img', 'iframe') and values.get('src'):
            self.loaded.add(values['src'])
        if tag == 'link' and values.get('rel') in ('stylesheet', 'icon', 'preconnect'):
            self.loaded.add(values['href'])


@pytest.fixture(scope='module')
def pages(site):
    return {page: Elements(page) for page in site.rglob('*.html') if page.name != '404.html'}


def in_nav(part):
    """The pages below a part of the table of contents."""
    if isinstance(part, str):
        return [part]
    values = part.values() if isinstance(part, dict) else part
    return [page for value in values for page in in_nav(value)]


def test_every_page_is_in_the_table_of_contents_once():
    listed = in_nav(load_config(str(ROOT / 'mkdocs.yml')).nav)
    written = {file.relative_to(ROOT / 'docs').as_posix() for file in ROOT.glob('docs/**/*.md')}
    assert len(listed) == len(set(listed))
    assert set(listed) == written | GENERATED


def test_the_gallery_has_every_figure_with_the_command_that_draws_it():
    text = (ROOT / 'docs/gallery.md').read_text()
    figure = r'!\[[^\]]+\]\(results/(\S+)\)\n\n\*[^\n]+\*\n\n```sh\n(?:dfl-jax|python -m)'
    drawn = {file.name for file in ROOT.glob('docs/results/*.png')}
    assert sorted(re.findall(figure, text)) == sorted(drawn)
    for table in re.findall(r'dfl-jax tables (\S+)', text):
        assert (ROOT / 'experiments' / table).is_dir(), table
    for found in re.findall(r'--runs=(docs/\S+)', text):
        for curves in found.split(','):
            assert (ROOT / curves).is_file(), curves


def test_every_link_and_anchor_of_the_site_leads_somewhere(pages):
    assert len(pages) > 60
    for page, elements in pages.items():
        for target in elements.links | elements.loaded:
            url = urlsplit(target)
            if url.scheme:
                continue
            file = page if not url.path else (page.parent / unquote(url.path)).resolve()
            assert file.is_file(), f'{page.name}: {target}'
            if url.fragment and file in pages:
                assert unquote(url.fragment) in pages[file].anchors, f'{page.name}: {target}'


def test_nothing_is_loaded_from_elsewhere(pages):
    for page, elements in pages.items():
        foreign = [source for source in elements.loaded if urlsplit(source).netloc]
        assert not foreign, f'{page.name} loads {foreign}'


def test_every_command_shows_its_flags(pages):
    from dfl_jax.cli.__main__ import COMMANDS

    of_commands = {p.stem: found for p, found in pages.items() if p.parent.name == 'commands'}
    assert of_commands.keys() == COMMANDS.keys()
    assert {'algorithm', 'lr', 'topology_file', 'spark_projection'} <= of_commands['run'].anchors
    assert {'sweep', 'shard', 'alpha'} <= of_commands['sweep'].anchors


def test_every_public_module_has_its_functions(pages):
    anchors = set().union(*(elements.anchors for elements in pages.values()))
    for name in ('topology.schedule.schedule', 'simulate.run', 'base.Clients', 'models.mlp.MLP'):
        assert f'dfl_jax.{name}' in anchors
    for file in (ROOT / 'dfl_jax').rglob('*.py'):
        module = '.'.join(file.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
        if not module.startswith('dfl_jax.cli') and not module.endswith(('.command', 'dfl_jax')):
            assert module in anchors, module


def test_the_page_of_a_notebook_has_its_text_and_code(site):
    page = re.sub(r'<[^>]+>', '', (site / 'tutorial.html').read_text())
    assert 'Ten clients learn handwritten digits together' in page
    assert 'from dfl_jax import Algorithm' in page


def test_the_notebook_opens_in_colab(site):
    notebook = 'github/OWNER/NAME/blob/main/docs/tutorial.ipynb'
    links = Elements(site / 'tutorial.html').links
    assert f'https://colab.research.google.com/{notebook}' in links


def test_search_needs_no_server(site, pages):
    """A page that is opened from a folder may fetch nothing, and start no worker."""
    index = (site / 'search/search_index.js').read_text(encoding='utf-8')
    assert index.startswith('var __index = ')
    found = json.loads(index.removeprefix('var __index = '))['docs']
    assert any(entry['location'].startswith('methods.html') for entry in found)
    for page, elements in pages.items():
        assert any(source.endswith('assets/iframe-worker.js') for source in elements.loaded), page
    assert (site / 'assets/iframe-worker.js').is_file()


@pytest.mark.parametrize('page', ['index.html', 'reference/commands/run.html'])
def test_search_finds_from_the_file_system(site, page):
    sync_api = pytest.importorskip('playwright.sync_api')
    chromium = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'chrome'))), '')
    if not chromium:
        pytest.skip('no Chromium is installed')
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=['--no-sandbox'])
        shown = browser.new_page()
        shown.goto((site / page).as_uri())
        shown.keyboard.press('/')
        shown.keyboard.type('dirichlet', delay=50)
        found = shown.locator('.md-search-result__link')
        found.first.wait_for(state='attached', timeout=30_000)
        assert all(
            link.startswith('file:') for link in found.evaluate_all('e => e.map(a => a.href)')
        )
        browser.close()
