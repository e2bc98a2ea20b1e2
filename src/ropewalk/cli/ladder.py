"""The wavelengths of all pairs as a small picture in the terminal, and numbers and lists in few words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropewalk.cli.base import say
from ropewalk.cli.text import cells, pad

if TYPE_CHECKING:
    from ropewalk.inspection import Fate, View

COLUMNS, ROWS = 64, 12
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
_SHADES = {"kept": "█", "blended": "▓", "raised": "▒", "divided": "░", "stopped": "·"}


def fate_name(fate: Fate) -> str:
    """In words."""
    return {
        "kept": say("kept", "保持"),
        "blended": say("blended", "混合"),
        "divided": say("divided", "除算"),
        "raised": say("base raised", "base 引き上げ"),
        "stopped": say("stopped", "停止"),
    }[fate]


def ladder(view: View) -> list[str]:
    """Pair by pair from left to right, wavelength upwards: dotted without extension, solid with it.

    The two lengths are lines across; under the picture each pair's fate is a shade.
    """
    pairs = view.pairs
    finite = [p.wavelength for p in pairs if math.isfinite(p.wavelength)] + [p.trained for p in pairs]
    marks = {n: name for n, name in _lengths(view) if n is not None}
    low, high = math.log10(min(finite)), math.log10(max(*finite, *marks, 10))
    tall = 4 * ROWS - 1

    def height(wavelength: float) -> int:
        return round((high - math.log10(wavelength)) / ((high - low) or 1) * tall)

    wide = 2 * min(COLUMNS, len(pairs) * 2)
    drawn = [[0] * (wide // 2) for _ in range(ROWS)]
    at = [min(x * len(pairs) // wide, len(pairs) - 1) for x in range(wide)]
    for x, i in enumerate(at):
        for wavelength, sparse in ((pairs[i].trained, True), (pairs[i].wavelength, False)):
            if math.isfinite(wavelength) and not (sparse and x % 2):
                y = height(wavelength)
                drawn[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    rows = {height(n) // 4: name for n, name in sorted(marks.items(), reverse=True)}
    ticks = {height(10.0**e) // 4: f"10{_superscript(e)}" for e in range(math.ceil(low), math.floor(high) + 1)}
    lines = [say("      wavelength, in tokens", "      波長（トークン数）")]
    for r, line in enumerate(drawn):
        empty = "-" if r in rows else " "
        body = "".join(chr(0x2800 + c) if c else empty for c in line)
        lines.append(f"{ticks.get(r, ''):>4} {'┤' if r in ticks else '│'}{body}" + (f" {rows[r]}" if r in rows else ""))
    if view.extension is not None:
        strip = "".join(_SHADES[pairs[at[2 * x]].fate] for x in range(wide // 2))
        lines.append(f"      {strip}")
    ends = (say("pair 0", "ペア 0"), str(len(pairs) - 1))
    lines.append("      " + pad(ends[0], max(wide // 2 - cells(ends[1]), cells(ends[0]) + 1)) + ends[1])
    if view.extension is not None:
        legend = [f"{_SHADES[fate]} {fate_name(fate)}" for fate in view.fates()]
        dotted = say("dotted: without the extension", "点線: 拡張なし")
        lines.append("      " + "   ".join([*legend, dotted]))
    return [line.rstrip() for line in lines]


def _lengths(view: View) -> list[tuple[int | None, str]]:
    trained, extended = view.trained_length, view.extended_length
    if trained is None:
        return []
    if extended == trained:
        return [(trained, say(f"{trained:,}", f"{trained:,}"))]
    return [
        (trained, say(f"trained {trained:,}", f"学習時 {trained:,}")),
        (extended, say(f"extended {extended:,}", f"拡張後 {extended:,}")),
    ]


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def tokens(length: float) -> str:
    """A length or wavelength.

    >>> tokens(6.2831853), tokens(8192), tokens(1234567.8), tokens(2.5e12)
    ('6.28', '8,192', '1,234,568', '2.5e+12')
    """
    if math.isinf(length):
        return "∞"
    if length >= 1e10:
        return f"{length:.4g}"
    if isinstance(length, int) or length >= 1000:
        return f"{round(length):,}"
    return f"{length:.1f}" if length >= 100 else f"{length:.3g}"


def number(value: float) -> str:
    """A parameter in few digits: whole numbers with their thousands marked.

    >>> number(500000.0), number(0.1), number(1.13862943)
    ('500,000', '0.1', '1.13863')
    """
    whole = math.isfinite(value) and value == int(value)
    return f"{int(value):,}" if whole and abs(value) < 1e15 else f"{value:.6g}"


def numbers(values: Sequence[int], *, most: int = 6) -> str:
    """Indices in few words: runs, or the steps of a ladder.

    >>> numbers([0, 1, 2, 3]), numbers([5, 11, 17, 23]), numbers([7]), numbers([0, 1, 3, 4])
    ('0–3', '5, 11, …, 23', '7', '0–1, 3–4')
    """
    steps = {after - before for before, after in itertools.pairwise(values)}
    if len(values) > 3 and len(steps) == 1 and steps != {1}:
        return f"{values[0]}, {values[1]}, …, {values[-1]}"
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(words if len(words) <= most else [*words[: most - 2], "…", words[-1]])


def bands(string: str) -> str:
    """The axis of every pair in few letters: what repeats is counted.

    >>> bands("T" * 16 + "H" * 24 + "W" * 24), bands("THW" * 20 + "TTTT"), bands("HW" * 22 + "T" * 20)
    ('16×T 24×H 24×W', '20×THW 4×T', '22×HW 20×T')
    """
    words, at = [], 0
    while at < len(string):
        best, times = 1, 1
        for size in range(1, 7):
            unit, count = string[at : at + size], 1
            while len(unit) == size and string.startswith(unit, at + size * count):
                count += 1
            if count > 1 and size * count > best * times:
                best, times = size, count
        words.append(f"{times}×{string[at : at + best]}")
        at += best * times
    return " ".join(words)
