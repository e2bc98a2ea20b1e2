"""`ropewalk bench model`: a whole model with transformers' rotation, with ours, and without any."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Command, Failure, from_options, say
from ropewalk.cli.bench import running
from ropewalk.cli.bench.values import Numbers, Several
from ropewalk.cli.options import lang_option, option

if TYPE_CHECKING:
    from ropewalk.benchmark.model.run import Plan

QUICK: dict[str, Any] = {
    "lengths": (256,),
    "dtypes": ("float32",),
    "modes": ("eager",),
    "threads": (1,),
    "rounds": 5,
}
"""What `--quick` puts in place of defaults."""


@click.command(
    "model",
    cls=Command,
    text=(
        "Tokens per second of a small Llama of transformers, as it is and after ropewalk.hf.install.\n"
        "The prompt at once (prefill) and one token more (decode), eager and compiled. The same model without any "
        "rotation says what share of the whole the rotation is, so how much faster a model can get at most; with wider "
        "models that is less. Logits are checked before they are timed. The default takes several minutes, most of "
        "them for the compiler; with --json FILE an interrupted run goes on where it ended.",
        "小さな Llama（transformers）の毎秒トークン数を、そのままと ropewalk.hf.install の後とで比べます。\n"
        "プロンプトの一括処理と次の 1 トークンの生成を、eager とコンパイルの両方で測ります。"
        "回転を取り除いた同じモデルも測り、回転が全体に占める割合、つまり速くなる余地を示します"
        "（モデルの幅が広いほど小さくなります）。出力が正しいことを確かめてから測定します。"
        "既定では数分かかり、その大半はコンパイルです。"
        "--json FILE を付けると、中断しても同じコマンドで続きから再開できます。",
    ),
    examples=(
        "ropewalk bench model --quick",
        "ropewalk bench model --json results.json --markdown results.md",
        "ropewalk bench model --lengths 128,2048 --dtypes bfloat16 --modes eager --threads 1",
    ),
)
@option(
    "--lengths",
    type=Numbers(),
    default="1024",
    metavar="N,N,…",
    text=("Tokens of the prompt.", "プロンプトのトークン数（カンマで区切ります）。"),
)
@running.dtypes_option
@option(
    "--modes",
    type=Several("eager", "compiled"),
    default="all",
    metavar="NAMES",
    text=("eager, compiled or both.", "eager、compiled、またはその両方。"),
)
@running.threads_option("all")
@running.rounds_option(15)
@running.device_option
@running.quick_option
@running.json_option
@running.markdown_option
@lang_option
@click.pass_context
def command(ctx: click.Context, /, quick: bool, target: str | None, markdown: Path | None, **options: Any) -> None:
    """Measure, print, write."""
    if importlib.util.find_spec("transformers") is None:
        raise Failure(
            say(
                "this needs transformers: pip install 'ropewalk[hf]'",
                "transformers が要ります: pip install 'ropewalk[hf]'",
            )
        )
    running.check_device(options["device"])
    options |= running.defaults(ctx, QUICK if quick else {})
    running.check_files(target, markdown)
    from ropewalk.benchmark.model import report, run

    running.carry_out(ctx, _plan(quick, **options), run, report, target=target, markdown=markdown)


def _plan(
    quick: bool,
    lengths: tuple[int, ...],
    dtypes: tuple[str, ...],
    modes: tuple[str, ...],
    threads: tuple[int | str, ...],
    rounds: int,
    device: str,
) -> Plan:
    from ropewalk.benchmark.model.cell import VOCABULARY, WIDTH
    from ropewalk.benchmark.model.run import Plan
    from ropewalk.benchmark.timing import Patience

    patience = Patience(rounds, 0.001, 1.0) if quick else Patience(rounds, cell=20.0)
    with from_options(numbers=max(VOCABULARY, 3 * WIDTH * max(lengths))):
        return Plan(lengths, dtypes, modes, running.thread_counts(threads), device, patience)
