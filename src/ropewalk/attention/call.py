"""One call of attention, checked: what every path is given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ropewalk.attention.masks import Mask, Segment, segments
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import Compose, PositionalEncoding, check_tokens

ROWS = 256
"""Query rows a block at most: enough for kernels to be at their best, few enough to skip nearly all that is masked."""

SCORES = 2**21
"""How many scores are worked on at once: 8 MiB in float32, and several times that is held."""


@dataclass(frozen=True)
class Call:
    """Shapes as in [`attend`][ropewalk.attend]; positions are lines, which say what came before what."""

    q: Tensor
    k: Tensor
    v: Tensor
    encoding: PositionalEncoding
    positions: Positions
    key_positions: Positions
    mask: Mask
    scale: float
    block: int | None
    raw: tuple[Positions, Positions | None]
    """Positions as the hooks of place 2 take them, with all their axes; None for keys encoded already."""
    memo: dict[str, list[Segment] | None] = field(default_factory=dict, compare=False)
    """What was found out about the positions; the call goes on with it when its keys are encoded."""

    @property
    def segments(self) -> list[Segment] | None:
        """Where positions count up one by one; None where they do not, or cannot be looked at."""
        if torch.compiler.is_compiling() or self.q.device.type == "meta":
            return None
        if "segments" not in self.memo:
            self.memo["segments"] = segments(self.positions, self.key_positions, self.mask, self.q.shape[0])
        return self.memo["segments"]

    @property
    def known(self) -> tuple[int, int] | None:
        """Where the first query and the first key stand, if all others are known without looking to follow in a row.

        For compilers, which cannot look. An exported graph is to run where our operators may not be.
        """
        if torch.compiler.is_exporting() or self.mask.prefix is not None:
            return None
        first, key_first = (
            p.first if p.documents is None and p.valid is None else None for p in (self.positions, self.key_positions)
        )
        return None if first is None or key_first is None else (first, key_first)

    @property
    def work(self) -> torch.dtype:
        """In which dtype to compute."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def encoded(self) -> Call:
        """The same after place 2."""
        at, key_at = self.raw
        k = self.k if key_at is None else self.encoding.key(self.k, key_at)
        return replace(self, q=self.encoding.query(self.q, at), k=k)

    def rows(self, samples: int | None = None, keys: int | None = None, most: int = SCORES) -> int:
        """How many query rows to work on at once: as asked, or so that a block has about so many scores at most.

        Products of few rows are slow, so below 32 rows a block may have twice as many.
        """
        samples, keys = self.q.shape[0] if samples is None else samples, self.k.shape[2] if keys is None else keys
        fit = most // (samples * self.q.shape[1] * max(keys, 1))
        return self.block or max(min(ROWS, fit), min(32, 2 * fit), 8)


def parts(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    """The encoding itself, or what a composition is made of."""
    every = [e for e in encoding.modules() if isinstance(e, PositionalEncoding)]
    return [e for e in every if type(e) is not Compose]


def acting(encoding: PositionalEncoding, hook: str) -> str | None:
    """The label of the part that overrides this hook, or None."""
    return next(
        (e.label for e in parts(encoding) if getattr(type(e), hook) is not getattr(PositionalEncoding, hook)), None
    )


def check_heads(encoding: PositionalEncoding, heads: int) -> None:
    """Refuse queries of another number of heads than an encoding was made for.

    Raises:
        ValueError: naming both.
    """
    if encoding.heads is not None and encoding.heads != heads:  # `in` does not know sizes that are symbols
        some = "; for some of its heads take encoding.of_heads(first, count)" if heads < (encoding.heads or 0) else ""
        raise ValueError(f"{encoding.label} was made for {encoding.heads} heads, q has {heads}{some}")


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding,
    positions: PositionsLike,
    *,
    key_positions: PositionsLike | None,
    keys_encoded: bool,
    mask: Mask,
    scale: float | None,
    block: int | None,
) -> Call:
    """The call, or a ValueError that says what does not fit."""
    pos = Positions.of(positions).to(q.device)
    key_pos = pos if key_positions is None else Positions.of(key_positions).to(q.device)
    _check(q, k, v, encoding, pos, key_pos, mask, block)
    raw = (pos, None if keys_encoded else key_pos)
    if key_positions is None or (not mask.causal and mask.window is None):
        pos, key_pos = pos.ordered(), key_pos.ordered()
    if isinstance(mask.prefix, Tensor):
        mask = replace(mask, prefix=mask.prefix.to(q.device))
    scale = q.shape[-1] ** -0.5 * encoding.softmax_multiplier if scale is None else scale
    return Call(q, k, v, encoding, pos.line(), key_pos.line(), mask, scale, block, raw)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding,
    pos: Positions,
    key_pos: Positions,
    mask: Mask,
    block: int | None,
) -> None:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(
            f"q, k and v are (batch, heads, tokens, head_dim), got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly")
    check_heads(encoding, q.shape[1])
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
    if encoding.causal_only and (not mask.causal or mask.prefix is not None):
        given = "causal=False" if not mask.causal else "a prefix"
        raise ValueError(
            f"{encoding.label} is defined for causal attention only, where a key never follows its query, got {given}; "
            "give causal=True and no prefix, or build it with bidirectional=True if it has that option"
        )
    _check_mask(mask, q.shape[0])
    if block is not None and block < 1:
        raise ValueError(f"block is a positive number of query rows, got {block}")


def _check_mask(mask: Mask, batch: int) -> None:
    if mask.window is not None and mask.window < 1:
        raise ValueError(f"window is a positive number of positions, got {mask.window}")
    if mask.prefix is None:
        return
    if not mask.causal:
        raise ValueError("a prefix is what a causal mask leaves open: with causal=False everything is")
    if isinstance(mask.prefix, Tensor):
        if mask.prefix.is_floating_point() or tuple(mask.prefix.shape) not in ((), (1,), (batch,)):
            raise ValueError(
                f"prefix is an int or one a sample, integers of shape ({batch},), "
                f"got {mask.prefix.dtype} {tuple(mask.prefix.shape)}"
            )
    elif mask.prefix < 0:
        raise ValueError(f"prefix is 0 or more positions, got {mask.prefix}")
