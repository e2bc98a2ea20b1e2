"""Every way to compute attention against the reference: the same numbers, the same gradients, less memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import CASES, HEAD_DIM, HEADS, Case, by_id, close
from ropewalk import (
    FIRE,
    KERPLE,
    T5,
    ALiBi,
    Compose,
    CoPE,
    NoPE,
    PositionalEncoding,
    Positions,
    RelativeBias,
    RoPE,
    Shaw,
    attend,
    explain,
)
from ropewalk.attention import banded, flex
from ropewalk.attention.call import Call
from ropewalk.attention.masks import Mask, segments

FAST = ["sdpa", "strip", "blocks"]
N = 14


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand."""

    queries: Positions
    keys: Positions | None = None

    @property
    def rows(self) -> int:
        """How many samples."""
        return 3 if len(self.queries.shape) == 2 else 2


def layouts(start: int) -> st.SearchStrategy[Places]:
    """Every way in which tokens lie: whole, cached, packed, padded, sharded, with gaps, out of order."""

    def at(p: Positions) -> Positions:
        return Positions(p.ids + start, documents=p.documents, valid=p.valid)

    def cut(p: Positions) -> st.SearchStrategy[Places]:
        """The last tokens, or some, against all."""
        spans = st.tuples(st.integers(0, N - 1), st.integers(1, N))
        return spans.map(lambda s: Places(p[s[0] : max(s[0] + 1, s[1])], p))

    whole = st.integers(0, 20).map(lambda offset: at(Positions.arange(N, offset)))
    bounds = st.sets(st.integers(1, N - 1), max_size=4)
    packed = bounds.map(lambda cuts: at(Positions.packed([0, *sorted(cuts), N])))
    real = st.lists(st.integers(0, N), min_size=3, max_size=3).map(torch.tensor)
    left = real.map(lambda n: at(Positions.left_padded(torch.arange(N) >= N - n[:, None])))
    right = real.map(lambda n: at(Positions(torch.arange(N).expand(3, N), valid=torch.arange(N) < n[:, None])))
    starts = st.lists(st.integers(0, 20), min_size=3, max_size=3).map(
        lambda offsets: at(Positions.arange(N, offset=torch.tensor(offsets)))
    )
    evicted = st.sets(st.integers(0, N - 1), min_size=1).map(
        lambda kept: Places(at(Positions.arange(3, N - 2)), at(Positions(sorted(kept))))
    )
    shuffled = st.permutations(range(N)).map(lambda order: Places(at(Positions(order))))
    shards = st.tuples(st.integers(0, 1), packed | whole).map(lambda s: Places(s[1].shard(s[0], 2), s[1]))
    ahead = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
        lambda s: Places(at(Positions.arange(6, s[0])), at(Positions.arange(N, s[1])))
    )
    every = whole | packed | left | right | starts
    return every.map(Places) | every.flatmap(cut) | evicted | shuffled | shards | ahead


def masks(causal_only: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Options of `attend`."""
    window = st.none() | st.sampled_from([1, 2, 5, 30])
    prefix = st.none() if causal_only else st.none() | st.sampled_from([0, 3, 9, torch.tensor([2])])
    causal = st.fixed_dictionaries({"causal": st.just(True), "window": window, "prefix": prefix})
    both = st.fixed_dictionaries({"causal": st.just(False), "window": window})
    return causal if causal_only else causal | both


def accepted(encoding: PositionalEncoding, *inputs: Any, **options: Any) -> list[str]:
    """The fast paths that serve this."""
    said = explain(encoding, *inputs, **options)
    served = [impl for impl in FAST if not _refusal(encoding, *inputs, impl=impl, **options)]
    assert said.impl in served
    return served


def _refusal(encoding: PositionalEncoding, *inputs: Any, **options: Any) -> str | None:
    try:
        explain(encoding, *inputs, **options)
    except ValueError as error:
        return str(error)
    return None


def with_gradients(
    case: Case, encoding: PositionalEncoding, inputs: list[Tensor], at: Positions, **options: Any
) -> list[Tensor]:
    """Output, and gradients of q, k, v and every parameter that acts."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    out = attend(*inputs, encoding, at, **options)
    weigh = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    wanted = [*inputs, *encoding.parameters()]
    grads = torch.autograd.grad((out * weigh).sum(), wanted, allow_unused=True)
    return [out, *(torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads, strict=True))]


@pytest.mark.parametrize(**by_id(CASES))
def test_every_path_equals_the_reference(case: Case) -> None:
    encoding = case.built()
    width = HEAD_DIM if "value" in encoding.places() else 5

    @settings(max_examples=15)
    @given(layouts(case.start), masks(encoding.causal_only), st.sampled_from([None, 3, 5]), st.sampled_from([1, 2, 6]))
    def check(places: Places, options: dict[str, Any], block: int | None, kv_heads: int) -> None:
        n, keys = len(places.queries), len(places.keys or places.queries)
        random = torch.Generator().manual_seed(7)
        inputs = [
            torch.randn(places.rows, heads, tokens, channels, generator=random, dtype=torch.float64)
            for heads, tokens, channels in ((HEADS, n, HEAD_DIM), (kv_heads, keys, HEAD_DIM), (kv_heads, keys, width))
        ]
        at = {"key_positions": places.keys, "block": block, **options}
        expected = with_gradients(case, encoding, inputs, places.queries, impl="reference", **at)
        served = accepted(encoding, *inputs, places.queries, **at)
        assert "blocks" in served
        for impl in served:
            found = with_gradients(case, encoding, inputs, places.queries, impl=impl, **at)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda m, impl=impl: f"{impl}: {m}")

    check()


LONG = [
    NoPE(),
    RoPE(16),
    ALiBi(4),
    T5(4, std=1.0),
    KERPLE(4),
    RelativeBias(clip=40, std=1.0),
    Shaw(16, clip=5),
    FIRE(4),
]


@pytest.mark.parametrize("encoding", LONG, ids=lambda e: e.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_blocks_of_natural_size(encoding: PositionalEncoding, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 4, 600, 16).to(dtype)
    for options in ({}, {"window": 70}, {"prefix": 300} if not encoding.causal_only else {}):
        expected = attend(q, k, v, encoding, range(600), impl="reference", **options)
        found = attend(q, k, v, encoding, range(600), **options)
        assert explain(encoding, q, k, v, range(600), **options).impl != "reference"
        close(found, expected, dtype)


# FlexAttention


def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention as plain tensor operations, which warns that it is slow."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(flex, "_kernel", lambda device: flex_attention)


def offered(encoding: PositionalEncoding) -> bool:
    q = torch.empty(1, HEADS, 3, HEAD_DIM)
    with torch.no_grad():
        return _refusal(encoding, q, q, q, range(3), impl="flex") is None


OFFERED = [c for c in CASES if offered(c.make()) and c.id.count("-") in (0, 2)]  # each kind, and some of its options


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(**by_id(OFFERED))
def test_flex_attention_of_the_same_hooks_is_the_reference(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    uncompiled(monkeypatch)
    encoding = case.built()

    @torch.no_grad()
    @settings(max_examples=3)
    @given(layouts(case.start), masks(encoding.causal_only))
    def check(places: Places, options: dict[str, Any]) -> None:
        n, keys = len(places.queries), len(places.keys or places.queries)
        q, k, v = (
            torch.randn(places.rows, heads, tokens, HEAD_DIM, dtype=torch.float64)
            for heads, tokens in ((HEADS, n), (2, keys), (2, keys))
        )
        at = {"key_positions": places.keys, **options}
        expected = attend(q, k, v, encoding, places.queries, impl="reference", **at)
        close(attend(q, k, v, encoding, places.queries, impl="flex", **at), expected)

    check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch deprecates its own
def test_flex_attention_compiled() -> None:
    """Also for a second length, for which PyTorch 2.13 would make one kernel for all and fail to build it."""
    torch._dynamo.reset()
    flex._kernel.cache_clear()
    with torch.no_grad():
        for n, encoding in ((200, RoPE(16)), (300, RoPE(16)), (200, T5(4, std=1.0)), (137, ALiBi(4))):
            q, k, v = torch.randn(1, 4, n, 16), torch.randn(1, 2, n, 16), torch.randn(1, 2, n, 16)
            found = attend(q, k, v, encoding, range(n), window=50, impl="flex")
            close(found, attend(q, k, v, encoding, range(n), window=50, impl="reference"), torch.float32)


def test_a_compiled_kernel_still_refuses_what_the_hook_refuses() -> None:
    q = torch.randn(1, 2, 9, 8)
    with torch.no_grad(), pytest.raises(ValueError, match="distance 8 is beyond this table"):
        attend(q, q, q, RelativeBias(length=4), range(9), impl="flex")


# What each path takes


def test_explain_names_the_path_and_what_the_others_said() -> None:
    q = torch.empty(1, 4, 9, 16)

    def chosen(encoding: PositionalEncoding, at: Any = range(9), q: Tensor = q, **options: Any) -> str:
        return explain(encoding, q, q, q, at, **options).impl

    assert chosen(NoPE()) == chosen(RoPE(16)) == chosen(Compose(RoPE(16), NoPE())) == "sdpa"
    assert chosen(ALiBi(4)) == chosen(T5(4)) == chosen(Compose(RoPE(16), ALiBi(4))) == "strip"
    assert chosen(Shaw(16)) == chosen(FIRE(4)) == chosen(CoPE(16)) == chosen(Compose(ALiBi(4), FIRE(4))) == "blocks"
    assert chosen(ALiBi(4), Positions.packed([0, 4, 9])) == "strip"
    shuffled = torch.randperm(9)
    assert chosen(ALiBi(4), shuffled) == "blocks"
    assert chosen(RoPE(16), shuffled) == "sdpa"
    assert chosen(RoPE(16), [], q[:, :, :0]) == "reference"
    assert chosen(RoPE(16), impl="blocks") == "blocks"
    said = explain(ALiBi(4), q, q, q, shuffled)
    assert said.refused["sdpa"].startswith("ALiBi adds a bias to the scores")
    assert said.refused["strip"] == "positions jump too often for distances to lie along diagonals"
    assert str(said).splitlines()[0] == f"blocks: {said.reason}"
    assert "  not strip: positions jump" in str(said)
    half = explain(RoPE(16), *[q.bfloat16()] * 3, range(9))
    assert half.reason.endswith("arithmetic float32, result bfloat16")
    with pytest.raises(ValueError, match="k has shape"):
        explain(NoPE(), q, q, q, range(9), key_positions=[1])


def test_attend_takes_the_path_that_explain_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from ropewalk.attention import choice

    taken = []
    for name, (refuses, run) in choice.PATHS.items():
        monkeypatch.setitem(
            choice.PATHS, name, (refuses, lambda call, name=name, run=run: taken.append(name) or run(call))
        )
    q = torch.randn(1, 4, 9, 16)
    for encoding in LONG:
        for impl in ("auto", "reference", "blocks"):
            attend(q, q, q, encoding, range(9), impl=impl)
            assert taken.pop() == explain(encoding, q, q, q, range(9), impl=impl).impl
    assert not taken


def test_a_false_claim_is_found_out() -> None:
    class Liar(PositionalEncoding):
        def bias(self, h, i, j):
            return (i * 0.5 - j).float() + h

    q = torch.randn(1, 2, 6, 8)
    with pytest.raises(ValueError, match=r"NoPE claims distance_only, but its bias at positions .* set distance_only"):
        attend(q, q, q, Liar(), range(6))

    class Honest(Liar):
        distance_only = False

    close(attend(q, q, q, Honest(), range(6)), attend(q, q, q, Honest(), range(6), impl="reference"), torch.float32)


def test_a_bias_of_ones_own_goes_through_the_strip() -> None:
    class Wave(PositionalEncoding):
        """Nothing farther than five tokens, and no term at all if silent."""

        silent = False

        def bias(self, h, i, j):
            far = (i - j).abs() > 5
            return None if self.silent else torch.sin((j - i) * (h + 1.0)).masked_fill(far, -torch.inf)

    q, k, v = (torch.randn(1, 3, 40, 8, requires_grad=True) for _ in range(3))
    for wave in (Wave(), Wave()):
        for at in ({"key_positions": range(40)}, {"key_positions": range(38, 78)}):  # the first rows are out of reach
            ours, theirs = (
                attend(q, k, v, wave, range(40), causal=False, impl=impl, block=7, **at)
                for impl in ("strip", "reference")
            )
            close(ours, theirs, torch.float32)
            for one, other in zip(
                *(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (ours, theirs)), strict=True
            ):
                close(one, other, torch.float32)
        Wave.silent = True


def test_sandwich_is_a_bias_of_ones_own() -> None:
    """Chi et al. (2212.10356): the product of two sinusoidal embeddings, which depends on the distance only."""

    class Sandwich(PositionalEncoding):
        def bias(self, h, i, j):
            rates = 10_000 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
            return ((j - i)[..., None] * rates).cos().sum(-1) / (h + 1)

    q, k, v = torch.randn(3, 1, 2, 30, 8, dtype=torch.float64)
    angles = torch.arange(30.0, dtype=torch.float64)[:, None] * 10_000 ** (-torch.arange(0, 16, 2) / 16.0)
    table = torch.cat((angles.sin(), angles.cos()), 1)
    s = q @ k.mT / math.sqrt(8) + table @ table.T / torch.tensor([1.0, 2.0])[:, None, None]
    expected = s.masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf).softmax(-1) @ v
    assert explain(Sandwich(), q, k, v, range(30)).impl == "strip"
    torch.testing.assert_close(attend(q, k, v, Sandwich(), range(30)), expected, rtol=0, atol=1e-6)


def test_segments_are_the_runs_that_see_only_themselves() -> None:
    def found(
        queries: Positions, keys: Positions | None = None, batch: int = 1, **rule: Any
    ) -> list[tuple[Any, ...]] | None:
        made = segments(queries, keys or queries, Mask(**rule), batch)
        return None if made is None else [(s.row, s.queries, s.keys, s.kept, s.offset, s.causal) for s in made]

    line = Positions.arange(9)
    assert found(line) == [(None, (0, 9), (0, 9), 9, 0, True)]
    assert found(line[6:], line) == [(None, (0, 3), (0, 9), 9, 6, True)]
    assert found(Positions.packed([0, 4, 9])) == [
        (None, (0, 4), (0, 4), 4, 0, True),
        (None, (4, 9), (4, 9), 5, 0, True),
    ]
    assert found(line.shard(0, 2), line) == [(None, (0, 2), (0, 9), 9, 0, True), (None, (2, 5), (0, 9), 9, 6, True)]
    assert found(line, Positions([0, 1, 5, 6])) is None
    assert found(line, prefix=4) == [(None, (0, 4), (0, 9), 4, 0, False), (None, (4, 9), (0, 9), 9, 4, True)]
    padded = Positions.left_padded(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    assert found(padded, batch=2) == [(0, (1, 3), (1, 3), 2, 0, True), (1, (0, 3), (0, 3), 3, 0, True)]
    assert found(Positions(torch.randperm(2000))) is None


def test_samples_far_apart_do_not_share_a_strip() -> None:
    """Memory is bounded by the tokens, not by the distances between samples."""
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 9, 8)
    keys = Positions(torch.arange(9) + torch.tensor([[0], [100]]))
    queries = Positions(torch.arange(6) + torch.tensor([[3], [1_000_000_000]]))
    at = {"key_positions": keys, "causal": True}
    with Memory() as seen:
        found = attend(q, k, k, ALiBi(4), queries, impl="strip", **at)
    assert seen.largest < 2**16
    close(found, attend(q, k, k, ALiBi(4), queries, impl="reference", **at), torch.float32)


def test_runs_notice_a_mask_changed_in_place() -> None:
    q = torch.randn(1, 2, 6, 8)
    valid = torch.ones(6, dtype=torch.bool)
    at = Positions(range(6), valid=valid)
    attend(q, q, q, ALiBi(2), at)
    at.valid[:2] = False
    close(attend(q, q, q, ALiBi(2), at), attend(q, q, q, ALiBi(2), at, impl="reference"), torch.float32)


# Memory


class Memory(TorchDispatchMode):
    """The largest storage that any operation returned, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor):
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("encoding", [RoPE(16), ALiBi(4), T5(4), KERPLE(4), RelativeBias(clip=9)], ids=lambda e: e.name)
def test_memory_of_fused_paths_is_linear(encoding: PositionalEncoding) -> None:
    """Forwards nothing exceeds what q holds (the mask is a view), backwards a block of scores."""
    q = torch.randn(1, 4, 1500, 16)
    for options in ({}, {"window": 200}, {"key_positions": range(-300, 1200)}):
        with Memory() as seen, torch.no_grad():
            attend(q, q, q, encoding, range(1500), **options)
        assert seen.largest <= q.nbytes
    with Memory() as seen:
        x = q.clone().requires_grad_()
        attend(x, x, x, encoding, range(1500)).sum().backward()
    assert seen.largest <= 4 * 256 * (1500 + 256) * 4 < 4 * 1500 * 1500 * 4 / 5


@pytest.mark.parametrize("encoding", [Shaw(16), FIRE(4, width=4), CoPE(16)], ids=lambda e: e.name)
def test_training_in_blocks_keeps_no_scores(encoding: PositionalEncoding) -> None:
    q = torch.randn(1, 4, 400, 16, requires_grad=True)
    kept = 0

    def keep(t: Tensor) -> Tensor:
        nonlocal kept
        kept += t.nbytes
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        attend(q, q, q, encoding, range(400), block=16)
    scores = 4 * 400 * 400 * 4
    assert kept < 2 * scores  # what each block was given, and no scores: the reference keeps several times these
    kept, before = 0, kept
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        attend(q, q, q, encoding, range(400), block=16, impl="reference")
    assert kept > 2 * before
    assert math.isfinite(float(kept))


@pytest.mark.parametrize("options", [{}, {"key_positions": Positions(range(0, 600, 2))}], ids=["text", "gaps"])
def test_blocks_are_alike_in_size_and_never_grow(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the C library finds no room for the next in what the last left, and the process grows several times over."""
    sizes: list[int] = []
    original = Shaw.score
    monkeypatch.setattr(Shaw, "score", lambda self, s, *rest: sizes.append(s.numel()) or original(self, s, *rest))
    monkeypatch.setattr(Call.rows, "__defaults__", (None, None, 2**15))
    q, k = torch.randn(1, 4, 300, 16), torch.randn(1, 4, 300, 16)
    attend(q, k, k, Shaw(16), range(300), **options)
    assert len(sizes) > 2
    assert max(sizes) <= 1.1 * sizes[0] <= 2 * 2**15
    assert min(sizes[:-1]) >= sizes[0] / 2


def test_parts_add_their_gradients_in_one_place_however_often() -> None:
    """Twice through one graph, for some of the inputs only, and with a derivative of the gradient."""
    shaw = Shaw(16, clip=3, std=1.0).double()
    q, k, v = (t.requires_grad_() for t in torch.randn(3, 1, 2, 40, 16, dtype=torch.float64))
    at = {"block": 7, "window": 11}
    ours, exact = (attend(q, k, v, shaw, range(40), impl=impl, **at).square().sum() for impl in ("blocks", "reference"))
    for wanted in ((q, k, v), (k,), (q, v, shaw.key_table), (q, k, v)):
        found = torch.autograd.grad(ours, wanted, retain_graph=True)
        for one, other in zip(found, torch.autograd.grad(exact, wanted, retain_graph=True), strict=True):
            close(one, other)
    second = []
    for out in (ours, exact):
        first = torch.autograd.grad(out, (q, k, v), create_graph=True)
        second.append(torch.autograd.grad(sum(g.square().sum() for g in first), (q, k, v, shaw.value_table)))
    for one, other in zip(*second, strict=True):
        close(one, other)


@pytest.mark.parametrize("encoding", [ALiBi(2), T5(2, std=1.0)], ids=lambda e: e.name)
def test_gradients_of_gradients_are_refused_and_not_left_out(encoding: PositionalEncoding) -> None:
    """A penalty on a gradient: autograd would take what the strip gives for a constant, and say nothing."""
    q, k, v = (t.requires_grad_() for t in torch.randn(3, 1, 2, 9, 8))
    out = attend(q, k, v, encoding, range(9), impl="strip")
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="impl='reference' has them"):
        (out.sum() + first.square().sum()).backward()
    with pytest.raises(RuntimeError, match="impl='reference' has them"):
        torch.autograd.grad(first.square().sum(), (q, v), allow_unused=True)


def test_autocast_does_not_lower_a_bias_of_ones_own() -> None:
    """A hook that multiplies: on distances it is called outside of the kernels, but in the same arithmetic."""

    class Network(PositionalEncoding):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

        def bias(self, h, i, j):
            return 9 * self.net((j - i)[..., None] / 10.0)[..., 0] * (h + 1)

    q, k, v = torch.randn(3, 1, 2, 40, 8)
    network = Network()
    exact = attend(q, k, v, network, range(40), impl="reference")
    for impl in ("strip", "blocks", "reference"):
        with torch.autocast("cpu", torch.bfloat16):
            found = attend(q, k, v, network, range(40), impl=impl)
        close(found, exact, torch.float32)


@pytest.mark.parametrize("encoding", [T5(heads=6), ALiBi(heads=6), KERPLE(heads=6)], ids=lambda e: e.name)
@pytest.mark.parametrize("some", [1, 2, 3])
def test_heads_whose_keys_are_copied_apart_give_what_all_at_once_do(
    encoding: PositionalEncoding, some: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(2, heads, 12, 8, generator=generator).bfloat16() for heads in (6, 3, 3))
    with torch.no_grad():
        whole = attend(q, k, v, encoding, range(12), impl="strip", block=5)
        wanted = attend(q, k, v, encoding, range(12), impl="reference")
    monkeypatch.setattr(banded, "COPIED", some * 2 * 12 * (8 + 8))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    copied = []
    to = banded.fused

    def counting(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        copied.append(k.shape[1])
        return to(q, k, v, **options)

    monkeypatch.setattr(banded, "fused", counting)
    with torch.no_grad():
        apart = attend(q, k, v, encoding, range(12), impl="strip", block=5)
    assert set(copied) == ({some} if some in (1, 3) else {2, 1})
    torch.testing.assert_close(apart, whole, rtol=0, atol=1e-2)
    torch.testing.assert_close(apart, wanted, rtol=0, atol=1e-2)
