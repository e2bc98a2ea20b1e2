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
        """Pieces that begin at the same places whatever the length; none longer than `longest`."""
        pieces: list[Tensor] = []
        targets: list[int] = []
        for target, documents in enumerate(self._part(part)):
            for document in documents[:MOST_DOCUMENTS]:
                for crop in range(min(CROPS, len(document) // self.longest)):
                    start = crop * self.longest
                    pieces.append(document[start : start + length])
                    targets.append(target)
        if length > self.longest:
            return
        order = torch.randperm(len(pieces), generator=generator(8)).tolist()  # a part of them has all classes
        for at in range(0, min(len(order), max(tokens // self.longest, 1)), batch):
            some = order[at : at + batch]
            yield Batch(torch.stack([pieces[n] for n in some]).long(), torch.tensor([targets[n] for n in some]))


def _class(name: str) -> str:
    path = PurePath(name.removesuffix(".txt"))
    return path.parts[0] if len(path.parts) > 1 else path.suffix.lstrip(".")
