"""A table for a paper of one's own: LaTeX that needs the package booktabs and nothing else."""

from collections.abc import Iterable, Sequence

IN_LATEX = str.maketrans(
    {
        **{character: f'\\{character}' for character in '&%$#_{}'},
        '\\': r'\textbackslash{}',
        '~': r'\textasciitilde{}',
        '^': r'\textasciicircum{}',
        '<': '$<$',
        '>': '$>$',
        '|': '$|$',
        '±': r'$\pm$',
        '\N{MULTIPLICATION SIGN}': r'$\times$',
        '²': '$^2$',
        '\N{GREEK SMALL LETTER ALPHA}': r'$\alpha$',
        '≠': r'$\neq$',
    }
)


def latex_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A `table` with a heading a column and a cell a column in each row, all plain text.

    The first column is aligned left, the others right. The preamble needs
    `\\usepackage{booktabs}`.
    """
    lines = '\n'.join(map(_cells, rows))
    return rf"""\begin{{table}}
  \centering
  \caption{{{caption.translate(IN_LATEX)}}}
  \begin{{tabular}}{{l{'r' * (len(head) - 1)}}}
    \toprule
{_cells(head)}
    \midrule
{lines}
    \bottomrule
  \end{{tabular}}
\end{{table}}"""


def _cells(row: Sequence[str]) -> str:
    return rf'    {" & ".join(cell.translate(IN_LATEX) for cell in row)} \\'
