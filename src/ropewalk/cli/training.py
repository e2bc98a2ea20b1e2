"""What `ropewalk train` says on the way, and what it prints at the end."""

from __future__ import annotations

import errno
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Failure, missing, say

if TYPE_CHECKING:
    from ropewalk.lab.settings import Settings


@contextmanager
def progress(settings: Settings, *, quiet: bool) -> Iterator[Any]:
    """A bar with loss, speed and time left where stderr is a terminal, else a line for each tenth of the run."""
    if quiet:
        yield lambda line: None
        return
    shown = {"loss": "", "check": ""}
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=settings.steps)

            def move(line: dict[str, Any]) -> None:
                if "testing" in line:
                    shown["check"] = say("testing", "評価中")
                else:
                    _words(line, shown)
                bar.update(task, completed=line["step"], description=f"{shown['loss']} {shown['check']}")

            yield move
        return
    first: list[float] = []  # when the first line came, and of which step

    def write(line: dict[str, Any]) -> None:
        if "testing" in line:
            click.echo(say("testing", "評価中"), err=True)
            return
        _words(line, shown)
        first.extend((time.monotonic(), line["step"]) if not first else ())
        if "loss" in line:
            return
        done = line["step"] - first[1]
        left = (time.monotonic() - first[0]) / done * (settings.steps - line["step"]) if done else 0.0
        click.echo(
            say(
                f"step {line['step']}/{settings.steps}  {shown['loss']}  {shown['check']}  {left:.0f} s left",
                f"ステップ {line['step']}/{settings.steps}  {shown['loss']}  {shown['check']}  残り {left:.0f} 秒",
            ),
            err=True,
        )

    yield write


def _words(line: dict[str, Any], shown: dict[str, str]) -> None:
    if "loss" in line:
        speed = f"{line['tokens_per_second'] / 1000:.1f}k"
        shown["loss"] = say(
            f"loss {line['loss']:.3f}  {speed} tokens/s", f"損失 {line['loss']:.3f}  {speed} トークン/秒"
        )
    elif "validation_bits" in line:
        value = line["validation_bits"]
        shown["check"] = say(f"validation {value:.3f} bits/byte", f"検証 {value:.3f} ビット/バイト")
    else:
        value = line["validation_accuracy"]
        shown["check"] = say(f"validation {value:.1%} right", f"検証の正答率 {value:.1%}")


# ---- what goes wrong ----------------------------------------------------------------------


def again(folder: Path) -> str:
    """The command that goes on with a run, to be pasted into a shell."""
    return f"ropewalk train --resume --output {shlex.quote(str(folder))}"


@contextmanager
def failing(folder: Path) -> Iterator[None]:
    """Around the work: what goes wrong becomes one line. Wrong usage is told elsewhere."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Failure(missing(error)) from error
    except ValueError as error:
        raise Failure(say(str(error), f"学習を行えません（{error}）")) from error
    except OSError as error:
        where, why = error.filename or folder, error.strerror or error
        kept = (
            say(
                f"; what was saved before is whole: make room, then {again(folder)}",
                f"。保存済みの部分は無事です。空きを作ってから {again(folder)} で再開できます",
            )
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and (folder / "settings.json").is_file()
            else ""
        )
        raise Failure(
            say(f"cannot read or write {where}: {why}{kept}", f"{where} を読み書きできません（{why}）{kept}")
        ) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise Failure(say("not enough memory for such sizes", "この大きさではメモリが足りません")) from error


# ---- what came out ------------------------------------------------------------------------


def show(result: dict[str, Any], folder: Path) -> None:
    """What was trained, how fast, and what it can do at each length."""
    from ropewalk.cli import output

    out = output.console()
    settings = result["settings"]
    label = output.labels()[settings["encoding"]]
    out.print(
        say(
            f"{label}, {settings['goal']}: {result['parameters']:,} parameters, "
            f"{result['encoding_parameters']:,} of them in the encoding",
            f"{label}、{settings['goal']}: パラメーター {result['parameters']:,} 個"
            f"（うち位置符号化 {result['encoding_parameters']:,} 個）",
        ),
        soft_wrap=True,
    )
    seconds = result["seconds"]["training"]
    speed = result["tokens"] / seconds if seconds else 0
    out.print(
        say(
            f"{result['steps']:,} steps, {result['tokens']:,} tokens in {seconds:.0f} s ({speed:,.0f} tokens/s)",
            f"{result['steps']:,} ステップ、{result['tokens']:,} トークン、{seconds:.0f} 秒"
            f"（毎秒 {speed:,.0f} トークン）",
        ),
        soft_wrap=True,
    )
    if result["test"]:
        out.print()
        out.print(_table(result))
        for entry in result["test"]:
            if "refused" in entry:
                output.paragraph(
                    out,
                    say(
                        f"At {entry['length']} tokens there is no number: {_refusal(entry, settings)}.",
                        f"{entry['length']} トークンの値はありません（{_refusal(entry, settings)}）。",
                    ),
                )
    out.print(say(f"The run is in {folder}", f"保存先: {folder}"), style="dim", soft_wrap=True)


def _refusal(entry: dict[str, Any], settings: dict[str, Any]) -> str:
    why = str(entry["refused"])
    if "short" not in why:
        return say(why, f"位置符号化は {''.join(c for c in why if c.isdigit())} 位置までです")
    if settings["test_tokens"] < entry["length"]:
        return say("--test-tokens is fewer than that", "--test-tokens がそれより少ないためです")
    return say(why, "評価用のテキストが足りません")


def _table(result: dict[str, Any]) -> Any:
    """Length by length; with the beginning and the end of the texts apart, since that is where they differ."""
    from ropewalk.cli import output

    rows = output.table()
    rows.add_column(say("Test length", "評価の長さ"), justify="right")
    rows.add_column("", no_wrap=True)
    if result["measure"] == "bits":
        rows.add_column(say("bits per byte", "ビット/バイト"), justify="right")
    else:
        rows.add_column(say("right", "正答率"), justify="right")
    rows.add_column(say("first quarter", "最初の 1/4"), justify="right")
    rows.add_column(say("last quarter", "最後の 1/4"), justify="right")
    if result["measure"] == "accuracy":
        rows.add_column(say("all right", "全問正答"), justify="right")
    for text, entries in {"": result["test"], **result["extensions"]}.items():
        for entry in entries:
            if "refused" not in entry:
                times = say("trained", "学習時") if entry["multiple"] == 1 else f"× {entry['multiple']}"
                rows.add_row(str(entry["length"]), f"{times} {text}".strip(), *_numbers(entry, result["measure"]))
    return rows


def _numbers(entry: dict[str, Any], measure: str) -> list[str]:
    def form(value: float) -> str:
        return f"{value:.3f}" if measure == "bits" else f"{value:.1%}"

    spans = entry["by_position"]
    quarter = max(1, len(spans) // 4)
    ends = [sum(s["mean"] for s in some) / len(some) for some in (spans[:quarter], spans[-quarter:])]
    if measure == "bits":
        return [form(entry["bits"]), *map(form, ends)]
    return [form(entry["accuracy"]), *map(form, ends), form(entry["exact"])]
