"""Attention with positions on several axes: causal by the order of the sequence, whatever the axes say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import HEAD_DIM, HEADS, KV_HEADS, close
from ropewalk import ALiBi, Bands, Compose, Image, KeyCache, Positions, RoPE, attend

ROPE = RoPE(HEAD_DIM, bands=Bands.interleaved((2, 1, 1)))
POS = Positions.interleave([2, Image(2, 3), 3])
N = len(POS)


def drawn(heads: int, seed: int) -> Tensor:
    return torch.randn(2, heads, N, HEAD_DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q, K, V = drawn(HEADS, 1), drawn(KV_HEADS, 2), drawn(KV_HEADS, 3)


def by_hand(causal: bool) -> Tensor:
    q, k = ROPE.query(Q, POS), ROPE.key(K, POS).repeat_interleave(HEADS // KV_HEADS, 1)
    s = q @ k.mT / HEAD_DIM**0.5
    if causal:
        s = s.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    return s.softmax(-1) @ V.repeat_interleave(HEADS // KV_HEADS, 1)


@pytest.mark.parametrize("causal", [True, False])
def test_causal_goes_by_the_order_of_the_sequence(causal: bool) -> None:
    close(attend(Q, K, V, ROPE, POS, causal=causal), by_hand(causal))
    close(attend(Q, K, V, ROPE, POS.ids, causal=causal, block=4), by_hand(causal))


@given(st.sets(st.integers(1, N - 1)))
def test_any_split_with_a_cache_equals_the_whole(cuts: set[int]) -> None:
    cache, out = KeyCache(ROPE), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), N], strict=True):
        here = POS[begin:end]
        if begin >= N - 3:  # the text at the end, as decoding finds it
            here = cache.next_positions(end - begin)
            assert torch.equal(here.ids, POS.ids[..., begin:end])
        cache.append(ROPE.key(K[:, :, begin:end], here), V[:, :, begin:end], here)
        out.append(cache.attend(Q[:, :, begin:end], ROPE, here))
    close(torch.cat(out, 2), by_hand(causal=True))


@given(st.integers(1, 5), st.sampled_from(["zigzag", "contiguous", "striped"]))
def test_sharded_equals_whole(world: int, scheme: str) -> None:
    shards = [POS.shard(rank, world, scheme=scheme) for rank in range(world)]
    index = [Positions.shard_index(N, rank, world, scheme=scheme) for rank in range(world)]
    order = torch.cat(index)
    keys = {"key_positions": Positions.cat(shards), "keys_encoded": True}
    k = torch.cat([ROPE.key(K[:, :, i], p) for i, p in zip(index, shards, strict=True)], 2)
    out = [attend(Q[:, :, i], k, V[:, :, order], ROPE, p, **keys) for i, p in zip(index, shards, strict=True)]
    close(torch.cat(out, 2)[:, :, Positions.unshard_index(N, world, scheme=scheme)], by_hand(causal=True))


def test_packed_pictures_do_not_see_each_other() -> None:
    one, other = Positions.interleave([1, Image(2, 2)]), Positions.interleave([Image(3, 1), 3])
    ids = torch.cat((one.ids, other.ids), -1)
    packed = Positions(ids, documents=torch.tensor([0] * 5 + [1] * 6))
    expected = [
        attend(Q[:, :, s], K[:, :, s], V[:, :, s], ROPE, p) for s, p in ((slice(0, 5), one), (slice(5, N), other))
    ]
    close(attend(Q, K, V, ROPE, packed), torch.cat(expected, 2))


def test_what_does_not_go_together_is_refused() -> None:
    one = Q[:, :, -1:]
    unknown = Positions(POS.after().ids)
    with pytest.raises(ValueError, match="do not say which token came first"):
        attend(one, K, V, ROPE, unknown, key_positions=POS)
    attend(one, K, V, ROPE, unknown, key_positions=POS, causal=False)
    with pytest.raises(ValueError, match="queries' positions have 1 axes and the keys' 3"):
        attend(one, K, V, ROPE, [6], key_positions=POS)
    with pytest.raises(ValueError, match="Compose takes one position a token, these positions have 3 axes"):
        attend(Q, K, V, Compose(ROPE, ALiBi(HEADS)), POS)
    with pytest.raises(ValueError, match="3 axes: give bands"):
        attend(Q, K, V, RoPE(HEAD_DIM), POS)
