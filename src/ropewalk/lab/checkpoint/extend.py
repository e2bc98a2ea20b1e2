"""One text, several extensions: what each costs within the trained length and holds beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ropewalk.lab.checkpoint.files import Checkpoint
from ropewalk.lab.checkpoint.intervals import Interval, Losses, buckets
from ropewalk.lab.checkpoint.llama import Llama
from ropewalk.lab.checkpoint.perplexity import CHUNK, losses
from ropewalk.lab.checkpoint.trials import NONE, Trial, Window
from ropewalk.version import __version__

SCHEMA = "ropewalk.extend/1"


@dataclass(frozen=True)
class Setting:
    """What all extensions are measured with."""

    checkpoint: Checkpoint
    trials: tuple[Trial, ...]
    windows: tuple[Window, ...]
    length: int
    dtype: torch.dtype
    text: str
    """What to call the text."""
    chunk: int = CHUNK

    @property
    def trained(self) -> int | None:
        """Tokens that the checkpoint was trained with, as far as it says so."""
        return self.checkpoint.plan.original_length

    @property
    def dtype_name(self) -> str:
        """Without the name of the package."""
        return str(self.dtype).removeprefix("torch.")

    def about(self) -> dict[str, Any]:
        """The checkpoint, for JSON."""
        found = self.checkpoint
        return {
            "name": found.name,
            "kind": found.kind,
            "fingerprint": found.fingerprint,
            "trained_length": self.trained,
        }


@dataclass(frozen=True)
class Task:
    """One extension on one window: what is kept when it is done."""

    trial: Trial
    window: Window

    def key(self, setting: Setting) -> dict[str, Any]:
        """Everything that its losses depend on, as far as rounding."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "model": setting.checkpoint.fingerprint,
            "tokens": self.window.fingerprint,
            "length": setting.length,
            "dtype": setting.dtype_name,
            "positions": self.trial.fingerprint(setting.length),
        }

    def run(self, model: Llama, setting: Setting, step: Callable[[float], None] | None) -> dict[str, Any]:
        """The losses."""
        model.turn_by(self.trial.plan, at_length=setting.length)
        found = losses(model, self.window.ids, chunk=setting.chunk, step=step)
        return {"losses": [round(x, 5) for x in found.tolist()]}


def tasks(setting: Setting) -> list[Task]:
    """All that is to be done, extension by extension."""
    return [Task(trial, window) for trial in setting.trials for window in setting.windows]


@dataclass(frozen=True)
class Tried:
    """One extension: its perplexity by position, and against the others."""

    text: str
    extension: dict[str, Any] | None
    buckets: tuple[Interval, ...]
    within: Interval
    """Perplexity up to the trained length (or of the whole text, where that is not known or not exceeded)."""
    beyond: Interval | None
    """And after it."""
    cost: Interval | None
    """`within` over that of the plain model, paired; None where the plain one was not tried, or is this one."""
    behind: Interval | None
    """`beyond` over that of the best, paired, widened for all comparisons with it; None for the best itself."""


@dataclass(frozen=True)
class Extended:
    """The whole experiment, ready to be shown."""

    setting: Setting
    edges: tuple[tuple[int, int], ...]
    tried: tuple[Tried, ...]
    best: int | None
    """Which has the lowest perplexity beyond the trained length; None where nothing is beyond it."""

    @property
    def as_good(self) -> tuple[int, ...]:
        """The best, and all that this text does not tell from it, best first."""
        if self.best is None:
            return ()
        near = [i for i, t in enumerate(self.tried) if t.behind is not None and t.behind.low <= 1]
        return (self.best, *sorted(near, key=self._beyond))

    def _beyond(self, i: int) -> float:
        found = self.tried[i].beyond
        return found.value if found is not None else 0.0

    def json(self) -> dict[str, Any]:
        """`ropewalk.extend/1`."""
        setting = self.setting
        return {
            "schema": SCHEMA,
            "model": setting.about(),
            "text": {"name": setting.text, "windows": [w.fingerprint for w in setting.windows]},
            "length": setting.length,
            "dtype": setting.dtype_name,
            "buckets": [list(edge) for edge in self.edges],
            "tries": [
                {
                    "try": tried.text,
                    "extension": tried.extension,
                    "perplexity": [b.json() for b in tried.buckets],
                    "within": tried.within.json(),
                    **{
                        name: None if value is None else value.json()
                        for name, value in (("beyond", tried.beyond), ("cost", tried.cost), ("behind", tried.behind))
                    },
                }
                for tried in self.tried
            ],
            "best": None if self.best is None else self.tried[self.best].text,
            "as_good": [self.tried[i].text for i in self.as_good],
        }


def summarise(
    setting: Setting, done: Sequence[tuple[Task, dict[str, Any]]], *, count: int = 8, seed: int = 0
) -> Extended:
    """Intervals, and what they say.

    Args:
        setting: what was measured.
        done: every task and what came out.
        count: about how many buckets of positions.
        seed: of the bootstrap.
    """
    of = [[torch.tensor(result["losses"]) for task, result in done if task.trial is trial] for trial in setting.trials]
    many = Losses([torch.stack(rows) for rows in of], seed=seed)
    trials, length = setting.trials, setting.length
    split = setting.trained if setting.trained is not None and setting.trained < length else length
    plain = next((i for i, trial in enumerate(trials) if trial.text == NONE), None)
    far = [many.perplexity(i, split, length) for i in range(len(trials))] if split < length else None
    best = min(range(len(trials)), key=lambda i: far[i].value) if far is not None else None
    edges = buckets(length, setting.trained, count)
    tried = [
        Tried(
            trial.text,
            trial.json(),
            tuple(many.perplexity(i, *edge) for edge in edges),
            many.perplexity(i, 0, split),
            None if far is None else far[i],
            None if plain is None or plain == i else many.ratio(i, plain, 0, split),
            None
            if best is None or best == i
            else many.ratio(i, best, split, length, comparisons=max(1, len(trials) - 1)),
        )
        for i, trial in enumerate(trials)
    ]
    return Extended(setting, tuple(edges), tuple(tried), best)
