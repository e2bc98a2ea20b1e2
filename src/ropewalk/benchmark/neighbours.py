"""What stands beside the rotation: qk-norm before it, the cache behind it, the angles it needs, one decoded token."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ropewalk.angles import cos_sin
from ropewalk.benchmark import oracle, peers
from ropewalk.benchmark.rotation import BASE, HEAD_DIM, HEADS, KEY_HEADS, Cell, doubled
from ropewalk.benchmark.timing import Contender
from ropewalk.encodings.rope import RoPE
from ropewalk.positions import Positions
from ropewalk.rotation import Layout, norm_rotate, rotate_to_cache
from ropewalk.spectra import geometric

EPSILON = 1e-6
CACHED = 512
"""Tokens that the cache holds already."""

DECODED = 4095
"""Position of the token decoded."""

FLOAT32 = torch.finfo(torch.float32).eps


def norm(cell: Cell) -> list[Contender]:
    """RMSNorm of queries and keys over their channels, then the rotation, as in Qwen3."""
    spectrum = geometric(HEAD_DIM, BASE)
    q, k = xs = cell.query_key()
    weights = [1 + w / 4 for w in cell.draw((HEAD_DIM,), (HEAD_DIM,))]
    cos, sin = cos_sin(torch.arange(cell.length), spectrum)
    out = [torch.empty_like(x) for x in xs]
    found = [Contender("copy_", lambda: [to.copy_(x) for to, x in zip(out, xs, strict=True)], oracle.same(xs))]
    values = oracle.normed(xs, weights, EPSILON)
    for layout in cell.layouts:
        wanted = oracle.turned(values, spectrum.inv_freq, layout).rounded_to(cell.torch_dtype)
        call = partial(_norm_rotated, xs, weights, cos, sin, layout)
        found.append(Contender("fused", call, wanted, layout, roundings=4))
    if "hf" in cell.peers:
        wide, theirs = doubled(cos, sin, cell.torch_dtype), peers.hf()
        norm_q, norm_k = (peers.hf_norm(w, EPSILON) for w in weights)
        wanted = oracle.turned(values, spectrum.inv_freq, "half").rounded_to(cell.torch_dtype)
        found.append(Contender("hf", lambda: theirs(norm_q(q), norm_k(k), *wide), wanted, roundings=6))
    return found


def _norm_rotated(xs: list[Tensor], weights: list[Tensor], cos: Tensor, sin: Tensor, layout: Layout) -> list[Tensor]:
    return [norm_rotate(x, w, cos, sin, layout=layout, epsilon=EPSILON) for x, w in zip(xs, weights, strict=True)]


def cache(cell: Cell) -> list[Contender]:
    """Keys rotated and, with the values, written into a cache that has room."""
    length, here = cell.length, slice(CACHED, CACHED + cell.length)
    k, v = cell.draw((1, KEY_HEADS, length, HEAD_DIM), (1, KEY_HEADS, length, HEAD_DIM))
    keys, values = (torch.zeros(1, KEY_HEADS, CACHED + length, HEAD_DIM, dtype=k.dtype) for _ in range(2))
    new_keys, new_values = keys[:, :, here], values[:, :, here]
    spectrum, at = geometric(HEAD_DIM, BASE), torch.arange(CACHED, CACHED + length)
    cos, sin = cos_sin(at, spectrum)

    def copy() -> tuple[Tensor, Tensor]:
        return new_keys.copy_(k), new_values.copy_(v)

    def written(layout: Layout) -> tuple[Tensor, Tensor]:
        rotate_to_cache(k, v, cos, sin, keys, values, at, layout=layout)
        return new_keys, new_values

    def poison() -> None:
        keys.fill_(torch.nan), values.fill_(torch.nan)

    found = [Contender("copy_", copy, oracle.same((k, v)), prepare=poison)]
    for layout in cell.layouts:
        wanted = oracle.turned((k,), spectrum.inv_freq, layout, first=CACHED).beside(oracle.same((v,)))
        found.append(Contender("into the cache", partial(written, layout), wanted, layout, roundings=2, prepare=poison))
    if "hf" in cell.peers:
        (wide_cos, wide_sin), half = doubled(cos, sin, k.dtype), peers.hf_half()

        def theirs() -> tuple[Tensor, Tensor]:
            turned = k * wide_cos + half(k) * wide_sin
            keys.index_copy_(2, at, turned)
            values.index_copy_(2, at, v)
            return new_keys, new_values

        wanted = oracle.turned((k,), spectrum.inv_freq, "half", first=CACHED).beside(oracle.same((v,)))
        found.append(Contender("hf", theirs, wanted, roundings=3, prepare=poison))
    return found


def angles(cell: Cell) -> list[Contender]:
    """Cosine and sine of every position: exact, or float32 with every column twice."""
    spectrum, at = geometric(HEAD_DIM, BASE), torch.arange(cell.length)
    wanted = oracle.tables(cell.length, spectrum.inv_freq, torch.float32)
    found = [Contender("exact", lambda: cos_sin(at, spectrum), wanted, roundings=1)]
    if "hf" in cell.peers:
        make, like, ids = peers.hf_tables(HEAD_DIM, BASE), torch.empty(0), at[None]
        wide = oracle.Wanted(
            tuple(torch.cat((v, v), -1)[None] for v in wanted.values), wanted.at, wanted.dtype, wanted.largest
        )
        found.append(Contender("hf", lambda: make(like, ids), wide, roundings=2, drift=cell.length * FLOAT32))
    return found


def decode(cell: Cell) -> list[Contender]:
    """One decoded token: its angles and the rotation of its query and key, all that a step needs."""
    spectrum = geometric(HEAD_DIM, BASE)
    q, k = cell.draw((1, HEADS, 1, HEAD_DIM), (1, KEY_HEADS, 1, HEAD_DIM))
    own, at = [q.clone(), k.clone()], torch.tensor([DECODED])

    def in_place(rope: RoPE) -> tuple[Tensor, Tensor]:
        return rope.query_key_(own[0], own[1], Positions(at))

    def from_scratch(rope: RoPE) -> tuple[Tensor, Tensor]:
        return rope.query_key(q, k, Positions(at))

    def fill() -> None:
        own[0].copy_(q), own[1].copy_(k)

    found = []
    for layout in cell.layouts:
        wanted = oracle.turned((q, k), spectrum.inv_freq, layout, first=DECODED)
        rope = RoPE(HEAD_DIM, base=BASE, layout=layout)
        made = partial(Contender, wanted=wanted, layout=layout, roundings=2)
        found += [
            made("query_key", partial(from_scratch, rope)),
            made("in place", partial(in_place, rope), prepare=fill),
        ]
    if "hf" in cell.peers:
        make, theirs, ids = peers.hf_tables(HEAD_DIM, BASE), peers.hf(), torch.tensor([[DECODED]])
        wanted = oracle.turned((q, k), spectrum.inv_freq, "half", first=DECODED)
        found.append(Contender("hf", lambda: theirs(q, k, *make(q, ids)), wanted, roundings=3, drift=DECODED * FLOAT32))
    return found
