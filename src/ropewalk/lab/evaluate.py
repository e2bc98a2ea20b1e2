"""What a trained model can do: bits per byte by position, right answers, at and beyond the length it was trained with.

Nothing here trains. `measure` is what everything else calls; `profile` looks at where attention goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ropewalk.attention import scores
from ropewalk.encodings.rope import RoPE
from ropewalk.lab.corpora import Part
from ropewalk.lab.goals import IGNORE, Batch, Goal, Language
from ropewalk.lab.settings import Settings
from ropewalk.lab.stretching import stretched
from ropewalk.lab.transformer import Attention, Transformer
from ropewalk.positions import Positions
from ropewalk.protocol import PositionalEncoding

SPANS = 32
"""Positions are told apart by so many spans of equal width."""

Pulse = Callable[[], None]
"""Called between batches, so that whoever waits can be told, or stop it by raising."""


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Nats of each answer that is asked for, whether it is right, and which ones are asked (booleans).

    The first two are `(how many)`, in float32; the third has the shape of the targets.
    """
    device = next(model.parameters()).device
    inputs, targets, source = (None if t is None else t.to(device) for t in batch)
    assert targets is not None
    asked = targets != IGNORE
    logits = model(inputs) if targets.dim() == 1 else model(inputs, source, at=asked)
    wanted = targets[asked]
    return cross_entropy(logits.float(), wanted, reduction="none"), logits.argmax(-1) == wanted, asked


@torch.no_grad()
def measure(
    model: Transformer,
    goal: Goal,
    settings: Settings,
    part: Part,
    *,
    lengths: Iterable[int],
    tokens: int,
    longest: int | None = None,
    pulse: Pulse = lambda: None,
) -> list[dict[str, Any]]:
    """An entry for each multiple of the trained length.

    Of language models: `bits` (per byte of text) of all tokens; `by_position`, in `SPANS` spans; and `blocks`, the bits
    of each stretch of text as long as the longest of these lengths (or as `longest` multiples, where more are measured
    elsewhere). These are the same stretches for every model and every length, so that they can be compared in pairs.

    Of tasks: `accuracy` of all answers that are asked for, `by_position`, `exact` (the share of examples that are right
    throughout), and `blocks`, the accuracy of each batch.

    An encoding that ends before a length has an entry with `refused` in place of numbers; so has a length for which
    the text is too short.
    """
    lengths = tuple(lengths)
    stretch = (longest or max(lengths)) * settings.length
    was_training = model.training
    model.eval()
    found = []
    for multiple in lengths:
        length = multiple * settings.length
        entry: dict[str, Any] = {"multiple": multiple, "length": length}
        most = max_length(model)
        if most is not None and length > most:
            entry["refused"] = f"the encoding ends at {most} positions"
        else:
            entry |= _at(model, goal, settings, part, length, stretch, tokens, pulse)
        found.append(entry)
    model.train(was_training)
    return found


def _at(
    model: Transformer,
    goal: Goal,
    settings: Settings,
    part: Part,
    length: int,
    stretch: int,
    tokens: int,
    pulse: Pulse,
) -> dict[str, Any]:
    tokens -= tokens % stretch if tokens > stretch else 0
    batch = max(1, settings.batch * settings.length // length) if goal.measure == "bits" else settings.batch
    nats, right, asked = [], [], []
    blocks: list[float] = []
    form = settings.chosen_form()
    for each in goal.held_out(part, length=length, tokens=tokens, batch=batch, form=form, stretch=stretch):
        pulse()
        n, r, a = (t.cpu() for t in loss(model, each))
        values = n if goal.measure == "bits" else r.float()
        rows = torch.zeros(a.shape, dtype=torch.float32).masked_scatter_(a, values)
        nats.append(rows if rows.dim() > 1 else rows[:, None])
        asked.append(a if a.dim() > 1 else a[:, None])
        right.append(torch.ones(a.shape, dtype=torch.bool).masked_scatter_(a, r).reshape(len(a), -1).all(1))
        blocks.append(float(r.float().mean()))
    if not nats or not sum(int(a.sum()) for a in asked):
        return {"refused": f"the {part} part is too short"}
    values, weights = torch.cat(nats).double(), torch.cat(asked).double()
    scale = 1.0
    if isinstance(goal, Language):
        scale = 1 / (math.log(2) * goal.bytes_per_token(part))
        blocks = _by_stretch(values, weights, stretch // length, scale)
    mean = float((values * weights).sum() / weights.sum()) * scale
    entry: dict[str, Any] = {"answers": int(weights.sum()), "by_position": _spans(values, weights, scale)}
    if goal.measure == "bits":
        entry["bits"] = mean
    else:
        entry |= {"accuracy": mean, "exact": float(torch.cat(right).float().mean())}
    return {**entry, "blocks": blocks}


def _by_stretch(values: Tensor, weights: Tensor, windows: int, scale: float) -> list[float]:
    """The mean of each stretch of so many windows; none if the text is shorter, or a stretch has nothing asked."""
    whole = len(values) // windows
    if not whole:
        return []
    sums, counts = ((v[: whole * windows].reshape(whole, -1)).sum(1) for v in (values * weights, weights))
    means: list[float] = (sums / counts * scale).tolist()
    return means if bool((counts > 0).all()) else []


def _spans(values: Tensor, weights: Tensor, scale: float) -> list[dict[str, Any]]:
    """Means over spans of positions."""
    width = max(1, math.ceil(values.shape[1] / SPANS))
    found = []
    for start in range(0, values.shape[1], width):
        v, w = values[:, start : start + width], weights[:, start : start + width]
        if w.sum():
            mean = float((v * w).sum() / w.sum()) * scale
            found.append({"from": start, "to": min(start + width, values.shape[1]), "mean": mean})
    return found


def max_length(model: nn.Module) -> int | None:
    """The number of positions at which the first of its encodings ends, or None."""
    ends = [m.max_length for m in model.modules() if isinstance(m, PositionalEncoding) and m.max_length is not None]
    return min(ends, default=None)


@contextmanager
def extended(model: Transformer, text: str, length: int) -> Iterator[None]:
    """While inside, the model's rotation has a context extension; its weights stay as they are.

    Args:
        model: with RoPE, trained at `model.shape.length`.
        text: `NAME:FACTOR` and further parameters, as `ropewalk inspect --try` takes them.
        length: of the text, for extensions that depend on it.

    >>> from ropewalk.lab.transformer import Shape
    >>> model = Transformer(Shape(vocabulary=5, dim=8, heads=2, layers=1, length=64))
    >>> with extended(model, "linear:4", 256):
    ...     model.decoder.encoding.extension
    Linear(factor=4.0)

    Raises:
        ValueError: no such extension, or a model without RoPE.
    """
    stacks = [s for s in (model.encoder, model.decoder) if s is not None and isinstance(s.encoding, RoPE)]
    if not stacks:
        raise ValueError(f"{model.shape.encoding} does not rotate, so there is nothing that {text} could extend")
    before = [stack.encoding for stack in stacks]
    for stack in stacks:
        assert isinstance(stack.encoding, RoPE)
        stack.encoding = stretched(stack.encoding, text, trained=model.shape.length, length=length)
    try:
        yield
    finally:
        for stack, encoding in zip(stacks, before, strict=True):
            stack.encoding = encoding


@torch.no_grad()
def profile(model: Transformer, goal: Goal, settings: Settings, part: Part, *, texts: int = 8) -> list[dict[str, Any]]:
    """Where attention goes, for each layer and head, over a few texts of the trained length.

    `entropy` in bits, of the weights of one query, and `distance`, the mean of |query - key| under the weights, both
    averaged over queries; `shares`, how much weight lies at distance 0, 1, 2-3, 4-7, 8-15, ….
    """
    texts = min(texts, settings.batch)
    batches = goal.held_out(
        part, length=settings.length, tokens=texts * settings.length, batch=texts, form=settings.chosen_form()
    )
    batch = next(iter(batches), None)
    if batch is None:
        return []
    found: list[dict[str, Any]] = []

    def watch(q: Tensor, k: Tensor, encoding: PositionalEncoding, positions: Positions, causal: bool) -> None:
        q, k = encoding.query_key(q, k, positions)
        w = scores(q, k, encoding, positions, positions, causal=causal).softmax(-1).double()  # (B, H, S, S)
        distance = (positions.ids[:, None] - positions.ids).abs()
        bucket = torch.where(distance > 0, distance.clamp(min=1).double().log2().floor() + 1, 0).long()
        entropy = -(w * w.clamp(min=1e-300).log2()).sum(-1).mean((0, 2))
        mean = (w * distance).sum(-1).mean((0, 2))
        total = w.sum((0, 2, 3))
        shares = [(w * (bucket == b)).sum((0, 2, 3)) / total for b in range(int(bucket.max()) + 1)]
        layer = len(found) // w.shape[1]
        for head in range(w.shape[1]):
            found.append(
                {
                    "layer": layer,
                    "head": head,
                    "entropy": float(entropy[head]),
                    "distance": float(mean[head]),
                    "shares": [float(share[head]) for share in shares],
                }
            )

    watched = [m for m in model.modules() if type(m) is Attention]
    for module in watched:
        module.watch = watch
    try:
        loss(model, batch)
    finally:
        for module in watched:
            module.watch = None
    return found
