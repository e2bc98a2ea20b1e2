"""Score against distance: the article's curve, with what it leaves out."""

from __future__ import annotations

from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ropewalk.language import Language, Say, speaker
from ropewalk.measure.decay import Curve, Decay
from ropewalk.plots import style

TOGETHER = 4
"""Up to so many curves share one pair of axes; more get a panel each, all of one height."""


def draw(decay: Decay, language: Language) -> Figure:
    """One picture of all curves of `measure.decay`.

    A single pair of vectors: the curve, the highest score at any greater distance, and the largest rebound. A single
    curve that falls also gets the article's two annotations. Many random pairs: mean, and one standard deviation
    around it.
    """
    say = speaker(language)
    curves = decay.curves
    apart = len(curves) > TOGETHER
    rows = -(-len(curves) // 3)
    with style.figure(6.4, 1.0 + 1.35 * rows if apart else 4.2) as made:
        style.title(made, _title(decay, say))
        axes = style.grid(made, len(curves), sharex=True, sharey=True) if apart else [made.subplots()] * len(curves)
        for axis, curve in zip(axes, curves, strict=True):
            _curve(axis, curve, say, small=apart, alone=len(curves) == 1)
            if apart:
                axis.set_title(style.label(curve.encoding), fontsize=9.5)
        for axis in dict.fromkeys(axes):
            axis.margins(x=0.02)
            if decay.vectors == "random":
                axis.axhline(0, color=style.INK, linewidth=0.8, zorder=1)
        if apart:
            made.supxlabel(_across(say), fontsize=10)
            made.supylabel(_up(decay, say), fontsize=10)
        else:
            axes[0].set(xlabel=_across(say), ylabel=_up(decay, say))
            if len(curves) == 1 and curves[0].spread is None and falls(curves[0]):
                _annotate(axes[0], curves[0], say)
            handles, labels = axes[0].get_legend_handles_labels()
            named = dict(
                sorted(zip(labels, handles, strict=True), key=lambda n: n[0].startswith("±"))
            )  # one band named
            made.legend(list(named.values()), list(named), loc="outside lower center", ncols=len(named))
    return made


def panel(axis: Axes, decay: Decay, language: Language) -> None:
    """The first curve of an experiment alone, small, on axes of somebody else's picture."""
    say = speaker(language)
    _curve(axis, decay.curves[0], say, small=True, alone=True)
    axis.set(xlabel=say("distance", "距離"), ylabel=say("score q·k", "スコア q·k"))
    axis.margins(x=0.02)


def falls(curve: Curve) -> bool:
    """Whether the score is highest at distance 0 and the farther half stays below the average of the nearer."""
    scores = curve.scores
    half = (len(scores) + 1) // 2
    return len(scores) > 2 and scores[0] > max(scores[1:]) and max(scores[half:]) < fmean(scores[:half])


def _curve(axis: Axes, curve: Curve, say: Say, *, small: bool, alone: bool) -> None:
    color, dash, marker = style.look(curve.encoding)
    at = list(range(len(curve.scores)))
    axis.plot(
        at,
        curve.scores,
        color=color,
        linestyle="solid" if small or alone else dash,  # a jagged curve is hard to read in dashes
        linewidth=1.3 if small else 2.0,
        label=style.label(curve.encoding),
        marker=None if small or alone else marker,
        markevery=max(len(at) // 8, 1),
        markersize=5,
        zorder=3,
    )
    if curve.spread is not None:
        low, high = ([s + sign * d for s, d in zip(curve.scores, curve.spread, strict=True)] for sign in (-1, 1))
        axis.fill_between(
            at, low, high, color=color, alpha=0.18, linewidth=0, label=say("± one standard deviation", "± 標準偏差")
        )
        return
    if not (small or alone):
        return
    beyond = [(d, b) for d, b in zip(at, curve.beyond, strict=True) if b is not None]
    axis.plot(
        *zip(*beyond, strict=True),
        color=style.PALE,
        linestyle=(0, (3, 2)),
        linewidth=0.8 if small else 1.2,
        drawstyle="steps-post",
        label=say("highest score at any greater distance", "それより遠い距離での最高スコア"),
        zorder=2,
    )
    if curve.rebound is not None:
        r = curve.rebound
        ends = ([r.low_at, r.high_at], [r.low, r.high])
        axis.plot(*ends, color=style.INK, marker="o", markersize=3 if small else 5, linestyle="none", zorder=4)
        if not small:
            axis.set_ymargin(0.14)  # room for the words below
            axis.annotate(
                style.minus(
                    say(
                        f"largest rebound: {r.low:.1f} at distance {r.low_at} → {r.high:.1f} at {r.high_at}",
                        f"最大の戻り：距離 {r.low_at} で {r.low:.1f} → 距離 {r.high_at} で {r.high:.1f}",
                    )
                ),
                (r.low_at, r.low),
                xytext=(0, -8),
                textcoords="offset points",
                ha="right" if r.low_at > len(at) / 2 else "left",
                va="top",
                fontsize=9,
            )


def _annotate(axis: Axes, curve: Curve, say: Say) -> None:
    """The article's two remarks, at the places of which they speak."""
    far = round(0.55 * (len(curve.scores) - 1))
    arrow = {"arrowstyle": "->", "color": style.INK, "shrinkB": 4}
    axis.annotate(
        say("near tokens bind strongly", "近いトークンほど強く結び付く"),
        (1, curve.scores[1]),
        xytext=(0.16, 0.84),
        textcoords="axes fraction",
        arrowprops=arrow,
        va="center",
    )
    axis.annotate(
        say("the score fades with distance", "遠くなるほどスコアは弱まる"),
        (far, max(curve.scores[far:])),
        xytext=(0.42, 0.62),
        textcoords="axes fraction",
        arrowprops=arrow,
        va="center",
    )


def _title(decay: Decay, say: Say) -> str:
    if decay.vectors == "random":
        return say(
            f"{decay.pairs:,} random pairs: whether the score falls depends on q and k",
            f"乱数ベクトル {decay.pairs:,} 組：スコアが減衰するかどうかは q と k しだい",
        )
    name = style.label(decay.curves[0].encoding)
    what = say(f"{name}: score and distance", f"{name}：距離とスコア")
    if len(decay.curves) > 1:
        what = say("Score and distance", "距離とスコア")
    given = say("vectors of ones", "要素がすべて 1 のベクトル")
    if decay.vectors != "ones":
        given = say("vectors from ", "ベクトル：") + style.drawable(decay.vectors.replace("\\", "/").rsplit("/", 1)[-1])
    return what + say(
        f" ({given}, d = {decay.dim}, query at {decay.query})",
        f"（{given}、d = {decay.dim}、クエリは位置 {decay.query}）",
    )


def _across(say: Say) -> str:
    return say("distance (key position − query position)", "距離（キーの位置 − クエリの位置）")


def _up(decay: Decay, say: Say) -> str:
    if decay.vectors == "random":
        return say("score q·k: mean and spread", "スコア q·k：平均とばらつき")
    return say("score q·k (not scaled)", "スコア q·k（スケールなし）")
