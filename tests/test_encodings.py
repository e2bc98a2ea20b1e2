"""Each encoding against the same formula written apart from it, in `oracles.py`, and what is particular to each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles
from helpers import randomised
from ropewalk import (
    FIRE,
    KERPLE,
    T5,
    ALiBi,
    CoPE,
    Learned,
    NoPE,
    PositionalEncoding,
    Positions,
    RelativeBias,
    RoPE,
    Shaw,
    Sinusoidal,
    XPos,
    YaRN,
    attend,
    build,
    geometric,
)
from ropewalk.encodings import find

HEADS, HEAD_DIM = 3, 6
QUERIES, KEYS = [7, 0, 12, 3], [3, 7, 1, 0, 12, 9]  # not in order, not the same


def vectors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(2, HEADS, n, HEAD_DIM, generator=random, dtype=torch.float64)
        for n in (len(QUERIES), len(KEYS), len(KEYS))
    )


def check(encoding: PositionalEncoding, causal: bool, hooks: Any, scale: float | None = None) -> None:
    """Attention with the encoding against the oracle, whose hooks `hooks(head)` gives."""
    encoding = encoding.double()
    q, k, v = vectors()
    found = attend(q, k, v, encoding, QUERIES, key_positions=KEYS, causal=causal, scale=scale).tolist()
    for b in range(2):
        for h in range(HEADS):
            expected = oracles.attention(
                q[b, h].tolist(),
                k[b, h].tolist(),
                v[b, h].tolist(),
                QUERIES,
                KEYS,
                causal=causal,
                scale=1 / math.sqrt(HEAD_DIM) if scale is None else scale,
                **hooks(h),
            )
            for row, wanted in zip(found[b][h], expected, strict=True):
                # ALiBi's slopes are float32, whatever attention works in
                assert row == pytest.approx(wanted, rel=1e-9, abs=1e-6 if isinstance(encoding, ALiBi) else 1e-11)


causal_or_not = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
masks = pytest.mark.parametrize(
    ("causal", "bidirectional"), [(True, True), (False, True), (True, False)], ids=["both", "full", "causal"]
)
scales = pytest.mark.parametrize("scale", [None, 1.0, 0.1], ids=["usual-scale", "scale-1", "scale-0.1"])


@causal_or_not
@scales
def test_nope(causal: bool, scale: float | None) -> None:
    check(NoPE(), causal, lambda h: {}, scale)


# Sinusoidal


@pytest.mark.parametrize("order", ["interleaved", "concatenated", "cosine_first"])
@pytest.mark.parametrize("ladder", ["paper", "half-1"])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 8, 21, 64])
def test_sinusoidal_table(dim: int, order: Any, ladder: Any) -> None:
    for base in (10_000.0, 7.5):
        encoding = Sinusoidal(dim, base=base, order=order, ladder=ladder)
        at = [0, 1, 3, 10, 4097]
        expected = torch.tensor([oracles.sinusoid(p, dim, base, order, ladder) for p in at], dtype=torch.float64)
        torch.testing.assert_close(encoding.table(at, dtype=torch.float64), expected, rtol=0, atol=1e-11)
        assert float((encoding.table(at).double() - expected).abs().max()) < 6e-8
        x = torch.randn(2, len(at), dim, dtype=torch.float64)
        torch.testing.assert_close(encoding.embed(x, at), math.sqrt(dim) * x + expected, rtol=0, atol=1e-11)
        once = Sinusoidal(dim, base=base, order=order, ladder=ladder, embedding_scale=1.0)
        torch.testing.assert_close(once.embed(x, at), x + expected, rtol=0, atol=1e-11)


@given(
    st.integers(1, 24),
    st.integers(-100_000, 100_000),
    st.integers(0, 10_000),
    st.sampled_from(["interleaved", "concatenated", "cosine_first"]),
    st.sampled_from(["paper", "half-1"]),
)
def test_shift_matrix_moves_any_position(half: int, k: int, pos: int, order: Any, ladder: Any) -> None:
    encoding = Sinusoidal(2 * half, order=order, ladder=ladder)
    matrix = encoding.shift_matrix(k)
    before, after = encoding.table([pos, pos + k], dtype=torch.float64)
    torch.testing.assert_close(matrix @ before, after, rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(2 * half, dtype=torch.float64), rtol=0, atol=1e-12)


def test_shift_matrices_compose() -> None:
    encoding = Sinusoidal(10)
    torch.testing.assert_close(
        encoding.shift_matrix(3) @ encoding.shift_matrix(4), encoding.shift_matrix(7), rtol=0, atol=1e-14
    )


def test_the_largest_wavelength_stays_below_the_papers_limit() -> None:
    assert float(Sinusoidal(512).spectrum.wavelength[-1]) == pytest.approx(2 * math.pi * 10_000 ** (510 / 512))
    assert float(Sinusoidal(512, ladder="half-1").spectrum.wavelength[-1]) == pytest.approx(2 * math.pi * 10_000)
    assert Sinusoidal(8).spectrum.wavelength.tolist() == pytest.approx([2 * math.pi * d for d in (1, 10, 100, 1000)])


# Learned


def test_learned() -> None:
    encoding = Learned(5, length=9, offset=2, std=1.0).double()
    x, at = torch.randn(2, 3, 5, dtype=torch.float64), [8, 0, 4]
    rows = encoding.embedding.weight.tolist()
    expected = [
        [[a + b for a, b in zip(x[b, s].tolist(), rows[p + 2], strict=True)] for s, p in enumerate(at)]
        for b in range(2)
    ]
    assert encoding.embed(x, at).tolist() == expected


# Relative bias


@causal_or_not
@pytest.mark.parametrize("heads", [None, HEADS])
@pytest.mark.parametrize("limit", [{"clip": 3}, {"clip": 1}, {"length": 13}, {}])
def test_relative_bias(causal: bool, heads: int | None, limit: dict[str, int]) -> None:
    encoding = randomised(RelativeBias(heads=heads, **limit)).double()
    table = encoding.table.weight.tolist()
    reach = limit.get("clip", limit.get("length", 128) - 1)
    assert len(table) == 2 * reach + 1

    def hooks(h: int) -> dict[str, Any]:
        column = h if heads else 0
        return {"bias": lambda i, j: table[oracles.clamp(j - i, -reach, reach) + reach][column]}

    check(encoding, causal, hooks)


# Shaw


@causal_or_not
@scales
@pytest.mark.parametrize("heads", [None, HEADS])
@pytest.mark.parametrize("clip", [1, 4, 16])
def test_shaw_against_a_vector_for_each_pair(causal: bool, scale: float | None, heads: int | None, clip: int) -> None:
    encoding = randomised(Shaw(HEAD_DIM, clip=clip, heads=heads)).double()
    keys, values = encoding.key_table.tolist(), encoding.value_table.tolist()

    def hooks(h: int) -> dict[str, Any]:
        a_k, a_v = (keys[h], values[h]) if heads else (keys, values)
        return {
            "key_vector": lambda d: a_k[oracles.clamp(d, -clip, clip) + clip],
            "value_vector": lambda d: a_v[oracles.clamp(d, -clip, clip) + clip],
        }

    check(encoding, causal, hooks, scale)


# T5


@causal_or_not
@scales
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (6, 8), (7, 5), (3, 2)])
def test_t5(causal: bool, scale: float | None, bidirectional: bool, buckets: int, max_distance: int) -> None:
    options = {"bidirectional": bidirectional, "buckets": buckets, "max_distance": max_distance}
    encoding = randomised(T5(HEADS, **options)).double()
    table = encoding.table.tolist()
    check(encoding, causal, lambda h: {"bias": lambda i, j: table[oracles.t5_bucket(j - i, **options)][h]}, scale)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_for_many_numbers_of_buckets(bidirectional: bool) -> None:
    far = [200, 255, 256, 257, 511, 512, 1000, 2047, 2048, 5000, 1_000_003]
    distances = [*range(-150, 151), *far, *(-d for d in far)]
    for buckets in [*range(2, 41), 64, 100, 128, 255, 256]:
        for max_distance in {buckets + 1, 128, 130, 2048, 5000}:
            if max_distance <= (buckets // 2 if bidirectional else buckets) // 2:
                continue
            options = {"bidirectional": bidirectional, "buckets": buckets, "max_distance": max_distance}
            found = T5(1, **options).bucket(torch.tensor(distances)).tolist()
            assert found == [oracles.t5_bucket(d, **options) for d in distances], options
            assert 0 <= min(found) <= max(found) < buckets


@given(st.integers(2, 300), st.integers(1, 100_000), st.booleans())
def test_t5_buckets_grow_with_distance(buckets: int, beyond: int, bidirectional: bool) -> None:
    encoding = T5(1, buckets=buckets, max_distance=buckets // 2 + beyond, bidirectional=bidirectional)
    n = torch.cat([torch.arange(400), torch.arange(400, 200_000, 997)])
    before, after = encoding.bucket(-n), encoding.bucket(n)
    assert bool((before.diff() >= 0).all())
    if bidirectional:
        assert torch.equal(after[1:], before[1:] + buckets // 2)
    else:
        assert bool((after == 0).all())
    assert int(before[-1]) == (buckets // 2 if bidirectional else buckets) - 1 or encoding.max_distance > 199_000


# ALiBi


def test_alibi_slopes_of_1_to_33_heads() -> None:
    for heads in [*range(1, 34), 48, 71, 96, 112]:
        assert list(ALiBi(heads).slopes) == pytest.approx(oracles.alibi_slopes(heads), rel=1e-12)
    assert ALiBi(12).slopes[8] == pytest.approx(0.5**0.5)
    assert ALiBi(3).slopes == (0.0625, 0.00390625, 0.25)


@masks
@scales
def test_alibi(causal: bool, scale: float | None, bidirectional: bool) -> None:
    slopes = oracles.alibi_slopes(HEADS)
    check(
        ALiBi(HEADS, bidirectional=bidirectional),
        causal,
        lambda h: {"bias": lambda i, j: -slopes[h] * abs(i - j)},
        scale,
    )


def test_alibi_without_bidirectional_is_the_papers_formula_on_both_sides() -> None:
    at = torch.arange(4)
    found = ALiBi(1, bidirectional=False).bias(torch.tensor(0), at[:, None], at[None])
    assert torch.equal(found, -(2.0**-8) * (at[:, None] - at[None]))


# KERPLE


@causal_or_not
@scales
@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple(causal: bool, scale: float | None, kernel: Any) -> None:
    r1, r2 = [0.3, 2.0, 0.02], [0.01, 0.9, 1.9]
    encoding = (
        KERPLE(HEADS, kernel=kernel)
        .double()
        .set(r1=torch.tensor(r1, dtype=torch.float64), r2=torch.tensor(r2, dtype=torch.float64))
    )
    assert encoding.r1.tolist() == pytest.approx(r1)
    assert encoding.r2.tolist() == pytest.approx(r2)
    check(encoding, causal, lambda h: {"bias": lambda i, j: oracles.kerple(j - i, kernel, r1[h], r2[h])}, scale)


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_is_drawn_from_the_authors_range_and_stays_in_it(kernel: Any) -> None:
    encoding = KERPLE(5000, kernel=kernel)
    first, second = (2.0, 1.0) if kernel == "log" else (1.0, 2.0)
    for r, top in ((encoding.r1.detach(), first), (encoding.r2.detach(), second)):
        assert float(r.min()) >= 0.0099
        assert top * 0.98 < float(r.max()) <= top * 1.0001
    with torch.no_grad():
        encoding.raw_r1.fill_(-30.0)
        encoding.raw_r2.fill_(3.0)
    assert float(encoding.r1.detach().min()) > 0
    assert 0 < float(encoding.r2.detach().max()) < (2 if kernel == "power" else 30)


def test_kerple_with_a_power_of_one_is_alibi() -> None:
    slopes = torch.tensor(ALiBi(4).slopes)
    pe = KERPLE(4, kernel="power").set(r1=slopes, r2=1.0)
    h, at = torch.arange(4)[:, None, None], torch.arange(9)
    torch.testing.assert_close(pe.bias(h, at[:, None], at[None]).detach(), ALiBi(4).bias(h, at[:, None], at[None]))


def test_kerple_draws_in_half_precision_too() -> None:
    for _ in range(20):
        KERPLE(2000, kernel="power").to(torch.bfloat16).reset_parameters()


# FIRE


@masks
@scales
@pytest.mark.parametrize("threshold", [2.0, 5.0, 512.0])
def test_fire(causal: bool, scale: float | None, bidirectional: bool, threshold: float) -> None:
    encoding = randomised(FIRE(HEADS, width=4, threshold=threshold, bidirectional=bidirectional)).double()
    options = {
        "c": float(encoding.c.detach()),
        "threshold": threshold * float(encoding.stretch.detach()),
        "first": (encoding.network[0].weight.tolist(), encoding.network[0].bias.tolist()),
        "second": (encoding.network[2].weight.tolist(), encoding.network[2].bias.tolist()),
        "bidirectional": bidirectional,
    }
    check(encoding, causal, lambda h: {"bias": lambda i, j: oracles.fire(i, j, **options)[h]}, scale)


def test_fire_starts_as_the_paper_says() -> None:
    encoding = FIRE(2)
    assert float(encoding.c.detach()) == pytest.approx(0.1)
    assert float(encoding.stretch.detach()) == 1
    assert [tuple(p.shape) for p in encoding.network.parameters()] == [(32, 1), (32,), (2, 32), (2,)]


# CoPE


@masks
@scales
@pytest.mark.parametrize("length", [1, 2, 4, 64])
def test_cope(causal: bool, scale: float | None, bidirectional: bool, length: int) -> None:
    encoding = randomised(CoPE(HEAD_DIM, length=length, bidirectional=bidirectional)).double()
    table = encoding.table.tolist()

    def contextual(query: Any, row: Any, j: Any, at: int) -> list[float]:
        return oracles.cope(query, row, j, at, table=table, bidirectional=bidirectional)

    check(encoding, causal, lambda h: {"contextual": contextual}, scale)


def test_cope_with_open_gates_counts_tokens_and_with_closed_gates_none() -> None:
    cope = CoPE(1, length=9)
    i, j = torch.tensor([[5]]), torch.arange(6)[None]
    assert cope.count(torch.full((1, 1, 1, 6), 60.0), i, j)[0, 0, 0].tolist() == pytest.approx([6, 5, 4, 3, 2, 1])
    assert cope.count(torch.full((1, 1, 1, 6), -60.0), i, j)[0, 0, 0].tolist() == pytest.approx([0] * 6)


# RoPE and xPos


@causal_or_not
@scales
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("width", "place"), [(None, "leading"), (4, "leading"), (4, "trailing"), (2, "trailing")])
@pytest.mark.parametrize("base", [10_000, 3.5])
def test_rope(causal: bool, scale: float | None, layout: Any, width: int | None, place: Any, base: float) -> None:
    encoding = RoPE(HEAD_DIM, base=base, layout=layout, rotary_dim=width, place=place)
    options = {"base": base, "layout": layout, "width": width or HEAD_DIM, "trailing": place == "trailing"}

    def turn(x: Any, at: int) -> list[float]:
        return oracles.turned(x, at, **options)

    check(encoding, causal, lambda h: {"turn_query": turn, "turn_key": turn}, scale)
    q, _, _ = vectors()
    expected = [turn(x, at) for x, at in zip(q[0, 0].tolist(), QUERIES, strict=True)]
    torch.testing.assert_close(encoding.query(q, QUERIES)[0, 0].tolist(), expected)


@causal_or_not
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("width", "place"), [(None, "leading"), (4, "trailing")])
@pytest.mark.parametrize(("scale_base", "reference"), [(512.0, 0), (16.0, 0), (16.0, 5)])
def test_xpos(causal: bool, layout: Any, width: int | None, place: Any, scale_base: float, reference: int) -> None:
    encoding = XPos(HEAD_DIM, layout=layout, rotary_dim=width, place=place, scale_base=scale_base, reference=reference)
    options = {"base": 10_000, "layout": layout, "width": width or HEAD_DIM, "trailing": place == "trailing"}

    def turn_query(x: Any, at: int) -> list[float]:
        return oracles.turned(x, at, zeta_power=(at - reference) / scale_base, **options)

    def turn_key(x: Any, at: int) -> list[float]:
        return oracles.turned(x, at, zeta_power=-(at - reference) / scale_base, **options)

    check(encoding, causal, lambda h: {"turn_query": turn_query, "turn_key": turn_key})
    _, k, _ = vectors()
    expected = [turn_key(x, at) for x, at in zip(k[0, 0].tolist(), KEYS, strict=True)]
    torch.testing.assert_close(encoding.key(k, KEYS)[0, 0].tolist(), expected)


def test_xpos_reference_does_not_change_the_product() -> None:
    q, k, v = vectors()
    one, other = (XPos(HEAD_DIM, scale_base=20.0, reference=r) for r in (0, 9))
    torch.testing.assert_close(
        attend(q, k, v, one, QUERIES, key_positions=KEYS), attend(q, k, v, other, QUERIES, key_positions=KEYS)
    )
    assert not torch.allclose(one.key(k, KEYS), other.key(k, KEYS))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_xpos_works_as_far_as_it_reaches_and_no_farther(dtype: torch.dtype) -> None:
    encoding = XPos(HEAD_DIM, reference=100)
    reach = encoding.reach(dtype)
    x = torch.ones(1, 1, 1, HEAD_DIM, dtype=dtype)
    for at in (100 + reach, 100 - reach):
        q, k = encoding.query_key(x, x, [at])
        assert bool(q.isfinite().all() & k.isfinite().all())
        # each pair's product is 2 (1·1 + 1·1); the smallest factors are nearly subnormal in float16
        product = (q.double() * k.double()).sum()
        assert float(product) == pytest.approx(HEAD_DIM, rel=0.02)
    with pytest.raises(ValueError, match=rf"{reach + 1} tokens from reference 100"):
        encoding.query(x, [101 + reach])


@given(st.integers(-(2**40), 2**40), st.booleans(), st.sampled_from(["half", "interleaved"]))
def test_inverse_undoes_query(at: int, partial: bool, layout: Any) -> None:
    encoding = RoPE(8, rotary_dim=6 if partial else None, layout=layout)
    x = torch.randn(2, 3, 1, 8, dtype=torch.float64)
    torch.testing.assert_close(encoding.inverse(encoding.query(x, [at]), [at]), x, rtol=0, atol=1e-14)
    torch.testing.assert_close(encoding.query(x, [-at]), encoding.inverse(x, [at]), rtol=0, atol=1e-14)


def test_inverse_key_undoes_key() -> None:
    x, yarn = torch.randn(2, 3, 1, 8, dtype=torch.float64), YaRN(factor=4, original_length=64)
    for encoding in (RoPE(8), XPos(8), RoPE(8, extension=yarn, layout="interleaved")):
        for hook, undo in ((encoding.key, encoding.inverse_key), (encoding.query, encoding.inverse)):
            torch.testing.assert_close(undo(hook(x, [777]), [777]), x, rtol=0, atol=1e-12)


def test_xpos_inverse_undoes_query() -> None:
    encoding, x = XPos(8, layout="interleaved"), torch.randn(2, 3, 1, 8, dtype=torch.float64)
    torch.testing.assert_close(encoding.inverse(encoding.query(x, [7000]), [7000]), x, rtol=0, atol=1e-12)


@given(st.integers(0, 2**31), st.integers(0, 4096), st.sampled_from(["half", "interleaved"]))
def test_rope_scores_depend_on_distance_and_norms_are_kept(at: int, distance: int, layout: Any) -> None:
    rope, x, y = RoPE(16, layout=layout), torch.randn(1, 16).double(), torch.randn(1, 16).double()
    far = float((rope.query(x, [at]) * rope.key(y, [at + distance])).sum())
    near = float((rope.query(x, [0]) * rope.key(y, [distance])).sum())
    assert far == pytest.approx(near, abs=1e-12)
    assert float(rope.query(x, [at]).norm()) == pytest.approx(float(x.norm()), rel=1e-14)


def test_rope_takes_its_frequencies_from_the_rotary_width() -> None:
    assert RoPE(80, rotary_dim=32).spectrum == geometric(32)
    assert RoPE(80).rotary_dim == 80


# The registry


def test_find_takes_any_case_hyphens_and_underscores() -> None:
    assert find("RELATIVE-bias") is RelativeBias
    assert find("rope") is RoPE
    with pytest.raises(ValueError, match=r"no encoding is called 'alibb', did you mean 'alibi'\?; there are nope, "):
        find("alibb")


def test_build_gives_each_what_it_asks_for() -> None:
    sizes = {"dim": 24, "heads": 4, "head_dim": 6}
    for name in ("nope", "sinusoidal", "learned", "relative_bias", "shaw", "t5", "alibi", "kerple", "fire", "cope"):
        made = build(name, **sizes)
        assert made.name == name
        for size, value in sizes.items():
            assert getattr(made, size, None) == (value if size in made.parameters_of_constructor() else None)
    for name in ("rope", "xpos"):
        made = build(name, **sizes, base=50, layout="interleaved")
        assert (made.head_dim, made.base, made.layout) == (6, 50, "interleaved")
    assert build("relative_bias", **sizes).heads == 4
    assert build("relative_bias", clip=5).heads is None


def test_names_are_unlike_and_files_are_called_after_them() -> None:
    from ropewalk import ENCODINGS

    assert len({cls.name for cls in ENCODINGS}) == len(ENCODINGS)
    assert len({cls.label for cls in ENCODINGS}) == len(ENCODINGS)
    for cls in ENCODINGS:
        if cls is not NoPE:
            assert cls.__module__ == f"ropewalk.encodings.{cls.name}"
        assert set(cls.idea) == {"en", "ja"}


def test_positions_may_be_a_list_a_tensor_or_positions() -> None:
    x = torch.randn(3, 8)
    rope = RoPE(8)
    assert torch.equal(rope.query(x, [4, 5, 6]), rope.query(x, Positions.arange(3, offset=4)))
    assert torch.equal(rope.query(x, [4, 5, 6]), rope.query(x, torch.tensor([4, 5, 6], dtype=torch.int16)))
