"""`ropewalk train`: train a small model with an encoding, and see what it can do, also beyond its length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ropewalk.cli.base import Command, from_options, say
from ropewalk.cli.options import Decorator, Pick, Whole, json_option, lang_option, option

if TYPE_CHECKING:
    from ropewalk.lab.settings import Settings

    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType


class Number(_Type):
    """A number above 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or an error that says which ones are allowed."""
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number < float("inf"):
            self.fail(
                say(
                    f"{value!r} is not a number above 0.", f"「{value}」は使えません。0 より大きい数を指定してください"
                ),
                param,
                ctx,
            )
        return number


class Multiples(_Type):
    """Whole numbers from 1 on, separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers in the order given, each once."""
        if isinstance(value, tuple):
            return value
        return tuple(dict.fromkeys(Whole(1).convert(part.strip(), param, ctx) for part in str(value).split(",")))


class Assignment(_Type):
    """`KEY=VALUE`, the value a number, true, false, null or a word."""

    name = "assignment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Key and value."""
        if isinstance(value, tuple):
            return value[0], value[1]
        key, equals, word = str(value).partition("=")
        if not (key.strip() and equals and word.strip()):
            self.fail(
                say(f"{value!r} is not KEY=VALUE.", f"「{value}」は使えません。キー=値 の形で指定してください"),
                param,
                ctx,
            )
        try:
            return key.strip(), json.loads(word)
        except ValueError:
            return key.strip(), word.strip()


def _whole(name: str, default: int, en: str, ja: str, least: int = 1) -> Decorator:
    return option(f"--{name}", type=Whole(least), default=default, metavar="N", text=(en, ja))


@click.command(
    "train",
    cls=Command,
    text=(
        "Train a small Transformer with one of the encodings, and measure it at its trained length and beyond.\n"
        "The run is a folder; stopped at whatever moment, it goes on with --resume as if nothing had been. "
        "Under torchrun it is split among processes.",
        "指定した位置符号化で小さな Transformer を学習し、学習時の長さとそれ以上の長さで評価します。\n"
        "学習はフォルダーに保存されます。いつ中断しても、--resume で続きから同じ結果になります。"
        "torchrun で起動すると、複数のプロセスで分担します。",
    ),
    examples=(
        "ropewalk train --encoding alibi --steps 20 --dim 32 --layers 1 --length 64 --output first-run",
        "ropewalk train --goal reverse --steps 20 --dim 32 --layers 1 --length 32 --test-tokens 2048 --output reversed",
    ),
)
@option(
    "--corpus",
    "corpus",
    default="pydoc",
    metavar="NAME",
    text=("Text to train on; see `ropewalk corpus list`.", "学習するテキスト（ropewalk corpus list で一覧）。"),
)
@option(
    "--text",
    "texts",
    multiple=True,
    metavar="PATH",
    text=(
        "Your own text in its place: UTF-8 files, folders; may be repeated.",
        "代わりに使う手元のテキスト（UTF-8 のファイルかフォルダー、複数可）。",
    ),
)
@option(
    "--tokenizer",
    metavar="FILE",
    text=("A tokenizer.json; bytes without it.", "tokenizer.json。省略するとバイト単位。"),
)
@option(
    "--goal",
    default="causal",
    metavar="NAME",
    text=(
        "causal, masked, classify, or a task: copy, reverse, nth, sort, translate, previous, brackets.",
        "causal、masked、classify、または課題 copy、reverse、nth、sort、translate、previous、brackets。",
    ),
)
@option(
    "--form",
    type=Pick("decoder", "encoder", "encoder-decoder"),
    metavar="FORM",
    text=("decoder, encoder or encoder-decoder.", "decoder、encoder、encoder-decoder のどれか。"),
)
@option(
    "--encoding",
    default="rope",
    metavar="NAME",
    text=("The encoding; see `ropewalk list`.", "位置符号化（ropewalk list で一覧）。"),
)
@option(
    "--option",
    "options",
    type=Assignment(),
    multiple=True,
    metavar="KEY=VALUE",
    text=("Of the encoding, base=500000 say; may be repeated.", "位置符号化のオプション。例: base=500000（複数可）。"),
)
@_whole("dim", 128, "Channels.", "チャネル数。")
@_whole("heads", 4, "Heads of attention.", "注意ヘッドの数。")
@_whole("layers", 4, "Layers.", "層の数。")
@_whole("length", 256, "Tokens of a training text.", "学習時のトークン数。")
@_whole("batch", 16, "Texts a step.", "1 ステップのテキスト数。")
@_whole("steps", 1000, "Steps.", "ステップ数。")
@option(
    "--learning-rate",
    type=Number(),
    default=3e-3,
    metavar="X",
    text=("The highest, after the warm-up.", "ウォームアップ後の最大学習率。"),
)
@option("--seed", type=Whole(0), default=0, metavar="N", text=("Of weights and batches.", "重みとバッチの乱数シード。"))
@option(
    "--precision",
    type=Pick("float32", "bfloat16"),
    default="float32",
    metavar="float32|bfloat16",
    text=("Of products in training.", "学習時の行列積の精度。"),
)
@option("--device", type=Pick("cpu", "cuda"), default="cpu", metavar="cpu|cuda", text=("Where.", "使うデバイス。"))
@option("--threads", type=Whole(1), metavar="N", text=("Of this process.", "スレッド数。"))
@option(
    "--lengths",
    type=Multiples(),
    default="1,2,4,8",
    metavar="N,N,…",
    text=("Multiples of the length to test at.", "評価する長さ（学習時の何倍か）。"),
)
@_whole("test-tokens", 65_536, "To test with, at each; 0 for none.", "評価に使うトークン数。0 なら評価しません。", 0)
@option(
    "--extend",
    "extensions",
    multiple=True,
    metavar="NAME:FACTOR",
    text=(
        "Test with this context extension as well (RoPE), yarn:8 say; may be repeated.",
        "この拡張を付けた評価も行います（RoPE のみ、複数可）。例: yarn:8",
    ),
)
@option("--output", metavar="FOLDER", text=("Folder of the run.", "学習の保存先フォルダー。"))
@option(
    "--resume",
    is_flag=True,
    text=("Go on with the run in --output.", "--output にある学習の続きを行います。"),
)
@option(
    "--split",
    type=Pick("ddp", "fsdp"),
    default="ddp",
    metavar="ddp|fsdp",
    text=("How torchrun's processes share the model.", "torchrun のプロセス間でのモデルの持ち方。"),
)
@json_option
@lang_option
@click.pass_context
def command(ctx: click.Context, /, output: str | None, resume: bool, split: str, as_json: bool, **given: Any) -> None:
    """Train, test, print."""
    from ropewalk.cli import training
    from ropewalk.cli.training import failing
    from ropewalk.lab.feasible import feasible
    from ropewalk.lab.ranks import Ranks, joined
    from ropewalk.lab.train import Stopped, begin, settings_of, train

    if resume:
        changed = [n for n in given if ctx.get_parameter_source(n) is not ParameterSource.DEFAULT]
        if changed or output is None:
            flags = ", ".join("--" + _FLAGS.get(n, n.replace("_", "-")) for n in changed)
            raise click.UsageError(
                say(
                    f"a resumed run keeps its settings: leave out {flags}"
                    if changed
                    else "give --output, the folder of the run to resume",
                    f"再開時は設定を変えられません。{flags} を外してください"
                    if changed
                    else "再開する学習のフォルダーを --output で指定してください",
                ),
                ctx,
            )
    with joined():
        ranks = Ranks("fsdp" if split == "fsdp" else "ddp")
        if resume:
            folder = Path(str(output))
            with failing(folder):
                settings = settings_of(folder)
                goal = settings.make_goal()
        else:
            with failing(Path(output or ".")), from_options("この設定では学習できません"):
                settings = _settings(given)
                goal = settings.make_goal()
                feasible(settings, goal)
            folder = Path(output or f"ropewalk-{settings.goal}-{settings.encoding}-{settings.seed}")
        try:
            with failing(folder):
                if not resume and ranks.first:
                    begin(folder, settings)
                ranks.wait()
                with training.progress(settings, quiet=not ranks.first) as tell:
                    result = train(folder, tell=tell, ranks=ranks, goal=goal)
        except Stopped as stopped:
            if ranks.first:
                click.echo(
                    say(
                        f"Stopped after step {stopped.step}; nothing is lost: {training.again(folder)}",
                        f"ステップ {stopped.step} で中断しました（保存済み）。続きは {training.again(folder)}",
                    ),
                    err=True,
                )
            ctx.exit(130)
    if not ranks.first:
        return
    if as_json:
        from ropewalk.cli.output import print_json

        print_json(result)
        return
    training.show(result, folder)


_FLAGS = {"texts": "text", "options": "option", "extensions": "extend"}


def _settings(given: dict[str, Any]) -> Settings:
    from ropewalk.lab.settings import Settings

    texts = given.pop("texts")
    corpus = given.pop("corpus")
    checked = max(Settings.validation_tokens, given["length"])  # one text at least
    options = dict(given["options"])
    return Settings(**{**given, "options": options, "corpus": texts or (corpus,), "validation_tokens": checked})
