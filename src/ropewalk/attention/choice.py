"""Which path serves a call, and why: one decision, which `attend` takes and `explain` tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.attention import blocks, flex, reference, sdpa, strip
from ropewalk.attention.call import Call

Impl = Literal["auto", "reference", "sdpa", "strip", "blocks", "flex"]

Path = tuple[Callable[[Call], "str | None"], Callable[[Call], Tensor]]

PATHS: dict[str, Path] = {
    "sdpa": (sdpa.refuses, sdpa.run),
    "strip": (strip.refuses, strip.run),
    "flex": (flex.refuses, flex.run),
    "blocks": (blocks.refuses, blocks.run),
    "reference": (reference.refuses, reference.run),
}
"""What each path refuses and how it runs, in the order in which `auto` asks them."""

REASONS = {
    "sdpa": "the encoding leaves scores alone, so PyTorch's fused attention serves it after the rotation",
    "strip": "the bias depends on the distance only: 2n - 1 numbers a head, which fused attention takes as a view",
    "flex": "FlexAttention compiles the bias into its kernel",
    "blocks": "blocks of query rows, each over the keys it sees; the backward pass computes them again",
    "reference": "blocks of query rows over all keys",
}


@dataclass(frozen=True)
class Explanation:
    """Which path serves a call of `attend`, and why not the others. Prints itself."""

    impl: str
    """The path."""
    reason: str
    """Why this one, and in what arithmetic."""
    refused: dict[str, str] = field(default_factory=dict)
    """What each path that was asked before it, and did not serve, said."""

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.impl}: {self.reason}", *(f"  not {name}: {why}" for name, why in self.refused.items())]
        )


def decide(call: Call, impl: str) -> Explanation:
    """The path for this call.

    Raises:
        ValueError: an unknown `impl`, or one that cannot serve this.
    """
    if impl not in get_args(Impl):
        raise ValueError(f"impl is one of {', '.join(get_args(Impl))}; got {impl!r}")
    if impl != "auto":
        why = PATHS[impl][0](call) or _nothing(call, impl)
        if why is not None:
            raise ValueError(f"impl={impl!r} cannot serve this: {why}; impl='auto' takes a path that can")
        return Explanation(impl, f"asked for; {REASONS[impl]}{_arithmetic(call, impl)}")
    refused: dict[str, str] = {}
    for name, (refuses, _) in PATHS.items():
        refusal = refuses(call) or _nothing(call, name) or _unfit(call, name)
        if refusal is None:
            break  # at the reference, if not before
        refused[name] = refusal
    return Explanation(name, REASONS[name] + _arithmetic(call, name), refused)


def _nothing(call: Call, name: str) -> str | None:
    if name != "reference" and 0 in (call.q.shape[0], call.q.shape[2], call.k.shape[2]):
        return "there are no queries or no keys"
    return None


def _unfit(call: Call, name: str) -> str | None:
    """Where a path would serve, but another is better."""
    device = call.q.device.type
    if name == "flex" and device != "cuda":
        return f"on the {device} it takes long to compile and is for inference only; ask for it by name"
    if name == "strip" and device == "cuda":
        return (
            "GPU kernels copy masks whose rows overlap in memory; ask for it by name where FlexAttention cannot serve"
        )
    return None


def _arithmetic(call: Call, name: str) -> str:
    dtype = sdpa.arithmetic(call) if name in ("sdpa", "flex") else call.work
    given = str(call.q.dtype).removeprefix("torch.")
    if dtype in (torch.float32, torch.float64):
        return f"; arithmetic {str(dtype).removeprefix('torch.')}, result {given}"
    return f"; products of {given} are summed in float32, weights rounded to {given}, result {given}"
