"""`ropewalk bench rotation`: the rotation of queries and keys, and what stands beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ropewalk.cli.base import Command, Failure, from_options, language, say
from ropewalk.cli.bench.values import Numbers, Several
from ropewalk.cli.options import Target, Whole, lang_option, option

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.benchmark.report import Sheet
    from ropewalk.benchmark.run import Plan

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
@option(
    "--threads",
    type=Numbers("all"),
    default="1,all",
    metavar="N,N,…",
    text=("Numbers of threads; all is one for every core.", "スレッド数。all は全コアを使います。"),
)
@option(
    "--rounds",
    type=Whole(3),
    default=15,
    metavar="N",
    text=("At most; long calls have fewer.", "測定回数の上限。長いものは減らします。"),
)
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
    type=Several("hf", "hf-compiled", "rotary-embedding-torch", "torchtune", "complex", none=True),
    default="all",
    metavar="NAMES",
    text=(
        "Whom to compare with: hf, hf-compiled, rotary-embedding-torch, torchtune, complex, or none.",
        "比べる相手: hf、hf-compiled、rotary-embedding-torch、torchtune、complex。none なら比べません。",
    ),
)
@option(
    "--quick", is_flag=True, text=("Less of everything: within a minute.", "項目を減らし、1 分以内で終わらせます。")
)
@option(
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
@option(
    "--markdown",
    type=Target(".md"),
    metavar="FILE",
    text=("Also write the report as markdown.", "報告を Markdown でも保存します。"),
)
@lang_option
@click.pass_context
def command(ctx: click.Context, /, quick: bool, target: str | None, markdown: Path | None, **options: Any) -> None:
    """Measure, print, write."""
    from ropewalk.benchmark.report import markdown as as_markdown
    from ropewalk.benchmark.run import document, wrong
    from ropewalk.cli import output

    if quick:
        given = {name for name in QUICK if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
        options |= {name: value for name, value in QUICK.items() if name not in given}
    file = None if target in (None, "-") else Path(str(target))
    for path in (file, markdown):
        if path is not None:
            output.check_can_write(path)
    plan = _plan(quick, **options)
    cells: list[dict[str, Any]] = _earlier(file) if file else []
    done, interrupted = _measured(plan, cells, file)
    found = document(plan, done)
    if target == "-":
        output.print_json(found)
    else:
        show(found)
    if markdown is not None:
        with output.writing(markdown):
            markdown.write_text(as_markdown(found, language()), encoding="utf-8")
        click.echo(say(f"Report written to {markdown}", f"報告を保存しました: {markdown}"), err=True)
    for row in (mistakes := wrong(done)):
        click.echo(_mistake(row), err=True)
    if interrupted or mistakes:
        ctx.exit(130 if interrupted else 1)


def _plan(
    quick: bool,
    lengths: tuple[int, ...],
    dtypes: tuple[str, ...],
    layouts: tuple[Any, ...],
    threads: tuple[int | str, ...],
    rounds: int,
    backward: bool | None,
    peers: tuple[str, ...],
) -> Plan:
    from ropewalk.benchmark.machine import cores
    from ropewalk.benchmark.rotation import HEAD_DIM, HEADS
    from ropewalk.benchmark.run import Plan
    from ropewalk.benchmark.timing import Patience

    patience = Patience(rounds, 0.001, 0.5) if quick else Patience(rounds)
    counts = tuple(dict.fromkeys(cores() if n == "all" else int(n) for n in threads))
    with from_options(numbers=HEADS * HEAD_DIM * max(lengths)):
        return Plan(lengths, dtypes, layouts, counts, peers, backward is not False, patience)


def _measured(plan: Plan, earlier: list[dict[str, Any]], file: Path | None) -> tuple[list[dict[str, Any]], bool]:
    """All cells, and whether somebody stopped it; what is done is kept in the file at every step."""
    from ropewalk.benchmark.run import document, run

    done: list[dict[str, Any]] = []
    try:
        with progress(sum(cell.weight for cell in plan.cells())) as step, from_options():
            for cell, entry in run(plan, earlier):
                done.append(entry)
                if file is not None:
                    _write(file, document(plan, done + [e for e in earlier if e not in done]))
                step(cell.weight, f"{cell.part}, {cell.dtype}, {cell.length:,}, ×{cell.threads}")
    except KeyboardInterrupt:
        again = say(" The same command goes on from here.", "同じコマンドで続きから再開できます。") if file else ""
        total = len(plan.cells())
        stopped = say(f"Stopped after {len(done)} of {total}.", f"{total} 件中 {len(done)} 件で中断しました。")
        click.echo(stopped + again, err=True)
        return done, True
    return done, False


def _write(file: Path, found: dict[str, Any]) -> None:
    """Whole or not at all, so that an interrupt destroys nothing."""
    from ropewalk.cli import output

    part = file.with_name(file.name + ".part")
    with output.writing(file):
        part.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(file)


def _earlier(file: Path) -> list[dict[str, Any]]:
    """What the file has from before.

    Raises:
        Failure: it is something else, or of another machine.
    """
    from ropewalk.benchmark.machine import machine
    from ropewalk.benchmark.run import SCHEMA

    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        known = found["schema"] == SCHEMA
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


def show(found: dict[str, Any]) -> None:
    """The tables, then what was reached."""
    from ropewalk.benchmark.report import about, sheets, targets
    from ropewalk.cli import output

    out = output.console()
    for line in about(found, language()):
        out.print(line, style="dim", soft_wrap=True)
    for sheet in [*sheets(found, language()), targets(found, language())]:
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
    what = f"{row['contender']} {row['layout']} ({row['part']}, {row['dtype']}, {row['length']:,})"
    return say(
        f"Wrong result, not timed: {what}: off by {off}, allowed {row['allowed']:.1e}",
        f"結果が誤りのため測定しませんでした: {what}（誤差 {off}、許容 {row['allowed']:.1e}）",
    )
