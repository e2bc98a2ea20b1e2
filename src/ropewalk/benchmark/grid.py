"""One cell after the other: what every benchmark does, whatever its cells are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

import torch

from ropewalk.benchmark.timing import Patience


class AnyCell(Protocol):
    """A dataclass whose fields say all that is measured."""

    @property
    def threads(self) -> int:
        """How many."""


C = TypeVar("C", bound=AnyCell)


def one_by_one(
    cells: Sequence[C],
    rows: Callable[[C], list[dict[str, Any]]],
    patience: Patience,
    earlier: Sequence[dict[str, Any]] = (),
) -> Iterator[tuple[C, dict[str, Any]]]:
    """Measure cell by cell; each comes with its entry in the document. What `earlier` has already is not repeated.

    Args:
        cells: in the order in which they are measured.
        rows: measures one.
        patience: with which it does.
        earlier: entries of cells, of an earlier document of the same machine.
    """
    before = torch.get_num_threads()
    try:
        for cell in cells:
            asked = {**_plain(asdict(cell)), "patience": asdict(patience)}  # type: ignore[call-overload]
            known = next((e for e in earlier if {name: e.get(name) for name in asked} == asked), None)
            if known is None:
                torch.set_num_threads(cell.threads)
                known = {**asked, "rows": rows(cell)}
            yield cell, known
    finally:
        torch.set_num_threads(before)


def wrong(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The contenders whose results were not right, each with its cell; they were not timed."""
    return [{**cell, **row} for cell in cells for row in cell["rows"] if "error" in row]


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def judged(targets: Iterable[Any], measured: Callable[[Any], Iterable[tuple[str, float]]]) -> list[dict[str, Any]]:
    """Every target with what was measured for it, by name, and whether the largest is within the limit.

    `met` is None where nothing was measured.
    """
    found = []
    for target in targets:
        reached = dict(measured(target))
        met = max(reached.values()) <= target.limit if reached else None
        found.append({**asdict(target), "measured": reached, "met": met})
    return found
