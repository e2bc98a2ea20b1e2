"""`ropewalk compare`: one query, a few keys, every encoding."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.base import Command, from_options, language, say
from ropewalk.cli.options import (
    Positions,
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

if TYPE_CHECKING:
    from ropewalk.measure.compare import Comparison

BAR = 8
"""Cells of the longest bar."""


@click.command(
    "compare",
    cls=Command,
    text=(
        "Scores of one query with a few keys, for every encoding.\n"
        "Each score belongs to a distance, from the query's position to the key's. "
        "The defaults are those of the article that the project began from, and give its numbers.",
        "一つのクエリといくつかのキーのスコアを、位置符号化ごとに比べます。\n"
        "スコアはクエリの位置からキーの位置までの距離ごとに示します。"
        "既定値はこのプロジェクトの出発点となった記事のもので、記事と同じ数値になります。",
    ),
    examples=(
        "ropewalk compare",
        "ropewalk compare --encodings rope,alibi --query 0 --keys 1,10,100",
        "ropewalk compare --vectors random --plot scores.png",
    ),
)
@option("--query", type=Whole(0), default=2, metavar="N", text=("Position of the query.", "クエリの位置。"))
@option(
    "--keys",
    type=Positions(),
    default="3,5,20",
    metavar="N,N,…",
    text=("Positions of the keys.", "キーの位置（カンマで区切ります）。"),
)
@encodings_option("all")
@vectors_option
@dim_option
@seed_option
@plot_option
@json_option
@lang_option
def command(
    query: int,
    keys: tuple[int, ...],
    encodings: tuple[str, ...],
    vectors: str,
    dim: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure, print, draw."""
    from ropewalk.cli import output
    from ropewalk.measure.compare import compare

    if plot:
        output.check_can_draw(plot)
    names = [output.encoding(name).name for name in encodings]
    with from_options(numbers=(max(query, *keys) + 1) * dim):
        found = compare(dim=dim, query=query, keys=keys, vectors=vectors, seed=seed, encodings=names)
    output.check_finite(row.score for row in found.rows)
    if as_json:
        output.print_json(found.json())
    else:
        show(found)
    if plot:
        output.save_picture("scores", found, language(), plot)


def show(found: Comparison) -> None:
    """The table with its bars, and what to see in it."""
    from ropewalk.cli import output

    out = output.console()
    scores, labels = found.table(), output.labels()
    vectors = {"ones": say("vectors of ones", "すべて 1 のベクトル"), "random": say("random vectors", "乱数のベクトル")}
    kind = vectors.get(found.vectors, found.vectors)
    title = say(
        f"Scores of a query at position {found.query} with each key", f"位置 {found.query} のクエリと各キーのスコア"
    )
    settings = say(f"dim {found.dim}, {kind}, seed {found.seed}", f"{found.dim} 次元、{kind}、シード {found.seed}")
    out.print(title, style="bold", soft_wrap=True)
    out.print(settings, style="dim", soft_wrap=True)

    near, far = (pick(found.keys, key=lambda k: abs(k - found.query)) for pick in (min, max))
    change = {n: row[found.keys.index(far)] - row[found.keys.index(near)] for n, row in scores.items()}
    largest = max(abs(c) for c in change.values())
    with_bars = abs(far - found.query) > abs(near - found.query)
    digits = max(len(f"{c:+.4f}") for c in change.values())
    column = 3 + max(
        *(len(f"distance {k - found.query}") for k in found.keys), *(len(f"{s.score:.4f}") for s in found.rows)
    )
    # Numbers are never cut: what does not fit makes a second table.
    fits = max(1, (out.width - 17 - (digits + 4 + BAR if with_bars else 0)) // column)
    for start in range(0, len(found.keys), fits):
        here = range(start, min(start + fits, len(found.keys)))
        drawn = output.table()
        drawn.add_column(say("Encoding\n", "位置符号化\n"), no_wrap=True)
        for key in (found.keys[c] for c in here):
            heading = say(f"key at {key}\ndistance {key - found.query}", f"キー {key}\n距離 {key - found.query}")
            drawn.add_column(heading, justify="right", no_wrap=True)
        last = with_bars and here.stop == len(found.keys)
        if last:
            drawn.add_column(
                say(f"change from\nkey {near} to {far}", f"キー {near} から\n{far} への変化"), no_wrap=True
            )
        for name, row in scores.items():
            numbers = [f"{row[c]:.4f}" for c in here]
            bar = [f"{change[name]:>+{digits}.4f} {output.bar(change[name], largest, BAR)}".rstrip()] if last else []
            drawn.add_row(labels[name], *numbers, *bar)
        out.print(drawn)
    for line in lessons(found, near, far):
        output.paragraph(out, line, indent="  ")


def lessons(found: Comparison, near: int, far: int) -> list[str]:
    """What to see: the three families of the article, of which those in the table are named."""
    scores = found.table()
    lines = [
        say(
            "A score is the raw product q·k with what the encoding adds: no softmax, no division by √d. Learned tables "
            f"are drawn at random (seed {found.seed}), not trained.",
            "スコアは q·k の内積に各位置符号化が加わった値です（softmax も √d での割り算もなし）。"
            f"学習する表は乱数（シード {found.seed}）のままで、学習していません。",
        )
    ]
    if "learned" in scores:
        lines.append(
            say(
                "- Learned (absolute): position is added to the vectors. No term of the product is the distance, "
                "so the scores follow no rule of distance.",
                "- Learned（絶対位置）: 位置をベクトルに足します。内積のどの項も距離ではないので、"
                "スコアは距離に対して不規則です。",
            )
        )
    if "relative_bias" in scores:
        lines.append(
            say(
                "- Relative bias: one number for each signed distance is added to the same product: exact by distance, "
                "at the cost of a lookup.",
                "- Relative bias（相対位置）: 符号付き距離ごとの数を同じ内積に足します。距離だけで決まりますが、"
                "表を引く手間がかかります。",
            )
        )
    if "rope" in scores:
        nearest_first = sorted(
            zip(found.keys, scores["rope"], strict=True), key=lambda pair: abs(pair[0] - found.query)
        )
        falls = all(a[1] > b[1] for a, b in itertools.pairwise(nearest_first))
        if near == far:
            seen = ("", "")
        elif falls:
            seen = (
                " For these vectors and keys the score falls with distance.",
                "このベクトルとキーでは、距離とともにスコアが下がります。",
            )
        else:
            seen = (
                " For these vectors and keys the score does not fall steadily with distance.",
                "このベクトルとキーでは、スコアは距離とともに下がり続けるわけではありません。",
            )
        lines.append(
            say(
                "- RoPE: query and key are turned, and the product depends on the distance only." + seen[0],
                "- RoPE（回転）: クエリとキーを回転し、内積は距離だけで決まります。" + seen[1],
            )
        )
    if "xpos" in scores and max(found.keys) > found.query:
        lines.append(
            say(
                "- xPos damps keys before the query; those after it, which causal attention never sees, it raises.",
                "- xPos はクエリより前のキーのスコアを弱めます。"
                "因果的な注意機構では見えない、後ろのキーでは逆に強めます。",
            )
        )
    return lines
