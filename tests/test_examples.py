"""The retellings of the three articles: they run as scripts, and their numbers are the articles'."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ropewalk import RoPE
from ropewalk.measure.compare import compare
from ropewalk.measure.decay import decay

ROOT = Path(__file__).parent.parent
ARTICLES = ROOT / "examples" / "articles"
SCRIPTS = ("rope", "from_transformer_to_roformer", "attention_is_all_you_need_3_5")
Article = Callable[[str], ModuleType]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "article.json").read_text(encoding="utf-8"))


@pytest.fixture
def article(monkeypatch: pytest.MonkeyPatch) -> Iterator[Article]:
    """Import a script as Python does when it is run: with its own folder first on the path."""
    monkeypatch.syspath_prepend(str(ARTICLES))
    yield importlib.import_module
    for name in ("retelling", *SCRIPTS):
        sys.modules.pop(name, None)


def four_digits(scores: list[float]) -> list[float]:
    return [round(score, 4) for score in scores]


def verdict_of(module: ModuleType, words: str) -> str:
    (claim,) = [claim for claim in module.main() if words in claim.said[0]]
    return claim.verdict[0]


# ---- all three --------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_runs_as_a_script_and_writes_no_file(script: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(ARTICLES / f"{script}.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = [line for line in ran.stderr.splitlines() if "C++ kernels are not there" not in line]
    assert said == []  # where there was no compiler, one line says so
    assert list(tmp_path.iterdir()) == []
    assert "記事の主張と、確かめた結果" in ran.stdout
    assert "The article's claims, and what we found" in ran.stdout
    assert "nan" not in ran.stdout.lower().split()


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_claim_has_both_languages_and_a_known_verdict(script: str, article: Article) -> None:
    module = article(script)
    retelling = article("retelling")
    claims = module.main()
    assert len(claims) >= 6
    for claim in claims:
        assert claim.verdict in (retelling.HOLDS, retelling.PARTLY, retelling.FAILS, retelling.NOT_HERE)
        for english, japanese in (claim.said, claim.measured):
            assert english
            assert japanese
            assert not any("ぁ" <= c <= "ヿ" or "一" <= c <= "鿿" for c in english), english


@pytest.mark.parametrize(
    ("script", "words", "verdict"),
    [
        ("rope", "Absolute positions", "holds"),
        ("rope", "Relative bias", "holds"),
        ("rope", "lookup inside attention", "holds"),
        ("rope", "depends on n - m", "holds"),
        ("rope", "falls smoothly", "holds in part"),
        ("rope", "property of language", "does not hold"),
        ("rope", "Long-context", "not testable here"),
        ("from_transformer_to_roformer", "Without position", "holds"),
        ("from_transformer_to_roformer", "denominators", "holds"),
        ("from_transformer_to_roformer", "the same product", "holds"),
        ("from_transformer_to_roformer", "Values", "holds"),
        ("from_transformer_to_roformer", "GLUE", "does not hold"),
        ("from_transformer_to_roformer", "512", "not testable here"),
        ("attention_is_all_you_need_3_5", "Wavelengths", "holds in part"),
        ("attention_is_all_you_need_3_5", "linear", "holds"),
        ("attention_is_all_you_need_3_5", "shuffles", "holds"),
        ("attention_is_all_you_need_3_5", "Parallel", "holds"),
        ("attention_is_all_you_need_3_5", "Learned", "not testable here"),
        ("attention_is_all_you_need_3_5", "extrapolate", "not testable here"),
    ],
)
def test_verdicts(script: str, words: str, verdict: str, article: Article) -> None:
    assert verdict_of(article(script), words) == verdict


def test_a_failed_measurement_changes_the_verdict(article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are computed: with a curve that only falls, or a shift that is not linear, they would differ."""
    rope = article("rope")
    monkeypatch.setattr(rope, "rises", lambda curve: 0)
    assert verdict_of(rope, "falls smoothly") == "holds"
    monkeypatch.setattr(rope, "random_means", lambda: (12.0, 0.1))
    assert verdict_of(rope, "property of language") == "holds"
    lecture = article("attention_is_all_you_need_3_5")
    monkeypatch.setattr(lecture, "shift_error", lambda: 0.5)
    assert verdict_of(lecture, "linear") == "does not hold"
    monkeypatch.setattr(lecture, "products_for", lambda length: length)
    assert verdict_of(lecture, "Parallel") == "does not hold"


# ---- RoPEとは？ --------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "column"), [(42, "seed_42_as_printed"), (3, "seed_3")])
def test_scores_are_the_articles_to_every_printed_digit(seed: int, column: str, article: Article) -> None:
    rope = article("rope")
    absolute, relative = rope.draw_tables(seed)
    assert absolute.embedding.weight.shape == (21, 64)
    assert relative.table.weight.shape == (41, 1)
    learned, biased, rotated = rope.absolute_scores(absolute), rope.relative_scores(relative), rope.rotary_scores()
    assert four_digits(learned) == GOLDEN["learned_absolute"][column]
    assert four_digits(biased) == GOLDEN["relative_bias"][column]
    assert four_digits(rotated) == GOLDEN["rope"]["as_printed"]
    table = compare(seed=seed).table()
    assert four_digits(table["learned"]) == four_digits(learned)
    assert four_digits(table["relative_bias"]) == four_digits(biased)
    assert four_digits(table["rope"]) == four_digits(rotated)


def test_the_four_terms_add_up_to_the_score(article: Article) -> None:
    rope = article("rope")
    absolute, _ = rope.draw_tables()
    terms = rope.four_terms(absolute, 2, 3)
    assert len(terms) == 4
    assert sum(terms.values()) == pytest.approx(rope.absolute_scores(absolute, 2, [3])[0], abs=1e-4)


def test_the_decay_curve_is_the_golden_one_and_comes_back_up(article: Article) -> None:
    curve = decay().curves[0]
    golden = GOLDEN["rope_decay_from_position_0"]
    assert list(curve.scores) == pytest.approx(golden, abs=1e-4)
    assert article("rope").rises(curve) == sum(b > a for a, b in pairwise(golden))


def test_random_vectors_are_flat_at_zero(article: Article) -> None:
    mean, error = article("rope").random_means(pairs=500)
    assert abs(mean) < 4 * error
    assert 0.2 < error < 0.6  # √64 / √500 is 0.36


def test_unfinished_pairs_against_counting_by_hand(article: Article) -> None:
    rope = article("rope")
    by_hand = sum(2 * math.pi * 10_000 ** (2 * i / 128) > 4096 for i in range(64))
    assert rope.unfinished_pairs() == (by_hand, 64) == (18, 64)
    assert rope.unfinished_pairs(length=100_000) == (0, 64)


# ---- From the Transformer to RoFormer --------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "head_dim", "base"), [(1, 2, 10_000.0), (16, 8, 10_000.0), (5, 64, 500_000.0)])
def test_the_cache_has_its_shape_and_its_values(length: int, head_dim: int, base: float, article: Article) -> None:
    cos, sin = article("from_transformer_to_roformer").build_cache(length, head_dim, "cpu", base)
    assert cos.shape == sin.shape == (1, 1, length, head_dim // 2)
    for position in range(length):
        for pair in range(head_dim // 2):
            angle = position * base ** (-2 * pair / head_dim)
            assert float(cos[0, 0, position, pair]) == pytest.approx(math.cos(angle), abs=1e-6)
            assert float(sin[0, 0, position, pair]) == pytest.approx(math.sin(angle), abs=1e-6)


def test_the_application_pairs_neighbours(article: Article) -> None:
    roformer = article("from_transformer_to_roformer")
    x = torch.randn(2, 3, 16, 8, generator=torch.Generator().manual_seed(0))
    turned = roformer.apply_rope(x, *roformer.build_cache(16, 8))
    assert torch.equal(turned, RoPE(head_dim=8, layout="interleaved").query(x, torch.arange(16)))
    as_complex = torch.view_as_complex(x.double().unflatten(-1, (4, 2)))  # a neighbour is the imaginary part
    angle = torch.arange(16.0, dtype=torch.float64)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    by_hand = torch.view_as_real(as_complex * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    torch.testing.assert_close(turned.double(), by_hand, atol=1e-6, rtol=0)
    assert torch.equal(turned[:, :, 0], x[:, :, 0])  # nothing turns at position 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0, "head_dim": 8}, "長さは 1 以上.*the length is 1 or more, got 0"),
        ({"length": -3, "head_dim": 8}, "got -3"),
        ({"length": 4, "head_dim": 7}, "head_dim は正の偶数.*positive and even.*got 7"),
        ({"length": 4, "head_dim": 0}, "positive and even.*got 0"),
        ({"length": 4, "head_dim": -2}, "positive and even.*got -2"),
        ({"length": 4, "head_dim": 8, "base": 1}, "base は 1 より大きい.*above 1, got 1"),
        ({"length": 4, "head_dim": 8, "base": 0.5}, "above 1, got 0.5"),
        ({"length": 4, "head_dim": 8, "base": float("nan")}, "above 1, got nan"),
    ],
)
def test_the_cache_refuses(arguments: dict[str, float], message: str, article: Article) -> None:
    with pytest.raises(ValueError, match=message):
        article("from_transformer_to_roformer").build_cache(**arguments)


@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        ((1, 2, 4, 7), (1, 1, 4, 4), (1, 1, 4, 4), "最後の次元は偶数.*even, got 7"),
        ((1, 2, 4, 8), (1, 1, 4, 4), (1, 1, 4, 3), "cos と sin の形が違います.*different shapes"),
        ((1, 2, 4, 8), (1, 1, 4, 4), (1, 1, 5, 4), "different shapes"),
        ((1, 2, 4, 8), (1, 1, 5, 4), (1, 1, 5, 4), "x と合いません.*do not match"),
        ((1, 2, 4, 8), (1, 1, 4, 2), (1, 1, 4, 2), "do not match"),
        ((1, 2, 4, 8), (4, 4), (4, 4), "do not match"),
        ((2, 4, 8), (1, 1, 4, 4), (1, 1, 4, 4), "four axes"),
    ],
)
def test_the_application_refuses(
    x: tuple[int, ...], cos: tuple[int, ...], sin: tuple[int, ...], message: str, article: Article
) -> None:
    with pytest.raises(ValueError, match=message):
        article("from_transformer_to_roformer").apply_rope(torch.ones(x), torch.ones(cos), torch.ones(sin))


def test_the_worked_example_and_the_three_ways_of_writing_the_product(article: Article) -> None:
    roformer = article("from_transformer_to_roformer")
    assert roformer.denominators() == pytest.approx([1, 10, 100, 1000], rel=1e-12)
    random = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, generator=random, dtype=torch.float64)
    matrix = torch.zeros(8, 8, dtype=torch.float64)  # R₍ₙ₋ₘ₎, entry by entry
    for pair in range(4):
        angle = (3 - 7) * 10_000 ** (-2 * pair / 8)
        block = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
    ways = roformer.both_ways(7, 3)
    assert len(ways) == 3
    assert list(ways.values()) == pytest.approx([float(q @ matrix @ k)] * 3, abs=1e-6)


def test_rotated_values_would_leak_the_absolute_position(article: Article) -> None:
    roformer = article("from_transformer_to_roformer")
    assert roformer.shift_of_output(turn_value=False) < 1e-12
    assert roformer.shift_of_output(turn_value=True) > 0.1
    assert roformer.cached_step() < 1e-12


# ---- §3.5 of Attention Is All You Need ----------------------------------------------------------------------


@pytest.mark.parametrize("dim", [8, 64, 512])
def test_the_longest_wave_falls_short_of_the_limit(dim: int, article: Article) -> None:
    shortest, longest, uneven = article("attention_is_all_you_need_3_5").wavelengths(dim)
    assert shortest == pytest.approx(2 * math.pi, rel=1e-14)
    assert longest == pytest.approx(2 * math.pi * 10_000 ** ((dim - 2) / dim), rel=1e-12)
    assert longest < 2 * math.pi * 10_000
    assert uneven < 1e-12


def test_the_shift_is_linear_and_shuffles_are_seen_only_with_position(article: Article) -> None:
    lecture = article("attention_is_all_you_need_3_5")
    assert lecture.shift_error(positions=200, shifts=(1, 9, 300)) < 1e-12
    others = lecture.shuffles()
    assert len({*others, lecture.SENTENCE}) == 9
    assert all(sorted(other.split()) == sorted(lecture.SENTENCE.split()) for other in others)
    assert lecture.told_apart(others, "nope") == [False] * 8
    assert lecture.told_apart(others, "sinusoidal") == [True] * 8


def test_matrix_products_do_not_grow_with_the_length(article: Article) -> None:
    lecture = article("attention_is_all_you_need_3_5")
    assert lecture.products_for(8) == lecture.products_for(512) > 0
    with lecture.CountProducts() as count:  # the counter does count
        for _ in range(3):
            torch.ones(2, 2) @ torch.ones(2, 2)
    assert count.products == 3
    assert lecture.far_row() < 1e-12
