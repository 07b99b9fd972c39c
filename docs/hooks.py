"""Pages of the site that are made from the program: its commands, its modules, the tutorial.

MkDocs calls the functions whose names begin with `on_` (mkdocs.yml, `hooks`).
"""

import ast
import contextlib
import html
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dfl_jax.cli.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parent.parent

# What a link leads to in the repository -> what it leads to on the site.
ELSEWHERE = {
    '](tutorial.ipynb': '](tutorial.md',
    '](../README.md': '](index.md',
    '](../benchmarks/vs_peers.md': '](vs_peers.md',
    '](../docs/': '](',
    '](results)': '](gallery.md)',
    '[peers](peers)': '`benchmarks/peers`',
}


class Examples(griffe.Extension):
    """Shows the examples of docstrings as code, whose brackets are no links."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            example = re.compile(r'^>>> .*\n?(?:.+\n?)*', flags=re.MULTILINE)
            fenced = example.sub(lambda e: f'```pycon\n{e[0].rstrip()}\n```\n', obj.docstring.value)
            obj.docstring.value = fenced


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The configuration with the commands and modules in its table of contents."""
    (reference,) = (part['Reference'] for part in config.nav if 'Reference' in part)
    for entry in reference:
        if 'Commands' in entry:
            entry['Commands'] = [{f'dfl-jax {name}': _command_page(name)} for name in COMMANDS]
        elif 'Python' in entry:
            entry['Python'] = [{name: _module_page(name)} for name in _packages()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with the generated pages."""
    tutorial, figures = notebook(ROOT / 'docs/tutorial.ipynb', config.extra['run_tutorial'])
    if repository := config.extra['repository']:
        tutorial = in_colab(tutorial, repository)
    pages = {
        **figures,
        'tutorial.md': tutorial,
        'vs_peers.md': (ROOT / 'benchmarks/vs_peers.md').read_text(encoding='utf-8'),
        **{_module_page(name): package(name, modules) for name, modules in _packages().items()},
    }
    with ThreadPoolExecutor(2) as pool:  # a command takes seconds to say its flags
        pages |= zip(map(_command_page, COMMANDS), pool.map(command, COMMANDS), strict=True)
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page, with links that lead out of docs/ led to the same thing on the site."""
    for there, here in ELSEWHERE.items():
        markdown = markdown.replace(there, here)
    return markdown


def notebook(path: Path, run: bool) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its figures as files: text, code, and what the code shows.

    Args:
      run: run the code; without it the page has no output.
    """
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    parts, figures, names = [], {}, {'__name__': path.stem}
    for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
        text = ''.join(cell['source'])
        if cell['cell_type'] != 'code':
            parts.append(text)
            continue
        parts.append(f'```python\n{text}\n```')
        if run:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f'{path}:{cell["id"]}', 'exec'), names)
            if printed.getvalue():
                parts.append(f'```text\n{printed.getvalue()}```')
        for number in plt.get_fignums():
            file, image = f'assets/{path.stem}-{cell["id"]}.png', io.BytesIO()
            plt.figure(number).savefig(image, dpi=120)
            plt.close(number)
            figures[file] = image.getvalue()
            parts.append(f'![What the code above draws]({file})')
    return '\n\n'.join(parts), figures


def in_colab(tutorial: str, repository: str) -> str:
    """The tutorial's page with a button below its heading that opens the notebook in Colab.

    Args:
      repository: its address, https://github.com/OWNER/NAME
    """
    heading, _, rest = tutorial.partition('\n')
    path = repository.removeprefix('https://github.com').removesuffix('/').removesuffix('.git')
    page = f'https://colab.research.google.com/github{path}/blob/main/docs/tutorial.ipynb'
    first = f'and begin with `%pip install git+{repository}`.'
    return f'{heading}\n\n[Open in Colab]({page}){{ .md-button }} {first}\n{rest}'


def command(name: str) -> str:
    """The page of a command, from what its `--helpfull` prints."""
    printed = subprocess.run(
        [sys.executable, '-m', 'dfl_jax.cli', name, '--helpfull'],
        check=True,
        cwd=ROOT,
        env=os.environ | {'JAX_PLATFORMS': 'cpu'},
        stdout=subprocess.PIPE,
        encoding='utf-8',
    ).stdout
    return f'# dfl-jax {name}\n\n' + '\n'.join(_in_markdown(printed.splitlines()))


def _in_markdown(lines: list[str]) -> Iterator[str]:
    """The lines of a help as Markdown: a heading a group, and one a flag."""
    yield lines[0]
    section = ''
    for line in (*lines[1:], ''):
        if not line:
            yield '\n' if section == 'examples' else ''
        elif not line.startswith(' '):
            section = line
            yield f'## {line.capitalize()}\n'
        elif section == 'examples':
            yield f'    {line.strip()}'
        elif line.startswith('      '):
            yield re.sub(r'([\\`*_\[\]])', r'\\\1', html.escape(line.strip()))
        else:
            flag = line.strip()
            name = flag.removeprefix('--').removeprefix('[no]').partition('=')[0]
            yield f'\n<h3 class="flag" id="{name}"><a href="#{name}"><code>{flag}</code></a></h3>\n'


def package(name: str, modules: list[str]) -> str:
    """The page of a package: what it hands on, and every module that it has."""
    parts = [f'# {name}']
    if handed_on := list(_handed_on(modules[0])):
        parts.append('Handed on: ' + ', '.join(f'[`{n}`][{full}]' for n, full in handed_on) + '.')
    parts.extend(f'::: {module}' for module in modules)
    return '\n\n'.join(parts)


def _handed_on(module: str) -> Iterator[tuple[str, str]]:
    """The names that the `__init__` of a package hands on, and where they are defined."""
    path = ROOT.joinpath(*module.split('.'), '__init__.py')
    if path.exists():
        for node in ast.parse(path.read_text(encoding='utf-8')).body:
            if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('dfl_jax'):
                yield from ((n.asname or n.name, f'{node.module}.{n.name}') for n in node.names)


def _packages() -> dict[str, list[str]]:
    """The public modules of each package of the library, the package itself first."""
    packages: dict[str, list[str]] = {}
    for file in sorted((ROOT / 'dfl_jax').rglob('*.py')):
        parts = file.relative_to(ROOT).with_suffix('').parts
        inner = any(p.startswith('_') for p in parts[:-1])
        if parts[1] not in ('cli', '__init__') and parts[-1] != 'command' and not inner:
            module = '.'.join(parts).removesuffix('.__init__')
            packages.setdefault('.'.join(parts[:2]), []).append(module)
    return packages


def _command_page(name: str) -> str:
    return f'reference/commands/{name}.md'


def _module_page(name: str) -> str:
    return f'reference/python/{name}.md'
