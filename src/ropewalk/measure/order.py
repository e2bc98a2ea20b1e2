"""Whether attention can tell two orders of the same tokens apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ropewalk.attention import attend
from ropewalk.measure.panel import panel
from ropewalk.positions import Positions

PAIRS = (
    ("犬が人を噛む", "人が犬を噛む"),
    ("I drink coffee in a café", "in a café I drink coffee"),
)
"""The articles' examples: the same tokens, in two orders."""

ROUNDING = 1e-12
"""Relative difference, in float64, below which two outputs are called identical."""


@dataclass(frozen=True)
class Told:
    """One encoding: how far apart the two pooled outputs are, relative to their size, and if beyond rounding."""

    encoding: str
    difference: float
    told_apart: bool


@dataclass(frozen=True)
class WordOrder:
    """The experiment's settings and its rows."""

    first: str
    second: str
    tokens: tuple[str, ...]
    mirrored: bool
    causal: bool
    dim: int
    seed: int
    rows: tuple[Told, ...]

    def json(self) -> dict[str, Any]:
        """What `ropewalk order --json` prints for one pair."""
        return {"schema": "ropewalk.order/1", **asdict(self)}


def order(
    first: str,
    second: str,
    *,
    causal: bool = False,
    dim: int = 64,
    seed: int = 42,
    encodings: Sequence[str] = (),
) -> WordOrder:
    """Pool the attention output of both word orders and see whether it differs, for each encoding.

    Every different token has one random vector; query, key and value are random projections, the same for both orders;
    outputs are averaged over the tokens. Without an encoding attention is permutation-equivariant, so the averages
    agree to rounding. A causal mask alone breaks this: try `causal=True`. Where one order is the mirror image of the
    other (`mirrored`), a bias of the bare distance |i - j| cannot tell them apart either.

    Args:
        first: a sentence: words between spaces, or, where there is no space, characters.
        second: the same tokens in another order.
        causal: whether a token sees only those before it.
        dim: width of the vectors, even.
        seed: for vectors, projections and learned tables.
        encodings: names; all by default.

    >>> rows = order("dog bites man", "man dog bites").rows
    >>> [(row.encoding, row.told_apart) for row in rows[:2]]
    [('nope', False), ('sinusoidal', True)]

    Raises:
        ValueError: not the same tokens, the same order, fewer than two tokens.
    """
    one, other = tokens(first, second)
    drawn = panel(dim=dim, length=len(one), seed=seed, names=encodings)
    random = torch.Generator().manual_seed(seed)
    vocabulary = {t: torch.randn(dim, generator=random, dtype=torch.float64) for t in dict.fromkeys(one)}
    project = torch.randn(3, dim, dim, generator=random, dtype=torch.float64) * dim**-0.5
    x = torch.stack([torch.stack([vocabulary[t] for t in text]) for text in (one, other)])  # (2, S, dim)
    pos = Positions.arange(len(one))
    rows = []
    for name, encoding in drawn.items():
        q, k, v = (encoding.double().embed(x, pos)[None] @ project[:, None]).unsqueeze(-3)  # (2, 1, S, dim) each
        pooled = attend(q, k, v, encoding, pos, causal=causal).mean(dim=(1, 2))
        difference = float((pooled[0] - pooled[1]).norm() / pooled[0].norm())
        rows.append(Told(name, difference, difference > ROUNDING))
    return WordOrder(first, second, tuple(one), one == other[::-1], causal, dim, seed, tuple(rows))


def tokens(first: str, second: str) -> tuple[list[str], list[str]]:
    """Both sentences cut into the same tokens: words if either has a space, else characters."""
    one, other = first.split(), second.split()
    if len(one) <= 1 and len(other) <= 1:
        one, other = list(first.strip()), list(second.strip())
    missing, extra = Counter(one) - Counter(other), Counter(other) - Counter(one)
    if missing or extra:
        raise ValueError(
            f"the two must have the same tokens in another order, but only the first has {sorted(missing.elements())} "
            f"and only the second {sorted(extra.elements())}"
        )
    if len(one) < 2 or one == other:
        raise ValueError(f"the two are the same order of the same tokens: {first!r} and {second!r}")
    return one, other
