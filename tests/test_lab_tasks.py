"""Synthetic tasks: every answer checked by a plain loop written apart, in every form that reads it."""

from __future__ import annotations

import itertools

import pytest
import torch

from ropewalk.lab import tasks
from ropewalk.lab.goals import IGNORE, generator
from ropewalk.lab.settings import GOALS, Settings
from ropewalk.lab.tasks import ASK, BAR, DIGIT, NUMBER, START, TASKS, WORDS, Exercise

FORMS = [(name, form) for name in TASKS for form in Exercise(name).forms]


def right_copy(q: list[int]) -> list[int]:
    return list(q)


def right_reverse(q: list[int]) -> list[int]:
    return [q[len(q) - 1 - n] for n in range(len(q))]


def right_nth(q: list[int]) -> list[int]:
    words, digits = q[:-4], q[-4:]
    return [words[int("".join(str(d - DIGIT) for d in digits)) - 1]]


def right_sort(q: list[int]) -> list[int]:
    pairs = [(q[n], q[n + 1]) for n in range(0, len(q), 2)]
    assert all(NUMBER <= number < DIGIT for number, _ in pairs)
    return [word for _, word in sorted(pairs)]


def right_translate(q: list[int]) -> list[int]:
    table = dict(enumerate(torch.randperm(WORDS, generator=generator(7)).tolist()))
    out = [table[w] for w in q]
    for n in range(0, len(out) - 1, 2):
        out[n], out[n + 1] = out[n + 1], out[n]
    return out


def right_previous(q: list[int]) -> list[int]:
    out = []
    for at, word in enumerate(q):
        before = [n for n in range(at) if q[n] == word]
        out.append(q[before[-1] + 1] if before else IGNORE)
    return out


def right_brackets(q: list[int]) -> list[int]:
    out, opened = [], []
    for word in q:
        if word == 8:
            out.append(opened.pop())
        else:
            opened.append(word)
            out.append(IGNORE)
    assert len(opened) == len(q) % 2
    return out


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("n", [2, 3, 7, 12])
def test_answers_are_right(name: str, n: int) -> None:
    question, answer = TASKS[name].make(n, 20, generator(5))
    solve = globals()[f"right_{name}"]
    for q, a in zip(question.tolist(), answer.tolist(), strict=True):
        assert solve(q) == a
    assert question.shape[1] == n * TASKS[name].wide + TASKS[name].more
    assert answer.shape[1] == (TASKS[name].answers or n)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_each_form_reads_the_same_question(name: str, form: str) -> None:
    task = TASKS[name]
    question, answer = task.make(6, 4, generator(1))
    batch = Exercise(name).frame(question, answer, form)
    asked = batch.targets != IGNORE
    assert batch.inputs.shape == batch.targets.shape
    assert torch.equal(batch.targets[asked], answer[answer != IGNORE])
    if task.in_place:
        assert torch.equal(batch.inputs, question)
        return
    width, count = question.shape[1], answer.shape[1]
    if form == "decoder":
        assert (batch.inputs[:, 0] == START).all()
        assert torch.equal(batch.inputs[:, 1 : width + 1], question)
        assert (batch.inputs[:, width + 1] == BAR).all()
        # what is predicted at a token is what stands at the next one
        assert torch.equal(batch.inputs[:, width + 2 :], batch.targets[:, width + 1 : -1])
        assert asked[:, width + 1 :].all()
        assert not asked[:, : width + 1].any()
    elif form == "encoder":
        assert torch.equal(batch.inputs[:, :width], question)
        assert (batch.inputs[:, width + 1 :] == ASK).all()
        assert torch.equal(asked, batch.inputs == ASK)
    else:
        assert batch.source is not None
        assert torch.equal(batch.source, question)
        assert (batch.inputs[:, 0] == BAR).all()
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        assert batch.inputs.shape[1] == count


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_no_text_is_longer_than_the_length(name: str, form: str) -> None:
    exercise = Exercise(name)
    widths = set()
    for step in range(120):
        batch = exercise.draw(0, step, batch=3, length=40, form=form)
        widths.add(max(batch.inputs.shape[1], 0 if batch.source is None else batch.source.shape[1]))
        for tokens in (batch.inputs, batch.targets[batch.targets != IGNORE]):
            assert tokens.min() >= 0
            assert tokens.max() < exercise.vocabulary
    assert 40 - 4 <= max(widths) <= 40
    assert min(widths) <= 20


def test_batches_follow_from_seed_and_step_alone() -> None:
    exercise = Exercise("copy")

    def inputs(seed: int, step: int) -> torch.Tensor:
        return exercise.draw(seed, step, batch=8, length=50, form="decoder").inputs

    assert torch.equal(inputs(1, 2), inputs(1, 2))
    pairs = itertools.combinations([inputs(seed, step) for seed in range(3) for step in range(3)], 2)
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def test_held_out_examples_are_others() -> None:
    exercise = Exercise("reverse")

    def rows(part: str) -> set[tuple[int, ...]]:
        batches = exercise.held_out(part, length=34, tokens=34 * 64, batch=16, form="decoder")  # type: ignore[arg-type]
        return {tuple(row) for batch in batches for row in batch.inputs.tolist()}

    test, validation = rows("test"), rows("validation")
    assert len(test) == len(validation) == 64
    assert rows("test") == test
    assert not test & validation


def test_what_a_task_refuses() -> None:
    with pytest.raises(ValueError, match="4 tokens are too few for this task"):
        Exercise("copy").draw(0, 0, batch=1, length=4, form="decoder")
    with pytest.raises(ValueError, match="sort has 512 numbers, too few for 513 words"):
        tasks.sort(513, 1, generator(0))
    with pytest.raises(ValueError, match="brackets is for decoder or encoder, got 'encoder-decoder'"):
        Settings(goal="brackets", form="encoder-decoder")
    assert GOALS[3:] == tuple(TASKS)
