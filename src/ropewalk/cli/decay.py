"""`ropewalk decay`: the score against distance, and an honest answer to whether it falls."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.base import Command, from_options, language, say
from ropewalk.cli.options import (
    Whole,
    dim_option,
    encodings_option,
    json_option,
    lang_option,
    option,
    plot_option,
    seed_option,
    vectors_option,
)
from ropewalk.cli.verdict import about_several, conclusion, errors, kind, rises, sentence

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.measure.decay import Curve, Decay


@click.command(
    "decay",
    cls=Command,
    text=(
        "The score against distance, and whether it falls.\n"
        "Shows the curve, the highest score beyond each distance, and the largest rebound. The default is the "
        "article's curve: RoPE, vectors of ones, query at 0, distances 0 to 100. With --vectors random you see the "
        "mean over many pairs of vectors: whether there is decay depends on query and key.",
        "距離に対するスコアの曲線を描き、減衰するかどうかを調べます。\n"
        "曲線のほか、各距離より遠くでの最大値と、最大の戻りを示します。"
        "既定値は記事の曲線です（RoPE、すべて 1 のベクトル、クエリは位置 0、距離 0〜100）。"
        "--vectors random では多数のベクトルの組の平均を見ます。減衰するかどうかはクエリとキーによります。",
    ),
    examples=(
        "ropewalk decay",
        "ropewalk decay --vectors random --pairs 500",
        "ropewalk decay --encodings rope,xpos,alibi --length 200 --plot decay.svg",
    ),
)
@encodings_option("rope")
@option("--length", type=Whole(1), default=100, metavar="N", text=("The greatest distance.", "最大の距離。"))
@option(
    "--query",
    type=Whole(0),
    default=0,
    metavar="N",
    text=("Position of the query; keys stand at and after it.", "クエリの位置。キーはその位置から後ろに並びます。"),
)
@dim_option
@vectors_option
@option(
    "--pairs",
    type=Whole(1),
    default=1000,
    metavar="N",
    text=("How many random pairs of query and key.", "クエリとキーの組の数（random のとき）。"),
)
@seed_option
@plot_option
@json_option
@lang_option
def command(
    encodings: tuple[str, ...],
    length: int,
    query: int,
    dim: int,
    vectors: str,
    pairs: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure, print, draw."""
    from ropewalk.cli import output
    from ropewalk.measure.decay import decay

    if plot:
        output.check_can_draw(plot)
    names = [output.encoding(name).name for name in encodings]
    at_once = min(pairs, 64) if vectors == "random" else 1
    with from_options(numbers=max((query + length + 1) * dim, at_once * (length + 1) * dim, 2 * pairs * dim)):
        found = decay(dim=dim, query=query, length=length, vectors=vectors, pairs=pairs, seed=seed, encodings=names)
    output.check_finite(score for curve in found.curves for score in curve.scores)
    if as_json:
        output.print_json(found.json())
    else:
        show(found)
    if plot:
        output.save_picture("decay", found, language(), plot)


def show(found: Decay) -> None:
    """One curve in full, or several in a table; then what they say, and when there is decay."""
    from ropewalk.cli import output

    out = output.console()
    used = {
        "ones": say("vectors of ones", "すべて 1 のベクトル"),
        "random": say(f"mean of {found.pairs:,} random pairs", f"乱数の組 {found.pairs:,} 個の平均")
        if found.pairs > 1
        else say("one random pair", "乱数の組 1 個"),
    }.get(found.vectors, found.vectors)
    title = say(f"Score at each distance from 0 to {found.length}", f"距離 0 から {found.length} までのスコア")
    settings = say(
        f"dim {found.dim}, {used}, query at {found.query}, seed {found.seed}",
        f"{found.dim} 次元、{used}、クエリは位置 {found.query}、シード {found.seed}",
    )
    out.print(title, style="bold", soft_wrap=True)
    out.print(settings, style="dim", soft_wrap=True)
    if len(found.curves) == 1:
        _show_one(out, found.curves[0], found)
    else:
        _show_several(out, found)
    if len(found.curves) == 1:
        output.paragraph(out, sentence(found.curves[0], found, output.labels()[found.curves[0].encoding]), indent="  ")
    else:
        for line in about_several(found, output.labels()):
            output.paragraph(out, line, indent="  ")
    if any(curve.encoding == "xpos" for curve in found.curves):
        note = say(
            "xPos damps keys before the query; here they stand after it, where it raises them instead.",
            "xPos はクエリより前のキーのスコアを弱めます。ここではキーが後ろにあるので、逆に強めています。",
        )
        output.paragraph(out, note, indent="  ")
    output.paragraph(out, conclusion(found))


def _show_one(out: Console, curve: Curve, found: Decay) -> None:
    from ropewalk.cli import output

    label = output.labels()[curve.encoding]
    lines: list[list[float]] = [list(curve.scores)]
    if curve.spread:
        lines += [[m + side * s for m, s in zip(curve.scores, curve.spread, strict=True)] for side in (-1, 1)]
        what = say(f"{label}: mean, and one standard deviation to either side", f"{label}: 平均と、その上下に標準偏差")
    else:
        what = say(f"{label}: score", f"{label}: スコア")
    drawn = output.chart(lines, 66, 10)
    margin = max(line.index("┤") for line in drawn if "┤" in line)
    out.print(f"\n{' ' * margin} {what}", *drawn, sep="\n", soft_wrap=True)
    end = say(f"distance {found.length}", f"距離 {found.length}")
    out.print(f"{' ' * margin} 0{' ' * (66 - len(end) - 2 * (language() == 'ja'))}{end}", soft_wrap=True)

    rebound = {curve.rebound.low_at, curve.rebound.high_at} if curve.rebound else set()
    rows = output.table()
    rows.add_column(say("distance", "距離"), justify="right")
    rows.add_column(say("mean score", "平均スコア") if curve.spread else say("score", "スコア"), justify="right")
    if curve.spread:
        rows.add_column(say("standard error", "標準誤差"), justify="right")
    rows.add_column(say("highest at any greater distance", "それより遠くでの最大値"), justify="right")
    for d in sorted(set(_ladder(found.length)) | rebound):
        cells = [str(d), f"{curve.scores[d]:.4f}"]
        if curve.spread:
            cells.append(f"{curve.spread[d] / math.sqrt(found.pairs):.4f}")
        beyond = curve.beyond[d]
        rows.add_row(*cells, "" if beyond is None else f"{beyond:.4f}")
    out.print(rows)


def _show_several(out: Console, found: Decay) -> None:
    from ropewalk.cli import output

    rows = output.table()
    rows.add_column(say("Encoding", "位置符号化"), no_wrap=True)
    rows.add_column(say("own scale", "各自の縦軸"), no_wrap=True)
    rows.add_column(say("at 0", "距離 0"), justify="right", no_wrap=True)
    rows.add_column(say(f"at {found.length}", f"距離 {found.length}"), justify="right", no_wrap=True)
    if found.curves[0].spread:
        rows.add_column(say("std. error", "標準誤差"), justify="right", no_wrap=True)
        rows.add_column(say("the mean", "平均"), no_wrap=True)
    else:
        rows.add_column(say("largest rebound", "最大の戻り"), no_wrap=True)
    short = {
        "bias": say("bias alone", "バイアスのみ"),
        "flat": say("flat at 0", "ゼロで平ら"),
        "embedding": say("added", "加算"),
        "other": say("not flat", "平らでない"),
        "few": say("too few", "組が少ない"),
    }
    for curve in found.curves:
        if curve.spread:
            last = [f"{sum(errors(curve, found)) / len(curve.spread):.4f}", short[kind(curve, found)]]
        else:
            rise = curve.rebound if rises(curve) else None
            last = [f"{rise.low_at} → {rise.high_at}: {rise.high - rise.low:+.4f}" if rise else "-"]
        rows.add_row(
            output.labels()[curve.encoding],
            output.sparkline(curve.scores, 15),
            f"{curve.scores[0]:.4f}",
            f"{curve.scores[-1]:.4f}",
            *last,
        )
    out.print(rows)


def _ladder(length: int) -> list[int]:
    """0, 1, 2, 5, 10, 20, 50, … and the last."""
    steps = [m * 10**p for p in range(len(str(length))) for m in (1, 2, 5)]
    return [0, *(s for s in steps if s < length), length]
