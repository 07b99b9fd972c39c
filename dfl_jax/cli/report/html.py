"""The HTML of a report: tables, figures and the page, which is one file; its look in style.css."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dfl_jax.cli.report.runs import STYLES, Look

MARK = '<meta name="generator" content="dfl_jax experiments.report">'  # by which it is known again
DASHES = dict(zip(STYLES, ('', '6 2.5', '2 2.5'), strict=True))


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], foot: str) -> str:
    """The whole page. All text but the bodies of sections, (heading, HTML)."""
    links = ''.join(
        f'<li><a href="#{_anchor(name)}">{escape(name)}</a></li>' for name, _ in sections
    )
    body = '\n'.join(
        f'<section id="{_anchor(name)}">\n<h2>{escape(name)}</h2>\n{html}\n</section>'
        for name, html in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{MARK}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{_style()}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
<footer>{escape(foot)}</footer>
</body>
</html>
"""


def _anchor(heading: str) -> str:
    return heading.lower().replace(' ', '-')


def _style() -> str:
    """style.css with the colours that the figures have on a light page."""
    from dfl_jax.cli.run.plots import COLOURS

    lines = ';'.join(f'--c{place}:{colour}' for place, colour in enumerate(COLOURS))
    return Path(__file__).with_name('style.css').read_text().replace('--c:COLOURS', lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """head: HTML. caption: text. rows: <td> cells, but the first, the HTML of the row's header.

    A column whose cells are all of class n has its heading on the right too.
    """
    right = [all(row[i].startswith('<td class="n"') for row in rows) for i in range(1, len(head))]
    classes = ['', *(' class="n"' if each else '' for each in right)]
    heads = ''.join(
        f'<th scope="col"{c}>{name}</th>' for name, c in zip(head, classes, strict=True)
    )
    body = '\n'.join(f'<tr><th scope="row">{row[0]}</th>{"".join(row[1:])}</tr>' for row in rows)
    words = escape(caption)
    return (
        f'<p class="note">{words}</p>\n<div class="scroll" role="region" tabindex="0" '
        f'aria-label="{words}">\n<table aria-label="{words}">\n<thead><tr>{heads}</tr></thead>\n'
        f'<tbody>\n{body}\n</tbody>\n</table>\n</div>'
    )


def text_cell(text: str) -> str:
    return f'<td class="value">{wrappable(text)}</td>'


def wrappable(text: str) -> str:
    """With room for a new line after every comma."""
    return escape(text).replace(',', ',<wbr>')


def number_cell(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>'


def group_label(method: str, note: str, look: Look, status: str = '') -> str:
    """The line of a group as the figures draw it, and its name."""
    small = f'<small>{escape(note)}</small>' if note else ''
    mark = f' {badge(status)}' if status else ''
    return f'<div class="group">{swatch(look)}<span>{escape(method)}{mark}{small}</span></div>'


def badge(text: str) -> str:
    return f'<span class="badge">{escape(text)}</span>'


def swatch(look: Look) -> str:
    dashes = f';stroke-dasharray:{DASHES[look.style]}' if DASHES[look.style] else ''
    return (
        '<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true"><line x1="0" y1="6" x2="30" '
        f'y2="6" style="stroke:var(--c{look.colour});stroke-width:4{dashes}"></line></svg>'
    )


def figure(picture: str, caption: str) -> str:
    """picture: HTML; caption: text."""
    return f'<figure>\n{picture}\n<figcaption>{escape(caption)}</figcaption>\n</figure>'


def bullets(lines: Sequence[str]) -> str:
    """A list of these texts."""
    return f'<ul>{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
