"""Finished results on disk, each under everything it depends on, so that an interrupted experiment goes on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Store:
    """A folder with a JSON file for each result, written whole or not at all.

    The name of a file is a hash of its key; the key stands in the file too, and is compared. A damaged file counts as
    none, and is written anew.

    Args:
        folder: made when the first result is kept.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()))
    >>> key = {"model": "tiny", "length": 8}
    >>> store.get(key), store.put(key, {"loss": 2.5}), store.get(key), store.get({**key, "length": 9})
    (None, None, {'loss': 2.5}, None)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where the result of this key is, or would be."""
        return self.folder / f"{hashlib.sha256(_text(key).encode()).hexdigest()[:32]}.json"

    def check(self) -> None:
        """Make sure, before any work, that results can be kept.

        Raises:
            OSError: they cannot.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            file.write(b"\0" * 4096)
            file.flush()

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result, if it is there."""
        try:
            found = json.loads(self.path(key).read_text(encoding="utf-8"))
            result = found["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        same = isinstance(result, dict) and _text(found.get("key")) == _text(key)
        return result if same else None

    def put(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep a result.

        Raises:
            OSError: it cannot be written; what was kept before is untouched.
        """
        path = self.path(key)
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=self.folder, prefix=".unfinished-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"key": dict(key), "result": dict(result)}, file, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())  # else a full disk may show only after the file has its name
            os.replace(beside, path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise


def _text(key: Any) -> str:
    return json.dumps(key, sort_keys=True, allow_nan=False)


def default_folder() -> Path:
    """Where results are kept if nobody says otherwise: the user's cache."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ropewalk" / "extend"
