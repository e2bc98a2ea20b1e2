"""A pass key hidden in a long text: with which extensions is it still found, by depth and length?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from ropewalk.lab.checkpoint.extend import Setting
from ropewalk.lab.checkpoint.llama import Llama
from ropewalk.lab.checkpoint.passkey import CHOICES, DEPTHS, Cell, Hunt, hunts, seek
from ropewalk.lab.checkpoint.tokens import Tokens
from ropewalk.lab.checkpoint.trials import Trial
from ropewalk.version import __version__

SCHEMA = "ropewalk.extend.needle/1"


def lengths(longest: int) -> tuple[int, ...]:
    """Of the texts: an eighth, a quarter, a half, all."""
    return tuple(longest // n for n in (8, 4, 2, 1))


@dataclass(frozen=True)
class Found:
    """What one extension finds: for each length and depth, the mean over all texts."""

    text: str
    extension: dict[str, Any] | None
    cells: tuple[tuple[int, float, float, float], ...]
    """Length, depth, the right key's share of the probability, in how many of the texts it was the likeliest."""


@dataclass(frozen=True)
class Needles:
    """The whole experiment, ready to be shown."""

    setting: Setting
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    found: tuple[Found, ...]

    def json(self) -> dict[str, Any]:
        """`ropewalk.extend.needle/1`."""
        setting = self.setting
        return {
            "schema": SCHEMA,
            "model": setting.about(),
            "text": {"name": setting.text, "windows": [w.fingerprint for w in setting.windows]},
            "dtype": setting.dtype_name,
            "choices": CHOICES,
            "lengths": list(self.lengths),
            "depths": list(self.depths),
            "tries": [
                {
                    "try": one.text,
                    "extension": one.extension,
                    "cells": [
                        dict(zip(("length", "depth", "share", "found"), cell, strict=True)) for cell in one.cells
                    ],
                }
                for one in self.found
            ],
        }


@dataclass(frozen=True)
class Task:
    """One extension, one text, and lengths at which the extension does the same, so that prompts share beginnings."""

    trial: Trial
    hunt: Hunt
    lengths: tuple[int, ...]

    def key(self, setting: Setting) -> dict[str, Any]:
        """Everything that its cells depend on, as far as rounding."""
        hunt = self.hunt
        prompt = [t.tolist() for t in (hunt.text, hunt.hidden, hunt.asked, *hunt.choices)]
        return {
            "schema": SCHEMA,
            "version": __version__,
            "model": setting.checkpoint.fingerprint,
            "prompt": hashlib.sha256(json.dumps([hunt.start, prompt]).encode()).hexdigest(),
            "lengths": list(self.lengths),
            "depths": list(DEPTHS),
            "dtype": setting.dtype_name,
            "positions": self.trial.fingerprint(self.lengths[0]),
        }

    def run(self, model: Llama, setting: Setting, step: Callable[[float], None] | None) -> dict[str, Any]:
        """The cells."""
        model.turn_by(self.trial.plan, at_length=self.lengths[0])
        found = seek(model, self.hunt, self.lengths, chunk=setting.chunk, step=step)
        return {"cells": [astuple(cell) for cell in found]}


def tasks(setting: Setting, tokens: Tokens, *, seed: int = 0) -> list[Task]:
    """All that is to be done: a key in every window, looked for with every extension.

    Raises:
        ValueError: windows that are too short for the question, or a tokenizer that gives numbers different lengths.
    """
    sizes, wanted = lengths(setting.length), hunts(tokens, setting.windows, seed=seed)
    for hunt in wanted:
        try:
            hunt.check(min(sizes))
        except ValueError as error:
            raise ValueError(f"{error}; the shortest prompts have an eighth of the length") from None
    out = []
    for trial in setting.trials:
        alike: dict[str, list[int]] = {}
        for size in sizes:
            alike.setdefault(trial.fingerprint(size), []).append(size)
        out += [Task(trial, hunt, tuple(group)) for hunt in wanted for group in alike.values()]
    return out


def summarise(setting: Setting, done: Sequence[tuple[Task, dict[str, Any]]]) -> Needles:
    """The mean over all texts.

    Args:
        setting: what was measured.
        done: every task and what came out.
    """
    out = []
    for trial in setting.trials:
        same: dict[tuple[int, float], list[Cell]] = {}
        for task, result in done:
            if task.trial is trial:
                for cell in (Cell(*numbers) for numbers in result["cells"]):
                    same.setdefault((cell.length, cell.depth), []).append(cell)
        out.append(Found(trial.text, trial.json(), tuple(_mean(same[at]) for at in sorted(same))))
    return Needles(setting, lengths(setting.length), DEPTHS, tuple(out))


def _mean(cells: Sequence[Cell]) -> tuple[int, float, float, float]:
    count = len(cells)
    share, found = sum(cell.share for cell in cells) / count, sum(cell.found for cell in cells) / count
    return cells[0].length, cells[0].depth, share, found
