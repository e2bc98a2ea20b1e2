"""The article's second experiment: the score against distance, and an honest answer to whether it decays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ropewalk.measure.compare import pair_of_vectors
from ropewalk.measure.panel import panel, raw_scores
from ropewalk.positions import Positions


@dataclass(frozen=True)
class Rebound:
    """The largest rise after a fall: from `low` at distance `low_at` to `high` at the greater distance `high_at`."""

    low_at: int
    low: float
    high_at: int
    high: float


@dataclass(frozen=True)
class Curve:
    """The score of one encoding at each distance from 0.

    `spread` is the standard deviation over the pairs of vectors at each distance, None for a single pair. `beyond[d]`
    is the highest score at any distance greater than d (None at the last one): a curve that never returns would have it
    fall below the score at once.
    """

    encoding: str
    scores: tuple[float, ...]
    spread: tuple[float, ...] | None
    beyond: tuple[float | None, ...]
    rebound: Rebound | None


@dataclass(frozen=True)
class Decay:
    """The experiment's settings and its curves."""

    dim: int
    query: int
    length: int
    vectors: str
    pairs: int
    seed: int
    curves: tuple[Curve, ...]

    def json(self) -> dict[str, Any]:
        """What `ropewalk decay --json` prints."""
        return {"schema": "ropewalk.decay/1", **asdict(self)}


def decay(
    *,
    dim: int = 64,
    query: int = 0,
    length: int = 100,
    vectors: str = "ones",
    pairs: int = 1000,
    seed: int = 42,
    encodings: Sequence[str] = ("rope",),
) -> Decay:
    """Scores at distances 0 … length. The defaults are the article's curve: RoPE, vectors of ones, query at 0.

    With `vectors="random"` query and key are drawn independently, `pairs` times, each key standing at every distance in
    turn: mean and spread.

    Args:
        dim: width of the vectors, even.
        query: position of the query; keys stand after it.
        length: the greatest distance.
        vectors: `"ones"`, `"random"`, or a `.npy` file as in `compare`.
        pairs: how many random pairs.
        seed: for learned tables and random vectors.
        encodings: names; no name gives all.

    >>> curve = decay().curves[0]
    >>> round(curve.scores[96], 1), round(curve.scores[100], 1)
    (21.5, 35.7)

    Raises:
        ValueError: a negative query, length or number of pairs below 1, and as in `compare`.
    """
    if query < 0 or length < 1 or pairs < 1:
        raise ValueError(f"query is 0 or more, length and pairs 1 or more; got {query}, {length} and {pairs}")
    drawn = panel(dim=dim, length=query + length + 1, seed=seed, names=encodings)
    at = Positions.arange(length + 1, offset=query)
    if vectors == "random":
        both = torch.randn(2, pairs, dim, generator=torch.Generator().manual_seed(seed))
        q, k = both[0], both[1]
    else:
        one, other = pair_of_vectors(vectors, dim, seed)
        q, k, pairs = one[None], other[None], 1
    curves = []
    for name, encoding in drawn.items():
        some_at_once = zip(torch.split(q, 64), torch.split(k, 64), strict=True)  # to bound the memory
        found = torch.cat(
            [
                raw_scores(encoding, some, others[:, None].expand(-1, length + 1, dim), query, at)
                for some, others in some_at_once
            ]
        ).double()
        spread = tuple(found.std(0).tolist()) if pairs > 1 else None
        curves.append(_curve(name, found.mean(0).tolist(), spread))
    return Decay(dim, query, length, vectors, pairs, seed, tuple(curves))


def _curve(name: str, scores: list[float], spread: tuple[float, ...] | None) -> Curve:
    beyond: list[float | None] = [None]
    for score in reversed(scores[1:]):
        beyond.append(score if beyond[-1] is None else max(score, beyond[-1]))
    return Curve(name, tuple(scores), spread, tuple(reversed(beyond)), _rebound(scores))


def _rebound(scores: list[float]) -> Rebound | None:
    best, lowest = None, 0
    for at, score in enumerate(scores):
        if score < scores[lowest]:
            lowest = at
        if score > scores[lowest] and (best is None or score - scores[lowest] > best.high - best.low):
            best = Rebound(lowest, scores[lowest], at, score)
    return best
