"""What is tried on a checkpoint: each word of `--try` becomes a plan of its positions; and the text to try it on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.extensions import Extension
from ropewalk.inspection import try_extension
from ropewalk.lab.checkpoint.tokens import Tokens
from ropewalk.plans import RotaryPlan

NONE, CONFIGURED = "none", "configured"
_NAMES = ("label", "extension", "length")
"""What a layer's frequencies come from, and not what it does."""


@dataclass(frozen=True)
class Trial:
    """A way to turn, and what it is called."""

    text: str
    """As asked for: none, configured, or NAME:FACTOR."""
    plan: RotaryPlan

    @property
    def extension(self) -> Extension | None:
        """That of the layers that turn."""
        return next((layer.extension for layer in self.plan.layers if layer.kind == "rope"), None)

    def json(self) -> dict[str, Any] | None:
        """The extension's name and parameters; None for none."""
        return None if self.extension is None else self.extension.json()

    def fingerprint(self, length: int) -> str:
        """Of all frequencies and multipliers for a text of this length: two words for one thing have one."""
        does = [
            {
                **{key: value for key, value in layer.json(length=length).items() if key not in _NAMES},
                "layers": where,
                "start": None if (s := layer.spectrum(length=length)) is None else (s.start_tokens, s.start_turns),
            }
            for where, layer in self.plan.groups()
        ]
        return hashlib.sha256(json.dumps(does, sort_keys=True, default=str).encode()).hexdigest()


def read_trial(text: str, plan: RotaryPlan) -> Trial:
    """A word of `--try`: `none` takes away what the checkpoint has, `configured` leaves it, others replace it.

    Raises:
        ValueError: as `ropewalk.inspection.try_extension`.
    """
    if text == CONFIGURED:
        return Trial(text, plan)
    if text == NONE:
        bare = (
            replace(layer, extension=None, default_length=None) if layer.kind == "rope" else layer
            for layer in plan.layers
        )
        return Trial(text, replace(plan, layers=tuple(bare)))
    return Trial(text, try_extension(text, plan)[1])


def usual(plan: RotaryPlan, length: int) -> tuple[str, ...]:
    """What to try if nobody says: nothing, what is configured, and the four best-known extensions by the factor that
    the length asks for."""
    own = any(layer.extension is not None for layer in plan.layers)
    factor = max(2, math.ceil(length / plan.original_length)) if plan.original_length else 2
    named = ("linear", "ntk", "dynamic", "yarn") if plan.original_length else ("linear", "ntk")
    return (NONE, *((CONFIGURED,) if own else ()), *(f"{name}:{factor}" for name in named))


@dataclass(frozen=True)
class Window:
    """A stretch of the text, as tokens."""

    ids: Tensor
    """`(length + 1,)`: the last one is predicted only."""

    @property
    def fingerprint(self) -> str:
        """Of the tokens."""
        return hashlib.sha256(json.dumps(self.ids.tolist()).encode()).hexdigest()


def windows(tokens: Tokens, text: str, length: int, count: int) -> list[Window]:
    """The first `count` stretches of the text that do not overlap.

    Each begins with what the model wants before any text, and has `length` tokens to read and as many to predict.

    Raises:
        ValueError: the text has too few tokens, and how many.
    """
    ids, start = tokens.encode(text), list(tokens.start)
    each = length + 1 - len(start)
    if each < 2:
        raise ValueError(f"a length of {length} leaves no room for any text")
    if len(ids) < each * count:
        fits = len(ids) - 1 + len(start)
        raise ValueError(
            f"the text has {len(ids)} tokens, {'' if count == 1 else f'{count} windows of '}length {length} "
            + (f"need {each * count}" if count > 1 else f"needs {each}; --length {fits} is the most for it")
        )
    return [Window(torch.tensor(start + ids[at * each : (at + 1) * each])) for at in range(count)]


def topics() -> str:
    """English text that every CPython carries: the reference topics of its help."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: Path) -> str:
    """A text file.

    Raises:
        ValueError: it cannot be read, is not UTF-8, or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text


def read_trials(texts: Sequence[str], plan: RotaryPlan, length: int) -> list[Trial]:
    """All of them, each once; the usual ones if there are none.

    Raises:
        ValueError: as `read_trial`.
    """
    return [read_trial(text, plan) for text in dict.fromkeys(texts or usual(plan, length))]
