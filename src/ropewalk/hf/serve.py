"""The function that takes the place of a model's own rotation: same arguments, same results, one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.hf.semantics import Semantics, Signature, halves
from ropewalk.hf.tables import Tables
from ropewalk.rotation import Impl, rotate, rotate_pair

Function = Callable[..., Any]


def serve(original: Function, s: Semantics, tables: Tables, *, impl: Impl = "auto", turns: bool = True) -> Function:
    """What takes the place of `original`, which has these semantics.

    Args:
        original: the model's own function.
        s: what it does.
        tables: remembers tables; shared by all functions of a model.
        impl: as in `rotate`.
        turns: False makes it the identity.
    """
    signature = Signature.of(original)
    roles, names = signature.roles, signature.names
    extra = {n: d for n, d in signature.defaults.items() if n not in roles.values()}
    if "v" in roles and not s.turns_values:
        extra[roles["v"]] = None
    q_name, k_name, v_name = roles["q"], roles.get("k", ""), roles.get("v", "")
    cos_name, sin_name = roles.get("cos", roles.get("table", "")), roles.get("sin", roles.get("table", ""))
    axis_name = roles.get("unsqueeze_dim", "")
    axis_default = signature.defaults.get(axis_name, 1)

    def turned(x: Tensor, cos: Tensor, sin: Tensor, seq_dim: int) -> Tensor:
        if s.last_rows and cos.shape[-2] != x.shape[seq_dim]:
            cos, sin = cos[..., -x.shape[seq_dim] :, :], sin[..., -x.shape[seq_dim] :, :]
        skipped = x.shape[seq_dim] - cos.shape[-2] if s.skips_prefix else 0
        rest = x.narrow(seq_dim, skipped, x.shape[seq_dim] - skipped) if skipped else x
        out = rotate(rest, cos, sin, layout=s.layout, seq_dim=seq_dim, place=s.place, inverse=s.inverse, impl=impl)
        if s.emits_half:
            out = halves(out)
        return torch.cat((x.narrow(seq_dim, 0, skipped), out), dim=seq_dim) if skipped else out

    plain = not (s.emits_half or s.skips_prefix or s.last_rows)

    def rotated(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        for name, default in extra.items():
            if given.get(name, default) is not default:
                return original(*args, **kwargs)  # a manner of calling that was not tried
        q, k, v = given[q_name], given.get(k_name), given.get(v_name)
        if not turns:
            return _results(s, bool(k_name), q, k, v)
        work = torch.float64 if q.dtype == torch.float64 else torch.float32
        cos, sin = tables.columns(given[cos_name], given[sin_name], s.columns, work)
        if s.picks_rows:
            cos, sin = cos[given["position_ids"]], sin[given["position_ids"]]
        if 2 * cos.shape[-1] != q.shape[-1] and not s.partial:
            return original(*args, **kwargs)  # which says what is wrong
        seq_dim, cos, sin = placed(q, cos, sin, s, given.get(axis_name, axis_default))
        if k is not None and v is None and plain and q.dtype == k.dtype:
            return rotate_pair(
                q, k, cos, sin, layout=s.layout, seq_dim=seq_dim, place=s.place, inverse=s.inverse, impl=impl
            )
        return _results(s, bool(k_name), *(None if x is None else turned(x, cos, sin, seq_dim) for x in (q, k, v)))

    return rotated


def placed(x: Tensor, cos: Tensor, sin: Tensor, s: Semantics, axis: int) -> tuple[int, Tensor, Tensor]:
    """Which axis of `x` counts tokens, and tables in a shape that `rotate` takes."""
    if s.heads == "none":
        return -2, cos, sin
    dims = cos.dim() + 1
    at = {"given": axis % dims, "last": dims - 2, "second": 1}[s.heads]
    seq_dim = -3 if at == dims - 2 else -2
    if (dims == x.dim() and at in (1, dims - 2) and dims in (3, 4)) or (seq_dim == -3 and cos.dim() == 2):
        return seq_dim, cos, sin  # rotate puts that axis where it belongs
    return seq_dim, cos.unsqueeze(at), sin.unsqueeze(at)


def _results(s: Semantics, keyed: bool, q: Any, k: Any, v: Any) -> Any:
    if not keyed:
        return q
    if v is not None:
        return q, k, v
    return q if k is None and s.without_key == "alone" else (q, k)
