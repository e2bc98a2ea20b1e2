"""`ropewalk lab run STUDY`: carry it out, and say what was found."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ropewalk.cli.base import Command, say
from ropewalk.cli.lab.running import failing, progress, quick_option, read
from ropewalk.cli.lab.telling import tell as tell_findings
from ropewalk.cli.options import Whole, json_option, lang_option, option


@click.command(
    "run",
    cls=Command,
    text=(
        "Carry out a study.\nWithin its time, on several cores; the same command goes on where it was stopped.",
        "研究を実行します。\n制限時間の中で複数のコアを使います。中断しても、同じコマンドで続きから再開します。",
    ),
    examples=("ropewalk lab run examples/studies/order.toml --quick --output order",),
)
@click.argument("study", metavar="STUDY.toml")
@option("--output", metavar="FOLDER", text=("Where it is kept; its name otherwise.", "保存先。省略すると研究の名前。"))
@quick_option
@option("--workers", type=Whole(1), metavar="N", text=("Processes; one a core.", "プロセス数。省略するとコア数。"))
@option(
    "--minutes",
    type=Whole(1),
    metavar="N",
    text=("At most; the study's own otherwise.", "制限時間（分）。省略すると研究に書かれた時間。"),
)
@json_option
@lang_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    study: str,
    output: str | None,
    quick: bool,
    workers: int | None,
    minutes: int | None,
    as_json: bool,
) -> None:
    """Prepare, conduct, tell."""
    from ropewalk.benchmark.machine import cores
    from ropewalk.lab.conduct import conduct, prepare

    found = read(study, quick)
    folder = Path(output or f"study-{found.name}")
    with failing(folder):
        prepare(folder, found, ["ropewalk", *sys.argv[1:]])
        with progress() as tell:
            outcome = conduct(folder, found, workers=workers or cores(), minutes=minutes, tell=tell)
    tell_findings(folder, found, as_json=as_json)
    if outcome.reason is not None:
        why = say("time is up", "制限時間に達しました") if outcome.reason == "time" else say("stopped", "中断しました")
        click.echo(
            say(
                f"{why}: {outcome.done} of {outcome.total} runs are done; the same command goes on",
                f"{why}: {outcome.total} 回のうち {outcome.done} 回まで終了。同じコマンドで続きから再開します",
            ),
            err=True,
        )
        ctx.exit(130 if outcome.reason == "interrupt" else 1)
