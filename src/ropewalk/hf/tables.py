"""A model's cos and sin, as the rotation takes them: float32, one column a pair, made once for all layers."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.hf.semantics import Columns

KEPT = 4
"""How many tables are remembered: models with several kinds of layers make two in each forward pass."""


class Tables:
    """Turns tables of any known form into one column a pair, and remembers the last ones by identity.

    All layers of a forward pass are handed the same tensors, so the work is done for the first of them.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[Any, ...], ...] = ()
        self._checked: set[Columns] = set()

    def columns(self, cos: Tensor, sin: Tensor, form: Columns, work: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine, `(…, pairs)` of dtype `work`, from a model's tables (for complex ones, twice the same).

        Raises:
            ValueError: the two columns of a pair differ, so that this is no rotation.
        """
        if is_compiling() or cos.requires_grad or sin.requires_grad:
            return _cut(cos, sin, form, work)
        state = (form, work, _version(cos), _version(sin))
        for cos_ref, sin_ref, kept, made in self._last:
            if cos_ref() is cos and sin_ref() is sin and kept == state:
                return made  # type: ignore[no-any-return]
        if form not in self._checked:
            _check(cos, sin, form)
            self._checked.add(form)
        made = _cut(cos, sin, form, work)
        self._last = ((weakref.ref(cos), weakref.ref(sin), state, made), *self._last[: KEPT - 1])
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"_last": (), "_checked": set()}  # a copy of the model remembers nothing


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _cut(cos: Tensor, sin: Tensor, form: Columns, work: torch.dtype) -> tuple[Tensor, Tensor]:
    if form == "complex":
        cos, sin = cos.real, sin.imag
    elif form == "stacked":
        sin, cos = sin.chunk(2, dim=-1)[0], cos.chunk(2, dim=-1)[1]
    elif form == "doubled":
        pairs = cos.shape[-1] // 2
        cos, sin = cos[..., :pairs], sin[..., :pairs]
    elif form == "repeated":
        cos, sin = cos[..., ::2], sin[..., ::2]
    cos, sin = cos.to(work), sin.to(work)
    if cos.stride(-1) == 1 and cos.stride() == sin.stride():
        return cos, sin
    return cos.contiguous(), sin.contiguous()


def _check(cos: Tensor, sin: Tensor, form: Columns) -> None:
    for t in (cos, sin):
        if form == "doubled":
            a, b = t.chunk(2, dim=-1)
        elif form == "repeated":
            a, b = t[..., ::2], t[..., 1::2]
        else:
            continue
        if not torch.equal(a, b):
            raise ValueError(
                f"the tables of this model were expected {form}, each pair with two equal columns, and are not: "
                "this is no rotation that ropewalk takes over; call uninstall()"
            )
