"""One self-contained HTML page: its look, its tables, and the Japanese letters that it uses."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from html import escape

from ropewalk.language import Language
from ropewalk.plots.style import FONT

_CSS = """
:root { color-scheme: light dark; --ink: #222; --quiet: #5c5c5c; --line: #d9d9d9; --back: #fff; --soft: #f4f5f7;
  --link: #0b4fa0; --good: #1b7a4b; --part: #8a5a00; --bad: #b03a2e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --quiet: #ababab; --line: #44474d; --back: #16181c;
  --soft: #22252b; --link: #86b7f5; --good: #6fce9b; --part: #e5b55c; --bad: #f19a8f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 1.5rem 1rem 3rem; color: var(--ink); background: var(--back);
  line-height: 1.6; overflow-wrap: break-word; }
body:lang(en) { font-family: system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif, "ropewalk"; }
body:lang(ja) { font-family: "ropewalk", system-ui, sans-serif; line-height: 1.8; }
h1 { font-size: 1.7rem; line-height: 1.3; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; line-height: 1.35; margin: 2.6rem 0 .6rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h1, h2, th { font-weight: 500; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace, "ropewalk"; font-size: .92em; }
nav ol { margin: 0; padding-left: 1.4rem; columns: 2 16rem; }
a { color: var(--link); }
.caption { margin: 1.2rem 0 .3rem; }
.scroll { overflow-x: auto; margin: 0 0 1.2rem; }
sup { font-size: .72em; line-height: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem; }
th, td { padding: .3rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); border-bottom: 2px solid var(--line); }
th[scope="row"], .number { white-space: nowrap; }
.number { text-align: right; }
.wide { min-width: 11rem; white-space: normal !important; }
figure { margin: 1.2rem 0; }
figure .card { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .6rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 46rem; margin: 0 auto; }
figcaption, .caption { color: var(--quiet); font-size: .92rem; }
figcaption { margin-top: .5rem; }
.held { color: var(--good); } .partly { color: var(--part); } .failed { color: var(--bad); }
.held, .partly, .failed, .open { white-space: nowrap; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .8rem; color: var(--quiet);
  font-size: .85rem; }
@media (max-width: 30rem) { body { padding: 1rem .75rem 2rem; } th, td { padding: .3rem .45rem; }
  figure .card { padding: .2rem; } }
@media print { :root { color-scheme: light; --ink: #000; --quiet: #444; --line: #bbb; --back: #fff; --good: #000;
  --part: #000; --bad: #000; --link: #000; } body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2, figure, tr { break-inside: avoid; } h2, .caption { break-after: avoid; } .scroll { overflow: visible; }
  nav { display: none; } }
"""


def page(title: str, body: str, language: Language) -> str:
    """The whole document. Nothing in it is fetched: styles, pictures and letters are inside."""
    return (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_font(title + body, language)}{_CSS}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    wide: Sequence[int] = (),
) -> str:
    """A table in a box that scrolls by itself. Cells are HTML; the first of each row is its heading.

    Args:
        caption: text.
        head: HTML of the column headings.
        rows: HTML of the cells.
        numbers: columns of numbers, aligned to the right.
        wide: columns of sentences, which may break into lines.
    """

    def cell(tag: str, column: int, html: str, more: str = "") -> str:
        kind = ' class="number"' if column in numbers else ' class="wide"' if column in wide else ""
        return f"<{tag}{more}{kind}>{html}</{tag}>"

    top = "".join(cell("th", n, html, ' scope="col"') for n, html in enumerate(head))
    body = "\n".join(
        "<tr>"
        + cell("th", 0, row[0], ' scope="row"')
        + "".join(cell("td", n, html) for n, html in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    return (
        f'<p class="caption">{text(caption)}</p>\n'  # not a caption element, which would scroll away with the table
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>\n'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def text(words: str) -> str:
    """Words as HTML. Superscripts become `<sup>`, since few fonts have all of those characters.

    >>> text("error < 8.9·10⁻¹⁶")
    'error &lt; 8.9·10<sup>−16</sup>'
    """
    plain = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "−0123456789")
    return re.sub("[⁻⁰¹²³⁴-⁹]+", lambda found: f"<sup>{found[0].translate(plain)}</sup>", escape(words))


def picture(svg: str, caption: str) -> str:
    """A picture on a white card, which stays white where the page is dark."""
    return f'<figure><div class="card">{svg}</div><figcaption>{text(caption)}</figcaption></figure>'


def _font(words: str, language: Language) -> str:
    """The letters that the page uses, cut from the font that ropewalk ships, as a style rule.

    An English page needs those of its Japanese examples only: its own letters every computer has.
    """
    from fontTools import subset
    from fontTools.ttLib import TTFont

    used = {c for c in words if language == "ja" or ord(c) >= 0x3000}
    if not used:
        return ""
    options = subset.Options(flavor="woff", layout_features=[], notdef_outline=True, name_IDs=[1, 2, 13, 14])
    with TTFont(FONT, recalcTimestamp=False) as font:
        cutter = subset.Subsetter(options)
        cutter.populate(text="".join(sorted(used)))
        cutter.subset(font)
        out = io.BytesIO()
        font.flavor = "woff"
        font.save(out)
    data = base64.b64encode(out.getvalue()).decode()
    return f'@font-face {{ font-family: "ropewalk"; src: url(data:font/woff;base64,{data}) format("woff"); }}\n'
