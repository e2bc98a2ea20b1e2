"""Pictures: what is drawn is what was measured, in both languages, with every letter, and nothing else is disturbed."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import font_manager
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from ropewalk import ENCODINGS, ALiBi, Sinusoidal, build
from ropewalk.language import speaker
from ropewalk.measure.compare import compare
from ropewalk.measure.decay import decay
from ropewalk.measure.order import PAIRS, ROUNDING, order
from ropewalk.plots import bias, card, style, waves
from ropewalk.plots import decay as decay_plot
from ropewalk.plots import order as order_plot
from ropewalk.plots import scores as scores_plot

LANGUAGES = ("en", "ja")
NAMES = [cls.name for cls in ENCODINGS]
KANA_OR_KANJI = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")

PICTURES = {
    "scores": lambda language: scores_plot.draw(compare(), language),
    "scores of many keys": lambda language: scores_plot.draw(compare(keys=range(30), encodings=["rope"]), language),
    "decay of one": lambda language: decay_plot.draw(decay(), language),
    "decay of a few": lambda language: decay_plot.draw(decay(encodings=["rope", "xpos", "alibi"]), language),
    "decay of all": lambda language: decay_plot.draw(decay(encodings=NAMES), language),
    "random, one": lambda language: decay_plot.draw(decay(vectors="random", pairs=9), language),
    "random, all": lambda language: decay_plot.draw(decay(vectors="random", pairs=9, encodings=NAMES), language),
    "order": lambda language: order_plot.draw(order(*PAIRS[0]), language),
    "order, causal": lambda language: order_plot.draw(order(*PAIRS[1], causal=True), language),
    "waves": lambda language: waves.draw(language),
    "bias": lambda language: bias.draw(ALiBi(heads=4), language),
    **{f"card of {name}": lambda language, name=name: card.draw(name, language) for name in NAMES},
}


def words(figure):
    return [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text()]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", PICTURES)
def test_draws_with_every_letter(name, language, tmp_path):
    """Warnings are errors here, and matplotlib warns of each letter that no font has."""
    figure = PICTURES[name](language)
    style.save(figure, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 8_000
    sentences = [text for text in words(figure) if " " in text and len(text) > 20]
    if language == "en" and "order" not in name:
        assert not any(KANA_OR_KANJI.search(text) for text in words(figure))
    if language == "ja":
        assert any(KANA_OR_KANJI.search(text) for text in words(figure))
        assert all(KANA_OR_KANJI.search(text) for text in sentences)


def test_decay_draws_what_was_measured():
    measured = decay(encodings=["rope", "alibi"])
    axis = decay_plot.draw(measured, "en").axes[0]
    drawn = {line.get_label(): line.get_ydata() for line in axis.lines}
    for curve in measured.curves:
        assert tuple(drawn[style.label(curve.encoding)]) == curve.scores
    alone = decay().curves[0]
    lines = {line.get_label(): line for line in decay_plot.draw(decay(), "en").axes[0].lines}
    envelope = lines["highest score at any greater distance"]
    assert tuple(envelope.get_ydata()) == alone.beyond[:-1]
    assert list(envelope.get_xdata()) == list(range(100))


def test_decay_of_many_keeps_one_scale():
    figure = decay_plot.draw(decay(encodings=NAMES), "en")
    assert [axis.get_title() for axis in figure.axes] == [cls.label for cls in ENCODINGS]
    assert len({axis.get_ylim() for axis in figure.axes}) == 1


def test_random_vectors_draw_mean_band_and_zero():
    measured = decay(vectors="random", pairs=50)
    axis = decay_plot.draw(measured, "en").axes[0]
    curve = measured.curves[0]
    assert tuple(axis.lines[0].get_ydata()) == curve.scores
    edge = axis.collections[0].get_paths()[0].vertices
    for at in (0, 7, 100):
        ys = edge[edge[:, 0] == at][:, 1]
        assert ys.min() == pytest.approx(curve.scores[at] - curve.spread[at])
        assert ys.max() == pytest.approx(curve.scores[at] + curve.spread[at])
    assert any(list(line.get_ydata()) == [0, 0] for line in axis.lines)


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", ("near tokens bind strongly", "the score fades with distance", "21.5 at distance 96 → 35.7 at 100")),
        ("ja", ("近いトークンほど強く結び付く", "遠くなるほどスコアは弱まる", "距離 96 で 21.5 → 距離 100 で 35.7")),
    ],
)
def test_the_articles_annotations(language, said):
    drawn = words(decay_plot.draw(decay(), language))
    for sentence in said:
        assert any(sentence in text for text in drawn), sentence


@pytest.mark.parametrize("name", ["nope", "learned", "cope"])
def test_no_annotation_where_it_would_be_false(name):
    drawn = words(decay_plot.draw(decay(encodings=[name]), "en"))
    assert not any("fades" in text or "bind" in text for text in drawn)


@pytest.mark.parametrize(
    ("language", "claim"),
    [("en", "whether the score falls depends on q and k"), ("ja", "減衰するかどうかは q と k しだい")],
)
def test_random_title_says_that_decay_depends(language, claim):
    assert any(claim in text for text in words(decay_plot.draw(decay(vectors="random", pairs=9), language)))


def test_scores_draws_what_was_measured_and_spans_alike():
    measured = compare(keys=(20, 3, 5))  # not in order of distance
    figure = scores_plot.draw(measured, "en")
    for axis, (name, scores) in zip(figure.axes, measured.table().items(), strict=True):
        assert axis.get_title() == style.label(name)
        assert list(axis.lines[0].get_ydata()) == [scores[1], scores[2], scores[0]]
        low, high = axis.get_ylim()
        assert low < min(scores)
        assert max(scores) < high
        assert high - low == pytest.approx(np.diff(figure.axes[0].get_ylim())[0])
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["1", "3", "18"]


def test_scores_of_equal_values_and_keys_before_the_query():
    figure = scores_plot.draw(compare(query=5, keys=(3, 8), encodings=["nope"]), "en")
    style.svg(figure)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["−2", "3"]


def test_order_draws_what_was_measured():
    measured = order(*PAIRS[0])
    axis = order_plot.draw(measured, "en").axes[0]
    points = {line.get_label(): line.get_xdata()[0] for line in axis.lines if line.get_label() in NAMES}
    assert points == {row.encoding: max(row.difference, order_plot.FLOOR) for row in measured.rows}
    assert any(list(line.get_xdata()) == [ROUNDING, ROUNDING] for line in axis.lines)
    assert axis.get_xscale() == "log"
    low, high = axis.get_xlim()
    assert all(low < at < high for at in points.values())


def test_other_peoples_words_may_hold_anything():
    """Dollar signs are not mathematics, and a character that no font has becomes a geta."""
    figure = order_plot.draw(order("$x_1 🐕 𠀋", "🐕 $x_1 𠀋"), "ja")
    style.svg(figure)
    assert any("$x_1 〓 〓" in text for text in words(figure))
    assert style.drawable("犬⁻₀ᵢ🐕") == "犬⁻₀ᵢ〓"


def test_waves_draw_the_table_and_state_the_longest_exactly():
    heat, lengths = waves.draw("en", dim=32, length=50).axes[:2]
    pe = Sinusoidal(32)
    assert np.array_equal(heat.images[0].get_array(), pe.table(torch.arange(50)).numpy())
    assert list(lengths.lines[0].get_ydata()) == pe.spectrum.wavelength.tolist()
    longest = 2 * np.pi * 10_000 ** (30 / 32)
    assert any(f"2π·10,000^(30/32)\n= {longest:,.0f}" in t.get_text() for t in lengths.texts)


def test_another_ladder_gets_no_formula_that_is_not_its_own():
    with style.figure() as made:
        axis = made.subplots()
        waves.wavelengths(axis, Sinusoidal(32, ladder="half-1").spectrum, 10_000.0, "en")
    assert not any("^(" in t.get_text() for t in axis.texts)
    assert any(f"{2 * np.pi * 10_000:,.0f}" in t.get_text() for t in axis.texts)


def test_bias_is_found_through_hooks():
    alibi = ALiBi(heads=4)
    at = torch.arange(20)
    want = alibi.bias(torch.arange(4)[:, None, None], at[:, None], at)
    assert np.allclose(bias.term(alibi, 20), want.numpy(), atol=1e-6)
    hidden = bias.term(ALiBi(heads=2, bidirectional=False), 6)
    assert np.isnan(hidden[:, 2, 3]).all()
    assert not np.isnan(hidden[:, 3, 3]).any()
    with pytest.raises(ValueError, match=r"RoPE adds nothing to the score; it acts on: \('query/key',\)"):
        bias.draw(build("rope", head_dim=8), "en")


def test_cards_follow_the_places():
    titles = {name: [axis.get_title() for axis in card.draw(name, "en").axes] for name in NAMES}
    for cls in ENCODINGS:
        shown = titles[cls.name]
        assert ("what is added to the embedding" in shown) == ("embedding" in cls.places())
        assert ("angle of every pair" in shown) == ("query/key" in cls.places())
        assert any("query at" in title for title in shown) == ("score" in cls.places())
    assert "wavelength, in tokens" in titles["sinusoidal"]
    assert "product of two of its vectors" in titles["learned"]


def test_a_card_leaves_the_random_numbers_alone():
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    bias_before = torch.get_rng_state()
    card.draw("t5", "en")
    assert torch.equal(torch.get_rng_state(), bias_before)
    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_save_writes_the_format_of_the_suffix(suffix, magic, tmp_path):
    path = tmp_path / f"picture{suffix}"
    style.save(decay_plot.draw(decay(), "ja"), path)
    data = path.read_bytes()
    assert data.startswith(magic)
    assert 10_000 < len(data) < 1_000_000
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~style._umask()


def test_save_refuses_and_leaves_nothing(tmp_path, monkeypatch):
    figure = decay_plot.draw(decay(), "en")
    with pytest.raises(ValueError, match=r"a picture is a \.png, \.svg or \.pdf file, got 'picture\.jpg'"):
        style.save(figure, tmp_path / "picture.jpg")
    with pytest.raises(ValueError, match=r"the folder .*nowhere does not exist"):
        style.save(figure, tmp_path / "nowhere" / "picture.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        style.save(figure, tmp_path / "folder.png")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        style.save(figure, tmp_path / "picture.png")
    assert [found.name for found in tmp_path.iterdir()] == ["folder.png"]


def test_svg_stands_alone_and_beside_others():
    drawn = [style.svg(PICTURES[name]("ja")) for name in ("decay of one", "scores", "waves")]
    ids = [set(re.findall(r'\bid="([^"]+)"', one)) for one in drawn]
    for one, own in zip(drawn, ids, strict=True):
        assert one.startswith("<svg")
        assert one.endswith("</svg>")
        assert "<text" not in one, "letters are outlines"
        head = one[: one.index(">")]
        assert 'viewBox="' in head
        assert not re.search(r'\b(width|height)="', head)
        assert 'role="img"' in head
        assert re.search(r'aria-label="[^"]*[\u3040-\u9fff]', head)
        used = re.findall(r'href="#([^"]+)"', one) + re.findall(r"url\(#([^)]+)\)", one)
        assert used
        assert set(used) <= own
    for one, other in itertools.combinations(ids, 2):
        assert not one & other
    assert drawn[0] == style.svg(PICTURES["decay of one"]("ja")), "same picture, same text"


def test_settings_are_put_back(tmp_path):
    with matplotlib.rc_context({"font.size": 33, "axes.facecolor": "black"}):
        before = dict(matplotlib.rcParams)
        figure = decay_plot.draw(decay(), "ja")
        assert figure.axes[0].get_facecolor() == (1, 1, 1, 1), "the user's own settings do not leak into our pictures"
        style.save(figure, tmp_path / "picture.png")
        style.svg(figure)
        assert dict(matplotlib.rcParams) == before


def test_every_encoding_has_its_own_look():
    looks = [style.look(name) for name in NAMES]
    assert len({look.color for look in looks}) == len(looks)
    assert len({look.marker for look in looks}) == len(looks)


def test_looks_differ_in_grey():
    """Two encodings with the same dash differ in lightness (L*, 0 to 100) by 12 or more."""

    def lightness(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        return 116 * y ** (1 / 3) - 16

    for one, other in itertools.combinations([style.look(name) for name in NAMES], 2):
        if one.dash == other.dash:
            assert abs(lightness(one.color) - lightness(other.color)) >= 12, (one, other)
    assert all(lightness(style.look(name).color) < 80 for name in NAMES), "each is seen on white"


def test_an_encoding_without_a_line_in_the_palette_still_has_a_look():
    assert style.look("of_yours") == style.look("of_yours")
    assert style.label("of_yours") == "of_yours"


def test_places_in_words():
    assert style.places_of("shaw", "en") == "score, value"
    assert style.places_of("rope", "ja") == "クエリとキー"
    assert style.places_of("nope", "en") == "—"


def test_the_japanese_font_is_the_packages_own():
    import ropewalk

    with style.context():
        found = font_manager.findfont(matplotlib.rcParams["font.family"][0], fallback_to_default=False)
    assert Path(found).resolve() == Path(ropewalk.__file__).resolve().parent / "fonts" / style.FONT.name


def test_japanese_without_any_system_font_and_without_pyplot(tmp_path):
    """In a fresh process that knows matplotlib's own fonts only."""
    script = f"""
import matplotlib, pathlib, sys
from matplotlib import font_manager as fm
own = matplotlib.get_data_path()
fm.fontManager.ttflist[:] = [f for f in fm.fontManager.ttflist if f.fname.startswith(own)]
assert not any("Noto" in f.name for f in fm.fontManager.ttflist)
from ropewalk.measure.decay import decay
from ropewalk.plots import decay as plot, style
style.save(plot.draw(decay(), "ja"), pathlib.Path({str(tmp_path)!r}) / "ja.png")
assert "matplotlib.pyplot" not in sys.modules
"""
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        env={**environment, "MPLCONFIGDIR": str(tmp_path / "matplotlib")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ja.png").stat().st_size > 20_000


def test_numbers_in_words():
    assert style.number(0) == "0"
    assert style.number(0.2) == "0.20"
    assert style.number(9.77e-17) == "9.8·10⁻¹⁷"
    assert speaker("ja")("a", "あ") == "あ"
