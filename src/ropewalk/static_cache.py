"""Keys and values in memory set aside beforehand, so that a step of decoding is one compiled graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.attention import attend
from ropewalk.cache import fingerprint
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import PositionalEncoding, check_tokens, expect


class StaticKeyCache:
    """A KV cache of fixed size, written in place: shapes never change, so `torch.compile` compiles a step once.

    Like [`KeyCache`][ropewalk.KeyCache] it knows where its tokens stand, whichever slot they lie in. What it cannot do
    is turn keys to other positions, or hold packed documents or positions with several axes; use that one if you need
    it, or if you do not know how long the text will be.

    Args:
        encoding: by which keys are encoded before they are appended.
        length: how many tokens there is room for.
        batch: number of samples; each may stand at positions of its own.
        kv_heads: number of key heads.
        head_dim: channels of a key.
        value_dim: channels of a value, by default those of a key.
        rolling: when it is full, write over the oldest tokens. For sliding windows: `attend` then wants a `window`, and
            room for it.
        dtype: of keys and values.
        device: where they lie.

    >>> from ropewalk import RoPE
    >>> rope, k = RoPE(head_dim=4), torch.ones(1, 1, 3, 4)
    >>> cache = StaticKeyCache(rope, length=8, kv_heads=1, head_dim=4)
    >>> cache.append(rope.key(k, [0, 1, 2]), k, [0, 1, 2])
    >>> cache, cache.next_positions()
    (StaticKeyCache(3 tokens of 8, RoPE(...)), Positions([[3]]))
    >>> cache.attend(torch.ones(1, 2, 1, 4), rope, [2]).shape
    torch.Size([1, 2, 1, 4])

    Raises:
        ValueError: sizes that are not positive.
    """

    def __init__(
        self,
        encoding: PositionalEncoding,
        length: int,
        *,
        batch: int = 1,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        rolling: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = (length, batch, kv_heads, head_dim, 1 if value_dim is None else value_dim)
        expect(min(sizes) > 0, f"length, batch, kv_heads, head_dim and value_dim are positive, got {sizes}")
        self.encoding, self.length, self.rolling = encoding, length, rolling
        lead = (batch, kv_heads, length)
        self.keys = torch.zeros(*lead, head_dim, dtype=dtype, device=device)
        self.values = torch.zeros(*lead, head_dim if value_dim is None else value_dim, dtype=dtype, device=device)
        self._ids = torch.zeros(batch, length, dtype=torch.int64, device=device)
        self._valid = torch.zeros(batch, length, dtype=torch.bool, device=device)
        self._slot = torch.arange(length, device=device)
        self._seen = torch.zeros((), dtype=torch.int64, device=device)  # a tensor, as a number would be compiled in
        self._next = torch.zeros(batch, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return min(int(self._seen), self.length)

    def __repr__(self) -> str:
        return f"StaticKeyCache({len(self)} tokens of {self.length}, {type(self.encoding).__name__}(...))"

    @property
    def positions(self) -> Positions:
        """Where the tokens stand, `(batch, length)`; slots that hold none are padding."""
        return Positions(self._ids, valid=self._valid)

    def reset(self) -> None:
        """Forget everything, in place: the same memory serves the next text."""
        for t in (self._valid, self._seen, self._next):
            t.zero_()

    def append(self, k: Tensor, v: Tensor, positions: PositionsLike) -> None:
        """Add tokens. The cache keeps numbers only: no gradient goes back to k and v through it.

        Args:
            k: `(batch, kv_heads, S, head_dim)`, encoded: `encoding.key(k, positions)`.
            v: `(batch, kv_heads, S, value_dim)`.
            positions: of the new tokens, `(S,)` or `(batch, S)`; padding stays padding.

        Raises:
            ValueError: shapes or positions that do not fit, or no room. (A compiled step cannot look whether there is
                room; count yourself.)
        """
        pos = Positions.of(positions).to(k.device)
        expect(pos.documents is None, "a static cache holds one text a row, no packed documents; use KeyCache")
        for what, new, held in (("k", k, self.keys), ("v", v, self.values)):
            fits = new.dim() == 4 and new.shape[:2] == held.shape[:2] and new.shape[3] == held.shape[3]
            expect(
                fits and new.dtype == held.dtype,
                f"the cache holds {tuple(held.shape)} of {held.dtype}, {what} is {tuple(new.shape)} of {new.dtype}",
            )
        check_tokens(k, pos, "k")
        check_tokens(v, pos, "v")
        n = k.shape[2]
        expect(n <= self.length, f"{n} tokens do not fit a cache of length {self.length}; append them in pieces")
        if not torch.compiler.is_compiling() and not self.rolling:
            seen = int(self._seen)
            expect(
                seen + n <= self.length,
                f"there is no room: the cache has length {self.length} and holds {seen} tokens, {n} are new; make it "
                "longer, or rolling with a window",
            )
        at = self._slot[:n] + self._seen
        at = at % self.length if self.rolling else at
        ids = pos.ids.expand(len(self._ids), n)
        valid = torch.ones_like(ids, dtype=torch.bool) if pos.valid is None else pos.valid.expand(ids.shape)
        with torch.no_grad():
            self._ids.index_copy_(1, at, ids)
            self._valid.index_copy_(1, at, valid)
            self._seen.add_(n)
            self._next.copy_(torch.maximum(self._next, (ids + 1).masked_fill(~valid, 0).amax(-1)))
            self.keys.index_copy_(2, at, k)
            self.values.index_copy_(2, at, v)

    def next_positions(self, n: int = 1) -> Positions:
        """Where the next `n` tokens of each sample stand, `(batch, n)`: after its highest position ever seen."""
        return Positions(self._next[:, None] + torch.arange(n, device=self._next.device))

    def evict(self, slots: slice | Tensor) -> None:
        """Hide tokens: a slice of the slots, or a mask `(length,)` that is True for those to go. Others stay put."""
        mask = torch.zeros_like(self._slot, dtype=torch.bool)
        mask[slots] = True
        self._valid.masked_fill_(mask, False)

    def attend(self, q: Tensor, encoding: PositionalEncoding, positions: PositionsLike, **options: Any) -> Tensor:
        """`ropewalk.attend` of queries (not yet encoded) with all that is here. Append their own keys first.

        Raises:
            ValueError: as `attend`; an encoding that turns otherwise than the cached keys were turned; a rolling cache
                without a window, or with one that it cannot hold.
        """
        if encoding is not self.encoding:
            expect(
                fingerprint(encoding) == fingerprint(self.encoding),
                f"these keys were encoded by {self.encoding}, which does not fit {encoding}",
            )
        if self.rolling:
            window, n = options.get("window"), q.shape[2]
            expect(
                window is not None and window + n - 1 <= self.length,
                f"a rolling cache of length {self.length} has forgotten what lies farther back: {n} queries at once "
                f"need a window of {max(self.length - n + 1, 0)} at most, got {window}",
            )
        pos = self.positions
        return attend(q, self.keys, self.values, encoding, positions, key_positions=pos, keys_encoded=True, **options)
