"""What the rotation is meant to reach on one thread, and what it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.benchmark.grid import judged


@dataclass(frozen=True)
class Target:
    """A ratio of times and its limit.

    Attributes:
        part: of the benchmark.
        dtype: of the activations.
        length: tokens.
        contender: whose time it is.
        over: by whose time it is divided.
        limit: the largest ratio that is good enough.
        device: cpu or cuda.
    """

    part: str
    dtype: str
    length: int
    contender: str
    over: str
    limit: float
    device: str = "cpu"


def _rotation(dtype: str, length: int, contender: str, **limits: float) -> list[Target]:
    return [Target("rotation", dtype, length, contender, over, limit) for over, limit in limits.items()]


TARGETS: tuple[Target, ...] = (
    *_rotation("bfloat16", 1, "new", hf=0.12),
    *_rotation("bfloat16", 1, "in place", hf=0.07),
    *_rotation("float32", 4096, "in place", hf=0.05, copy_=0.80),
    *_rotation("float32", 4096, "out=", hf=0.05, copy_=0.80),
    *_rotation("bfloat16", 4096, "in place", hf=0.14, copy_=0.95),
    *_rotation("bfloat16", 4096, "out=", hf=0.14, copy_=0.95),
    *_rotation("float32", 4096, "new", copy_=1.8, clone=0.6),
    *(Target("trained", dtype, 4096, "new", "hf", 0.10) for dtype in ("float32", "bfloat16", "float16")),
    Target("norm", "bfloat16", 4096, "fused", "hf", 0.04),
    Target("cache", "bfloat16", 1, "into the cache", "hf", 0.08),
    Target("cache", "bfloat16", 4096, "into the cache", "hf", 0.14),
    Target("angles", "float32", 4096, "exact", "hf", 0.7),
    Target("decode", "bfloat16", 1, "query_key", "hf", 0.12),
    Target("decode", "bfloat16", 1, "in place", "hf", 0.07),
    *(
        Target("rotation", dtype, 32768, contender, "copy_", 1 / 0.9, "cuda")  # 0.9 of a copy's bandwidth
        for dtype in ("float32", "bfloat16")
        for contender in ("in place", "out=")
    ),
)


def judge(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every target with the ratios measured, by layout, as `judged` has them."""
    return judged(TARGETS, lambda target: _measured(target, cells))


def _measured(target: Target, cells: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for cell in cells:
        here = (cell["part"], cell["dtype"], cell["length"], cell["threads"], cell.get("device", "cpu"))
        if here == (target.part, target.dtype, target.length, 1, target.device):
            for row in cell["rows"]:
                if row["contender"] == target.contender and target.over in row.get("over", {}):
                    yield row["layout"], row["over"][target.over]["median"]
