"""The grid of measurements of attention, and the document of their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.attention import explain
from ropewalk.benchmark.attention.cell import Cell, Work
from ropewalk.benchmark.attention.memory import Trial
from ropewalk.benchmark.attention.oracle import wanted
from ropewalk.benchmark.attention.targets import LONGEST_TRAINED, judge
from ropewalk.benchmark.attention.ways import Way, call, ways
from ropewalk.benchmark.grid import one_by_one
from ropewalk.benchmark.machine import machine
from ropewalk.benchmark.timing import Contender, Patience, measure, settled

SCHEMA = "ropewalk.bench.attention/1"

REFERENCES = ("plain",)
"""To whose times all others are related."""

PARTS = ("forward", "trained")

ROUNDINGS = {
    ("forward", "float32"): 16,
    ("forward", "bfloat16"): 2,
    ("trained", "float32"): 256,
    ("trained", "bfloat16"): 6,
}
"""By how many units in the last place of its largest value a result may be off: several times what PyTorch's own
attention is."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        encodings: names.
        lengths: tokens.
        dtypes: of `DTYPES`.
        threads: numbers of threads.
        backward: whether forward and backward are measured too; None: where that takes no minutes.
        device: cpu or cuda.
        patience: how long.
    """

    encodings: tuple[str, ...]
    lengths: tuple[int, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int, ...]
    backward: bool | None = None
    device: str = "cpu"
    patience: Patience = field(default_factory=Patience)

    def cells(self) -> list[Cell]:
        """In the order in which they are measured: short ones first."""
        return [
            Cell(part, encoding, dtype, length, threads, self.device)
            for threads in self.threads
            for length in sorted(self.lengths)
            for part in PARTS
            for dtype in self.dtypes
            for encoding in self.encodings
            if part == "forward" or self._trains(dtype, length)
        ]

    def _trains(self, dtype: str, length: int) -> bool:
        return self.backward or (self.backward is None and length <= LONGEST_TRAINED[dtype])


def run(plan: Plan, earlier: Sequence[dict[str, Any]] = ()) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Measure cell by cell, as `one_by_one` does."""
    with Trial() as trial:
        yield from one_by_one(plan.cells(), lambda cell: rows(cell, plan.patience, trial), plan.patience, earlier)


def rows(cell: Cell, patience: Patience, trial: Trial) -> list[dict[str, Any]]:
    """What every contender needs: first its memory, apart; then, of those that came back from there, the time."""
    work = Work.of(cell)
    found = ways(cell, work)
    measured = {name: trial(cell, name) for name in found}
    measured["attend"]["path"] = explain(work.encoding, work.q, work.k, work.v, work.positions).impl
    there = {name: way for name, way in found.items() if "skipped" not in measured[name]}
    for row in measure(_contenders(cell, work, there), REFERENCES, patience, settled(cell.device)):
        measured[row["contender"]] |= {name: value for name, value in row.items() if name != "layout"}
    return [{"contender": name, **row} for name, row in measured.items()]


def _contenders(cell: Cell, work: Work, there: dict[str, Way]) -> list[Contender]:
    right = {encoded: wanted(cell, work, encoded=encoded) for encoded in (False, True)}
    roundings, found = ROUNDINGS[cell.part, cell.dtype], []
    for name, way in there.items():
        done = call(cell, work, way)
        compiles = done if name == "flex" else None
        repeated = name == "attend"
        found.append(
            Contender(name, done, right[name != "plain"], roundings=roundings, prepare=compiles, repeated=repeated)
        )
    return found


def document(plan: Plan, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All that is written as JSON, with the verdict on each target."""
    return {"schema": SCHEMA, "machine": machine(), "cells": list(cells), "targets": judge(cells)}
