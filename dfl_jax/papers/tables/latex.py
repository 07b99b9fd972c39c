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
    return '\n'.join(
        [
            r'\begin{table}',
            r'  \centering',
            rf'  \caption{{{caption.translate(IN_LATEX)}}}',
            rf'  \begin{{tabular}}{{l{"r" * (len(head) - 1)}}}',
            r'    \toprule',
            _cells(head),
            r'    \midrule',
            *map(_cells, rows),
            r'    \bottomrule',
            r'  \end{tabular}',
            r'\end{table}',
        ]
    )


def _cells(row: Sequence[str]) -> str:
    return rf'    {" & ".join(cell.translate(IN_LATEX) for cell in row)} \\'
