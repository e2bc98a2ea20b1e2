"""Positions on several axes, runs of text and pictures, and shards: against the rules written apart."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import CASES, Case, Model, by_id, close
from ropewalk import Image, Positions, Text, Video, attend
from ropewalk.multimodal import LIMIT

SCHEMES = ["zigzag", "contiguous", "striped"]


# Grids


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_a_grid_is_in_raster_order(sizes: list[int]) -> None:
    grid = Positions.grid(*sizes)
    assert grid.ids.shape == (len(sizes), 1, math.prod(sizes))
    assert grid.ids[:, 0].T.tolist() == [list(cell) for cell in itertools.product(*map(range, sizes))]


def test_rows_are_not_columns() -> None:
    assert Positions.grid(2, 3).ids[:, 0].T.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize("sizes", [(), (0,), (2, -1), (2, 3.0), (True, 2)])
def test_impossible_grids_are_refused(sizes: Any) -> None:
    with pytest.raises(ValueError, match="positive whole sizes"):
        Positions.grid(*sizes)


# Text, images and videos


def by_hand(runs: list[Any]) -> list[tuple[int, int, int]]:
    """The rule of M-RoPE, token by token."""
    out: list[tuple[int, int, int]] = []
    for run in runs:
        start = max((max(token) for token in out), default=-1) + 1
        if isinstance(run, int):
            out += [(start + i,) * 3 for i in range(run)]
        elif isinstance(run, Image):
            h, w = run.height // run.merge, run.width // run.merge
            out += [(start, start + y, start + x) for y in range(h) for x in range(w)]
        else:
            h, w = run.height // run.merge, run.width // run.merge
            step = Fraction(run.seconds) * Fraction(run.per_second)
            times = [math.floor(t * step) for t in range(run.frames)]
            out += [(start + t, start + y, start + x) for t in times for y in range(h) for x in range(w)]
    return out


SIZE = st.integers(1, 5)
MERGE = st.integers(1, 3)
RUNS = st.lists(
    st.one_of(
        st.integers(0, 6),
        st.builds(lambda h, w, m: Image(h * m, w * m, merge=m), SIZE, SIZE, MERGE),
        st.builds(
            lambda t, h, w, m, s, p: Video(t, h * m, w * m, merge=m, seconds=Fraction(s, 4), per_second=p),
            *(SIZE, SIZE, SIZE, MERGE),
            *(st.integers(0, 9), st.integers(1, 5)),
        ),
    ),
    max_size=5,
)


@given(RUNS)
def test_runs_are_placed_as_by_hand(runs: list[Any]) -> None:
    pos = Positions.interleave(runs)
    expected = by_hand(runs)
    assert pos.ids[:, 0].T.tolist() == [list(token) for token in expected]
    assert pos.order is not None
    assert pos.order.tolist() == list(range(len(expected)))
    if expected:
        following = max(map(max, expected)) + 1
        assert pos.after(2).ids.tolist() == [[[following, following + 1]]] * 3
        assert pos.delta().tolist() == [following - len(expected)]
        after = pos.after(2).order
        assert after is not None
        assert after.tolist() == [[len(expected), len(expected) + 1]]


def test_a_large_image_and_what_follows() -> None:
    pos = Positions.interleave([Text(5), Image(72, 80), 4])
    assert len(pos) == 5769
    assert pos.delta().tolist() == [-5680]
    assert pos.after().ids.flatten().tolist() == [89, 89, 89]
    merged = Positions.interleave([5, Image(144, 160, merge=2), 4])
    assert torch.equal(merged.ids, pos.ids)
    # decoding goes by that delta: index in the sequence plus delta
    assert 5769 + int(pos.delta()) == 89


def test_nothing_is_left_from_one_prompt_to_the_next() -> None:
    first = Positions.interleave([5, Image(72, 80), 4])
    second = Positions.interleave([9])
    assert second.delta().tolist() == [0]
    assert first.delta().tolist() == [-5680]


def test_text_alone_is_plain_text() -> None:
    assert Positions.interleave([3, Text(4)]).ids.tolist() == [[list(range(7))]] * 3
    assert Positions.arange(7).delta().item() == 0
    assert Positions.left_padded(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])).delta().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("seconds", "per_second", "frames", "expected"),
    [
        (0.5, 2, 4, [0, 1, 2, 3]),
        (0.75, 2, 5, [0, 1, 3, 4, 6]),
        (1, 1, 3, [0, 1, 2]),
        (0, 25, 3, [0, 0, 0]),
        (1 / 3, 3, 4, [0, 1, 2, 3]),  # 0.333…·3 is one second, not a little less
        (0.29, 100, 2, [0, 29]),  # 0.29·100 is 28.999999999999996 in floats
        (2 / 29.97, 29.97, 4, [0, 2, 4, 6]),
        (Fraction(1, 7), 7, 8, list(range(8))),
    ],
)
def test_time_is_rounded_after_the_multiplication(
    seconds: Any, per_second: Any, frames: int, expected: list[int]
) -> None:
    video = Video(frames, 1, 2, seconds=seconds, per_second=per_second)
    pos = Positions.interleave([2, video])
    assert pos.ids[0, 0, 2:].tolist() == [2 + t for t in expected for _ in range(2)]


def test_what_follows_a_long_video_comes_after_it() -> None:
    pos = Positions.interleave([1, Video(9, 1, 2, seconds=2), 1])
    assert pos.ids[:, 0, -1].tolist() == [1 + 16 + 1] * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Video(2, 1, 1, seconds=1e9), "reach to position 1,000,000,000; the limit is 16,777,216"),
        (lambda: Video(10**9, 1, 1), "1,000,000,000 tokens; the limit is"),
        (lambda: Video(2, 1, 1, seconds=math.inf), "seconds is a finite number"),
        (lambda: Video(2, 1, 1, seconds=math.nan), "seconds is a finite number"),
        (lambda: Video(2, 1, 1, seconds=-1), "0 or more, got -1"),
        (lambda: Video(2, 1, 1, per_second="2"), "per_second is a finite number"),
        (lambda: Image(10**6, 10**6), "tokens; the limit is"),
        (lambda: Image(3, 4, merge=2), "3 × 4 patches do not merge 2 × 2"),
        (lambda: Image(4, 3, merge=2), "4 × 3 patches do not merge 2 × 2"),
        (lambda: Image(0, 3), "height is a whole number, 1 or more, got 0"),
        (lambda: Image(3, 2.0), "width is a whole number, 1 or more, got 2.0"),
        (lambda: Text(-1), "tokens is a whole number, 0 or more, got -1"),
        (lambda: Text(LIMIT + 1), "the limit is"),
        (lambda: Positions.interleave([1, Text(LIMIT)]), "runs 0 to 1 have 16,777,217 tokens together"),
        (lambda: Positions.packed([0, 2.5]), "whole numbers"),
        (lambda: Positions.interleave([4, (72, 80)]), r"run 1 is \(72, 80\)"),
        (lambda: Positions.interleave([True]), "run 0 is True"),
    ],
)
def test_absurd_runs_are_refused_before_anything_is_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_same_rule_as_transformers_for_images() -> None:
    pytest.importorskip("transformers", reason="compares with the installed transformers")
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    class Config:
        class vision_config:  # noqa: N801
            spatial_merge_size = 2

    model = type("Model", (), {"config": Config, "get_vision_position_ids": Qwen2VLModel.get_vision_position_ids})()
    kinds = [0] * 3 + [1] * 6 + [0] * 2 + [1] * 5 + [0]
    theirs, delta = Qwen2VLModel.get_rope_index(
        model,
        input_ids=torch.zeros(1, len(kinds), dtype=torch.int64),
        mm_token_type_ids=torch.tensor([kinds]),
        image_grid_thw=torch.tensor([[1, 4, 6], [1, 10, 2]]),
    )
    ours = Positions.interleave([3, Image(4, 6, merge=2), 2, Image(10, 2, merge=2), 1])
    assert torch.equal(ours.ids, theirs)
    assert ours.delta().tolist() == delta.flatten().tolist()


# After, slices, putting together


@given(RUNS, st.integers(1, 4))
def test_slices_and_their_sum_are_the_whole(runs: list[Any], cut: int) -> None:
    pos = Positions.interleave([2, *runs])
    parts = [pos[:cut], pos[cut:]]
    whole = Positions.cat(parts)
    assert torch.equal(whole.ids, pos.ids)
    assert torch.equal(whole.order, pos.order)  # type: ignore[arg-type]


def test_cat_widens_rows_and_keeps_what_belongs_to_tokens() -> None:
    row, rows = Positions([0, 1]), Positions(torch.tensor([[2], [3]]), valid=torch.tensor([[True], [False]]))
    both = Positions.cat([row, rows])
    assert both.ids.tolist() == [[0, 1, 2], [0, 1, 3]]
    assert both.valid is not None
    assert both.valid.tolist() == [[True, True, True], [True, True, False]]
    packed = Positions.packed([0, 2, 3])
    assert Positions.cat([packed[:1], packed[1:]]).documents.tolist() == [0, 0, 1]  # type: ignore[union-attr]
    three = Positions.interleave([Image(1, 2)])
    assert Positions.cat([three, three.after()]).ids.shape == (3, 1, 3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "nothing"),
        ([Positions([0]), Positions.grid(1, 2)], "1 and 2 axes do not continue"),
        ([Positions([[0], [1]]), Positions([[0], [1], [2]])], "2 and 3 rows"),
        ([Positions([0]), Positions.packed([0, 1])], "some of these positions have documents"),
    ],
)
def test_what_does_not_continue_is_refused(parts: list[Positions], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Positions.cat(parts)


def test_after_several_axes_in_a_batch_with_padding() -> None:
    ids = torch.tensor([[[0, 1, 7], [0, 5, 9]], [[0, 2, 3], [0, 0, 0]]])  # two axes, two rows
    valid = torch.tensor([[True, True, False], [True, True, True]])
    pos = Positions(ids, valid=valid).ordered()
    assert pos.after().ids.tolist() == [[[3], [10]]] * 2
    assert pos.delta().tolist() == [3 - 2, 10 - 3]
    assert pos.after(2).order.tolist() == [[3, 4], [3, 4]]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="not for packed or no positions"):
        Positions.packed([0, 2]).after()


def test_order_belongs_to_several_axes() -> None:
    with pytest.raises(ValueError, match="their own order"):
        Positions([0, 1], order=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"order has shape \(2,\), the positions have \(2, 1, 3\)"):
        Positions(torch.zeros(2, 1, 3, dtype=torch.int64), order=torch.tensor([0, 1]))
    assert Positions(torch.zeros(2, 1, 3, dtype=torch.int64)).order is None
    plain = Positions([0, 1])
    assert plain.ordered() is plain
    assert plain.line() is plain


def test_a_line_says_what_came_before_what() -> None:
    pos = Positions.interleave([1, Image(2, 2), 1])
    assert pos.shard(1, 2).line().ids.tolist() == [[1, 2, 3]]
    documents, valid = torch.tensor([0, 1]), torch.tensor([[True, False]] * 2)
    one = Positions(torch.tensor([[[3, 4], [5, 6]]]), documents=documents, valid=valid).line()
    assert one.ids.tolist() == [[3, 4], [5, 6]]
    assert one.documents is documents
    assert one.valid is valid
    with pytest.raises(ValueError, match="do not say which token came first"):
        Positions(torch.zeros(2, 1, 3, dtype=torch.int64)).line()


# Shards


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.integers(0, 40), st.integers(1, 7))
def test_shards_are_a_partition_and_come_back_in_order(scheme: Any, n: int, world: int) -> None:
    shards = [Positions.shard_index(n, rank, world, scheme=scheme) for rank in range(world)]
    assert sorted(torch.cat(shards).tolist()) == list(range(n))
    assert max(map(len, shards)) - min(map(len, shards)) <= (2 if scheme == "zigzag" else 1)
    back = torch.cat(shards)[Positions.unshard_index(n, world, scheme=scheme)]
    assert back.tolist() == list(range(n))


@given(st.integers(1, 6), st.integers(1, 5))
def test_zigzag_gives_each_rank_an_early_and_a_late_chunk(world: int, chunk: int) -> None:
    n = 2 * world * chunk
    chunks = torch.arange(n).split(chunk)
    work = []
    for rank in range(world):
        mine = Positions.zigzag(n, rank, world)
        assert torch.equal(mine.ids, torch.cat((chunks[rank], chunks[2 * world - 1 - rank])))
        work.append(int((mine.ids + 1).sum()))  # keys that a causal query sees
    assert len(set(work)) == 1


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(1, 5), st.sampled_from(SCHEMES))
def test_documents_travel_with_their_tokens(lengths: list[int], world: int, scheme: Any) -> None:
    bounds = [0, *itertools.accumulate(lengths)]
    packed = Positions.packed(bounds)
    shards = [packed.shard(rank, world, scheme=scheme) for rank in range(world)]
    order = Positions.unshard_index(bounds[-1], world, scheme=scheme)
    whole = Positions.cat(shards)
    assert torch.equal(whole.ids[order], packed.ids)
    assert torch.equal(whole.documents[order], packed.documents)  # type: ignore[index,arg-type]


def test_padding_axes_and_order_travel_too() -> None:
    padded = Positions.left_padded(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    assert padded.shard(1, 2).ids.tolist() == [[0, 0], [1, 2]]
    assert padded.shard(1, 2).valid.tolist() == [[False, True], [True, True]]  # type: ignore[union-attr]
    grid = Positions.grid(2, 2).shard(0, 2)
    assert grid.ids.tolist() == [[[0, 1]], [[0, 1]]]
    assert grid.order.tolist() == [0, 3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("n", "rank", "world", "scheme", "message"),
    [
        (4, 2, 2, "zigzag", "rank 2 of world 2"),
        (4, -1, 2, "zigzag", "rank -1 of world 2"),
        (4, 0, 0, "zigzag", "rank 0 of world 0"),
        (-1, 0, 1, "zigzag", "cannot be negative"),
        (4, 0, 1, "ring", "zigzag, contiguous, striped; got 'ring'"),
    ],
)
def test_impossible_shards_are_refused(n: int, rank: int, world: int, scheme: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Positions.shard_index(n, rank, world, scheme=scheme)


def test_no_rank_at_all_is_refused_on_the_way_back() -> None:
    with pytest.raises(ValueError, match="of world 0"):
        Positions.unshard_index(4, 0)


@pytest.mark.parametrize(**by_id(CASES))
def test_any_packing_on_any_number_of_ranks_equals_the_whole(case: Case) -> None:
    """Every rank attends with its own rows to the gathered keys, and the results put together are the whole."""
    model = Model(case)

    @given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 4), st.sampled_from(SCHEMES))
    def sharded(lengths: list[int], world: int, scheme: Any) -> None:
        packed = Positions.packed([0, *itertools.accumulate(lengths)])
        pos = Positions(packed.ids + model.start, documents=packed.documents)
        n = len(pos)
        x = model.tokens(1, n)
        index = [Positions.shard_index(n, rank, world, scheme=scheme) for rank in range(world)]
        shards = [pos.shard(rank, world, scheme=scheme) for rank in range(world)]
        parts = [model.project(x[:, i], p) for i, p in zip(index, shards, strict=True)]
        keys = torch.cat([model.encoding.key(k, p) for (_, k, _), p in zip(parts, shards, strict=True)], 2)
        values = torch.cat([v for *_, v in parts], 2)
        given_keys = {"key_positions": Positions.cat(shards), "keys_encoded": True}
        out = [
            attend(q, keys, values, model.encoding, p, **given_keys)
            for (q, *_), p in zip(parts, shards, strict=True)
            if len(p)
        ]
        close(torch.cat(out, 2)[:, :, Positions.unshard_index(n, world, scheme=scheme)], model(x, pos))

    sharded()
