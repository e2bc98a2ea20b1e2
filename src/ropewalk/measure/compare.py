"""The article's first experiment: one query, a few keys, every encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.measure.panel import panel, raw_scores
from ropewalk.positions import Positions


@dataclass(frozen=True)
class Score:
    """One number: what the query's product with the key at `distance` (key minus query) is under one encoding."""

    encoding: str
    distance: int
    score: float


@dataclass(frozen=True)
class Comparison:
    """The experiment's settings and its numbers, encodings in teaching order, keys in the order given."""

    dim: int
    query: int
    keys: tuple[int, ...]
    vectors: str
    seed: int
    rows: tuple[Score, ...]

    def json(self) -> dict[str, Any]:
        """What `ropewalk compare --json` prints."""
        return {"schema": "ropewalk.compare/1", **asdict(self)}

    def table(self) -> dict[str, list[float]]:
        """Scores by encoding, one for each key."""
        out: dict[str, list[float]] = {}
        for row in self.rows:
            out.setdefault(row.encoding, []).append(row.score)
        return out


def compare(
    *,
    dim: int = 64,
    query: int = 2,
    keys: Sequence[int] = (3, 5, 20),
    vectors: str = "ones",
    seed: int = 42,
    encodings: Sequence[str] = (),
) -> Comparison:
    """Scores of a query at one position with keys at several. The defaults are the article's, and give its numbers.

    Scores are raw products, without the softmax scale. An encoding that reads the other keys (CoPE counts them) is
    given the listed keys and no others.

    Args:
        dim: width of the vectors, even.
        query: position of the query.
        keys: positions of the keys.
        vectors: `"ones"`, `"random"` (normal, from the seed), or the path of a `.npy` file with one vector `(dim,)`, or
            two, query and key, `(2, dim)`.
        seed: for learned tables and random vectors.
        encodings: names; all by default.

    >>> [round(s, 4) for s in compare(encodings=["rope"]).table()["rope"]]
    [61.8337, 51.1741, 40.5986]

    Raises:
        ValueError: no keys, negative positions, an odd dim, an unknown encoding, a file that does not hold such
            vectors.
    """
    if not keys or min(query, *keys) < 0:
        raise ValueError(
            f"positions are 0 or more and there is at least one key, got query {query} and keys {list(keys)}"
        )
    drawn = panel(dim=dim, length=max(query, *keys) + 1, seed=seed, names=encodings)
    q, k = pair_of_vectors(vectors, dim, seed)
    at = Positions(list(keys))
    rows = []
    for name, encoding in drawn.items():
        found = raw_scores(encoding, q, k.expand(len(at), dim), query, at).tolist()
        rows += [Score(name, key - query, score) for key, score in zip(keys, found, strict=True)]
    return Comparison(dim, query, tuple(keys), vectors, seed, tuple(rows))


def pair_of_vectors(vectors: str, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """A query and a key vector, `(dim,)` each, float32."""
    if vectors == "ones":
        return torch.ones(dim), torch.ones(dim)
    if vectors == "random":
        drawn = torch.randn(2, dim, generator=torch.Generator().manual_seed(seed))
        return drawn[0], drawn[1]
    if not vectors.endswith(".npy"):
        raise ValueError(f"vectors are 'ones', 'random' or a .npy file, got {vectors!r}")
    try:
        found = np.load(Path(vectors), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{vectors} cannot be read as a .npy file: {error}") from error
    if found.shape not in ((dim,), (2, dim)) or found.dtype.kind not in "fiu":
        raise ValueError(
            f"{vectors} holds {found.dtype} of shape {found.shape}; "
            f"wanted are numbers of shape ({dim},), or (2, {dim}) for query and key"
        )
    both = torch.from_numpy(found.astype(np.float32)).reshape(-1, dim)
    if not bool(both.isfinite().all()):
        raise ValueError(f"{vectors} holds numbers that are not finite")
    return both[0], both[-1]
