"""What a rotary module of a live model computes, found by running it at a few positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.hf.semantics import Columns, NotServedError

ENDING = "inv_freq"
TRIED_AT = (0, 1, 2, 5)
"""Positions at which a module's tables are compared: short, so that nothing that depends on the length wakes up."""


@dataclass(frozen=True)
class Tabled:
    """What one kind of layer of a rotary module computes: from which frequencies, in which form."""

    label: str
    inv_freq: Tensor
    factor: float
    """What cos and sin are multiplied by."""
    columns: Columns
    axes: tuple[int, ...] | None
    """The axis that each pair follows, for modules that take positions with three."""


def labels_of(module: nn.Module) -> list[str]:
    """The types of layers for which a module has frequencies of its own; `[""]` for all alike, `[]` for none."""
    names = [n for n, _ in module.named_buffers(recurse=False) if n.endswith(ENDING) and "original_" not in n]
    return [n.removesuffix(ENDING).removesuffix("_") for n in names]


def try_out(module: nn.Module, label: str) -> Tabled:
    """Run a rotary module at a few positions, and tell what it computes.

    Raises:
        NotServedError: nothing that is known here.
    """
    name = f"{label}_{ENDING}" if label else ENDING
    buffer = getattr(module, name)
    if buffer.dim() != 1 or buffer.device.type == "meta":
        raise NotServedError(f"its frequencies have shape {tuple(buffer.shape)} on {buffer.device}")
    with _as_it_was(module):
        return _try_out(module, label, name)


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Undo what running a module changes in it: frequencies that depend on the length are made anew, or in place."""
    before, names = dict(module.__dict__), dict(module._buffers)
    kept = {n: (b, b.clone()) for n, b in module._buffers.items() if b is not None}
    try:
        yield
    finally:
        module.__dict__.clear()
        module.__dict__.update(before)
        module._buffers.clear()
        module._buffers.update(names)
        for n, (buffer, values) in kept.items():
            module._buffers[n] = buffer.copy_(values)


def _try_out(module: nn.Module, label: str, name: str) -> Tabled:
    buffer = getattr(module, name)
    options = {"layer_type": label} if label else {}
    x = torch.zeros(1, 1, 1, device=buffer.device)

    def run(ids: Tensor) -> Any:
        with torch.no_grad():
            return module(x, ids.to(buffer.device), **options)

    line = torch.tensor([TRIED_AT])
    try:
        got = run(line)
    except Exception as error:
        raise NotServedError(f"it does not take positions of shape (1, tokens): {error}") from None
    inv_freq = getattr(module, name).detach().to("cpu", torch.float64)  # as it is after that
    cos, sin, complex_table = _parts(got)
    factor = float(cos.flatten()[0])
    angle = line[..., None].double() * inv_freq
    columns = _form(cos, sin, angle, factor, complex_table)
    if columns is None:
        raise NotServedError("its tables are not the cosines and sines of position times frequency")
    return Tabled(label, inv_freq, factor, columns, _axes(run, inv_freq, factor, columns))


def _parts(got: Any) -> tuple[Tensor, Tensor, bool]:
    if isinstance(got, Tensor) and got.is_complex():
        return got.real.cpu().double(), got.imag.cpu().double(), True
    if isinstance(got, tuple) and len(got) == 2 and all(isinstance(t, Tensor) for t in got):
        return got[0].cpu().double(), got[1].cpu().double(), False
    raise NotServedError("it gives something else than a cosine and a sine")


def _form(cos: Tensor, sin: Tensor, angle: Tensor, factor: float, complex_table: bool) -> Columns | None:
    forms: tuple[Columns, ...] = ("complex",) if complex_table else ("doubled", "repeated", "single")
    for form in forms:
        wide = spread(angle, form)
        if all(
            t.shape == wide.shape and torch.allclose(t, f(wide) * factor, atol=1e-4)
            for t, f in ((cos, torch.cos), (sin, torch.sin))
        ):
            return form
    return None


def _axes(run: Callable[[Tensor], Any], inv_freq: Tensor, factor: float, columns: Columns) -> tuple[int, ...] | None:
    """Which of three axes each pair follows, found by trying; None for a module that takes one."""
    ids = torch.tensor([[[3, 40, 7]], [[11, 5, 90]], [[64, 21, 2]]])
    try:
        cos, _, _ = _parts(run(ids))
    except Exception:  # it takes one axis
        return None
    narrow = cos.chunk(2, dim=-1)[0] if columns == "doubled" else cos[..., ::2] if columns == "repeated" else cos
    if narrow.shape != (1, 3, len(inv_freq)):
        return None
    off = [(narrow - torch.cos(ids[a][..., None].double() * inv_freq) * factor).abs().amax((0, 1)) for a in range(3)]
    nearest = torch.stack(off).min(dim=0)
    if float(nearest.values.max()) > 1e-4:
        raise NotServedError("its pairs follow several axes in a way that is not known here")
    return tuple(nearest.indices.tolist())


def spread(t: Tensor, columns: Columns) -> Tensor:
    """One column a pair to the columns that a model has."""
    if columns == "doubled":
        return torch.cat((t, t), dim=-1)
    return t.repeat_interleave(2, dim=-1) if columns == "repeated" else t
