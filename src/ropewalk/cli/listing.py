"""`ropewalk list`: all encodings, a line or two each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ropewalk.cli.base import Command, language, say
from ropewalk.cli.options import json_option, lang_option
from ropewalk.cli.text import cells, pad, wrap

if TYPE_CHECKING:
    from ropewalk.cards import Card


@click.command(
    "list",
    cls=Command,
    text=(
        "All encodings, each with its idea in a line.\nAlso says where each acts, and what it claims.",
        "すべての位置符号化の一覧を、考え方とともに表示します。\nそれぞれが作用する場所と性質も示します。",
    ),
    examples=("ropewalk list", "ropewalk list --json"),
)
@json_option
@lang_option
def command(as_json: bool) -> None:
    """Print the list."""
    from ropewalk.cards import cards
    from ropewalk.cli import output

    found = cards()
    if as_json:
        output.print_json({"schema": "ropewalk.list/1", "encodings": [_short(card) for card in found]})
        return
    out = output.console()
    headings = (say("NAME", "名前"), say("LABEL", "表示名"), say("ACTS ON", "作用する場所"), say("CLAIMS", "性質"))
    rows = [headings, *((card.name, card.label, places(card), claims(card)) for card in found)]
    widths = [max(cells(row[c]) for row in rows) + 1 for c in range(3)]
    for row, card in zip(rows, (None, *found), strict=True):
        line = "".join(pad(word, width) for word, width in zip(row, widths, strict=False)) + row[-1]
        out.print(line, style=None if card else "bold", soft_wrap=True)
        for idea in wrap(card.idea[language()], min(out.width, output.SENTENCES) - 4) if card else ():
            out.print(f"    {idea}", style="dim", soft_wrap=True)
    out.print()
    legend = say(
        "`ropewalk show NAME` tells more. shift-invariant: moving all tokens together changes nothing. distance-only: "
        "what is added to the score depends on the distance alone. causal-only: for keys that are not after the query. "
        "limited: for positions up to a length.",
        "詳しくは ropewalk show NAME で見られます。平行移動不変: 全トークンを一緒にずらしても結果が変わりません。"
        "距離のみ: スコアに足す数が距離だけで決まります。因果のみ: クエリより後ろのキーには使えません。"
        "長さ制限: 決まった長さまでの位置に使えます。",
    )
    output.paragraph(out, legend)


def _short(card: Card) -> dict[str, object]:
    whole = card.json()
    return {key: whole[key] for key in ("name", "label", "places", "claims", "idea")}


def places(card: Card) -> str:
    """Where it acts, in words."""
    from ropewalk.cards import PLACE_NAMES

    names = [PLACE_NAMES[place][language()] for place in card.places]
    return say(", ", "・").join(names) or say("nothing", "なし")


def claims(card: Card) -> str:
    """What it claims, in words."""
    held = []
    if card.claims.shift_invariant:
        held.append(say("shift-invariant", "平行移動不変"))
    if card.claims.distance_only:
        held.append(say("distance-only", "距離のみ"))
    if card.claims.causal_only:
        held.append(say("causal-only", "因果のみ"))
    if card.claims.max_length is not None:
        held.append(say("limited", "長さ制限"))
    return say(", ", "、").join(held) or "-"
