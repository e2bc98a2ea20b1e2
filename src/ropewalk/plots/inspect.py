"""What an extension does to a model's pairs: wavelengths against the lengths, and the decay it leaves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator

from ropewalk.inspection import Curve, Fate, Inspection, Kind, View, decay_curve
from ropewalk.language import Language, Say, speaker
from ropewalk.plots import style

MOST_KINDS = 4
MARKERS: dict[Fate, tuple[str, str]] = {
    "kept": ("o", "full"),
    "blended": ("D", "left"),
    "divided": ("s", "none"),
    "raised": ("^", "none"),
    "stopped": ("x", "full"),
}
"""Marker, and how it is filled."""
SHADES: dict[Fate, str] = {
    "kept": "#ffffff",
    "blended": "#e6e6e6",
    "divided": "#cfcfcf",
    "raised": "#dcdcdc",
    "stopped": "#b5b5b5",
}
LOOKS: tuple[tuple[str, Any], ...] = (
    ("#0b4fa0", "solid"),
    ("#d1622b", (0, (5.0, 2.0))),
    ("#1b9573", (0, (6.0, 1.8, 1.2, 1.8))),
    ("#7b1e4d", (0, (1.2, 1.4))),
    ("#8c510a", (0, (3.0, 1.5))),
)
"""Of the configuration's own extension and of those tried, in turn."""


def draw(found: Inspection, language: Language) -> Figure:
    """A row for each kind of layer that rotates: wavelength of every pair, and score against distance.

    A model without such layers gets a picture that says so.
    """
    say = speaker(language)
    kinds = [kind for kind in found.kinds if kind.views][:MOST_KINDS]
    name = style.drawable(found.name.replace("\\", "/").rstrip("/"))
    short = "/".join(name.split("/")[-2:]) if name.endswith(("config.json", "params.json")) else name.split("/")[-1]
    with style.figure(9.0, 0.9 + 3.3 * len(kinds) if kinds else 1.6) as made:
        style.title(made, say(f"{short}: how fast its pairs turn", f"{short}：各ペアの回転の速さ"))
        if not kinds:
            axis = made.subplots()
            axis.axis("off")
            words = say("no layer of this model rotates queries and keys", "クエリとキーを回転する層はありません")
            axis.text(0.5, 0.5, words, ha="center", va="center", fontsize=12)
            return made
        handles: dict[str, Any] = {}
        plain = not any(_shown(kind, say) for kind in kinds)
        unextended = ("#0b4fa0", "solid") if plain else (style.PALE, (0, (1.2, 1.4)))
        for (left, right), kind in zip(made.subplots(len(kinds), 2, squeeze=False), kinds, strict=True):
            handles.update(_wavelengths(left, kind, say, unextended))
            handles.update(_decay(right, kind, say, unextended))
            left.set_title(_heading(kind, found, say), fontsize=10, loc="left", parse_math=False)
        made.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
    return made


def _shown(kind: Kind, say: Say) -> list[tuple[str, View]]:
    """The views that have an extension, with their names."""
    own = kind.views[-1]
    at = "" if own.length is None else say(f" at {own.length:,} tokens", f"（{own.length:,} トークン）")
    named = [] if own.extension is None else [(own.extension.name + at, own)]
    return [*named, *((style.drawable(text), view) for text, view in kind.tries)]


def _wavelengths(axis: Axes, kind: Kind, say: Say, unextended: tuple[str, Any]) -> dict[str, Any]:
    own = kind.views[-1]
    shown = _shown(kind, say)
    axis.set_yscale("log")
    before = say("without extension", "拡張なし")
    pairs = list(range(len(own.pairs)))
    handles: dict[str, Any] = {}
    (handles[before],) = axis.plot(
        pairs, [p.trained for p in own.pairs], color=unextended[0], linestyle=unextended[1], linewidth=1.6, zorder=2
    )
    if shown:
        for fate, pair in itertools.groupby(shown[0][1].pairs, key=lambda p: p.fate):
            run = [p.index for p in pair]
            axis.axvspan(run[0] - 0.5, run[-1] + 0.5, color=SHADES[fate], linewidth=0, zorder=0)
    for (name, view), (color, dash) in zip(shown, itertools.cycle(LOOKS), strict=False):
        heights = [p.wavelength if math.isfinite(p.wavelength) else math.nan for p in view.pairs]
        axis.plot(pairs, heights, color=color, linestyle=dash, linewidth=1.2, zorder=3)
        handles[name] = Line2D([], [], color=color, linestyle=dash)
        for fate, members in view.fates().items():
            marker, fill = MARKERS[fate]
            look: dict[str, Any] = {
                "color": color, "marker": marker, "fillstyle": fill, "linestyle": "none", "markersize": 4,
                "markerfacecoloralt": "white", "markeredgewidth": 0.9,
            }  # fmt: skip
            still = max(p.trained for p in view.pairs)
            axis.plot(members, [heights[i] if fate != "stopped" else still for i in members], zorder=4, **look)
            shade = Line2D([], [], **{**look, "color": style.INK})
            handles.setdefault(_fate(fate, say), (Patch(facecolor=SHADES[fate], edgecolor=style.PALE), shade))
    _lengths(axis, [own, *(view for _, view in shown)], say, along="y")
    axis.set(xlabel=say("pair of channels", "チャネルの組"), ylabel=say("wavelength, in tokens", "波長（トークン数）"))
    axis.margins(x=0.01)
    powers(axis, "y")
    return handles


def _decay(axis: Axes, kind: Kind, say: Say, unextended: tuple[str, Any]) -> dict[str, Any]:
    own, shown = kind.views[-1], _shown(kind, say)
    if own.curve is None:
        axis.axis("off")
        return {}
    axis.set_xscale("log")
    plain = replace(kind.plan, extension=None).spectrum()
    if plain is not None:
        curve = own.curve if own.extension is None else decay_curve(plain, own.curve.scanned)
        axis.plot(*_points(curve), color=unextended[0], linestyle=unextended[1], linewidth=1.6, zorder=2)
    for (_, view), (color, dash) in zip(shown, itertools.cycle(LOOKS), strict=False):
        if view.curve is not None:
            axis.plot(*_points(view.curve), color=color, linestyle=dash, linewidth=1.4, zorder=3)
    main = shown[0][1] if shown else own
    handles: dict[str, Any] = {}
    if main.curve is not None:
        beyond = [(d, b) for d, b in zip(main.curve.distances, main.curve.beyond, strict=True) if d and b is not None]
        if beyond:
            name = say("highest at any greater distance", "それより遠い距離での最高スコア")
            (handles[name],) = axis.plot(
                *zip(*beyond, strict=True), color=style.INK, linewidth=0.8, drawstyle="steps-post", zorder=2
            )
    _lengths(axis, [own, *(view for _, view in shown)], say, along="x")
    axis.set(
        xlabel=say("distance, in tokens", "距離（トークン数）"),
        ylabel=say("score of vectors of ones", "すべて 1 のベクトルのスコア"),
    )
    axis.margins(x=0.01)
    powers(axis, "x")
    return handles


def _points(curve: Curve) -> tuple[list[int], list[float]]:
    """The curve without distance 0, which a logarithm has no place for."""
    found = [(d, s) for d, s in zip(curve.distances, curve.scores, strict=True) if d]
    return [d for d, _ in found], [s for _, s in found]


def _lengths(axis: Axes, views: list[View], say: Say, *, along: str) -> None:
    """The trained length and every length that is reached, as lines with their numbers."""
    marks: dict[int, str] = {}
    for view in views:
        if view.trained_length is not None and view.extended_length is not None:
            marks.setdefault(view.trained_length, say("trained", "学習時"))
            marks.setdefault(view.extended_length, say("extended", "拡張後"))
    if len(marks) == 1:
        marks = dict.fromkeys(marks, "")
    for length, name in marks.items():
        line: dict[str, Any] = {"color": style.INK, "linestyle": (0, (4, 2)), "linewidth": 0.9, "zorder": 1}
        text = f"{name} {length:,}".strip()
        words: dict[str, Any] = {"fontsize": 8, "textcoords": "offset points"}
        if along == "y":
            axis.axhline(length, **line)
            axis.annotate(text, (0.01, length), xycoords=("axes fraction", "data"), xytext=(0, 2), **words)
        else:
            axis.axvline(length, **line)
            axis.annotate(
                text, (length, 0.98), xycoords=("data", "axes fraction"), xytext=(-2, 0), rotation=90, ha="right",
                va="top", **words,
            )  # fmt: skip


def powers(axis: Axes, which: Literal["x", "y"]) -> None:
    """Ticks at powers of ten, as 10⁴."""
    one = axis.yaxis if which == "y" else axis.xaxis
    one.set_major_locator(LogLocator())
    one.set_minor_locator(LogLocator(numticks=1))
    one.set_major_formatter(FuncFormatter(lambda v, _: style.superscript(round(math.log10(v)))))
    axis.tick_params(axis=which, labelfontfamily=style.DIGITS)


def _heading(kind: Kind, found: Inspection, say: Say) -> str:
    plan = kind.plan
    count = say(f"{len(kind.layers)} layers", f"{len(kind.layers)} 層")
    layers = count if found.plan.counted else say("all layers", "すべての層")
    label = f" ({style.drawable(plan.label)})" if plan.label else ""
    base = f"{plan.base or 0:,.6g}" if (plan.base or 0) < 1e6 else f"{plan.base or 0:,.0f}"
    return f"{layers}{label}: base {base}, rotary_dim {plan.rotary_dim}"


def _fate(fate: Fate, say: Say) -> str:
    return {
        "kept": say("kept", "保持"),
        "blended": say("blended", "混合"),
        "divided": say("divided", "除算"),
        "raised": say("base raised", "base 引き上げ"),
        "stopped": say("stopped", "停止"),
    }[fate]
