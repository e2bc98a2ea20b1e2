"""What a model is trained to do, and on what: the next token, hidden tokens, a class, or a task with a known answer.

Every batch is a function of the seed and of the number of the step, nothing else. So a run that goes on from a
checkpoint sees what it would have seen, all encodings see the same, and ranks need not talk about data.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.lab.corpora import Corpus, Part
from ropewalk.lab.vocabulary import Vocabulary

IGNORE = -100
"""A target that is not asked for."""

Form = Literal["decoder", "encoder", "encoder-decoder"]


class Batch(NamedTuple):
    """What goes in, and what should come out."""

    inputs: Tensor
    """Tokens, int64, `(B, S)`."""
    targets: Tensor
    """Tokens `(B, S)`, `IGNORE` where none is asked; or classes `(B,)`."""
    source: Tensor | None = None
    """For an encoder–decoder: what the encoder reads, `(B, any)`."""


def generator(*numbers: int) -> torch.Generator:
    """Random numbers that belong to these numbers alone."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(mixed)


class Goal:
    """What all goals have."""

    measure: ClassVar[Literal["bits", "accuracy"]] = "accuracy"
    forms: tuple[Form, ...] = ("decoder", "encoder", "encoder-decoder")
    """The first is the default."""
    vocabulary: int
    """How many different tokens there are."""
    classes: int | None = None
    """How many, where the whole text is classified."""

    def draw(self, seed: int, step: int, *, batch: int, length: int, form: Form) -> Batch:
        """The training batch of that step."""
        raise NotImplementedError

    def held_out(
        self, part: Part, *, length: int, tokens: int, batch: int, form: Form, stretch: int | None = None
    ) -> Iterator[Batch]:
        """Batches to be measured on, always the same: about `tokens` tokens; none if the part is too short.

        Text is taken in stretches of `stretch` tokens, None for `length`; windows lie side by side within each.
        """
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Names the data: a run that goes on must have the same."""
        raise NotImplementedError


class Language(Goal):
    """Prose or source: the next token (decoder), or hidden ones (encoder: 15 %, as in BERT, all of them masked).

    A part is a stream of its documents, each with a token of its own at its beginning. What is measured is taken from
    all of it, in stretches at equal distances, since its first thousands of tokens may be one document. Windows lie
    side by side within a stretch: the same tokens are measured at every length, only cut otherwise.
    """

    measure = "bits"
    forms = ("decoder", "encoder")
    MASKED: ClassVar[float] = 0.15

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary) -> None:
        self.corpus, self.tokens = corpus, vocabulary
        self.vocabulary = vocabulary.size
        self._part = cache(self._encode)
        self._chances = cache(_chances)

    def _encode(self, part: Part) -> tuple[Tensor, int]:
        return self.tokens.stream(self.corpus.part(part))

    def fingerprint(self) -> str:
        """The text's and the vocabulary's."""
        return f"{self.corpus.digest} {self.tokens.name}"

    def bytes_per_token(self, part: Part) -> float:
        """To turn bits per token into bits per byte."""
        stream, size = self._part(part)
        return size / max(len(stream), 1)

    def draw(self, seed: int, step: int, *, batch: int, length: int, form: Form) -> Batch:
        """Windows that begin anywhere.

        Raises:
            ValueError: the training part is shorter than one window.
        """
        stream, _ = self._part("train")
        if len(stream) < length + 1:
            raise ValueError(
                f"the training part of {self.corpus.name} has {len(stream)} tokens, too few for a window of {length}; "
                "give more text or a smaller --length"
            )
        random = generator(1, seed, step)
        starts = torch.randint(len(stream) - length, (batch,), generator=random)
        windows = stream[starts[:, None] + torch.arange(length + 1)].long()
        return self._batch(windows, form, torch.rand(windows.shape, generator=random))

    def held_out(
        self, part: Part, *, length: int, tokens: int, batch: int, form: Form, stretch: int | None = None
    ) -> Iterator[Batch]:
        """Windows, each predicting all its tokens but the first."""
        stream, _ = self._part(part)
        first = _beginnings(len(stream) - 1, tokens, length, stretch or length)
        for at in range(0, len(first), batch):
            places = first[at : at + batch, None] + torch.arange(length + 1)
            yield self._batch(stream[places].long(), form, self._chances(len(stream))[places])

    def _batch(self, windows: Tensor, form: Form, chances: Tensor) -> Batch:
        if form == "decoder":
            return Batch(windows[:, :-1], windows[:, 1:])
        windows, hidden = windows[:, :-1], chances[:, :-1] < self.MASKED
        return Batch(windows.masked_fill(hidden, self.tokens.mask), windows.masked_fill(~hidden, IGNORE))


def _beginnings(there: int, tokens: int, length: int, stretch: int) -> Tensor:
    """Of windows: side by side in stretches, which are spread evenly over all tokens.

    A text shorter than a stretch is one: of that, as many windows as fit.

    >>> _beginnings(100, 32, length=8, stretch=16).tolist()
    [0, 8, 84, 92]
    """
    tokens = min(there, tokens)
    if tokens < stretch:
        return torch.arange(max(tokens, 0) // length) * length
    count = tokens // stretch
    stretches = torch.arange(count) * (there - stretch) // max(count - 1, 1)
    return (stretches[:, None] + torch.arange(stretch // length) * length).flatten()


def _chances(count: int) -> Tensor:
    """A number for each token of a held-out stream, so that the same ones are hidden however it is cut."""
    return torch.rand(count, generator=generator(2))
