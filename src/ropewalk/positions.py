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

    Raises:
        TypeError: for floats or booleans; positions are counted, never measured.
        ValueError: for more than three axes, or documents or valid of another shape.

    >>> Positions([3, 5, 20])
    Positions([3, 5, 20])
    >>> Positions.arange(3, offset=10).ids
    tensor([10, 11, 12])
    """

    def __init__(
        self, ids: Tensor | Sequence[Any], *, documents: Tensor | None = None, valid: Tensor | None = None
    ) -> None:
        ids = torch.as_tensor(ids)
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
        for what, extra in (("documents", documents), ("valid", valid)):
            if extra is not None and extra.shape != ids.shape[-extra.dim() :]:
                raise ValueError(f"{what} has shape {tuple(extra.shape)}, the positions have {tuple(ids.shape)}")
        self.ids = ids.to(torch.int64)
        self.documents = documents
        self.valid = valid
        self._remembered: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, positions: PositionsLike) -> Positions:
        """`positions` itself, or a plain int tensor (or list) wrapped."""
        return positions if isinstance(positions, Positions) else cls(positions)

    @classmethod
    def arange(cls, n: int, offset: int | Tensor = 0, *, device: torch.device | str | None = None) -> Positions:
        """`n` tokens in a row from `offset`, which is how many tokens came before (those in a cache, say).

        A tensor `(B,)` of offsets gives every sample its own start, and positions of shape `(B, n)`.

        >>> Positions.arange(1, offset=torch.tensor([5, 3])).ids
        tensor([[5],
                [3]])
        """
        if n < 0:
            raise ValueError(f"the number of tokens cannot be negative, got {n}")
        row = torch.arange(n, device=device if not isinstance(offset, Tensor) else offset.device)
        if isinstance(offset, Tensor) and offset.dim() not in (0, 1):
            raise ValueError(f"offset is an int or has shape (B,), got {tuple(offset.shape)}")
        return cls(row + (offset[:, None] if isinstance(offset, Tensor) and offset.dim() == 1 else offset))

    @classmethod
    def packed(cls, cu_seqlens: Tensor | Sequence[int]) -> Positions:
        """Documents laid end to end in one row: each starts again at 0 and sees only itself.

        Args:
            cu_seqlens: where documents begin, and the end: `[0, 3, 5]` is one of three tokens and one of two.

        >>> packed = Positions.packed([0, 3, 5])
        >>> packed.ids, packed.documents
        (tensor([0, 1, 2, 0, 1]), tensor([0, 0, 0, 1, 1]))
        """
        bounds = torch.as_tensor(cu_seqlens, dtype=torch.int64)
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

    def __getitem__(self, tokens: slice) -> Positions:
        """The same for a slice of the tokens: a chunk of a prefill, a block of query rows."""
        if not isinstance(tokens, slice):
            raise TypeError(f"positions are cut by slices of the token axis, got {tokens!r}")
        return Positions(
            self.ids[..., tokens],
            documents=None if self.documents is None else self.documents[..., tokens],
            valid=None if self.valid is None else self.valid[..., tokens],
        )

    def to(self, device: torch.device | str) -> Positions:
        """The same on another device."""
        if torch.device(device) == self.device:
            return self
        return Positions(
            self.ids.to(device),
            documents=None if self.documents is None else self.documents.to(device),
            valid=None if self.valid is None else self.valid.to(device),
        )

    def after(self, n: int = 1) -> Positions:
        """Where the next `n` tokens of each row stand: one past its highest position, not past the number kept.

        >>> Positions.left_padded(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])).after().ids
        tensor([[3],
                [5]])
        """
        if self.axes != 1 or self.documents is not None or len(self) == 0:
            raise ValueError(
                "what comes after is known only for one text a row: not for packed, multi-axis or no positions"
            )
        ids = self.ids if self.valid is None else self.ids.masked_fill(~self.valid, -1)
        start = ids.amax(-1) + 1
        return Positions.arange(n, offset=start)

    def span(self) -> tuple[int, int]:
        """The lowest and the highest position, (0, -1) when there are none; found once and remembered.

        An absolute table asks this before it looks anything up. On a GPU the first call waits for the device.
        """
        if self.ids.numel() == 0:
            return 0, -1
        low, high = self.remember("span", lambda: [int(end) for end in self.ids.aminmax()])
        return low, high

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
