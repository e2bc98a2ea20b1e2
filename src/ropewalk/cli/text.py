"""Lines that fit: widths are counted in terminal cells, of which a Japanese character takes two."""

from __future__ import annotations

import itertools
import unicodedata

NEVER_FIRST = "、。，．・：；？！」』）】〉》〕”’…ーぁぃぅぇぉっゃゅょァィゥェォッャュョ,.:;?!)]}"
NEVER_LAST = "「『（【〈《〔“‘([{"


def cells(text: str) -> int:
    """How many columns a terminal gives to `text`.

    >>> cells("RoPE と距離")
    11
    """
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, columns: int) -> str:
    """`text` with spaces after it, up to `columns` columns."""
    return text + " " * (columns - cells(text))


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most `columns` columns: cut at spaces and, in Japanese, between characters where a line may end.

    >>> wrap("スコアは、距離で決まる。", 10)
    ['スコアは、', '距離で決ま', 'る。']
    """
    lines, line = [], ""
    for unit in _units(text):
        if line and cells(line + unit.rstrip()) > columns:
            lines.append(line.rstrip())
            line = ""
        line += unit if line else unit.lstrip()
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _units(text: str) -> list[str]:
    """The pieces between which a line may end: words with the space after them, single wide characters, [brackets]."""
    units, depth = [text[:1]], 0
    for before, after in itertools.pairwise(text):
        depth += (before == "[") - (before == "]")
        wide = cells(before) == 2 or cells(after) == 2
        may_end = before == " " or (wide and after not in " " + NEVER_FIRST and before not in NEVER_LAST)
        if may_end and after != " " and not depth:
            units.append(after)
        else:
            units[-1] += after
    return units
