"""What a document may hold, looked at piece by piece: each refusal says what was given and what is wanted.

All raise ValueError but `is_number`, and `what` is how the piece is called in their words.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from ropewalk.protocol import expect


def nearest(word: Any, known: Any) -> str:
    """`, did you mean …?` if one of the known words is close."""
    close = difflib.get_close_matches(str(word).lower(), list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def keys(table: Any, known: Any, what: str) -> None:
    """A table with known keys only; the nearest is named."""
    if not isinstance(table, dict):
        raise ValueError(f"{what} is a table, got {table!r}")
    for key in table:
        if key not in known:
            raise ValueError(f"{what} has no key {key!r}{nearest(key, known)}; there are {', '.join(known)}")


def options(table: Mapping[str, Any], what: str) -> None:
    """A table, if there are any."""
    given = table.get("options", {})
    expect(isinstance(given, dict), f"options of {what} are a table, got {given!r}")


def both(text: Any, what: str) -> Mapping[str, str]:
    """A text in English and Japanese, or one for both."""
    if isinstance(text, str):
        return {"en": text, "ja": text}
    if not isinstance(text, dict) or "en" not in text:
        raise ValueError(f"{what} is said in English (en), and better in Japanese (ja) too")
    said = {"en": text["en"], "ja": text.get("ja", text["en"])}
    expect(all(isinstance(words, str) for words in said.values()), f"{what} is said in words, got {said}")
    return said


def tables(value: Any, what: str) -> list[Any]:
    """A list."""
    expect(isinstance(value, list), f"{what} is a list of tables, got {value!r}")
    return list(value)


def distinct(value: Any, what: str) -> None:
    """A list of things to try, each once."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{what} is a list of values to try, got {value!r}")
    for one in value:
        expect(value.count(one) == 1, f"{what} has {one!r} twice")


def is_number(value: Any) -> bool:
    """Whether it is a number, and a finite one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
