"""`ropewalk lab speed`: what encodings cost in training."""

from __future__ import annotations

import click

from ropewalk.cli.base import Command, from_options, say
from ropewalk.cli.options import Pick, Whole, encodings_option, json_option, lang_option, option


@click.command(
    "speed",
    cls=Command,
    text=(
        "What encodings cost in training, against the same model on plain attention without one.\n"
        "All take turns; the ratio is taken within each round.",
        "位置符号化なしの通常の注意機構と比べて、学習がどれだけ遅くなるかを測ります。\n"
        "全モデルを交互に動かし、同じ回の中で比を取ります。",
    ),
    examples=("ropewalk lab speed --encodings rope,alibi,t5",),
)
@encodings_option("rope,alibi,t5")
@option("--length", type=Whole(2), default=256, metavar="N", text=("Tokens of a text.", "テキストのトークン数。"))
@option("--batch", type=Whole(1), default=16, metavar="N", text=("Texts a step.", "1 ステップのテキスト数。"))
@option("--rounds", type=Whole(1), default=9, metavar="N", text=("In which all take turns.", "測定回数。"))
@option("--threads", type=Whole(1), default=1, metavar="N", text=("Of this process.", "スレッド数。"))
@option(
    "--precision",
    type=Pick("float32", "bfloat16"),
    default="float32",
    metavar="float32|bfloat16",
    text=("Of products in training.", "学習時の行列積の精度。"),
)
@option(
    "--clock",
    type=Pick("wall", "cpu"),
    default="wall",
    metavar="wall|cpu",
    text=("cpu where others use the machine too.", "計算機を他と共有しているときは cpu。"),
)
@json_option
@lang_option
def command(
    encodings: tuple[str, ...],
    length: int,
    batch: int,
    rounds: int,
    threads: int,
    precision: str,
    clock: str,
    as_json: bool,
) -> None:
    """Measure and print."""
    from ropewalk.cli import output
    from ropewalk.encodings import ENCODINGS
    from ropewalk.lab.settings import Settings
    from ropewalk.lab.speed import PLAIN, document, speeds

    names = [output.encoding(name).name for name in encodings] or [cls.name for cls in ENCODINGS]
    with from_options("この設定では測定できません"):
        settings = Settings.from_json({"length": length, "batch": batch, "threads": threads, "precision": precision})
        found = speeds(settings, names, rounds=rounds, clock=clock)
    if as_json:
        output.print_json(document(settings, found))
        return
    rows = output.table()
    rows.add_column(say("Model", "モデル"))
    rows.add_column(say("tokens/s", "トークン/秒"), justify="right")
    rows.add_column(say("of plain", "比"), justify="right")
    for one in found:
        label = say("plain attention", "通常の注意機構") if one.name == PLAIN else output.labels()[one.name]
        rows.add_row(label, f"{one.tokens_per_second:,.0f}", f"{one.ratio:.2f}")
    output.console().print(rows)
