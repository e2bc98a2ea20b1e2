"""The passkey task on one text: a key is hidden, and ten numbers are weighed, of which one is right.

Source: Mohtashami and Jaggi, Landmark Attention (2305.16300); here in other words, in a real text, and without
generation: what is compared is the probability of each number. A model that does not look gives each a tenth.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.cache import KeyCache
from ropewalk.lab.checkpoint.llama import Llama
from ropewalk.lab.checkpoint.perplexity import CHUNK, cost
from ropewalk.lab.checkpoint.tokens import Tokens
from ropewalk.lab.checkpoint.trials import Window

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
    chunk: int = CHUNK,
    step: Callable[[float], object] | None = None,
) -> list[Cell]:
    """All lengths and depths of one text.

    What prompts have in common is read once: the text before the key, and, for keys at one place, the shorter prompt.

    Raises:
        ValueError: a length that leaves no room for the text; numbers that are not finite.
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
        share = torch.stack(scores).softmax(0)
        if not bool(share.isfinite().all()):
            raise ValueError("the model's numbers are not finite: weights that are damaged?")
        return share
