"""The three experiments, against numbers worked out apart from them. The article's numbers are in test_golden.py."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import oracles
from ropewalk import ENCODINGS, Sinusoidal
from ropewalk.measure.compare import compare, pair_of_vectors
from ropewalk.measure.decay import decay
from ropewalk.measure.order import PAIRS, order, tokens
from ropewalk.measure.panel import panel, raw_scores
from ropewalk.positions import Positions

NAMES = [cls.name for cls in ENCODINGS]


# Panel


def test_panel_holds_one_of_each_in_teaching_order() -> None:
    drawn = panel(dim=8, length=5, seed=0)
    assert list(drawn) == NAMES
    assert not any(p.requires_grad for e in drawn.values() for p in e.parameters())
    assert all(getattr(e, "heads", None) in (None, 1) for e in drawn.values())
    assert not any(e.causal_only for e in drawn.values())
    assert drawn["rope"].layout == "interleaved"
    assert drawn["sinusoidal"].embedding_scale == 1
    assert list(panel(dim=8, length=5, seed=0, names=["xpos", "nope"])) == ["xpos", "nope"]


def test_a_choice_or_the_seed_of_others_never_changes_a_number() -> None:
    for name in NAMES:
        alone, among = panel(dim=8, length=5, seed=3, names=[name])[name], panel(dim=8, length=5, seed=3)[name]
        for one, other in zip(alone.parameters(), among.parameters(), strict=True):
            assert torch.equal(one, other)
    one, other = (panel(dim=8, length=5, seed=s)["learned"].embedding.weight for s in (3, 4))
    assert not torch.equal(one, other)


def test_raw_scores_are_the_product_without_scale() -> None:
    drawn = panel(dim=8, length=30, seed=1)
    q, k = torch.randn(8), torch.randn(4, 8)
    at = Positions([0, 9, 2, 29])
    assert raw_scores(drawn["nope"], q, k, 2, at).tolist() == pytest.approx((k @ q).tolist(), rel=1e-5)
    alibi = raw_scores(drawn["alibi"], q, k, 2, at) - k @ q
    assert alibi.tolist() == pytest.approx([-(2**-8) * abs(d - 2) for d in (0, 9, 2, 29)], abs=1e-5)
    several = raw_scores(drawn["rope"], torch.stack((q, 2 * q)), torch.stack((k, k)), 2, at)
    torch.testing.assert_close(several[1], 2 * several[0])


# Compare


def test_compare_against_numbers_by_hand() -> None:
    table = compare(dim=8, query=1, keys=[1, 4, 0]).table()
    assert table["nope"] == pytest.approx([8, 8, 8])
    assert table["alibi"] == pytest.approx([8 - 2**-8 * d for d in (0, 3, 1)])
    assert table["rope"] == pytest.approx(
        [2 * sum(math.cos(d * 10**-i) for i in range(4)) for d in (0, 3, 1)], rel=1e-6
    )
    waves = [[1 + w for w in oracles.sinusoid(p, 8, 10_000, "interleaved", "paper")] for p in (1, 4, 0)]
    assert table["sinusoidal"] == pytest.approx([oracles.dot(waves[0], w) for w in waves], rel=1e-6)


def test_compare_keeps_the_order_of_keys_and_the_sign_of_distances() -> None:
    result = compare(dim=8, query=5, keys=[9, 0, 5], encodings=["rope", "nope"])
    assert [(r.encoding, r.distance) for r in result.rows] == [(e, d) for e in ("rope", "nope") for d in (4, -5, 0)]
    assert result.keys == (9, 0, 5)


def test_compare_with_random_vectors_and_files(tmp_path: Path) -> None:
    q, k = pair_of_vectors("random", 8, 7)
    assert not torch.equal(q, k)
    assert torch.equal(q, pair_of_vectors("random", 8, 7)[0])
    assert not torch.equal(q, pair_of_vectors("random", 8, 8)[0])
    np.save(tmp_path / "both.npy", torch.stack((q, k)).double().numpy())
    from_file = compare(dim=8, vectors=str(tmp_path / "both.npy"), seed=7)
    assert from_file.table() == compare(dim=8, vectors="random", seed=7).table()
    np.save(tmp_path / "one.npy", np.arange(8))
    one, other = pair_of_vectors(str(tmp_path / "one.npy"), 8, 0)
    assert one.tolist() == other.tolist() == list(range(8))
    assert one.dtype == torch.float32


def test_compare_is_the_same_twice_and_leaves_its_mark_on_nothing() -> None:
    assert compare() == compare()
    assert compare(seed=1) != compare(seed=2)


def test_json_is_json() -> None:
    found = json.loads(json.dumps(compare().json()))
    assert found["schema"] == "ropewalk.compare/1"
    assert len(found["rows"]) == 3 * len(NAMES)
    assert set(found["rows"][0]) == {"encoding", "distance", "score"}
    assert json.loads(json.dumps(decay().json()))["schema"] == "ropewalk.decay/1"
    assert json.loads(json.dumps(order(*PAIRS[0]).json()))["schema"] == "ropewalk.order/1"


# Decay


def test_decay_of_ones_is_a_sum_of_cosines() -> None:
    curve = decay(dim=16, length=40).curves[0]
    expected = [2 * sum(math.cos(d * 10_000 ** (-2 * i / 16)) for i in range(8)) for d in range(41)]
    assert list(curve.scores) == pytest.approx(expected, abs=1e-5)
    assert curve.spread is None


def test_decay_depends_on_distance_only_where_that_is_claimed() -> None:
    at_zero, far = (decay(query=q, length=30, encodings=["rope", "alibi", "sinusoidal"]).curves for q in (0, 500))
    for one, other in zip(at_zero[:2], far[:2], strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
    assert at_zero[2].scores != pytest.approx(far[2].scores, abs=1e-1)


def test_beyond_and_rebound() -> None:
    for curve in decay(length=60, encodings=["rope", "alibi", "relative_bias"]).curves:
        s = curve.scores
        for d in range(60):
            assert curve.beyond[d] == max(s[d + 1 :])
        assert curve.beyond[60] is None
        rises = [(s[b] - s[a], a, b) for a in range(61) for b in range(a, 61)]
        best = max(rises)[0]
        if best <= 0:
            assert curve.rebound is None
            continue
        assert curve.rebound is not None
        low_at, high_at = curve.rebound.low_at, curve.rebound.high_at
        assert low_at < high_at
        assert (curve.rebound.low, curve.rebound.high) == (s[low_at], s[high_at])
        assert curve.rebound.high - curve.rebound.low == best
    assert decay(length=60, encodings=["alibi"]).curves[0].rebound is None  # it falls all the way


def test_random_vectors_have_a_flat_mean_under_rope() -> None:
    """The decay is one of equal vectors: over independent ones the mean stays at zero, the spread at √dim."""
    curve = decay(vectors="random", pairs=2000, length=50).curves[0]
    assert curve.spread is not None
    assert max(abs(m) for m in curve.scores) < 4 * 8 / math.sqrt(2000)
    assert all(abs(s - 8) < 0.8 for s in curve.spread)
    assert decay(vectors="random", pairs=1, length=5).curves[0].spread is None


def test_pairs_are_worked_on_in_bounded_numbers_without_changing_them() -> None:
    q, k = torch.randn(2, 130, 16, generator=torch.Generator().manual_seed(42))
    drawn = panel(dim=16, length=6, seed=42, names=["rope"])["rope"]
    at_once = raw_scores(drawn, q, k[:, None].expand(-1, 6, 16), 0, Positions.arange(6)).double()
    curve = decay(dim=16, vectors="random", pairs=130, length=5).curves[0]
    assert list(curve.scores) == pytest.approx(at_once.mean(0).tolist(), abs=1e-6)
    assert curve.spread is not None
    assert list(curve.spread) == pytest.approx(at_once.std(0).tolist(), rel=1e-6)


# Order


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_only_attention_without_an_encoding_cannot_tell_the_articles_pairs_apart(first: str, second: str) -> None:
    result = order(first, second)
    told = {row.encoding: row.told_apart for row in result.rows}
    assert list(told) == NAMES
    # the Japanese pair is no mirror image, so that even a bare distance tells
    assert [name for name, apart in told.items() if not apart] == ["nope"]
    assert all(row.difference > 1e-6 for row in result.rows if row.told_apart)
    assert all(row.difference < 1e-12 for row in result.rows if not row.told_apart)


def test_a_mirror_image_is_not_told_by_a_bare_distance() -> None:
    result = order("ab", "ba")
    assert result.mirrored
    told = {row.encoding: row.told_apart for row in result.rows}
    assert not told["nope"]
    assert not told["alibi"]
    assert not told["kerple"]
    assert told["rope"]
    assert told["t5"]


def test_a_causal_mask_alone_tells_order() -> None:
    assert {row.encoding: row.told_apart for row in order("abc", "bca", causal=True).rows}["nope"]


def test_tokens_are_words_or_characters() -> None:
    assert tokens("a bc d", "d a bc") == (["a", "bc", "d"], ["d", "a", "bc"])
    assert tokens("犬が人", "人が犬") == (["犬", "が", "人"], ["人", "が", "犬"])
    assert tokens(" ab ", "ba") == (["a", "b"], ["b", "a"])
    assert tokens("a b a", "b a a")[0] == ["a", "b", "a"]


def test_sinusoids_of_the_panel_are_the_papers() -> None:
    pe = panel(dim=8, length=3, seed=0)["sinusoidal"]
    assert isinstance(pe, Sinusoidal)
    assert pe.table([2], dtype=torch.float64)[0].tolist() == pytest.approx(
        oracles.sinusoid(2, 8, 10_000, "interleaved", "paper")
    )
