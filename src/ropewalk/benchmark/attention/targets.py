"""What attention is meant to reach, and what it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.benchmark.grid import judged

LONGEST_TRAINED = {"float32": 8192, "bfloat16": 4096}
"""Tokens up to which training is measured unless it is asked for: plain attention's backward pass takes minutes."""


@dataclass(frozen=True)
class Target:
    """A limit for `attend`.

    Attributes:
        part: of the benchmark.
        encoding: with which.
        dtype: of the activations.
        length: tokens.
        over: `plain` or `materialised`, by whose time ours is divided; or `memory`, the extra MiB.
        limit: the largest number that is good enough.
    """

    part: str
    encoding: str
    dtype: str
    length: int
    over: str
    limit: float


def _biases() -> Iterator[Target]:
    for encoding in ("alibi", "t5"):
        for dtype, limit in (("float32", 1.45), ("bfloat16", 1.25)):
            yield Target("forward", encoding, dtype, 8192, "plain", limit)
            yield Target("forward", encoding, dtype, 8192, "materialised", 0.25)
            yield Target("forward", encoding, dtype, 8192, "memory", 64)
            yield Target("trained", encoding, dtype, LONGEST_TRAINED[dtype], "plain", 2.0)


def _shaw() -> Iterator[Target]:
    for dtype in ("float32", "bfloat16"):
        for length in (1024, 4096):  # beyond, the materialised form needs tens of GiB
            yield Target("forward", "shaw", dtype, length, "materialised", 1 / 3)


def _long() -> Iterator[Target]:
    for part in ("forward", "trained"):
        for encoding in ("alibi", "t5", "kerple", "shaw"):
            for dtype in ("float32", "bfloat16"):
                yield Target(part, encoding, dtype, 16384, "memory", 1024)


TARGETS: tuple[Target, ...] = (*_biases(), *_shaw(), *_long())


def judge(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every target with what the CPU reached, by number of threads, as `judged` has them."""
    return judged(TARGETS, lambda target: _measured(target, cells))


def _measured(target: Target, cells: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for cell in cells:
        here = (cell["part"], cell["encoding"], cell["dtype"], cell["length"], cell["device"])
        if here == (target.part, target.encoding, target.dtype, target.length, "cpu"):
            value = quantity(target.over, {row["contender"]: row for row in cell["rows"]})
            if value is not None:
                yield str(cell["threads"]), value


def quantity(over: str, rows: dict[str, dict[str, Any]]) -> float | None:
    """Of `attend`: extra MiB, or its median time over that of another."""
    ours = rows.get("attend", {})
    if over == "memory":
        extra = ours.get("extra_bytes")
        return None if extra is None else extra / 2**20
    others = rows.get(over, {})
    if not ours.get("over") or not others.get("over"):
        return None
    return float(ours["over"]["plain"]["median"] / others["over"]["plain"]["median"])
