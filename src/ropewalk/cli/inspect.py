"""`ropewalk inspect`: what a model's configuration says about positions, and what an extension would change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.base import Command, Failure, from_options, language, say, unknown
from ropewalk.cli.options import Whole, json_option, lang_option, option, plot_option

if TYPE_CHECKING:
    from ropewalk.plans import RotaryPlan


@click.command(
    "inspect",
    cls=Command,
    text=(
        "What a model's positions do, read from its configuration.\n"
        "MODEL is a config.json, the folder with it, Meta's params.json, or a GGUF file; weights are not needed. For "
        "each kind of layer you see how it rotates, what its context extension does to every pair of channels, which "
        "pairs never complete a turn, how precise the tables are, and what is wrong with the configuration or read "
        "differently elsewhere. --try shows what another extension would change.",
        "モデルの設定から、位置符号化の働きを読み取ります。\n"
        "MODEL は config.json、それが入ったフォルダー、Meta の params.json、または GGUF ファイルです。"
        "モデルの重みは要りません。"
        "層の種類ごとに、回転のしかた、文脈長の拡張が各ペアに及ぼす影響、一回転し終えないペア、表の精度、"
        "設定の誤りや、ほかのプログラムで読み方が異なる点を示します。"
        "--try を使うと、別の拡張にした場合の変化が分かります。",
    ),
    examples=(
        "ropewalk inspect examples/configs/llama-3.1-8b.json",
        "ropewalk inspect examples/configs/qwen2.5-7b.json --try yarn:4 --try llama3:8",
        "ropewalk inspect examples/configs/gemma-3-12b.json --length 32768 --plot gemma.svg",
    ),
)
@click.argument("model")
@option(
    "--length",
    type=Whole(1),
    metavar="N",
    text=(
        "Tokens of the text: where extensions that depend on the length are evaluated, and precision and decay are "
        "measured. By default the longest that the configuration speaks of.",
        "テキストの長さ（トークン数）。長さに依存する拡張の評価と、精度と減衰の測定に使います。"
        "省略すると、設定にある最大の長さです。",
    ),
)
@option(
    "--try",
    "tries",
    multiple=True,
    metavar="NAME:FACTOR",
    text=(
        "Another extension to compare with, such as yarn:4 or llama3:8,low_freq_factor=2; may be repeated.",
        "比べてみたい別の拡張。yarn:4、llama3:8,low_freq_factor=2 のように書きます。複数回指定できます。",
    ),
)
@option(
    "--pairs",
    "every",
    is_flag=True,
    text=("Show every pair of channels, not a few.", "一部ではなく、すべてのペアを表示します。"),
)
@plot_option
@json_option
@lang_option
def command(
    model: str, length: int | None, tries: tuple[str, ...], every: bool, plot: Path | None, as_json: bool
) -> None:
    """Read, compute, print, draw."""
    from ropewalk.cli import output
    from ropewalk.cli.report import show
    from ropewalk.inspection import inspect, tryable

    if plot:
        output.check_can_draw(plot)
    for text in tries:
        name = text.split(",")[0].split(":")[0].strip().lower()
        if name not in tryable():
            raise click.UsageError(unknown(name, tryable(), "extension", "拡張"), click.get_current_context())
    plan = _read(model)
    try:
        found = inspect(plan, length=length, name=model)
    except (ValueError, ArithmeticError) as error:  # parameters that the reader takes, and that do not fit each other
        raise _broken(f"{model}: {error}") from error
    if tries:
        with from_options():
            found = inspect(plan, length=length, tries=tries, name=model)
    if as_json:
        output.print_json(found.json())
    else:
        show(found, every=every)
    if plot:
        output.save_picture("inspect", found, language(), plot)


def _read(model: str) -> RotaryPlan:
    from ropewalk.readers import read

    try:
        return read(model)
    except ArithmeticError as error:
        raise _broken(f"{model}: its numbers are too large to compute with") from error
    except ValueError as error:
        raise _broken(str(error)) from error


def _broken(why: str) -> Failure:
    """One line, whatever a file may hold: keys and values of other people can contain anything."""
    line = " ".join("".join(c if c.isprintable() else " " for c in why).split())
    line = line if len(line) <= 600 else line[:600] + "…"
    return Failure(say(f"cannot read this configuration: {line}", f"この設定は読み取れません（{line}）"))
