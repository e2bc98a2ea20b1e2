"""The rotation on a GPU, in Triton, behind the operators of cpu.py. Triton itself is imported when a tensor comes.

One program turns some heads of one token: it reads a row of cos and sin once, and each channel of those heads once.
Arithmetic is float32 (float64 for float64), rounded once. The gradient is the turn back, by the same kernel.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HEADS = 8
"""Heads that a program turns, at most."""

MAX_PAIRS = 1024


def refuses(name: str) -> str | None:
    """Why the operator of that name cannot serve CUDA tensors, or None."""
    if name not in SERVED:
        return f"{name} has no form for CUDA"
    return None if _installed() else "the tensors are on CUDA, and Triton is not installed (pip install triton)"


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def register() -> None:
    """Serve CUDA tensors behind the operators of the same names."""
    for name, serve in SERVED.items():
        torch.library.impl(f"ropewalk::{name}", "CUDA")(serve)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: int, seq_dim: int, first: int, inverse: bool) -> Tensor:
    """As the operator of that name."""
    return _turn(x, torch.empty_like(x), cos, sin, layout, seq_dim, first, inverse)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, layout: int, seq_dim: int, first: int, inverse: bool) -> None:
    """In place."""
    _turn(x, x, cos, sin, layout, seq_dim, first, inverse)


def rotate_out(
    x: Tensor, cos: Tensor, sin: Tensor, layout: int, seq_dim: int, first: int, inverse: bool, out: Tensor
) -> None:
    """Into `out`, of the shape and dtype of x."""
    if out.shape != x.shape or out.dtype != x.dtype:
        raise ValueError(f"out has the shape and dtype of x: {x.dtype} {tuple(x.shape)}, got {tuple(out.shape)}")
    _turn(x, out, cos, sin, layout, seq_dim, first, inverse)


def rotate_pair(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """Queries and keys at the same positions."""
    return rotate(q, cos, sin, *how), rotate(k, cos, sin, *how)


def rotate_pair_(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *how: Any) -> None:
    """In place."""
    rotate_(q, cos, sin, *how)
    rotate_(k, cos, sin, *how)


SERVED: dict[str, Callable[..., Any]] = {
    "rotate": rotate,
    "rotate_": rotate_,
    "rotate_out": rotate_out,
    "rotate_pair": rotate_pair,
    "rotate_pair_": rotate_pair_,
}
"""Which operators have a form here; the others are for the eager form."""


def _turn(
    x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: int, seq_dim: int, first: int, inverse: bool
) -> Tensor:
    axes = _axes(x, seq_dim)
    table = _axes_of_table(cos, x, axes)
    pairs, channels = cos.shape[-1], x.shape[-1]
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    for fits, message in (
        (x.is_floating_point() and cos.dtype == sin.dtype == work, f"x is floating, and cos and sin are {work}"),
        (cos.shape == sin.shape and cos.stride() == sin.stride(), "cos and sin have the same shape and strides"),
        (1 <= pairs <= MAX_PAIRS and first >= 0 and first + 2 * pairs <= channels, f"{pairs} pairs of {channels} turn"),
        (
            all(t.stride(-1) == 1 or t.shape[-1] == 1 or not t.numel() for t in (x, y, cos, sin)),
            "the last axis is contiguous",
        ),
    ):
        if not fits:
            raise ValueError(f"ropewalk: {message}")
    sizes = [1 if axis is None else x.shape[axis] for axis in axes]
    if x.numel() == 0:
        return y
    batch, heads, tokens = sizes
    kernel, next_power = _kernel()
    at_once = min(HEADS, next_power(heads))
    rest = channels - 2 * pairs if x.data_ptr() != y.data_ptr() else 0
    options = {} if os.environ.get("TRITON_INTERPRET") == "1" else {"enable_fp_fusion": True}
    with torch.cuda.device_of(x):
        kernel[(batch * tokens, -(-heads // at_once))](
            *(x, y, cos, sin, tokens, heads),
            *(_stride(x, axis) for axis in axes),
            *(_stride(y, axis) for axis in axes),
            *(_stride(cos, axis) for axis in table),
            *(pairs, first, rest),
            SIGN=-1 if inverse else 1,
            INTERLEAVED=layout == 1,
            DOUBLE=work == torch.float64,
            TABLE_OF_HEADS=_stride(cos, table[1]) != 0,
            HEADS=at_once,
            PAIRS=next_power(pairs),
            REST=next_power(max(rest, 1)),
            **options,
        )
    return y


Axes = tuple[int | None, int | None, int | None]
"""Batch, heads and tokens; None where there is no such axis."""


def _axes(x: Tensor, seq_dim: int) -> Axes:
    """The tokens' axis is named, the others keep their order."""
    tokens = seq_dim % x.dim()
    if not 2 <= x.dim() <= 4 or tokens == x.dim() - 1:
        raise ValueError(f"ropewalk: x has 2 to 4 axes, the last for channels, got {tuple(x.shape)}, seq_dim {seq_dim}")
    others: list[int | None] = [axis for axis in range(x.dim() - 1) if axis != tokens]
    batch, heads = [None] * (2 - len(others)) + others
    return batch, heads, tokens


def _axes_of_table(cos: Tensor, x: Tensor, axes: Axes) -> Axes:
    """All of x's axes, or (tokens, pairs), or (batch, tokens, pairs)."""
    batch, heads, tokens = axes
    found: Axes = axes
    if cos.dim() == 2 and x.dim() != 2:
        found = None, None, 0
    elif cos.dim() == 3 and x.dim() != 3:
        found = 0, None, 1
    elif cos.dim() != x.dim():
        raise ValueError(f"ropewalk: cos {tuple(cos.shape)} does not fit x {tuple(x.shape)}")
    for axis, of_table in zip((batch, heads, tokens), found, strict=True):
        size = 1 if axis is None else x.shape[axis]
        if of_table is not None and cos.shape[of_table] not in (size, 1 if axis != tokens else size):
            raise ValueError(f"ropewalk: cos {tuple(cos.shape)} does not fit x {tuple(x.shape)}")
    return found


def _stride(t: Tensor, axis: int | None) -> int:
    return 0 if axis is None or t.shape[axis] == 1 else t.stride(axis)


@functools.cache
def _kernel() -> tuple[Any, Any]:
    """The kernel, compiled when it is first launched, and `triton.next_power_of_2`."""
    import triton
    import triton.language as tl

    @triton.jit
    def turn(
        x,
        y,
        cos,
        sin,
        tokens,
        heads,
        x_batch,
        x_head,
        x_token,
        y_batch,
        y_head,
        y_token,
        table_batch,
        table_head,
        table_token,
        pairs,
        first,
        rest,
        SIGN: tl.constexpr,
        INTERLEAVED: tl.constexpr,
        DOUBLE: tl.constexpr,
        TABLE_OF_HEADS: tl.constexpr,
        HEADS: tl.constexpr,
        PAIRS: tl.constexpr,
        REST: tl.constexpr,
    ):
        batch = (tl.program_id(0) // tokens).to(tl.int64)
        token = (tl.program_id(0) % tokens).to(tl.int64)
        head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        pair = tl.arange(0, PAIRS)[None, :]
        here = (head < heads) & (pair < pairs)
        work: tl.constexpr = tl.float64 if DOUBLE else tl.float32

        row = batch * table_batch + token * table_token + pair
        if TABLE_OF_HEADS:
            c = tl.load(cos + row + head * table_head, mask=here, other=0.0)
            s = tl.load(sin + row + head * table_head, mask=here, other=0.0) * SIGN
        else:
            c = tl.load(cos + row, mask=pair < pairs, other=0.0)
            s = tl.load(sin + row, mask=pair < pairs, other=0.0) * SIGN

        from_x = x + batch * x_batch + token * x_token + head * x_head
        to_y = y + batch * y_batch + token * y_token + head * y_head
        if INTERLEAVED:
            channel = tl.arange(0, 2 * PAIRS)[None, :]
            inside = (head < heads) & (channel < 2 * pairs)
            both = tl.load(from_x + first + channel, mask=inside, other=0.0).to(work)
            a, b = tl.split(tl.reshape(both, (HEADS, PAIRS, 2)))
            turned = tl.reshape(tl.join(a * c - b * s, b * c + a * s), (HEADS, 2 * PAIRS))
            tl.store(to_y + first + channel, turned.to(y.dtype.element_ty), mask=inside)
        else:
            a = tl.load(from_x + first + pair, mask=here, other=0.0).to(work)
            b = tl.load(from_x + first + pairs + pair, mask=here, other=0.0).to(work)
            tl.store(to_y + first + pair, (a * c - b * s).to(y.dtype.element_ty), mask=here)
            tl.store(to_y + first + pairs + pair, (b * c + a * s).to(y.dtype.element_ty), mask=here)
        if rest > 0:  # the channels that do not turn, before `first` and after the pairs
            other = tl.arange(0, REST)[None, :]
            other = tl.where(other < first, other, other + 2 * pairs)
            passes = (head < heads) & (tl.arange(0, REST)[None, :] < rest)
            tl.store(to_y + other, tl.load(from_x + other, mask=passes), mask=passes)

    return turn, triton.next_power_of_2
