"""The HTML of a report: tables, figures, the page and its look, all of it in one file."""

import re
from collections.abc import Iterator, Sequence
from html import escape

from dfl_jax.cli.report.runs import STYLES, Look, Measured, decimals, spread

MARK = '<meta name="generator" content="dfl_jax experiments.report">'  # by which it is known again
# On a dark page, in place of plots.COLOURS
DARK_COLOURS = (
    '#5aa9e6',
    '#f27d8b',
    '#5cc98f',
    '#c595d1',
    '#f2ad66',
    '#63d3e6',
    '#aab6c2',
    '#cfd451',
    '#f4a1d6',
    '#c9956b',
    '#f2f4f6',
    '#abe05f',
    '#dfc3ee',
)
DASHES = dict(zip(STYLES, ('', '6 2.5', '2 2.5'), strict=True))

STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:74rem;padding:1.5rem clamp(1rem,4vw,2.5rem) 4rem;color:var(--ink);
background:var(--paper);font:1rem/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',
'Liberation Sans',Arial,sans-serif;-webkit-text-size-adjust:100%}
h1{font-size:1.9rem;line-height:1.2;margin:.5rem 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:3rem 0 .5rem;padding-top:.75rem;border-top:1px solid var(--line)}
h3{font-size:1.02rem;margin:1.75rem 0 .35rem}
p,ul{max-width:46rem;margin:.5rem 0}
.lead{color:var(--muted);font-size:1.05rem;margin:0 0 1rem}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;list-style:none;padding:0;max-width:none}
a{color:var(--link)}
.note{color:var(--muted);font-size:.9rem}
.scroll{overflow-x:auto;margin:.75rem 0}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:.42rem .8rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th:first-child,td:first-child{padding-left:.15rem}
thead th{vertical-align:bottom;border-bottom:2px solid var(--rule);font-weight:600}
tbody th{font-weight:500;min-width:14rem}
tbody tr:last-child>*{border-bottom-color:var(--rule)}
.n{text-align:right}
td.n{white-space:nowrap}
.n span{display:inline-block;white-space:pre;text-align:left}
.e{color:var(--muted)}
.group{display:flex;gap:.55rem;align-items:flex-start}
.group small{display:block;color:var(--muted);font-weight:400;line-height:1.35}
.swatch{flex:none;width:1.9rem;height:.8rem;margin-top:.38rem}
.badge{display:inline-block;border:1px solid var(--warn);color:var(--warn);border-radius:.7rem;
padding:0 .5rem;font-size:.8rem;font-weight:500;white-space:nowrap}
.key{display:flex;flex-wrap:wrap;gap:.3rem 1.5rem;list-style:none;padding:0;max-width:none;
font-size:.92rem}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr));
gap:1.5rem 2rem}
.small.grid{grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr))}
figure{margin:.5rem 0;min-width:0}
figure svg,figure img{display:block;width:100%;height:auto;max-width:64rem}
figure svg{fill:var(--ink);stroke-linejoin:round;stroke-linecap:butt}
figure img{background:#fff;padding:.4rem;border-radius:.4rem}
figcaption{color:var(--muted);font-size:.9rem;margin-top:.35rem}
dl{columns:20rem;column-gap:2.5rem;margin:.75rem 0;font-size:.92rem}
dl div{display:flex;justify-content:space-between;gap:1rem;padding:.18rem 0;break-inside:avoid;
border-bottom:1px solid var(--line)}
dt{color:var(--muted);flex:none}
dd{margin:0;text-align:right;overflow-wrap:anywhere}
.value{overflow-wrap:anywhere;min-width:6rem;max-width:18rem}
footer{margin-top:3rem;color:var(--muted);font-size:.85rem}
@media (max-width:34rem){body{font-size:.95rem}h1{font-size:1.5rem}th,td{padding:.4rem .55rem}
tbody th{min-width:8.5rem}.swatch{width:1.2rem}}
@media print{@page{margin:14mm}body{max-width:none;padding:0;font-size:9.5pt}nav{display:none}
h2,h3{break-after:avoid}tr,figure{break-inside:avoid}.scroll{overflow:visible}
th,td{padding:.25rem .4rem}tbody th{min-width:7rem}thead{display:table-header-group}
.grid{grid-template-columns:1fr 1fr}.small.grid{grid-template-columns:1fr 1fr 1fr}}
"""
LIGHT = {
    'ink': '#1c2329',
    'muted': '#56616c',
    'paper': '#ffffff',
    'line': '#e2e6ea',
    'rule': '#8b96a1',
    'link': '#175d92',
    'warn': '#9a4a00',
}
DARK = {
    'ink': '#e6eaee',
    'muted': '#a3aeb9',
    'paper': '#14181c',
    'line': '#2c343c',
    'rule': '#64707c',
    'link': '#79bbee',
    'warn': '#f0b072',
}


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
<style>{_colours()}{STYLE}</style>
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


def _colours() -> str:
    from dfl_jax.cli.run.plots import COLOURS

    def variables(named: dict[str, str], lines: Sequence[str]) -> str:
        pairs = [*named.items(), *((f'c{i}', colour) for i, colour in enumerate(lines))]
        return ';'.join(f'--{name}:{value}' for name, value in pairs)

    return (
        f':root{{color-scheme:light dark;{variables(LIGHT, COLOURS)}}}\n'
        '@media screen and (prefers-color-scheme:dark)'
        f'{{:root{{{variables(DARK, DARK_COLOURS)}}}}}'
    )


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


def number_column(cells: Sequence[Sequence[Measured]], digits: int | None = None) -> list[str]:
    """The <td> cells of a column: mean and deviation over the values of each, points aligned.

    digits: after the point (default: as the smallest mean needs). Values that are bounds stand by
    themselves, as in experiments.tables.
    """
    exact = [spread(cell) if not any(v.bound for v in cell) else None for cell in cells if cell]
    known = [each for each in exact if each]
    places = decimals(mean for mean, _ in known) if digits is None else digits
    if digits is None and all(value.value == int(value.value) for cell in cells for value in cell):
        places = min(places, int(any(error is not None for _, error in known)))
    errors = [f' ± {error:,.{places}f}' for _, error in known if error is not None]
    width = max(map(len, errors), default=0)
    return [_numbers(cell, places, width) for cell in cells]


def _numbers(values: Sequence[Measured], places: int, width: int) -> str:
    if not values:
        text, error = '-', None
    elif all(value.bound for value in values):
        text, error = _with_bound(min(values), places), None
    elif any(value.bound for value in values):
        text, error = ', '.join(_with_bound(value, places) for value in values), None
    else:
        mean, error = spread(values)
        text = f'{mean:,.{places}f}'
    beside = '' if error is None else f' ± {error:,.{places}f}'
    room = f'<span class="e" style="min-width:{width}ch">{beside}</span>'
    return f'<td class="n">{escape(text)}{room if width else ""}</td>'


def _with_bound(number: Measured, places: int) -> str:
    whole = number.value == int(number.value)
    return f'{">" * number.bound}{number.value:,.{0 if whole else places}f}'


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


def markdown(text: str) -> str:
    """What experiments.tables writes: a table, lists and paragraphs."""
    return '\n'.join(_blocks(text))


def aligned(column: Sequence[str]) -> list[str]:
    """The <td> cells of numbers like '16.7 ± 1.5 (3 seeds)', points below each other."""
    found = [re.fullmatch(r'(\D*[\d,]*)(.*)', text) for text in column]
    parts = [
        match.groups() if match else (text, '') for match, text in zip(found, column, strict=True)
    ]
    width = max(len(rest) for _, rest in parts)
    room = f'<span style="min-width:{0.9 * width:.1f}ch">'
    return [
        f'<td class="n">{escape(whole)}{room}{escape(rest)}</span></td>' for whole, rest in parts
    ]


def _blocks(text: str) -> Iterator[str]:
    for block in text.strip().split('\n\n'):
        lines = block.splitlines()
        if block.startswith('| '):
            head, _, *rows = ([c.strip() for c in line.strip('|').split('|')] for line in lines)
            bodies = zip(
                *(aligned(column) for column in [*zip(*rows, strict=True)][1:]), strict=True
            )
            cells = [[escape(row[0]), *body] for row, body in zip(rows, bodies, strict=True)]
            yield table(
                [*map(escape, head)],
                cells,
                'The paper beside these runs, mean ± deviation over seeds',
            )
        elif block.startswith('- '):
            yield f'<ul>{"".join(f"<li>{escape(line[2:])}</li>" for line in lines)}</ul>'
        else:
            yield f'<p>{escape(block)}</p>'
