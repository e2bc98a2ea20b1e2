"""Measurements: against plain loops, at every length on the same text, and where attention goes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk import ENCODINGS
from ropewalk.lab.classes import Documents
from ropewalk.lab.corpora import Corpus, Document
from ropewalk.lab.evaluate import extended, max_length, measure, profile
from ropewalk.lab.goals import IGNORE, Batch, Goal, Language, _beginnings
from ropewalk.lab.settings import Settings
from ropewalk.lab.tasks import Exercise
from ropewalk.lab.transformer import Transformer
from ropewalk.lab.vocabulary import Vocabulary

SMALL = {"dim": 16, "heads": 2, "layers": 2, "length": 16, "batch": 4}
CORPUS = Corpus.of("made", [Document(str(n), f"{n} naïve words " * 30) for n in range(40)])


def made(goal: Goal | None = None, **options: Any) -> tuple[Transformer, Goal, Settings]:
    settings = Settings(**{**SMALL, **options})
    goal = goal or Language(CORPUS, Vocabulary())
    model = Transformer(settings.shape(goal.vocabulary, goal.classes), seed=3)
    return model, goal, settings


def by_hand(model: Transformer, tokens: list[int], length: int, stretches: list[int]) -> list[list[float]]:
    """Nats of each next token, a window at a time, one token at a time, in stretches of 64 tokens."""
    found = []
    for at in (start + w * length for start in stretches for w in range(64 // length)):
        window = tokens[at : at + length + 1]
        with torch.no_grad():
            logits = model(torch.tensor([window[:-1]]))[0].double().log_softmax(-1)
        found.append([-float(logits[n, window[n + 1]]) for n in range(length)])
    return found


def test_bits_per_byte_are_those_of_a_plain_loop() -> None:
    model, goal, settings = made()
    assert isinstance(goal, Language)
    stream, size = Vocabulary().stream(CORPUS.part("test"))
    tokens = stream.tolist()
    entries = measure(model, goal, settings, "test", lengths=(1, 2, 4), tokens=256)
    scale = 1 / math.log(2) * len(tokens) / size
    assert size == sum(len(d.text.encode()) for d in CORPUS.part("test"))
    for entry in entries:
        length = entry["length"]
        nats = by_hand(model, tokens, length, [(len(tokens) - 65) * n // 3 for n in range(4)])
        flat = [n for row in nats for n in row]
        assert entry["answers"] == 256
        assert entry["bits"] == pytest.approx(sum(flat) / 256 * scale, rel=1e-5)
        spans = [(s["from"], s["to"]) for s in entry["by_position"]]
        assert spans[0][0] == 0
        assert spans[-1][1] == length
        for span in entry["by_position"]:
            inside = [row[n] for row in nats for n in range(span["from"], span["to"])]
            assert span["mean"] == pytest.approx(sum(inside) / len(inside) * scale, rel=1e-5)
        assert entry["blocks"] == pytest.approx(
            [sum(flat[n : n + 64]) / 64 * scale for n in range(0, 256, 64)], rel=1e-5
        )
    again = measure(model, goal, settings, "test", lengths=(2,), tokens=256, longest=4)
    assert again[0]["blocks"] == entries[1]["blocks"], "stretches are the same whatever else is measured"


def test_the_same_tokens_are_hidden_at_every_length() -> None:
    _, goal, _ = made()
    seen = {}
    for length in (16, 32):
        batches = goal.held_out("test", length=length, tokens=128, batch=2, form="encoder", stretch=32)
        rows = [torch.cat([b.inputs.flatten() for b in batches])]
        seen[length] = rows[0]
    assert torch.equal(seen[16], seen[32])
    hidden = (seen[16] == Vocabulary().mask).double().mean()
    assert 0.05 < hidden < 0.3
    (batch, *_) = goal.held_out("test", length=16, tokens=128, batch=8, form="encoder")
    masked = batch.inputs == Vocabulary().mask
    assert (batch.targets[~masked] == IGNORE).all()
    assert (batch.targets[masked] < 256 + 1).all()


def test_what_is_measured_comes_from_all_documents() -> None:
    documents = [Document(str(n), chr(97 + n) * 1000) for n in range(26)]
    goal = Language(Corpus.of("made", documents), Vocabulary())
    wanted = {d.text[0] for d in goal.corpus.part("test")}
    assert len(wanted) > 2
    batches = list(goal.held_out("test", length=8, tokens=16 * 10, batch=3, form="decoder", stretch=16))
    seen = torch.cat([b.targets for b in batches])
    assert seen.shape == (20, 8)
    assert {chr(t) for t in seen.flatten().tolist() if t < 256} == wanted


@pytest.mark.parametrize("tokens", [31, 32, 64, 100, 500, 996, 10**9])
@pytest.mark.parametrize("length", [4, 8, 12, 32])
def test_stretches_begin_alike_at_every_length_and_never_overlap(length: int, tokens: int) -> None:
    starts = _beginnings(997, tokens, length, 32).tolist()
    if tokens < 32:
        assert starts == [n * length for n in range(31 // length)]
        return
    stretches = min(997, tokens) // 32
    assert len(starts) == stretches * (32 // length)
    assert all(b - a >= length for a, b in itertools.pairwise(starts))
    firsts = starts[:: 32 // length]
    assert firsts == _beginnings(997, tokens, 32, 32).tolist()
    assert firsts[0] == 0
    assert starts[-1] + length <= 997
    assert stretches == 1 or firsts[-1] == 997 - 32, "the last one is at the end"


def test_a_stretch_in_which_nothing_is_hidden_leaves_no_stretches_but_a_mean() -> None:
    model, goal, settings = made(goal=Language(CORPUS, Vocabulary()))
    settings = Settings(**{**SMALL, "goal": "masked", "length": 4})
    model = Transformer(settings.shape(goal.vocabulary), seed=3)
    (entry,) = measure(model, goal, settings, "test", lengths=(1,), tokens=256)
    assert math.isfinite(entry["bits"])
    assert entry["blocks"] == []
    (entry,) = measure(model, goal, settings, "test", lengths=(1,), tokens=256, longest=16)
    assert len(entry["blocks"]) == 4
    assert all(map(math.isfinite, entry["blocks"]))


def test_training_draws_windows_of_the_training_part() -> None:
    goal = Language(CORPUS, Vocabulary())
    stream = Vocabulary().stream(CORPUS.part("train"))[0].tolist()
    text = " ".join(map(str, stream))
    seen = set()
    for step in range(40):
        batch = goal.draw(3, step, batch=2, length=16, form="decoder")
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        for row, after in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            assert " ".join(map(str, [*row, after[-1]])) in text
        seen.add(tuple(batch.inputs.flatten().tolist()))
    assert len(seen) == 40, "every step has a batch of its own"
    (again,) = [goal.draw(3, 7, batch=2, length=16, form="decoder").inputs]
    assert tuple(again.flatten().tolist()) in seen
    assert not torch.equal(again, goal.draw(4, 7, batch=2, length=16, form="decoder").inputs)
    hidden = goal.draw(3, 7, batch=2, length=16, form="encoder")
    masked = hidden.inputs == Vocabulary().mask
    assert torch.equal(hidden.inputs.where(~masked, hidden.targets), again)
    assert 0 < masked.sum() < 16


class Known(Goal):
    """Answers of which a part is right by construction: the token itself, which the model below always says."""

    vocabulary = 5

    def held_out(self, part: Any, *, length: int, tokens: int, batch: int, form: Any, stretch: Any = None) -> Any:
        inputs = torch.arange(length).remainder(5).expand(4, length).clone()
        targets = inputs.clone()
        targets[0, 3] = (targets[0, 3] + 1) % 5  # one wrong
        targets[1, : length // 2] = IGNORE
        yield Batch(inputs, targets)


class Echo(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(5) * 9)

    def forward(self, tokens: torch.Tensor, source: Any = None, at: Any = None) -> torch.Tensor:
        logits = self.weight[tokens]
        return logits if at is None else logits[at]


def test_right_answers_are_counted() -> None:
    settings = Settings(goal="copy", length=16, batch=4)
    (entry,) = measure(Echo(), Known(), settings, "test", lengths=(1,), tokens=64)  # type: ignore[arg-type]
    assert entry["answers"] == 16 * 4 - 8
    assert entry["accuracy"] == pytest.approx(55 / 56)
    assert entry["exact"] == 0.75
    assert entry["blocks"] == pytest.approx([55 / 56])
    at = {s["from"]: s["mean"] for s in entry["by_position"]}
    assert at[3] == pytest.approx(2 / 3)
    assert at[2] == 1


def test_what_is_too_long_is_said() -> None:
    model, goal, settings = made(encoding="learned")
    entries = measure(model, goal, settings, "test", lengths=(1, 2), tokens=128)
    assert "bits" in entries[0]
    assert entries[1] == {"multiple": 2, "length": 32, "refused": "the encoding ends at 16 positions"}
    assert max_length(model) == 16
    model, goal, settings = made()
    (entry,) = measure(model, goal, settings, "test", lengths=(4096,), tokens=10**6)
    assert entry["refused"] == "the test part is too short"


def test_measuring_changes_nothing() -> None:
    model, goal, settings = made(encoding="kerple")
    before = {n: p.clone() for n, p in model.state_dict().items()}
    one = measure(model, goal, settings, "test", lengths=(1,), tokens=128)
    assert measure(model, goal, settings, "test", lengths=(1,), tokens=128) == one
    assert model.training
    assert all(torch.equal(before[n], p) for n, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_an_extension_is_there_while_it_is_measured() -> None:
    model, goal, settings = made()
    assert model.decoder is not None
    plain = measure(model, goal, settings, "test", lengths=(4,), tokens=128)
    rope = model.decoder.encoding
    with extended(model, "yarn:4", 64):
        assert model.decoder.encoding.extension.json()["original_length"] == 16  # type: ignore[union-attr]
        assert measure(model, goal, settings, "test", lengths=(4,), tokens=128) != plain
    assert model.decoder.encoding is rope
    with extended(model, "linear:1", 64):
        assert measure(model, goal, settings, "test", lengths=(4,), tokens=128) == plain
    with pytest.raises(ZeroDivisionError), extended(model, "linear:2", 64):
        raise ZeroDivisionError
    assert model.decoder.encoding is rope
    model, *_ = made(encoding="alibi")
    with pytest.raises(ValueError, match="alibi does not rotate, so there is nothing that yarn:4 could extend"):
        extended(model, "yarn:4", 64).__enter__()


@pytest.mark.parametrize("name", [cls.name for cls in ENCODINGS])
def test_where_attention_goes(name: str) -> None:
    model, goal, settings = made(encoding=name)
    heads = profile(model, goal, settings, "test", texts=2)
    assert [(h["layer"], h["head"]) for h in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for h in heads:
        assert 0 <= h["entropy"] <= math.log2(16)
        assert sum(h["shares"]) == pytest.approx(1)
        assert len(h["shares"]) == 5  # 0, 1, 2-3, 4-7, 8-15


def test_attention_that_sees_evenly_has_known_entropy_and_distance() -> None:
    model, goal, settings = made(encoding="nope")
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    for h in profile(model, goal, settings, "test", texts=2):
        assert h["entropy"] == pytest.approx(sum(math.log2(n) for n in range(1, 17)) / 16, rel=1e-5)
        assert h["distance"] == pytest.approx(sum((n - 1) / 2 for n in range(1, 17)) / 16, rel=1e-5)
        assert h["shares"][0] == pytest.approx(sum(1 / n for n in range(1, 17)) / 16, rel=1e-5)


def test_classes_are_measured_on_the_same_pieces() -> None:
    documents = [Document(f"{name}/{n}.py", f"{name} {n} " * 80) for name in ("one", "two", "three") for n in range(30)]
    goal = Documents(Corpus.of("made", documents), Vocabulary(), longest=64)
    assert goal.names == ["one", "three", "two"]
    short, long = (
        list(goal.held_out("test", length=length, tokens=10**6, batch=4, form="encoder")) for length in (16, 64)
    )
    for a, b in zip(short, long, strict=True):
        assert torch.equal(a.targets, b.targets)
        assert torch.equal(a.inputs, b.inputs[:, :16])
    assert list(goal.held_out("test", length=65, tokens=999, batch=4, form="encoder")) == []
    for batch in (*short, goal.draw(0, 0, batch=30, length=16, form="encoder")):
        for tokens, target in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            assert goal.names[target][1:] in bytes(tokens + tokens).decode()
    drawn = torch.cat([goal.draw(0, step, batch=20, length=16, form="encoder").targets for step in range(30)])
    assert drawn.bincount().min() > 150
    manuals = [Document(f"{w}-{n}.{1 + n % 2}.txt", f"{w} {n} " * 50) for w in "abc" for n in range(40)]
    assert Documents(Corpus.of("m", manuals), Vocabulary(), longest=64).names == ["1", "2"]


def test_classes_are_measured_on_many_documents_before_many_pieces_of_one() -> None:
    documents = [Document(f"{name}/{n}.py", f"{name}{n:03} " * 300) for name in ("one", "two") for n in range(100)]
    goal = Documents(Corpus.of("made", documents), Vocabulary(), longest=64)

    def texts(tokens: int) -> list[str]:
        batches = goal.held_out("test", length=64, tokens=tokens, batch=5, form="encoder")
        pieces = [bytes(row).decode() for b in batches for row in b.inputs.tolist()]
        return [next(w for w in p.split()[1:] if len(w) == 6) for p in pieces]

    there = sum(len(some[:12]) for some in goal._part("test"))
    few, some, everything = texts(10 * 64), texts((there + 3) * 64), texts(10**6)
    assert len(few) == len(set(few)) == 10
    assert len(some) == there + 3
    assert len(everything) == 8 * there
    assert len(set(everything)) == there
    together = [key for key, _ in itertools.groupby(everything)]
    assert len(together) == there, "the pieces of a document stand together"


def test_a_task_is_measured_at_its_length(tmp_path: Path) -> None:
    model, goal, settings = made(goal=Exercise("reverse"), encoding="rope")
    settings = Settings(**{**SMALL, "goal": "reverse"})
    one, two = measure(model, goal, settings, "test", lengths=(1, 2), tokens=256)
    assert one["answers"] == 4 * 4 * 7
    assert two["answers"] == 2 * 4 * 15
