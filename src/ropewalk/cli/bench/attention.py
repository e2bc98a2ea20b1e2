"""`ropewalk bench attention`: encodings in attention, against plain attention and against the bias as a matrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Command, from_options
from ropewalk.cli.bench import running
from ropewalk.cli.bench.values import Numbers, Several
from ropewalk.cli.options import lang_option, option

if TYPE_CHECKING:
    from ropewalk.benchmark.attention.run import Plan

QUICK: dict[str, Any] = {
    "encodings": ("alibi", "shaw"),
    "lengths": (1024,),
    "dtypes": ("float32",),
    "threads": (1,),
    "rounds": 3,
}
"""What `--quick` puts in place of defaults."""


@click.command(
    "attention",
    cls=Command,
    text=(
        "Attention with an encoding, against plain causal attention.\n"
        "Encodings go through `attend`; the same bias as a matrix that PyTorch's attention takes as its mask, building "
        "included; FlexAttention, compiled; and plain causal attention, by whose time of the same round all are "
        "divided. Beside it stands the memory that a call needs beyond its inputs and results. 8 heads of 64 channels. "
        "Results are checked before they are timed. The default takes about forty minutes on two cores; with "
        "--json FILE an interrupted run goes on where it ended.",
        "位置符号化を使う注意機構を、使わない因果的注意機構と比べます。\n"
        "attend のほか、同じバイアスを行列にして PyTorch の注意機構に渡す方法（行列を作る時間を含む）と、"
        "コンパイルした FlexAttention を測り、同じ回に測った位置符号化なしの時間との比を示します。"
        "入力と結果のほかに使うメモリーも測ります。大きさは 64 次元 × 8 ヘッドです。"
        "結果が正しいことを確かめてから測定します。既定では 2 コアで 40 分ほどかかります。"
        "--json FILE を付けると、中断しても同じコマンドで続きから再開できます。",
    ),
    examples=(
        "ropewalk bench attention --quick",
        "ropewalk bench attention --json results.json --markdown results.md",
        "ropewalk bench attention --encodings alibi,t5 --lengths 8192 --dtypes float32 --no-backward",
    ),
)
@option(
    "--encodings",
    type=Several("rope", "xpos", "relative_bias", "shaw", "t5", "alibi", "kerple", "cope"),
    default="rope,shaw,t5,alibi,kerple",
    metavar="NAMES",
    text=(
        "Some of rope, xpos, relative_bias, shaw, t5, alibi, kerple, cope.",
        "rope、xpos、relative_bias、shaw、t5、alibi、kerple、cope から選びます。",
    ),
)
@option(
    "--lengths",
    type=Numbers(),
    default="1024,4096,8192,16384",
    metavar="N,N,…",
    text=("Numbers of tokens.", "トークン数（カンマで区切ります）。"),
)
@running.dtypes_option
@running.threads_option("all")
@running.rounds_option(7)
@option(
    "--backward/--no-backward",
    default=None,
    text=(
        "Forward and backward at every length too, which may take an hour; if neither is given, up to 8192 tokens in "
        "float32 and 4096 in bfloat16.",
        "順伝播と逆伝播の合計をすべての長さで測ります（1 時間ほどかかることがあります）。"
        "どちらも付けなければ、float32 は 8192、bfloat16 は 4096 トークンまでです。",
    ),
)
@running.device_option
@running.quick_option
@running.json_option
@running.markdown_option
@lang_option
@click.pass_context
def command(ctx: click.Context, /, quick: bool, target: str | None, markdown: Path | None, **options: Any) -> None:
    """Measure, print, write."""
    running.check_device(options["device"])
    options |= running.defaults(ctx, QUICK if quick else {})
    running.check_files(target, markdown)
    from ropewalk.benchmark.attention import report, run

    running.carry_out(ctx, _plan(quick, **options), run, report, target=target, markdown=markdown)


def _plan(
    quick: bool,
    encodings: tuple[str, ...],
    lengths: tuple[int, ...],
    dtypes: tuple[str, ...],
    threads: tuple[int | str, ...],
    rounds: int,
    backward: bool | None,
    device: str,
) -> Plan:
    from ropewalk.benchmark.attention.cell import HEAD_DIM, HEADS
    from ropewalk.benchmark.attention.run import Plan
    from ropewalk.benchmark.timing import Patience

    patience = Patience(rounds, 0.001, 0.5) if quick else Patience(rounds)
    with from_options(numbers=HEADS * HEAD_DIM * max(lengths)):
        return Plan(encodings, lengths, dtypes, running.thread_counts(threads), backward, device, patience)
