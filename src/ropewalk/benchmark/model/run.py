"""The grid of measurements of a whole model, and the document of their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ropewalk.benchmark.grid import one_by_one
from ropewalk.benchmark.machine import machine
from ropewalk.benchmark.model.cell import HEAD_DIM, HEADS, KEY_HEADS, LAYERS, VOCABULARY, WIDTH, Cell, model
from ropewalk.benchmark.model.oracle import wanted
from ropewalk.benchmark.model.ways import NAMES, Way
from ropewalk.benchmark.timing import Contender, Patience, measure, settled

SCHEMA = "ropewalk.bench.model/1"

REFERENCES = ("stock",)
"""To whose times all others are related."""

PARTS = ("prefill", "decode")

MODES = ("eager", "compiled")

ROUNDINGS = {"float32": 64, "bfloat16": 16}
"""By how many units in the last place of the largest a logit may be off: several times what the stock model is."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        lengths: tokens of the prompt.
        dtypes: of `DTYPES`.
        modes: of `MODES`.
        threads: numbers of threads.
        device: cpu or cuda.
        patience: how long.
    """

    lengths: tuple[int, ...]
    dtypes: tuple[str, ...]
    modes: tuple[str, ...]
    threads: tuple[int, ...]
    device: str = "cpu"
    patience: Patience = field(default_factory=Patience)

    def cells(self) -> list[Cell]:
        """In the order in which they are measured: what needs no compiler first."""
        return [
            Cell(part, mode, dtype, length, threads, self.device)
            for mode in self.modes
            for threads in self.threads
            for dtype in self.dtypes
            for length in sorted(self.lengths)
            for part in PARTS
        ]


def run(plan: Plan, earlier: Sequence[dict[str, Any]] = ()) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Measure cell by cell, as `one_by_one` does."""
    return one_by_one(plan.cells(), lambda cell: rows(cell, plan.patience), plan.patience, earlier)


def rows(cell: Cell, patience: Patience) -> list[dict[str, Any]]:
    """Every contender checked and timed; each row with its tokens per second."""
    torch._dynamo.reset()  # or else it stops compiling after eight
    found = measure(contenders(cell), REFERENCES, patience, settled(cell.device))
    done = cell.length if cell.part == "prefill" else 1
    for row in found:
        del row["layout"]
        if "seconds" in row:
            row["tokens_per_second"] = done / row["seconds"]
    return found


def contenders(cell: Cell) -> list[Contender]:
    """All of `NAMES`, with what each has to give."""
    made = model(cell)
    right = {rotates: wanted(cell, made, rotates=rotates) for rotates in (True, False)}
    drift = cell.length * torch.finfo(torch.float32).eps  # radians: angles of transformers are float32
    found = []
    for name in NAMES:
        call = Way(name, made).call(cell)
        found.append(
            Contender(
                name,
                call,
                right[name != "without"],
                roundings=ROUNDINGS[cell.dtype],
                drift=drift,
                prepare=call,  # compiles, and warms up
                repeated=True,
            )
        )
    return found


def document(plan: Plan, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All that is written as JSON."""
    shape = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "key_heads": KEY_HEADS, "head_dim": HEAD_DIM}
    return {"schema": SCHEMA, "machine": machine(), "model": shape | {"vocabulary": VOCABULARY}, "cells": list(cells)}


def share(rows: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """Of the stock model's time, what is gone where there is no rotation: median, lowest and highest of all rounds.

    None: nothing was measured.
    """
    over = {row["contender"]: row["over"]["stock"] for row in rows if row.get("over")}
    if "without" not in over:
        return None
    left = over["without"]
    return {"median": 1 - left["median"], "low": 1 - left["high"], "high": 1 - left["low"]}
