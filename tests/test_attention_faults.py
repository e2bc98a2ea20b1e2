"""Faults that attention of other libraries shipped, on every path: caches, biases, compilers (K6, K8, K10)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk import FIRE, T5, ALiBi, KeyCache, PositionalEncoding, Positions, RelativeBias, RoPE, Shaw, attend, explain

BIASES = ["strip", "blocks", "reference"]
SERVED = [
    (RoPE(8), "sdpa"),
    (ALiBi(4), "strip"),
    (T5(4, std=1.0), "strip"),
    (Shaw(8, std=1.0), "blocks"),
    (FIRE(4), "blocks"),
]


def weights(bias: Tensor) -> Tensor:
    """What attention gives for queries of zeros and values that are the identity: the softmax of the bias."""
    return bias.softmax(-1)


def shown(encoding: PositionalEncoding, queries: Any, keys: Any, **options: Any) -> Tensor:
    """The weights themselves, `(heads, Q, K)`."""
    heads, n = encoding.heads or 2, len(keys)
    q, k = torch.zeros(1, heads, len(queries), 8), torch.zeros(1, heads, n, 8)
    v = torch.eye(n).expand(1, heads, n, n)
    return attend(q, k, v, encoding, queries, key_positions=keys, **options)[0]


@pytest.mark.parametrize("impl", BIASES)
def test_66_one_decoded_query_has_the_whole_row_of_biases(impl: Any) -> None:
    row = torch.tensor([-2.0, -1.5, -1.0, -0.5, 0.0])
    torch.testing.assert_close(shown(ALiBi(8), [4], range(5), impl=impl)[0, 0], weights(row))


@pytest.mark.parametrize("impl", BIASES)
def test_67_queries_after_a_memory_are_as_far_from_it_as_they_stand(impl: Any) -> None:
    found = shown(ALiBi(8), [2, 3], range(4), impl=impl)[0]
    hidden = -torch.inf
    expected = torch.tensor([[-1.0, -0.5, 0.0, hidden], [-1.5, -1.0, -0.5, 0.0]])
    torch.testing.assert_close(found, weights(expected))


@pytest.mark.parametrize("impl", BIASES)
def test_68_a_later_key_is_not_rewarded(impl: Any) -> None:
    found = shown(ALiBi(8), [2], range(6), causal=False, impl=impl)[0, 0]
    torch.testing.assert_close(found, weights(torch.tensor([-1.0, -0.5, 0.0, -0.5, -1.0, -1.5])))


@pytest.mark.parametrize("impl", BIASES)
def test_70_the_bias_is_not_dropped_once_there_is_a_cache(impl: Any) -> None:
    t5 = T5(4, std=2.0)
    cache = KeyCache(t5)
    cache.append(torch.zeros(1, 4, 9, 8), torch.eye(9).expand(1, 4, 9, 9), range(9))
    row = t5.bias(torch.arange(4)[:, None], torch.tensor(8), torch.arange(9))
    torch.testing.assert_close(cache.attend(torch.zeros(1, 4, 1, 8), t5, [8], impl=impl)[0, :, 0], weights(row))


@pytest.mark.parametrize("impl", BIASES)
def test_71_the_shift_is_right_above_the_diagonal_too(impl: Any) -> None:
    pe = RelativeBias(length=3)
    with torch.no_grad():
        pe.table.weight.copy_(torch.tensor([[2.0], [-1.0], [0.5], [3.0], [-2.0]]))  # offsets -2 … +2
    at = torch.arange(3)
    expected = pe.table.weight[:, 0][at[None] - at[:, None] + 2]
    torch.testing.assert_close(shown(pe, range(3), range(3), causal=False, impl=impl)[0], weights(expected))


def test_73_sixteen_heads_and_4096_tokens_hold_a_number_a_distance() -> None:
    from ropewalk.attention.masks import Mask, segments
    from ropewalk.attention.strip import ROWS, Strip

    line = Positions.arange(4096)
    (whole,) = segments(line, line, Mask(causal=False), 1)
    strip = Strip.of_mask(torch.empty(0), [whole], Mask(causal=False), ROWS)
    assert strip.values.shape == (1, 2 * 4096 - 1 + 2 * ROWS)
    q = torch.empty(1, 16, 4096, 8)
    assert explain(T5(16), q, q, q, line).impl == "strip"


@pytest.mark.parametrize(("encoding", "impl"), SERVED, ids=lambda e: getattr(e, "name", e))
def test_51_equal_documents_give_equal_rows(encoding: PositionalEncoding, impl: Any) -> None:
    one = torch.randn(1, 4, 5, 8)
    other = torch.randn(1, 4, 3, 8)
    x = torch.cat((one, other, one), 2)
    out = attend(x, x, x, encoding, Positions.packed([0, 5, 8, 13]), impl=impl)
    torch.testing.assert_close(out[:, :, :5], out[:, :, 8:])
    torch.testing.assert_close(out[:, :, :5], attend(one, one, one, encoding, range(5), impl=impl))


@pytest.mark.parametrize(("encoding", "impl"), SERVED, ids=lambda e: getattr(e, "name", e))
def test_47_48_chunks_of_a_prefill_stand_where_the_last_one_ended(encoding: PositionalEncoding, impl: Any) -> None:
    x = torch.randn(1, 4, 700, 8)
    whole = attend(x, x, x, encoding, range(700), impl=impl, window=300)
    cache, out = KeyCache(encoding), []
    for start in (0, 256, 512):
        here = x[:, :, start : start + 256]
        at = Positions.arange(here.shape[2], offset=start)
        cache.append(encoding.key(here, at), here, at)
        out.append(cache.attend(here, encoding, at, impl=impl, window=300))
    torch.testing.assert_close(torch.cat(out, 2), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("encoding", "_impl"), SERVED, ids=lambda e: getattr(e, "name", e))
def test_84_one_graph_serves_every_length(encoding: PositionalEncoding, _impl: str) -> None:
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, at: attend(x, x, x, encoding, at, window=20), fullgraph=True, backend=count, dynamic=True
    )
    with torch.no_grad():
        for n in (7, 8, 9, 33):
            x, at = torch.randn(1, 4, n, 8), torch.arange(n)
            torch.testing.assert_close(compiled(x, at), attend(x, x, x, encoding, at, window=20))
    assert graphs <= 2


@pytest.mark.parametrize(("encoding", "impl"), SERVED, ids=lambda e: getattr(e, "name", e))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_85_half_precision_is_rounded_once(encoding: PositionalEncoding, impl: Any, dtype: torch.dtype) -> None:
    q = torch.randn(1, 4, 300, 8).to(dtype)
    exact = attend(q.double(), q.double(), q.double(), encoding, range(300), impl=impl)
    found = attend(q, q, q, encoding, range(300), impl=impl)
    turns = 4 if isinstance(encoding, RoPE) else 1  # a rotation rounds queries and keys as well
    slack = turns * torch.finfo(dtype).eps * exact.abs().max()
    assert found.dtype == dtype
    assert bool(((found.double() - exact).abs() <= slack).all())
