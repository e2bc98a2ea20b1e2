"""`attend` itself: what it computes without an encoding, and what it refuses. Laws are in test_contract.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from ropewalk import T5, ALiBi, CoPE, NoPE, PositionalEncoding, Positions, RoPE, attend
from ropewalk.attention import scores


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_without_an_encoding_it_is_attention(causal: bool, scale: float | None) -> None:
    q, k, v = torch.randn(3, 2, 6, 9, 8, dtype=torch.float64)
    expected = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    torch.testing.assert_close(attend(q, k, v, NoPE(), range(9), causal=causal, scale=scale), expected)
    grouped = scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=causal, scale=scale, enable_gqa=True)
    torch.testing.assert_close(attend(q, k[:, :2], v[:, :2], NoPE(), range(9), causal=causal, scale=scale), grouped)


def test_one_over_the_root_of_head_dim_is_the_scale() -> None:
    q, k, v = torch.randn(3, 1, 1, 4, 16, dtype=torch.float64)
    s = (q[0, 0] @ k[0, 0].T / math.sqrt(16)).softmax(-1) @ v[0, 0]
    torch.testing.assert_close(attend(q, k, v, NoPE(), range(4), causal=False)[0, 0], s)


def test_an_encodings_softmax_multiplier_is_part_of_the_usual_scale() -> None:
    class Sharper(PositionalEncoding):
        softmax_multiplier = 1.7

    q, k, v = torch.randn(3, 1, 1, 4, 16)
    found = attend(q, k, v, Sharper(), range(4))
    torch.testing.assert_close(found, attend(q, k, v, NoPE(), range(4), scale=1.7 / 4))
    torch.testing.assert_close(
        attend(q, k, v, Sharper(), range(4), scale=0.5), attend(q, k, v, NoPE(), range(4), scale=0.5)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_and_widths(dtype: torch.dtype) -> None:
    q, k = torch.randn(1, 4, 5, 8).to(dtype), torch.randn(1, 2, 7, 8).to(dtype)
    v = torch.randn(1, 2, 7, 3).to(dtype)  # values may be of any width
    out = attend(q, k, v, RoPE(8), range(2, 7), key_positions=range(7))
    assert (out.dtype, out.shape) == (dtype, (1, 4, 5, 3))
    exact = attend(q.double(), k.double(), v.double(), RoPE(8), range(2, 7), key_positions=range(7))
    assert float((out.double() - exact).abs().max()) <= 2 * torch.finfo(dtype).eps * float(exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("encoding", [NoPE(), ALiBi(2), T5(2, std=1.0).requires_grad_(False)], ids=lambda e: e.name)
def test_half_precision_is_rounded_once_at_the_end(dtype: torch.dtype, encoding: PositionalEncoding) -> None:
    q, k, v = torch.randn(3, 1, 2, 200, 16).to(dtype)
    exact = attend(q.float(), k.float(), v.float(), encoding, range(200))
    assert torch.equal(attend(q, k, v, encoding, range(200)), exact.to(dtype))


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((1, 1, 3, 4), 1e4)
    assert bool(attend(q, q, torch.ones(1, 1, 3, 2), NoPE(), range(3)).eq(1).all())


def test_scores_hide_what_may_not_be_seen_whatever_the_hook_returns() -> None:
    class Fresh(PositionalEncoding):
        def score(self, s, q, k, i, j, scale):
            assert bool(s.isneginf().any()), "masked before the hook"
            return torch.zeros_like(s)

    q, k = torch.randn(2, 1, 1, 3, 4)
    found = scores(q, k, Fresh(), range(3), range(3))
    assert torch.equal(found[0, 0].isneginf(), torch.ones(3, 3).triu(1).bool())
    assert torch.equal(found[0, 0].tril(), torch.zeros(3, 3))


def test_hooks_see_positions_and_never_indices() -> None:
    seen: dict[str, Any] = {}

    class Watch(PositionalEncoding):
        def query(self, q, pos):
            seen["query"] = Positions.of(pos).ids.tolist()
            return q

        def key(self, k, pos):
            seen["key"] = Positions.of(pos).ids.tolist()
            return k

        def bias(self, h, i, j):
            seen.update(h=h.flatten().tolist(), i=i.flatten().tolist(), j=j.flatten().tolist())

        def value(self, w, i, j):
            seen.update(vi=i.flatten().tolist(), vj=j.flatten().tolist())

    q, k = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 3, 8)
    attend(q, k, k, Watch(), [70, 9], key_positions=[9, 4, 70])
    assert seen == {
        "query": [70, 9],
        "key": [9, 4, 70],
        "h": [0, 1, 2, 3],
        "i": [70, 9],
        "j": [9, 4, 70],
        "vi": [70, 9],
        "vj": [9, 4, 70],
    }
    seen.clear()
    attend(q, k, k, Watch(), [70, 9], key_positions=[9, 4, 70], keys_encoded=True)
    assert "key" not in seen


def test_padded_keys_are_as_if_they_were_not_there() -> None:
    t5 = T5(2, std=1.0)
    q, k = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 5, 8)
    padded = Positions(range(5), valid=torch.tensor([1, 1, 1, 1, 0]))
    torch.testing.assert_close(
        attend(q, k, k, t5, range(3), key_positions=padded, causal=False),
        attend(q, k[:, :, :4], k[:, :, :4], t5, range(3), key_positions=range(4), causal=False),
    )


def test_no_keys_give_zeros() -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 0, 8)
    assert torch.equal(attend(q, k, k, RoPE(8), range(3), key_positions=[]), torch.zeros(1, 2, 3, 8))


def test_a_masked_hook_that_sums_does_not_count_the_future() -> None:
    """CoPE's gates of later keys, were they counted, would move every score."""
    cope = CoPE(8, length=6, std=1.0)
    q, k, v = torch.randn(3, 1, 1, 6, 8)
    whole = attend(q, k, v, cope, range(6))
    first = attend(q[:, :, :3], k[:, :, :3], v[:, :, :3], cope, range(3))
    torch.testing.assert_close(whole[:, :, :3], first)
