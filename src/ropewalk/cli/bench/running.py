"""What all benchmarks do when they are asked: go on from a file, show how far they are, print, write."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ropewalk.cli.base import Failure, from_options, language, say
from ropewalk.cli.bench.values import Numbers, Several
from ropewalk.cli.options import Decorator, Pick, Target, Whole, option

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.benchmark.tables import Sheet

dtypes_option = option(
    "--dtypes",
    type=Several("float32", "bfloat16"),
    default="all",
    metavar="NAMES",
    text=("float32, bfloat16 or both.", "float32、bfloat16、またはその両方。"),
)
device_option = option(
    "--device",
    type=Pick("cpu", "cuda"),
    default="cpu",
    metavar="cpu|cuda",
    text=("Where to measure.", "測定するデバイス。"),
)
quick_option = option(
    "--quick", is_flag=True, text=("Less of everything: within a minute.", "項目を減らし、1 分以内で終わらせます。")
)
json_option = option(
    "--json",
    "target",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    text=(
        "Print JSON, and nothing else; or write it to FILE, and go on from what FILE has.",
        "結果を JSON だけで出力します。FILE を指定するとそこに書き、すでにある結果の続きから測ります。",
    ),
)
markdown_option = option(
    "--markdown",
    type=Target(".md"),
    metavar="FILE",
    text=("Also write the report as markdown.", "報告を Markdown でも保存します。"),
)


def threads_option(default: str) -> Decorator:
    """`--threads`; the default differs by benchmark."""
    return option(
        "--threads",
        type=Numbers("all"),
        default=default,
        metavar="N,N,…",
        text=("Numbers of threads; all is one for every core.", "スレッド数。all は全コアを使います。"),
    )


def rounds_option(default: int) -> Decorator:
    """`--rounds`; the default differs by benchmark."""
    return option(
        "--rounds",
        type=Whole(3),
        default=default,
        metavar="N",
        text=("At most; long calls have fewer.", "測定回数の上限。長いものは減らします。"),
    )


def defaults(ctx: click.Context, others: dict[str, Any]) -> dict[str, Any]:
    """Of these values in place of defaults, those whose option was not given."""
    return {name: value for name, value in others.items() if ctx.get_parameter_source(name) is ParameterSource.DEFAULT}


def check_device(device: str) -> None:
    """Stop before any work where there is no such device.

    Raises:
        Failure: there is none.
    """
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise Failure(
                say(
                    "this PyTorch finds no CUDA device; leave out --device cuda",
                    "この PyTorch では CUDA デバイスが見つかりません。--device cuda を外してください",
                )
            )


def thread_counts(threads: tuple[int | str, ...]) -> tuple[int, ...]:
    """The numbers that the words stand for, each once."""
    from ropewalk.benchmark.machine import cores

    most = cores()
    if any(n != "all" and int(n) > most for n in threads):
        raise click.UsageError(
            say(
                f"this process has {most} cores, so --threads is at most {most}",
                f"このプロセスが使えるコアは {most} 個なので、--threads は {most} 以下にしてください",
            )
        )
    return tuple(dict.fromkeys(most if n == "all" else int(n) for n in threads))


def check_files(target: str | None, markdown: Path | None) -> Path | None:
    """Stop before any work where nothing can be written; gives the file for the JSON, if there is one."""
    from ropewalk.cli import output

    file = None if target in (None, "-") else Path(str(target))
    for path in (file, markdown):
        if path is not None:
            output.check_can_write(path)
    return file


def carry_out(
    ctx: click.Context,
    plan: Any,
    measuring: ModuleType,
    reporting: ModuleType,
    *,
    target: str | None,
    markdown: Path | None,
) -> None:
    """Measure, print, write.

    Args:
        ctx: of the command.
        plan: what to measure.
        measuring: has `run`, `document` and `SCHEMA`.
        reporting: has `about`, `sheets`, `targets` and `markdown`.
        target: of `--json`.
        markdown: of `--markdown`.
    """
    from ropewalk.benchmark.grid import wrong
    from ropewalk.cli import output

    file = check_files(target, markdown)
    earlier = _earlier(file, measuring.SCHEMA) if file else []
    done, interrupted = _measured(plan, measuring, earlier, file)
    found = measuring.document(plan, done)
    if target == "-":
        output.print_json(found)
    else:
        show(found, reporting)
    if markdown is not None:
        with output.writing(markdown):
            markdown.write_text(reporting.markdown(found, language()), encoding="utf-8")
        click.echo(say(f"Report written to {markdown}", f"報告を保存しました: {markdown}"), err=True)
    for row in (mistakes := wrong(done)):
        click.echo(_mistake(row), err=True)
    if interrupted or mistakes:
        ctx.exit(130 if interrupted else 1)


def _measured(
    plan: Any, measuring: ModuleType, earlier: list[dict[str, Any]], file: Path | None
) -> tuple[list[dict[str, Any]], bool]:
    """All cells, and whether somebody stopped it; what is done is kept in the file at every step."""
    done: list[dict[str, Any]] = []
    try:
        with progress(sum(cell.weight for cell in plan.cells())) as step, from_options():
            for cell, entry in measuring.run(plan, earlier):
                done.append(entry)
                if file is not None:
                    _write(file, measuring.document(plan, done + [e for e in earlier if e not in done]))
                step(cell.weight, cell.label)
    except KeyboardInterrupt:
        again = say(" The same command goes on from here.", "同じコマンドで続きから再開できます。") if file else ""
        total = len(plan.cells())
        stopped = say(f"Stopped after {len(done)} of {total}.", f"{total} 件中 {len(done)} 件で中断しました。")
        click.echo(stopped + again, err=True)
        return done + [entry for entry in earlier if entry not in done], True
    return done, False


def _write(file: Path, found: dict[str, Any]) -> None:
    """Whole or not at all, so that an interrupt destroys nothing."""
    from ropewalk.cli import output

    part = file.with_name(file.name + ".part")
    with output.writing(file):
        part.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(file)


def _earlier(file: Path, schema: str) -> list[dict[str, Any]]:
    """What the file has from before.

    Raises:
        Failure: it is something else, or of another machine.
    """
    from ropewalk.benchmark.machine import machine

    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        known = found["schema"] == schema
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise Failure(
            say(
                f"{file} exists and is no result of this benchmark; name another file",
                f"{file} はこのベンチマークの結果ではありません。別のファイル名を指定してください",
            )
        )
    if found["machine"] != machine():
        raise Failure(
            say(
                f"{file} has results of another machine or other versions; name another file",
                f"{file} は別の計算機か別のバージョンでの結果です。別のファイル名を指定してください",
            )
        )
    cells: list[dict[str, Any]] = found["cells"]
    return cells


@contextmanager
def progress(total: float) -> Iterator[Any]:
    """A bar on stderr, with the time left, if that is a terminal; gives the function that moves it on."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda weight, what: bar.update(task, advance=weight, description=what)


def show(found: dict[str, Any], reporting: ModuleType) -> None:
    """The tables, then what was reached."""
    from ropewalk.cli import output

    out = output.console()
    for line in reporting.about(found, language()):
        out.print(line, style="dim", soft_wrap=True)
    if found["cells"]:
        lower = "Ratios of times: lower is better, below 1 is faster than the divisor."
        lower_ja = "時間の比です。小さいほどよく、1 未満なら割った相手より速い値です。"
        out.print(say(lower, lower_ja), soft_wrap=True)
    for sheet in [*reporting.sheets(found, language()), reporting.targets(found, language())]:
        if sheet.rows:
            _print(out, sheet)


def _print(out: Console, sheet: Sheet) -> None:
    """Numbers are never cut: what does not fit beside the names makes a second table."""
    from ropewalk.cli import output
    from ropewalk.cli.text import cells, wrap

    widths = [max(cells(row[n]) for row in [sheet.header, *sheet.rows]) for n in range(len(sheet.header))]
    out.print(f"\n{sheet.title}", style="bold", soft_wrap=True)
    room = out.width - 2
    names = min(widths[0], max(24, room - sum(width + 3 for width in widths[1:])))
    columns, tables = list(range(1, len(widths))), []
    while columns:
        taken = [columns.pop(0)]
        while columns and names + sum(widths[n] + 3 for n in [*taken, columns[0]]) <= room:
            taken.append(columns.pop(0))
        tables.append(taken)
    for taken in tables:
        drawn = output.table()
        drawn.add_column(sheet.header[0], no_wrap=True)
        for n in taken:
            drawn.add_column(sheet.header[n], justify="right", no_wrap=True)
        for row in sheet.rows:
            drawn.add_row("\n".join(wrap(row[0], names)), *(row[n] for n in taken))
        out.print(drawn)


def _mistake(row: dict[str, Any]) -> str:
    off = "NaN" if row["error"] is None else f"{row['error']:.1e}"
    which = row.get("encoding") or row.get("mode") or row.get("layout", "")
    what = f"{row['contender']} {which} ({row['part']}, {row['dtype']}, {row['length']:,})"
    return say(
        f"Wrong result, not timed: {what}: off by {off}, allowed {row['allowed']:.1e}",
        f"結果が誤りのため測定しませんでした: {what}（誤差 {off}、許容 {row['allowed']:.1e}）",
    )
