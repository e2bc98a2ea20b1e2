"""Where encodings meet attention: one function for all of them, which calls the hooks and knows no encoding by name.

This is the reference: it is written to be read, and works in blocks of query rows, so that it needs O(block · keys)
memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import PositionalEncoding, check_tokens


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding,
    positions: PositionsLike,
    *,
    key_positions: PositionsLike | None = None,
    keys_encoded: bool = False,
    causal: bool = True,
    scale: float | None = None,
    block: int = 1024,
) -> Tensor:
    """Attention with any encoding: softmax(mask(scale · q'k'ᵀ) + bias) v, plus the encoding's value term.

    Encodings of the embedding (sinusoidal, learned) act before the projections, through `encoding.embed`; here they
    change nothing. Arithmetic is float32 (float64 for float64); the result has the dtype of `q`. A query that may look
    at nothing gives zeros.

    Args:
        q: `(B, heads, Q, head_dim)`, not yet encoded.
        k: `(B, kv_heads, K, head_dim)`; `heads` is a multiple of `kv_heads` (grouped queries).
        v: `(B, kv_heads, K, any)`.
        encoding: any [`PositionalEncoding`][ropewalk.PositionalEncoding].
        positions: of the queries, `(Q,)`, `(B, Q)` or `(axes, B, Q)`; of the keys too unless `key_positions` is given.
        key_positions: `(K,)` or `(B, K)`: what a cache holds, and the new tokens.
        keys_encoded: the keys have been through `encoding.key` already, as a cache keeps them.
        causal: a query sees the keys whose position is not after its own; on several axes, whose order in the sequence
            is not. Documents and padding are always kept apart.
        scale: multiplies q·k; by default 1/√head_dim times the encoding's `softmax_multiplier`. (T5 was trained with
            1.)
        block: how many query rows are worked on at once; changes the memory, not the result.

    >>> from ropewalk import ALiBi
    >>> q = k = v = torch.ones(1, 8, 5, 16)
    >>> attend(q, k, v, ALiBi(heads=8), torch.arange(5)).shape
    torch.Size([1, 8, 5, 16])

    Raises:
        ValueError: shapes or positions that do not fit, or `causal=False` with an encoding defined for causal attention
            only.
    """
    pos = Positions.of(positions).to(q.device)
    key_pos = pos if key_positions is None else Positions.of(key_positions).to(q.device)
    _check(q, k, v, encoding, pos, key_pos, causal, block)
    if not keys_encoded:
        k = encoding.key(k, key_pos)
    q = encoding.query(q, pos)
    if key_positions is None or not causal:
        pos, key_pos = pos.ordered(), key_pos.ordered()
    pos, key_pos = pos.line(), key_pos.line()  # masks and scores go by what came before what
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = q.shape[1] // k.shape[1]
    k = k.to(work).repeat_interleave(groups, dim=1)
    v = v.to(work).repeat_interleave(groups, dim=1)
    scale = q.shape[-1] ** -0.5 * encoding.softmax_multiplier if scale is None else scale
    rows = [slice(start, start + block) for start in range(0, len(pos), block)] or [slice(0, 0)]
    out = [_attend_rows(q[:, :, r].to(work), k, v, encoding, pos[r], key_pos, causal, scale) for r in rows]
    return torch.cat(out, dim=2).to(q.dtype)


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
    i, j = _axis(pos.ids)[..., :, None], _axis(key_pos.ids)[..., None, :]
    seen = visible(pos, key_pos, causal=causal)
    scale = q.shape[-1] ** -0.5 * encoding.softmax_multiplier if scale is None else scale
    # Autocast would lower this product to half precision, and with it the sums that a score hook makes of it.
    with torch.autocast(q.device.type, enabled=False):
        s = (q @ k.mT) * scale
        # Masked before the hook, since one that sums over keys must not count the future;
        # and after, since a hook may return fresh scores.
        s = encoding.score(s.masked_fill(~seen, -torch.inf), q, k, i, j, scale)
    return s.masked_fill(~seen, -torch.inf)


def visible(positions: Positions, key_positions: Positions, *, causal: bool) -> Tensor:
    """True where a query may look at a key: booleans `(Q, K)` or `(B, 1, Q, K)`.

    Not at padding, not into another document, and, if causal, not at a later position.
    """
    i, j = _axis(positions.ids)[..., :, None], _axis(key_positions.ids)[..., None, :]
    seen = (j <= i) | (not causal)
    if positions.documents is not None and key_positions.documents is not None:
        seen = seen & (_axis(positions.documents)[..., :, None] == _axis(key_positions.documents)[..., None, :])
    if positions.valid is not None:
        seen = seen & _axis(positions.valid)[..., :, None]
    if key_positions.valid is not None:
        seen = seen & _axis(key_positions.valid)[..., None, :]
    return seen


def _attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding,
    pos: Positions,
    key_pos: Positions,
    causal: bool,
    scale: float,
) -> Tensor:
    s = scores(q, k, encoding, pos, key_pos, causal=causal, scale=scale)  # (B, H, Q, K)
    blind = (s == -torch.inf).all(-1, keepdim=True)  # rows that see nothing, whose softmax would be NaN
    w = s.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    with torch.autocast(q.device.type, enabled=False):
        extra = encoding.value(w, _axis(pos.ids)[..., :, None], _axis(key_pos.ids)[..., None, :])
        out = w @ v
    return out if extra is None else out + extra.to(out.dtype)


def _axis(t: Tensor) -> Tensor:
    """A head axis for batched positions: (S,) stays, (B, S) becomes (B, 1, S)."""
    return t if t.dim() == 1 else t[:, None]


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding,
    pos: Positions,
    key_pos: Positions,
    causal: bool,
    block: int,
) -> None:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(
            f"q, k and v are (batch, heads, tokens, head_dim), got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly")
    if encoding.heads not in (None, q.shape[1]):
        raise ValueError(f"{encoding.label} was made for {encoding.heads} heads, q has {q.shape[1]}")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together")
    if len(key_pos) != k.shape[2] and key_pos is pos:
        raise ValueError(f"there are {k.shape[2]} keys and {len(pos)} positions: give key_positions, one for each key")
    check_tokens(q, pos.one_axis(), "q")
    check_tokens(k, key_pos.one_axis(), "k")
    if pos.axes != key_pos.axes:
        raise ValueError(f"the queries' positions have {pos.axes} axes and the keys' {key_pos.axes}")
    if pos.axes > 1 and {"score", "value"} & set(encoding.places()):
        raise ValueError(f"{encoding.label} takes one position a token, these positions have {pos.axes} axes")
    if not causal and encoding.causal_only:
        raise ValueError(
            f"{encoding.label} is defined for causal attention only, where a key never follows its query; "
            "give causal=True, or build it with bidirectional=True if it has that option"
        )
    if block < 1:
        raise ValueError(f"block is a positive number of query rows, got {block}")
