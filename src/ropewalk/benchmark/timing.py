"""Contenders of one benchmark, timed in turn in one process: whatever else the machine does falls on all of them."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

FEWEST_ROUNDS = 3
"""However long a round takes: below three, a median is none."""


class Wants(Protocol):
    """What a contender's results have to be."""

    def error(self, results: Sequence[Tensor], /) -> float:
        """How far they are off; infinite where they are something else altogether."""

    def allowed(self, contender: Contender, /) -> float:
        """How far they may be."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Attributes:
        name: as in the report.
        call: does the work once and returns its results.
        wanted: what these have to be.
        layout: of the rotation, where there is more than one.
        roundings: how many units in the last place of the dtype its arithmetic may be off.
        drift: further absolute error allowed, in units of the largest value; of float32 angles, say.
        prepare: what to do before the results are checked; not timed.
        repeated: however long it takes, as references are.
    """

    name: str
    call: Callable[[], Sequence[Tensor]]
    wanted: Wants
    layout: str = ""
    roundings: float = 0.0
    drift: float = 0.0
    prepare: Callable[[], object] | None = None
    repeated: bool = False


@dataclass(frozen=True)
class Patience:
    """How long to measure.

    Attributes:
        rounds: at most.
        bunch: seconds; shorter calls are timed several at once.
        cell: seconds all rounds together shall take; there are at least `FEWEST_ROUNDS`.
        once: seconds beyond which a call is not repeated, unless it is a reference: after the check it is timed once,
            over the references' medians.
    """

    rounds: int = 15
    bunch: float = 0.004
    cell: float = 4.0
    once: float = 2.0


Wait = Callable[[], object]
"""Called before the clock is read."""


def nothing() -> None:
    """Wait for nothing: on the CPU a call that returns is done."""


def settled(device: str) -> Wait:
    """What to wait for on a device: a GPU works on after its calls return."""
    return torch.cuda.synchronize if device == "cuda" else nothing


def measure(
    contenders: Sequence[Contender], references: Sequence[str], patience: Patience, wait: Wait = nothing
) -> list[dict[str, Any]]:
    """Check every contender, time those that are right, and give a row for each.

    Args:
        contenders: to measure.
        references: names of those to whose times all others are related.
        patience: how long.
        wait: called before the clock is read.

    A row has `contender`, `layout` and, if it was timed, `seconds` (the median of one call), `rounds`, `calls` (in each
    round) and `over`: for each reference the median, lowest and highest ratio of the times of one round. If its result
    was wrong, it has `error` and `allowed` instead.
    """
    rows, right, first = [], [], []
    for contender in contenders:
        row, seconds = check(contender, wait)
        rows.append(row)
        if "error" not in row:
            right.append((contender, row))
            first.append(seconds)
    always = [contender.repeated or contender.name in references for contender, _ in right]
    for n, (contender, _) in enumerate(right):
        if first[n] > patience.once and not always[n]:
            first[n] = once(contender.call, wait)  # the first may have waited for an import
    again = [n for n in range(len(right)) if first[n] <= patience.once or always[n]]
    bunches = in_turn([right[n][0].call for n in again], [first[n] for n in again], patience, wait)
    times = dict(zip(again, bunches, strict=True))
    base = {c.name: n for n, (c, _) in enumerate(right) if c.name in references}
    for n, (_, row) in enumerate(right):
        bunch = times.get(n, Bunch((first[n],), 1))
        over = {
            name: ratios(bunch.seconds, times[m].seconds if n in times else [statistics.median(times[m].seconds)])
            for name, m in base.items()
        }
        row |= {
            "seconds": statistics.median(bunch.seconds),
            "rounds": len(bunch.seconds),
            "calls": bunch.calls,
            "over": {name: over[name] for name in references if name in over},
        }
    return rows


def check(contender: Contender, wait: Wait = nothing) -> tuple[dict[str, Any], float]:
    """Its row, with the error if that is too large, and the seconds of its first call."""
    if contender.prepare is not None:
        contender.prepare()
    wait()
    start = time.perf_counter()
    results = contender.call()
    wait()
    seconds = time.perf_counter() - start
    error, allowed = contender.wanted.error(results), contender.wanted.allowed(contender)
    row: dict[str, Any] = {"contender": contender.name, "layout": contender.layout}
    if not error <= allowed:
        row |= {"error": error if math.isfinite(error) else None, "allowed": allowed}
    return row, seconds


@dataclass(frozen=True)
class Bunch:
    """Seconds of one call in each round, and how many calls a round had."""

    seconds: tuple[float, ...]
    calls: int


def in_turn(
    calls: Sequence[Callable[[], object]],
    first: Sequence[float],
    patience: Patience,
    wait: Wait = nothing,
) -> list[Bunch]:
    """Time all calls once a round, in a new order each round.

    Args:
        calls: already warm.
        first: seconds that each took when it was called first.
        patience: how long to measure.
        wait: called before the clock is read.
    """
    one = [
        once(call, wait) if seconds < patience.bunch else seconds for call, seconds in zip(calls, first, strict=True)
    ]
    counts = [max(1, math.ceil(patience.bunch / max(seconds, 1e-7))) for seconds in one]
    whole = sum(count * seconds for count, seconds in zip(counts, one, strict=True))
    rounds = min(patience.rounds, max(FEWEST_ROUNDS, int(patience.cell / max(whole, 1e-9))))
    found: list[list[float]] = [[] for _ in calls]
    order, shuffle = list(range(len(calls))), random.Random(0).shuffle
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle(order)
            for n in order:
                call, times = calls[n], range(counts[n])
                wait()
                start = time.perf_counter()
                for _ in times:
                    call()
                wait()
                found[n].append((time.perf_counter() - start) / counts[n])
    finally:
        gc.enable()
    return [Bunch(tuple(seconds), count) for seconds, count in zip(found, counts, strict=True)]


def once(call: Callable[[], object], wait: Wait = nothing) -> float:
    """Seconds of one call."""
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of the ratios of each round.

    >>> ratios([1.0, 2.0, 9.0], [2.0, 4.0, 6.0])
    {'median': 0.5, 'low': 0.5, 'high': 1.5}
    """
    found = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(found), "low": min(found), "high": max(found)}
