"""Runs of text, images and videos, and where M-RoPE places their tokens on the axes of time, height and width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

LIMIT = 1 << 24
"""The most tokens of a run and of all together, and the farthest that time may take a run: no request can ask for
unbounded memory."""


@dataclass(frozen=True)
class Text:
    """`tokens` tokens of text, each one further than the last, on all axes alike."""

    tokens: int

    def __post_init__(self) -> None:
        _check_counts(self, low=0)

    def grid(self) -> tuple[list[int], int, int] | None:
        """None: text is not a grid."""
        return None


@dataclass(frozen=True)
class Image:
    """An image of `height` × `width` patches, of which `merge` × `merge` become one token (Qwen2-VL: 2).

    Many libraries name the grid before merging; with `merge=1`, the default, sizes are those of the token grid.

    >>> Image(144, 160, merge=2).grid()
    ([0], 72, 80)
    """

    height: int
    width: int
    merge: int = 1

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_merge(self)

    def grid(self) -> tuple[list[int], int, int]:
        """Positions in time, and the numbers of rows and columns, after merging."""
        return [0], self.height // self.merge, self.width // self.merge


@dataclass(frozen=True)
class Video:
    """A video: `frames` grids (after any merging in time) of `height` × `width` patches.

    Args:
        frames: how many grids follow one another.
        height: rows of patches.
        width: columns of patches.
        merge: how many patches on a side become one token.
        seconds: from one grid to the next (Qwen2.5-VL: the patches' depth in time over the frame rate). A float is read
            as the simplest fraction near it, so that three times a third of a second is one second.
        per_second: positions in a second. Qwen2-VL, which knows no seconds: leave both at 1.

    Grid t stands at ⌊t · seconds · per_second⌋: rounded *after* the multiplication, since half a second, rounded first,
    would be no time at all.

    >>> Video(4, 2, 3, seconds=0.5, per_second=2).grid()
    ([0, 1, 2, 3], 2, 3)
    >>> Video(5, 2, 3, seconds=0.75, per_second=2).grid()[0]
    [0, 1, 3, 4, 6]
    """

    frames: int
    height: int
    width: int
    merge: int = 1
    seconds: float | Fraction = 1
    per_second: float | Fraction = 1

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_merge(self)
        for name in ("seconds", "per_second"):
            value = getattr(self, name)
            good = isinstance(value, (int, float, Fraction)) and not isinstance(value, bool) and math.isfinite(value)
            if not good or value < 0:
                raise ValueError(f"Video: {name} is a finite number, 0 or more, got {value!r}")
        reach = (self.frames - 1) * self.step
        if reach >= LIMIT:
            raise ValueError(
                f"Video: {self.frames} grids {self.seconds} seconds apart, {self.per_second} positions a second, "
                f"reach to position {int(reach):,}; the limit is {LIMIT:,}"
            )

    @property
    def step(self) -> Fraction:
        """Positions from one grid to the next, exactly."""
        seconds, per_second = (Fraction(v).limit_denominator(1_000_000) for v in (self.seconds, self.per_second))
        return seconds * per_second

    def grid(self) -> tuple[list[int], int, int]:
        """Positions in time, and the numbers of rows and columns, after merging."""
        times = [math.floor(t * self.step) for t in range(self.frames)]
        return times, self.height // self.merge, self.width // self.merge


Run: TypeAlias = "Text | Image | Video"


def place(runs: Sequence[Run | int], device: torch.device | str | None = None) -> Tensor:
    """Time, height and width of every token, int64 `(3, S)`. `Positions.interleave` says by which rule.

    Raises:
        ValueError: something that is not a run, naming where it stands; more tokens together than the limit.
    """
    start, total, pieces = 0, 0, [torch.empty(3, 0, dtype=torch.int64, device=device)]
    for at, given in enumerate(runs):
        run = Text(given) if isinstance(given, int) and not isinstance(given, bool) else given
        if not isinstance(run, (Text, Image, Video)):
            raise ValueError(f"run {at} is {given!r}; a run is Text, Image, Video or a number of text tokens")
        if isinstance(run, Text):
            piece = torch.arange(run.tokens, device=device).expand(3, -1)
            reach = run.tokens
        else:
            times, height, width = run.grid()
            axes = (torch.tensor(times), torch.arange(height), torch.arange(width))
            piece = torch.stack(torch.meshgrid(*axes, indexing="ij")).reshape(3, -1).to(device)
            reach = max(times[-1] + 1, height, width)
        total += piece.shape[1]
        if total > LIMIT:
            raise ValueError(f"runs 0 to {at} have {total:,} tokens together; the limit is {LIMIT:,}")
        pieces.append(piece + start)
        start += reach
    return torch.cat(pieces, dim=1)


def _check_counts(run: Run, low: int = 1) -> None:
    counts = {f.name: getattr(run, f.name) for f in fields(run) if f.name not in ("seconds", "per_second")}
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ValueError(f"{type(run).__name__}: {name} is a whole number, {low} or more, got {value!r}")
    tokens = math.prod(value for name, value in counts.items() if name != "merge")
    if tokens > LIMIT:
        raise ValueError(f"{type(run).__name__}: {tokens:,} tokens; the limit is {LIMIT:,}")


def _check_merge(run: Image | Video) -> None:
    if run.height % run.merge or run.width % run.merge:
        raise ValueError(
            f"{type(run).__name__}: {run.height} × {run.width} patches do not merge {run.merge} × {run.merge}; "
            "for a grid that was merged before, leave merge at 1"
        )
