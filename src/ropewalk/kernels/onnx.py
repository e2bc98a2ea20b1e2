"""The rotation as ONNX has it, `RotaryEmbedding` of opset 23: what `torch.onnx.export` traces for the operators.

Each function here takes what the C++ operator of its name takes, and is made of operations that ONNX knows. The kernels
themselves are not needed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels import cpu

RADIANS = 2 * math.pi / 2**64
"""Phases are counted in 1/2⁶⁴ turns."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: int, seq_dim: int, first: int, inverse: bool) -> Tensor:
    """One `RotaryEmbedding`, in float32 whatever the dtype of x, and what brings x and its tables into its form."""
    if x.dtype == torch.float64:
        raise ValueError("ONNX's RotaryEmbedding knows no float64")
    axis = seq_dim % x.dim() - x.dim()
    moved = x if axis == -2 else x.movedim(axis, -2)
    if axis != -2 and cos.dim() == x.dim():
        cos, sin = cos.movedim(axis, -2), sin.movedim(axis, -2)
    heads, cos, sin = _in_its_form(moved, cos, sin)
    turning, width = heads[..., first:] if first else heads, 2 * cos.shape[-1]
    partial, count = turning.shape[-1] != width, heads.shape[1]
    turned = torch.onnx.ops.rotary_embedding(
        turning.float(),
        cos,
        -sin if inverse else sin,
        interleaved=layout == cpu.LAYOUTS["interleaved"],
        rotary_embedding_dim=width if partial else 0,
        num_heads=count if partial and isinstance(count, int) else 0,  # onnxruntime 1.23 wants it beside the width
    ).to(x.dtype)
    if first:
        turned = torch.cat((heads[..., :first], turned), dim=-1)
    if heads is not moved:
        turned = turned.reshape(moved.shape)
    return turned if axis == -2 else turned.movedim(-2, axis)


def _in_its_form(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`(B, heads, S, D)` and tables `(B, S, pairs)`: tables have no heads, x has both axes."""
    if cos.dim() == x.dim() and any(n != 1 for n in cos.shape[1:-2]):  # tables of each head: let heads be samples
        cos, sin = (t.expand(*x.shape[:-2], -1, -1).flatten(0, -3) for t in (cos, sin))
        return x.flatten(0, -3)[:, None], cos, sin
    cos, sin = (t[None] if t.dim() == 2 else t.flatten(0, -3) for t in (cos, sin))
    if x.dim() < 4:
        x = x[None, None] if x.dim() == 2 else x[:, None]
    elif x.dim() > 4:
        x = x.flatten(1, -3)
    if cos.shape[0] != x.shape[0]:
        cos, sin = (t.expand(x.shape[0], -1, -1) for t in (cos, sin))
    return x, cos, sin


def rotate_pair(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """One `RotaryEmbedding` for q and one for k."""
    return rotate(q, cos, sin, *how), rotate(k, cos, sin, *how)


def norm_rotate(x: Tensor, cos: Tensor, sin: Tensor, *rest: Any) -> Tensor:
    """`RMSNormalization`, then `RotaryEmbedding`, rounded once."""
    *how, weight, epsilon = rest
    normed = torch.nn.functional.rms_norm(x.to(cos.dtype), weight.shape, weight.to(cos.dtype), epsilon)
    return rotate(normed, cos, sin, *how).to(x.dtype)


def cos_sin(phases: Tensor, factor: float, double: bool) -> tuple[Tensor, Tensor]:
    """Cosine and sine, in float64 up to the last rounding."""
    angle = _times(phases.to(torch.float64), RADIANS)
    cos = 1 - 2 * (0.5 * angle).sin().square()  # onnxruntime 1.23 has the sine of float64, but not the cosine
    dtype = torch.float64 if double else torch.float32
    return _times(cos, factor).to(dtype), _times(angle.sin(), factor).to(dtype)


def _times(x: Tensor, number: float) -> Tensor:
    """Their product in two parts, since the exporter rounds plain numbers to float32."""
    high = ctypes.c_float(number).value
    return x * high if number == high else x * high + x * (number - high)


FORMS: dict[str, Callable[..., Any]] = {
    "rotate": rotate,
    "rotate_pair": rotate_pair,
    "norm_rotate": norm_rotate,
    "cos_sin": cos_sin,
}
"""By the name of the C++ operator."""


def trace(name: str, tensors: tuple[Tensor, ...], *rest: Any) -> Any:
    """What stands for the operator of that name in a graph."""
    if name not in FORMS:
        raise ValueError("in a graph for ONNX nothing is written in place")
    return FORMS[name](*tensors, *rest)


def onnx_decompositions() -> dict[Any, Callable[..., Any]]:
    """Turns our operators into ONNX's, in a program that `torch.export` captured beforehand.

    `torch.onnx.export(model, …, dynamo=True, opset_version=23)` needs none of this: where it traces the model itself, a
    rotation is a `RotaryEmbedding` from the start. A program that is already captured holds the C++ operators, which
    ONNX does not know (so does one that needs `strict=True`):

        program = torch.export.export(model, inputs).run_decompositions(rw.onnx_decompositions())
        torch.onnx.export(program, dynamo=True, opset_version=23)

    Empty where the kernels are not there, since no program holds them then.
    """
    return {cpu.OPERATORS[name]: form for name, form in FORMS.items() if name in cpu.OPERATORS}
