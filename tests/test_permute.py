"""Weights of one layout serve the other: logits stay, and a round trip is the identity."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ropewalk import RoPE, permute

BOTH = [("interleaved", "half"), ("half", "interleaved")]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits(x: Tensor, wq: Tensor, wk: Tensor, bq: Tensor, bk: Tensor, heads: int, kv_heads: int, rope: RoPE) -> Tensor:
    q, k = (torch.nn.functional.linear(x, w, b) for w, b in ((wq, bq), (wk, bk)))
    q, k = (t.unflatten(-1, (h, rope.head_dim)).transpose(0, 1) for t, h in ((q, heads), (k, kv_heads)))
    pos = torch.arange(len(x)) + 1_001
    return rope.query(q, pos) @ rope.key(k, pos).repeat_interleave(heads // kv_heads, 0).mT


@pytest.mark.parametrize(("from_", "to"), BOTH)
@given(
    st.integers(1, 5), st.integers(1, 3), st.integers(1, 8), st.integers(0, 5), st.sampled_from(["leading", "trailing"])
)
def test_logits_stay_what_they_were(
    from_: Any, to: Any, kv_heads: int, groups: int, pairs: int, rest: int, place: Any
) -> None:
    heads, head_dim, hidden = kv_heads * groups, 2 * pairs + rest, 7
    width: dict[str, Any] = {"rotary_dim": 2 * pairs, "place": place}
    wq, bq = drawn(heads * head_dim, hidden), drawn(heads * head_dim, seed=1)
    wk, bk = drawn(kv_heads * head_dim, hidden, seed=2), drawn(kv_heads * head_dim, seed=3)
    x = drawn(6, hidden, seed=4)
    before = logits(x, wq, wk, bq, bk, heads, kv_heads, RoPE(head_dim, layout=from_, **width))
    new_wq, new_bq = (permute(t, from_, to, heads=heads, head_dim=head_dim, **width) for t in (wq, bq))
    new_wk, new_bk = (permute(t, from_, to, heads=kv_heads, head_dim=head_dim, **width) for t in (wk, bk))
    rope = RoPE(head_dim, layout=to, **width)
    after = logits(x, new_wq, new_wk, new_bq, new_bk, heads, kv_heads, rope)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12 * float(before.abs().max()) + 1e-12)
    back = permute(new_wq, to, from_, heads=heads, **width)
    assert torch.equal(back, wq)
    assert torch.equal(permute(new_bk, to, from_, heads=kv_heads, **width), bk)


def test_grouped_queries_of_the_known_case() -> None:
    """4 query heads, 2 key heads, 8 channels: each head is permuted by itself, keys by the number of key heads."""
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    wq, wk = drawn(32, 5), drawn(16, 5, seed=1)
    new_q = permute(wq, "interleaved", "half", heads=4)
    new_k = permute(wk, "interleaved", "half", heads=2)
    for new, old, heads in ((new_q, wq, 4), (new_k, wk, 2)):
        for head in range(heads):
            assert torch.equal(new[8 * head : 8 * head + 8], old[8 * head : 8 * head + 8][order])
    with pytest.raises(ValueError, match=r"4 heads of 8 channels are 32, but .* has 16"):
        permute(wk, "interleaved", "half", heads=4, head_dim=8)


def test_every_kind_of_weight_keeps_its_own_shape_and_dtype() -> None:
    for shape in ((8,), (8, 3), (8, 3, 2), (8, 0)):
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8):
            weight = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
            new = permute(weight, "half", "interleaved", heads=1)
            assert (new.shape, new.dtype) == (weight.shape, dtype)
            assert new.data_ptr() != weight.data_ptr() or not weight.numel()
            assert torch.equal(new.float(), weight.float()[[0, 4, 1, 5, 2, 6, 3, 7]])
    same = permute(weight, "half", "half", heads=1)
    assert torch.equal(same, weight)
    assert same.data_ptr() != weight.data_ptr() or not weight.numel()


def test_gradients_reach_the_weights() -> None:
    weight = drawn(8, 2).requires_grad_()
    permute(weight, "half", "interleaved", heads=2).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones(8, 2, dtype=torch.float64))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(0, 6))
def test_latent_attention_of_deepseek(heads: int, pairs: int, nope: int, latent: int) -> None:
    """MLA: each query head, and the one shared key, end in the channels that turn."""
    rope_dim, x = 2 * pairs, drawn(5, 6, seed=9)
    q_b, kv_a = drawn(heads * (nope + rope_dim), 6), drawn(latent + rope_dim, 6, seed=1)
    slices: dict[str, Any] = {"rotary_dim": rope_dim, "place": "trailing"}
    new_q = permute(q_b, "interleaved", "half", heads=heads, head_dim=nope + rope_dim, **slices)
    new_k = permute(kv_a, "interleaved", "half", heads=1, head_dim=latent + rope_dim, **slices)
    assert torch.equal(new_k[:latent], kv_a[:latent])

    def product(q_b: Tensor, kv_a: Tensor, layout: Any) -> Tensor:
        pos = torch.arange(5)
        rope = RoPE(rope_dim, layout=layout)
        q = (x @ q_b.T).unflatten(-1, (heads, -1)).transpose(0, 1)
        nope_part = q[..., :nope].sum(-1, keepdim=True)  # what does not turn must not have moved
        return rope.query(q[..., nope:], pos) @ rope.key((x @ kv_a.T)[:, latent:], pos).mT + nope_part

    torch.testing.assert_close(product(new_q, new_k, "half"), product(q_b, kv_a, "interleaved"), rtol=0, atol=1e-11)


def test_the_norm_of_queries_and_keys_and_a_low_rank_update_move_with_their_weights() -> None:
    """Head norm and LoRA: the vector of one head; B, whose rows are outputs; never A, whose columns are inputs."""
    heads, head_dim, hidden, rank = 3, 8, 10, 2
    x, w = drawn(4, hidden), drawn(heads * head_dim, hidden, seed=1)
    a, b, norm = drawn(rank, hidden, seed=2), drawn(heads * head_dim, rank, seed=3), drawn(head_dim, seed=4)

    def encoded(w: Tensor, b: Tensor, norm: Tensor, layout: Any) -> Tensor:
        q = (x @ (w + b @ a).T).unflatten(-1, (heads, head_dim)).transpose(0, 1)
        q = q * q.pow(2).mean(-1, keepdim=True).rsqrt() * norm
        q = RoPE(head_dim, layout=layout).query(q, torch.arange(4))
        return q @ q.mT

    new = [
        permute(w, "half", "interleaved", heads=heads, head_dim=head_dim),
        permute(b, "half", "interleaved", heads=heads, head_dim=head_dim),
        permute(norm, "half", "interleaved", heads=1, head_dim=head_dim),
    ]
    torch.testing.assert_close(encoded(*new, "interleaved"), encoded(w, b, norm, "half"), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"shape \(2, 10\) does not hold 3 heads"):
        permute(a, "half", "interleaved", heads=heads, head_dim=head_dim)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((12, 3), {"heads": 5}, r"shape \(12, 3\) does not hold 5 heads"),
        ((12, 3), {"heads": 0}, "does not hold 0 heads"),
        ((), {"heads": 1}, r"shape \(\) does not hold 1 heads"),
        ((3, 3), {"heads": 3, "head_dim": 8}, "3 heads of 8 channels are 24, but .* has 3"),
        ((9, 3), {"heads": 3}, "even and at least 2, got 3"),
        ((12, 3), {"heads": 3, "rotary_dim": 3}, "even and at least 2, got 3"),
        ((12, 3), {"heads": 3, "rotary_dim": 0}, "even and at least 2, got 0"),
        ((12, 3), {"heads": 3, "rotary_dim": 6}, "rotary_dim=6 is more than the 4 channels"),
        ((12, 3), {"heads": 3, "place": "middle"}, "place is"),
    ],
)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        permute(torch.zeros(shape), "half", "interleaved", **options)


@pytest.mark.parametrize(("from_", "to"), [("neox", "half"), ("half", "gptj")])
def test_unknown_layouts_are_refused(from_: Any, to: Any) -> None:
    with pytest.raises(ValueError, match=r"'half' or 'interleaved', got '(neox|gptj)'"):
        permute(torch.zeros(8), from_, to, heads=1)
