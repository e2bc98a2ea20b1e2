"""Who may look at whom: causal, sliding windows, prefixes, documents, padding; and the runs of tokens that share one.

A mask is a rule on positions, never a matrix that is kept: [`visible`][] evaluates it on a block, [`segments`][] finds
the parts of a call in which positions count up one by one, where the rule is a band and most of it can be skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from ropewalk.positions import Positions


@dataclass(frozen=True)
class Mask:
    """The rule, apart from documents and padding, which positions carry.

    Args:
        causal: a query sees the keys whose position is not after its own.
        window: of those, only the ones less than this many positions away (on both sides without `causal`), itself
            included.
        prefix: positions below this one are seen by all queries, earlier ones too (prefix-LM); an int, or `(B,)`.
            It lifts `causal` and nothing else: window, documents and padding stay.
    """

    causal: bool = True
    window: int | None = None
    prefix: int | Tensor | None = None

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Elementwise: may a query at position i look at a key at position j? On grids, or on scalars."""
        seen = (j <= i) | (not self.causal)
        if self.prefix is not None:
            p = self.prefix
            # one number a sample stands before the axes of heads, queries and keys
            seen = seen | (j < (p[:, None, None, None] if isinstance(p, Tensor) and p.dim() else p))
        if self.window is not None:
            seen = seen & ((i - j).abs() < self.window)
        return seen

    @property
    def before(self) -> int | None:
        """How far back a query sees; None: to the beginning."""
        return None if self.window is None else self.window - 1

    @property
    def after(self) -> int | None:
        """How far ahead a query sees, prefix aside; None: to the end."""
        return 0 if self.causal else self.before


def visible(positions: Positions, key_positions: Positions, mask: Mask) -> Tensor:
    """True where a query may look at a key: booleans `(Q, K)` or `(B, 1, Q, K)`.

    Not at padding, not into another document, and only where the mask allows.
    """
    i, j = by_head(positions.ids)[..., :, None], by_head(key_positions.ids)[..., None, :]
    seen = mask.sees(i, j)
    if positions.documents is not None and key_positions.documents is not None:
        seen = seen & (by_head(positions.documents)[..., :, None] == by_head(key_positions.documents)[..., None, :])
    if positions.valid is not None:
        seen = seen & by_head(positions.valid)[..., :, None]
    if key_positions.valid is not None:
        seen = seen & by_head(key_positions.valid)[..., None, :]
    return seen


def by_head(t: Tensor) -> Tensor:
    """A head axis for batched positions: (S,) stays, (B, S) becomes (B, 1, S)."""
    return t if t.dim() == 1 else t[:, None]


@dataclass(frozen=True)
class Segment:
    """Queries and keys whose positions count up one by one, and that see nobody else."""

    row: int | None
    """Which sample; None: all of them alike."""
    queries: tuple[int, int]
    """From which index to which."""
    keys: tuple[int, int]
    """The same of the keys."""
    kept: int
    """How many of those keys, from the first, any of the queries may see."""
    first: int
    """Position of the first query."""
    offset: int
    """Position of the first query less that of the first key."""
    causal: bool

    def mask(self, mask: Mask) -> Mask:
        """The rule within the segment: a band."""
        return Mask(causal=self.causal, window=mask.window)

    def seeing(self, mask: Mask) -> tuple[int, int]:
        """The rows, counted from the first query, that see any key; the others see none."""
        band, n = self.mask(mask), self.queries[1] - self.queries[0]
        low = 0 if band.after is None else -(self.offset + band.after)
        high = n if band.before is None else self.kept + band.before - self.offset
        low = min(max(low, 0), n)
        return low, max(min(high, n), low)

    def reach(self, mask: Mask, rows: range) -> tuple[int, int]:
        """The keys, counted from the first, that some of these rows see."""
        band = self.mask(mask)
        low = 0 if band.before is None else max(self.offset + rows.start - band.before, 0)
        high = self.kept if band.after is None else min(self.offset + rows.stop + band.after, self.kept)
        return low, max(low, high)

    def sure(self, mask: Mask, rows: range) -> tuple[int, int]:
        """The keys that all of these rows see."""
        band = self.mask(mask)
        low = 0 if band.before is None else max(self.offset + rows.stop - 1 - band.before, 0)
        high = self.kept if band.after is None else min(self.offset + rows.start + band.after + 1, self.kept)
        return low, max(low, high)


def segments(positions: Positions, key_positions: Positions, mask: Mask, batch: int) -> list[Segment] | None:
    """The segments of a call, in the order of its queries, or None: positions jump too much for that to be worth while.

    One for plain text, one a document when packed, one a sample when padded, two a shard that is split zig-zag.
    """
    many = any(len(p.shape) == 2 and p.shape[0] > 1 for p in (positions, key_positions))
    prefixes = [mask.prefix] if not isinstance(mask.prefix, Tensor) else mask.prefix.flatten().tolist()
    rows = range(batch if many or len(prefixes) > 1 else 1)
    apart = positions.documents is not None and key_positions.documents is not None
    each: list[list[Segment]] = []
    for row in rows:
        keys: dict[int, list[_Run]] = {}
        for run in _runs(key_positions, row):
            keys.setdefault(run.document if apart else 0, []).append(run)
        mine: list[Segment] = []
        for run in _runs(positions, row):
            seen = keys.get(run.document if apart else 0, [])
            if len(seen) > 1:
                return None
            mine += [part for other in seen for part in _meet(run, other, mask.causal, prefixes[row % len(prefixes)])]
        each.append(mine)
    if all(mine == each[0] for mine in each):
        found = each[0]
    else:
        found = [replace(part, row=row) for row, mine in enumerate(each) for part in mine]
    pairs = sum((s.queries[1] - s.queries[0]) * s.kept for s in found)
    some = 8 * len(rows)  # few enough, whatever they cost; each call costs about as much as this many scores
    worth = len(found) <= some or len(found) * 2**14 + pairs <= 2 * len(positions) * len(key_positions) * len(rows)
    return found if worth else None


@dataclass(frozen=True)
class _Run:
    start: int
    stop: int
    first: int
    document: int


def _runs(positions: Positions, row: int) -> list[_Run]:
    """Maximal runs of tokens of one document, none of them padding, whose positions count up one by one."""

    def find() -> list[_Run]:
        def of_row(t: Tensor | None) -> Tensor | None:
            return t if t is None or t.dim() == 1 else t[min(row, len(t) - 1)]

        ids, documents, valid = (of_row(t) for t in (positions.ids, positions.documents, positions.valid))
        if ids is None or not len(ids):
            return []
        breaks = ids.diff() != 1
        for extra in (documents, valid):
            if extra is not None:
                breaks = breaks | (extra[1:] != extra[:-1])
        starts = [0, *(breaks.nonzero()[:, 0] + 1).tolist()]
        stops = [*starts[1:], len(ids)]
        at = torch.tensor(starts, device=ids.device)
        firsts = ids[at].tolist()
        names = [0] * len(starts) if documents is None else documents[at].tolist()
        real = [True] * len(starts) if valid is None else valid[at].tolist()
        return [
            _Run(*r) for r, is_real in zip(zip(starts, stops, firsts, names, strict=True), real, strict=True) if is_real
        ]

    return positions.remember(("runs", row, positions.versions()), find)


def _meet(queries: _Run, keys: _Run, causal: bool, prefix: int | None) -> list[Segment]:
    """One segment; two where a prefix ends among the queries, since those before see it whole."""
    within = 0 if prefix is None or not causal else min(max(prefix - queries.first, 0), queries.stop - queries.start)
    kept = keys.stop - keys.start
    parts: list[tuple[int, int, int, bool]] = []
    if within:
        assert prefix is not None
        below = min(max(prefix - keys.first, 0), kept)
        parts.append((queries.start, queries.start + within, below, False))
    if queries.start + within < queries.stop:
        parts.append((queries.start + within, queries.stop, kept, causal))
    made = []
    for start, stop, seen, is_causal in parts:
        first = queries.first + start - queries.start
        if seen:
            made.append(
                Segment(None, (start, stop), (keys.start, keys.stop), seen, first, first - keys.first, is_causal)
            )
    return made


Within = Callable[[Tensor, Tensor, Tensor, Segment], Tensor]
"""Attention inside one segment: its queries `(B, heads, rows, head_dim)`, keys and values → `(B, heads, rows, any)`."""


def by_segment(q: Tensor, k: Tensor, v: Tensor, found: list[Segment], within: Within) -> Tensor:
    """Attention segment by segment; rows of no segment see nothing and are zeros.

    Tensors are split and put together again as wholes, so that gradients are too: slices would each cost one of full
    length.
    """
    width = v.shape[-1]
    if len(found) == 1 and found[0].row is None and found[0].queries == (0, q.shape[2]) and found[0].keys[0] == 0:
        return within(q, k, v, found[0])
    rows = any(s.row is not None for s in found)
    samples = [t[:, None].unbind(0) if rows else [t] for t in (q, k, v)]
    out = []
    for row, (q_row, k_row, v_row) in enumerate(zip(*samples, strict=True)):
        mine = [s for s in found if s.row in (None, row)]
        q_parts = _split(q_row, [s.queries for s in mine])
        k_parts, v_parts = (_split(t, [s.keys for s in mine]) for t in (k_row, v_row))
        made = {s.queries: within(q_parts[s.queries], k_parts[s.keys], v_parts[s.keys], s) for s in mine}
        pieces = [made[at] if at in made else unseeing(part, width) for at, part in q_parts.items()]
        out.append(torch.cat(pieces, 2))
    return torch.cat(out)


def unseeing(q: Tensor, width: int) -> Tensor:
    """The output of queries that see nothing: zeros, which belong to the graph of `q` all the same."""
    return pad(q[..., :0], (0, width))


def _split(t: Tensor, spans: list[tuple[int, int]]) -> dict[tuple[int, int], Tensor]:
    """The token axis cut at the ends of all spans: every piece under (start, stop)."""
    cuts = sorted({0, t.shape[2], *(end for span in spans for end in span)})
    at = list(pairwise(cuts))
    pieces: tuple[Tensor, ...] = torch.split(t, [stop - start for start, stop in at], dim=2)
    return dict(zip(at, pieces, strict=True))
