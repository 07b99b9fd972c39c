"""What the values of a table's column are, and columns that are no features.

Numbers are numbers and texts are categories. What may be either is refused, unless the user says
which: nobody wants 160 features in place of one number. A column here is a pandas.Series of n rows
without missing values, `where` names it in messages, `remedy` ends them, and `test` [n] bool are
the rows of the test set.
"""

import re
from typing import Any

import numpy as np

from dfl_jax.data.dataset import DataError

MOST_VALUES = 1000  # different ones of a column that is one-hot; identifiers have more
MOST_CHANCE = 20  # rows, in which a feature may be like the target by chance
FEW_VALUES = 10  # so many are categories even if nearly every row has its own
MISSING = ('?', '-', '.', 'na', 'n/a', 'nan', 'none', 'null')  # in the first of the samples
TRUTH = {'true': True, 'false': False}
PADDED = r'[+-]?0\d+'  # 007, which is a name and not the number 7
# With a decimal comma, marks between thousands, a unit of money, or a percent sign
QUANTITY = r"\(?[$€£¥₹]?\s*[+-]?\s*[$€£¥₹]?\s*\d[\d.,'’ \u00a0\u202f_]*\s*[$€£¥₹%‰]?\)?"  # noqa: RUF001
MONTH = r'(?:jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-z]*'
# A bound, a number with a unit, a share of ten, a number of another base
UNIT = r'[<>≤≥~]\s*[+-]?\d[\d.,]*|[+-]?\d[\d.,]*\s*([^\W\d_]{1,4}|/\s*\d+)|0[xob][\da-fA-F]+'
DATE = (
    r'(?i:(?:19|20)\d\d[-/]\d{1,2}|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:\D.*)?|'
    r'\d{1,2}:\d{2}(?:\D.*)?|(?:19|20)\d\d[ -]?[qw]\d{1,2}|'
    rf'(?:\w+,? )?(?:\d{{1,2}}[ .-]+{MONTH}|{MONTH}[ .]+\d{{1,2}})\b.*\d)'
)
# How pandas and pyarrow call an index that they save, and how people call theirs
INDEX = re.compile(r'unnamed: \d+(\.\d+)?|__index_level_\d+__|level_\d+', re.IGNORECASE)
COUNTER = re.compile(
    r'(?i:(\w+[ _.-])?(id|no|nr|idx|index|number)|row[ _.-]?(names?|num|number|id))|\w*[a-z]I[dD]'
)
COPY = re.compile(r'(?<=\w)([ _.-]*\d+|[ _.-]+(x|y|left|right|copy))$')
Column = Any  # pandas.Series
Frame = Any  # pandas.DataFrame


def parse_texts(column: Column) -> Column:
    """A column of texts, some perhaps missing, as numbers or truth values if all of them are."""
    numbers = _numbers(column)
    if (numbers.notna() == column.notna()).all():
        return numbers
    truth = column.str.lower().map(TRUTH)
    return truth.astype(bool) if truth.notna().all() else column


def check_header(frame: Frame, origin: object) -> None:
    """Raises DataError where the names of a table of texts are a sample, and its header is missing.

    They are if all names of numbers are numbers, other than 0, 1, 2, ... as pandas counts columns,
    or if all names of texts are among these.
    """
    numbers, texts = [], []
    for name in frame.columns:
        column = frame[name]
        if name.lower() in MISSING or INDEX.fullmatch(name):
            continue
        if column.dtype.kind not in 'iuf' and 2 * _numbers(column).notna().sum() < len(column):
            texts.append(name)
        elif np.isfinite(number := _number(name)):
            numbers.append(number)
        else:
            return
    counted = np.array_equal(numbers, np.arange(len(numbers)) + (numbers or [0])[0])
    counted = counted and (not numbers or numbers[0] in (0, 1) or len(numbers) > 2)
    values = [frame[name].astype(str).str.lower().eq(name.lower()).any() for name in texts]
    # Years or wave lengths, beside names that are no values
    rising = len(numbers) > 2 and (np.diff(numbers) > 0).all() and texts and not any(values)
    if not (counted or rising) or (texts and all(values)):
        raise DataError(
            f'{origin}: its first line, {",".join(frame.columns)[:100]}, looks like a sample: '
            'write the names of the columns above it; if these are the names, give others than '
            'numbers and values of the columns'
        )


def check_texts(
    column: Column, where: str, remedy: str, test: np.ndarray, numbers: bool = False
) -> None:
    """Raises DataError for texts that may be no categories: numbers, dates, or hardly any twice.

    numbers: whether all of them may be numbers.
    """
    texts = column.astype(str)
    odd = not_numbers(texts)
    if not len(odd) and not numbers:
        raise DataError(
            f'{where} holds numbers that are written as texts, such as {texts.iloc[0][:60]!r}: '
            f'convert them, {remedy}'
        )
    if 0 < len(odd) < len(texts):
        raise DataError(
            f'{where} holds numbers, and {len(odd)} other values such as '
            f'{odd.iloc[0][:60]!r}: make all of them numbers, {remedy}'
        )
    stripped, unread = odd.str.strip(), 'numbers in a form that is not read'
    units = stripped.str.extract(f'^(?P<whole>{UNIT})$')
    in_units = units.whole.notna().all() and odd.nunique() > 2 and units[1].nunique() < 2
    for found, what in (
        (odd[stripped.str.fullmatch(DATE)], 'dates'),
        (odd[stripped.str.fullmatch(QUANTITY)], unread),
        (odd if in_units else odd[:0], unread),
    ):
        if len(found):
            raise DataError(
                f'{where} holds {what}, such as {found.iloc[0][:60]!r}: write plain numbers such '
                f'as 1234.5, {remedy}'
            )
    check_few(texts, where, remedy, test)


def check_few(column: Column, where: str, remedy: str, test: np.ndarray) -> None:
    """Raises DataError where most training rows have a value of their own: it is no category."""
    known, rows = column[~test].nunique(), int((~test).sum())
    if known > max(FEW_VALUES, rows / 2):
        raise DataError(
            f'{where} has {known} different values in {rows} training rows, such as '
            f'{str(column.iloc[0])[:60]!r}, too many for categories: {remedy}'
        )


def check_index(column: Column, where: str, remedy: str, test: np.ndarray) -> None:
    """Raises DataError for a column that counts the rows, as an index that was saved along does."""
    name, counts, named = str(column.name), False, False
    if column.dtype.kind in 'iuf':
        values = column.to_numpy(np.float64)
        named = _all_differ(values) and COUNTER.fullmatch(name) is not None
        # Two files may each have been counted
        counts = _counts(values) or (_counts(values[~test]) and _counts(values[test]))
    if counts or named or INDEX.fullmatch(name):
        raise DataError(f'{where} numbers the rows and tells nothing of them: {remedy}')


def check_copy(column: Column, target: Column, where: str, remedy: str) -> None:
    """Raises DataError for a column that is the target again, as a join leaves it: label.1.

    Under such a name it may be rounded; under any other it is the same numbers or, for a target
    that has few values, has one for each of these.
    """
    names = [COPY.sub('', str(each.name).strip().lower()) for each in (column, target)]
    named = names[0] == names[1]
    if all(each.dtype.kind in 'biuf' for each in (column, target)):
        values = (each.to_numpy(np.float64) for each in (column, target))
        same = np.allclose(*values, rtol=0.01 if named else 1e-6, atol=0)
    else:
        same = column.astype(str).str.lower().eq(target.astype(str).str.lower()).all()
    few = 2 * target.nunique() <= len(target) and (named or len(target) >= MOST_CHANCE)
    if same or (few and column.nunique() > 1 and (_codes(column) == _codes(target)).all()):
        raise DataError(f'{where} is the target {target.name} again: {remedy}')


def _codes(column: Column) -> np.ndarray:
    """The number of each value in the order in which they first occur, [n]."""
    return column.factorize()[0]


def numbers_of(column: Column, where: str) -> np.ndarray:
    """A column that is said to hold numbers, [n] float64. Raises DataError where it does not."""
    if column.dtype.kind in 'biuf':
        return column.to_numpy(np.float64)
    texts = column.astype(str)
    if len(odd := not_numbers(texts)):
        raise DataError(
            f'{where} is to be a number and holds {odd.iloc[0][:60]!r}: write plain numbers '
            'such as 1234.5'
        )
    return _numbers(texts).to_numpy(np.float64)


def not_numbers(texts: Column) -> Column:
    """Those of the texts that are there and no numbers."""
    return texts[_numbers(texts).isna() & texts.notna()]


def _all_differ(values: np.ndarray) -> bool:
    """Whether there are more than a few numbers, all whole and no two the same."""
    whole = bool((values == np.rint(values)).all())
    return whole and len(np.unique(values)) == len(values) > FEW_VALUES


def _counts(values: np.ndarray) -> bool:
    """Whether numbers are successive ones, in any order."""
    return _all_differ(values) and bool(values.max() - values.min() == len(values) - 1)


def _numbers(texts: Column) -> Column:
    from pandas import to_numeric

    return to_numeric(texts, errors='coerce')


def _number(text: str) -> float:
    """The text as a number, NaN where it is none."""
    from pandas import Series

    return float(_numbers(Series([text], dtype=object)).iloc[0])
