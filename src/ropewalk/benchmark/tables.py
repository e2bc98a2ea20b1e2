"""Tables that every benchmark prints, the machine in words, and numbers in few digits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ropewalk.benchmark.machine import PACKAGES
from ropewalk.language import Language, Say, speaker


@dataclass(frozen=True)
class Sheet:
    """A table: the first column names what stands in a row, numbers follow."""

    title: str
    header: list[str]
    rows: list[list[str]]


def ratio(value: float) -> str:
    """With three digits.

    >>> ratio(0.04567), ratio(1.234), ratio(12.34), ratio(123.4)
    ('0.046', '1.23', '12.3', '123')
    """
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.{int(value < 100)}f}"


def where(cell: dict[str, Any], say: Say) -> str:
    """On what a cell was measured."""
    threads = cell["threads"]
    if cell.get("device", "cpu") == "cuda":
        return "CUDA"
    return say(f"{threads} thread{'s' * (threads > 1)}", f"{threads} スレッド")


def machine_lines(m: dict[str, Any], language: Language) -> list[str]:
    """The machine, one line each: processor, instruction sets, versions."""
    say = speaker(language)
    versions = ", ".join(f"{name} {m[name]}" for name in ("ropewalk", "python", *PACKAGES) if m[name])
    size = "" if m["memory_gib"] is None else f", {m['memory_gib']} GiB"
    lines = [
        say(f"{m['processor']}, cores: {m['cores']}", f"{m['processor']}、コア数 {m['cores']}")
        + f"{size}, {m['system']}",
        say(
            f"instructions: {m['kernels']} (torch: {m['torch_kernels']}); huge pages: {m['pages'] or 'unknown'}",
            f"命令セット: {m['kernels']}（torch は {m['torch_kernels']}）、ヒュージページ: {m['pages'] or '不明'}",
        ),
        versions,
    ]
    return [*lines, m["gpu"]] if m["gpu"] else lines


def as_markdown(sheet: Sheet) -> str:
    """With its title as a heading."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = line(["---", *["---:"] * (len(sheet.header) - 1)])
    return "\n".join([f"## {sheet.title}", "", line(sheet.header), rule, *map(line, sheet.rows)])
