"""All that decides what a training run does: one frozen record, checked, and written beside its results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from ropewalk.encodings import find
from ropewalk.encodings.rope import RoPE
from ropewalk.lab import corpora
from ropewalk.lab.classes import Documents
from ropewalk.lab.goals import Form, Goal, Language
from ropewalk.lab.stretching import stretched
from ropewalk.lab.tables import is_number, nearest
from ropewalk.lab.tasks import TASKS, Exercise
from ropewalk.lab.transformer import Shape
from ropewalk.lab.vocabulary import FromFile, Vocabulary
from ropewalk.protocol import PositionalEncoding, expect, is_int

Precision = Literal["float32", "bfloat16"]
Device = Literal["cpu", "cuda"]
GOALS = ("causal", "masked", "classify", *TASKS)
"""The next token, hidden tokens, the class of a document; then the synthetic tasks."""


@dataclass(frozen=True)
class Settings:
    """One run.

    Args:
        goal: what is learned, one of `GOALS`.
        corpus: a corpus by name, or text files and folders; not used by synthetic tasks.
        tokenizer: a `tokenizer.json`; None for bytes.
        form: decoder, encoder or encoder-decoder; None for what suits the goal.
        encoding: by name.
        options: of the encoding.
        dim: channels.
        heads: of attention.
        layers: of each stack.
        hidden: channels of the feed-forward layers; None for 4·dim.
        length: tokens of a training text.
        batch: texts a step.
        steps: of the optimiser.
        learning_rate: the highest, reached after the warm-up; a cosine takes it down to a tenth.
        warmup: steps of linear rise; None for a tenth of all, at most 100.
        weight_decay: AdamW's, on matrices outside the encoding and the token table.
        clip: the largest norm of the gradient.
        seed: of weights and batches.
        precision: of the products in training, by autocast; evaluation is in float32.
        device: cpu or cuda.
        threads: None for as many as torch takes. Sums depend on it in the last bit, so it is kept with the run.
        checks: how often the validation part is measured.
        validation_tokens: at each of those.
        lengths: at which multiples of the trained length the test part is measured.
        test_tokens: at each of those; 0 leaves the test part alone.
        extensions: context extensions to measure RoPE with as well, such as `yarn:8`; not trained with.

    Raises:
        ValueError: a value that is not possible, naming what is.
    """

    goal: str = "causal"
    corpus: tuple[str, ...] = ("pydoc",)
    tokenizer: str | None = None
    form: Form | None = None
    encoding: str = "rope"
    options: dict[str, Any] = field(default_factory=dict)
    dim: int = 128
    heads: int = 4
    layers: int = 4
    hidden: int | None = None
    length: int = 256
    batch: int = 16
    steps: int = 1000
    learning_rate: float = 3e-3
    warmup: int | None = None
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    precision: Precision = "float32"
    device: Device = "cpu"
    threads: int | None = None
    checks: int = 10
    validation_tokens: int = 16_384
    lengths: tuple[int, ...] = (1, 2, 4, 8)
    test_tokens: int = 65_536
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("corpus", "lengths", "extensions"):
            value = getattr(self, name)
            expect(isinstance(value, (str, list, tuple)), f"{name} is a list, got {value!r}")
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for name in ("corpus", "extensions"):
            value = getattr(self, name)
            expect(all(isinstance(word, str) for word in value), f"{name} is a list of words, got {list(value)!r}")
        expect(len(self.corpus) > 0, "corpus names a corpus, or files and folders; it is empty")
        expect(isinstance(self.encoding, str), f"encoding is a name, got {self.encoding!r}")
        expect(
            self.tokenizer is None or isinstance(self.tokenizer, str), f"tokenizer is a file, got {self.tokenizer!r}"
        )
        expect(isinstance(self.options, Mapping), f"options are a table, got {self.options!r}")
        expect(
            self.goal in GOALS, f"there is no goal {self.goal!r}{nearest(self.goal, GOALS)}; goals: {', '.join(GOALS)}"
        )
        forms = self.forms()
        expect(self.form in (None, *forms), f"{self.goal} is for {' or '.join(forms)}, got {self.form!r}")
        object.__setattr__(self, "encoding", find(self.encoding).name)
        for name in ("dim", "heads", "layers", "length", "batch", "steps", "checks", "validation_tokens"):
            value = getattr(self, name)
            expect(is_int(value) and value > 0, f"{name} is a positive whole number, got {value!r}")
        for name in ("hidden", "threads"):
            value = getattr(self, name)
            expect(value is None or (is_int(value) and value > 0), f"{name} is a positive whole number, got {value!r}")
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            expect(is_number(value) and value > 0, f"{name} is above 0, got {value!r}")
        expect(
            is_number(self.weight_decay) and self.weight_decay >= 0,
            f"weight_decay is 0 or more, got {self.weight_decay!r}",
        )
        for name in ("seed", "test_tokens", "warmup"):
            value = getattr(self, name)
            expect(
                (value is None and name == "warmup") or (is_int(value) and 0 <= value < 2**62),
                f"{name} is a whole number, 0 or more, got {value!r}",
            )
        for name, words in (("precision", get_args(Precision)), ("device", get_args(Device))):
            value = getattr(self, name)
            expect(value in words, f"{name} is one of {', '.join(words)}; got {value!r}")
        expect(
            all(is_int(n) and n > 0 for n in self.lengths) and len(self.lengths) > 0,
            f"lengths are positive whole multiples of the trained length, got {list(self.lengths)!r}",
        )
        expect(
            not self.extensions or self.encoding == "rope", f"context extensions are for rope, not for {self.encoding}"
        )
        for key in ("extension", "bands"):
            expect(key not in self.options, f"{key} is no option of training; extensions are measured afterwards")
        expect(self.dim % self.heads == 0, f"{self.heads} heads do not share {self.dim} channels evenly")
        encoding = self._encoding(causal=self.chosen_form() != "encoder")
        expect(
            self.chosen_form() == "decoder" or not self._encoding(causal=False).causal_only,
            f"{encoding.label} with options {dict(self.options)} looks back only, and an encoder looks both ways",
        )
        for text in self.extensions:
            assert isinstance(encoding, RoPE)
            for multiple in self.lengths:
                stretched(encoding, text, trained=self.length, length=multiple * self.length)

    def _encoding(self, *, causal: bool) -> PositionalEncoding:
        try:
            return self.shape(vocabulary=2).make_encoding(causal=causal)
        except TypeError as error:  # a word where a number belongs, say
            raise ValueError(f"{self.encoding} cannot have options {dict(self.options)}: {error}") from error

    def forms(self) -> tuple[Form, ...]:
        """What this goal can be learned by; the first is the default."""
        if self.goal in TASKS:
            return Exercise(self.goal).forms
        return ("decoder",) if self.goal == "causal" else ("encoder",)

    def chosen_form(self) -> Form:
        """The form, or the goal's default."""
        return self.form or self.forms()[0]

    def shape(self, vocabulary: int, classes: int | None = None) -> Shape:
        """Of the model."""
        sizes = {name: getattr(self, name) for name in ("dim", "heads", "layers", "hidden", "length")}
        return Shape(vocabulary, self.chosen_form(), self.encoding, self.options, **sizes, classes=classes)

    def make_goal(self) -> Goal:
        """The goal with its data.

        Raises:
            ValueError: the text is not there, or too short.
            ModuleNotFoundError: a tokenizer file without the package that reads it.
        """
        if self.goal in TASKS:
            return Exercise(self.goal)
        corpus = corpora.load(self.corpus)
        vocabulary = Vocabulary() if self.tokenizer is None else FromFile(self.tokenizer)
        if self.goal == "classify":
            return Documents(corpus, vocabulary, longest=max(self.lengths) * self.length)
        return Language(corpus, vocabulary)

    def rise(self) -> int:
        """Steps of warm-up."""
        return min(100, self.steps // 10) if self.warmup is None else self.warmup

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0.

        >>> run = Settings(steps=100, warmup=10, learning_rate=1.0)
        >>> [round(run.rate(step), 2) for step in (0, 9, 10, 55, 99)]
        [0.1, 1.0, 1.0, 0.55, 0.1]
        """
        rise = self.rise()
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        along = (step - rise) / max(self.steps - rise, 1)
        return self.learning_rate * (0.1 + 0.9 * (1 + math.cos(math.pi * along)) / 2)

    def json(self) -> dict[str, Any]:
        """As it is written."""
        return {**asdict(self), **{name: list(getattr(self, name)) for name in ("corpus", "lengths", "extensions")}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Settings:
        """As it was written; a key that is not known is refused by name.

        Raises:
            ValueError: an unknown key, or a value that is not possible.
        """
        known = [f.name for f in fields(cls)]
        for key in document:
            expect(key in known, f"there is no setting {key!r}{nearest(key, known)}; there are {', '.join(known)}")
        return cls(**document)
