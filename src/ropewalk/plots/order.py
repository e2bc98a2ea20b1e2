"""Whether attention tells two word orders apart: how far the outputs differ, on a logarithmic scale."""

from __future__ import annotations

import math
import sys

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ropewalk.language import Language, speaker
from ropewalk.measure.order import ROUNDING, WordOrder
from ropewalk.plots import style

FLOOR = 1e-18
"""A difference of exactly 0, or below this, is drawn here: a logarithm has no room for it."""


def draw(word_order: WordOrder, language: Language) -> Figure:
    """A line for each encoding, from the floor to its difference; left of the rounding line the two are identical."""
    say = speaker(language)
    rows = word_order.rows
    with style.figure(6.4, 1.6 + 0.27 * len(rows)) as made:
        axis = made.subplots()
        axis.set_xscale("log")
        axis.axvspan(FLOOR / 10, ROUNDING, color="#efefef", zorder=0)
        axis.axvline(ROUNDING, color=style.INK, linewidth=1.2, linestyle=(0, (4, 2)))
        axis.axvline(sys.float_info.epsilon, color=style.PALE, linewidth=0.9, linestyle=(0, (1, 1.5)))
        for y, row in enumerate(rows):
            color, dash, marker = style.look(row.encoding)
            at = max(row.difference, FLOOR)
            axis.plot([FLOOR / 10, at], [y, y], color=color, linestyle=dash, linewidth=1.4)
            axis.plot([at], [y], color=color, marker=marker, markersize=8, linestyle="none", label=row.encoding)
            axis.annotate(
                style.number(row.difference),
                (at, y),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                family=style.DIGITS,
            )
        axis.set_yticks(range(len(rows)), [style.label(row.encoding) for row in rows])
        axis.set_ylim(len(rows) - 0.4, -1.7)
        axis.set_xlim(FLOOR / 2, 10 ** math.ceil(math.log10(max(1.0, *(row.difference for row in rows))) + 1.6))
        axis.grid(axis="y", visible=False)
        axis.xaxis.set_major_locator(FixedLocator([10.0**e for e in range(-18, 4, 3)]))
        axis.tick_params(axis="x", labelfontfamily=style.DIGITS)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: style.superscript(round(math.log10(x)))))
        axis.annotate(
            say("identical to rounding ", "丸め誤差の範囲で同じ "),
            (ROUNDING, -1.1), ha="right", va="center", fontsize=9,
        )  # fmt: skip
        axis.annotate(say(" told apart", " 区別できる"), (ROUNDING, -1.1), va="center", fontsize=9)
        axis.annotate(
            " ε",
            (sys.float_info.epsilon, len(rows) - 0.7),
            va="center",
            fontsize=9,
        )
        axis.set_xlabel(
            say(
                "relative difference of the pooled outputs (ε: spacing of float64 at 1)",
                "プーリングした出力の相対差（ε：1 における float64 の刻み）",
            )
        )
        mask = say(" (causal mask)", "（因果マスクあり）") if word_order.causal else ""
        style.title(
            made,
            say(
                f"“{_short(word_order.first)}”  or  “{_short(word_order.second)}”?{mask}",
                f"「{_short(word_order.first)}」か「{_short(word_order.second)}」か{mask}",
            ),
        )
    return made


def _short(text: str) -> str:
    text = style.drawable(" ".join(text.split()))
    return text if len(text) <= 28 else text[:27] + "…"
