"""`ropewalk order`: whether attention can tell two orders of the same words apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.base import Command, from_options, language, say
from ropewalk.cli.options import (
    dim_option,
    encodings_option,
    json_option,
    lang_option,
    option,
    plot_option,
    seed_option,
)

if TYPE_CHECKING:
    from ropewalk.measure.order import WordOrder


@click.command(
    "order",
    cls=Command,
    text=(
        "Whether attention can tell two word orders apart.\n"
        "Give two sentences made of the same words; where there is no space, characters are compared. "
        "Without sentences it takes the articles' pairs.",
        "注意機構が二つの語順を区別できるかどうかを調べます。\n"
        "同じ語からなる二つの文を指定してください（空白がなければ文字に分けます）。省略すると記事の例を使います。",
    ),
    examples=(
        "ropewalk order",
        'ropewalk order "dog bites man" "man bites dog"',
        "ropewalk order 犬が人を噛む 人が犬を噛む --causal --plot order.png",
    ),
)
@click.argument("first", required=False)
@click.argument("second", required=False)
@option(
    "--causal",
    is_flag=True,
    text=("Let each token see only those before it.", "各トークンに自分より前だけを見せます（因果マスク）。"),
)
@encodings_option("all")
@dim_option
@seed_option
@plot_option
@json_option
@lang_option
def command(
    first: str | None,
    second: str | None,
    causal: bool,
    encodings: tuple[str, ...],
    dim: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure and print."""
    from ropewalk.cli import output
    from ropewalk.measure.order import PAIRS, order

    if first is not None and second is None:
        raise click.UsageError(
            say(
                "give two sentences, or none for the articles' pairs",
                "文を二つ指定するか、省略して記事の例を使ってください",
            ),
            click.get_current_context(),
        )
    if plot and first is None:
        raise click.UsageError(
            say(
                "a picture shows one pair: give its two sentences",
                "図に描けるのは一組だけです。二つの文を指定してください",
            ),
            click.get_current_context(),
        )
    if plot:
        output.check_can_draw(plot)
    names = [output.encoding(name).name for name in encodings]
    pairs = PAIRS if first is None or second is None else ((first, second),)
    with from_options("二つの文は同じ語を別の順に並べたものにしてください", numbers=3 * dim * dim):
        found = [order(*pair, causal=causal, dim=dim, seed=seed, encodings=names) for pair in pairs]
    if plot:
        output.save_picture("order", found[0], language(), plot)
    if as_json:
        # Of the same shape for one pair and for more.
        schema = found[0].json()["schema"]
        output.print_json(
            {"schema": schema, "pairs": [{k: v for k, v in f.json().items() if k != "schema"} for f in found]}
        )
        return
    for each in found:
        show(each)


def show(found: WordOrder) -> None:
    """A table and one sentence."""
    from ropewalk.cli import output

    out = output.console()
    labels = output.labels()
    output.paragraph(
        out,
        say(f"“{found.first}” against “{found.second}”", f"「{found.first}」と「{found.second}」")
        + (say(", causal mask", "（因果マスクあり）") if found.causal else ""),
        style="bold",
    )
    output.paragraph(out, say("Tokens: ", "トークン: ") + " | ".join(found.tokens), indent="  ")
    rows = output.table()
    rows.add_column(say("Encoding", "位置符号化"), no_wrap=True)
    rows.add_column(say("relative difference of the outputs", "出力の相対的な差"), justify="right", no_wrap=True)
    rows.add_column(say("told apart", "区別"), no_wrap=True)
    for row in found.rows:
        rows.add_row(
            labels[row.encoding],
            f"{row.difference:.4f}" if row.told_apart else f"{row.difference:.1e}",
            say("yes", "できる") if row.told_apart else say("no", "できない"),
            style=None if row.told_apart else "bold",
        )
    out.print(rows)
    output.paragraph(out, sentence(found, labels))
    out.print()


def sentence(found: WordOrder, labels: dict[str, str]) -> str:
    """What the table says, in one sentence."""
    same = [row.encoding for row in found.rows if not row.told_apart]
    others = len(found.rows) - len(same)
    differences = {row.encoding: row.difference for row in found.rows}
    blind = [labels[name] for name in same if name != "nope"]
    if found.causal and "nope" in differences and "nope" not in same:
        return say(
            f"With a causal mask even NoPE differs ({differences['nope']:.4f}): the mask itself counts, "
            "since token n sees n tokens.",
            f"因果マスクがあると NoPE でも出力が変わります（{differences['nope']:.4f}）。"
            "n 番目のトークンには n 個のトークンが見えるので、マスク自体が順序を教えるからです。",
        )
    parts_en, parts_ja = [], []
    if "nope" in same:
        parts_en.append(f"without an encoding both orders give the same output to rounding ({differences['nope']:.1e})")
        parts_ja.append(
            f"位置符号化がなければ、二つの並びの出力は丸め誤差（{differences['nope']:.1e}）を除いて同じです"
        )
    if blind:
        why_en = why_ja = ""
        if found.mirrored:
            why_en = ", since the second order mirrors the first and a bias of |i − j| sees distances, not directions"
            why_ja = "。片方がもう片方の鏡像で、|i − j| だけによるバイアスには距離が見えても向きが見えないからです"
        parts_en.append(f"{_list(blind, ' and ')} cannot tell them apart{' either' if 'nope' in same else ''}{why_en}")
        parts_ja.append(f"{_list(blind, '・')} {'でも' if 'nope' in same else 'では'}区別できません{why_ja}")
    if others:
        who = ("the other " if same else "all ") + (str(others) if others > 1 else "one")
        parts_en.append(f"{who} tell{'s' if others == 1 else ''} them apart")
        parts_ja.append(f"{'ほかの ' if same else ''}{others} 個の位置符号化では区別できます")
    text = "; ".join(parts_en)
    return say(text[:1].upper() + text[1:] + ".", "。".join(parts_ja) + "。")


def _list(names: list[str], last: str) -> str:
    comma = ", " if last == " and " else last
    return comma.join(names[:-1]) + (last if len(names) > 1 else "") + names[-1]
