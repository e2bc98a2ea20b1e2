"""The cache of fixed size: the laws of the growing one, memory that stays where it is, and one graph for all steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import CASES, HEAD_DIM, HEADS, KV_HEADS, Case, Model, by_id, close
from ropewalk import (
    FIRE,
    T5,
    ALiBi,
    CoPE,
    KeyCache,
    NoPE,
    PositionalEncoding,
    Positions,
    RoPE,
    Shaw,
    StaticKeyCache,
    XPos,
)
from ropewalk import attend as whole_attend

N = 12


def empty(encoding: PositionalEncoding, length: int = 20, batch: int = 2, **options: Any) -> StaticKeyCache:
    options = {"dtype": torch.float64, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, **options}
    return StaticKeyCache(encoding, length, batch=batch, **options)


def decoded(model: Model, cache: Any, x: Tensor, pos: Positions, cuts: list[int], **options: Any) -> Tensor:
    """All of `x` in pieces through a cache."""
    out = []
    for begin, end in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        here = pos[begin:end]
        q, k, v = model.project(x[:, begin:end], here)
        cache.append(model.encoding.key(k, here), v, here)
        out.append(cache.attend(q, model.encoding, here, **options))
    return torch.cat(out, 2)


@pytest.mark.parametrize(**by_id(CASES))
def test_any_split_and_any_window_equal_the_whole(case: Case) -> None:
    """Of both caches, with room to spare in this one."""
    model = Model(case)

    @settings(max_examples=6)
    @given(st.sets(st.integers(1, N - 1)), st.sampled_from([None, 1, 4]))
    def check(cuts: set[int], window: int | None) -> None:
        x, pos = model.tokens(2, N), model.arange(N)
        expected = model(x, pos, window=window, impl="reference")
        for cache in (empty(model.encoding), KeyCache(model.encoding)):
            close(decoded(model, cache, x, pos, sorted(cuts), window=window), expected)

    check()


@pytest.mark.parametrize(**by_id(CASES))
def test_a_rolling_cache_equals_a_window_over_everything(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    expected = model(x, pos, window=4, impl="reference")
    close(decoded(model, empty(model.encoding, 4, rolling=True), x, pos, list(range(1, N)), window=4), expected)
    close(decoded(model, empty(model.encoding, 6, rolling=True), x, pos, [3, 5, 8, 11], window=4), expected)


@pytest.mark.parametrize(**by_id(CASES))
def test_left_padded_rows_go_on_at_positions_of_their_own(case: Case) -> None:
    model = Model(case)
    mask = torch.arange(7) >= torch.tensor([[0], [4]])
    padded = Positions.left_padded(mask)
    pos = Positions(padded.ids + model.start, valid=padded.valid)
    x = model.tokens(2, 10)
    cache = empty(model.encoding)
    first = decoded(model, cache, x[:, :7], pos, [])
    after = cache.next_positions(3)
    assert torch.equal(after.ids - model.start, torch.tensor([[7, 8, 9], [3, 4, 5]]))
    out = torch.cat((first, decoded(model, cache, x[:, 7:], after, [1])), 2)
    close(out[:1], model(x[:1], model.arange(10)))
    close(out[1:, :, 4:], model(x[1:, 4:], model.arange(6)))


@pytest.mark.parametrize("encoding", [NoPE(), RoPE(HEAD_DIM), ALiBi(HEADS), Shaw(HEAD_DIM)], ids=lambda e: e.name)
def test_evictions_keep_true_positions(encoding: PositionalEncoding) -> None:
    """Ten tokens seen and four of them gone, the next one still stands at 10."""
    encoding = encoding.double()
    q, k, v = (torch.randn(2, h, 11, HEAD_DIM, dtype=torch.float64) for h in (HEADS, KV_HEADS, KV_HEADS))
    cache, growing = empty(encoding), KeyCache(encoding)
    for one in (cache, growing):
        one.append(encoding.key(k[:, :, :10], range(10)), v[:, :, :10], range(10))
        one.evict(slice(2, 6))
        at = one.next_positions()
        assert at.ids.flatten().unique().tolist() == [10]
        one.append(encoding.key(k[:, :, 10:], at), v[:, :, 10:], at)
    kept = [0, 1, 6, 7, 8, 9, 10]
    for window in (None, 3, 6):  # a window counts positions, so the gap counts too
        expected = whole_attend(
            q[:, :, 10:],
            k[:, :, kept],
            v[:, :, kept],
            encoding,
            [10],
            key_positions=kept,
            window=window,
            impl="reference",
        )
        for one in (cache, growing):
            close(one.attend(q[:, :, 10:], encoding, [10], window=window), expected)


def test_memory_stays_where_it_is() -> None:
    rope = RoPE(HEAD_DIM)
    cache = empty(rope, dtype=torch.bfloat16, value_dim=3)
    addresses = [t.data_ptr() for t in (cache.keys, cache.values)]
    k, v = torch.ones(2, KV_HEADS, 5, HEAD_DIM).bfloat16(), torch.ones(2, KV_HEADS, 5, 3).bfloat16()
    for start in (0, 5, 10, 15):
        cache.append(k, v, range(start, start + 5))
    assert [t.data_ptr() for t in (cache.keys, cache.values)] == addresses
    assert (len(cache), cache.keys.dtype) == (20, torch.bfloat16)
    cache.reset()
    assert len(cache) == 0
    assert cache.next_positions().ids.tolist() == [[0], [0]]
    cache.append(k, v, range(5))
    assert int(cache.positions.valid.sum()) == 10


DECODED = [NoPE(), RoPE(HEAD_DIM), XPos(HEAD_DIM), ALiBi(HEADS), T5(HEADS), FIRE(HEADS), Shaw(HEAD_DIM), CoPE(HEAD_DIM)]


@pytest.mark.parametrize("encoding", DECODED, ids=lambda e: e.name)
def test_a_step_of_decoding_compiles_once(encoding: PositionalEncoding) -> None:
    compile_and_compare(encoding, rolling=encoding.name in ("rope", "alibi"), backend="count")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch deprecates its own
@pytest.mark.slow
@pytest.mark.parametrize("encoding", [RoPE(HEAD_DIM), T5(HEADS)], ids=lambda e: e.name)
def test_a_compiled_step_gives_the_same(encoding: PositionalEncoding) -> None:
    compile_and_compare(encoding, rolling=False, backend="inductor")


def compile_and_compare(encoding: PositionalEncoding, rolling: bool, backend: str) -> None:
    q, k, v = (torch.randn(2, h, N, HEAD_DIM) for h in (HEADS, KV_HEADS, KV_HEADS))
    cache = empty(encoding, 4 if rolling else N, dtype=torch.float32, rolling=rolling)
    window = 4 if rolling else None
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = cache.next_positions()
        cache.append(encoding.key(k, at), v, at)
        return cache.attend(q, encoding, at, window=window)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=count if backend == "count" else backend)
    with torch.no_grad():
        out = [compiled(*(t[:, :, n : n + 1] for t in (q, k, v))) for n in range(N)]
        expected = whole_attend(q, k, v, encoding, range(N), window=window, impl="reference")
    close(torch.cat(out, 2), expected, torch.float32)
    assert graphs == (1 if backend == "count" else 0)


K = torch.ones(2, KV_HEADS, 3, HEAD_DIM, dtype=torch.float64)


def full() -> StaticKeyCache:
    cache = empty(RoPE(HEAD_DIM), 4)
    cache.append(K, K, range(3))
    return cache


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: empty(NoPE(), 0), r"are positive, got \(0, 2, 2, 8, 1\)"),
        (lambda: full().append(K, K, range(3)), "no room: the cache has length 4 and holds 3 tokens, 3 are new"),
        (lambda: empty(NoPE(), 2).append(K, K, range(3)), "3 tokens do not fit a cache of length 2"),
        (lambda: full().append(K[:1], K[:1], range(3)), r"holds \(2, 2, 4, 8\) .*, k is \(1, 2, 3, 8\)"),
        (lambda: full().append(K[:, :, :1], K[:, :, :1].float(), [3]), r"v is \(2, 2, 1, 8\) of torch\.float32"),
        (lambda: full().append(K, K, Positions.packed([0, 3])), "no packed documents; use KeyCache"),
        (lambda: full().append(K, K, Positions.grid(1, 3)), "these positions have 2 axes"),
        (lambda: full().append(K[:, :, :1], K, [3]), r"v has shape \(2, 2, 3, 8\)"),
        (lambda: full().attend(K, RoPE(HEAD_DIM, base=7), range(3)), "encoded by RoPE.* does not fit RoPE"),
        (lambda: empty(NoPE(), 4, rolling=True).attend(K, NoPE(), range(3)), "need a window of 2 at most, got None"),
        (lambda: empty(NoPE(), 4, rolling=True).attend(K, NoPE(), range(3), window=3), "of 2 at most, got 3"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()
