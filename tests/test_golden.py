"""Numbers that come from elsewhere: 50-digit arithmetic, and the article that started the project."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from helpers import golden
from ropewalk import RoPE, cos_sin, geometric
from ropewalk.measure.compare import compare
from ropewalk.measure.decay import decay

ANGLES = golden("angles.json")
ARTICLE = golden("article.json")
PLAIN = [c for c in golden("frequencies.json")["cases"] if "rope_scaling" not in c["config"]]


def test_angles_has_every_row() -> None:
    assert ANGLES["columns"] == ["base", "head_dim", "position", "pair", "cos", "sin"]
    assert len(ANGLES["rows"]) == 225


@pytest.mark.parametrize(("base", "head_dim"), sorted({(row[0], row[1]) for row in ANGLES["rows"]}))
def test_angles_in_float32_and_float64(base: int, head_dim: int) -> None:
    rows = [row[2:] for row in ANGLES["rows"] if row[:2] == [base, head_dim]]
    assert len(rows) == 45
    at = torch.tensor(sorted({row[0] for row in rows}))
    spectrum = geometric(head_dim, base)
    for dtype, error in ((torch.float32, 6e-8), (torch.float64, 1e-9)):
        cos, sin = cos_sin(at, spectrum, dtype=dtype)
        for position, pair, wanted_cos, wanted_sin in rows:
            where = at.tolist().index(position), pair
            assert abs(float(cos[where].double()) - wanted_cos) <= error
            assert abs(float(sin[where].double()) - wanted_sin) <= error


def test_angles_in_float64_are_as_good_as_frequencies_counted_in_parts_of_a_turn() -> None:
    """Sharper than asked: a frequency is rounded to 2⁻⁶⁴ turns, half of which every token may add."""
    for base, head_dim, position, pair, wanted_cos, wanted_sin in ANGLES["rows"]:
        cos, sin = cos_sin([position], geometric(head_dim, base), dtype=torch.float64)
        error = position * 2**-65 * 2 * math.pi + 2e-15
        assert abs(float(cos[0, pair]) - wanted_cos) < error
        assert abs(float(sin[0, pair]) - wanted_sin) < error


@pytest.mark.parametrize("case", PLAIN, ids=[c["name"] for c in PLAIN])
def test_frequencies_of_plain_models(case: dict) -> None:
    config = case["config"]
    width = int(config["head_dim"] * config.get("partial_rotary_factor", 1))
    rope = RoPE(config["head_dim"], base=config["rope_theta"], rotary_dim=width)
    assert rope.spectrum.inv_freq.tolist() == pytest.approx(case["inv_freq"], rel=1e-14)
    assert rope.spectrum.attention_factor == case["attention_factor"]
    assert rope.spectrum.softmax_multiplier == case["softmax_multiplier"]


def test_there_are_plain_models_with_partial_rotation() -> None:
    assert len(PLAIN) == 3
    assert any("partial_rotary_factor" in c["config"] for c in PLAIN)


def printed(seed: int) -> Iterator[tuple[str, list[float]]]:
    key = "seed_42_as_printed" if seed == 42 else f"seed_{seed}"
    yield "learned", ARTICLE["learned_absolute"][key]
    yield "relative_bias", ARTICLE["relative_bias"][key]
    yield "rope", ARTICLE["rope"]["as_printed"]


@pytest.mark.parametrize("seed", [42, 3])
def test_the_articles_scores_to_every_printed_digit(seed: int) -> None:
    setup = ARTICLE["setup"]
    result = compare(dim=setup["dim"], query=setup["query_position"], keys=setup["key_positions"], seed=seed)
    table = result.table()
    for name, scores in printed(seed):
        assert [round(s, 4) for s in table[name]] == scores
    assert [row.distance for row in result.rows[:3]] == setup["distances"]
    assert compare(seed=seed).table() == table  # the article's settings are the defaults


@pytest.mark.parametrize("name", ["learned", "relative_bias", "rope"])
def test_the_articles_scores_do_not_depend_on_what_else_is_asked_for(name: str) -> None:
    assert compare(encodings=[name]).table()[name] == dict(compare().table())[name]
    assert compare(encodings=["xpos", name]).table()[name] == compare().table()[name]


def test_the_articles_curve() -> None:
    curve = decay().curves[0]
    expected = ARTICLE["rope_decay_from_position_0"]
    assert len(expected) == 101
    assert curve.encoding == "rope"
    assert list(curve.scores) == pytest.approx(expected, abs=2e-5)  # float32 products of 64 channels
    assert curve.beyond[96] == pytest.approx(max(expected[97:]), abs=2e-5)
    assert curve.rebound is not None
    assert curve.rebound.high - curve.rebound.low == pytest.approx(largest_rebound(expected), abs=4e-5)


def largest_rebound(scores: list[float]) -> float:
    return max(scores[b] - scores[a] for a in range(len(scores)) for b in range(a, len(scores)))
