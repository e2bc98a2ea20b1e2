"""The key cache: true positions, one spectrum at a time, and keys that move without losing digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import CASES, HEAD_DIM, HEADS, KV_HEADS, Case, Model, by_id, close
from ropewalk import (
    T5,
    ALiBi,
    Bands,
    Compose,
    DynamicNTK,
    DynamicYaRN,
    Image,
    KeyCache,
    Learned,
    LongRoPE,
    NoPE,
    PositionalEncoding,
    Positions,
    RoPE,
    Shaw,
    XPos,
    YaRN,
    attend,
)

N = 11
MOVING = [
    RoPE(HEAD_DIM),
    RoPE(HEAD_DIM, layout="interleaved", rotary_dim=4, place="trailing"),
    RoPE(HEAD_DIM, extension=YaRN(factor=8, original_length=16)),
    RoPE(HEAD_DIM, precision="float32"),
    RoPE(HEAD_DIM, bands=Bands("THWT")),
    XPos(HEAD_DIM, reference=5),
    Compose(RoPE(HEAD_DIM, base=9), RoPE(HEAD_DIM, layout="interleaved")),  # these do not commute
    Compose(RoPE(HEAD_DIM, rotary_dim=4), XPos(HEAD_DIM, rotary_dim=4, place="trailing", base=50), T5(HEADS)),
]


def named(encodings: list[PositionalEncoding]) -> dict[str, Any]:
    return {"argnames": "encoding", "argvalues": encodings, "ids": [f"{i}-{e.name}" for i, e in enumerate(encodings)]}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def filled(encoding: PositionalEncoding, raw: Tensor, pos: Any) -> KeyCache:
    """A cache that holds `raw` keys, and their sums as values."""
    cache = KeyCache(encoding)
    cache.append(encoding.key(raw, pos), raw.sum(-1, keepdim=True), pos)
    return cache


# Any encoding


@pytest.mark.parametrize(**by_id(CASES))
def test_any_split_of_prefill_and_decoding_equals_the_whole(case: Case) -> None:
    model = Model(case)

    @given(st.sets(st.integers(1, N - 1)), st.integers(0, 30))
    def split(cuts: set[int], offset: int) -> None:
        x, pos = model.tokens(2, N), model.arange(N, offset)
        cache, out = KeyCache(model.encoding), []
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), N], strict=True):
            here = cache.next_positions(end - begin) if begin else pos[:end]
            assert torch.equal(here.ids, pos.ids[begin:end])
            q, k, v = model.project(x[:, begin:end], here)
            cache.append(model.encoding.key(k, here), v, here)
            out.append(cache.attend(q, model.encoding, here))
        close(torch.cat(out, 2), model(x, pos))
        # the same by hand
        by_hand = attend(
            q, cache.keys, cache.values, model.encoding, here, key_positions=cache.positions, keys_encoded=True
        )
        assert torch.equal(by_hand, out[-1])

    split()


@pytest.mark.parametrize(**by_id(CASES))
def test_evicted_tokens_are_as_if_never_seen_and_the_others_stay_where_they_were(case: Case) -> None:
    """The same as a mask that hides them, for every encoding that does not count keys."""
    model = Model(case)
    x, pos = model.tokens(1, N), model.arange(N)
    q, k, v = model.project(x, pos)
    cache = KeyCache(model.encoding)
    cache.append(model.encoding.key(k, pos), v, pos)
    gone = torch.tensor([i in (1, 2, 5) for i in range(N)])
    cache.evict(gone)
    assert len(cache) == N - 3
    assert cache.next_positions().ids.tolist() == [model.start + N]
    hidden = Positions(pos.ids, valid=~gone)
    expected = attend(q[:, :, -1:], k, v, model.encoding, pos[-1:], key_positions=hidden)
    close(cache.attend(q[:, :, -1:], model.encoding, pos[-1:]), expected)


def test_left_padding_and_documents_are_kept() -> None:
    rope = RoPE(HEAD_DIM)
    raw = random(2, KV_HEADS, 5, HEAD_DIM)
    padded = Positions.left_padded(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
    cache = filled(rope, raw, padded)
    assert cache.next_positions().ids.tolist() == [[3], [5]]
    new = cache.next_positions()
    one = random(2, KV_HEADS, 1, HEAD_DIM, seed=1)
    cache.append(rope.key(one, new), one.sum(-1, keepdim=True), new)
    assert cache.positions.ids[:, -1].tolist() == [3, 5]
    q = random(2, HEADS, 1, HEAD_DIM, seed=2)
    out = cache.attend(q, rope, new)
    alone = filled(rope, torch.cat((raw[:1, :, 2:], one[:1]), 2), torch.arange(4))
    close(out[:1], alone.attend(q[:1], rope, [3]))
    cache.evict(slice(0, 3))
    assert cache.positions.valid is not None
    assert cache.positions.valid.all()

    packed = Positions.packed([0, 2, 5])
    cache = filled(rope, raw, packed)
    cache.evict(slice(0, 1))
    assert cache.positions.documents is not None
    assert cache.positions.documents.tolist() == [0, 1, 1, 1]
    close(cache.attend(q, rope, Positions([3], documents=torch.tensor([1]))), attend(
        q, raw[:, :, 2:], raw[:, :, 2:].sum(-1, keepdim=True), rope, [3], key_positions=[0, 1, 2]
    ))  # fmt: skip
    with pytest.raises(ValueError, match="which one goes on is not known"):
        cache.next_positions()


# Positions


def test_the_next_position_follows_the_highest_ever_seen() -> None:
    rope = RoPE(HEAD_DIM)
    cache = filled(rope, random(1, 1, 10, HEAD_DIM), torch.arange(10))
    cache.evict(slice(0, 4))
    assert cache.next_positions(2).ids.tolist() == [10, 11]
    cache.evict(slice(3, None))  # the latest ones too
    assert cache.positions.ids.tolist() == [4, 5, 6]
    assert cache.next_positions().ids.tolist() == [10]
    cache.evict(slice(None))
    assert len(cache) == 0
    assert cache.next_positions().ids.tolist() == [10]
    pos = cache.next_positions()
    cache.append(random(1, 1, 1, HEAD_DIM), random(1, 1, 1, 1), pos)
    assert cache.positions.ids.tolist() == [10]


def test_writing_over_rejected_drafts_does_not_move_the_next_position_back() -> None:
    rope = RoPE(HEAD_DIM)
    cache = filled(rope, random(1, 1, 6, HEAD_DIM), torch.arange(6))
    cache.evict(slice(3, None))
    cache.append(random(1, 1, 1, HEAD_DIM), random(1, 1, 1, 1), [3])
    assert cache.positions.ids.tolist() == [0, 1, 2, 3]
    assert cache.next_positions().ids.tolist() == [6]


@given(st.lists(st.one_of(st.integers(1, 4), st.tuples(st.integers(0, 9), st.integers(0, 9))), max_size=8))
def test_any_history_of_appends_and_evictions(history: list[Any]) -> None:
    rope = RoPE(4, base=100.0)
    cache, kept, seen = KeyCache(rope), [], 0
    for step in history:
        if isinstance(step, int):
            pos = cache.next_positions(step) if seen else Positions.arange(step)
            new = list(range(seen, seen + step))
            raw = torch.tensor(new, dtype=torch.float64).add(1).reshape(1, 1, -1, 1).expand(1, 1, -1, 4)
            cache.append(rope.key(raw, pos), raw, pos)
            kept, seen = kept + new, seen + step
        elif seen:
            cache.evict(slice(*step))
            del kept[slice(*step)]
    if seen:
        assert cache.positions.ids.tolist() == kept
        assert cache.values[0, 0, :, 0].tolist() == [n + 1 for n in kept]
        raw = cache.values.expand(1, 1, -1, 4)
        assert torch.equal(cache.keys, rope.key(raw, kept))
        assert cache.next_positions().ids.tolist() == [seen]
    assert len(cache) == len(kept)


# Moving


@pytest.mark.parametrize(**named(MOVING))
@given(st.integers(-20, 20), st.sampled_from([None, slice(2, 7), slice(0, 3)]))
def test_a_shifted_key_is_the_key_of_the_other_position(
    encoding: PositionalEncoding, shift: int, tokens: slice | None
) -> None:
    raw = random(2, KV_HEADS, 7, HEAD_DIM)
    pos = torch.tensor([0, 1, 5, 6, 7, 20, 21])
    cache = filled(encoding, raw, pos)
    cache.rerotate(shift=shift, tokens=tokens)
    moved = pos.clone()
    moved[slice(None) if tokens is None else tokens] += shift
    assert torch.equal(cache.positions.ids, moved)
    slack = 1e-6 if getattr(encoding, "precision", "") == "float32" else 1e-12
    torch.testing.assert_close(cache.keys, encoding.key(raw, moved), rtol=0, atol=slack)
    follows = tokens is None or tokens.stop == 7  # the last token moved, and what follows it
    assert cache.next_positions().ids.tolist() == [22 + shift if follows else 22]


@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_hundred_shifts_cost_no_more_than_one(dtype: torch.dtype, slack: float, layout: Any) -> None:
    """Phi-2's partial width of 32 of 80, shifted by -7 and then a hundred times over; the rest is never touched."""
    rope = RoPE(80, rotary_dim=32, layout=layout)
    raw = random(1, 2, 40, 80, dtype=dtype)
    pos = torch.arange(40) + 1000
    cache = filled(rope, raw, pos)
    for _ in range(100):
        before = cache.keys  # asked for in between, as decoding does
        cache.rerotate(shift=-7)
        assert not torch.equal(before, cache.keys)
    expected = rope.key(raw, pos - 700)
    assert cache.keys.dtype == dtype
    assert float((cache.keys - expected).abs().max()) <= slack
    assert torch.equal(cache.keys[..., 32:], raw[..., 32:])
    once = filled(rope, raw, pos)
    once.rerotate(shift=-700)
    assert torch.equal(once.keys, cache.keys)
    cache.rerotate(shift=700)
    assert torch.equal(cache.keys, rope.key(raw, pos))  # home again, to the bit


def test_a_long_chat_drops_its_middle_and_goes_on() -> None:
    """Context shift: keep the first tokens, drop the middle, move the rest down, append, attend."""
    rope = RoPE(HEAD_DIM)
    raw = random(1, KV_HEADS, 12, HEAD_DIM)
    cache = filled(rope, raw, torch.arange(12))
    cache.evict(slice(2, 6))
    cache.rerotate(shift=-4, tokens=slice(2, None))
    assert cache.positions.ids.tolist() == list(range(8))
    assert cache.next_positions().ids.tolist() == [8]
    new, pos = random(1, KV_HEADS, 1, HEAD_DIM, seed=1), cache.next_positions()
    assert cache.keys.shape[2] == 8
    cache.append(rope.key(new, pos), new.sum(-1, keepdim=True), pos)
    kept = torch.cat((raw[:, :, :2], raw[:, :, 6:], new), 2)
    fresh = filled(rope, kept, torch.arange(9))
    close(cache.keys, fresh.keys)
    assert torch.equal(cache.keys[:, :, -1:], rope.key(new, [8]))
    cache.evict(torch.tensor([True] + [False] * 8))
    close(cache.keys, fresh.keys[:, :, 1:])


def test_only_what_moved_is_touched() -> None:
    rope = RoPE(HEAD_DIM)
    raw = random(1, KV_HEADS, 6, HEAD_DIM, dtype=torch.float32)
    cache = filled(rope, raw, torch.arange(6))
    cache.rerotate(shift=3, tokens=torch.tensor([False, False, True, False, False, True]))
    assert torch.equal(cache.keys[:, :, [0, 1, 3, 4]], rope.key(raw, torch.arange(6))[:, :, [0, 1, 3, 4]])
    assert cache.positions.ids.tolist() == [0, 1, 5, 3, 4, 8]


def test_rows_and_axes_move_together() -> None:
    rope = RoPE(HEAD_DIM, bands=Bands("THWT"))
    pos = Positions.interleave([2, Image(2, 3), 1])
    raw = random(2, KV_HEADS, 9, HEAD_DIM)
    cache = filled(rope, raw, pos)
    assert cache.next_positions().ids.flatten().tolist() == [6, 6, 6]
    cache.evict(slice(0, 3))
    cache.rerotate(shift=-2)
    close(cache.keys, rope.key(raw[:, :, 3:], pos.ids[..., 3:] - 2))
    following = cache.next_positions(2)
    assert following.ids.tolist() == [[[4, 5]]] * 3
    assert following.order is not None
    assert following.order.tolist() == [[9, 10]]
    new = random(2, KV_HEADS, 2, HEAD_DIM, seed=1)
    cache.append(rope.key(new, following), new.sum(-1, keepdim=True), following)
    close(cache.keys[:, :, -2:], rope.key(new, following))
    with pytest.raises(ValueError, match="do not say which token came first"):
        cache.append(rope.key(new, following.ids), new.sum(-1, keepdim=True), Positions(following.ids))
    with pytest.raises(ValueError, match="3 and 1 axes do not continue"):
        cache.append(rope.key(new, [4, 5]), new.sum(-1, keepdim=True), [4, 5])
    assert len(cache) == 8  # what was refused left nothing behind
    assert cache.keys.shape[2] == cache.values.shape[2] == 8


def test_a_batch_with_rows_of_its_own_moves() -> None:
    rope = RoPE(HEAD_DIM)
    raw = random(2, KV_HEADS, 3, HEAD_DIM)
    pos = torch.tensor([[0, 1, 2], [7, 8, 9]])
    cache = filled(rope, raw, pos)
    cache.rerotate(shift=5)
    close(cache.keys, rope.key(raw, pos + 5))
    assert cache.next_positions().ids.tolist() == [[8], [15]]


@pytest.mark.parametrize(
    "encoding",
    [Learned(16, length=64), Compose(RoPE(HEAD_DIM), Learned(16, length=64))],
    ids=["learned", "composed"],
)
def test_position_in_the_embedding_cannot_be_moved(encoding: PositionalEncoding) -> None:
    cache = filled(encoding, random(1, 1, 3, HEAD_DIM), torch.arange(3))
    with pytest.raises(ValueError, match="not a rotation of the keys alone"):
        cache.rerotate(shift=1)
    assert cache.positions.ids.tolist() == [0, 1, 2]


def test_a_key_hook_of_ones_own_needs_a_way_back() -> None:
    class Scaled(PositionalEncoding):
        def key(self, k: Tensor, pos: Any) -> Tensor:
            return k * (Positions.of(pos).ids[..., None] + 1)

    cache = filled(Scaled(), random(1, 1, 3, HEAD_DIM), torch.arange(3))
    with pytest.raises(ValueError, match="cannot be turned back"):
        cache.rerotate(shift=1)


def test_where_position_is_in_the_score_only_positions_move() -> None:
    bias, raw = ALiBi(HEADS), random(1, KV_HEADS, 4, HEAD_DIM)
    cache = filled(bias, raw, [0, 1, 6, 7])
    cache.rerotate(shift=-4, tokens=slice(2, None))
    assert torch.equal(cache.keys, raw)
    q = random(1, HEADS, 1, HEAD_DIM, seed=1)
    close(
        cache.attend(q, bias, [4]), attend(q, raw, raw.sum(-1, keepdim=True), bias, [4], key_positions=torch.arange(4))
    )


# Another spectrum


OTHERS = {
    "base": RoPE(HEAD_DIM, base=500_000),
    "extension": RoPE(HEAD_DIM, extension=YaRN(factor=4, original_length=32)),
    "layout": RoPE(HEAD_DIM, layout="interleaved"),
    "width": RoPE(HEAD_DIM, rotary_dim=4),
    "precision": RoPE(HEAD_DIM, precision="float32"),
    "bands": RoPE(HEAD_DIM, bands=Bands.axial((4, 4))),
    "none": NoPE(),
    "bias": ALiBi(HEADS),
    "composed": Compose(RoPE(HEAD_DIM, base=99), Shaw(HEAD_DIM)),
    "xpos": XPos(HEAD_DIM),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_keys_of_one_encoding_never_meet_queries_of_another(other: PositionalEncoding) -> None:
    rope = RoPE(HEAD_DIM)
    cache = filled(rope, random(1, KV_HEADS, 3, HEAD_DIM), torch.arange(3))
    q = random(1, HEADS, 1, HEAD_DIM)
    with pytest.raises(ValueError, match="does not fit"):
        cache.attend(q, other, [2])
    with pytest.raises(ValueError, match="does not fit"):
        cache.append(q[:, :KV_HEADS], q[:, :KV_HEADS, :, :1], [3], encoding=other)
    assert len(cache) == 3


def test_place_is_part_of_the_fingerprint() -> None:
    one, other = (RoPE(HEAD_DIM, rotary_dim=4, place=place) for place in ("leading", "trailing"))
    cache = filled(one, random(1, KV_HEADS, 3, HEAD_DIM), torch.arange(3))
    with pytest.raises(ValueError, match="does not fit"):
        cache.attend(random(1, HEADS, 1, HEAD_DIM), other, [2])


def test_what_turns_keys_alike_fits() -> None:
    dynamic = RoPE(HEAD_DIM, extension=DynamicNTK(factor=2, original_length=64), at_length=8)
    raw, q = random(1, KV_HEADS, 3, HEAD_DIM), random(1, HEADS, 1, HEAD_DIM)
    cache = filled(dynamic, raw, torch.arange(3))
    for alike in (RoPE(HEAD_DIM), dynamic.at(64), RoPE(HEAD_DIM, base=10_000.0), Compose(RoPE(HEAD_DIM), ALiBi(HEADS))):
        cache.attend(q, alike, [2])
    with pytest.raises(ValueError, match="does not fit"):
        cache.attend(q, dynamic.at(65), [2])
    filled(ALiBi(HEADS), raw, torch.arange(3)).attend(q, T5(HEADS), [2])  # neither does anything to keys


def test_keys_go_over_to_another_spectrum() -> None:
    """The known case: a key at 4095 cached at length 4096, a query at 8191 of length 8192."""
    short = RoPE(128, extension=DynamicNTK(factor=1, original_length=2048), at_length=4096)
    long = short.at(8192)
    assert float(short.spectrum.inv_freq[20]) != float(long.spectrum.inv_freq[20])
    raw = random(1, 1, 1, 128)
    cache = filled(short, raw, [4095])
    q = random(1, 1, 1, 128, seed=1)
    with pytest.raises(ValueError, match="does not fit"):
        cache.attend(q, long, [8191])
    cache.rerotate(encoding=long)
    torch.testing.assert_close(cache.keys, long.key(raw, [4095]), rtol=0, atol=1e-12)
    score = (long.query(q, [8191]) @ cache.keys.mT).item()
    pair = complex(*q[0, 0, 0, [20, 84]]) * complex(*raw[0, 0, 0, [20, 84]]).conjugate()
    assert score == pytest.approx((long.query(q, [8191]) @ long.key(raw, [4095]).mT).item(), abs=1e-9)
    assert pair != 0


@pytest.mark.parametrize(**named([*OTHERS.values(), *MOVING]))
def test_from_any_rotation_to_any_other_and_back(encoding: PositionalEncoding) -> None:
    target = encoding
    raw = random(1, KV_HEADS, 6, HEAD_DIM)
    pos = torch.tensor([0, 3, 4, 9, 30, 31])
    start = RoPE(HEAD_DIM, base=77.0, layout="interleaved")
    cache = filled(start, raw, pos)
    before = cache.keys
    cache.rerotate(encoding=target, shift=2)
    rounding = 1e-6 if getattr(target, "precision", "") == "float32" else 1e-12
    torch.testing.assert_close(cache.keys, target.key(raw, pos + 2), rtol=0, atol=rounding)
    assert cache.encoding is target
    # tokens appended from now on are the new encoding's, and all can go on to a third
    new = random(1, KV_HEADS, 1, HEAD_DIM, seed=3)
    cache.append(target.key(new, [33]), new.sum(-1, keepdim=True), [33], encoding=target)
    third = RoPE(HEAD_DIM, base=5_000.0)
    cache.rerotate(encoding=third)
    everything = torch.cat((raw, new), 2)
    now = torch.tensor([*(pos + 2).tolist(), 33])
    torch.testing.assert_close(cache.keys, third.key(everything, now), rtol=0, atol=10 * rounding)
    cache.rerotate(encoding=start, shift=-2)
    assert torch.equal(cache.keys[:, :, :6], before)  # kept as appended, so home again to the bit


def test_tokens_of_several_spectra_survive_an_eviction() -> None:
    first, second = RoPE(HEAD_DIM, base=100.0), RoPE(HEAD_DIM, layout="interleaved")
    raw = random(1, KV_HEADS, 6, HEAD_DIM)
    cache = filled(first, raw[:, :, :3], [0, 1, 2])
    cache.rerotate(encoding=second)
    cache.append(second.key(raw[:, :, 3:], [3, 4, 5]), raw[:, :, 3:, :1], [3, 4, 5])
    cache.evict(torch.tensor([True, False, True, False, True, False]))
    close(cache.keys, second.key(raw[:, :, [1, 3, 5]], [1, 3, 5]))
    cache.rerotate(encoding=first)
    close(cache.keys, first.key(raw[:, :, [1, 3, 5]], [1, 3, 5]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_hundred_spectra_cost_no_more_than_one(dtype: torch.dtype) -> None:
    rope = RoPE(64, extension=DynamicYaRN(original_length=16), at_length=17)
    raw = random(1, 1, 8, 64, dtype=dtype)
    cache = filled(rope, raw, torch.arange(8))
    for length in range(18, 118):
        cache.rerotate(encoding=rope.at(length))
        assert cache.keys.dtype == dtype
    direct = filled(rope, raw, torch.arange(8))
    direct.rerotate(encoding=rope.at(117))
    assert torch.equal(cache.keys, direct.keys)
    slack = 1e-6 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(cache.keys, rope.at(117).key(raw, torch.arange(8)), rtol=0, atol=slack)


def test_what_the_new_encoding_refuses_it_refuses_at_once() -> None:
    cache = filled(RoPE(HEAD_DIM), random(1, 1, 2, HEAD_DIM), [0, 1])
    with pytest.raises(ValueError, match="head_dim=16"):
        cache.rerotate(encoding=RoPE(16))
    assert isinstance(cache.encoding, RoPE)
    assert cache.encoding.head_dim == HEAD_DIM
    cache.attend(random(1, HEADS, 1, HEAD_DIM), RoPE(HEAD_DIM), [1])


# Dynamic scalings know the length that was chosen, and nothing else


DYNAMIC = [
    DynamicNTK(factor=4, original_length=16),
    DynamicYaRN(original_length=16),
    LongRoPE([1.0, 1.1, 1.2, 1.3], [2.0, 4.0, 8.0, 16.0], original_length=16, factor=4),
]


@pytest.mark.parametrize("extension", DYNAMIC, ids=lambda e: e.name)
def test_dynamic_scalings_never_depend_on_neighbours_or_history(extension: Any) -> None:
    fresh = RoPE(HEAD_DIM, extension=extension, at_length=20)
    q = random(2, HEADS, 6, HEAD_DIM)
    short, far = torch.arange(6), torch.arange(6) + 10_000
    expected = fresh.query(q[:1], short)
    # not on the other row of the batch, however far it stands
    assert torch.equal(fresh.query(q, torch.stack((short, far)))[:1], expected)
    # not on earlier calls, nor on encodings made for other lengths
    used = RoPE(HEAD_DIM, extension=extension, at_length=20)
    used.query(q, far)
    used.at(4_000).query(q, far)
    used.at(7).query(q, short)
    assert torch.equal(used.query(q[:1], short), expected)
    assert torch.equal(used.at(4_000).at(20).query(q[:1], short), expected)
    # nor on how a text was cut: a cache that grew past the trained length is that of one pass
    cache = KeyCache(used)
    raw = random(1, KV_HEADS, 20, HEAD_DIM, seed=1)
    for n in (9, 10, 1):
        pos = cache.next_positions(n) if len(cache) else Positions.arange(n)
        piece = raw[:, :, len(cache) : len(cache) + n]
        cache.append(used.key(piece, pos), piece.sum(-1, keepdim=True), pos)
    assert torch.equal(cache.keys, fresh.key(raw, torch.arange(20)))


def test_longrope_keys_of_a_short_text_are_not_used_in_a_long_one() -> None:
    """Short factors 1, long factors 32, border 4096: pair 0 at position 10 turns by 10 rad or by 0.3125."""
    toy = LongRoPE([1.0] * 48, [32.0] * 48, original_length=4096, factor=32)
    at = RoPE(96, extension=toy, at_length=4096)
    assert 10 * at.spectrum.radians[0] == 10
    assert 10 * at.at(4097).spectrum.radians[0] == 0.3125
    assert at.spectrum.attention_factor == at.at(4097).spectrum.attention_factor == pytest.approx(1.19023807142)
    raw = random(1, 1, 3, 96)
    cache = filled(at, raw, torch.arange(3) + 10)
    with pytest.raises(ValueError, match="does not fit"):
        cache.attend(random(1, 1, 1, 96), at.at(4097), [4096])
    cache.rerotate(encoding=at.at(4097))
    torch.testing.assert_close(cache.keys, at.at(4097).key(raw, torch.arange(3) + 10), rtol=0, atol=1e-12)


# Refusals


def test_an_empty_cache_says_so() -> None:
    cache = KeyCache(RoPE(4))
    for use in (
        lambda: cache.keys,
        lambda: cache.values,
        lambda: cache.positions,
        lambda: cache.next_positions(),
        lambda: cache.attend(torch.ones(1, 1, 1, 4), RoPE(4), [0]),
        lambda: cache.evict(slice(0, 1)),
    ):
        with pytest.raises(ValueError, match="the cache is empty: append"):
            use()
    cache.rerotate(shift=3)  # nothing there to move
    cache.rerotate(encoding=RoPE(4, base=5.0))
    cache.append(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4), [0])
    assert torch.equal(cache.keys, torch.ones(1, 1, 1, 4))
    assert repr(cache).startswith("KeyCache(1 tokens, RoPE(head_dim=4, base=5.0")


@pytest.mark.parametrize(
    ("k", "v", "pos", "message"),
    [
        (torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), [3, 4], r"got \(1, 1, 2, 4\) and \(1, 1, 3, 4\)"),
        (torch.ones(1, 2, 4), torch.ones(1, 2, 4), [3, 4], r"\(batch, kv_heads, tokens, head_dim\)"),
        (torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), [3], "there are 1 positions"),
        (torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), [3], r"holds keys \(1, 1, 3, 4\)"),
        (torch.ones(2, 1, 1, 4), torch.ones(2, 1, 1, 4), [3], r"the new ones are \(2, 1, 1, 4\)"),
        (torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 5), [3], r"holds values \(1, 1, 3, 4\)"),
        (torch.ones(1, 1, 1, 4).double(), torch.ones(1, 1, 1, 4), [3], "new ones are .* of torch.float64"),
        (torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4), Positions.packed([0, 1]), "some of these .* have documents"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(k: Tensor, v: Tensor, pos: Any, message: str) -> None:
    cache = KeyCache(RoPE(4))
    cache.append(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4), [0, 1, 2])
    with pytest.raises(ValueError, match=message):
        cache.append(k, v, pos)
    assert len(cache) == cache.keys.shape[2] == cache.values.shape[2] == 3
    assert cache.next_positions().ids.tolist() == [3]


@pytest.mark.parametrize("tokens", [torch.tensor([True]), torch.tensor([0, 2]), [0], 1])
def test_tokens_are_named_by_a_slice_or_a_mask(tokens: Any) -> None:
    cache = filled(RoPE(4), torch.ones(1, 1, 3, 4), [0, 1, 2])
    with pytest.raises(ValueError, match=r"a slice or a boolean mask of shape \(3,\)"):
        cache.evict(tokens)
    with pytest.raises(ValueError, match=r"a slice or a boolean mask of shape \(3,\)"):
        cache.rerotate(shift=1, tokens=tokens)
