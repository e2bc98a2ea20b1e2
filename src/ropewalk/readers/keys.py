"""Reading a configuration key by key, so that what nobody read can be refused by name."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

MOST_KEYS = 20_000
MOST_LAYERS = 10_000
WIDEST = 1 << 14
"""Channels of a head; real ones have at most some hundred."""
LONGEST = 1 << 48
"""No length, width or count above this is believed."""

_ABOUT_POSITIONS = re.compile(
    r"rope|rotary|theta|alibi|yarn|(?:^|_)ntk|inv_freq|position_embedding_type|position_encoding|pos_encoding"
    r"|relative_attention|rel_pos|nope_layer"
    r"|^(?:attention_factor|beta_fast|beta_slow|long_factor|short_factor|low_freq_factor|high_freq_factor)$"
)
_ABOUT_ATTENTION = re.compile("att|position")
_OFTEN_MISSPELT = (
    "max_position_embeddings",
    "no_rope_layer_interval",
    "no_rope_layers",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_pct",
    "sliding_window_pattern",
)


class Keys:
    """A view of a mapping that remembers what was read from it. The mapping is never changed.

    A key whose value is null counts as absent. Several names given for one thing are the same thing: if more than one
    is present they must agree.

    >>> keys = Keys({"n_head": 4, "n_embd": 64, "theta": 1e4})
    >>> keys.whole("num_attention_heads", "n_head")
    4
    >>> keys.whole("layers") is None
    True
    """

    def __init__(self, values: Mapping[str, Any], path: str = "", used: set[str] | None = None) -> None:
        if len(values) > MOST_KEYS:
            raise ValueError(f"{path or 'the configuration'} has {len(values)} keys, which is not believable")
        wrong = next((k for k in values if not isinstance(k, str)), None)
        if wrong is not None:
            raise ValueError(f"keys are strings, got {wrong!r:.60} in {path or 'the configuration'}")
        self.values = values
        self.path = path
        self.used: set[str] = set() if used is None else used
        self.mine: set[str] = set()

    def full(self, name: str) -> str:
        """The name with the path to it."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, *names: str) -> bool:
        """Whether any of the names is present, not null."""
        return any(self.values.get(n) is not None for n in names)

    def spelt(self, *names: str) -> str:
        """The first of the names that is present, with its path; the first of all if none is."""
        return self.full(next((n for n in names if self.values.get(n) is not None), names[0]))

    def raw(self, *names: str) -> Any:
        """The value, or None.

        Raises:
            ValueError: two of the names are present with different values.
        """
        found = [(n, self.values[n]) for n in names if self.values.get(n) is not None]
        self.mine.update(n for n in names if n in self.values)
        self.used.update(self.full(n) for n, _ in found)
        if not found:
            return None
        first, value = found[0]
        for name, other in found[1:]:
            if (type(other) is not type(value) and not (_number(other) and _number(value))) or other != value:
                raise ValueError(
                    f"{self.full(first)} = {shown(value)} and {self.full(name)} = {shown(other)} are the same thing "
                    "and disagree"
                )
        return value

    def number(
        self, *names: str, low: float = -math.inf, high: float = math.inf, above: float | None = None
    ) -> float | None:
        """A finite number, or None.

        Raises:
            ValueError: something else, or out of range.
        """
        value = self.raw(*names)
        if value is None:
            return None
        if not _number(value) or not low <= value <= high or (above is not None and value <= above):
            allowed = "a finite number" + (f" above {above:g}" if above is not None else "")
            allowed += f" of at least {low:g}" if low > -math.inf else ""
            allowed += f" and at most {high:g}" if high < math.inf else ""
            raise ValueError(f"{self.spelt(*names)} is {allowed}, got {shown(value)}")
        return float(value) if not isinstance(value, int) else value

    def whole(self, *names: str, low: int = 1, high: int = LONGEST) -> int | None:
        """A whole number, or None; 4096.0 is one.

        Raises:
            ValueError: something else, or out of range.
        """
        value = self.raw(*names)
        if value is None:
            return None
        if not _number(value) or value != int(value) or not low <= value <= high:
            raise ValueError(f"{self.spelt(*names)} is a whole number from {low} to {high}, got {shown(value)}")
        return int(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false.

        Raises:
            ValueError: something else.
        """
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"{self.spelt(*names)} is true or false, got {shown(value)}")
        return value

    def text(self, *names: str) -> str | None:
        """A string, or None.

        Raises:
            ValueError: something else.
        """
        value = self.raw(*names)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{self.spelt(*names)} is a string, got {shown(value)}")
        return value

    def items(self, *names: str, of: type | tuple[type, ...], most: int = MOST_LAYERS) -> list[Any] | None:
        """A list of values of some type, or None.

        Raises:
            ValueError: something else, or too long.
        """
        value = self.raw(*names)
        if value is None:
            return None
        kinds = of if isinstance(of, tuple) else (of,)
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise ValueError(f"{self.spelt(*names)} is a list of at most {most}, got {shown(value)}")
        for item in value:
            if not isinstance(item, kinds) or (isinstance(item, bool) and bool not in kinds):
                wanted = " or ".join(k.__name__ for k in kinds)
                raise ValueError(f"{self.spelt(*names)} is a list of {wanted}, it holds {shown(item)}")
            if not isinstance(item, str) and not _number(item):
                raise ValueError(f"{self.spelt(*names)} holds {shown(item)}, which is not a finite number")
        return list(value)

    def block(self, *names: str) -> Keys | None:
        """A nested mapping as a view of its own, or None.

        Raises:
            ValueError: something else.
        """
        value = self.raw(*names)
        if value is None:
            return None
        name = next(n for n in names if self.values.get(n) is not None)
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.full(name)} is an object of keys, got {shown(value)}")
        return Keys(value, self.full(name), self.used)

    def ignore(self, *names: str) -> None:
        """Known, and of no consequence."""
        self.mine.update(names)

    def leftovers(self) -> list[str]:
        """Keys that are present, mean something, and were not read."""
        return [k for k, v in self.values.items() if k not in self.mine and v is not None and v is not False]

    def refuse_all(self, known: Iterable[str], reader: str) -> None:
        """Every key of a block about positions must have been read.

        Raises:
            ValueError: naming the first that was not, and the nearest known spelling.
        """
        for key in self.leftovers():
            raise ValueError(f"{self.full(key)} is not read by {reader}{_nearest(key, known)}")

    def refuse_positional(self, known: Collection[str], reader: str) -> None:
        """Of all the keys of a model, those that concern positions must have been read.

        Raises:
            ValueError: naming the first that was not, and the nearest known spelling.
        """
        for key in self.leftovers():
            if len(key) > 100 or key in _HARMLESS:
                continue
            inside = self.values[key] if _ABOUT_ATTENTION.match(key) else None
            nested = next((k for k in inside if _positional(k)), None) if isinstance(inside, Mapping) else None
            if nested is not None:
                raise ValueError(f"{self.full(key)}.{str(nested)[:60]} is not read by {reader}")
            if _ABOUT_POSITIONS.search(key) or _misspells(key):
                raise ValueError(f"{self.full(key)} is not read by {reader}{_nearest(key, [*known, *_OFTEN_MISSPELT])}")


_HARMLESS = frozenset({"ignore_keys_at_rope_validation"})


def shown(value: Any) -> str:
    """The beginning of a value as Python writes it, whatever it is.

    >>> len(shown(list(range(1000))))
    61
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return f"a {type(value).__name__} too big to show"
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def _positional(key: Any) -> bool:
    return isinstance(key, str) and bool(_ABOUT_POSITIONS.search(key))


def _number(value: Any) -> bool:
    """A finite int or float, not a bool, that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def _nearest(word: str, known: Iterable[str]) -> str:
    names = sorted(set(known) - {word})
    close = difflib.get_close_matches(word[:100], names, n=1)
    return f"; did you mean {close[0]}?" if close else f" (known: {', '.join(names)})" if len(names) <= 16 else ""


def _misspells(key: str) -> bool:
    """One or two letters away from a name that matters (transposed, doubled, left out)."""
    return any(
        abs(len(key) - len(name)) <= 2 and key != name and _distance(key, name) <= 2
        for name in _OFTEN_MISSPELT
        if key[:1] == name[:1]
    )


def _distance(a: str, b: str) -> int:
    """Letters to change, insert or delete to make b of a."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]
