"""The reference: attention written to be read, in blocks of query rows. All other paths are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.attention.call import Call
from ropewalk.attention.masks import Mask, by_head, visible
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import PositionalEncoding


def refuses(call: Call) -> str | None:
    """Serves everything."""
    return None


def run(call: Call) -> Tensor:
    """All keys at once for each block of rows, so O(block · keys) memory; in training O(queries · keys)."""
    work, groups = call.work, call.q.shape[1] // call.k.shape[1]
    k = call.k.to(work).repeat_interleave(groups, dim=1)
    v = call.v.to(work).repeat_interleave(groups, dim=1)
    size = call.block or 1024
    rows = [slice(start, start + size) for start in range(0, call.q.shape[2], size)] or [slice(0, 0)]
    out = [_attend_rows(call, call.q[:, :, r].to(work), k, v, call.positions[r]) for r in rows]
    return torch.cat(out, dim=2).to(call.q.dtype)


def scores(
    q: Tensor,
    k: Tensor,
    encoding: PositionalEncoding,
    positions: PositionsLike,
    key_positions: PositionsLike,
    *,
    causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """What attention takes the softmax of: `(B, heads, Q, K)`, -inf where a query may not look.

    `q` and `k` are encoded already (`encoding.query_key`) and have the same number of heads.
    """
    pos, key_pos = Positions.of(positions), Positions.of(key_positions)
    scale = q.shape[-1] ** -0.5 * encoding.softmax_multiplier if scale is None else scale
    return _scores(q, k, encoding, pos, key_pos, Mask(causal), scale)


def _scores(
    q: Tensor, k: Tensor, encoding: PositionalEncoding, pos: Positions, key_pos: Positions, mask: Mask, scale: float
) -> Tensor:
    i, j = by_head(pos.ids)[..., :, None], by_head(key_pos.ids)[..., None, :]
    seen = visible(pos, key_pos, mask)
    # Autocast would lower this product to half precision, and with it the sums that a score hook makes of it.
    with torch.autocast(q.device.type, enabled=False):
        s = (q @ k.mT) * scale
        # Masked before the hook, since one that sums over keys must not count the future;
        # and after, since a hook may return fresh scores.
        s = encoding.score(s.masked_fill(~seen, -torch.inf), q, k, i, j, scale)
    return s.masked_fill(~seen, -torch.inf)


def _attend_rows(call: Call, q: Tensor, k: Tensor, v: Tensor, pos: Positions) -> Tensor:
    key_pos = call.key_positions
    s = _scores(q, k, call.encoding, pos, key_pos, call.mask, call.scale)  # (B, H, Q, K)
    blind = (s == -torch.inf).all(-1, keepdim=True)  # rows that see nothing, whose softmax would be NaN
    w = s.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    with torch.autocast(q.device.type, enabled=False):
        extra = call.encoding.value(w, by_head(pos.ids)[..., :, None], by_head(key_pos.ids)[..., None, :])
        out = w @ v
    return out if extra is None else out + extra.to(out.dtype)
