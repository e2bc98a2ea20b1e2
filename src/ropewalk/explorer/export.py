"""The explorer as one file: every module, style, letter and model inside it, nothing to fetch and no server to ask."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.explorer import page
from ropewalk.explorer.api import Api
from ropewalk.language import Language


def standalone(language: Language, given: Sequence[Path] = ()) -> str:
    """The whole page as text.

    A module imports another by a name that the page's import map resolves. Served, the map leads to the server; here
    it leads to the module's own text, so the modules are the same files in both.

    Args:
        language: in which it opens; the reader can change it.
        given: models and results to put into it.

    Raises:
        RefusedError: a given file that cannot be read.
    """
    api = Api(given)
    modules = {name: path.read_text(encoding="utf-8") for name, path in page.modules().items()}
    styles = "\n".join(
        (page.STATIC / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "style.css")
    )
    data = {"models": api.get("models"), "results": api.get("results")}
    styles = re.sub(r"@font-face \{[^}]*\}", lambda _: _font("".join([*modules.values(), str(data)])), styles)
    main = modules.pop("ropewalk/main.js")
    leads = ", ".join(f'"{name}": "{_url("text/javascript", text.encode())}"' for name, text in modules.items())
    html = page.index().replace('<html lang="en">', f'<html lang="{language}">')
    html = re.sub(r'<link rel="stylesheet".*?>\n', "", html)
    html = html.replace(
        '<script type="importmap">{"imports": {"ropewalk/": "./static/"}}</script>\n'
        '<script type="module" src="static/main.js"></script>\n',
        f"<style>{styles}</style>\n{page.settings(language, data)}\n"
        f'<script type="importmap">{{"imports": {{{leads}}}}}</script>\n'
        f'<script type="module">{main}</script>\n',
    )
    policy = (
        f"default-src 'none'; script-src data: {page.script_hashes(html)}; style-src 'unsafe-inline'; "
        "font-src data:; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return html.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        1,
    )


def _font(words: str) -> str:
    """The Japanese letters that the page uses, cut from the font that ropewalk ships; without fontTools, none.

    A computer that reads Japanese has letters of its own; these are for one that has not.
    """
    try:
        from fontTools import subset
        from fontTools.ttLib import TTFont
    except ImportError:
        return ""
    options = subset.Options(flavor="woff", layout_features=[], notdef_outline=True, name_IDs=[1, 2, 13, 14])
    with TTFont(page.FONT, recalcTimestamp=False) as font:
        cutter = subset.Subsetter(options)
        cutter.populate(text="".join(sorted({c for c in words if ord(c) >= 0x2E80})))
        cutter.subset(font)
        out = io.BytesIO()
        font.flavor = "woff"
        font.save(out)
    return (
        f'@font-face {{ font-family: ropewalk; src: url({_url("font/woff", out.getvalue())}) format("woff"); '
        "unicode-range: U+2E80-FFEF; }"
    )


def _url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def write(path: Path, language: Language, given: Sequence[Path] = ()) -> None:
    """Write the page to a file: beside its place first, then moved there, so that no half of it is ever seen.

    Raises:
        RefusedError: as `standalone`.
        OSError: the file cannot be written.
    """
    text: Any = standalone(language, given).encode()
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
