"""Perplexity against position for several context extensions, with intervals and the trained length."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ropewalk.language import Language, Say, speaker
from ropewalk.plots import style

if TYPE_CHECKING:
    from ropewalk.lab.checkpoint.extend import Extended

LOOKS = (
    ("#757575", "solid", "X"),
    ("#d1622b", (0, (5.0, 2.0)), "s"),
    ("#0b4fa0", "solid", "o"),
    ("#7b1e4d", (0, (1.2, 1.4)), "v"),
    ("#1b9573", (0, (6.0, 1.8, 1.2, 1.8)), "D"),
    ("#8c510a", (0, (3.0, 1.5)), "^"),
)
"""In turn: colour, dash, marker."""


def draw(found: Extended, language: Language) -> Figure:
    """A line for each extension through the middles of the buckets, its 95 % interval as a band."""
    say = speaker(language)
    setting = found.setting
    with style.figure(7.2, 4.6) as made:
        axis = made.subplots()
        style.title(made, _title(found, say))
        middles = [(first + last) / 2 for first, last in found.edges]
        for one, (color, dash, marker) in zip(found.tried, itertools.cycle(LOOKS), strict=False):
            values = [bucket.value for bucket in one.buckets]
            low, high = ([getattr(b, end) if b.known else b.value for b in one.buckets] for end in ("low", "high"))
            axis.fill_between(middles, low, high, color=color, alpha=0.13, linewidth=0)
            axis.plot(
                middles,
                values,
                color=color,
                linestyle=dash,
                marker=marker,
                markersize=5,
                label=style.drawable(one.text),
            )
        axis.set_yscale("log")
        _ticks(axis)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axis.set_xlim(0, setting.length)
        axis.set_xlabel(say("position (tokens before)", "位置（前にあるトークン数）"))
        axis.set_ylabel(say("perplexity", "パープレキシティ"))
        mark_trained(axis, setting.trained, setting.length, say)
        made.legend(loc="outside lower center", ncols=min(len(found.tried), 5))
    return made


def mark_trained(axis: Axes, trained: int | None, length: int, say: Say) -> None:
    """A line across at the trained length, if the text goes beyond it."""
    if trained is None or trained >= length:
        return
    axis.axvline(trained, color=style.INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    axis.annotate(
        say(f" trained length {trained:,} ", f" 学習時の長さ {trained:,} "),
        (trained, 0.98),
        xycoords=axis.get_xaxis_transform(),
        ha="right" if trained > length / 3 else "left",
        va="top",
        fontsize=9,
    )


def _ticks(axis: Axes) -> None:
    """1, 2, 5 in every decade, written out."""
    axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.3g}" if y < 1000 else f"{y:,.0f}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _title(found: Extended, say: Say) -> str:
    setting = found.setting
    name = style.drawable(
        setting.checkpoint.path.name if setting.checkpoint.kind == "GGUF" else setting.checkpoint.name
    )
    text, windows = style.drawable(setting.text), len(setting.windows)
    many = say(f", {windows} windows", f"、{windows} 区間") if windows > 1 else ""
    return say(
        f"{name} on {text} ({setting.length:,} tokens{many}): which extension, at what cost?",
        f"{name}、{text}（{setting.length:,} トークン{many}）：どの拡張で、何を失うか",
    )
