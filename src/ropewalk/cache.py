"""Keys and values of tokens seen before, with their true positions and what their keys went through."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ropewalk.attention import attend
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import Compose, PositionalEncoding, check_tokens

T = TypeVar("T")


class KeyCache:
    """A KV cache that cannot mix: it knows where its tokens stand and by which encoding their keys turned.

    A token keeps its position through evictions, and the next one continues from the highest position seen, not from
    the number of tokens kept. Keys turned by one spectrum are never met by queries turned by another: `attend` and
    `append` refuse, and `rerotate` is the way over.

    Keys are kept as they were appended. After `rerotate` they are turned back and forth *from there*, in float64, and
    rounded once; so a hundred shifts cost no more precision than one.

    Grows by concatenation, which is simple and right, and copies what it holds for every token appended.

    Args:
        encoding: by which keys are encoded before they are appended.

    >>> from ropewalk import RoPE
    >>> rope = RoPE(head_dim=4)
    >>> cache, k = KeyCache(rope), torch.ones(1, 1, 3, 4)
    >>> cache.append(rope.key(k, [0, 1, 2]), k, [0, 1, 2])
    >>> cache.evict(slice(1, 2))
    >>> cache.positions, cache.next_positions()
    (Positions([0, 2]), Positions([3]))
    >>> cache.rerotate(shift=-1)
    >>> torch.equal(cache.keys[:, :, 1], rope.key(k[:, :, 0:1], [1])[:, :, 0])
    True
    """

    def __init__(self, encoding: PositionalEncoding) -> None:
        self.encoding = encoding
        self._stored: Tensor | None = None  # keys as appended
        self._values: Tensor | None = None
        self._at: Positions | None = None  # where each key was encoded
        self._by: list[PositionalEncoding] = [encoding]  # and by what: a list, and
        self._which = torch.empty(0, dtype=torch.int64)  # each token's place in it
        self._positions: Positions | None = None
        self._next: Positions | None = None
        self._keys: Tensor | None = None  # as they are now; made when asked for

    def __len__(self) -> int:
        return 0 if self._positions is None else len(self._positions)

    def __repr__(self) -> str:
        return f"KeyCache({len(self)} tokens, {self.encoding})"

    @property
    def positions(self) -> Positions:
        """Where the tokens stand now, with their documents and padding."""
        return _held(self._positions)

    @property
    def values(self) -> Tensor:
        """`(B, kv_heads, tokens, any)`."""
        return _held(self._values)

    @property
    def keys(self) -> Tensor:
        """Encoded keys, `(B, kv_heads, tokens, head_dim)`: as appended, or as `rerotate` left them."""
        if self._keys is None:
            self._keys = self._turned()
        return self._keys

    @property
    def fingerprint(self) -> Hashable:
        """What keys went through, as a value: equal for encodings whose keys may lie side by side."""
        return fingerprint(self.encoding)

    def append(
        self, k: Tensor, v: Tensor, positions: PositionsLike, *, encoding: PositionalEncoding | None = None
    ) -> None:
        """Add tokens.

        Args:
            k: `(B, kv_heads, S, head_dim)`, encoded: `encoding.key(k, positions)`.
            v: `(B, kv_heads, S, any)`.
            positions: of the new tokens, `(S,)`, `(B, S)` or `(axes, B, S)`; see `next_positions`.
            encoding: the one that encoded `k`, to be checked against the cache's.

        Raises:
            ValueError: shapes, dtypes or positions that do not fit what is there, or another encoding.
        """
        pos = Positions.of(positions).to(k.device)
        if encoding is not None:
            self._agree(encoding)
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"k and v are (batch, kv_heads, tokens, head_dim), got {tuple(k.shape)} and {tuple(v.shape)}"
            )
        check_tokens(k, pos.one_axis(), "k")
        if pos.axes > 1 and pos.order is None:
            if self._positions is not None:
                raise ValueError(
                    "positions with several axes do not say which token came first: give their order, "
                    "or take them from next_positions()"
                )
            pos = pos.ordered()
        new_next = None if pos.documents is not None or not len(pos) else pos.after()
        if self._positions is None or self._stored is None or self._values is None or self._at is None:
            self._stored, self._values, self._at, self._positions, self._next = k, v, pos, pos, new_next
        else:
            for what, old, new in (("keys", self._stored, k), ("values", self._values, v)):
                if old.shape[:2] != new.shape[:2] or old.shape[3] != new.shape[3] or old.dtype != new.dtype:
                    raise ValueError(
                        f"the cache holds {what} {tuple(old.shape)} of {old.dtype}, "
                        f"the new ones are {tuple(new.shape)} of {new.dtype}"
                    )
            now = Positions.cat([self._positions, pos])  # may refuse, so before anything changes
            self._at = Positions.cat([self._at, pos])
            self._positions = now
            if self._keys is not None:
                self._keys = torch.cat((self._keys, k), dim=2)
            self._stored, self._values = torch.cat((self._stored, k), dim=2), torch.cat((self._values, v), dim=2)
            if pos.documents is not None:
                self._next = None
            elif new_next is not None:
                self._next = new_next if self._next is None else _later(self._next, new_next)
        mine = torch.full((len(pos),), len(self._by) - 1, dtype=torch.int64, device=k.device)
        self._which = torch.cat((self._which.to(k.device), mine))

    def next_positions(self, n: int = 1) -> Positions:
        """Where the next `n` tokens stand: after the highest position ever seen here, whatever was evicted since.

        To write again over drafts that were rejected, give `append` their positions instead.

        Raises:
            ValueError: an empty cache, or packed documents, of which several could go on.
        """
        if self._next is None:
            self.positions  # noqa: B018  # says that the cache is empty
            raise ValueError("packed documents: which one goes on is not known, so give the positions")
        ids = self._next.ids + torch.arange(n, device=self._next.device)
        order = None if self._next.order is None else self._next.order + torch.arange(n, device=self._next.device)
        return Positions(ids, order=order)

    def evict(self, tokens: slice | Tensor) -> None:
        """Forget tokens: a slice of them, or a mask `(tokens,)` that is True for those to go."""
        keep = ~self._mask(tokens)
        self._at, self._positions = (
            self._at_held()._each(lambda t: t[..., keep]),
            self.positions._each(lambda t: t[..., keep]),
        )
        self._stored, self._values = _held(self._stored)[:, :, keep], self.values[:, :, keep]
        self._which = self._which[keep]
        self._keys = None if self._keys is None else self._keys[:, :, keep]

    def rerotate(
        self,
        *,
        shift: int = 0,
        tokens: slice | Tensor | None = None,
        encoding: PositionalEncoding | None = None,
    ) -> None:
        """Move tokens to other positions, or go over to another spectrum, without the keys before encoding.

        A rotation undone is a rotation: rotate(rotate(x, p), δ) = rotate(x, p + δ). So a long chat may evict its middle
        and shift the rest down, and a dynamic extension may go on at another length.

        Args:
            shift: added to the positions, on every axis; where the last token goes, the next positions follow.
            tokens: which ones move, a slice or a mask; by default all.
            encoding: from now on keys are as if encoded by this one: `rope.at(longer)`, say.

        Raises:
            ValueError: an encoding whose keys cannot be turned back (position was added to the embeddings, or it has no
                `inverse_key`).
        """
        target = self.encoding if encoding is None else encoding
        changes = fingerprint(target) != self.fingerprint
        if shift or changes:
            for one in (self.encoding, target):
                if "embedding" in one.places() or not all(hasattr(e, "inverse_key") for e in _turning(one)):
                    raise ValueError(
                        f"{one.label} is not a rotation of the keys alone, so cached keys cannot be turned back; "
                        "encode the tokens again"
                    )
        if changes and self._stored is not None:
            target.key(self._stored[:, :1], self.positions)  # what it refuses, it refuses now
        if shift and len(self):
            moved = torch.ones(len(self), dtype=torch.bool, device=self.positions.device)
            moved = moved if tokens is None else self._mask(tokens)
            held = self.positions
            self._next = None if self._next is None else _moved(self._next, held, moved, shift)
            self._positions = Positions(
                held.ids + shift * moved, documents=held.documents, valid=held.valid, order=held.order
            )
            self._keys = None
        if changes:
            self._by.append(target)
            self._keys = None
        self.encoding = target

    def attend(self, q: Tensor, encoding: PositionalEncoding, positions: PositionsLike, **options: Any) -> Tensor:
        """`ropewalk.attend` of queries (not yet encoded) with all that is here. Append their own keys first.

        Raises:
            ValueError: as `attend`; and an encoding that turns otherwise than the cached keys were turned.
        """
        self._agree(encoding)
        return attend(
            q, self.keys, self.values, encoding, positions, key_positions=self.positions, keys_encoded=True, **options
        )

    def _agree(self, encoding: PositionalEncoding) -> None:
        if fingerprint(encoding) != self.fingerprint:
            raise ValueError(
                f"these keys were encoded by {self.encoding}, which does not fit {encoding}: "
                "their product would not depend on the distance. Go over with rerotate(encoding=…), or encode again"
            )

    def _turned(self) -> Tensor:
        """The stored keys, those that moved or changed spectrum turned from where they were to where they are."""
        stored, at, now = _held(self._stored), self._at_held(), self.positions
        moved = (at.ids != now.ids).flatten(0, -2).any(0) if at.ids.dim() > 1 else at.ids != now.ids
        exact = torch.float64 if stored.device.type != "mps" else torch.float32
        out = stored
        target = fingerprint(self.encoding)
        for number, encoding in enumerate(self._by):
            rows = self._which == number
            if fingerprint(encoding) == target:
                rows = rows & moved
            if not bool(rows.any()) or not (_turning(encoding) or _turning(self.encoding)):
                continue
            then, here = (p._each(lambda t: t[..., rows]) for p in (at, now))  # noqa: B023  # used at once
            k = stored[:, :, rows].to(exact)
            for part in reversed(_turning(encoding)):
                k = part.inverse_key(k, then)
            k = self.encoding.key(k, here)
            out = out.clone() if out is stored else out
            out[:, :, rows] = k.to(stored.dtype)
        return out

    def _mask(self, tokens: slice | Tensor) -> Tensor:
        mask = torch.zeros(len(self), dtype=torch.bool, device=self.positions.device)
        if isinstance(tokens, slice):
            mask[tokens] = True
        elif isinstance(tokens, Tensor) and tokens.dtype == torch.bool and tokens.shape == mask.shape:
            mask = tokens.to(mask.device)
        else:
            shown = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else repr(tokens)
            raise ValueError(f"tokens are a slice or a boolean mask of shape ({len(self)},), got {shown}")
        return mask

    def _at_held(self) -> Positions:
        return _held(self._at)


def fingerprint(encoding: PositionalEncoding) -> Hashable:
    """What an encoding does to keys: its class and options, and the spectrum itself in place of what it comes from.

    Encodings that leave keys alone are alike in this.
    """
    parts: list[Hashable] = []
    for part in _turning(encoding):
        names = set(part.parameters_of_constructor())
        if hasattr(part, "spectrum"):
            names = (names - {"base", "extension", "at_length"}) | {"spectrum"}
        parts.append((type(part), *((name, getattr(part, name)) for name in sorted(names))))
    return tuple(parts)


def _turning(encoding: PositionalEncoding) -> list[Any]:
    """The encoding, or the parts of a composed one, that do something to keys, in the order in which they do it."""
    leaves = [e for e in encoding.modules() if isinstance(e, PositionalEncoding) and not isinstance(e, Compose)]
    return [e for e in leaves if type(e).key is not PositionalEncoding.key]


def _held(what: T | None) -> T:
    if what is None:
        raise ValueError("the cache is empty: append keys, values and positions first")
    return what


def _later(one: Positions, other: Positions) -> Positions:
    """Of two next positions, the later one, row by row."""
    order = None if one.order is None or other.order is None else torch.maximum(one.order, other.order)
    ids, others = (p.ids[None] if max(one.ids.dim(), other.ids.dim()) > p.ids.dim() else p.ids for p in (one, other))
    return Positions(torch.maximum(ids, others), order=order)


def _moved(following: Positions, held: Positions, moved: Tensor, shift: int) -> Positions:
    """The next positions follow the last token of each row, if that is among those that move."""
    last = (held.ids if held.order is None else held.order.expand(held.shape)).argmax(-1, keepdim=True)
    ids = following.ids + shift * moved[last]
    return Positions(ids, order=following.order)
