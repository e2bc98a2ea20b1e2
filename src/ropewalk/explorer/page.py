"""The page's files, and the head of it that differs between a served page and one that stands alone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ropewalk.language import Language
from ropewalk.version import __version__

STATIC = Path(__file__).resolve().parent / "static"
FONT = Path(__file__).resolve().parents[1] / "fonts" / "NotoSansCJKjp-subset-Regular.ttf"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".ttf": "font/ttf", ".txt": "text/plain"}


def files() -> dict[str, Path]:
    """Every file that a browser may ask for, by its path: nothing else is ever opened."""
    found = [path for path in STATIC.rglob("*") if path.suffix in TYPES and path.name != "index.html"]
    return {"/static/font.ttf": FONT, **{f"/static/{path.relative_to(STATIC).as_posix()}": path for path in found}}


def modules() -> dict[str, Path]:
    """The JavaScript modules by the name under which they import one another."""
    return {f"ropewalk/{path.relative_to(STATIC).as_posix()}": path for path in sorted(STATIC.rglob("*.js"))}


def index() -> str:
    """The page without settings."""
    return (STATIC / "index.html").read_text(encoding="utf-8")


def settings(language: Language, data: dict[str, Any] | None = None) -> str:
    """The element that tells the page its language and version, and for a page that stands alone its data."""
    told: dict[str, Any] = {"language": language, "version": __version__}
    if data is not None:
        told["data"] = data
    text = json.dumps(told, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")  # no </script> inside
    text = text.encode("utf-8", "replace").decode()  # half of a character cannot be written
    return f'<script type="application/json" id="settings">{text}</script>'


def served(language: Language) -> str:
    """The page as the server sends it."""
    page = index().replace('<html lang="en">', f'<html lang="{language}">')
    return page.replace('<script type="importmap">', f'{settings(language)}\n<script type="importmap">', 1)


def script_hashes(page: str) -> str:
    """What a content security policy calls the scripts that stand in the page itself."""
    bodies = re.findall(r'<script type="(?:importmap|module)">(.*?)</script>', page, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'" for b in bodies)


def policy(page: str) -> str:
    """Nothing from elsewhere, no script but the page's own."""
    return (
        f"default-src 'none'; script-src 'self' {script_hashes(page)}; style-src 'self'; font-src 'self'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
