"""Keys turned straight into a cache: against the rotation in float64 and plain assignment, row by row."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.kernels import cpu
from ropewalk.rotation import rotate, rotate_to_cache
from turns import DTYPES, LAYOUTS, assert_right, in_float64, needs_kernels, tables

NAN = float("nan")


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, guard: int = 3) -> Tensor:
    """A cache full of NaN whose every axis is a window of a wider one."""
    buffer = torch.full([n + 2 * guard for n in shape], NAN, dtype=dtype)
    return buffer[tuple(slice(guard, guard + n) for n in shape)]


def whole(cache: Tensor) -> Tensor:
    """All the memory that a cache is a window of."""
    assert cache._base is not None
    return cache._base


def by_hand(cache: Tensor, new: Tensor, slots: Tensor, seq_dim: int) -> Tensor:
    """In float64, what a NaN cache is after every token has gone to its row."""
    exact = torch.full(cache.shape, NAN, dtype=torch.float64).movedim(seq_dim, 1)
    new = new.double().movedim(seq_dim, 1)
    slots = slots.expand(new.shape[:2])
    for b, s in product(range(slots.shape[0]), range(slots.shape[1])):
        exact[b, slots[b, s]] = new[b, s]
    return exact.movedim(1, seq_dim)


def assert_holds(cache: Tensor, exact: Tensor, new: Tensor) -> None:
    """The rows that were named hold what is right, and nothing else was touched, in the cache or around it."""
    written = ~exact.isnan()
    assert_right(cache[written], exact[written], new)
    assert int(whole(cache).isnan().logical_not().sum()) == int(written.sum())


def ways(*arguments: Any, **how: Any) -> list[tuple[str, Callable[[Tensor, Tensor, Tensor], Any]]]:
    """The call as users write it, the eager form, and the operator without the short way to it."""
    k, _, cos, _ = arguments
    first = 0 if how["place"] == "leading" else k.shape[-1] - 2 * cos.shape[-1]
    numbers = (cpu.LAYOUTS[how["layout"]], how["seq_dim"], first, how["inverse"])
    return [
        ("public", lambda *into: rotate_to_cache(*arguments, *into, **how, impl="native")),
        ("eager", lambda *into: rotate_to_cache(*arguments, *into, **how, impl="eager")),
        ("operator", lambda *into: cpu.OPERATORS["rotate_to_cache"](*arguments, *numbers, *into)),
    ]


@needs_kernels
@pytest.mark.parametrize(("layout", "dtype"), list(product(LAYOUTS, DTYPES)))
def test_every_row_goes_where_its_slot_says_and_nothing_else_moves(isa, layout, dtype):
    batch, heads, length = 2, 3, 19
    for tokens, seq_dim, (place, inverse) in product(
        (1, 7), (-2, -3), (("leading", False), ("trailing", True), ("leading", True))
    ):
        order = (0, 1, 2, 3) if seq_dim == -2 else (0, 2, 1, 3)
        k, v = (torch.randn(batch, heads, tokens, n).to(dtype).permute(order) for n in (42, 11))
        by_sample = torch.stack([torch.randperm(length)[:tokens] for _ in range(batch)])
        rows = {
            "shared": by_sample[0],
            "of each sample": by_sample,
            "strided": torch.stack([by_sample.T, by_sample.T], dim=-1)[..., 1].T,
            "every other": torch.stack([by_sample[1], by_sample[0]], dim=-1)[:, 1],
        }
        for width, slots in product((42, 26), rows.values()):
            cos, sin = tables(torch.randint(0, 5000, (tokens,)), width, dtype)
            how = {"layout": layout, "seq_dim": seq_dim, "place": place, "inverse": inverse}
            shape = [batch, heads, length]
            results = {}
            for name, call in ways(k, v, cos, sin, **how):
                caches = [poisoned(tuple([shape[a] for a in order[:3]] + [n]), dtype) for n in (42, 11)]
                call(*caches, slots)
                for cache, new, exact in zip(caches, (k, v), (in_float64(k, cos, sin, **how), v), strict=True):
                    assert_holds(cache, by_hand(cache, exact, slots, seq_dim), new)
                results[name] = [whole(cache).nan_to_num(9) for cache in caches]
            for ours, operators in zip(results["public"], results["operator"], strict=True):
                assert torch.equal(ours, operators)


@needs_kernels
def test_a_few_tokens_take_the_short_way_and_many_the_operator():
    def takes(tokens):
        k, (cos, sin) = torch.randn(1, 8, tokens, 64), tables(torch.arange(tokens), 64, torch.float32)
        caches = torch.zeros(2, 1, 8, 4096, 64)
        how = ("half", -2, "leading", False, "auto")
        return cpu.SHORT_TO_CACHE(k, k, cos, sin, *caches, torch.arange(tokens), *how) is not None

    assert takes(1)
    assert takes(128)
    assert not takes(129)


@needs_kernels
@pytest.mark.parametrize(("layout", "dtype"), list(product(LAYOUTS, (torch.float32, torch.bfloat16))))
def test_a_large_prefill_by_threads_and_past_the_caches_is_the_same(isa, layout, dtype):
    tokens = 2100
    k, v = torch.randn(2, 2, 8, tokens, 128).to(dtype)  # each above 8 MiB
    cos, sin = tables(torch.arange(tokens), 128, dtype)
    slots = torch.randperm(tokens + 60)[:tokens]
    turned = rotate(k, cos, sin, layout=layout, impl="native")
    torch.set_num_threads(2)
    caches = torch.full((2, 2, 8, tokens + 60, 128), NAN, dtype=dtype)
    rotate_to_cache(k, v, cos, sin, *caches, slots, layout=layout, impl="native")
    for cache, new in zip(caches, (turned, v), strict=True):
        assert torch.equal(cache[..., slots, :], new)
        assert int(cache.isnan().sum()) == 2 * 8 * 60 * 128


K, V, K_CACHE, V_CACHE = (torch.ones(2, 3, n, d) for n, d in ((4, 8), (4, 6), (9, 8), (9, 6)))
COS, SIN = tables(torch.arange(4), 8, torch.float32)
SLOTS = torch.arange(4)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"slots": torch.tensor([0, 1, 9, 2])}, r"slots name rows 0 to 8 of the cache, got 9"),
    ({"slots": torch.tensor([0, 1, -1, 2])}, r"slots name rows 0 to 8 of the cache, got -1"),
    (
        {"slots": torch.tensor([[0, 1, 2, 3], [4, 5, 6, 1 << 40]])},
        r"slots name rows 0 to 8 of the cache, got 1099511627776",
    ),
    ({"slots": SLOTS.int()}, r"slots are int64, one for each of the 4 tokens.*got torch.int32 \(4,\)"),
    ({"slots": SLOTS.float()}, r"slots are int64.*got torch.float32"),
    ({"slots": torch.arange(3)}, r"slots are int64, one for each of the 4 tokens.*got torch.int64 \(3,\)"),
    ({"slots": SLOTS[None]}, r"slots are int64.*got torch.int64 \(1, 4\)"),
    ({"slots": SLOTS.expand(3, 4)}, r"slots are int64.*got torch.int64 \(3, 4\)"),
    ({"slots": torch.tensor(3)}, r"slots are int64.*got torch.int64 \(\)"),
    (
        {"k_cache": torch.zeros(2, 3, 9, 6)},
        r"k_cache has the shape and dtype of k in all.*got torch.float32 \(2, 3, 9, 6\)",
    ),
    ({"k_cache": torch.zeros(2, 1, 9, 8)}, r"k_cache has the shape.*got torch.float32 \(2, 1, 9, 8\)"),
    ({"k_cache": torch.zeros(3, 9, 8)}, r"k_cache has the shape.*got torch.float32 \(3, 9, 8\)"),
    ({"k_cache": torch.zeros(2, 3, 9, 8).double()}, r"k_cache has the shape and dtype of k.*got torch.float64"),
    ({"v_cache": torch.zeros(2, 3, 9, 8)}, r"v_cache has the shape and dtype of v.*got torch.float32 \(2, 3, 9, 8\)"),
    ({"v_cache": torch.zeros(2, 3, 9, 6).bfloat16()}, r"v_cache has the shape and dtype of v.*got torch.bfloat16"),
    ({"v_cache": torch.zeros(2, 3, 8, 6)}, r"k and v have the same axes.*\(2, 3, 9, 8\) and \(2, 3, 8, 6\)"),
    ({"v": torch.ones(2, 3, 5, 6)}, r"k and v have the same axes but for the last"),
    ({"v": torch.ones(6, 4, 6)}, r"v_cache has the shape and dtype of v"),
    ({"cos": COS[:3], "sin": SIN[:3]}, r"cos and sin \(3, 4\) do not fit x \(2, 3, 4, 8\)"),
    ({"cos": COS[:, :3]}, r"cos and sin have different shapes"),
    ({"seq_dim": -1}, r"seq_dim names an axis of x \(2, 3, 4, 8\) other than the last, got -1"),
    ({"seq_dim": 7}, r"seq_dim names an axis of x"),
    ({"layout": "both"}, r"layout is 'half'"),
    ({"place": "middle"}, r"place is 'leading' or 'trailing', got 'middle'"),
]


@pytest.mark.parametrize(
    ("change", "message"), REFUSED, ids=[f"{next(iter(c))}-{i}" for i, (c, _) in enumerate(REFUSED)]
)
def test_what_does_not_fit_is_refused_before_anything_is_written(change, message):
    for impl in ("auto", "eager"):
        call: dict[str, Any] = {"k": K, "v": V, "cos": COS, "sin": SIN, "slots": SLOTS, "layout": "half", "impl": impl}
        call |= {"k_cache": torch.zeros_like(K_CACHE), "v_cache": torch.zeros_like(V_CACHE)} | change
        with pytest.raises(ValueError, match=message):
            rotate_to_cache(**call)
        assert not call["k_cache"].any()
        assert not call["v_cache"].any()


@needs_kernels
@pytest.mark.parametrize(
    ("change", "message"), REFUSED, ids=[f"{next(iter(c))}-{i}" for i, (c, _) in enumerate(REFUSED)]
)
def test_the_operator_refuses_the_same_before_anything_is_written(change, message):
    call: dict[str, Any] = {"k": K, "v": V, "cos": COS, "sin": SIN, "slots": SLOTS, "layout": "half"}
    call |= {"k_cache": torch.zeros_like(K_CACHE), "v_cache": torch.zeros_like(V_CACHE)} | change
    with pytest.raises(ValueError, match=r"impl='native' cannot serve this|cos and sin|seq_dim"):
        rotate_to_cache(**call, impl="native")
    if {"layout", "place"}.isdisjoint(change):  # which the operator is told by numbers
        names = ("k", "v", "cos", "sin", "k_cache", "v_cache", "slots")
        k, v, cos, sin, *into = (call[name] for name in names)
        with pytest.raises(ValueError, match="ropewalk: "):
            cpu.OPERATORS["rotate_to_cache"](k, v, cos, sin, 0, call.get("seq_dim", -2), 0, False, *into)
    assert not call["k_cache"].any()
    assert not call["v_cache"].any()


@needs_kernels
def test_rows_that_move_within_a_cache_are_not_taken_by_the_operator():
    """As when the oldest tokens are dropped: what is read must not be what has just been written."""
    for tokens in (4, 300):
        before = torch.randn(1, 8, tokens + 1, 64)
        cos, sin = tables(torch.full((tokens,), 1), 64, torch.float32)
        cache, values = before.clone(), torch.zeros_like(before)
        moved, fresh, slots = cache[:, :, 1:], torch.randn(1, 8, tokens, 64), torch.arange(tokens)
        rotate_to_cache(moved, fresh, cos, sin, cache, values, slots, layout="half", inverse=True)
        exact = in_float64(before[:, :, 1:], cos, sin, layout="half", inverse=True)
        assert_right(cache[:, :, :tokens], exact, before)
        with pytest.raises(ValueError, match="what goes into a cache lies apart from it"):
            rotate_to_cache(moved, fresh, cos, sin, cache, values, slots, layout="half", impl="native")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "slots", [torch.tensor([3, 0, 2]), torch.tensor([[3, 0, 2], [1, 4, 0]])], ids=["(S,)", "(B, S)"]
)
def test_gradients_reach_keys_values_and_tables(layout, slots):
    k, v = (torch.randn(2, 2, 3, n, dtype=torch.float64, requires_grad=True) for n in (6, 3))
    cos, sin = (t.clone().requires_grad_() for t in tables(torch.arange(3), 4, torch.float64))

    def caches(k, v, cos, sin):
        into = torch.zeros(2, 2, 5, 6, dtype=torch.float64), torch.zeros(2, 2, 5, 3, dtype=torch.float64)
        return rotate_to_cache(k, v, cos, sin, *into, slots, layout=layout)

    assert torch.autograd.gradcheck(caches, (k, v, cos, sin))
    with torch.no_grad():
        plain = caches(k, v, cos, sin)
    for learned, cache in zip(caches(k, v, cos, sin), plain, strict=True):
        torch.testing.assert_close(learned.detach(), cache, rtol=1e-14, atol=1e-14)


@needs_kernels
def test_a_compiled_decode_step_is_compiled_once():
    torch._dynamo.reset()
    graphs, spectrum = [], rw.geometric(16)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def step(k, v, pos, k_cache, v_cache):
        cos, sin = rw.cos_sin(pos, spectrum)
        rotate_to_cache(k, v, cos, sin, k_cache, v_cache, pos % 4, layout="half")
        return k_cache.sum() + v_cache.sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    ours, theirs = torch.zeros(2, 1, 2, 4, 16), torch.zeros(2, 1, 2, 4, 16)
    for i in range(5):
        k, v, pos = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 1, 16), torch.tensor([i])
        assert compiled(k, v, pos, *ours) == step(k, v, pos, *theirs)
        assert torch.equal(ours, theirs)
    assert len(graphs) == 1
    assert any("rotate_to_cache" in str(node.target) for node in graphs[0].graph.nodes)


@pytest.mark.parametrize("impl", ["auto", "eager"])
@pytest.mark.parametrize("tokens", [1, 200])
def test_autograd_is_told_that_the_caches_were_written(impl, tokens):
    k, (cos, sin) = torch.randn(1, 8, tokens, 64), tables(torch.arange(tokens), 64, torch.float32)
    k_cache, v_cache = torch.zeros(1, 8, 256, 64), torch.zeros(1, 8, 256, 64)
    for stale in (k_cache, v_cache):
        weight = torch.ones(64, requires_grad=True)
        later = (stale * weight).sum()  # saves the cache
        before = k_cache._version, v_cache._version
        into = (k_cache, v_cache, torch.arange(tokens))
        assert rotate_to_cache(k, k, cos, sin, *into, layout="half", impl=impl) == (k_cache, v_cache)
        assert k_cache._version > before[0]
        assert v_cache._version > before[1]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            later.backward()


def test_no_tokens_and_no_samples_write_nothing():
    for batch, tokens in ((2, 0), (0, 3)):
        k, (cos, sin) = torch.randn(batch, 2, tokens, 8), tables(torch.arange(tokens), 8, torch.float32)
        for impl in ("auto", "eager"):
            caches = torch.zeros(2, batch, 2, 5, 8)
            rotate_to_cache(k, k, cos, sin, *caches, torch.arange(tokens), layout="half", impl=impl)
            assert not caches.any()
