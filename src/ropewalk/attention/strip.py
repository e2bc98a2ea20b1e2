"""A bias that depends on distance alone, without its n × n matrix: 2n - 1 numbers a head, in a strip."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.attention import traced
from ropewalk.attention.banded import Strip, banded, distances
from ropewalk.attention.call import ROWS, Call, acting
from ropewalk.attention.masks import Segment, by_segment
from ropewalk.protocol import PositionalEncoding


def refuses(call: Call) -> str | None:
    """Why it cannot serve this, or None."""
    encoding = call.encoding
    for hook, what in (("score", "acts on the scores themselves"), ("value", "adds to the values")):
        who = acting(encoding, hook)
        if who is not None:
            return f"{who} {what}, and a strip holds a bias only"
    if acting(encoding, "bias") is None:
        return f"{encoding.label} adds no bias, so there is nothing to hold in a strip"
    if not encoding.distance_only:
        return f"the bias of {encoding.label} depends on more than the distance (distance_only is False)"
    if torch.compiler.is_compiling():
        return traced.refuses(call)
    if call.segments is None:
        return "positions jump too often for distances to lie along diagonals"
    return None


def run(call: Call) -> Tensor:
    """One strip for all segments (one a document, say), unless they lie far apart; each takes its part of it."""
    rows, found = call.block or ROWS, call.segments
    if torch.compiler.is_compiling():
        return traced.run(call, by_distance)
    assert found is not None
    strips: dict[bool, Strip] = {}
    for causal in {s.causal for s in found}:
        alike = [s for s in found if s.causal is causal]
        low, high = distances(alike, call.mask)
        if high - low < 4 * (call.q.shape[2] + call.k.shape[2]):  # or else samples stand far apart
            strips[causal] = of_bias(call, alike, rows)

    def within(q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
        strip = strips[segment.causal] if segment.causal in strips else of_bias(call, [segment], rows)
        return banded(q, k, v, strip, segment, call.mask, scale=call.scale, rows=rows)

    return by_segment(call.q, call.k, call.v, found, within)


def of_bias(call: Call, found: list[Segment], rows: int) -> Strip:
    """The strip of the encoding's `bias`, which is called once for each distance."""
    low, high = distances(found, call.mask)
    values = by_distance(call, low, high)
    if values is None:
        return Strip.of_mask(call.q.to(call.work), found, call.mask, rows)
    _hold_to_claim(call.encoding, values.detach(), low, found[0])
    return Strip.framed(values, low, rows, holes=bool(values.isneginf().any()))


def by_distance(call: Call, low: int, high: int) -> Tensor | None:
    """The encoding's `bias` at the distances from `low` to `high`, `(heads, distances)`; None if it has no such term.

    Autocast would let a hook that multiplies compute in half precision, which no other path does.
    """
    heads = call.encoding.head_numbers(call.q.shape[1], call.q.device)[:, None]
    d = torch.arange(low, high + 1, device=call.q.device)
    with torch.autocast(call.q.device.type, enabled=False):
        values = call.encoding.bias(heads, (-d).clamp(min=0), d.clamp(min=0))  # positions from 0, as texts have them
    return None if values is None else values.expand(len(heads), len(d)).to(call.work)


@torch.no_grad()
def _hold_to_claim(encoding: PositionalEncoding, values: Tensor, low: int, segment: Segment) -> None:
    """A few entries at positions that occur: a class that claims `distance_only` wrongly would be served wrongly."""
    n, high = segment.queries[1] - segment.queries[0], low + values.shape[1] - 1
    keys = segment.first - segment.offset, segment.first - segment.offset + segment.kept - 1
    at = [
        (i, i + d)
        for i in (segment.first, segment.first + n - 1)
        for d in (low, (low + high) // 2, high)
        if keys[0] <= i + d <= keys[1]
    ]
    if not at:
        return
    i, j = torch.tensor(at, device=values.device).T
    with torch.autocast(values.device.type, enabled=False):
        found = encoding.bias(encoding.head_numbers(len(values), values.device)[:, None], i, j)
    wanted = values[:, j - i - low]
    if found is None or not torch.allclose(found.to(wanted.dtype).expand_as(wanted), wanted, rtol=1e-2, atol=1e-3):
        raise ValueError(
            f"{encoding.label} claims distance_only, but its bias at positions {at} is not what it is at the same "
            "distances elsewhere; set distance_only = False in the class"
        )
