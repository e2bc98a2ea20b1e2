"""The article's comparison as a picture: a small panel for each encoding, its scores from near to far."""

from __future__ import annotations

from statistics import fmean

from matplotlib.figure import Figure

from ropewalk.language import Language, speaker
from ropewalk.measure.compare import Comparison
from ropewalk.plots import style

WRITTEN = 4
"""Up to so many keys have their score written beside the point."""


def draw(comparison: Comparison, language: Language) -> Figure:
    """One panel an encoding. Every panel spans the same number of score units, wherever its scores lie.

    So a slope in one panel means what it means in another. Keys are drawn in order of distance, in equal steps.
    """
    say = speaker(language)
    table = comparison.table()
    near_to_far = sorted(range(len(comparison.keys)), key=lambda n: comparison.keys[n])
    distances = [comparison.keys[n] - comparison.query for n in near_to_far]
    steps = list(range(len(distances)))
    widest = max(max(s) - min(s) for s in table.values()) or 1.0
    rows = 2 if len(table) == 4 else -(-len(table) // 3)
    with style.figure(6.4, max(1.1 + 1.45 * rows, 3.2)) as made:
        axes = style.grid(made, len(table), sharex=True)
        for axis, (name, found) in zip(axes, table.items(), strict=True):
            color, dash, marker = style.look(name)
            scores = [found[n] for n in near_to_far]
            axis.plot(
                steps, scores, color=color, linestyle=dash, marker=marker, markersize=6.5 if len(steps) <= 12 else 3
            )
            axis.set_title(style.label(name), fontsize=9.5)
            middle = (max(scores) + min(scores)) / 2
            axis.set_ylim(middle - 0.95 * widest, middle + 0.95 * widest)
            axis.set_xlim(-0.5, len(steps) - 0.5)
            every = -(-len(steps) // 8)
            axis.set_xticks(steps[::every], [style.minus(str(d)) for d in distances[::every]])
            axis.locator_params(axis="y", nbins=4)
            if len(steps) <= WRITTEN:
                for step, score in zip(steps, scores, strict=True):
                    beside = scores[max(step - 1, 0) : step] + scores[step + 1 : step + 2]
                    dip = bool(beside) and score < fmean(beside) - 0.1 * widest  # the line comes from above
                    axis.annotate(
                        style.minus(f"{score:.1f}"),
                        (step, score),
                        xytext=(0, -7 if dip else 7),
                        textcoords="offset points",
                        ha="center",
                        va="top" if dip else "bottom",
                        fontsize=8.5,
                    )
        style.title(
            made,
            say(
                f"Score of a query at {comparison.query} with keys at "
                f"{', '.join(str(comparison.keys[n]) for n in near_to_far[:8])}{', …' if len(steps) > 8 else ''}",
                f"位置 {comparison.query} のクエリと、位置 "
                f"{'、'.join(str(comparison.keys[n]) for n in near_to_far[:8])}{'…' if len(steps) > 8 else ''}"
                " のキーのスコア",
            ),
        )
        made.supxlabel(
            say(
                "distance (key position − query position), in equal steps",
                "距離（キーの位置 − クエリの位置）、目盛りは等間隔",
            ),
            fontsize=10,
        )
        made.supylabel(
            say("score q·k; every panel spans the same range", "スコア q·k（どの図も目盛りの幅は同じ）")
            if rows > 1
            else say("score q·k", "スコア q·k"),
            fontsize=10,
        )
    return made
