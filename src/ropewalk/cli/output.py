"""Results on stdout: tables, charts, JSON. Pictures in files. What is said on the way goes to stderr."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from ropewalk.cli.base import Failure, say, unknown
from ropewalk.cli.text import wrap
from ropewalk.encodings import ENCODINGS, find
from ropewalk.protocol import PositionalEncoding

SENTENCES = 88
"""Columns beyond which running text is hard to read, however wide the window."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the program's own business, not rich's


def console() -> Console:
    """For stdout. Where that is no terminal, wide enough for our tables, and without colours."""
    width = None if sys.stdout.isatty() else 100
    return _Console(width=width, highlight=False, markup=False, emoji=False)


def table(**options: Any) -> Table:
    """An empty table in the style of all commands."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)


def paragraph(out: Console, text: str, *, indent: str = "", style: str | None = None) -> None:
    """Running text, broken where either language allows it; every line after the first is indented."""
    lines = wrap(text, min(out.width, SENTENCES) - len(indent))
    out.print(f"\n{indent}".join(lines), style=style, soft_wrap=True)


def print_json(document: dict[str, Any]) -> None:
    """One JSON document."""
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    click.echo(json.dumps(document, ensure_ascii=ascii_only, indent=2, allow_nan=False))


def check_finite(scores: Iterable[float]) -> None:
    """Refuse results that can neither be drawn nor written as JSON.

    Raises:
        Failure: a score is not finite.
    """
    if not all(math.isfinite(score) for score in scores):
        raise Failure(
            say(
                "a score is beyond float32: the vectors are too large",
                "スコアが float32 の範囲を超えました。ベクトルが大きすぎます",
            )
        )


def encoding(name: str) -> type[PositionalEncoding]:
    """The class of that name, or an error in the user's language with the nearest name."""
    try:
        return find(name)
    except ValueError as error:
        known = [cls.name for cls in ENCODINGS]
        message = unknown(name, known, "encoding", "位置符号化")
        raise click.UsageError(message, click.get_current_context()) from error


def labels() -> dict[str, str]:
    """How tables print each encoding."""
    return {cls.name: cls.label for cls in ENCODINGS}


def check_can_draw(path: Path) -> None:
    """Stop before any work if no picture can be drawn, or none written there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Failure(
            say(
                "pictures need matplotlib: pip install 'ropewalk[plot]'",
                "図を描くには matplotlib が要ります: pip install 'ropewalk[plot]'",
            )
        )
    check_can_write(path)


def check_can_write(path: Path) -> None:
    """Stop before any work if no file can be written there.

    Raises:
        Failure: there is no such folder, or it is itself one.
    """
    if not path.parent.is_dir():
        raise Failure(say(f"the folder {path.parent} does not exist", f"フォルダー {path.parent} がありません"))
    if path.is_dir():
        raise Failure(say(f"{path} is a folder", f"{path} はフォルダーです"))


def save_picture(kind: str, what: Any, language: str, path: Path) -> None:
    """Draw with `ropewalk.plots.<kind>` and save.

    Raises:
        Failure: the file cannot be written.
    """
    figure = importlib.import_module(f"ropewalk.plots.{kind}").draw(what, language)
    with writing(path):
        importlib.import_module("ropewalk.plots.style").save(figure, path)
    click.echo(say(f"Picture written to {path}", f"図を保存しました: {path}"), err=True)


class writing:  # noqa: N801  # reads as a verb: with writing(path)
    """Around the writing of a file: what the system refuses becomes one line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            why = error.strerror or error
            raise Failure(say(f"cannot write {self.path}: {why}", f"{self.path} に書き込めません（{why}）")) from error


def bar(value: float, largest: float, columns: int) -> str:
    """A bar of up to `columns` cells, in eighths.

    >>> bar(3, 4, 4), bar(-1.1, 4, 4)
    ('███', '█▏')
    """
    eighths = round(abs(value) / largest * columns * 8) if largest else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def sparkline(values: Sequence[float], columns: int) -> str:
    """One line of block characters from the lowest value to the highest, for a curve among others."""
    columns = min(columns, len(values))
    picked = [values[round(x * (len(values) - 1) / max(columns - 1, 1))] for x in range(columns)]
    low, high = min(picked), max(picked)
    if high - low <= 1e-6 * max(abs(high), abs(low)):
        return "▄" * len(picked)  # constant but for rounding
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * (v - low) / (high - low)))] for v in picked)


def chart(curves: Sequence[Sequence[float]], columns: int, rows: int) -> list[str]:
    """Curves over 0, 1, 2, … as lines of braille dots, with the values of the axis to the left; 0 is always on it."""
    low, high = min(0.0, *(min(c) for c in curves)), max(0.0, *(max(c) for c in curves))
    span = (high - low) or 1.0
    cells = [[0] * columns for _ in range(rows)]
    dots = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
    wide, tall = 2 * columns - 1, 4 * rows - 1

    def height(v: float) -> int:
        return round((high - v) / span * tall)

    for curve in curves:
        last = len(curve) - 1
        before = None
        for x in range(wide + 1):
            at = x * last / wide
            left = min(int(at), last - 1) if last else 0
            value = curve[left] + (curve[min(left + 1, last)] - curve[left]) * (at - left)
            y = height(value)
            for filled in range(min(y, y if before is None else before), max(y, y if before is None else before) + 1):
                cells[filled // 4][x // 2] |= dots[filled % 4][x % 2]
            before = y
    zero = height(0.0) // 4
    names = {0: high, rows - 1: low, zero: 0.0}
    margin = max(len(f"{v:.1f}") for v in names.values())
    return [
        f"{f'{names[r]:.1f}' if r in names else '':>{margin}} {'┤' if r in names else '│'}"
        + "".join(chr(0x2800 + c) for c in line).rstrip("\u2800")
        for r, line in enumerate(cells)
    ]
