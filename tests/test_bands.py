"""Bands: the axis and the frequency of every pair, against oracles written apart and against transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ropewalk import NTK, Bands, LongRoPE, PerPair, Positions, RoPE, Sinusoidal, Spectrum, XPos, YaRN, geometric
from ropewalk.extensions import Extension

LAYOUTS = ["half", "interleaved"]
ONE_LADDER = [Bands.chunked((1, 3, 2)), Bands.interleaved((2, 2, 2)), Bands.ernie((2, 2, 2)), Bands("WTTHTW")]
OWN_LADDERS = [
    Bands.axial((4, 6, 2)),
    Bands.axial((6, 6)),
    Bands.axial((6, 6), halves="each"),
    Bands.axial((8, 2, 2), "WHT", halves="each"),
    Bands("WHWHWH", "HW", rungs="each"),
    Bands("WWWHHH", "HW", rungs="each", halves="each"),
    Bands("HHHWWW", "HW", rungs="dealt"),
    Bands.chunked((2, 4), "HW"),
]
ALL = ONE_LADDER + OWN_LADDERS


def ids(bands: list[Bands]) -> list[str]:
    return [f"{b.string()}-{b.rungs}-{b.halves}" for b in bands]


def turned_pairs(x: Tensor, bands: Bands, base: float, positions: list[int], layout: str) -> Tensor:
    """One vector turned by hand, a complex number a pair: its channels and its frequency are looked up in the rules."""
    width, n = len(x), len(bands.names)
    out = x.clone()
    for pair, axis in enumerate(bands.axes):
        mine = [p for p, a in enumerate(bands.axes) if a == axis]
        rung, of = {
            "one": (pair, width),
            "each": (mine.index(pair), 2 * len(mine)),
            "dealt": (n * mine.index(pair) + axis, width),
        }[bands.rungs]
        if layout == "interleaved":
            a, b = 2 * pair, 2 * pair + 1
        elif bands.halves == "whole":
            a, b = pair, pair + width // 2
        else:
            a = 2 * mine[0] + mine.index(pair)
            b = a + len(mine)
        angle = positions[axis] * base ** (-2 * rung / of)
        z = complex(x[a], x[b]) * complex(math.cos(angle), math.sin(angle))
        out[a], out[b] = z.real, z.imag
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bands", ALL, ids=ids(ALL))
def test_rotation_is_what_the_rules_say(bands: Bands, layout: Any) -> None:
    x = torch.randn(12, dtype=torch.float64)
    place = [7, 1_000, 31][: len(bands.names)]
    pos = Positions(torch.tensor(place)[:, None, None])
    rope = RoPE(12, base=500.0, layout=layout, bands=bands)
    expected = turned_pairs(x, bands, 500.0, place, layout)
    torch.testing.assert_close(rope.query(x[None], pos)[0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(rope.key(x[None], pos)[0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(rope.inverse(expected[None], pos)[0], x, rtol=0, atol=1e-12)
    # partial widths, before and after channels that stay
    wide = torch.cat((torch.ones(3, dtype=torch.float64), x))
    trailing = RoPE(15, base=500.0, layout=layout, rotary_dim=12, place="trailing", bands=bands).query(wide[None], pos)
    torch.testing.assert_close(trailing[0], torch.cat((torch.ones(3), expected)).double(), rtol=0, atol=1e-12)
    wide = torch.cat((x, torch.ones(3, dtype=torch.float64)))
    leading = RoPE(15, base=500.0, layout=layout, rotary_dim=12, bands=bands).query(wide[None], pos)
    torch.testing.assert_close(leading[0], torch.cat((expected, torch.ones(3))).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bands", ALL, ids=ids(ALL))
def test_the_product_knows_distances_only_and_norms_are_kept(bands: Bands, layout: Any) -> None:
    """The cheapest black-box test of a layout: not a rotation if the norm changes, not relative if the product does."""
    rope = RoPE(12, layout=layout, bands=bands)
    q, k = torch.randn(2, 1, 12, dtype=torch.float64)
    n = len(bands.names)
    products = []
    for shift in ([0] * n, [3, 100, 7][:n], [-5, 1, 1_000_003][:n]):
        at = [
            torch.tensor(here)[:n, None, None] + torch.tensor(shift)[:, None, None] for here in ([2, 9, 4], [5, 5, 5])
        ]
        turned = rope.query(q, Positions(at[0])), rope.key(k, Positions(at[1]))
        torch.testing.assert_close(turned[0].norm(), q.norm())
        products.append((turned[0] @ turned[1].T).item())
    assert products == pytest.approx([products[0]] * 3, abs=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bands", ALL, ids=ids(ALL))
def test_moving_along_an_axis_changes_its_band_only(bands: Bands, layout: Any) -> None:
    sizes = (2, 3, 4)[3 - len(bands.names) :]  # never square
    grid = Positions.grid(*sizes)
    out = RoPE(12, layout=layout, bands=bands).query(torch.ones(math.prod(sizes), 12), grid)
    channels = bands.channels(layout)
    for one in range(len(grid)):
        for other in range(one):
            moved = {bands.names[a] for a in range(grid.axes) if grid.ids[a, 0, one] != grid.ids[a, 0, other]}
            differs = (out[one] != out[other]).tolist()
            assert {c for c, d in zip(channels, differs, strict=True) if d} == moved & set(channels)


@pytest.mark.parametrize("precision", ["exact", "float32"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bands", ONE_LADDER, ids=ids(ONE_LADDER))
def test_text_is_placed_as_without_bands_to_the_bit(
    bands: Bands, layout: Any, dtype: torch.dtype, precision: Any
) -> None:
    q = torch.randn(2, 4, 9, 16).to(dtype)
    yarn = YaRN(factor=4, original_length=64)
    options = {"layout": layout, "rotary_dim": 12, "extension": yarn, "precision": precision}
    plain, banded = RoPE(16, **options), RoPE(16, bands=bands, **options)
    assert banded.spectrum == plain.spectrum
    assert banded.softmax_multiplier == plain.softmax_multiplier
    row = torch.arange(9) + 1_000_003
    rows = torch.stack((row, row + 5))
    for one in (row, rows):
        expected = plain.query(q, one)
        several = one.expand(3, 1 if one.dim() == 1 else 2, 9)
        assert torch.equal(banded.query(q, one), expected)
        assert torch.equal(banded.query(q, several), expected)
        assert torch.equal(banded.key(q, one.reshape(1, -1, 9)), plain.key(q, one))


def test_batches_may_stand_elsewhere() -> None:
    rope = RoPE(12, bands=Bands.interleaved((2, 2, 2)))
    pos = torch.randint(0, 99, (3, 2, 5))
    q = torch.randn(2, 4, 5, 12)
    out = rope.query(q, pos)
    for row in range(2):
        assert torch.equal(out[row], rope.query(q[row], pos[:, row : row + 1]))
    with pytest.raises(ValueError, match="batch size 3, the positions have 2 rows"):
        rope.query(torch.randn(3, 4, 5, 12), pos)
    with pytest.raises(ValueError, match="there are 5 positions"):
        rope.query(torch.randn(2, 4, 15, 12), pos)  # (3, N) is N tokens, not 3N


# The strings


def test_strings_of_known_models() -> None:
    assert Bands.chunked((16, 24, 24)).string() == "T" * 16 + "H" * 24 + "W" * 24  # Qwen2-VL
    assert Bands.interleaved((24, 20, 20)).string() == "THW" * 20 + "TTTT"  # Qwen3-VL
    assert Bands.interleaved((11, 11, 10)).string() == "THW" * 10 + "TH"  # Qwen3.5
    assert Bands.ernie((22, 22, 20)).string() == "HW" * 22 + "T" * 20  # ERNIE 4.5 VL
    assert Bands.axial(72).channels("half") == "H" * 18 + "W" * 18 + "H" * 18 + "W" * 18  # Qwen2-VL's vision
    assert Bands.axial(72, halves="each").channels("half") == "H" * 36 + "W" * 36  # Gemma 4's
    assert Bands.axial((16, 56, 56)).channels("interleaved") == "T" * 16 + "H" * 56 + "W" * 56  # FLUX


def test_one_split_everywhere() -> None:
    assert Bands.axial(64, "THW").widths == (24, 20, 20)
    assert Bands.axial(128, "THW").widths == (44, 42, 42)
    assert Bands.chunked((1, 2)).widths is None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3).filter(any))
def test_chunked_gives_each_axis_its_section(sections: list[int]) -> None:
    bands = Bands.chunked(sections)
    assert bands.string() == "".join(c * n for c, n in zip("THW", sections, strict=False))
    assert bands.counts() == (*sections, *[0] * (3 - len(sections)))


@given(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)).filter(any))
def test_interleaved_gives_each_axis_its_section_or_refuses(sections: tuple[int, int, int]) -> None:
    pairs, (_, h, w) = sum(sections), sections
    rule = ["H" if i % 3 == 1 and i < 3 * h else "W" if i % 3 == 2 and i < 3 * w else "T" for i in range(pairs)]
    if rule.count("H") == h and rule.count("W") == w:
        bands = Bands.interleaved(sections)
        assert bands.string() == "".join(rule)
        assert bands.counts() == sections
    else:
        with pytest.raises(
            ValueError, match=rf"of {pairs} pairs only {len(range(1 if rule.count('H') != h else 2, pairs, 3))} "
        ):
            Bands.interleaved(sections)


@given(st.integers(1, 20), st.integers(0, 20))
def test_ernie_alternates_and_ends_with_time(hw: int, t: int) -> None:
    assert Bands.ernie((hw, hw, t)).counts() == (t, hw, hw)


@given(st.text("THW", min_size=1, max_size=40))
def test_a_string_says_it_all(string: str) -> None:
    bands = Bands(string)
    assert bands.string() == string
    assert eval(repr(bands), {"Bands": Bands}) == bands
    assert hash(Bands(string)) == hash(bands)
    assert Bands(bands.axes) == bands


def banded(string: str, names: str, sizes: tuple[int, ...]) -> Tensor:
    return RoPE(8, bands=Bands(string, names)).query(torch.ones(6, 8), Positions.grid(*sizes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bands.chunked((16, -1, 24)), r"0 or more, got -1 in \[16, -1, 24\]"),
        (lambda: Bands.chunked((16, 24.0, 24)), r"whole number of pairs, 0 or more, got 24\.0"),
        (lambda: Bands.chunked((True, 2)), "got True"),
        (lambda: Bands.chunked((1, 2, 3, 4)), "4 sections for the 3 axes 'THW'"),
        (lambda: Bands.interleaved((0, 6, 0)), "of 6 pairs only 2 are at places 1, 4, … .* H, which asks for 6"),
        (lambda: Bands.interleaved((1, 2), "T"), "2 sections for the 1 axes 'T'"),
        (lambda: Bands.ernie((22, 20, 22)), r"as many pairs for H as for W, got \(22, 20, 22\)"),
        (lambda: Bands.ernie((22, 22)), r"\(H, W, T\)"),
        (lambda: Bands.axial((4, 5)), "even and at least 2, got 5 for W"),
        (lambda: Bands.axial((4, 0)), "even and at least 2, got 0 for W"),
        (lambda: Bands.axial((4, 4), "THW"), "2 numbers for the 3 axes 'THW'"),
        (lambda: Bands.axial((2, 2, 2, 2)), "a letter for each of 4 axes"),
        (lambda: Bands.axial(63), "even and at least 4, got 63"),
        (lambda: Bands.axial(2), "for 2 axes is even and at least 4, got 2"),
        (lambda: Bands(""), "at least one pair"),
        (lambda: Bands("THX"), "axis 'X' of 'THX' is not among the names 'THW'"),
        (lambda: Bands([0, 3]), "'THW' names axes 0 to 2, got axis 3"),
        (lambda: Bands([0, -1]), "got axis -1"),
        (lambda: Bands("TT", "TT"), "each different"),
        (lambda: Bands("HHW", "HW", rungs="dealt"), r"dealt evenly, but the axes 'HW' have \(2, 1\) pairs"),
        (lambda: Bands("HWH", "HW", halves="each"), "side by side, got 'HWH'"),
        (lambda: Bands("HW", "HW", rungs="both"), "rungs is"),
        (lambda: Bands("HW", "HW", halves="both"), "halves is"),
        (lambda: RoPE(128, bands=Bands.chunked((16, 24, 20))), "60 pairs, but head_dim=128 has 64"),
        (lambda: RoPE(128, rotary_dim=64, bands=Bands.chunked((16, 24, 24))), "64 pairs, but rotary_dim=64 has 32"),
        (lambda: Sinusoidal(10, bands=Bands.axial((4, 4))), "4 pairs, but dim=10 has 5"),
        (lambda: Sinusoidal(9, bands=Bands.axial((4, 4))), "4 pairs, but dim=9 has 4.5"),
        (lambda: RoPE(8).query(torch.ones(6, 8), Positions.grid(2, 3)), "2 axes: give bands"),
        (lambda: banded("THWT", "THW", (2, 3)), "name 3 axes, 'THW', but the positions have 2"),
        (lambda: banded("HWHW", "HW", (1, 2, 3)), "name 2 axes, 'HW', but the positions have 3"),
        (lambda: Sinusoidal(8).embed(torch.ones(6, 8), Positions.grid(2, 3)), "2 axes: give bands"),
        (lambda: XPos(8).query(torch.ones(6, 8), Positions.grid(2, 3)), "2 axes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# Frequencies


@pytest.mark.parametrize("precision", ["exact", "float32"])
def test_own_ladders_are_those_of_their_widths(precision: Any) -> None:
    spectrum = Bands.axial((4, 6, 2)).spectrum(500.0, precision=precision)
    parts = [geometric(width, 500.0, precision=precision) for width in (4, 6, 2)]
    assert spectrum.radians == sum((p.radians for p in parts), ())
    assert spectrum.turns == sum((p.turns for p in parts), ())
    assert Bands.axial((8,)).spectrum() == geometric(8)
    assert Bands("HHWW", "HW", rungs="dealt").spectrum(16.0).radians == (1.0, 0.25, 0.5, 0.125)


def test_extensions_apply_to_each_ladder() -> None:
    yarn = YaRN(factor=4, original_length=64)
    both = Bands.axial((8, 12)).spectrum(extension=yarn)
    assert both.radians == yarn.spectrum(8).radians + yarn.spectrum(12).radians
    assert both.attention_factor == yarn.spectrum(8).attention_factor != 1
    assert RoPE(20, bands=Bands.axial((8, 12)), extension=yarn).spectrum == both
    assert (
        Bands.axial((8, 8)).spectrum(extension=PerPair([1, 2, 3, 4])).radians[4:]
        == PerPair([1, 2, 3, 4]).spectrum(8).radians
    )


def test_extensions_that_do_not_fit_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="exponent"):
        Bands.axial((2, 10)).spectrum(extension=NTK(2))
    with pytest.raises(ValueError, match="4 factors for 6 pairs"):
        Bands.axial((8, 12)).spectrum(extension=PerPair([1, 2, 3, 4]))
    start = LongRoPE([1.0] * 6, [2.0] * 6, original_length=64, start_tokens=3)
    with pytest.raises(ValueError, match="start tokens"):
        RoPE(12, bands=Bands.chunked((2, 2, 2)), extension=start, at_length=99)

    @dataclass(frozen=True)
    class Uneven(Extension):
        def spectrum(self, width: int, base: float = 1e4, **more: Any) -> Spectrum:
            return Spectrum(geometric(width, base).radians, attention_factor=float(width))

    with pytest.raises(ValueError, match=r"different attention_factor \(8.0 and 12.0\)"):
        Bands.axial((8, 12)).spectrum(extension=Uneven())
    assert Bands.axial((8, 8)).spectrum(extension=Uneven()).attention_factor == 8


@pytest.mark.parametrize("cls", [RoPE, XPos])
def test_inverses_undo_with_any_multiplier(cls: Any) -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    pos = torch.arange(5) + 30
    options: Any = {"extension": YaRN(factor=8, original_length=16)} if cls is RoPE else {"reference": 10}
    rope = cls(8, **options)
    torch.testing.assert_close(rope.inverse(rope.query(x, pos), pos), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(rope.inverse_key(rope.key(x, pos), pos), x, rtol=0, atol=1e-12)


# Against transformers, bit for bit


def tables_of(rope: RoPE, pos: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each channel that turns, read off what the rotation does to unit vectors."""
    width = rope.head_dim
    one = torch.eye(width)[:, None].expand(width, pos.shape[-1], width)
    turned = rope.query(one, Positions(pos) if pos.dim() == 3 else pos)  # (unit vector, token, channel)
    cos = turned.diagonal(dim1=0, dim2=2)
    return cos, (turned**2).sum(0).sub(cos**2).clamp(min=0).sqrt()


ERNIE = "Ernie4_5_VLMoeText"


def text_config(module: str, cls: str, sections: list[int], **more: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="compares with the installed transformers")
    config = getattr(__import__(f"transformers.models.{module}", fromlist=[cls]), cls)
    assert transformers
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections, **more}
    return config(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=parameters)


@pytest.mark.parametrize(
    ("module", "rotary", "config", "sections", "build", "layout"),
    [
        ("qwen2_vl", "Qwen2VLRotaryEmbedding", "Qwen2VLTextConfig", [16, 24, 24], Bands.chunked, "half"),
        ("qwen3_vl", "Qwen3VLTextRotaryEmbedding", "Qwen3VLTextConfig", [24, 20, 20], Bands.interleaved, "half"),
        ("ernie4_5_vl_moe", f"{ERNIE}RotaryEmbedding", f"{ERNIE}Config", [22, 22, 20], Bands.ernie, "interleaved"),
    ],
)  # fmt: skip
def test_text_of_transformers_bit_for_bit(
    module: str, rotary: str, config: str, sections: list[int], build: Any, layout: Any
) -> None:
    made = text_config(module, config, sections, mrope_interleaved=True)
    theirs = getattr(__import__(f"transformers.models.{module}.modeling_{module}", fromlist=[rotary]), rotary)(made)
    pos = torch.stack([torch.randint(0, 4_000, (2, 7)) for _ in range(3)])
    cos, sin = theirs(torch.zeros(1, dtype=torch.float32), pos)
    rope = RoPE(128, base=1e6, layout=layout, bands=build(sections), precision="float32")
    q = torch.randn(2, 3, 7, 128)
    if layout == "half":
        turned = torch.cat((-q[..., 64:], q[..., :64]), dim=-1)
    else:
        turned = torch.stack((-q[..., 1::2], q[..., 0::2]), dim=-1).flatten(-2)
    expected = q * cos[:, None] + turned * sin[:, None]
    torch.testing.assert_close(rope.query(q, pos), expected, rtol=0, atol=1e-6)
    tables = rope._tables(q, Positions(pos), 1)
    spread = (lambda t: torch.cat((t, t), -1)) if layout == "half" else (lambda t: t.repeat_interleave(2, -1))
    assert all(torch.equal(spread(ours), t) for ours, t in zip(tables, (cos, sin), strict=True))


VISION = [
    ("qwen2_vl", "Qwen2VLVisionRotaryEmbedding", Bands.axial(72), "half"),
    ("kimi_k25", "Kimi_K25VisionRotaryEmbedding", Bands("WH" * 18, "HW", rungs="each"), "half"),
    ("pixtral", "PixtralVisionRotaryEmbedding", Bands("H" * 18 + "W" * 18, "HW", rungs="dealt"), "half"),
    ("gemma4", "Gemma4VisionRotaryEmbedding", Bands.axial(72, halves="each"), "half"),
]


@pytest.mark.parametrize(("module", "rotary", "bands", "layout"), VISION, ids=[v[0] for v in VISION])
def test_vision_of_transformers_bit_for_bit(module: str, rotary: str, bands: Bands, layout: Any) -> None:
    pytest.importorskip("transformers", reason="compares with the installed transformers")
    cls = getattr(__import__(f"transformers.models.{module}.modeling_{module}", fromlist=[rotary]), rotary)
    config = type("Config", (), {"rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}, "head_dim": 72})()
    theirs = cls(config)
    grid = Positions.grid(3, 5)
    last = grid.ids[:, 0].T  # (tokens, 2)
    there = {"gemma4": last[None], "pixtral": last}.get(module, last)
    args = (torch.zeros(1), there)
    cos, sin = theirs(*args)
    cos, sin = cos.reshape(15, 72), sin.reshape(15, 72)
    rope = RoPE(72, bands=bands, layout=layout, precision="float32")
    assert rope.spectrum.radians[0] == 1
    ours = tables_of(rope, grid.ids)
    assert torch.equal(ours[0], cos)
    torch.testing.assert_close(ours[1], sin.abs(), rtol=0, atol=1e-3)  # the root loses digits; the signs follow
    q = torch.randn(1, 2, 15, 72)
    if module == "gemma4":
        modeling = __import__("transformers.models.gemma4.modeling_gemma4", fromlist=["apply_multidimensional_rope"])
        expected = modeling.apply_multidimensional_rope(q.transpose(1, 2), cos[None], sin[None], last[None]).transpose(
            1, 2
        )
    else:
        expected = q * cos + torch.cat((-q[..., 36:], q[..., :36]), dim=-1) * sin
    torch.testing.assert_close(rope.query(q, grid), expected, rtol=0, atol=1e-6)


# Sinusoids on a grid


@pytest.mark.parametrize("order", ["interleaved", "concatenated", "cosine_first"])
@pytest.mark.parametrize("ladder", ["paper", "half-1"])
def test_axial_sinusoids_are_a_table_for_each_axis_side_by_side(order: Any, ladder: Any) -> None:
    widths = (6, 4, 8)
    grid = Positions.grid(2, 3, 4)
    options = {"order": order, "ladder": ladder, "base": 100.0}
    table = Sinusoidal(18, bands=Bands.axial(widths, halves="each"), **options).table(grid)
    parts = [Sinusoidal(w, **options).table(grid.ids[axis, 0]) for axis, w in enumerate(widths)]
    assert torch.equal(table, torch.cat(parts, dim=-1))


def test_axial_sinusoids_by_hand() -> None:
    """Columns first, a half of sines and cosines for each axis: the table of MAE."""
    n, base, h, w = 4, 10_000.0, 2, 3
    pe = Sinusoidal(4 * n, order="concatenated", bands=Bands("W" * n + "H" * n, "HW", rungs="each", halves="each"))
    expected = []
    for y in range(h):
        for x in range(w):
            row: list[float] = []
            for at in (x, y):
                waves = [at * base ** (-i / n) for i in range(n)]
                row += [math.sin(a) for a in waves] + [math.cos(a) for a in waves]
            expected.append(row)
    grid = Positions.grid(h, w)
    torch.testing.assert_close(pe.table(grid), torch.tensor(expected), rtol=0, atol=1e-6)
    x = torch.randn(2, 6, 16)
    assert torch.equal(pe.embed(x, grid), x * 4 + pe.table(grid))
    assert pe.embed(x[0], grid).shape == (6, 16)


@pytest.mark.parametrize("halves", ["whole", "each"])
@pytest.mark.parametrize("order", ["interleaved", "concatenated", "cosine_first"])
def test_axial_sinusoids_shift_by_a_matrix_along_each_axis(order: Any, halves: Any) -> None:
    pe = Sinusoidal(12, order=order, bands=Bands.axial((4, 8), halves=halves))
    matrix = pe.shift_matrix((3, -2))
    here = pe.table(Positions([[[5]], [[9]]]), dtype=torch.float64)[0]
    there = pe.table(Positions([[[8]], [[7]]]), dtype=torch.float64)[0]
    torch.testing.assert_close(matrix @ here, there, rtol=0, atol=1e-12)
    assert torch.equal(pe.shift_matrix(3), pe.shift_matrix((3, 3)))
