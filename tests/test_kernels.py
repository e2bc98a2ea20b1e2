"""The C++ rotation against float64, on poisoned memory, through autograd, compile, export and torch.func."""

import ctypes
import logging
import subprocess
import sys
import textwrap
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.kernels import cpu
from ropewalk.rotation import norm_rotate, rotate, rotate_, rotate_pair, rotate_pair_
from turns import DTYPES, HALF_PRECISION, LAYOUTS, PLACES, assert_right, in_float64, needs_kernels, tables

torch_deprecates_its_own = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")


@needs_kernels
@pytest.mark.parametrize(("layout", "place"), list(product(LAYOUTS, PLACES)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width_stride_and_place_equals_float64(isa, dtype, layout, place):
    for channels, width in ((128, 128), (64, 64), (64, 32), (80, 32), (10, 6), (130, 126), (2, 2), (256, 250)):
        positions = torch.randint(0, 10_000, (37,))
        cos, sin = tables(positions, width, dtype)
        heads_first = torch.randn(2, 3, 37, channels).to(dtype)
        tokens_first = torch.randn(2, 37, 3, channels).to(dtype)
        wide = torch.randn(2, 3, 37, channels + 5).to(dtype)[..., 2 : 2 + channels]
        for x, axis in ((heads_first, -2), (tokens_first, -3), (tokens_first.transpose(1, 2), -2), (wide, -2)):
            for inverse in (False, True):
                how = {"layout": layout, "seq_dim": axis, "place": place, "inverse": inverse}
                exact = in_float64(x, cos, sin, **how)
                y = rotate(x, cos, sin, impl="native", **how)
                assert y.dtype == dtype
                assert_right(y, exact, x)
                assert y.stride() == torch.empty_like(x).stride()
                inside = x.clone()
                assert rotate_(inside, cos, sin, impl="native", **how) is inside
                assert torch.equal(inside, y)


@needs_kernels
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 40), st.integers(1, 70)),
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    place=st.sampled_from(PLACES),
    order=st.permutations((0, 1, 2)),
    per_row=st.sampled_from(("tokens", "batch", "all")),
)
def test_any_shape_strides_and_tables_equal_float64(shape, data, dtype, layout, place, order, per_row):
    batch, heads, length, pairs = shape
    channels = 2 * pairs + data.draw(st.integers(0, 9))
    x = torch.randn([(batch, heads, length)[a] for a in order] + [channels]).to(dtype)
    x = x.permute(*[order.index(a) for a in range(3)], 3)  # (batch, heads, tokens, channels), lying in any order
    rows = {"tokens": (length,), "batch": (batch, length), "all": (batch, heads, length)}[per_row]
    cos, sin = tables(torch.randint(-50, 1 << 20, rows).reshape(-1), 2 * pairs, dtype)
    cos, sin = (t.reshape(*rows, pairs) for t in (cos, sin))
    how = {"layout": layout, "place": place}
    assert_right(rotate(x, cos, sin, impl="native", **how), in_float64(x, cos, sin, **how), x)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_outside_the_output_is_touched_and_all_of_it_is_written(isa, dtype):
    guard = 64
    for channels, width, first in ((128, 128, "leading"), (80, 32, "trailing"), (10, 6, "leading")):
        x = torch.randn(2, 3, 21, channels).to(dtype)
        memory = torch.full((x.numel() + 2 * guard,), float("nan"), dtype=dtype)
        out = memory[guard:-guard].view_as(x)
        cos, sin = tables(torch.arange(21), width, dtype)
        for layout in LAYOUTS:
            memory.fill_(float("nan"))
            back = rotate(x, cos, sin, layout=layout, place=first, impl="native", out=out)
            assert back is out
            assert torch.equal(out, rotate(x, cos, sin, layout=layout, place=first, impl="native"))
            assert bool(memory[:guard].isnan().all() and memory[-guard:].isnan().all())


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_outputs_written_past_the_caches_are_the_same(isa, dtype):
    x = torch.randn(1, 8, 5000, 128).to(dtype)  # above 8 MiB
    cos, sin = tables(torch.arange(5000), 128, dtype)
    for layout in LAYOUTS:
        assert torch.equal(
            rotate(x, cos, sin, layout=layout, impl="native"),
            torch.cat([rotate(x[:, h : h + 1], cos, sin, layout=layout, impl="native") for h in range(8)], dim=1),
        )


@needs_kernels
def test_the_number_of_threads_changes_no_bit():
    x = torch.randn(2, 8, 700, 64)
    cos, sin = tables(torch.arange(700), 64, x.dtype)
    before, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(
                (rotate(x, cos, sin, layout="half", impl="native"), *rw.cos_sin(torch.arange(9000), rw.geometric(64)))
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for r in results[1:] for a, b in zip(r, results[0], strict=True))


@needs_kernels
@pytest.mark.parametrize("dtype", HALF_PRECISION)
def test_every_half_precision_number_survives_a_turn_by_nothing(isa, dtype):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).reshape(-1, 64)
    cos, sin = torch.ones(len(every), 32), torch.zeros(len(every), 32)
    for layout in LAYOUTS:
        y = rotate(every, cos, sin, layout=layout, impl="native")
        assert torch.equal(y.isnan(), (every * 1.0 + 0 * every.flip(-1)).isnan() | y.isnan())
        finite = (
            every.isfinite()
            & rotate(every.double(), cos.double(), sin.double(), layout=layout, impl="eager").isfinite()
        )
        assert torch.equal(y[finite], every[finite])


@needs_kernels
@pytest.mark.parametrize("dtype", HALF_PRECISION)
def test_half_precision_is_rounded_to_the_nearest_and_ties_to_even(isa, dtype):
    """Products that float32 holds exactly, of every number there is; half of those by 1.5 are ties."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    every = every[every.isfinite()]
    for layout, width, factor in product(LAYOUTS, (64, 30), (1.5, 0.75, 1 + 2**-8, 1 - 2**-10)):
        x = every[: len(every) // width * width].reshape(-1, width)
        cos, sin = torch.full((len(x), width // 2), factor), torch.zeros(len(x), width // 2)
        for inverse in (False, True):
            y = rotate(x, cos, sin, layout=layout, inverse=inverse, impl="native")
            assert torch.equal(y, (x.float() * factor).to(dtype)), (layout, width, factor)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_may_lie_otherwise_than_its_input(isa, dtype):
    guard, (batch, heads, length) = 3, (2, 3, 9)
    for tokens, width, order in product((length, 1), (42, 26), ((0, 1, 2), (0, 2, 1), (2, 1, 0))):
        x = torch.randn(batch, heads, tokens, 42).to(dtype)
        shape = [(batch, heads, tokens)[a] + guard for a in order] + [42 + guard]
        memory = torch.full(shape, float("nan"), dtype=dtype)
        inner = memory[:-guard, :-guard, :-guard, :-guard]
        out = inner.permute(*[order.index(a) for a in range(3)], 3)
        cos, sin = tables(torch.randint(0, 900, (tokens,)), width, dtype)
        for layout in LAYOUTS:
            memory.fill_(float("nan"))
            rotate(x, cos, sin, layout=layout, impl="native", out=out)
            assert torch.equal(out, rotate(x, cos, sin, layout=layout, impl="native"))
            assert int(memory.isfinite().sum()) == x.numel()


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_may_be_cut_from_wider_ones_or_repeat_a_row(isa, dtype):
    wide = [torch.stack(t) for t in zip(*(tables(torch.arange(n, n + 40), 64, dtype) for n in (0, 50)), strict=True)]
    for pairs, layout in product((21, 16), LAYOUTS):
        x = torch.randn(2, 3, 40, 64).to(dtype)
        cut = [t[..., 3 : 3 + pairs] for t in wide]
        for cos, sin in (
            cut,
            [t[1] for t in cut],
            [t[:, :1].expand(-1, 40, -1) for t in cut],
            [t[:1, None] for t in cut],
        ):
            assert cos.stride(-2) != pairs
            y = rotate(x, cos, sin, layout=layout, impl="native")
            assert_right(y, in_float64(x, cos, sin, layout=layout), x)


NAN_BITS = {
    torch.float32: (0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, 0x7FBFFFFF, -0x7FFFFF),  # quiet, signalling, either sign
    torch.float64: ((0x7FF8 << 48), (1 << 63) - 1, -1, (0x7FF0 << 48) + 1, (0x7FF8 << 48) - 1),
    torch.bfloat16: (0x7FC0, 0x7FFF, -1, 0x7F81, 0x7FBF),
    torch.float16: (0x7E00, 0x7FFF, -1, 0x7C01, 0x7DFF),
}
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_or_infinity_in_x_or_a_table_never_becomes_a_number(isa, dtype):
    for layout, pairs, inverse in product(LAYOUTS, (2, 15, 21, 64), (False, True)):
        x, (cos, sin) = torch.randn(3, 9, 2 * pairs).to(dtype), tables(torch.arange(9), 2 * pairs, dtype)
        for t in (x, cos, sin):
            odd = [torch.tensor(bits, dtype=BITS[t.dtype]).view(t.dtype) for bits in NAN_BITS[t.dtype]]
            for value in (*odd, *torch.tensor([float("inf"), -float("inf")], dtype=t.dtype)):
                channel, before = int(torch.randint(0, t.shape[-1], ())), t.clone()
                t.view(BITS[t.dtype])[..., 4, channel] = value.view(BITS[t.dtype])
                how = {"layout": layout, "inverse": inverse}
                exact = in_float64(x, cos, sin, **how)
                y = rotate(x, cos, sin, impl="native", **how)
                assert torch.equal(y.isnan(), exact.isnan()), (layout, pairs, hex(int(value.view(BITS[t.dtype]))))
                assert torch.equal(y.isinf(), exact.isinf())
                t.copy_(before)
                there = exact.isfinite()
                assert_right(y[there], exact[there], x)
    weight = torch.ones(8)
    x, (cos, sin) = torch.randn(2, 9, 8).to(dtype), tables(torch.arange(9), 8, dtype)
    for bits in NAN_BITS[dtype]:
        x.view(BITS[dtype])[0, 4, 3] = bits
        for layout in LAYOUTS:
            spoilt = norm_rotate(x, weight, cos, sin, layout=layout, impl="native").isnan()
            assert spoilt[0, 4].all()
            assert int(spoilt.sum()) == 8


def test_a_gradient_goes_through_what_is_turned_in_place():
    """These were once written as if no gradient were wanted, and gave that of something else."""
    cos, sin = tables(torch.arange(5), 6, torch.float64)
    weight = torch.randn(2, 2, 3, 5, 8, dtype=torch.float64)

    def loss(turn, q, k, cos, sin):
        q, k = turn(q * 2, k * 3, cos, sin)
        return (torch.stack((q, k)) * weight).sum()

    def together(q, k, cos, sin):
        return rotate_pair_(q, k, cos, sin, layout="half", place="trailing")

    def apart(q, k, cos, sin):
        return tuple(rotate_(t, cos, sin, layout="half", place="trailing") for t in (q, k))

    def fresh(q, k, cos, sin):
        return tuple(rotate(t, cos, sin, layout="half", place="trailing", impl="eager") for t in (q, k))

    for which in ((0,), (1,), (2, 3), (0, 1, 2, 3)):
        given = [torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(2)] + [cos.clone(), sin.clone()]
        learned = [given[i].requires_grad_() for i in which]
        right = torch.autograd.grad(loss(fresh, *given), learned)
        for turn in (together, apart):
            torch.testing.assert_close(torch.autograd.grad(loss(turn, *given), learned), right, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="leaf"):
        rotate_(torch.ones(1, 6, dtype=torch.float64, requires_grad=True), cos[:1], sin[:1], layout="half")


@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_an_output_that_overlaps_its_input_is_right_all_the_same(impl):
    for heads in (3, 300):  # a short call, and an operator
        cos, sin = tables(torch.arange(3), 64, torch.float32)
        memory = torch.randn(3 * heads * 64 + 64)
        x, out = memory[:-64].view(heads, 3, 64), memory[64:].view(heads, 3, 64)
        exact = in_float64(x, cos, sin, layout="half")
        assert_right(rotate(x, cos, sin, layout="half", impl=impl, out=out), exact, torch.ones(()) * 8)
    square = torch.randn(3, 3, 64)
    exact = in_float64(square, cos, sin, layout="half")
    assert_right(
        rotate(square, cos, sin, layout="half", impl=impl, out=square.transpose(0, 1)), exact, torch.ones(()) * 8
    )
    whole = torch.randn(3, 3, 64)
    exact = in_float64(whole, cos, sin, layout="half")
    assert_right(rotate(whole, cos, sin, layout="half", impl=impl, out=whole), exact, torch.ones(()) * 8)


@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_rows_that_share_their_memory_are_not_turned_in_place(impl):
    cos, sin = tables(torch.arange(3), 8, torch.float32)
    row = torch.randn(1, 3, 8)
    before = row.clone()
    for turn in (
        lambda x: rotate_(x, cos, sin, layout="half", impl=impl),
        lambda x: rotate_pair_(x, x.clone(), cos, sin, layout="half", impl=impl),
    ):
        with pytest.raises(RuntimeError, match="single memory location"):
            turn(row.expand(4, 3, 8))
        assert torch.equal(row, before)


@needs_kernels
def test_memory_that_overlaps_is_an_explicit_choice_that_cannot_be_met():
    cos, sin = tables(torch.arange(3), 8, torch.float32)
    memory = torch.randn(80)
    with pytest.raises(ValueError, match="the output is the input itself, or lies apart from it"):
        rotate(memory[:72].view(3, 3, 8), cos, sin, layout="half", impl="native", out=memory[8:].view(3, 3, 8))
    with pytest.raises(ValueError, match="rows of the output share their memory"):
        rotate_(torch.ones(1, 3, 8).expand(4, 3, 8), cos, sin, layout="half", impl="native")


@needs_kernels
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inverse", [False, True])
def test_gradients_first_and_second_of_everything(layout, inverse):
    how = {"layout": layout, "inverse": inverse, "impl": "native"}
    cos, sin = (t.clone().requires_grad_() for t in tables(torch.arange(5), 6, torch.float64))
    for shape, axis in (((2, 3, 5, 8), -2), ((2, 5, 3, 8), -3), ((5, 8), -2)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

        def one(x, cos, sin, axis=axis):
            return rotate(x, cos, sin, seq_dim=axis, place="trailing", **how)

        def both(x, cos, sin, axis=axis):
            return rotate_pair(x, x.sin(), cos, sin, seq_dim=axis, **how)

        for function in (one, both):
            assert torch.autograd.gradcheck(function, (x, cos, sin))
            assert torch.autograd.gradgradcheck(function, (x, cos, sin))


@needs_kernels
def test_gradients_of_a_transposed_upstream_and_of_batched_tables():
    cos, sin = (t.reshape(2, 5, 3).clone().requires_grad_() for t in tables(torch.arange(10), 6, torch.float64))
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 5, 3, 2, dtype=torch.float64)

    def loss(impl):
        y = rotate(x, cos, sin, layout="half", impl=impl)
        return torch.autograd.grad((y.permute(3, 2, 1, 0) * weight).sum(), (x, cos, sin))

    for ours, eager in zip(loss("native"), loss("eager"), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)


@needs_kernels
@torch_deprecates_its_own
def test_opcheck_passes_for_every_operator():
    x, cos, sin = torch.randn(2, 3, 5, 8), *tables(torch.arange(5), 8, torch.float32)
    how, grad = (0, -2, 0, False), torch.randn(2, 3, 5, 8, requires_grad=True)
    phases = torch.arange(5)[:, None] * torch.tensor(rw.geometric(8).turns)
    arguments = {
        "rotate": [
            (x, cos, sin, *how),
            (grad, cos, sin, 1, -2, 0, True),
            (x.transpose(1, 2), cos, sin, 0, -3, 0, False),
        ],
        "rotate_": [(x.clone(), cos, sin, *how)],
        "rotate_out": [(x, cos, sin, *how, torch.empty_like(x))],
        "rotate_pair": [
            (x, x[:, :1], cos, sin, *how),
            (grad, grad.detach()[:, :2].clone().requires_grad_(), cos, sin, *how),
        ],
        "rotate_pair_": [(x.clone(), x[:, :1].clone(), cos, sin, *how)],
        "cos_sin": [(phases, 1.0, False), (phases.reshape(2, 5, 2), 0.5, True)],
        "norm_rotate": [(x, cos, sin, *how, torch.randn(8), 1e-6), (grad, cos, sin, *how, torch.randn(8), 1e-6)],
        "rotate_to_cache": [
            (x, x[..., :4], cos, sin, *how, torch.zeros(2, 3, 9, 8), torch.zeros(2, 3, 9, 4), torch.arange(3, 8))
        ],
    }
    assert set(arguments) == set(cpu.OPERATORS)
    for name, calls in arguments.items():
        for call in calls:
            torch.library.opcheck(cpu.OPERATORS[name], call)


@needs_kernels
def test_one_graph_holds_the_operator_and_serves_every_length():
    torch._dynamo.reset()
    rope = rw.RoPE(16)

    def loss(q, k, pos):
        q, k = rope.query_key(q, k, pos)
        return (q * k).sum()

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for n in (7, 8, 9, 33):
        q, k = torch.randn(2, 1, 2, n, 16)
        assert torch.equal(compiled(q, k, torch.arange(n)), loss(q, k, torch.arange(n)))
    assert len(graphs) <= 2, "at most one recompilation, for a length that varies"
    assert any("ropewalk.rotate" in str(node.target) for node in graphs[-1].graph.nodes)


@needs_kernels
@torch_deprecates_its_own
@pytest.mark.slow
def test_inductor_computes_the_same_forward_and_backward():
    torch._dynamo.reset()
    rope = rw.RoPE(16)

    def loss(q, pos):
        return (rope.query(q, pos) * q).square().sum()

    compiled = torch.compile(loss, fullgraph=True)
    q = torch.randn(1, 2, 9, 16, requires_grad=True)
    ours, theirs = (torch.autograd.grad(f(q, torch.arange(9)), q)[0] for f in (compiled, loss))
    torch.testing.assert_close(ours, theirs)


@needs_kernels
def test_export_keeps_one_operator_and_matches_at_other_lengths():
    class Turned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = rw.RoPE(16)

        def forward(self, q, pos):
            return self.rope.query(q, pos)

    length = torch.export.Dim("length")
    module = Turned()
    program = torch.export.export(
        module, (torch.randn(2, 3, 9, 16), torch.arange(9)), dynamic_shapes={"q": {2: length}, "pos": {0: length}}
    )
    assert sum("ropewalk.rotate" in str(node.target) for node in program.graph.nodes) == 1
    for n in (5, 21):
        q = torch.randn(2, 3, n, 16)
        assert torch.equal(program.module()(q, torch.arange(n)), module(q, torch.arange(n)))


@needs_kernels
@torch_deprecates_its_own
def test_torch_func_gets_the_eager_form_and_right_answers():
    cos, sin = tables(torch.arange(5), 8, torch.float32)
    x, tangent = torch.randn(2, 4, 3, 5, 8)

    def turn(t):
        return rotate(t, cos, sin, layout="half")

    assert torch.equal(torch.func.vmap(turn)(x), rotate(x, cos, sin, layout="half", impl="eager"))
    _, moved = torch.func.jvp(turn, (x[0],), (tangent[0],))
    torch.testing.assert_close(moved, turn(tangent[0]))
    torch.testing.assert_close(torch.func.grad(lambda t: turn(t).square().sum() / 2)(x[0]), x[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"impl='native' cannot serve this: torch\.func is at work"):
        torch.func.vmap(lambda t: rotate(t, cos, sin, layout="half", impl="native"))(x)


@needs_kernels
def test_autocast_leaves_it_alone_and_inference_mode_is_served():
    rope, q = rw.RoPE(16), torch.randn(1, 2, 9, 16)
    plain = rope.query(q, torch.arange(9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rope.query(q, torch.arange(9)), plain)
    with torch.inference_mode():
        assert torch.equal(rope.query(q, torch.arange(9)), plain)


@needs_kernels
def test_pairs_in_and_out_of_place_equal_single_calls():
    cos, sin = tables(torch.arange(9), 16, torch.float32)
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    one = rotate(q, cos, sin, layout="half"), rotate(k, cos, sin, layout="half")
    for impl in ("native", "eager"):
        two = rotate_pair(q, k, cos, sin, layout="half", impl=impl)
        inside = rotate_pair_(q.clone(), k.clone(), cos, sin, layout="half", impl=impl)
        for a, b, c in zip(one, two, inside, strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-6)
            assert torch.equal(b, c)
    rope = rw.RoPE(16)
    for a, b in zip(rope.query_key(q, k, torch.arange(9)), one, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("tokens", [9, 900])
@pytest.mark.parametrize("place", PLACES)
def test_pairs_of_different_widths_equal_single_calls(tokens, place):
    cos, sin = tables(torch.arange(tokens), 16, torch.float32)
    q, k = torch.randn(4, tokens, 40), torch.randn(2, tokens, 24)
    how = {"layout": "half", "place": place}
    inside = rotate_pair_(q.clone(), k.clone(), cos, sin, **how)
    for x, *turned in zip((q, k), rotate_pair(q, k, cos, sin, **how), inside, strict=True):
        for y in turned:
            assert_right(y, in_float64(x, cos, sin, **how), x)


REFUSED = [
    (lambda x, c, s: rotate(x, c, s, layout="half", impl="fast"), "impl is 'auto', 'eager' or 'native', got 'fast'"),
    (lambda x, c, s: rotate(x, c.double(), s.double(), layout="half", impl="native"), "cos and sin are float32"),
    (lambda x, c, s: rotate_(x[..., ::2], c[:, :2], s[:, :2], layout="half", impl="native"), "last axis is contiguous"),
    (lambda x, c, s: rotate(x[None], c, s, layout="half", impl="native"), "2 to 4 axes"),
    (lambda x, c, s: rotate(x.to("meta"), c, s, layout="half", impl="native"), "a tensor is on meta"),
    (lambda x, c, s: rotate(x, c.T.contiguous().T, s.T.contiguous().T, layout="half", impl="native"), "contiguous"),
]


@needs_kernels
@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_an_explicit_choice_that_cannot_be_met_says_why(call, message):
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(torch.arange(5), 8, torch.float32)
    with pytest.raises(ValueError, match=message):
        call(x, cos, sin)


@needs_kernels
def test_the_operators_themselves_guard_their_memory():
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(torch.arange(5), 8, torch.float32)
    op, how = torch.ops.ropewalk.rotate, (0, -2, 0, False)
    for arguments, message in (
        ((x, cos[:4], sin[:4], *how), r"cos and sin \(4, 4\) do not fit x \(2, 3, 5, 8\)"),
        ((x, cos, sin[:4], *how), "different shapes"),
        ((x, cos, sin, 0, -2, 2, False), "channels 2 to 10 turn, but x has 8"),
        ((x, cos, sin, 0, -2, -1, False), "channels -1 to 7"),
        ((x, cos, sin, 7, -2, 0, False), "layout is 0"),
        ((x, cos, sin, 0, 3, 0, False), "seq_dim names an axis"),
        ((x.long(), cos, sin, *how), "x is floating"),
        ((torch.randn(1, 1, 1, 4096), cos[:1], sin[:1], *how), "at most 2048 channels"),
        ((x, cos[None, None].expand(3, 1, 5, 4), sin[None, None].expand(3, 1, 5, 4), *how), "do not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            op(*arguments)
    with pytest.raises(ValueError, match="out has the shape and dtype of x"):
        torch.ops.ropewalk.rotate_out(x, cos, sin, *how, torch.empty(2, 3, 5, 7))


@needs_kernels
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=50), st.integers(1, 40), st.floats(1.01, 1e9))
def test_native_tables_are_exact_for_any_position(ids, pairs, base):
    phases = torch.tensor(ids)[:, None] * torch.tensor(rw.geometric(2 * pairs, base).turns)
    exact = phases.double() * (2 * torch.pi / 2**64)
    for double, error in ((False, 3.1e-8), (True, 7e-16)):
        cos, sin = torch.ops.ropewalk.cos_sin(phases, 1.0, double)
        assert float((cos.double() - exact.cos()).abs().max()) <= error
        assert float((sin.double() - exact.sin()).abs().max()) <= error


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_then_rotation_equals_the_two_in_float64(isa, dtype):
    x = torch.randn(2, 3, 21, 80).to(dtype)
    cos, sin = tables(torch.arange(21), 32, dtype)
    weight = torch.randn(80, dtype=cos.dtype)
    normed = torch.nn.functional.rms_norm(x.double(), (80,), weight.double(), 1e-6)
    for layout, impl in product(LAYOUTS, ("native", "eager")):
        y = norm_rotate(x, weight, cos, sin, layout=layout, impl=impl)
        exact = rotate(normed, cos.double(), sin.double(), layout=layout, impl="eager")
        assert y.dtype == dtype
        assert_right(y, exact, exact * 4)


@needs_kernels
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_norm_then_rotation(layout):
    cos, sin = (t.clone().requires_grad_() for t in tables(torch.arange(3), 4, torch.float64))
    x = torch.randn(2, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def turned(x, weight, cos, sin):
        return norm_rotate(x, weight, cos, sin, layout=layout, place="trailing", impl="native")

    assert torch.autograd.gradcheck(turned, (x, weight, cos, sin))
    assert torch.autograd.gradgradcheck(turned, (x, weight, cos, sin))


def test_a_norm_that_cannot_be_is_refused():
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(torch.arange(5), 8, torch.float32)
    with pytest.raises(ValueError, match=r"weight has one number for each of the 8 channels, got shape \(7,\)"):
        norm_rotate(x, torch.ones(7), cos, sin, layout="half")
    with pytest.raises(ValueError, match="epsilon is 0 or more, got -1"):
        norm_rotate(x, torch.ones(8), cos, sin, layout="half", epsilon=-1)


def test_without_the_library_the_eager_form_serves_and_one_line_says_so():
    program = """
        import logging, pathlib
        logging.basicConfig(format="%(name)s %(message)s")
        pathlib.Path.glob = lambda self, pattern: iter(())  # nothing was built
        import torch, ropewalk as rw
        rope = rw.RoPE(8)
        for _ in range(3):
            rope.query(torch.ones(1, 8), [2])
        try:
            rw.rotate(torch.ones(1, 8), torch.ones(1, 4), torch.ones(1, 4), layout="half", impl="native")
        except ValueError as error:
            print(error)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert run.stderr.count("ropewalk the rotation runs in eager PyTorch") == 1
    assert "impl='native' cannot serve this: they were not built" in run.stdout
    assert logging.getLogger("ropewalk").name == "ropewalk"


def test_a_library_that_is_none_is_refused_with_its_reason(tmp_path):
    broken = tmp_path / "_rotate.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(OSError, match="_rotate"):
        ctypes.CDLL(str(broken))
    assert Path(cpu.__file__).parent.joinpath("rotate.cpp").exists()


# ---------------------------------------------------------------------------------------------- as torch does it


@needs_kernels
@given(st.data())
def test_outputs_lie_in_memory_as_torch_would_have_them(data):
    """Fake tensors say so beforehand, and a compiled graph holds the operator to it."""
    axes = data.draw(st.integers(1, 3))
    order = data.draw(st.permutations(range(axes)))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=axes, max_size=axes))
    x = torch.randn(*sizes, data.draw(st.sampled_from([8, 12])))[..., :8].permute(*order, axes)
    repeated = data.draw(st.integers(0, axes))
    if repeated < axes and x.shape[repeated] == 1:
        x = x.expand(*[3 if axis == repeated else -1 for axis in range(axes + 1)])
    x = x[:: data.draw(st.integers(1, 2))]
    cos, sin = tables(torch.arange(x.shape[-2]), 8, x.dtype)
    if x.dim() > 1:
        turned = cpu.OPERATORS["rotate"](x, cos, sin, 0, -2, 0, False)
        assert turned.stride() == torch.empty_like(x).stride()
        torch.library.opcheck(cpu.OPERATORS["rotate"], (x, cos, sin, 0, -2, 0, False), test_utils="test_faketensor")


TRANSFORMS = {
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "grad": lambda f: torch.func.grad(lambda x: f(x).square().sin().sum()),
    "vmap": torch.func.vmap,
}


@needs_kernels
@torch_deprecates_its_own
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_inside_of_a_compiled_function_is_right(transform):
    cos, sin = tables(torch.arange(5), 8, torch.float32)
    f = transform(lambda x: rotate(x, cos, sin, layout="half"))
    x = torch.randn(2, 3, 5, 8)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), f(x))
    assert bool(f(x).any())


MISFITS = {
    "five axes": lambda x, c, s: rotate(x[None], c, s, layout="half"),
    "tables of bfloat16": lambda x, c, s: rotate(x, c.bfloat16(), s.bfloat16(), layout="half"),
    "tables of float64": lambda x, c, s: rotate(x, c.double(), s.double(), layout="half"),
    "float64": lambda x, c, s: rotate(x.double(), c, s, layout="half"),
    "strided tables": lambda x, c, s: rotate(x, c.T.contiguous().T, s.T.contiguous().T, layout="half"),
    "tables of different strides": lambda x, c, s: rotate(x, c.T.contiguous().T, s, layout="half"),
    "many channels": lambda x, c, s: rotate(x.repeat(1, 1, 1, 257), c, s, layout="half"),
    "strided in place": lambda x, c, s: rotate_(x.clone()[..., ::2], c[:, :2], s[:, :2], layout="half"),
    "norm of five axes": lambda x, c, s: norm_rotate(x[None], torch.ones(8), c, s, layout="half"),
    "cache without heads": lambda x, c, s: rw.rotate_to_cache(
        x[0], x[0], c, s, torch.zeros(3, 9, 8), torch.zeros(3, 9, 8), torch.arange(5).expand(3, 5), layout="half"
    )[0],
}


@needs_kernels
@torch_deprecates_its_own
@pytest.mark.parametrize("call", MISFITS.values(), ids=MISFITS)
def test_what_the_operator_cannot_take_is_served_in_a_graph_too(call):
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(torch.arange(5), 8, torch.float32)
    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(x, cos, sin), call(x, cos, sin))


def test_a_pair_in_place_is_two_tensors():
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(torch.arange(5), 8, torch.float32)
    for impl in ("auto", "eager"):
        with pytest.raises(ValueError, match="the same tensor"):
            rotate_pair_(x, x, cos, sin, layout="half", impl=impl)
