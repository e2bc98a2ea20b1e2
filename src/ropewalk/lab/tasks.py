"""Synthetic tasks in which position is everything, and whose answers are known: trained short, tested long.

Each is one function that draws examples of n words and gives the question and the answer. The frame around them, the
same for all, makes of it what each form of model reads:

    decoder           start q … q | a … a        predicts each a from what stands before it
    encoder           q … q | ? … ?              says at each ? what belongs there
    encoder–decoder   q … q   and  | a … a       reads q in the encoder, predicts a in the decoder

A decoder is told the right beginning of the answer (teacher forcing); all right in this way is the same as all right on
its own, since each right token is what it would have continued from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.lab.corpora import Part
from ropewalk.lab.goals import IGNORE, Batch, Form, Goal, generator

WORDS = 16
"""Different words; tokens 0 … 15."""
NUMBERS = 512
"""Numbers that say places, in `sort`: any n of them in rising order, so that a longer text needs no new one."""
DIGITS = 10
LETTER, NUMBER, DIGIT = 0, WORDS, WORDS + NUMBERS
START, BAR, ASK = DIGIT + DIGITS, DIGIT + DIGITS + 1, DIGIT + DIGITS + 2
VOCABULARY = ASK + 1

Made = tuple[Tensor, Tensor]
"""The question `(B, any)`, and the answer `(B, any)` after it; or, as long as the question, at its tokens."""


def copy(n: int, batch: int, random: torch.Generator) -> Made:
    """The words again.

    >>> question, answer = copy(4, 2, generator(0))
    >>> bool((question == answer).all())
    True
    """
    words = _words(n, batch, random)
    return words, words


def reverse(n: int, batch: int, random: torch.Generator) -> Made:
    """The words from the last to the first."""
    words = _words(n, batch, random)
    return words, words.flip(1)


def nth(n: int, batch: int, random: torch.Generator) -> Made:
    """Words, then a number in four decimal digits, counted from 1: the word at that place."""
    words = _words(n, batch, random)
    at = torch.randint(n, (batch, 1), generator=random)
    digits = torch.cat([(at + 1) // 10**p % 10 + DIGIT for p in (3, 2, 1, 0)], dim=1)
    return torch.cat([words, digits], dim=1), words.gather(1, at)


def sort(n: int, batch: int, random: torch.Generator) -> Made:
    """Pairs of a number and a word, shuffled: the words by their numbers.

    Raises:
        ValueError: there are not so many numbers.
    """
    if n > NUMBERS:
        raise ValueError(f"sort has {NUMBERS} numbers, too few for {n} words; take a smaller length")
    words = _words(n, batch, random)
    numbers = torch.stack([torch.randperm(NUMBERS, generator=random)[:n] for _ in range(batch)])
    question = torch.stack([numbers + NUMBER, words], dim=-1).flatten(1)
    return question, words.gather(1, numbers.argsort(1))


def translate(n: int, batch: int, random: torch.Generator) -> Made:
    """Like a translation: every word by its counterpart, and each pair of neighbours in the other order."""
    words = _words(n, batch, random)
    counterpart = torch.randperm(WORDS, generator=generator(7))
    swapped = torch.arange(n) ^ 1
    swapped[swapped >= n] = n - 1
    return words, counterpart[words[:, swapped]]


def previous(n: int, batch: int, random: torch.Generator) -> Made:
    """At each word that has stood before: the word that followed it then (induction). No answer at the others."""
    words = _words(n, batch, random)
    latest = torch.full_like(words, -1)
    for word in range(WORDS):
        here = words == word
        last = torch.where(here, torch.arange(n), -1).cummax(1).values  # this word's latest place, itself included
        before = torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)
        latest = torch.where(here, before, latest)
    return words, torch.where(latest < 0, IGNORE, words.gather(1, latest.clamp(min=0) + (latest >= 0)))


def brackets(n: int, batch: int, random: torch.Generator) -> Made:
    """Nested brackets of eight kinds whose closing ones all look alike: at each of those, which kind it closes.

    Words 0 … 7 open, word 8 closes; up to six are open at once, and all are closed in the end if n is even.
    """
    kinds, close, deepest = 8, 8, 6
    question = torch.empty(batch, n, dtype=torch.int64)
    answer = torch.full((batch, n), IGNORE, dtype=torch.int64)
    chance, kind = torch.rand(batch, n, generator=random).tolist(), torch.randint(kinds, (batch, n), generator=random)
    for row in range(batch):
        opened: list[int] = []
        for at in range(n):
            must_close = len(opened) >= min(deepest, n - at)
            if opened and (must_close or chance[row][at] < 0.5):
                question[row, at], answer[row, at] = close, opened.pop()
            else:
                opened.append(int(kind[row, at]))
                question[row, at] = opened[-1]
    return question, answer


def _words(n: int, batch: int, random: torch.Generator) -> Tensor:
    return torch.randint(WORDS, (batch, n), generator=random)


@dataclass(frozen=True)
class Task:
    """How examples are drawn, and what shape they have."""

    make: Callable[[int, int, torch.Generator], Made]
    what: dict[str, str]
    in_place: bool = False
    """The answers stand at tokens of the question, not after it."""
    wide: int = 1
    """Tokens a word in the question."""
    more: int = 0
    """Tokens of the question beside its words."""
    answers: int | None = None
    """Tokens of the answer; None: as many as words."""

    def words(self, length: int, form: Form) -> int:
        """How many words fit into so many tokens of the longest sequence that the model reads.

        Raises:
            ValueError: not even two do.
        """
        if self.in_place:
            n = length
        elif form == "encoder-decoder":
            n = (length - max(self.more, 1)) // self.wide
        elif self.answers is None:
            n = (length - 2 - self.more) // (self.wide + 1)
        else:
            n = (length - 2 - self.more - self.answers) // self.wide
        if n < 2:
            raise ValueError(f"{length} tokens are too few for this task; give a longer length")
        return n


TASKS: dict[str, Task] = {
    "copy": Task(copy, {"en": "write the words again", "ja": "単語列をそのまま書き写す"}),
    "reverse": Task(reverse, {"en": "write them from last to first", "ja": "単語列を逆順に書く"}),
    "nth": Task(nth, {"en": "say the word at a given place", "ja": "指定された番目の単語を答える"}, more=4, answers=1),
    "sort": Task(sort, {"en": "order words by their numbers", "ja": "番号順に単語を並べる"}, wide=2),
    "translate": Task(
        translate, {"en": "replace words, swap neighbours", "ja": "単語を置き換え、隣どうしを入れ替える"}
    ),
    "previous": Task(
        previous, {"en": "what followed this word before", "ja": "同じ単語の前回の出現の次に来た語を答える"}, True
    ),
    "brackets": Task(brackets, {"en": "which bracket does this one close", "ja": "対応する括弧の種類を答える"}, True),
}
"""All tasks, by name."""


class Exercise(Goal):
    """A task as a goal. Training draws lengths from a quarter of the longest up, one length a batch, so no padding."""

    def __init__(self, name: str) -> None:
        self.name, self.task = name, TASKS[name]
        self.vocabulary = VOCABULARY
        self.forms = ("decoder", "encoder") if self.task.in_place else ("decoder", "encoder", "encoder-decoder")

    def fingerprint(self) -> str:
        """The task's name: everything else follows from it."""
        return self.name

    def draw(self, seed: int, step: int, *, batch: int, length: int, form: Form) -> Batch:
        """Fresh examples at every step."""
        random = generator(3, seed, step)
        most = self.task.words(length, form)
        n = int(torch.randint(max(most // 4, 2), most + 1, (), generator=random))
        return self.frame(*self.task.make(n, batch, random), form)

    def held_out(
        self, part: Part, *, length: int, tokens: int, batch: int, form: Form, stretch: int | None = None
    ) -> Iterator[Batch]:
        """Examples of the full length; validation and test draw from different numbers, and training from others."""
        n = self.task.words(length, form)
        for number in range(max(1, tokens // (length * batch))):
            random = generator(4 if part == "test" else 5, number, length)
            yield self.frame(*self.task.make(n, batch, random), form)

    def frame(self, question: Tensor, answer: Tensor, form: Form) -> Batch:
        """Question and answer as this form of model reads them."""
        if self.task.in_place:
            return Batch(question, answer)
        start, bar = (torch.full((len(question), 1), token) for token in (START, BAR))
        if form == "encoder-decoder":
            return Batch(torch.cat([bar, answer[:, :-1]], 1), answer, question)
        if form == "encoder":
            ask = torch.full_like(answer, ASK)
            targets = torch.cat([torch.full_like(torch.cat([question, bar], 1), IGNORE), answer], 1)
            return Batch(torch.cat([question, bar, ask], 1), targets)
        unasked = torch.full_like(question, IGNORE)
        return Batch(
            torch.cat([start, question, bar, answer[:, :-1]], 1), torch.cat([unasked, start * 0 + IGNORE, answer], 1)
        )
