"""`ropewalk lab show STUDY`: what it claims, and what would decide it."""

from __future__ import annotations

import click

from ropewalk.cli.base import Command, say
from ropewalk.cli.lab.running import quick_option, read
from ropewalk.cli.lab.telling import about
from ropewalk.cli.options import json_option, lang_option


@click.command(
    "show",
    cls=Command,
    text=(
        "What a study claims, what would confirm it, and how many runs that takes.",
        "研究の主張、判定の基準、必要な学習の数を表示します。",
    ),
    examples=("ropewalk lab show examples/studies/order.toml",),
)
@click.argument("study", metavar="STUDY.toml")
@quick_option
@json_option
@lang_option
def command(study: str, quick: bool, as_json: bool) -> None:
    """Read it, check it, and print it."""
    from ropewalk.cli import output

    found = read(study, quick)
    if as_json:
        output.print_json({"schema": "ropewalk.study/1", "digest": found.digest, "study": dict(found.document)})
        return
    about(found)
    runs = len(found.arms) * len(found.seeds)
    tuning = len(found.tuning())
    out = output.console()
    output.paragraph(
        out,
        say(
            f"{runs} runs ({len(found.arms)} arms, {len(found.seeds)} seeds) after {tuning} short ones to choose "
            f"learning rates; {found.minutes:g} minutes at most.",
            f"学習率を選ぶ短い学習 {tuning} 回の後、{len(found.arms)} 条件 × {len(found.seeds)} シードで {runs} 回。"
            f"制限時間 {found.minutes:g} 分。",
        ),
    )
