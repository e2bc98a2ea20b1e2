"""Faults that real libraries shipped, each with a small input and the right value, and then the kind it belongs to.

Right values come from 50-digit or float64 arithmetic, not from the reports.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import HEAD_DIM, HEADS, Case, Model, close
from ropewalk import (
    FIRE,
    KERPLE,
    T5,
    ALiBi,
    Compose,
    Learned,
    NoPE,
    Positions,
    RelativeBias,
    RoPE,
    Shaw,
    Sinusoidal,
    Spectrum,
    XPos,
    attend,
    cos_sin,
    geometric,
    rotate,
)
from ropewalk.attention.masks import Mask, visible

HALF_PRECISION = [torch.bfloat16, torch.float16]


def turned_ones(rope: RoPE, dtype: torch.dtype, at: Positions) -> torch.Tensor:
    """Channels (0, d/2) of turned ones: cos - sin and cos + sin of the fastest pair."""
    return rope.query(torch.ones(1, 1, len(at), rope.head_dim, dtype=dtype), at)


# K1: precision of angles, positions, frequencies


@pytest.mark.parametrize("dtype", HALF_PRECISION)
def test_2_positions_are_never_counted_in_the_activation_dtype(dtype: torch.dtype) -> None:
    at = Positions.arange(4096)
    q = turned_ones(RoPE(64), dtype, at)
    exact = turned_ones(RoPE(64), torch.float64, at)
    assert float((q.double() - exact).abs().max()) < torch.finfo(dtype).eps
    cos, _ = cos_sin(at, geometric(64))
    assert len({tuple(row) for row in torch.cat(cos_sin(at, geometric(64)), 1).tolist()}) == 4096
    assert float(cos[257, 0]) == pytest.approx(0.819305529145, abs=6e-8)
    assert bool(turned_ones(RoPE(64), dtype, Positions([65520, 10_000_019])).isfinite().all())
    table = Sinusoidal(64).embed(torch.zeros(4096, 64, dtype=dtype), at)
    assert float(table[257, 1].float()) == pytest.approx(0.819305529145, abs=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALF_PRECISION)
def test_4_autocast_does_not_lower_angles(dtype: torch.dtype) -> None:
    at = Positions.arange(65, offset=65536)
    with torch.autocast("cpu", dtype=dtype):
        cos, sin = cos_sin(at, geometric(64))
        q = turned_ones(RoPE(64), torch.float32, at)
    assert len(set(cos[:, 0].tolist())) == 65
    assert float(cos[1, 0]) == pytest.approx(-0.972361979354, abs=6e-8)
    assert float(cos[64, 0]) == pytest.approx(-0.919574403974, abs=6e-8)
    assert torch.equal(q[0, 0, :, 0], cos[:, 0] - sin[:, 0])


def test_5_no_matrix_product_makes_angles() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        for at in (torch.tensor([2051]), torch.tensor([[2051]] * 3)):
            cos, _ = cos_sin(at, geometric(64))
            assert float(cos.flatten()[0]) == pytest.approx(-0.896051257071, abs=6e-8)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [*HALF_PRECISION, torch.float64])
def test_6_no_floating_buffer_can_be_cast_behind_the_modules_back(dtype: torch.dtype) -> None:
    for encoding in (RoPE(64), XPos(64), Sinusoidal(64), ALiBi(8)):
        assert not list(encoding.buffers())
        tensors = [n for n, v in vars(encoding).items() if isinstance(v, torch.Tensor)]
        assert not tensors, "a tensor kept as a plain attribute moves with nobody"
    rope = RoPE(64).to(dtype)
    torch.testing.assert_close(
        turned_ones(rope, torch.float32, Positions([4000])),
        turned_ones(RoPE(64), torch.float32, Positions([4000])),
        rtol=0,
        atol=0,
    )


def test_7_a_score_of_a_fixed_distance_does_not_drift() -> None:
    rope = RoPE(128)
    for dtype, error in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        ones = torch.ones(1, 128, dtype=dtype)
        for m in (1, 1001, 4001, 1_000_003):
            score = float((rope.query(ones, [m]) * rope.key(ones, [m - 1])).sum())
            assert score == pytest.approx(124.187367611535, abs=error)
    with pytest.raises(ValueError, match=r"tables are float32 or float64, got torch\.bfloat16"):
        cos_sin([1], geometric(8), dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF_PRECISION])
def test_8_the_output_dtype_is_the_input_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(2, 4, 8, 64).to(dtype)
    for encoding in (RoPE(64), XPos(64), RoPE(64, rotary_dim=32, layout="interleaved", place="trailing")):
        assert {t.dtype for t in encoding.query_key(x, x, range(8))} == {dtype}
    for encoding in (Sinusoidal(64), Learned(64)):
        assert encoding.embed(x[0], range(8)).dtype == dtype
    for encoding in (ALiBi(4), T5(4), FIRE(4), KERPLE(4), Shaw(64)):
        assert attend(x, x, x, encoding, range(8)).dtype == dtype


def test_9_tables_are_the_same_bits_whatever_the_threads_and_the_company() -> None:
    at, tables = torch.arange(1000, 9192), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        tables.append(torch.cat(cos_sin(at, geometric(128)), -1))
    assert torch.equal(*tables)
    shard = torch.cat(cos_sin(at[4001:5003], geometric(128)), -1)  # as another rank would build it
    assert torch.equal(shard, tables[0][4001:5003])


@given(st.integers(-(2**31), 2**31), st.sampled_from([torch.float32, torch.float64]), st.sampled_from([64, 96, 128]))
def test_k1_a_table_errs_by_less_than_a_millionth_anywhere(at: int, dtype: torch.dtype, width: int) -> None:
    cos, sin = cos_sin([at], geometric(width), dtype=dtype)
    for pair in (0, 1, width // 4, width // 2 - 1):
        angle = math.fmod(at * 10_000 ** (-2 * pair / width), 2 * math.pi)
        # the float64 of the test itself is off by 2⁻⁵² of an angle of up to 2³¹
        assert abs(float(cos[0, pair]) - math.cos(angle)) < 1e-6 + abs(at) * 2e-16
        assert abs(float(sin[0, pair]) - math.sin(angle)) < 1e-6 + abs(at) * 2e-16


# K2: hidden state, history, lifecycle


def test_11_one_encoding_turns_keys_at_one_speed_whatever_the_length() -> None:
    """Pair 20 of the report: 4096 tokens apart, at lengths 4096 and 8192, is one phase."""
    rope = RoPE(128)
    early = rope.key(torch.ones(1, 1, 4096, 128).double(), range(4096))[0, 0, 4095]
    rope.query(torch.ones(1, 1, 8192, 128), range(8192))
    assert torch.equal(rope.key(torch.ones(1, 128).double(), [4095])[0], early)
    phase = 4096 * rope.spectrum.radians[20]
    assert phase == pytest.approx(4096 * 10_000 ** (-40 / 128))
    query = rope.query(torch.ones(1, 128).double(), [8191])[0]
    pair = torch.stack((early, query))[:, [20, 84]]
    assert float((pair[0] * pair[1]).sum() / 2) == pytest.approx(math.cos(phase), abs=1e-12)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 40))
def test_12_an_offset_is_never_forgotten(one: int, other: int, n: int) -> None:
    rope, x = RoPE(64), torch.ones(1, 1, n, 64)
    first = rope.query(x, Positions.arange(n, offset=one))
    second = rope.query(x, Positions.arange(n, offset=other))
    assert torch.equal(first, second) is (one == other)
    assert float(cos_sin(Positions.arange(n, offset=5), geometric(64))[0][0, 0]) == pytest.approx(
        0.283662185463, abs=6e-8
    )


@pytest.mark.parametrize("first", HALF_PRECISION)
def test_13_a_warm_up_in_half_precision_leaves_nothing_behind(first: torch.dtype) -> None:
    at = Positions.arange(3000)
    for encoding, hook in ((RoPE(64), "query"), (Sinusoidal(64), "embed"), (XPos(64), "key")):
        getattr(encoding, hook)(torch.ones(3000, 64, dtype=first), at)
        for dtype, error in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
            ones = torch.ones(3000, 64, dtype=dtype)
            used = getattr(encoding, hook)(ones, at)
            assert used.dtype == dtype
            assert torch.equal(used, getattr(type(encoding)(64), hook)(ones, torch.arange(3000)))
            if not isinstance(encoding, XPos):  # whose factors grow, and the errors with them
                exact = getattr(encoding, hook)(ones.double(), torch.arange(3000))
                assert float((used - exact).abs().max()) < error


def test_14_objects_share_nothing_through_their_class() -> None:
    eight, twelve = ALiBi(8), ALiBi(12)
    grids = [
        e.bias(torch.arange(e.heads)[:, None, None], torch.arange(5)[:, None], torch.arange(5)) for e in (eight, twelve)
    ]
    assert [g.shape for g in grids] == [(8, 5, 5), (12, 5, 5)]
    assert float(-grids[0][0, 1, 0]) == float(-grids[1][0, 1, 0]) == 0.5
    assert float(-grids[1][8, 1, 0]) == pytest.approx(0.707106781)
    q = torch.ones(1, 12, 5, 8)
    with pytest.raises(ValueError, match="ALiBi was made for 8 heads, q has 12"):
        attend(q, q, q, eight, range(5))
    with pytest.raises(ValueError, match="ALiBi was made for 12 heads, q has 8"):
        attend(q[:, :8], q[:, :8], q[:, :8], twelve, range(5))


def test_16_evaluation_in_inference_mode_then_training() -> None:
    rope, at = RoPE(8), Positions.arange(5)
    with torch.inference_mode():
        rope.query(torch.ones(1, 1, 5, 8), at)
    q = torch.randn(1, 1, 5, 8, requires_grad=True)
    upstream = torch.randn(1, 1, 5, 8)
    (grad,) = torch.autograd.grad(rope.query(q, at), q, upstream)
    torch.testing.assert_close(grad, rope.inverse(upstream, at))


@pytest.mark.parametrize(
    "make", [lambda: T5(HEADS), lambda: KERPLE(HEADS), lambda: FIRE(HEADS), lambda: Shaw(HEAD_DIM)]
)
def test_17_positions_kept_between_steps_hold_no_graph(make: Any) -> None:
    encoding, at = Compose(RoPE(HEAD_DIM), make()), Positions.arange(6)
    optimizer = torch.optim.SGD(encoding.parameters(), lr=0.5)
    q = torch.randn(1, HEADS, 6, HEAD_DIM)
    losses = []
    for _ in range(3):
        loss = attend(q, q, q, encoding, at).square().sum()
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in encoding.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert len(set(losses)) == 3  # each step saw the last one's parameters


def test_18_a_fixed_encoding_leaves_nothing_in_checkpoints() -> None:
    for encoding in (NoPE(), RoPE(64), XPos(64), Sinusoidal(64), ALiBi(8), Compose(RoPE(64), ALiBi(8))):
        assert encoding.state_dict() == {}
    with pytest.raises(RuntimeError, match="inv_freq"):
        RoPE(64).load_state_dict({"inv_freq": torch.ones(32)})


@given(
    st.permutations(
        [(7, torch.float32), (7, torch.float64), (7, torch.bfloat16), (3, torch.float32), (30, torch.float32)]
    )
)
def test_k2_any_order_of_calls_gives_the_same_bits(order: list[tuple[int, torch.dtype]]) -> None:
    shared, rope, xpos, waves = Positions.arange(30), RoPE(8), XPos(8), Sinusoidal(8)
    for n, dtype in order:
        x, at = torch.arange(8.0 * n).view(n, 8).to(dtype), shared if n == 30 else Positions.arange(n)
        for hook, fresh in ((rope.query, RoPE(8).query), (xpos.key, XPos(8).key), (waves.embed, Sinusoidal(8).embed)):
            assert torch.equal(hook(x, at), fresh(x, torch.arange(n)))


# K3: layout


def test_19_each_layout_turns_its_own_pairs() -> None:
    x = torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64)
    wanted = {
        "interleaved": [-1.14263966375, 1.92207559654, 2.95985066791, 4.02979950167],
        "half": [-1.98411064856, 1.95990066750, 2.46237790241, 4.01979966833],
    }
    scores = {"interleaved": 0.972411569231, "half": -4.33805776196}
    for layout, row in wanted.items():
        rope = RoPE(4, layout=layout)
        assert rope.query(x, [1])[0].tolist() == pytest.approx(row, abs=1e-10)
        k = torch.tensor([[2, -1, 0.5, 1]], dtype=torch.float64)
        assert float((rope.query(x, [3]) * rope.key(k, [1])).sum()) == pytest.approx(scores[layout], abs=1e-10)
    with pytest.raises(TypeError, match="layout"):
        rotate(x, *cos_sin([1], geometric(4)))  # never guessed


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.sampled_from(["half", "interleaved"]))
def test_20_it_is_a_rotation(m: int, n: int, shift: int, layout: Any) -> None:
    rope, x = RoPE(4, layout=layout), torch.tensor([[1.0, 2, 3, 4]]).double()
    k = torch.tensor([[2, -1, 0.5, 1]], dtype=torch.float64)
    assert float(rope.query(x, [m]).square().sum()) == pytest.approx(30, rel=1e-13)
    here = float((rope.query(x, [m]) * rope.key(k, [n])).sum())
    assert here == pytest.approx(float((rope.query(x, [m + shift]) * rope.key(k, [n + shift])).sum()), abs=1e-11)
    cos, sin = cos_sin([m], geometric(4))
    with pytest.raises(ValueError, match="both halves repeated have to be cut to one"):
        rotate(x, cos.repeat(1, 2), sin.repeat(1, 2), layout=layout)


def test_21_weights_permuted_per_head_serve_the_other_layout_under_grouped_queries() -> None:
    perm = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    q, k, v = torch.randn(1, 4, 5, 8).double(), torch.randn(1, 2, 5, 8).double(), torch.randn(1, 2, 5, 8).double()
    neighbours = attend(q, k, v, RoPE(8, layout="interleaved"), range(5))
    halves = attend(q[..., perm], k[..., perm], v, RoPE(8, layout="half"), range(5))
    torch.testing.assert_close(halves, neighbours, rtol=0, atol=1e-12)


def test_22_a_table_with_two_halves_is_refused_not_cut() -> None:
    x, (cos, sin) = torch.randn(5, 8), cos_sin(range(5), geometric(8))
    other, more = cos_sin(range(5), geometric(8, 50.0))
    with pytest.raises(ValueError, match="turn 16 channels, but x has only 8"):
        rotate(x, torch.cat((cos, other), -1), torch.cat((sin, more), -1), layout="half")


def test_23_three_orders_have_names() -> None:
    paper = Sinusoidal(8).table([10])[0]
    assert paper.tolist() == pytest.approx(
        [
            -0.544021110889,
            -0.839071529076,
            0.841470984808,
            0.540302305868,
            0.0998334166468,
            0.995004165278,
            0.00999983333417,
            0.999950000417,
        ],
        abs=6e-8,
    )
    assert torch.equal(Sinusoidal(8, order="concatenated").table([10])[0], torch.cat((paper[0::2], paper[1::2])))
    assert torch.equal(Sinusoidal(8, order="cosine_first").table([10])[0], torch.cat((paper[1::2], paper[0::2])))


def test_24_both_ladders_have_names() -> None:
    assert Sinusoidal(8).spectrum.radians == pytest.approx([1, 0.1, 0.01, 0.001])
    ends = Sinusoidal(8, ladder="half-1").spectrum.radians
    assert ends == pytest.approx([1, 0.0464158883361, 0.00215443469003, 0.0001])
    at_one = Sinusoidal(8).table([1], dtype=torch.float64)[0]
    assert at_one[1::2].acos().tolist() == pytest.approx([1, 0.1, 0.01, 0.001])  # cosines turn as their sines


def test_25_the_token_axis_is_named_and_checked() -> None:
    rope, x = RoPE(4), torch.randn(1, 3, 2, 4)  # (B, S, heads, D)
    with pytest.raises(ValueError, match=r"token axis last but one.*transpose axes 1 and 2"):
        rope.query(x, range(3))
    cos, sin = cos_sin(range(3), geometric(4))
    expected = rope.query(x.transpose(1, 2), range(3)).transpose(1, 2)
    assert torch.equal(rotate(x, cos, sin, layout="half", seq_dim=1), expected)
    square = torch.randn(1, 3, 3, 4)  # S = heads: only the name tells
    by_head, by_token = (rotate(square, cos, sin, layout="half", seq_dim=d) for d in (-2, -3))
    assert not torch.allclose(by_head, by_token)


# K4, as far as it is about positions


def test_34_a_position_is_an_angle_without_any_factor() -> None:
    assert float(cos_sin([100], Spectrum([0.001]), dtype=torch.float64)[1][0, 0]) == pytest.approx(
        math.sin(0.1), abs=1e-15
    )
    assert float(cos_sin([100], geometric(8), dtype=torch.float64)[1][0, 3]) == pytest.approx(math.sin(0.1), abs=1e-15)


@given(st.integers(1, 11), st.integers(0, 700))
def test_36_xpos_scales_by_positions_not_by_the_slice(cached: int, offset: int) -> None:
    xpos = XPos(32, scale_base=512.0)
    q, k, v = torch.randn(3, 1, 1, 12, 32, dtype=torch.float64)
    at = Positions.arange(12, offset=offset)
    whole = attend(q, k, v, xpos, at)
    alone = attend(q[:, :, cached:], xpos.key(k, at), v, xpos, at[cached:], key_positions=at, keys_encoded=True)
    torch.testing.assert_close(alone, whole[:, :, cached:], rtol=0, atol=1e-12)
    ones = torch.ones(1, 32, dtype=torch.float64)
    for d in (0, 3):  # the factor of a pair depends on the distance alone
        near = (xpos.query(ones, [d])[0] * xpos.key(ones, [0])[0])[[0, 16]].sum()
        assert float(near) == pytest.approx(2 * math.cos(d) * (0.4 / 1.4) ** (d / 512))


# K6: positions against cache, padding, packing, sharding


def test_46_each_row_of_a_left_padded_batch_has_its_own_positions() -> None:
    pos = Positions.left_padded(torch.tensor([[0, 0, 1, 1, 1]]))
    assert pos.ids[0, 2:].tolist() == [0, 1, 2]
    assert pos.after().ids.tolist() == [[3]]
    learned = Learned(4, length=4, std=1.0).requires_grad_(False)
    assert torch.equal(learned.embed(torch.zeros(1, 5, 4), pos)[0, 2:], learned.embedding.weight[:3])


@given(st.integers(1, 7), st.integers(1, 7))
def test_47_a_cache_of_any_length_continues_where_it_stands(first: int, second: int) -> None:
    cuts = sorted({first, second})
    for make in (lambda: RoPE(HEAD_DIM), lambda: ALiBi(HEADS), lambda: T5(HEADS, bidirectional=False)):
        model = Model(Case("any", make))
        x, at = model.tokens(1, 8), model.arange(8)
        close(model.cached(x, at, cuts), model(x, at))


def test_48_chunks_of_a_prefill_start_where_the_last_one_ended() -> None:
    at = Positions.arange(1536)
    chunks = [at[start : start + 512] for start in range(0, 1536, 512)]
    assert [c.span() for c in chunks] == [(0, 511), (512, 1023), (1024, 1535)]
    assert chunks[0].after().ids.tolist() == [512]
    assert Positions.arange(512, offset=512).span() == (512, 1023)


def test_49_the_next_position_follows_the_highest_not_the_number_of_rows() -> None:
    kept = Positions.arange(10)[4:]  # ten tokens seen, four evicted
    assert len(kept) == 6
    assert kept.after().ids.tolist() == [10]
    assert float(cos_sin(kept.after(), geometric(8))[0][0, 0]) == pytest.approx(-0.839071529076, abs=6e-8)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_50_a_key_can_be_moved_and_moved_again(layout: Any) -> None:
    rope, k = RoPE(80, rotary_dim=32, layout=layout), torch.randn(1, 1, 4, 80, dtype=torch.float64)
    at = Positions.arange(4, offset=900)
    moved = rope.key(k, at)
    for _ in range(100):
        moved = rope.key(moved, [-7] * 4)
    torch.testing.assert_close(moved, rope.key(k, Positions.arange(4, offset=200)), rtol=0, atol=1e-12)
    assert torch.equal(moved[..., 32:], k[..., 32:])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_51_documents_start_again_and_do_not_see_each_other(lengths: list[int]) -> None:
    pos = Positions.packed([0, *itertools.accumulate(lengths)])
    assert Positions.packed([0, 3, 5]).ids.tolist() == [0, 1, 2, 0, 1]
    seen = visible(pos, pos, Mask(causal=False))
    blocks = torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool()
    assert torch.equal(seen, blocks)
    x = torch.randn(1, HEADS, 3, HEAD_DIM).double().repeat(1, 1, 2, 1)  # identical documents
    out = attend(x, x, x, RoPE(HEAD_DIM), Positions.packed([0, 3, 6]))
    torch.testing.assert_close(out[:, :, :3], out[:, :, 3:], rtol=0, atol=1e-15)  # sums may run in another order


def test_53_no_table_is_ever_too_short() -> None:
    rope, x = RoPE(8), torch.ones(1, 8)
    for at in (8191, 8192, 2**31 - 1, 2**40):
        assert bool(rope.query(x, [at]).isfinite().all())
    with pytest.raises(ValueError, match=r"position 8192 is beyond.*length 8192 \(positions 0 to 8191\)"):
        Learned(4, length=8192).embed(torch.ones(1, 4), [8192])


@given(st.integers(1, 2**31))
def test_54_negative_positions_turn_back_and_tables_refuse_them(at: int) -> None:
    rope, x = RoPE(8), torch.randn(1, 8, dtype=torch.float64)
    torch.testing.assert_close(rope.query(x, [-at]), rope.inverse(x, [at]), rtol=0, atol=0)
    with pytest.raises(ValueError, match=f"position -{at} is negative, and a learned table begins at 0"):
        Learned(8).embed(x, [-at])


def test_55_a_far_position_allocates_nothing() -> None:
    """One position of 10⁹ is one row of a table."""
    cos, _ = cos_sin([10**9], geometric(64))
    assert cos.shape == (1, 32)
    with pytest.raises(ValueError, match="position 1000000000 is beyond"):
        Learned(8).embed(torch.ones(1, 8), [10**9])
    with pytest.raises(ValueError, match="distance 1000000000 is beyond"):
        RelativeBias(length=64).bias(torch.tensor(0), torch.tensor(10**9), torch.tensor(0))


def test_56_a_cache_slot_is_not_a_position() -> None:
    """Keys may lie in any slot: only their positions count."""
    q, k, v = torch.randn(3, 1, 1, 5, 8, dtype=torch.float64)
    slots = torch.tensor([3, 0, 4, 1, 2])
    for encoding in (RoPE(8), ALiBi(1), T5(1).double()):
        there = attend(q, k[:, :, slots], v[:, :, slots], encoding, range(5), key_positions=slots)
        torch.testing.assert_close(there, attend(q, k, v, encoding, range(5)), rtol=0, atol=1e-12)


def test_57_activations_are_not_positions() -> None:
    x = torch.randn(2, 16, 10, 8)
    for wrong in (x, x[0, 0], x[0, 0, 0].round()):
        with pytest.raises(TypeError, match=r"positions are integers, got torch.float32 of shape"):
            RoPE(8).query(x, wrong)
    with pytest.raises(
        ValueError, match=r"positions have shape \(S,\), \(B, S\) or \(axes, B, S\), got \(2, 16, 10, 8\)"
    ):
        RoPE(8).query(x, x.long())


# K8: additive biases


@given(st.integers(1, 70), st.integers(1, 9), st.integers(0, 9))
def test_66_67_a_bias_knows_its_queries_by_position(heads: int, queries: int, more: int) -> None:
    keys = queries + more
    alibi = ALiBi(heads)
    h, i, j = torch.arange(heads)[:, None, None], torch.arange(keys)[keys - queries :, None], torch.arange(keys)
    whole = alibi.bias(h, torch.arange(keys)[:, None], j)
    assert torch.equal(alibi.bias(h, i, j), whole[:, keys - queries :])
    assert torch.equal(alibi.bias(h, i[-1:], j)[:, 0], whole[:, -1])  # one query of a decode step
    row = alibi.bias(torch.tensor(0), torch.tensor([[4]]), torch.arange(5))[0] / alibi.slopes[0]
    assert row.tolist() == pytest.approx([-4, -3, -2, -1, 0])


def test_68_a_symmetric_bias_never_rewards_distance() -> None:
    alibi = ALiBi(1)
    slope = alibi.slopes[0]
    assert float(alibi.bias(torch.tensor(0), torch.tensor(2), torch.tensor(5))) == pytest.approx(-3 * slope)
    q = torch.ones(1, 1, 6, 4)
    with pytest.raises(ValueError, match="causal attention only"):
        attend(q, q, q, ALiBi(1, bidirectional=False), range(6), causal=False)


def test_70_one_table_is_shared_only_on_purpose() -> None:
    one, other = T5(4), T5(4)
    assert not torch.equal(one.table, other.table)  # layers of their own
    layers = torch.nn.ModuleList([one, one])  # or one object in both
    assert sum(p.numel() for p in layers.parameters()) == one.table.numel()
    q, k, v = torch.randn(1, 4, 3, 8), *torch.randn(2, 1, 4, 5, 8)
    across = attend(q, k, v, NoPE(), range(3), key_positions=range(5), causal=False)  # T5's cross-attention has none
    scores = (q @ k.mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(across, scores @ v)


@given(st.integers(1, 12), st.integers(1, 6))
def test_71_a_distance_is_the_same_on_both_sides_of_the_diagonal(n: int, clip: int) -> None:
    encoding = RelativeBias(clip=clip)
    with torch.no_grad():
        encoding.table.weight.copy_(torch.arange(-clip, clip + 1)[:, None])
    at = torch.arange(n)
    found = encoding.bias(torch.tensor(0), at[:, None], at[None]).detach()
    assert torch.equal(found, (at[None] - at[:, None]).clamp(-clip, clip).float())


def test_73_a_bias_is_served_in_blocks_and_one_number_a_distance() -> None:
    """For 16 heads of 4096 tokens the matrix would take 1 GiB; 2 · 4096 - 1 distances a head say it all."""
    t5, n = T5(16, std=1.0).requires_grad_(False), 4096
    strip = t5.bias(torch.arange(16)[:, None], torch.tensor(0), torch.arange(1 - n, n))
    assert strip.shape == (16, 2 * n - 1)
    for i, j in ((0, n - 1), (n - 1, 0), (1000, 77)):
        one = t5.bias(torch.arange(16), torch.tensor(i), torch.tensor(j))
        assert torch.equal(strip[:, j - i + n - 1], one)


@given(st.integers(1, 40), st.sampled_from([torch.bfloat16, torch.float16]))
def test_k8_buckets_and_distances_are_counted_in_integers(heads: int, dtype: torch.dtype) -> None:
    """257 and 256 are one number in bfloat16, and 2049 and 2048 in float16."""
    far = torch.tensor([255, 256, 257, 2047, 2048, 2049, 70_001])
    t5 = T5(1, buckets=40_000, max_distance=100_000).to(dtype)
    assert len(set(t5.bucket(-far[:6]).tolist())) == 6
    bias = ALiBi(heads).to(dtype).bias(torch.tensor(heads - 1), far, torch.tensor(0))
    assert bias.dtype == torch.float32
    assert (bias / -ALiBi(heads).slopes[heads - 1]).tolist() == pytest.approx(far.tolist(), rel=1e-6)
    kerple = KERPLE(1).to(dtype)
    assert len(set(kerple.bias(torch.tensor(0), far, torch.tensor(0)).tolist())) == len(far)
    relative = RelativeBias(length=3000).to(dtype)
    assert torch.equal(
        relative.bias(torch.tensor(0), far[:6], torch.tensor(0)), relative.table.weight[2999 - far[:6], 0]
    )


# K9: absolute tables and shapes


def test_74_odd_widths_work() -> None:
    five = Sinusoidal(5).table([1], dtype=torch.float64)[0].tolist()
    assert five == pytest.approx(
        [0.841470984808, 0.540302305868, 0.0251162229098, 0.999684537915, 0.000630957302615], abs=1e-12
    )
    assert float(Sinusoidal(7).table([3], dtype=torch.float64)[0, -1]) == pytest.approx(0.00111827788302, abs=1e-13)
    for order in ("interleaved", "concatenated", "cosine_first"):
        assert Sinusoidal(5, order=order).embed(torch.zeros(2, 3, 5), range(3)).shape == (2, 3, 5)


@given(st.integers(0, 200).map(lambda n: 2 * n + 1))
def test_75_an_odd_rotary_width_is_refused_when_it_is_built(width: int) -> None:
    for cls in (RoPE, XPos):
        with pytest.raises(ValueError, match=f"so head_dim must be even, got {width}"):
            cls(width)
        with pytest.raises(ValueError, match=f"so rotary_dim must be even, got {width}"):
            cls(width + 1, rotary_dim=width)


def test_76_rows_differ_along_tokens_and_not_along_the_batch() -> None:
    for encoding in (Sinusoidal(8), Learned(8, std=1.0).requires_grad_(False)):
        out = encoding.embed(torch.zeros(3, 4, 8), range(4))
        assert torch.equal(out[0], out[1])
        assert torch.equal(out[0], out[2])
        assert len({tuple(row) for row in out[0].tolist()}) == 4


@given(st.integers(1, 600), st.integers(1, 5))
def test_77_a_position_beyond_a_table_is_an_error_with_both_numbers(length: int, beyond: int) -> None:
    learned = Learned(2, length=length)
    n = length + beyond
    assert learned.embed(torch.zeros(length, 2), range(length)).shape == (length, 2)
    message = rf"position {n - 1} is beyond .* length {length} \(positions 0 to {length - 1}\)"
    with pytest.raises(ValueError, match=message):
        learned.embed(torch.zeros(n, 2), range(n))


def test_78_reserved_rows_come_on_top_of_the_length() -> None:
    roberta = Learned(4, length=512, offset=2).requires_grad_(False)
    assert roberta.embedding.weight.shape == (514, 4)
    found = roberta.embed(torch.zeros(512, 4), range(512))
    assert torch.equal(found, roberta.embedding.weight[2:514])
    assert Learned(4, length=512, offset=4).embedding.weight.shape == (516, 4)


def test_79_no_row_is_frozen() -> None:
    learned = Learned(4, length=16)
    assert bool(learned.embedding.weight.ne(0).any(-1).all())
    learned.embed(torch.zeros(16, 4), range(16)).sum().backward()
    grad = learned.embedding.weight.grad
    assert grad is not None
    assert bool((grad != 0).all())
    assert learned.embedding.padding_idx is None


def test_80_an_offset_is_applied_where_it_is_asked_for_and_shown() -> None:
    opt = Learned(4, length=10, offset=2, std=1.0).requires_grad_(False)
    assert torch.equal(opt.embed(torch.zeros(3, 4), range(3)), opt.embedding.weight[2:5])
    assert "offset=2" in repr(opt)
    plain = Learned(4, length=10, std=1.0).requires_grad_(False)
    assert torch.equal(plain.embed(torch.zeros(3, 4), range(3)), plain.embedding.weight[:3])


def test_81_every_sample_has_its_own_offset_and_one_row_is_not_many() -> None:
    rope, x = RoPE(8), torch.randn(2, 3, 1, 8, dtype=torch.float64)
    out = rope.query(x, Positions.arange(1, offset=torch.tensor([5, 3])))
    for row, at in enumerate((5, 3)):
        assert torch.equal(out[row], rope.query(x[row], [at]))
    several = torch.randn(4, 8)
    with pytest.raises(ValueError, match="but there are 1 positions"):
        rope.query(several, [5])
    for x, tables in (
        (several, cos_sin([5], geometric(8))),
        (torch.randn(1, 4, 8), cos_sin([[5]], geometric(8))),
        (torch.randn(2, 3, 4, 8), cos_sin([[5], [3]], geometric(8))),
    ):
        with pytest.raises(ValueError, match=r"do not (fit|broadcast against) x"):
            rotate(x, *tables, layout="half")


@given(st.integers(1, 20), st.integers(1, 20))
def test_82_width_and_length_are_different_things(length: int, half: int) -> None:
    rope = RoPE(40, rotary_dim=2 * half, layout="interleaved")
    x = torch.randn(length, 40)
    out = rope.query(x, range(length))
    assert torch.equal(out[:, 2 * half :], x[:, 2 * half :])
    assert torch.equal(out[0], x[0])
    if length > 1:
        assert bool((out[1:, : 2 * half] != x[1:, : 2 * half]).any(-1).all())
    with pytest.raises(ValueError, match="must be even, got 3"):
        RoPE(4, rotary_dim=3)


def test_k9_unbatched_tokens_do_not_take_batched_positions() -> None:
    """Broadcasting would give the result a batch axis that its input had not."""
    for encoding in (Sinusoidal(8), Learned(8)):
        with pytest.raises(ValueError, match="x has no batch axis, the positions have 1 rows"):
            encoding.embed(torch.zeros(4, 8), [[0, 1, 2, 3]])
    with pytest.raises(ValueError, match="q has no batch axis, the positions have 2 rows"):
        RoPE(8).query(torch.zeros(4, 8), [[0, 1, 2, 3]] * 2)


# K10, as far as it is about what the library holds


def test_83_nothing_is_complex_and_casts_change_nothing() -> None:
    for encoding in (RoPE(8), XPos(8), Sinusoidal(8)):
        assert not any(t.is_complex() for t in (*encoding.buffers(), *encoding.parameters()))
    x = torch.randn(5, 8)
    assert torch.equal(RoPE(8).to(torch.bfloat16).query(x, range(5)), RoPE(8).query(x, range(5)))


def test_84_one_graph_serves_every_length() -> None:
    from torch._dynamo.testing import CompileCounter

    counter, rope = CompileCounter(), RoPE(8)
    torch._dynamo.reset()
    turn = torch.compile(lambda x, at: rope.query(x, at), fullgraph=True, backend=counter, dynamic=True)
    for n in (7, 8, 9, 33):
        x, at = torch.randn(1, 2, n, 8), torch.arange(n)
        assert torch.equal(turn(x, at), rope.query(x, at))
    assert counter.frame_count == 1
