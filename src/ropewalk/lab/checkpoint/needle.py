"""A pass key hidden in a long text: does the model still find it, by depth and length?

Source: the passkey task of Mohtashami and Jaggi, Landmark Attention (2305.16300), appendix B; here without generation.
The text is real, the key is a number of five digits, and the model is asked to weigh ten such numbers, of which one is
right: what share of their probability falls on it. A model that does not look gives each a tenth.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.cache import KeyCache
from ropewalk.lab.checkpoint.extend import Setting
from ropewalk.lab.checkpoint.llama import Llama
from ropewalk.lab.checkpoint.perplexity import cost
from ropewalk.lab.checkpoint.tokens import Tokens
from ropewalk.lab.checkpoint.trials import Trial, Window
from ropewalk.version import __version__

SCHEMA = "ropewalk.extend.needle/1"
HIDDEN = "\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n"
ASKED = "\n\nWhat is the pass key? The pass key is"
CHOICES = 10
"""Numbers to choose among; the first is the right one."""
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where the key is hidden: at the beginning of the text, …, right before the question."""


@dataclass(frozen=True)
class Hunt:
    """One text with one key, in tokens."""

    text: Tensor
    """What the key is hidden in, beginning with what the model wants before any text."""
    start: int
    """How many tokens that is."""
    hidden: Tensor
    asked: Tensor
    choices: tuple[Tensor, ...]

    def fits(self, length: int) -> int:
        """How many tokens of the text a prompt of so many has, key and answer included."""
        return length - len(self.hidden) - len(self.asked) - max(len(c) for c in self.choices)

    def check(self, length: int) -> None:
        """Refuse a length that leaves no room for the text.

        Raises:
            ValueError: saying what would do.
        """
        room = self.fits(length) - self.start
        if room < 1:
            raise ValueError(
                f"a prompt of {length} tokens has no room for the key, the question and any text; {length - room + 1} "
                "would have"
            )

    def place(self, length: int, depth: float) -> int:
        """Before which token of the text the key is hidden."""
        return self.start + round(depth * (self.fits(length) - self.start))


def hunts(tokens: Tokens, windows: Sequence[Window], *, seed: int = 0) -> list[Hunt]:
    """A key of its own for each window.

    Raises:
        ValueError: two of the numbers have different lengths in tokens, so that their probabilities do not compare.
    """
    draw = torch.Generator().manual_seed(seed)
    out = []
    for window in windows:
        keys = (10_000 + torch.randperm(90_000, generator=draw)[:CHOICES]).tolist()
        choices = tuple(torch.tensor(tokens.encode(f" {key}")) for key in keys)
        if len({len(choice) for choice in choices}) != 1:
            raise ValueError("this tokenizer cuts numbers of five digits into different numbers of tokens")
        hidden = torch.tensor(tokens.encode(HIDDEN.format(key=keys[0])))
        out.append(Hunt(window.ids, len(tokens.start), hidden, torch.tensor(tokens.encode(ASKED)), choices))
    return out


def lengths(longest: int) -> tuple[int, ...]:
    """Of the texts: an eighth, a quarter, a half, all."""
    return tuple(longest // n for n in (8, 4, 2, 1))


@dataclass(frozen=True)
class Cell:
    """One prompt: how long, how deep, and what share of the probability fell on the right key."""

    length: int
    depth: float
    share: float
    found: bool
    """Whether the right key was the likeliest."""


def seek(
    model: Llama,
    hunt: Hunt,
    sizes: Sequence[int],
    depths: Sequence[float] = DEPTHS,
    *,
    chunk: int = 1024,
    step: Callable[[float], object] | None = None,
) -> list[Cell]:
    """All lengths and depths of one text.

    What prompts have in common is read once: the text before the key, and, for keys at one place, the shorter prompt.

    Raises:
        ValueError: a length that leaves no room for the text.
    """
    hunt.check(min(sizes))
    places: dict[int, list[tuple[int, float]]] = {}
    for size in sizes:
        for depth in depths:
            places.setdefault(hunt.place(size, depth), []).append((size, depth))
    work = _Work(model, chunk, _total(model, hunt, places), step)
    common, at, cells = model.caches(), 0, []
    for place in sorted(places):
        work.read(common, hunt.text[at:place])
        at = place
        caches, read = work.fork(common), place
        work.read(caches, hunt.hidden)
        for size, depth in sorted(places[place]):
            work.read(caches, hunt.text[read : hunt.fits(size)])
            read = hunt.fits(size)
            share = work.answer(caches, hunt)
            cells.append(Cell(size, depth, float(share[0]), bool(share[0] == share.max())))
    return sorted(cells, key=lambda cell: (cell.length, cell.depth))


def _total(model: Llama, hunt: Hunt, places: dict[int, list[tuple[int, float]]]) -> float:
    """The work of `seek`, in the units of `cost`; questions are short and not counted."""
    extra = len(hunt.hidden)
    branches = sum(
        cost(model, place, max(hunt.fits(size) for size, _ in asked) + extra) for place, asked in places.items()
    )
    return branches + cost(model, 0, max(places))


class _Work:
    """Reading through caches, and telling how far it is."""

    def __init__(self, model: Llama, chunk: int, total: float, step: Callable[[float], object] | None) -> None:
        self.model, self.chunk, self.total, self.step = model, chunk, total, step

    def read(self, caches: list[KeyCache], ids: Tensor) -> None:
        """Add tokens to the caches."""
        for at in range(0, len(ids), self.chunk):
            piece, first = ids[at : at + self.chunk], len(caches[0])
            with torch.inference_mode():
                self.model(piece[None], caches=caches)
            if self.step is not None:
                self.step(cost(self.model, first, first + len(piece)) / self.total)

    def fork(self, caches: list[KeyCache]) -> list[KeyCache]:
        """Caches that go on by themselves; appending makes new tensors, so what they have in common is not copied."""
        return [copy.copy(cache) for cache in caches]

    def answer(self, caches: list[KeyCache], hunt: Hunt) -> Tensor:
        """The share of each choice in the probability of all, `(choices,)`."""
        asked = self.fork(caches)
        scores = []
        with torch.inference_mode():
            self.model(hunt.asked[None, :-1], caches=asked)
            for choice in hunt.choices:
                given = torch.cat((hunt.asked[-1:], choice[:-1]))
                logits = self.model.logits(self.model(given[None], caches=self.fork(asked))[0]).float()
                scores.append(logits.log_softmax(-1).gather(1, choice[:, None]).sum())
        return torch.stack(scores).softmax(0)


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
        hunt.check(min(sizes))
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
