"""`ropewalk bench rotation`: the rotation of queries and keys, and what stands beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Command, from_options
from ropewalk.cli.bench import running
from ropewalk.cli.bench.values import Numbers, Several
from ropewalk.cli.options import lang_option, option

if TYPE_CHECKING:
    from ropewalk.benchmark.run import Plan

ON_GPU: dict[str, Any] = {"threads": (1,)}
"""What `--device cuda` puts in place of defaults: the threads are the GPU's."""

QUICK: dict[str, Any] = {
    "lengths": (1, 512),
    "dtypes": ("float32", "bfloat16"),
    "threads": (1,),
    "rounds": 5,
    "peers": ("hf", "rotary-embedding-torch", "torchtune", "complex"),
}
"""What `--quick` puts in place of defaults; compiling alone would take longer."""


@click.command(
    "rotation",
    cls=Command,
    text=(
        "The rotation of queries and keys, against others and against copying them.\n"
        "All run in turn in one process, after their results have been checked, and the report has medians of the "
        "ratios of each round. Sizes are those of an 8B Llama: q (1, 32, S, 128), k (1, 8, S, 128). Besides, qk-norm, "
        "writing into the cache, the angles and one decoded token. The default takes about ten minutes; with --json "
        "FILE an interrupted run goes on where it ended.",
        "クエリとキーの回転にかかる時間を、他の実装や単なるコピーと比べます。\n"
        "結果が正しいことを確かめてから、一つのプロセスの中で順番に実行し、各回の比の中央値を示します。"
        "大きさは 8B の Llama と同じで、q は (1, 32, S, 128)、k は (1, 8, S, 128) です。"
        "qk-norm、キャッシュへの書き込み、角度の計算、1 トークンの生成も測ります。既定では 10 分ほどかかります。"
        "--json FILE を付けると、中断しても同じコマンドで続きから再開できます。",
    ),
    examples=(
        "ropewalk bench rotation --quick",
        "ropewalk bench rotation --json results.json --markdown results.md",
        "ropewalk bench rotation --lengths 4096 --dtypes bfloat16 --threads 1 --no-backward",
    ),
)
@option(
    "--lengths",
    type=Numbers(),
    default="1,16,512,4096,32768",
    metavar="N,N,…",
    text=("Numbers of tokens.", "トークン数（カンマで区切ります）。"),
)
@option(
    "--dtypes",
    type=Several("float32", "bfloat16", "float16"),
    default="all",
    metavar="NAMES",
    text=("Some of float32, bfloat16, float16.", "float32、bfloat16、float16 から選びます。"),
)
@option(
    "--layouts",
    type=Several("half", "interleaved"),
    default="all",
    metavar="NAMES",
    text=("half, interleaved or both.", "half、interleaved、またはその両方。"),
)
@running.threads_option("1,all")
@running.rounds_option(15)
@option(
    "--backward/--no-backward",
    default=None,
    text=(
        "Forward and backward too; --no-backward leaves that out.",
        "順伝播と逆伝播の合計も測ります。--no-backward で省きます。",
    ),
)
@option(
    "--peers",
    type=Several("hf", "hf-compiled", "liger", "rotary-embedding-torch", "torchtune", "complex", none=True),
    default="all",
    metavar="NAMES",
    text=(
        "Whom to compare with: hf, hf-compiled, liger, rotary-embedding-torch, torchtune, complex, or none.",
        "比べる相手: hf、hf-compiled、liger、rotary-embedding-torch、torchtune、complex。none なら比べません。",
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
    options |= running.defaults(ctx, ON_GPU if options["device"] == "cuda" else {})
    options |= running.defaults(ctx, QUICK if quick else {})
    running.check_files(target, markdown)
    from ropewalk.benchmark import report, run

    running.carry_out(ctx, _plan(quick, **options), run, report, target=target, markdown=markdown)


def _plan(
    quick: bool,
    lengths: tuple[int, ...],
    dtypes: tuple[str, ...],
    layouts: tuple[Any, ...],
    threads: tuple[int | str, ...],
    rounds: int,
    backward: bool | None,
    peers: tuple[str, ...],
    device: str,
) -> Plan:
    from ropewalk.benchmark.rotation import HEAD_DIM, HEADS
    from ropewalk.benchmark.run import Plan
    from ropewalk.benchmark.timing import Patience

    patience = Patience(rounds, 0.001, 0.5) if quick else Patience(rounds)
    counts = running.thread_counts(threads)
    with from_options(numbers=HEADS * HEAD_DIM * max(lengths)):
        return Plan(lengths, dtypes, layouts, counts, peers, backward is not False, patience, device)
