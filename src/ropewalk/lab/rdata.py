"""The character vectors of an R package's data, read without R.

A lazy-load database is two files: `.rdx`, an index, and `.rdb`, in which each object is a zlib stream behind four bytes
of its size. Both hold R's own serialisation. Source: R Internals, §1.8 “Serialization formats”. Only what character
vectors and the index need is read here.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

_NULL, _GLOBAL, _REFERENCE, _UNBOUND, _EMPTY, _BASE = 254, 253, 255, 252, 242, 241
_SYMBOL, _PAIRS, _STRING, _LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST, _ALTERNATIVE = 1, 2, 9, 10, 13, 14, 16, 19, 238


def strings(index: Path) -> dict[str, list[str]]:
    """The character vectors that an `.rdx` file and the `.rdb` beside it hold, by name.

    Raises:
        ValueError: another version of the format, or a kind of object that is not read here.
    """
    variables = dict(_Reader(gzip.decompress(index.read_bytes())).read())["variables"]
    data = index.with_suffix(".rdb").read_bytes()
    found = {}
    for name, (offset, length) in variables:
        made = _Reader(zlib.decompress(data[offset + 4 : offset + length])).read()
        if isinstance(made, list) and all(isinstance(line, str) for line in made):
            found[name] = made
    return found


class _Reader:
    """Goes through one serialised object. Lists with names become lists of pairs, everything else plain lists."""

    def __init__(self, data: bytes) -> None:
        if data[:2] != b"X\n":
            raise ValueError("this is not R's binary serialisation (XDR)")
        self.data, self.at = data, 2
        self.references: list[str] = []
        version, *_ = (self.number() for _ in range(3))
        if version not in (2, 3):
            raise ValueError(f"R's serialisation has version 2 or 3, this has {version}")
        if version == 3:
            self.take(self.number())  # the name of the encoding

    def take(self, n: int) -> bytes:
        """The next n bytes."""
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self) -> int:
        """The next four bytes as a signed number."""
        return int(struct.unpack(">i", self.take(4))[0])

    def read(self) -> Any:
        """The next object."""
        flags = self.number()
        kind, attributes = flags & 0xFF, bool(flags & 0x200)
        made: Any
        if kind in (_NULL, _GLOBAL, _UNBOUND, _EMPTY, _BASE):
            return None
        if kind == _REFERENCE:
            return self.references[(flags >> 8 or self.number()) - 1]
        if kind == _SYMBOL:
            self.references.append(self.read())
            return self.references[-1]
        if kind == _PAIRS:
            return self._pairs(flags)
        if kind == _STRING:
            length = self.number()
            return "" if length < 0 else self.take(length).decode("utf-8", errors="replace")
        if kind == _ALTERNATIVE:
            _, state, _ = self.read(), self.read(), self.read()
            return state
        length = self.number()
        if kind in (_LOGICAL, _INTEGER):
            made = list(struct.unpack(f">{length}i", self.take(4 * length)))
        elif kind == _REAL:
            made = list(struct.unpack(f">{length}d", self.take(8 * length)))
        elif kind in (_STRINGS, _LIST):
            made = [self.read() for _ in range(length)]
        else:
            raise ValueError(f"objects of R's type {kind} are not read here")
        named = dict(self.read() or ()) if attributes else {}
        return list(zip(named["names"], made, strict=True)) if "names" in named and kind == _LIST else made

    def _pairs(self, flags: int) -> list[tuple[Any, Any]]:
        found = []
        while flags & 0xFF == _PAIRS:
            if flags & 0x200:
                self.read()
            tag = self.read() if flags & 0x400 else None
            found.append((tag, self.read()))
            flags = self.number()
        return found
