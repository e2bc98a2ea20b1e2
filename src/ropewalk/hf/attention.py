"""An encoding of ropewalk as an attention implementation of transformers.

transformers lets an implementation bring two functions: one makes the mask, once for each forward pass, the other
computes attention with it in every layer. The mask made here is a tensor of integers, which says beside who may look at
whom where everybody stands; so no model has to hand on positions, and a cache needs no more than it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ropewalk.attention import attend
from ropewalk.hf.semantics import NotServedError
from ropewalk.positions import Positions
from ropewalk.protocol import PositionalEncoding

Encodings: TypeAlias = "PositionalEncoding | Sequence[PositionalEncoding] | Callable[[int], PositionalEncoding]"
"""One encoding for all layers, one for each, or a function that makes the one of a layer, counted from 0."""

UNSEEN = -1
"""In a mask: this query does not see this key."""
SHIFT = 32
"""In a mask: a query's position, so many bits up, and a key's."""
HELD = "_ropewalk_encoding"
"""The attribute under which a model's modules hold what `install` gave them, so that a copy of a model uses its own."""
_MEANT = ("softcap", "s_aux", "sinks", "position_bias", "attention_bias", "head_mask")
"""What some models hand to attention, and an encoding here would leave out."""


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **more: Any,
) -> Tensor:
    """Who may look at whom, and where everybody stands, in one int64 tensor `(B or 1, 1, rows, K)`.

    With a row for each query, `UNSEEN` or the query's position and the key's. Where nothing but the causal rule and
    padding is asked for and the queries are the last keys, one row does, with the keys' positions.

    A token's position is the number of real tokens before it, as transformers' `generate` counts. The other arguments
    are those that transformers gives to any such function.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    slots = kv_offset + torch.arange(kv_length, device=device)
    at = slots[None]
    real = torch.ones(1, kv_length, dtype=torch.bool, device=device)
    if attention_mask is not None:
        given = attention_mask.to(device=device, dtype=torch.bool)
        short = kv_offset + kv_length - given.shape[-1]
        if short > 0:  # memory that is not filled yet
            given = nn.functional.pad(given, (0, short), value=True)
        at = (given.cumsum(-1) - 1).clamp(min=0)[:, kv_offset : kv_offset + kv_length]
        real = given[:, kv_offset : kv_offset + kv_length]
    last = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if mask_function is causal_mask_function and q_length > 1 and last:
        return torch.where(real, at, UNSEEN)[:, None, None, :]
    seen = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,  # type: ignore[arg-type]  # a cache of fixed size gives a tensor
        kv_offset=kv_offset,
        mask_function=mask_function or causal_mask_function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        use_vmap=more.get("use_vmap", False),
        device=device,
    )
    assert seen is not None  # since no skip is allowed
    index = (q_offset - kv_offset) + torch.arange(q_length, device=device)
    query_at = at[:, index.clamp(0, kv_length - 1)]
    return torch.where(seen, (query_at[:, None, :, None] << SHIFT) | at[:, None, None, :], UNSEEN)


def attention_of(encoding: Encodings | None) -> Callable[..., tuple[Tensor, None]]:
    """The function that computes attention with an encoding, as transformers calls it; None: with what modules hold."""
    made: dict[int, PositionalEncoding] = dict(enumerate(encoding)) if isinstance(encoding, Sequence) else {}

    def of_layer(module: nn.Module) -> PositionalEncoding:
        one = module.__dict__[HELD] if encoding is None else encoding
        if isinstance(one, PositionalEncoding):
            return one
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int):
            raise NotServedError(f"{type(module).__name__} does not know its number: give one encoding for all layers")
        if isinstance(one, nn.ModuleList):
            return one[number]  # type: ignore[return-value]  # it holds encodings alone
        if number not in made and isinstance(one, Sequence):
            raise ValueError(f"there are {len(one)} encodings, and this is layer {number}, counted from 0")
        if number not in made and not isinstance(one, Sequence):
            made[number] = one(number)
        return made[number]

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """`(B, heads, tokens, head_dim)` in, `(B, tokens, heads, head_dim)` out."""
        for name in _MEANT:
            if more.get(name) is not None:
                raise NotServedError(f"{type(module).__name__} hands {name} to attention, which no encoding here knows")
        one = of_layer(module)
        scale = (query.shape[-1] ** -0.5 if scaling is None else scaling) * one.softmax_multiplier
        out = _attend(module, one, query, key, value, attention_mask, scale, dropout, more.get("position_ids"))
        return out.transpose(1, 2).contiguous(), None

    # So that a second registration of a name is known as ours.
    attention.ropewalk = encoding is not None  # type: ignore[attr-defined]
    return attention


def _attend(
    module: nn.Module,
    encoding: PositionalEncoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Tensor | None,
    scale: float,
    dropout: float,
    position_ids: Tensor | None,
) -> Tensor:
    if given is None or given.dtype != torch.int64:
        what = "no mask" if given is None else f"a mask of {given.dtype}"
        raise NotServedError(
            f"{type(module).__name__} was given {what}, which does not say where tokens stand; "
            "give attention_mask as a tokenizer does, (batch, tokens)"
        )
    own = _own(position_ids, q, k)
    if given.shape[2] == 1 and q.shape[2] > 1:
        at = given[:, 0, 0]
        valid = at != UNSEEN
        at = _prefer(own, at.clamp(min=0), valid)
        valid = valid.expand(at.shape)
        if not dropout and (own is None or _in_order(at, valid)):
            keys = _positions(at, valid)
            return attend(
                q, k, v, encoding, keys[len(keys) - q.shape[2] :], key_positions=keys, causal=True, scale=scale
            )
        rows, slots = valid[:, -q.shape[2] :, None], torch.arange(k.shape[2], device=q.device)
        earlier = slots <= slots[-q.shape[2] :, None]  # in the sequence, whatever their positions
        seen = (rows & valid[:, None] & earlier)[:, None]
        return _masked(encoding, q, k, v, at[:, -q.shape[2] :], at, seen, scale, dropout, module.training)
    seen = given != UNSEEN
    valid = seen.any(-2)[:, 0]
    query_at = _prefer(own, (given.amax(-1) >> SHIFT).clamp(min=0)[:, 0], valid)
    at = _prefer(own, torch.where(seen, given & (2**SHIFT - 1), 0).amax(-2)[:, 0], valid)
    return _masked(encoding, q, k, v, query_at, at, seen, scale, dropout, module.training)


def _own(position_ids: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The positions that a model was given, if they are those of all keys; of a cache's they say nothing."""
    if position_ids is None or position_ids.dim() > 2 or not position_ids.shape[-1] == k.shape[2] == q.shape[2]:
        return None
    return position_ids.reshape(-1, position_ids.shape[-1])


def _prefer(own: Tensor | None, at: Tensor, valid: Tensor) -> Tensor:
    """A model's own positions for rows without padding; where there is some, models count it along if nobody tells."""
    return at if own is None else torch.where(valid.all(-1, keepdim=True), own, at)


def _in_order(at: Tensor, valid: Tensor) -> bool:
    """Whether positions grow along the sequence, so that to see earlier positions is to see earlier tokens.

    A graph that is traced cannot look: it takes them to, and stops when it runs if they do not.
    """
    so_far = at.masked_fill(~valid, -1).cummax(-1).values
    grow = ((at[:, 1:] > so_far[:, :-1]) | ~valid[:, 1:]).all()
    if torch.compiler.is_compiling():
        torch._assert_async(grow, "position_ids that do not grow along the sequence are not served by a compiled model")
        return True
    return bool(grow)


def _positions(at: Tensor, valid: Tensor) -> Positions:
    """Plain ones where no row is padded, which the faster paths want."""
    if not torch.compiler.is_compiling() and len(at) == 1 and bool(valid.all()):
        return Positions(at[0])
    return Positions(at, valid=valid)


def _masked(
    encoding: PositionalEncoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_at: Tensor,
    at: Tensor,
    seen: Tensor,
    scale: float,
    dropout: float,
    training: bool,
) -> Tensor:
    """Attention under any mask `(B or 1, 1, Q, K)`: the whole matrix, in float32 at least."""
    q, k = encoding.query(q, Positions(query_at)), encoding.key(k, Positions(at))
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = q.shape[1] // k.shape[1]
    wide, keys = q.to(work), k.to(work).repeat_interleave(groups, dim=1)
    values = v.to(work).repeat_interleave(groups, dim=1)
    i, j = query_at[:, None, :, None], at[:, None, None, :]
    with torch.autocast(q.device.type, enabled=False):
        s = ((wide @ keys.mT) * scale).masked_fill(~seen, -torch.inf)
        s = encoding.score(s, wide, keys, i, j, scale).masked_fill(~seen, -torch.inf)
        blind = ~seen.any(-1, keepdim=True)
        w = s.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
        w = nn.functional.dropout(w, dropout, training)
        extra = encoding.value(w, i, j)
        out = w @ values
    return (out if extra is None else out + extra.to(out.dtype)).to(q.dtype)
