"""The grid of measurements: which cells there are, one after the other, and the document of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.benchmark import neighbours, rotation
from ropewalk.benchmark.grid import one_by_one
from ropewalk.benchmark.machine import machine
from ropewalk.benchmark.peers import absent
from ropewalk.benchmark.rotation import LONGEST_FOR_ALL, Cell
from ropewalk.benchmark.targets import judge
from ropewalk.benchmark.timing import Contender, Patience, measure, settled
from ropewalk.rotation import Layout

SCHEMA = "ropewalk.bench.rotation/1"

REFERENCES = ("hf", "copy_", "clone")
"""To whose times all others are related."""

PARTS: dict[str, Callable[[Cell], list[Contender]]] = {
    "rotation": rotation.forward,
    "trained": rotation.trained,
    "norm": neighbours.norm,
    "cache": neighbours.cache,
    "angles": neighbours.angles,
    "decode": neighbours.decode,
}
"""What is measured, and who makes its contenders."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        lengths: tokens.
        dtypes: of `DTYPES`.
        layouts: of the rotation.
        threads: numbers of threads.
        peers: of `PEERS`.
        backward: whether forward and backward are measured too.
        patience: how long.
        device: cpu or cuda, where there is the rotation and its training only.
    """

    lengths: tuple[int, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[Layout, ...]
    threads: tuple[int, ...]
    peers: tuple[str, ...]
    backward: bool = True
    patience: Patience = field(default_factory=Patience)
    device: str = "cpu"

    def skipped(self) -> list[dict[str, str]]:
        """The peers that cannot take part, each with the reason."""
        return [
            {"contender": peer, "why": why} for peer in self.peers if (why := absent(peer, self.device)) is not None
        ]

    def cells(self) -> list[Cell]:
        """In the order in which they are measured: what is compiled once stands together."""
        there = tuple(peer for peer in self.peers if absent(peer, self.device) is None)
        found = []
        for threads in self.threads:
            for dtype in self.dtypes:
                for part in PARTS:
                    found += [
                        Cell(
                            part,
                            "float32" if part == "angles" else dtype,
                            length,
                            threads,
                            self.layouts,
                            there,
                            self.device,
                        )
                        for length in self.lengths
                        if self._has(part, dtype, length)
                    ]
        return found

    def _has(self, part: str, dtype: str, length: int) -> bool:
        if part == "trained":
            return self.backward
        if self.device == "cuda":
            return part == "rotation"
        if part == "angles":
            return dtype == self.dtypes[0]  # once: they are float32 whatever the activations are
        if part == "decode":
            return length == 1
        return part == "rotation" or length <= LONGEST_FOR_ALL


def run(plan: Plan, earlier: Sequence[dict[str, Any]] = ()) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Measure cell by cell, as `one_by_one` does."""

    def rows(cell: Cell) -> list[dict[str, Any]]:
        return measure(PARTS[cell.part](cell), REFERENCES, plan.patience, settled(cell.device))

    return one_by_one(plan.cells(), rows, plan.patience, earlier)


def document(plan: Plan, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All that is written as JSON, with the verdict on each target."""
    return {
        "schema": SCHEMA,
        "machine": machine(),
        "skipped": plan.skipped(),
        "cells": list(cells),
        "targets": judge(cells),
    }
