"""The HTML of a report: tables, figures and the page, which is one file; its look in style.css."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

MARK = '<meta name="generator" content="dfl_jax experiments.report">'  # by which it is known again


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], foot: str) -> str:
    """The whole page. All text but the bodies of sections, (heading, HTML)."""
    links = ''.join(
        f'<li><a href="#{_anchor(name)}">{escape(name)}</a></li>' for name, _ in sections
    )
    body = '\n'.join(
        f'<section id="{_anchor(name)}">\n<h2>{escape(name)}</h2>\n{html}\n</section>'
        for name, html in sections
    )
    style = Path(__file__).with_name('style.css').read_text()
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{MARK}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
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


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, text_columns: int = 1
) -> str:
    """A table of text; the columns after `text_columns` are aligned right. caption: above it."""
    classes = [' class="n"' * (place >= text_columns) for place in range(len(head))]
    heads = ''.join(
        f'<th scope="col"{c}>{escape(name)}</th>' for name, c in zip(head, classes, strict=True)
    )
    body = '\n'.join(
        f'<tr><th scope="row">{wrappable(first)}</th>'
        + ''.join(f'<td{c}>{wrappable(v)}</td>' for v, c in zip(rest, classes[1:], strict=True))
        + '</tr>'
        for first, *rest in rows
    )
    words = escape(caption)
    return (
        f'<p class="note">{words}</p>\n<div class="scroll" role="region" tabindex="0" '
        f'aria-label="{words}">\n<table aria-label="{words}">\n<thead><tr>{heads}</tr></thead>\n'
        f'<tbody>\n{body}\n</tbody>\n</table>\n</div>'
    )


def wrappable(text: str) -> str:
    """With room for a new line after every comma."""
    return escape(text).replace(',', ',<wbr>')


def figure(picture: bytes, kind: str, label: str, caption: str = '') -> str:
    """A picture that is part of the page. kind: png or svg+xml. label: is read out."""
    content = base64.b64encode(picture).decode()
    below = f'<figcaption>{escape(caption)}</figcaption>' * bool(caption)
    return (
        f'<figure>\n<img src="data:image/{kind};base64,{content}" alt="{escape(label)}">\n'
        f'{below}</figure>'
    )


def bullets(lines: Sequence[str]) -> str:
    """A list of these texts."""
    return f'<ul>{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
