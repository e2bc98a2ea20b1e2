"""One of each encoding, drawn from one seed and set as the article sets them, to be scored in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention import scores
from ropewalk.encodings import ENCODINGS, build, find
from ropewalk.positions import Positions
from ropewalk.protocol import PositionalEncoding

SETTINGS: dict[str, Any] = {
    "std": 1.0,  # tables are drawn from N(0, 1), as in the article
    "layout": "interleaved",  # and neighbours are paired
    "embedding_scale": 1.0,  # the vectors given are those to which position is added
    "bidirectional": True,  # keys may come after the query
}
"""Options of all encodings that have them; the article's numbers rest on these."""

MAX_POSITION = 1_000_000
"""A learned table is drawn for every position up to the highest, so there is a limit."""


def panel(*, dim: int, length: int, seed: int, names: Sequence[str] = ()) -> dict[str, PositionalEncoding]:
    """The encodings of that name (all of them by default), with one head of width `dim`, for positions below `length`.

    All are always drawn, in the order of the registry, and only then chosen from: a choice never changes a number.

    Raises:
        ValueError: an unknown name, a dim that is odd or below 2, a length that is out of range.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"dim is even and at least 2 (RoPE turns channels in pairs), got {dim}")
    if not 1 <= length <= MAX_POSITION + 1:
        raise ValueError(f"positions run from 0 to {MAX_POSITION:,}, got {length - 1:,}")
    chosen = [find(name).name for name in names]
    torch.manual_seed(seed)
    drawn = {}
    for cls in ENCODINGS:
        asked = cls.parameters_of_constructor()
        options = {n: v for n, v in {**SETTINGS, "length": length}.items() if n in asked}
        drawn[cls.name] = build(cls.name, dim=dim, heads=1, head_dim=dim, **options).requires_grad_(False)
    return {name: drawn[name] for name in chosen or drawn}


def raw_scores(encoding: PositionalEncoding, q: Tensor, k: Tensor, query: int, keys: Positions) -> Tensor:
    """Raw scores of one query with keys around it: `(…, K)` for q `(…, dim)` and k `(…, K, dim)`.

    No softmax, and no scale. The vectors are embeddings and head at once, as in the article: position is added to them,
    they are turned, and the score gets its bias. A key may come after the query.
    """
    at = Positions([query])
    q, k = encoding.embed(q[..., None, :], at), encoding.embed(k, keys)
    q, k = encoding.query(q, at), encoding.key(k, keys)
    return scores(q[..., None, :, :], k[..., None, :, :], encoding, at, keys, causal=False, scale=1.0)[..., 0, 0, :]
