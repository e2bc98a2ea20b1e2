"""Two languages, side by side: what a user reads stands in the code in English and Japanese, next to each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

Language = Literal["en", "ja"]
Say = Callable[[str, str], str]


def from_locale() -> Language:
    """Japanese if the environment asks for it (LC_ALL, LC_MESSAGES, LANG, the first that is set), else English."""
    wanted = next((os.environ[v] for v in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(v)), "")
    return "ja" if wanted.lower().startswith("ja") else "en"


def speaker(language: Language) -> Say:
    """A function that picks from a pair.

    >>> say = speaker("ja")
    >>> say("distance", "距離")
    '距離'
    """
    return lambda en, ja: ja if language == "ja" else en
