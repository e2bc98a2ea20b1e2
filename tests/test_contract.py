"""The laws that every encoding keeps, whatever it does: one list of encodings, a law each."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import CASES, HEAD_DIM, HEADS, KV_HEADS, Case, Model, by_id, close
from ropewalk import ENCODINGS, ALiBi, Compose, CoPE, NoPE, PositionalEncoding, Positions, RoPE, Shaw, XPos, attend
from ropewalk.attention import flex, scores
from ropewalk.attention.call import checked
from ropewalk.attention.masks import Mask

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
EMBEDDING = [c for c in CASES if "embedding" in c.make().places()]
N = 13


def dtypes() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


# The list itself


def test_the_list_holds_every_encoding_with_every_option() -> None:
    used = {cls: [] for cls in ENCODINGS}
    for case in CASES:
        made = case.make()
        for one in made.modules():
            if type(one) in used:
                used[type(one)].append(one)
    for cls, ones in used.items():
        assert ones, f"{cls.label} is missing in helpers.CASES"
        for name in cls.parameters_of_constructor():
            values = {getattr(one, name) for one in ones}
            assert len(values) > 1 or name in ("dim", "heads", "head_dim"), (
                f"{cls.label}: only {name}={values} is ever tested"
            )


# Positions, not indices: caches, packing, sharding, padding


@dtypes()
@pytest.mark.parametrize(**by_id(CASES))
def test_incremental_equals_full(case: Case, dtype: torch.dtype) -> None:
    model = Model(case, dtype)
    x, pos = model.tokens(2, N), model.arange(N)
    whole = model(x, pos)
    close(model.cached(x, pos, [5, 8, 9, 10, 11, 12]), whole, dtype)
    close(model.cached(x, pos, list(range(1, N))), whole, dtype)


@pytest.mark.parametrize(**by_id(CASES))
def test_incremental_equals_full_at_any_split_and_start(case: Case) -> None:
    model = Model(case)
    room = (model.encoding.max_length or 901) - N

    @settings(max_examples=6)
    @given(st.sets(st.integers(1, N - 1)), st.integers(0, room))
    def at_any_split(cuts: set[int], offset: int) -> None:
        x, pos = model.tokens(1, N), model.arange(N, offset)
        close(model.cached(x, pos, sorted(cuts)), model(x, pos))

    at_any_split()


@dtypes()
@pytest.mark.parametrize(**by_id(CASES))
def test_packed_equals_separate(case: Case, dtype: torch.dtype) -> None:
    model = Model(case, dtype)
    lengths = [4, 1, 6, 2]
    packed = Positions.packed([0, 4, 5, 11, 13])
    packed = Positions(packed.ids + model.start, documents=packed.documents)
    x = model.tokens(1, sum(lengths))
    together = model(x, packed)
    alone = [model(piece, model.arange(piece.shape[1])) for piece in x.split(lengths, dim=1)]
    close(together, torch.cat(alone, 2), dtype)
    close(model.cached(x, packed, [3, 4, 9, 12]), together, dtype)  # packed and cached


@pytest.mark.parametrize(**by_id([c for c in CASES if not c.make().causal_only]))
def test_packed_equals_separate_without_a_causal_mask(case: Case) -> None:
    model = Model(case)
    packed = Positions.packed([0, 4, 13])
    packed = Positions(packed.ids + model.start, documents=packed.documents)
    x = model.tokens(1, 13)
    alone = [model(piece, model.arange(piece.shape[1]), causal=False) for piece in x.split([4, 9], dim=1)]
    close(model(x, packed, causal=False), torch.cat(alone, 2))


def sharded(model: Model, x: Tensor, pos: Positions, world: int, **options: bool) -> Tensor:
    """Query rows split zig-zag over `world` ranks, each meeting all keys in the order of the shards."""
    chunk = x.shape[1] // (2 * world)
    index = [
        torch.cat([torch.arange(c * chunk, (c + 1) * chunk) for c in (rank, 2 * world - 1 - rank)])
        for rank in range(world)
    ]

    def shard(rows: Tensor) -> Positions:
        return Positions(
            pos.ids[..., rows],
            documents=None if pos.documents is None else pos.documents[..., rows],
            valid=None if pos.valid is None else pos.valid[..., rows],
        )

    mine = [(shard(rows), *model.project(x[:, rows], shard(rows))) for rows in index]
    keys = torch.cat([model.encoding.key(k, p) for p, _, k, _ in mine], 2)
    values = torch.cat([v for *_, v in mine], 2)
    order = torch.cat(index)
    out = [
        attend(q, keys, values, model.encoding, p, key_positions=shard(order), keys_encoded=True, **options)
        for p, q, *_ in mine
    ]
    return torch.cat(out, 2)[:, :, order.argsort()]


@dtypes()
@pytest.mark.parametrize(**by_id(CASES))
def test_sharded_equals_whole(case: Case, dtype: torch.dtype) -> None:
    model = Model(case, dtype)
    x, pos = model.tokens(2, 12), model.arange(12)
    close(sharded(model, x, pos, world=2), model(x, pos), dtype)
    close(sharded(model, x, pos, world=3), model(x, pos), dtype)
    if not case.make().causal_only:
        close(sharded(model, x, pos, world=3, causal=False), model(x, pos, causal=False), dtype)


def padded(model: Model, length: int, real: list[int]) -> tuple[Tensor, Positions]:
    """A batch whose rows have `real` tokens at the right, and rubbish at the left."""
    mask = torch.arange(length) >= length - torch.tensor(real)[:, None]
    x = model.tokens(len(real), length).masked_fill(~mask[..., None], 1e3)
    pos = Positions.left_padded(mask)
    return x, Positions(pos.ids + model.start, valid=pos.valid)


@dtypes()
@pytest.mark.parametrize(**by_id(CASES))
def test_left_padded_equals_unpadded(case: Case, dtype: torch.dtype) -> None:
    model = Model(case, dtype)
    real = [N, 9, 1]
    x, pos = padded(model, N, real)
    out = model(x, pos)
    for row, n in enumerate(real):
        close(out[row : row + 1, :, N - n :], model(x[row : row + 1, N - n :], model.arange(n)), dtype)
        assert bool((out[row, :, : N - n] == 0).all())
    # decoding goes on at a position of its own in each row
    x = torch.cat((x, model.tokens(3, 2)), 1)
    after = pos.after(2)
    longer = Positions(
        torch.cat((pos.ids, after.ids), 1), valid=torch.cat((pos.valid, torch.ones(3, 2, dtype=torch.bool)), 1)
    )
    out = model.cached(x, longer, [N, N + 1])
    for row, n in enumerate(real):
        close(out[row : row + 1, :, N - n :], model(x[row : row + 1, N - n :], model.arange(n + 2)), dtype)


@pytest.mark.parametrize(**by_id(CASES))
def test_right_padded_equals_unpadded(case: Case) -> None:
    model = Model(case)
    real = torch.tensor([N, 7])
    mask = torch.arange(N) < real[:, None]
    x = model.tokens(2, N).masked_fill(~mask[..., None], 1e3)
    causal = {True, model.encoding.causal_only}
    for choice in causal:
        out = model(x, Positions(model.arange(N).ids.expand(2, N), valid=mask), causal=choice)
        for row, n in enumerate(real.tolist()):
            close(out[row : row + 1, :, :n], model(x[row : row + 1, :n], model.arange(n), causal=choice))


@pytest.mark.parametrize(**by_id(CASES))
def test_padded_and_cached_and_sharded_at_once(case: Case) -> None:
    model = Model(case)
    real = [12, 7, 3]
    x, pos = padded(model, 12, real)
    everything = sharded(model, x, pos, world=3)
    in_pieces = model.cached(x, pos, [2, 6, 11])
    blocks = model(x, pos, block=5)
    for row, n in enumerate(real):
        alone = model(x[row : row + 1, 12 - n :], model.arange(n))
        for out in (everything, in_pieces, blocks):
            close(out[row : row + 1, :, 12 - n :], alone)


@pytest.mark.parametrize(**by_id(CASES))
def test_packed_and_sharded_at_once(case: Case) -> None:
    model = Model(case)
    packed = Positions.packed([0, 5, 7, 12])
    packed = Positions(packed.ids + model.start, documents=packed.documents)
    x = model.tokens(1, 12)
    alone = [model(piece, model.arange(piece.shape[1])) for piece in x.split([5, 2, 5], dim=1)]
    close(sharded(model, x, packed, world=2), torch.cat(alone, 2))


@pytest.mark.parametrize(**by_id(CASES))
def test_every_sample_may_stand_elsewhere(case: Case) -> None:
    model = Model(case)
    x = model.tokens(3, 6)
    starts = torch.tensor([5, 0, 31]) + model.start
    out = model(x, Positions.arange(6, offset=starts))
    for row, begin in enumerate(starts.tolist()):
        close(out[row : row + 1], model(x[row : row + 1], Positions.arange(6, offset=begin)))


@pytest.mark.parametrize(**by_id(CASES))
def test_order_in_memory_does_not_matter(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    shuffle = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    close(model(x[:, shuffle], Positions(pos.ids[shuffle])), model(x, pos)[:, :, shuffle])


# Heads: what a rank of tensor parallelism holds


@pytest.mark.parametrize(**by_id(CASES))
def test_some_heads_equal_those_heads_of_the_whole(case: Case) -> None:
    model = Model(case)
    pos, parameters = model.arange(N), list(model.encoding.parameters())
    q, k, v = (t.detach().requires_grad_() for t in model.project(model.tokens(2, N), pos))
    upstream = torch.randn(2, HEADS, N, HEAD_DIM, dtype=torch.float64)
    share = HEADS // KV_HEADS
    for impl in ("reference", "auto"):
        whole = attend(q, k, v, model.encoding, pos, impl=impl)
        parts = []
        for rank in range(KV_HEADS):
            mine, keys = slice(rank * share, (rank + 1) * share), slice(rank, rank + 1)
            some = model.encoding.of_heads(rank * share, share)
            parts.append(attend(q[:, mine], k[:, keys], v[:, keys], some, pos, impl=impl))
            one = some.of_heads(1, 1)  # some of those again
            close(attend(q[:, mine][:, 1:2], k[:, keys], v[:, keys], one, pos, impl=impl), parts[-1][:, 1:2])
        close(torch.cat(parts, 1), whole)
        if not parameters:
            continue
        exact = torch.autograd.grad(whole, parameters, upstream, retain_graph=True, allow_unused=True)
        each = [
            torch.autograd.grad(part, parameters, of_part, allow_unused=True)
            for part, of_part in zip(parts, upstream.split(share, 1), strict=True)
        ]
        for one, *shares in zip(exact, *each, strict=True):
            assert (one is None) == all(s is None for s in shares)
            if one is not None:
                torch.testing.assert_close(sum(s for s in shares if s is not None), one, rtol=0, atol=1e-11)


@pytest.mark.parametrize(**by_id(CASES))
def test_some_heads_are_a_view_of_the_whole(case: Case) -> None:
    whole = case.built(torch.float64)
    some = whole.of_heads(2, 3)
    assert type(some) is type(whole)
    assert (some.first_head, some.heads) == (2, None if whole.heads is None else 3)
    assert (whole.first_head, whole.heads) == (0, case.make().heads)
    assert some.places() == whole.places()
    assert list(some.state_dict()) == list(whole.state_dict())
    assert all(a is b for a, b in zip(some.parameters(), whole.parameters(), strict=True))
    whole.to(torch.float32)
    assert {p.dtype for p in some.parameters()} <= {torch.float32}
    assert torch.equal(some.head_numbers(3), torch.arange(2, 5))
    assert all((part.first_head, part.heads) in ((2, 3), (2, None)) for part in leaves(some))


@pytest.mark.parametrize(**by_id([c for c in CASES if c.make().heads]))
def test_heads_that_do_not_say_which_are_refused(case: Case) -> None:
    q = torch.randn(1, 3, 4, HEAD_DIM, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"made for 6 heads, q has 3; for some of its heads take encoding.of_heads\(first, count\)"
    ):
        attend(q, q, q, case.built(), torch.arange(4))


@pytest.mark.parametrize(**by_id([c for c in CASES if c.make().heads is None]))
def test_no_number_of_heads_means_that_they_are_alike(case: Case) -> None:
    bias = dense_bias(case.built(), 5)
    assert bias is None or bool((bias.expand(HEADS, 5, 5) == bias.expand(HEADS, 5, 5)[:1]).all())


def test_some_heads_are_looked_up_by_their_numbers_in_flex_attention() -> None:
    """What its kernel looks numbers up in; compiling one takes long on a CPU."""
    q = torch.randn(1, HEADS, 4, HEAD_DIM)
    options = {"key_positions": None, "keys_encoded": False, "mask": Mask(), "scale": None, "block": None}
    _, whole = flex._distances(checked(q, q, q, ALiBi(HEADS), torch.arange(4), **options))
    part = checked(q[:, 2:], q[:, 2:], q[:, 2:], ALiBi(HEADS).of_heads(2, 4), torch.arange(4), **options)
    assert torch.equal(flex._distances(part)[1], whole[2:])


# Claims


@dtypes()
@pytest.mark.parametrize(**by_id([c for c in CASES if c.make().shift_invariant]))
def test_shift_invariant_means_that_a_shift_changes_nothing(case: Case, dtype: torch.dtype) -> None:
    model = Model(case, dtype)
    x = model.tokens(2, N)
    here = model(x, model.arange(N))
    for shift in (1, 500, case.far):
        there = model(x, model.arange(N, shift))
        if not case.exact:
            torch.testing.assert_close(there, here, rtol=0, atol=0.05)
        elif dtype == torch.float64:  # angles are rounded to 2⁻⁵³, ALiBi's products to float32
            torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-9)
        else:  # queries and keys are rounded after their turn, each time another way
            eps = torch.finfo(dtype).eps
            low, high = there.detach().double(), here.detach().double()
            size = float(high.abs().max())
            assert float((low - high).abs().max()) < 12 * eps * size


@pytest.mark.parametrize(**by_id([c for c in CASES if not c.make().shift_invariant]))
def test_not_shift_invariant_means_that_a_shift_changes_something(case: Case) -> None:
    model = Model(case)
    x = model.tokens(2, N)
    shift = 27 if model.encoding.max_length else min(case.far, 1_501)
    change = (model(x, model.arange(N, shift)) - model(x, model.arange(N))).abs().max()
    assert float(change.detach()) > 1e-3


def leaves(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    """The encoding itself, or the parts of a composition."""
    return [e for e in encoding.modules() if isinstance(e, PositionalEncoding) and not isinstance(e, Compose)]


def dense_bias(encoding: PositionalEncoding, n: int, start: int = 0) -> Tensor | None:
    at = torch.arange(n) + start
    return encoding.bias(torch.arange(HEADS)[:, None, None], at[:, None], at[None])


@pytest.mark.parametrize(**by_id(CASES))
def test_distance_only_means_constant_along_diagonals(case: Case) -> None:
    encoding = case.built()
    bias = dense_bias(encoding, 40, start=625)  # across FIRE's threshold, below which it too reads the distance only
    content = any(type(e).score is not PositionalEncoding.score for e in leaves(encoding))
    if bias is None:
        assert encoding.distance_only is not content
        return
    varies = any(bool((d := bias.diagonal(k, -2, -1)).ne(d[:, :1]).any()) for k in range(-39, 40))
    assert encoding.distance_only is not (varies or content)


@pytest.mark.parametrize(**by_id(CASES))
def test_causal_only_means_that_attend_refuses_the_other(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(1, 5), model.arange(5)
    if model.encoding.causal_only:
        with pytest.raises(ValueError, match="defined for causal attention only"):
            model(x, pos, causal=False)
    else:
        full, causal = model(x, pos, causal=False), model(x, pos)
        assert not torch.equal(full[:, :, 0], causal[:, :, 0])
        close(full[:, :, -1], causal[:, :, -1])  # the last query sees all in both


def test_something_is_causal_only_and_something_has_a_limit() -> None:
    assert {c.make().causal_only for c in CASES} == {True, False}
    assert {c.make().max_length for c in CASES} >= {None, 48}


@pytest.mark.parametrize(**by_id([c for c in CASES if c.make().max_length]))
def test_max_length_works_and_one_more_is_refused(case: Case) -> None:
    model = Model(case)
    n = model.encoding.max_length
    assert n is not None
    assert bool(model(model.tokens(1, n), model.arange(n)).isfinite().all())
    with pytest.raises(ValueError, match=rf"(?s)\b{n}\b.*\b{n}\b"):
        model(model.tokens(1, n + 1), model.arange(n + 1))


@pytest.mark.parametrize(**by_id([c for c in CASES if not c.make().max_length]))
def test_no_max_length_means_any_position(case: Case) -> None:
    model = Model(case)
    for offset in (1, 300, min(case.far, 20_001)):
        assert bool(model(model.tokens(1, 3), model.arange(3, offset)).isfinite().all())


@pytest.mark.parametrize(**by_id(CASES))
def test_places_are_the_hooks_that_do_something(case: Case) -> None:
    model = Model(case)
    encoding, pos = model.encoding, model.arange(4, 1)
    x, q = model.tokens(1, 4), torch.randn(1, HEADS, 4, HEAD_DIM, dtype=torch.float64)
    s, w = torch.randn(1, HEADS, 4, 4, dtype=torch.float64), torch.rand(1, HEADS, 4, 4, dtype=torch.float64)
    i, j = pos.ids[:, None], pos.ids[None]
    acts = {
        "embedding": not torch.equal(encoding.embed(x, pos), x),
        "query/key": not (torch.equal(encoding.query(q, pos), q) and torch.equal(encoding.key(q, pos), q)),
        "score": not torch.equal(encoding.score(s, q, q, i, j, 0.5), s),
        "value": encoding.value(w, i, j) is not None,
    }
    assert encoding.places() == tuple(place for place, does in acts.items() if does)


# State: nothing hidden, nothing stale


@pytest.mark.parametrize(**by_id(CASES))
def test_state_dict_holds_parameters_and_nothing_else(case: Case) -> None:
    encoding = case.make()
    assert set(encoding.state_dict()) == {name for name, _ in encoding.named_parameters()}
    assert not list(encoding.buffers())


@pytest.mark.parametrize(**by_id(CASES))
def test_history_leaves_no_trace(case: Case) -> None:
    fresh = Model(case)
    x, pos = fresh.tokens(2, N), fresh.arange(N)
    expected = fresh(x, pos)
    used = Model(case)
    shared, q = used.arange(N), torch.randn(1, HEADS, N, HEAD_DIM)

    def warm_up(dtype: torch.dtype) -> None:
        """Through the same positions, which remember."""
        used.encoding.query_key(q.to(dtype), q.to(dtype), shared)
        used.encoding.embed(used.tokens(1, N).to(dtype), shared)

    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        warm_up(dtype)
    used(x[:, :5], used.arange(5))  # shorter
    used(used.tokens(1, 30), used.arange(30, 2))  # longer, elsewhere
    used(x, used.arange(N, 7))  # same length, another start
    assert torch.equal(used(x, shared), expected)
    warm_up(torch.bfloat16)
    assert torch.equal(used(x, shared), expected)
    assert torch.equal(fresh(x, pos), expected)


def test_positions_shared_by_different_encodings_do_not_mix_them() -> None:
    """One `Positions` goes through every encoding twice; what one has it remember must not reach another."""
    shared = Positions.arange(N)
    models = [Model(case) for case in CASES if not case.start]
    for _ in range(2):
        for model in models:
            x = model.tokens(1, N)
            assert torch.equal(model(x, shared), model(x, Positions.arange(N)))


@pytest.mark.parametrize(**by_id(CASES))
def test_the_same_after_a_journey_through_bfloat16(case: Case) -> None:
    """Casting rounds parameters; what is computed from positions must come back unharmed."""
    there = Model(case)
    there.encoding.to(torch.bfloat16)
    there.project(there.tokens(1, N), there.arange(N))
    there.encoding.to(torch.float64)
    rounded = Model(case)
    with torch.no_grad():
        for p in rounded.encoding.parameters():
            p.copy_(p.bfloat16())
    x, pos = there.tokens(2, N), there.arange(N)
    assert torch.equal(there(x, pos), rounded(x, pos))


@pytest.mark.parametrize(**by_id(CASES))
def test_bfloat16_costs_rounding_and_nothing_more(case: Case) -> None:
    """In bfloat16 positions, angles, tables and distances stay exact: only what is stored is rounded."""
    model, exact = Model(case, torch.bfloat16), Model(case)
    with torch.no_grad():
        for p, r in zip(exact.encoding.parameters(), model.encoding.parameters(), strict=True):
            p.copy_(r)
    far = 20 if model.encoding.max_length else min(case.far, 20_001)
    pos = model.arange(20, far)
    # each place by itself, since roundings of one are blown up by the next
    x = model.tokens(1, 20)
    eps = torch.finfo(torch.bfloat16).eps

    def near(low: Tensor | None, high: Tensor | None, slack: float = 1.0) -> None:
        if low is None or high is None:
            assert low is high
            return
        low, high = low.detach().double(), high.detach()
        assert float((low - high).abs().max()) <= slack * eps * float(high.abs().max())

    near(model.encoding.embed(x, pos), exact.encoding.embed(x.double(), pos))
    q = torch.randn(1, HEADS, 20, HEAD_DIM).bfloat16()
    assert model.encoding.query(q, pos).dtype == torch.bfloat16
    # rounded once for each rotation; compositions turn twice at most
    near(model.encoding.query(q, pos), exact.encoding.query(q.double(), pos))
    near(model.encoding.key(q, pos), exact.encoding.key(q.double(), pos))
    near(dense_bias(model.encoding, 20, model.start), dense_bias(exact.encoding, 20, model.start), slack=8.0)


@pytest.mark.parametrize(**by_id(CASES))
def test_meta_then_to_empty_then_reset_parameters(case: Case, poisoned: None) -> None:
    with torch.device("meta"):
        encoding = case.make()
    encoding.to_empty(device="cpu")
    assert all(bool(p.isnan().all()) for p in encoding.parameters()), "the poison must be seen to work"
    for module in encoding.modules():
        if isinstance(module, PositionalEncoding) and hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert all(bool(p.isfinite().all()) for p in encoding.parameters())
    torch.manual_seed(4)
    expected = case.make()
    torch.manual_seed(4)
    # the same numbers cannot be asked for (constructors may draw more), the same spread can
    for (name, p), e in zip(encoding.named_parameters(), expected.parameters(), strict=True):
        if p.numel() > 50:
            assert float(p.detach().std()) == pytest.approx(float(e.detach().std()), rel=0.4, abs=1e-9), name
    model = Model(case)
    model.encoding = encoding.double()
    assert bool(model(model.tokens(1, 5), model.arange(5)).isfinite().all())


@pytest.mark.parametrize(**by_id(CASES))
def test_meta_then_load_state_dict(case: Case, poisoned: None) -> None:
    model, source = Model(case), Model(case)
    with torch.device("meta"):
        encoding = case.make()
    encoding.to_empty(device="cpu").double()
    encoding.load_state_dict(source.encoding.state_dict())
    model.encoding = encoding
    x, pos = model.tokens(2, N), model.arange(N)
    assert torch.equal(model(x, pos), source(x, pos))
    with torch.device("meta"):
        again = case.make()
    again.load_state_dict(source.encoding.state_dict(), assign=True)
    model.encoding = again
    assert torch.equal(model(x, pos), source(x, pos))


@pytest.mark.parametrize(**by_id(CASES))
def test_nothing_reads_unwritten_memory(case: Case, poisoned: None) -> None:
    torch.manual_seed(0)
    encoding = case.make().double()
    assert all(bool(p.isfinite().all()) for p in encoding.parameters())
    model = Model(case)
    model.encoding = encoding
    assert bool(model(model.tokens(2, 9), model.arange(9), block=4).isfinite().all())


@pytest.mark.parametrize(**by_id(CASES))
def test_inference_mode_then_training(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    with torch.inference_mode():
        seen = model(x, pos)
    x.requires_grad_()
    for _ in range(2):  # twice, since a remembered graph would be walked again
        out = model(x, pos)
        assert torch.equal(out, seen)
        out.square().sum().backward()
    assert bool(x.grad is not None and x.grad.isfinite().all())


@pytest.mark.parametrize(**by_id(CASES))
def test_a_step_of_training_is_seen_by_the_next_call(case: Case) -> None:
    model = Model(case)
    if not list(model.encoding.parameters()):
        assert not model.encoding.state_dict()
        return
    x, pos = model.tokens(2, N), model.arange(N)
    before = model(x, pos)
    with torch.no_grad():
        for p in model.encoding.parameters():
            p.add_(0.3 * torch.randn_like(p))
    assert not torch.allclose(model(x, pos), before, atol=1e-6)


@pytest.mark.parametrize(**by_id(CASES))
def test_autocast_leaves_positions_alone(case: Case) -> None:
    model = Model(case, torch.float32)
    x, pos = model.tokens(2, N), model.arange(N, 0 if model.encoding.max_length else min(case.far, 20_001))
    q, k, v = model.project(x, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.encoding.embed(x, pos), Model(case, torch.float32).encoding.embed(x, model_copy(pos)))
        inside = attend(q, k, v, model.encoding, pos)
    outside = attend(q, k, v, model.encoding, model_copy(pos))
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


def model_copy(pos: Positions) -> Positions:
    """The same positions, which remember nothing."""
    return Positions(pos.ids.clone(), documents=pos.documents, valid=pos.valid)


# Nothing leaks from the future


@pytest.mark.parametrize(**by_id(CASES))
def test_the_future_changes_nothing_before_it(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    before = model(x, pos)
    other = x.clone()
    other[:, 8:] = -3 * other[:, 8:] + 1
    after = model(other, pos)
    assert torch.equal(before[:, :, :8], after[:, :, :8])
    assert not torch.equal(before[:, :, 8:], after[:, :, 8:])


@pytest.mark.parametrize(**by_id(CASES))
def test_no_gradient_reaches_the_future(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N).requires_grad_(), model.arange(N)
    (grad,) = torch.autograd.grad(model(x, pos)[:, :, :8].square().sum(), x)
    assert bool((grad[:, 8:] == 0).all())
    assert bool((grad[:, :8] != 0).any(-1).all())


@pytest.mark.parametrize(**by_id(CASES))
def test_no_gradient_crosses_documents_or_padding(case: Case) -> None:
    model = Model(case)
    packed = Positions.packed([0, 5, 9])
    pos = Positions(packed.ids + model.start, documents=packed.documents)
    x = model.tokens(1, 9).requires_grad_()
    (grad,) = torch.autograd.grad(model(x, pos)[:, :, 5:].square().sum(), x)
    assert bool((grad[:, :5] == 0).all())
    assert bool((grad[:, 5:] != 0).any(-1).all())
    x, pos = padded(model, 9, [6])
    x.requires_grad_()
    (grad,) = torch.autograd.grad(model(x, pos).square().sum(), x)
    assert bool((grad[:, :3] == 0).all())
    assert bool(grad.isfinite().all())


# Gradients


@pytest.mark.parametrize(**by_id(CASES))
def test_gradients_are_right(case: Case) -> None:
    """Of every input and every parameter, against differences in float64."""
    model = Model(case)
    x, pos = model.tokens(1, 5), model.arange(5, 1)
    q, k, v = (t.detach().requires_grad_() for t in model.project(x, pos))
    names = [n for n, _ in model.encoding.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in model.encoding.parameters()]

    def through_attention(*everything: Tensor) -> Tensor:
        q, k, v, *parameters = everything
        return _call(model.encoding, names, parameters, lambda: attend(q, k, v, model.encoding, pos, block=3))

    used = [t for n, t in zip(names, values, strict=True) if not n.endswith("embedding.weight")]
    if len(used) == len(values):
        assert torch.autograd.gradcheck(through_attention, (q, k, v, *values), fast_mode=True, atol=1e-6)
    if case in EMBEDDING:
        x.requires_grad_()

        def through_embedding(x: Tensor, *parameters: Tensor) -> Tensor:
            return _call(model.encoding, names, list(parameters), lambda: model(x, pos))

        assert torch.autograd.gradcheck(through_embedding, (x, *values), fast_mode=True, atol=1e-6)
    else:
        loss = attend(q, k, v, model.encoding, pos).square().sum()
        for name, grad in zip(
            names, torch.autograd.grad(loss, list(model.encoding.parameters())) if names else [], strict=True
        ):
            assert bool((grad != 0).any()), f"{name} is never used"


def _call(encoding: PositionalEncoding, names: list[str], values: list[Tensor], run) -> Tensor:
    """`run()` with the parameters replaced by `values`."""
    saved = {}
    for name, value in zip(names, values, strict=True):
        owner = encoding.get_submodule(name.rpartition(".")[0])
        leaf = name.rpartition(".")[2]
        saved[name] = (owner, leaf, owner._parameters[leaf])
        del owner._parameters[leaf]
        object.__setattr__(owner, leaf, value)
    try:
        return run()
    finally:
        for owner, leaf, parameter in saved.values():
            object.__delattr__(owner, leaf)
            owner._parameters[leaf] = parameter


# Same call, same answer


@pytest.mark.parametrize(**by_id(CASES))
def test_blocks_change_memory_and_not_the_result(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    whole = model(x, pos)
    for block in (1, 4, N, 100):
        close(model(x, pos, block=block), whole)


def test_threads_do_not_change_a_bit() -> None:
    """All cases in one test, since to change the number of threads takes longer than the work."""

    def answers(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        out = []
        for case in CASES:
            model = Model(case, torch.float32)
            n = model.encoding.max_length or 100
            out.append(model(model.tokens(2, n), model.arange(n)))
        return out

    for case, one, two in zip(CASES, answers(1), answers(2), strict=True):
        assert torch.equal(one, two), case.id


@pytest.mark.parametrize(**by_id(CASES))
def test_grouped_queries_equal_repeated_keys(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    q, k, v = model.project(x, pos)
    group = HEADS // k.shape[1]
    # heads 0 … group-1 share key head 0, and so on
    k_each = torch.stack([k[:, h // group] for h in range(HEADS)], 1)
    v_each = torch.stack([v[:, h // group] for h in range(HEADS)], 1)
    close(attend(q, k, v, model.encoding, pos), attend(q, k_each, v_each, model.encoding, pos))


@dtypes()
@pytest.mark.parametrize(**by_id(CASES))
def test_query_key_is_query_and_key(case: Case, dtype: torch.dtype) -> None:
    model = Model(case, dtype)
    q, k, _ = model.project(model.tokens(2, N), model.arange(N))
    both = model.encoding.query_key(q, k, model.arange(N))
    assert torch.equal(both[0], model.encoding.query(q, model.arange(N)))
    assert torch.equal(both[1], model.encoding.key(k, model.arange(N)))


@pytest.mark.parametrize(**by_id(CASES))
def test_any_form_of_positions(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, 5), model.arange(5)
    q, k, v = model.project(x, pos)
    expected = attend(q, k, v, model.encoding, pos)
    for same in (pos.ids, pos.ids.tolist(), pos.ids.int(), pos.ids.expand(2, 5), Positions(pos.ids[None])):
        close(attend(q, k, v, model.encoding, same), expected)
    close(attend(q, k, v, model.encoding, pos, key_positions=pos.ids.tolist()), expected)


@pytest.mark.parametrize(**by_id(CASES))
def test_inputs_are_left_as_they_were(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    tensors = [x, *model.project(x, pos), pos.ids]
    copies = [t.clone() for t in tensors]
    parameters = copy.deepcopy(model.encoding.state_dict())
    model(x, pos)
    attend(*tensors[1:4], model.encoding, pos)
    model.encoding.query_key(tensors[1], tensors[2], pos)
    assert all(torch.equal(t, c) for t, c in zip(tensors, copies, strict=True))
    assert all(torch.equal(model.encoding.state_dict()[n], p) for n, p in parameters.items())


@pytest.mark.parametrize(**by_id(CASES))
def test_strides_do_not_matter(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    q, k, v = model.project(x, pos)
    expected = attend(q.contiguous(), k.contiguous(), v.contiguous(), model.encoding, pos)
    odd = [t.repeat_interleave(2, -1)[..., ::2] for t in (q, k, v)]
    assert not odd[0].is_contiguous()
    close(attend(*odd, model.encoding, pos), expected)


@pytest.mark.parametrize(**by_id(CASES))
def test_deepcopy_and_pickle_make_the_same_encoding(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(2, N), model.arange(N)
    expected = model(x, pos)
    original = model.encoding
    for twin in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert repr(twin) == repr(original)
        model.encoding = twin
        assert torch.equal(model(x, pos), expected)
    assert torch.equal(model(x, copy.deepcopy(pos)), expected)
    assert torch.equal(model(x, pickle.loads(pickle.dumps(pos))), expected)


@pytest.mark.parametrize(**by_id([c for c in CASES if not isinstance(c.make(), Compose)]))
def test_repr_shows_every_option_and_builds_the_same_again(case: Case) -> None:
    encoding = case.make()
    shown = repr(encoding)
    for name in encoding.parameters_of_constructor():
        assert f"{name}={getattr(encoding, name)!r}" in shown
    options = {name: getattr(encoding, name) for name in encoding.parameters_of_constructor()}
    if options.get("length") is None or options.get("clip", 0) is None:
        options = {n: v for n, v in options.items() if v is not None}
    assert repr(type(encoding)(**options)) == shown


# The bias is one function, of scalars or of a grid


@pytest.mark.parametrize(**by_id(CASES))
def test_bias_on_scalars_equals_the_grid(case: Case) -> None:
    encoding = case.built()
    n = 9
    dense = dense_bias(encoding, n)
    if dense is None:
        one = encoding.bias(torch.tensor(0), torch.tensor(1), torch.tensor(0))
        assert one is None
        return
    dense = dense.expand(HEADS, n, n)
    for h in (0, HEADS - 1):
        for i in range(n):
            for j in range(n):
                one = encoding.bias(torch.tensor(h), torch.tensor(i), torch.tensor(j))
                assert one is not None
                assert one.shape == ()
                torch.testing.assert_close(one, dense[h, i, j], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(**by_id(CASES))
def test_default_score_adds_the_bias_and_nothing_else(case: Case) -> None:
    encoding = case.built()
    dense = dense_bias(encoding, 7)
    if dense is None or not encoding.distance_only:
        return
    s, q = torch.randn(1, HEADS, 7, 7, dtype=torch.float64), torch.randn(1, HEADS, 7, HEAD_DIM, dtype=torch.float64)
    at = torch.arange(7)
    added = encoding.score(s, q, q, at[:, None], at[None], 0.25) - s
    torch.testing.assert_close(added, dense.expand_as(s[0])[None].to(s.dtype), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(**by_id(CASES))
def test_rows_that_see_nothing_give_zeros(case: Case) -> None:
    model = Model(case)
    x, pos = model.tokens(1, 4), model.arange(4)
    q, k, v = model.project(x, pos)
    blind = Positions(pos.ids, valid=torch.zeros(4, dtype=torch.bool))
    q.requires_grad_()
    out = attend(q, k, v, model.encoding, blind)
    assert bool((out == 0).all())
    (grad,) = torch.autograd.grad(out.sum() + out.square().sum(), q)
    assert bool((grad == 0).all())


@pytest.mark.parametrize(**by_id(CASES))
def test_no_tokens_at_all(case: Case) -> None:
    model = Model(case)
    out = model(model.tokens(2, 0), Positions([]))
    assert out.shape == (2, HEADS, 0, HEAD_DIM)


@pytest.mark.parametrize(**by_id([c for c in CASES if not c.make().causal_only]))
def test_scores_are_the_product_where_nothing_acts_on_them(case: Case) -> None:
    model = Model(case)
    if set(model.encoding.places()) & {"score"}:
        return
    q, k = torch.randn(2, 1, HEADS, 5, HEAD_DIM, dtype=torch.float64)
    found = scores(q, k, model.encoding, range(5), range(5), causal=False, scale=0.3)
    torch.testing.assert_close(found, 0.3 * q @ k.mT)


# Memory


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor) and t.untyped_storage().size():
                self.elements = max(self.elements, t.untyped_storage().nbytes() // t.element_size())
        return out


@pytest.mark.parametrize(**by_id(CASES))
def test_memory_is_a_block_of_scores_never_a_vector_for_each_pair(case: Case) -> None:
    """O(block · n) for each head, plus what q and k hold: no tensor has n² · head_dim, nor even n², numbers.

    Of the reference; the other paths' memory is measured in test_attention_paths.py.
    """
    model = Model(case, torch.float32)
    n, block = model.encoding.max_length or 256, 8
    q = torch.randn(1, HEADS, n, HEAD_DIM)
    with LargestTensor() as seen:
        attend(q, q, q, model.encoding, model.arange(n), block=block, impl="reference")
    clip = max((e.clip or 0 for e in model.encoding.modules() if hasattr(e, "clip")), default=0)
    rows = max(n, block * (2 * clip + 1), HEAD_DIM * n // block)
    width = max((e.width for e in model.encoding.modules() if hasattr(e, "width")), default=0)  # FIRE's hidden layer
    assert seen.elements <= max(HEADS * block * rows, block * n * max(width, HEADS))
    assert seen.elements < HEADS * n * n
    assert seen.elements >= HEADS * block * n  # the scores of a block: it does measure


# Compose


def test_compose_of_one_is_that_one() -> None:
    for case in CASES:
        model = Model(case)
        x, pos = model.tokens(1, 6), model.arange(6)
        alone = model(x, pos)
        model.encoding = Compose(model.encoding)
        assert torch.equal(model(x, pos), alone)
        assert model.encoding.places() == case.make().places()


def test_compose_with_nope_changes_nothing() -> None:
    model = Model(Case("alibi", lambda: ALiBi(HEADS)))
    x, pos = model.tokens(1, 6), model.arange(6)
    alone = model(x, pos)
    model.encoding = Compose(NoPE(), model.encoding, NoPE())
    assert torch.equal(model(x, pos), alone)


def test_composed_biases_add() -> None:
    two = Compose(ALiBi(HEADS), ALiBi(HEADS))
    once, twice = dense_bias(ALiBi(HEADS), 6), dense_bias(two, 6)
    assert once is not None
    assert twice is not None
    assert torch.equal(twice, 2 * once)


def test_a_rotation_beside_a_term_that_reads_queries_is_not_shift_invariant() -> None:
    """Shaw's and CoPE's vectors meet the rotated query, and no rotated key takes the position out again."""
    reads = (Shaw(HEAD_DIM), CoPE(HEAD_DIM))
    for turns in (RoPE(HEAD_DIM), XPos(HEAD_DIM)):
        assert Compose(turns, ALiBi(HEADS)).shift_invariant
        for one in reads:
            assert not Compose(turns, one).shift_invariant
            assert not Compose(one, turns).shift_invariant
            assert not Compose(NoPE(), Compose(one), Compose(ALiBi(HEADS), turns)).shift_invariant
    assert Compose(*reads).shift_invariant


def test_compose_takes_the_strictest_claims() -> None:
    for case in CASES:
        made = case.make()
        if isinstance(made, Compose):
            parts = list(made.parts)
            if made.shift_invariant:
                assert all(p.shift_invariant for p in parts)
            assert made.causal_only == any(p.causal_only for p in parts)
            limits = [p.max_length for p in parts if p.max_length is not None]
            assert made.max_length == (min(limits) if limits else None)


# Without order, none is seen


@pytest.mark.parametrize(**by_id(CASES))
def test_only_nope_is_blind_to_order(case: Case) -> None:
    """Shuffle tokens that keep their vectors but change places: without an encoding the outputs are shuffled too."""
    model = Model(case)
    x, pos = model.tokens(1, 6), model.arange(6)
    causal = model.encoding.causal_only
    shuffled = model(x[:, [3, 1, 5, 0, 4, 2]], pos, causal=causal)
    plain = model(x, pos, causal=causal)[:, :, [3, 1, 5, 0, 4, 2]]
    assert torch.allclose(shuffled, plain, rtol=1e-9, atol=1e-9) is (case.id == "nope")


def test_hooks_have_the_base_class_signatures() -> None:
    hooks = ("embed", "query", "key", "bias", "score", "value")
    for cls in (*ENCODINGS, Compose):
        for hook in hooks:
            wanted = list(inspect.signature(getattr(PositionalEncoding, hook)).parameters)
            assert list(inspect.signature(getattr(cls, hook)).parameters) == wanted, f"{cls.__name__}.{hook}"
