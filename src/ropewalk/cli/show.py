"""`ropewalk show NAME`: the card of one encoding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.base import Command, language, say
from ropewalk.cli.options import json_option, lang_option, plot_option
from ropewalk.cli.text import cells, pad, wrap

if TYPE_CHECKING:
    from ropewalk.cards import Card

LEFT = 14
"""Columns of the headings."""


@click.command(
    "show",
    cls=Command,
    text=(
        "The card of one encoding.\n"
        "Idea, formula, where it acts, claims, parameters, paper. NAME is one of those that `ropewalk list` shows.",
        "一つの位置符号化の要点をまとめて表示します。\n"
        "考え方、数式、作用する場所、性質、引数、論文です。NAME は ropewalk list で見られる名前です。",
    ),
    examples=("ropewalk show rope", "ropewalk show sinusoidal --plot sinusoidal.png"),
)
@click.argument("name")
@plot_option
@json_option
@lang_option
def command(name: str, plot: Path | None, as_json: bool) -> None:
    """Print the card, draw its picture."""
    from ropewalk.cards import card
    from ropewalk.cli import output

    if plot:
        output.check_can_draw(plot)
    found = card(output.encoding(name).name)
    if as_json:
        output.print_json(found.json())
    else:
        show(found)
    if plot:
        output.save_picture("card", found.name, language(), plot)


def show(card: Card) -> None:
    """The card, a field after the other."""
    from ropewalk.cli import output

    out = output.console()
    columns = min(out.width, output.SENTENCES) - LEFT

    def field(heading: str, *texts: str) -> None:
        lines = [line for text in texts for line in wrap(text, columns)]
        _print(heading, lines)

    def _print(heading: str, lines: list[str]) -> None:
        for start, line in zip([heading, *[""] * len(lines)], lines, strict=False):
            out.print(pad(start, LEFT) + line, soft_wrap=True)

    out.print(f"{card.label} ({card.name})", style="bold", soft_wrap=True)
    output.paragraph(out, card.idea[language()])
    out.print()
    field(say("Formula", "数式"), card.formula)
    field(say("Acts on", "作用する場所"), acts_on(card))
    field(say("Claims", "性質"), *claims(card))
    _print(say("Parameters", "引数"), parameters(card, columns))
    if card.differences:
        where = f"help(ropewalk.{card.python}) に英語の説明があります。"
        field(say("Variants", "実装の違い"), say(card.differences[:1].upper() + card.differences[1:], where))
    field(say("Paper", "論文"), *reference(card))
    field(say("In Python", "Python では"), example(card))
    field(say("To cite", "引用するには"), f"ropewalk cite {card.name}")


def acts_on(card: Card) -> str:
    """Which of the four places."""
    from ropewalk.cards import PLACE_NAMES

    if not card.places:
        return say("none of the four places", "四つの場所のどれにも作用しません")
    order = list(PLACE_NAMES)
    named = [f"{PLACE_NAMES[p][language()]} ({order.index(p) + 1}/4)" for p in card.places]
    return say(" and ", "と").join(named)


def claims(card: Card) -> list[str]:
    """Each claim as a sentence."""
    told = card.claims
    lines = [
        say("Moving all tokens together changes nothing.", "全トークンを一緒にずらしても結果は変わりません。")
        if told.shift_invariant
        else say("Depends on absolute positions.", "絶対位置によって結果が変わります。")
    ]
    if told.distance_only:
        lines.append(
            say("What it adds to the score depends on the distance alone.", "スコアに足す数は距離だけで決まります。")
            if "score" in card.places
            else ""
        )
    elif told.distance_only is False:
        lines.append(
            say(
                "What it adds to the score depends on more than the distance.",
                "スコアに足す数は距離だけでは決まりません。",
            )
        )
    if told.causal_only:
        lines.append(
            say(
                "For causal attention only, unless bidirectional=True.",
                "因果的な注意機構専用です（bidirectional=True なら双方向でも使えます）。",
            )
        )
    if told.max_length is not None:
        lines.append(
            say(
                f"Refuses positions from length on (default: {told.max_length}).",
                f"length 以上の位置は受け付けません（既定値: {told.max_length}）。",
            )
        )
    return lines


def parameters(card: Card, columns: int) -> list[str]:
    """Name with default, and what it means."""
    if not card.parameters:
        return [say("none", "なし")]
    named = []
    for parameter in card.parameters:
        default = "" if parameter.required else f" = {parameter.default!r}"
        choices = f" ({' | '.join(parameter.choices)})" if parameter.choices else ""
        named.append((parameter.name + default, parameter.meaning[language()] + choices))
    left = max(cells(term) for term, _ in named) + 2
    lines = []
    for term, meaning in named:
        first, *more = wrap(meaning, columns - left)
        lines += [pad(term, left) + first, *(" " * left + line for line in more)]
    return lines


def reference(card: Card) -> list[str]:
    """The paper, as a bibliography has it, and where in it."""
    paper = card.paper
    authors = ", ".join(paper.authors) if len(paper.authors) <= 3 else f"{paper.authors[0]} et al."
    venue = "" if paper.venue == "arXiv preprint" else f" {paper.venue}."
    lines = [f"{authors} ({paper.year}). {paper.title}.{venue}"]
    if paper.arxiv:
        lines.append(f"https://arxiv.org/abs/{paper.arxiv}")
    if paper.where and language() == "en":
        lines.append(f"Defined in {paper.where}")
    return lines


def example(card: Card) -> str:
    """A call that works."""
    sizes = {"dim": "512", "heads": "8", "head_dim": "64"}
    given = ", ".join(f"{p.name}={sizes[p.name]}" for p in card.parameters if p.required)
    return f"ropewalk.{card.python}({given})"
