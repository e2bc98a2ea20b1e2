"""The demo page: one file, nothing fetched, every number as measured, in either language."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import pytest
from fontTools.ttLib import TTFont

from ropewalk import ENCODINGS, Sinusoidal, demo
from ropewalk.demo import write_demo
from ropewalk.language import speaker
from ropewalk.measure.compare import compare
from ropewalk.measure.decay import decay
from ropewalk.measure.order import PAIRS, order
from ropewalk.plots.style import number

LANGUAGES = ("en", "ja")
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Reads a page into tables and text, and checks that what opens also closes."""

    def __init__(self, html):
        super().__init__()
        self.open, self.ids, self.links, self.tables, self.text, self.attributes = [], [], [], [], "", {}
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.attributes.setdefault(tag, []).append(given)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [v for k, v in given.items() if k in ("src", "href", "xlink:href", "srcset", "action", "data")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(["", given.get("class")])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "title"):
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1][0] += data

    def rows(self, name):
        """Cells after the name, of every row that begins with it."""
        return [[cell for cell, _ in row[1:]] for table in self.tables for row in table if row[0][0] == name]


@pytest.fixture(scope="module", params=LANGUAGES)
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    said = []
    path = write_demo(folder / "ropewalk-demo.html", request.param, 42, said.append)
    assert [found.name for found in folder.iterdir()] == ["ropewalk-demo.html"]
    return request.param, path.read_text(encoding="utf-8"), said


def test_parses_and_says_its_language(written):
    language, html, said = written
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert page.attributes["html"] == [{"lang": language}]
    title = re.search("<title>(.*?)</title>", html)[1]
    assert title == speaker(language)(
        "ropewalk: how position enters attention", "ropewalk：位置はどのように注意機構に入るのか"
    )
    assert len(said) >= 4
    for line in (title, *said):
        assert bool(re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", line)) == (language == "ja")


def test_fetches_nothing(written):
    _, html, _ = written
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.attributes
    assert "link" not in page.attributes
    for link in page.links:
        assert link.startswith(("#", "data:")), link
        if link.startswith("#"):
            assert link[1:] in page.ids
    for url in re.findall(r"url\(([^)]*)\)", html):
        assert url.startswith(("#", "data:")), url
    assert "@import" not in html


def test_no_placeholder(written):
    _, html, _ = written
    page = Page(html)
    for mark in ("TODO", "XXX", "None", "nan", "inf ", "{", "}", "▢", "〓"):
        assert mark not in page.text, mark


def test_scores_as_measured(written):
    _, html, _ = written
    page = Page(html)
    assert page.rows("Learned")[1][:3] == ["48.2677", "58.1076", "53.2920"]
    assert page.rows("RoPE")[1][:3] == ["61.8337", "51.1741", "40.5986"]
    for cls in ENCODINGS:
        assert page.rows(cls.label)[1][:3] == [f"{s:.4f}" for s in compare().table()[cls.name]]


def test_decay_as_measured(written):
    language, html, _ = written
    page = Page(html)
    names = [cls.name for cls in ENCODINGS]
    for vectors, table, digits in (("ones", 2, 1), ("random", 3, 2)):
        for curve in decay(vectors=vectors, encodings=names).curves:
            label = next(cls.label for cls in ENCODINGS if cls.name == curve.encoding)
            want = [f"{curve.scores[d]:.{digits}f}".replace("-", "−") for d in (0, 1, 10, 50, 100)]
            assert page.rows(label)[table][:5] == want
    assert speaker(language)("21.5 at 96 → 35.7 at 100", "21.5（96）→ 35.7（100）") in page.rows("RoPE")[2]


def test_order_as_measured(written):
    language, html, _ = written
    page = Page(html)
    pairs = [*(PAIRS if language == "ja" else PAIRS[::-1]), demo.MIRRORED[language]]
    found = [order(*pair).rows for pair in pairs]
    assert order(*pairs[-1]).mirrored
    for told in zip(*found, strict=True):
        label = next(cls.label for cls in ENCODINGS if cls.name == told[0].encoding)
        for cell, row in zip(page.rows(label)[4], told, strict=True):
            plain = number(row.difference).translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "−0123456789"))
            assert cell.startswith(plain) or not row.told_apart  # rounding may differ from one thread count to the next
            assert (("same" in cell) or ("同じ" in cell)) == (not row.told_apart)


def test_the_waves_and_the_shift(written):
    _, html, _ = written
    text = Page(html).text
    assert f"{float(Sinusoidal(64).spectrum.wavelength.max()):,.0f}" in text
    assert demo._shifted(Sinusoidal(64), 10) < 1e-12


def test_a_wrong_shift_would_be_seen(monkeypatch):
    right = Sinusoidal.shift_matrix
    monkeypatch.setattr(Sinusoidal, "shift_matrix", lambda self, k: right(self, k + 1))
    assert demo._shifted(Sinusoidal(64), 10) > 0.1


def test_places_come_from_the_registry(written):
    language, html, _ = written
    page = Page(html)
    for cls in ENCODINGS:
        assert page.rows(cls.label)[0] == [cls.idea[language]]
    acting = [row[-1][0] for row in page.tables[0][1:]]
    assert [("Shaw" in cell) for cell in acting] == [False, False, True, True, False]
    assert [("RoPE" in cell) for cell in acting] == [False, True, False, False, False]
    assert acting[-1] == "NoPE"


def test_numbers_stand_to_the_right(written):
    _, html, _ = written
    for table in Page(html).tables[2:6]:
        for row in table:
            assert [kind for _, kind in row] == [None] + ["number"] * (len(row) - 1)


def test_japanese_letters_are_in_the_page(written):
    """Whatever the reader's computer has: the font inside covers every Japanese character of the page."""
    language, html, _ = written
    data = re.search(r"url\(data:font/woff;base64,([^)]+)\)", html)[1]
    font = TTFont(io.BytesIO(base64.b64decode(data)))
    assert font.flavor == "woff"
    wanted = {ord(c) for c in Page(html).text if ord(c) >= 0x3000}
    assert len(wanted) > (300 if language == "ja" else 5)
    assert wanted <= set(font.getBestCmap())
    assert len(html) < 2_000_000


def test_footer_names_versions_and_seed(written):
    _, html, _ = written
    import torch

    from ropewalk.version import __version__

    footer = html[html.index("<footer>") :]
    assert f"ropewalk {__version__}" in footer
    assert f"torch {torch.__version__}" in footer
    assert "42" in footer


@pytest.fixture(scope="module")
def found():
    return demo._measure("en", 42, lambda _: None, speaker("en"))


def verdicts(found):
    return [kind for _, _, (kind, _) in demo._claims(found, speaker("en"))]


def test_verdicts_on_the_articles_claims(found):
    assert verdicts(found) == [
        "held",  # learned scores are irregular
        "held",  # relative and rotary depend on the distance alone
        "held",  # three keys, falling
        "failed",  # never returns
        "failed",  # decay is a law
        "partly",  # blind without an encoding: but a causal mask counts
        "partly",  # tells apart with one: but mirror images
        "partly",  # up to 10000·2π: in the limit
        "held",  # a shift is linear
        "open",  # long texts
    ]


def test_verdicts_follow_the_numbers(found):
    """Other measurements, other verdicts: nothing is decided beforehand."""
    both = {"en": speaker("en"), "ja": speaker("ja")}
    changed = found._replace(
        curve=decay(encodings=["alibi"]),
        random=decay(),  # vectors of ones, for which there is decay
        moved={**found.moved, "rope": 3.0},
        causal=found.orders[0],
        mirror=found.orders[0],
        shifted=0.5,
        waves=Sinusoidal(64, ladder="half-1"),
    )
    assert [kind for n, kind in enumerate(verdicts(changed)) if n in (1, 3, 4, 5, 6, 7, 8)] == [
        "failed", "held", "partly", "held", "held", "held", "failed",
    ]  # fmt: skip
    for say in both.values():
        measured = [m for _, m, _ in demo._claims(changed, say)]
        assert say("It never rises.", "一度も上がりません。") in measured


@pytest.mark.parametrize("written", ["en"], indirect=True)
def test_same_seed_same_page_and_another_seed_another(written, tmp_path):
    language, html, _ = written
    again, other = (
        write_demo(tmp_path / f"{seed}.html", language, seed, lambda _: None).read_text(encoding="utf-8")
        for seed in (42, 3)
    )
    assert again == html
    assert Page(other).rows("Learned")[1] != Page(html).rows("Learned")[1]


def test_refuses_before_any_work(tmp_path):
    said = []
    with pytest.raises(ValueError, match=r"the folder .*nowhere does not exist"):
        write_demo(tmp_path / "nowhere" / "page.html", "en", 42, said.append)
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        write_demo(tmp_path, "en", 42, said.append)
    assert not said
    assert not list(tmp_path.iterdir())
