"""What an encoding costs in training: tokens per second against the same model on plain attention, without encoding.

All models take turns, a few steps each, round after round, so that whatever else the machine does falls on all alike;
the ratio of each round is taken within the round, and the median of those is told. Source of the method: the same as of
`ropewalk bench`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ropewalk.benchmark.machine import machine
from ropewalk.lab.goals import Goal
from ropewalk.lab.settings import Settings
from ropewalk.lab.train import optimiser_of, step
from ropewalk.lab.transformer import Attention, Transformer
from ropewalk.positions import Positions
from ropewalk.protocol import PositionalEncoding

PLAIN = "plain"
"""The name of the model without ropewalk's attention."""


@dataclass(frozen=True)
class Speed:
    """Of one model."""

    name: str
    tokens_per_second: float
    """Median over the rounds."""
    ratio: float
    """To the plain model, in the same round; below 1 is slower."""


class _Plain(Attention):
    """PyTorch's own attention, called directly: no positions, no hooks, no choice of a path."""

    def forward(self, x: Tensor, encoding: PositionalEncoding, positions: Positions, causal: bool) -> Tensor:
        q, k, v = self._split(self.query_key_value(x), 3)
        return self._join(scaled_dot_product_attention(q, k, v, is_causal=causal))


def plain(model: Transformer) -> Transformer:
    """The model with plain attention in every block; it was made without an encoding."""
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = _Plain
    return model


def speeds(
    settings: Settings, encodings: Sequence[str], *, rounds: int = 9, steps: int = 2, clock: str = "wall"
) -> list[Speed]:
    """Tokens per second of training steps, the plain model first.

    Args:
        settings: of all models; their encoding is replaced.
        encodings: names.
        rounds: in which all models take turns.
        steps: of each model in a round; one more before all rounds warms up.
        clock: `"wall"`, or `"cpu"` for the seconds of processor that were used, where others use the machine too.
    """
    goal = settings.make_goal()
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads or threads)
    try:
        entrants = {PLAIN: _Entrant(replace(settings, encoding="nope", options={}), goal, bare=True)}
        entrants |= {name: _Entrant(replace(settings, encoding=name, options={}), goal) for name in encodings}
        for entrant in entrants.values():
            entrant.run(1, clock)
        times: dict[str, list[float]] = {name: [] for name in entrants}
        for round_ in range(rounds):
            names = list(entrants)
            for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
                times[name].append(entrants[name].run(steps, clock))
    finally:
        torch.set_num_threads(threads)
    tokens = steps * settings.batch * settings.length
    return [
        Speed(
            name,
            tokens / median(taken),
            median(base / own for base, own in zip(times[PLAIN], taken, strict=True)),
        )
        for name, taken in times.items()
    ]


class _Entrant:
    def __init__(self, settings: Settings, goal: Goal, *, bare: bool = False) -> None:
        self.settings, self.goal, self.step = settings, goal, 0
        self.model: nn.Module = Transformer(settings.shape(goal.vocabulary, goal.classes), seed=settings.seed)
        if bare:
            plain(self.model)
        self.optimiser = optimiser_of(self.model, settings)

    def run(self, steps: int, clock: str) -> float:
        now = time.perf_counter if clock == "wall" else time.process_time
        began = now()
        for _ in range(steps):
            step(self.model, self.optimiser, self.goal, self.settings, self.step)
            self.step += 1
        return now() - began


def document(settings: Settings, found: Sequence[Speed]) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "schema": "ropewalk.speed/1",
        "machine": machine(),
        "settings": settings.json(),
        "speeds": [asdict(s) for s in found],
    }
