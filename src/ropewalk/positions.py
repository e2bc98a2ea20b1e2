"""Where tokens stand: int64 ids, made by builders, which remember what was derived from them.

A forward pass makes one `Positions` and hands it to every layer. Cosines and sines are then derived once and remembered
*here*, keyed by all they depend on. So encodings hold no tables: nothing to cast to bfloat16, to grow, to save, or to
go stale.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ropewalk.multimodal import Run, place
from ropewalk.sharding import Scheme, shard_index, unshard_index

T = TypeVar("T")

PositionsLike: TypeAlias = "Positions | Tensor | Sequence[Any]"
"""What every hook accepts: positions, or integers that become them."""


class Positions:
    """Positions of tokens, and what a mask needs to know: the document of each, and which are padding.

    Not to be confused with indices: a token's position is where it stands in its own text, its index is where it lies
    in a tensor. They differ in decoding, packing, left padding and sharding, and every hook of an encoding is given
    positions.

    Args:
        ids: integers of shape `(S,)`, `(B, S)` or `(axes, B, S)`; kept as int64. Negative ones are allowed (a rotation
            by -1 is the inverse of a rotation by 1); an absolute table refuses them.
        documents: integers of shape `(S,)` or `(B, S)`: tokens of different documents do not see each other.
        valid: booleans of shape `(S,)` or `(B, S)`: False marks padding, which nobody sees.
        order: integers of shape `(S,)` or `(B, S)`, for positions with several axes only: where each token stands in
            the sequence. All tokens of an image may share a time, so their positions do not say which came first.
            Builders say it; None is unknown, see `ordered`.

    Raises:
        TypeError: for floats or booleans; positions are counted, never measured.
        ValueError: for a shape of more than three dimensions, or documents, valid or order of another shape.

    >>> Positions([3, 5, 20])
    Positions([3, 5, 20])
    >>> Positions.arange(3, offset=10).ids
    tensor([10, 11, 12])
    """

    def __init__(
        self,
        ids: Tensor | Sequence[Any],
        *,
        documents: Tensor | None = None,
        valid: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        ids = ids if isinstance(ids, Tensor) else torch.as_tensor(ids)
        if ids.numel() == 0 and ids.dtype == torch.float32:  # torch.as_tensor([]) has to guess, and guesses float
            ids = ids.to(torch.int64)
        if ids.dtype == torch.bool:
            raise TypeError("positions are integers, not booleans; for a padding mask use Positions.left_padded(mask)")
        if ids.is_floating_point() or ids.is_complex():
            raise TypeError(
                f"positions are integers, got {ids.dtype} of shape {tuple(ids.shape)}; "
                "bfloat16 cannot count past 256, so nothing is rounded here: call .long() if these are whole numbers"
            )
        if not 1 <= ids.dim() <= 3:
            raise ValueError(f"positions have shape (S,), (B, S) or (axes, B, S), got {tuple(ids.shape)}")
        if order is not None and (ids.dim() < 3 or len(ids) == 1):
            raise ValueError("positions with one axis are their own order; order is for those with several")
        for what, extra in (("documents", documents), ("valid", valid), ("order", order)):
            if extra is not None and (extra.dim() > 2 or extra.shape != ids.shape[-extra.dim() :]):
                raise ValueError(f"{what} has shape {tuple(extra.shape)}, the positions have {tuple(ids.shape)}")
        self.ids = ids if ids.dtype == torch.int64 else ids.to(torch.int64)
        self.documents = documents
        self.valid = None if valid is None else valid.to(torch.bool)  # tokenizers give 0 and 1
        self.order = order
        self.first: int | None = None
        """Where the first token stands, if the others are known to follow in a row without looking; see `arange`."""
        self._remembered: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, positions: PositionsLike) -> Positions:
        """`positions` itself, or a plain int tensor (or list) wrapped."""
        return positions if isinstance(positions, Positions) else cls(positions)

    @classmethod
    def arange(cls, n: int, offset: int | Tensor = 0, *, device: torch.device | str | None = None) -> Positions:
        """`n` tokens in a row from `offset`, which is how many tokens came before (those in a cache, say).

        A tensor `(B,)` of offsets gives every sample its own start, and positions of shape `(B, n)`. With an int the
        result remembers that it lies in a row, by which `attend` goes in compiled graphs, which cannot look: there
        change no ids in place.

        >>> Positions.arange(1, offset=torch.tensor([5, 3])).ids
        tensor([[5],
                [3]])
        """
        if n < 0:
            raise ValueError(f"the number of tokens cannot be negative, got {n}")
        if not isinstance(offset, Tensor):
            made = cls(torch.arange(offset, offset + n, device=device))
            made.first = offset  # a compiler, which cannot look at ids, goes by this
            return made
        if offset.dim() not in (0, 1):
            raise ValueError(f"offset is an int or has shape (B,), got {tuple(offset.shape)}")
        return cls(torch.arange(n, device=offset.device) + (offset[:, None] if offset.dim() == 1 else offset))

    @classmethod
    def packed(cls, cu_seqlens: Tensor | Sequence[int]) -> Positions:
        """Documents laid end to end in one row: each starts again at 0 and sees only itself.

        Args:
            cu_seqlens: where documents begin, and the end: `[0, 3, 5]` is one of three tokens and one of two.

        >>> packed = Positions.packed([0, 3, 5])
        >>> packed.ids, packed.documents
        (tensor([0, 1, 2, 0, 1]), tensor([0, 0, 0, 1, 1]))
        """
        given = torch.as_tensor(cu_seqlens)
        if given.is_floating_point() and bool((given != given.trunc()).any()):
            raise ValueError(f"cu_seqlens counts tokens in whole numbers, got {given.tolist()}")
        bounds = given.to(torch.int64)
        if bounds.dim() != 1 or len(bounds) < 1 or bounds[0] != 0 or bool((bounds.diff() < 0).any()):
            raise ValueError(f"cu_seqlens starts with 0 and never falls, got {bounds.tolist()}")
        documents = torch.repeat_interleave(torch.arange(len(bounds) - 1, device=bounds.device), bounds.diff())
        return cls(torch.arange(int(bounds[-1]), device=bounds.device) - bounds[documents], documents=documents)

    @classmethod
    def left_padded(cls, mask: Tensor) -> Positions:
        """A batch padded on the left: the first real token of each row stands at 0, whatever came before it is padding.

        Args:
            mask: `(B, S)`, 1 or True for a real token, as tokenizers give it. Each row is zeros, then ones.

        >>> Positions.left_padded(torch.tensor([[0, 0, 1, 1, 1]])).ids
        tensor([[0, 0, 0, 1, 2]])
        """
        real = torch.as_tensor(mask).to(torch.bool)
        if real.dim() != 2:
            raise ValueError(f"mask has shape (B, S), got {tuple(real.shape)}")
        if bool((real[:, :-1] & ~real[:, 1:]).any()):
            raise ValueError(
                "this mask has padding after a real token; for right padding use "
                "Positions(torch.arange(S).expand(B, S), valid=mask)"
            )
        return cls((real.cumsum(-1) - 1).clamp(min=0), valid=real)

    @classmethod
    def zigzag(cls, n: int, rank: int, world: int, *, device: torch.device | str | None = None) -> Positions:
        """What one of `world` ranks holds of `n` tokens when context is split zig-zag.

        The sequence is cut into 2·world chunks, and rank r gets chunks r and 2·world - 1 - r: an early and a late one,
        so that under a causal mask all ranks have as much to do. Any `n` will do, see `shard_index`.

        >>> Positions.zigzag(8, rank=0, world=2).ids
        tensor([0, 1, 6, 7])
        """
        return cls.arange(n, device=device).shard(rank, world)

    @classmethod
    def grid(cls, *sizes: int, device: torch.device | str | None = None) -> Positions:
        """All cells of a grid in raster order, the last axis fastest: `grid(t, h, w)` has shape `(3, 1, t·h·w)`.

        >>> Positions.grid(2, 3).ids[:, 0]
        tensor([[0, 0, 0, 1, 1, 1],
                [0, 1, 2, 0, 1, 2]])

        Raises:
            ValueError: no size, or one that is not a positive whole number.
        """
        if not sizes or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
            raise ValueError(f"a grid has positive whole sizes, such as (t, h, w), got {sizes}")
        axes = torch.meshgrid(*(torch.arange(n, device=device) for n in sizes), indexing="ij")
        return cls(torch.stack([axis.flatten() for axis in axes])[:, None]).ordered()

    @classmethod
    def interleave(cls, runs: Sequence[Run | int], *, device: torch.device | str | None = None) -> Positions:
        """Text, images and videos one after the other, as M-RoPE places them: `(3, 1, S)`, axes time, height, width.

        A text token has one number on all three axes. An image or video is a grid that starts where the text left off,
        and what follows starts one past the highest number so far, on whatever axis. So a picture takes up fewer
        positions than it has tokens; `delta` says how many fewer.

        Source: Wang et al., Qwen2-VL (2409.12191), §2.1. Where implementations differ: transformers 5.x goes on after a
        video from its height and width alone, so that a video longer than it is wide overlaps what follows; its earlier
        releases and vLLM do as here.

        Args:
            runs: `Text`, `Image` and `Video` of `ropewalk.multimodal`; a plain int is so many tokens of text.
            device: where the ids are made.

        >>> from ropewalk.multimodal import Image
        >>> pos = Positions.interleave([5, Image(72, 80), 4])
        >>> len(pos), pos.after().ids.flatten(), pos.delta()
        (5769, tensor([89, 89, 89]), tensor([-5680]))
        """
        return cls(place(runs, device)[:, None]).ordered()

    @classmethod
    def cat(cls, parts: Sequence[Positions]) -> Positions:
        """One after the other along the tokens: those in a cache, and the new ones.

        >>> Positions.cat([Positions.arange(2), Positions([7])]).ids
        tensor([0, 1, 7])

        Raises:
            ValueError: nothing given, different numbers of axes or rows, or documents (or an order) on some parts only.
        """
        if not parts:
            raise ValueError("there is nothing to put together")
        if len({part.axes for part in parts}) > 1:
            raise ValueError(
                f"positions with {' and '.join(str(part.axes) for part in parts)} axes do not continue one another; "
                "what follows tokens on several axes is positions.after()"
            )
        rows = {part.shape[0] for part in parts if len(part.shape) == 2}
        if len(rows - {1}) > 1:
            raise ValueError(f"positions of {' and '.join(str(n) for n in sorted(rows))} rows do not fit together")

        def joined(pieces: list[Tensor]) -> Tensor:
            lead = max((piece.shape[:-1] for piece in pieces), key=lambda shape: (len(shape), shape))
            return torch.cat([piece.expand(*lead, piece.shape[-1]) for piece in pieces], dim=-1)

        def extra(what: str) -> Tensor | None:
            pieces = [getattr(part, what) for part in parts]
            if all(piece is None for piece in pieces):
                return None
            if any(piece is None for piece in pieces):
                raise ValueError(f"some of these positions have {what} and some have not")
            return joined(pieces)

        several = any(part.ids.dim() == 3 for part in parts)
        ids = joined([part.ids[None] if several and part.ids.dim() == 1 else part.ids for part in parts])
        padded = any(part.valid is not None for part in parts)
        everything = [torch.ones(part.shape, dtype=torch.bool, device=part.device) for part in parts]
        valid = [own if part.valid is None else part.valid for part, own in zip(parts, everything, strict=True)]
        return cls(ids, documents=extra("documents"), valid=joined(valid) if padded else None, order=extra("order"))

    @property
    def shape(self) -> torch.Size:
        """`(S,)` or `(B, S)`, without the axes."""
        return self.ids.shape[-2:]

    @property
    def axes(self) -> int:
        """How many numbers place one token: 1 for text."""
        return self.ids.shape[0] if self.ids.dim() == 3 else 1

    @property
    def device(self) -> torch.device:
        """Where the ids are."""
        return self.ids.device

    def __len__(self) -> int:
        return self.ids.shape[-1]

    def __repr__(self) -> str:
        what = str(self.ids.tolist()) if self.ids.numel() <= 16 else f"shape={tuple(self.ids.shape)}"
        parts = [what]
        if self.documents is not None:
            parts.append(f"documents={self.documents.tolist() if self.documents.numel() <= 16 else '…'}")
        if self.valid is not None:
            parts.append(f"padding={int((~self.valid).sum())}")
        return f"Positions({', '.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_remembered": {}}  # copies remember nothing: not every value can be copied

    def __getitem__(self, tokens: slice) -> Positions:
        """The same for a slice of the tokens: a chunk of a prefill, a block of query rows."""
        if not isinstance(tokens, slice):
            raise TypeError(f"positions are cut by slices of the token axis, got {tokens!r}")
        part = self._each(lambda t: t[..., tokens])
        start = tokens.start or 0
        if self.first is not None and start >= 0 and tokens.step in (None, 1):
            part.first = self.first + start
        return part

    def to(self, device: torch.device | str) -> Positions:
        """The same on another device."""
        if torch.device(device) == self.device:
            return self
        there = self._each(lambda t: t.to(device))
        there.first = self.first
        return there

    def ordered(self) -> Positions:
        """The same, with the order of its tokens known: if nothing else was said, that in which they lie.

        Only positions with several axes have an order beside them. Call this on a whole sequence, not on a part.
        """
        if self.axes == 1 or self.order is not None:
            return self
        return Positions(
            self.ids,
            documents=self.documents,
            valid=self.valid,
            order=torch.arange(len(self), device=self.device),
        )

    def line(self) -> Positions:
        """Plain positions that say what came before what, with documents and padding: what a causal mask goes by.

        Raises:
            ValueError: several axes, and no order.
        """
        if self.ids.dim() < 3:
            return self
        if self.axes > 1 and self.order is None:
            raise ValueError(
                "positions with several axes do not say which token came first: give order=…, or, if these are all "
                "tokens of the sequence, take .ordered()"
            )
        order = self.ids[0] if self.order is None else self.order

        def make() -> Positions:
            return Positions(order.expand(self.shape), documents=self.documents, valid=self.valid)

        return self.remember(("line", self.versions()), make)

    def one_axis(self) -> Positions:
        """These, or the first of their several axes; a single row then fits activations with and without a batch."""
        if self.axes == 1:
            return self
        return Positions(self.ids[0, 0] if self.ids.shape[1] == 1 else self.ids[0])

    def _each(self, cut: Callable[[Tensor], Tensor]) -> Positions:
        extras = {"documents": self.documents, "valid": self.valid, "order": self.order}
        return Positions(cut(self.ids), **{name: None if t is None else cut(t) for name, t in extras.items()})

    def shard(self, rank: int, world: int, *, scheme: Scheme = "zigzag") -> Positions:
        """The part that one of `world` ranks holds; documents, padding and order go with it.

        Each rank can attend with it at once: positions say what came before what, wherever tokens lie.

        >>> Positions.packed([0, 3, 8]).shard(1, world=2)
        Positions([2, 0, 1, 2], documents=[0, 1, 1, 1])
        """
        index = self.shard_index(len(self), rank, world, scheme=scheme, device=self.device)
        return self.ordered()._each(lambda t: t[..., index])

    shard_index = staticmethod(shard_index)
    unshard_index = staticmethod(unshard_index)

    def after(self, n: int = 1) -> Positions:
        """Where the next `n` tokens of each row stand: one past its highest position, not past the number kept.

        With several axes, one past the highest of all axes, on all of them: what follows is text.

        >>> Positions.left_padded(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])).after().ids
        tensor([[3],
                [5]])
        """
        if self.documents is not None or len(self) == 0:
            raise ValueError("what comes after is known only for one text a row: not for packed or no positions")
        ids = self.ids if self.valid is None else self.ids.masked_fill(~self.valid, -1)
        if ids.dim() < 3:
            return Positions.arange(n, offset=ids.amax(-1) + 1)
        row = torch.arange(n, device=self.device)
        next_ids = (ids.amax((0, 2)) + 1)[:, None] + row  # (B, n), on every axis
        order = None if self.order is None else self.order.amax(-1, keepdim=True) + 1 + row
        if order is not None and order.dim() == 1:
            order = order.expand(next_ids.shape)
        return Positions(next_ids.expand(len(self.ids), -1, -1), order=order)

    def delta(self) -> Tensor:
        """Next position less the number of tokens, for each row: what decoding adds to a token's index in the sequence.

        0 for plain text, and negative after a picture, whose tokens share positions. int64, `(B,)`, or `()` for
        positions of shape `(S,)`.
        """
        start = self.after().ids[..., 0]
        start = start[0] if start.dim() == 2 else start
        return start - (len(self) if self.valid is None else self.valid.sum(-1))

    def span(self) -> tuple[int, int]:
        """The lowest and the highest position, (0, -1) when there are none; found once and remembered.

        An absolute table asks this before it looks anything up. On a GPU the first call waits for the device.
        """
        if self.ids.numel() == 0:
            return 0, -1
        low, high = self.remember("span", lambda: [int(end) for end in self.ids.aminmax()])
        return low, high

    def versions(self) -> Hashable:
        """Changes when documents, valid or order are changed in place: part of a key to what depends on them."""
        extras = (self.documents, self.valid, self.order)
        return tuple(None if t is None or t.is_inference() else t._version for t in extras)

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value remembered under `key`, or `make()`, remembered from now on.

        The key must hold everything the value depends on besides the ids. Values made in inference mode are kept apart,
        since autograd refuses them later; ids changed in place forget everything.
        """
        if torch.compiler.is_compiling():
            return make()  # a graph has no memory, and needs none: equal subexpressions are computed once
        full = (key, torch.is_inference_mode_enabled(), None if self.ids.is_inference() else self.ids._version)
        if full not in self._remembered:
            self._remembered[full] = make()
        return self._remembered[full]  # type: ignore[no-any-return]  # what make() returned under this key
