"""From a path to the text of a configuration, safely: whatever the file holds, one clear error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BIGGEST = 16 << 20
"""Bytes of a configuration that are read at most; real ones have some thousand."""


def load_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: no such file, too big, not UTF-8, not JSON, a key twice in one object, nested too deeply, or not an
            object.
    """
    try:
        if not path.is_file():
            raise ValueError(f"{path} is not a file")
        size = path.stat().st_size
        if size > BIGGEST:
            raise ValueError(f"{path} has {size} bytes, more than the {BIGGEST} of any configuration")
        with path.open("rb") as file:
            raw = file.read(BIGGEST + 1)  # a device or a growing file has no size to believe
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(raw) > BIGGEST:
        raise ValueError(f"{path} is bigger than the {BIGGEST} bytes of any configuration")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except (RecursionError, json.JSONDecodeError) as error:
        what = f"{error.msg}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise ValueError(f"{path} is not JSON: {what if text.strip() else 'the file is empty'}") from None
    except ValueError as error:  # a key twice, or a number of thousands of digits
        raise ValueError(f"{path}: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, a configuration is an object of keys")
    return value


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the key {key[:100]!r} is there twice")
        out[key] = value
    return out
