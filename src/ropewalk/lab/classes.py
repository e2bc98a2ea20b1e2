"""Documents to classify: which package a module belongs to, which section a manual page.

A document's class is the folder that its name begins with, or else what follows the last dot of it: `asyncio/events.py`
is of class asyncio, `ls.1` of class 1. Training draws all classes equally often.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import PurePath

import torch
from torch import Tensor

from ropewalk.lab.corpora import Corpus, Part
from ropewalk.lab.goals import Batch, Form, Goal, generator
from ropewalk.lab.vocabulary import Vocabulary

MOST_CLASSES = 10
"""The most frequent ones."""
MOST_DOCUMENTS = 12
"""Held-out documents a class, so that none dominates."""
CROPS = 8
"""Held-out pieces a document."""


class Documents(Goal):
    """Pieces of documents, to be told their class.

    Args:
        corpus: of documents whose names tell classes.
        vocabulary: of the tokens.
        longest: what held-out documents have at least: they are measured at every length, from the same beginnings.

    Raises:
        ValueError: fewer than two classes with enough documents.
    """

    measure = "accuracy"
    forms = ("encoder",)

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, *, longest: int) -> None:
        self.corpus, self.tokens, self.longest = corpus, vocabulary, longest
        self.vocabulary = vocabulary.size
        counts: dict[str, int] = {}
        for document in corpus.part("train"):
            if len(document.text) >= longest:
                counts[_class(document.name)] = counts.get(_class(document.name), 0) + 1
        held = {_class(d.name) for d in corpus.part("test") if len(d.text) >= longest}
        enough = sorted((-count, name) for name, count in counts.items() if count >= 8 and name in held)
        self.names = sorted(name for _, name in enough[:MOST_CLASSES])
        if len(self.names) < 2:
            raise ValueError(
                f"{corpus.name} has fewer than two classes with documents of {longest} tokens: a class is a folder, or "
                "the end of a name after its last dot; try pysource or manpages-ja"
            )
        self.classes = len(self.names)
        self._part = cache(self._encode)

    def _encode(self, part: Part) -> list[list[Tensor]]:
        """Tokens of the documents of each class."""
        found: list[list[Tensor]] = [[] for _ in self.names]
        for document in self.corpus.part(part):
            if _class(document.name) in self.names and len(document.text) >= self.longest:
                tokens = torch.tensor(list(self.tokens.encode(document.text)), dtype=torch.int32)
                if len(tokens) >= self.longest:
                    found[self.names.index(_class(document.name))].append(tokens)
        return found

    def fingerprint(self) -> str:
        """The text's, the vocabulary's and the classes'."""
        return f"{self.corpus.digest} {self.tokens.name} {' '.join(self.names)} {self.longest}"

    def draw(self, seed: int, step: int, *, batch: int, length: int, form: Form) -> Batch:
        """A class, then one of its documents, then a piece of it, each with equal chance."""
        documents, random = self._part("train"), generator(6, seed, step)
        targets = torch.randint(len(self.names), (batch,), generator=random)
        pieces = []
        for target in targets.tolist():
            among = documents[target]
            tokens = among[int(torch.randint(len(among), (), generator=random))]
            start = int(torch.randint(len(tokens) - length + 1, (), generator=random))
            pieces.append(tokens[start : start + length])
        return Batch(torch.stack(pieces).long(), targets)

    def held_out(
        self, part: Part, *, length: int, tokens: int, batch: int, form: Form, stretch: int | None = None
    ) -> Iterator[Batch]:
        """Pieces that begin at the same places whatever the length; none longer than `longest`.

        Many documents come before many pieces of one, and pieces of a document stand together: they resemble each
        other, so a batch is closer to a thing of its own than a piece would be.
        """
        if length > self.longest:
            return
        documents = [(d, n) for n, some in enumerate(self._part(part)) for d in some[:MOST_DOCUMENTS]]
        most, crops = max(tokens // self.longest, 1), 1
        while crops < CROPS and sum(min(crops, len(d) // self.longest) for d, _ in documents) < most:
            crops += 1
        order = torch.randperm(len(documents), generator=generator(8)).tolist()  # a part of them has all classes
        pieces = [
            (document[start : start + length], target)
            for document, target in (documents[n] for n in order)
            for start in range(0, min(crops, len(document) // self.longest) * self.longest, self.longest)
        ][:most]
        for at in range(0, len(pieces), batch):
            some, targets = zip(*pieces[at : at + batch], strict=True)
            yield Batch(torch.stack(some).long(), torch.tensor(targets))


def _class(name: str) -> str:
    path = PurePath(name.removesuffix(".txt"))
    return path.parts[0] if len(path.parts) > 1 else path.suffix.lstrip(".")
