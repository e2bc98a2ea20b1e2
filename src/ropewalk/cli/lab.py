"""`ropewalk lab run` and `report`: studies, each answering one claim."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Command, Failure, Program, language, say
from ropewalk.cli.options import Target, Whole, json_option, lang_option, option

if TYPE_CHECKING:
    from ropewalk.lab.findings import Found, Judged
    from ropewalk.lab.study import Study


@click.command(
    "lab",
    cls=Program,
    invoke_without_command=True,
    text=(
        "Studies: many small trainings that together answer one claim, with error bars.",
        "研究: 一つの主張を、多数の小さな学習で誤差つきで確かめます。",
    ),
    examples=("ropewalk lab show examples/studies/order.toml",),
)
@click.pass_context
@lang_option
def command(ctx: click.Context) -> None:
    """Run the command named; show the help if there is none."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


quick_option = option(
    "--quick", is_flag=True, text=("Its short form, within two minutes.", "2 分以内で終わる短い形で行います。")
)


@command.command(
    "show",
    cls=Command,
    text=(
        "What a study claims, what would confirm it, and how many runs that takes.",
        "研究の主張、判定の基準、必要な学習の数を表示します。",
    ),
    examples=("ropewalk lab show examples/studies/order.toml",),
)
@click.argument("study", metavar="STUDY.toml")
@quick_option
@json_option
@lang_option
def show(study: str, quick: bool, as_json: bool) -> None:
    """Read it, check it, and print it."""
    from ropewalk.cli import output

    found = _read(study, quick)
    if as_json:
        output.print_json({"schema": "ropewalk.study/1", "digest": found.digest, "study": dict(found.document)})
        return
    _about(found)
    runs = len(found.arms) * len(found.seeds)
    tuning = len(found.tuning())
    out = output.console()
    output.paragraph(
        out,
        say(
            f"{runs} runs ({len(found.arms)} arms, {len(found.seeds)} seeds) after {tuning} short ones to choose "
            f"learning rates; {found.minutes:g} minutes at most.",
            f"学習率を選ぶ短い学習 {tuning} 回の後、{len(found.arms)} 条件 × {len(found.seeds)} シードで {runs} 回。"
            f"制限時間 {found.minutes:g} 分。",
        ),
    )


@command.command(
    "run",
    cls=Command,
    text=(
        "Carry out a study.\nWithin its time, on several cores; the same command goes on where it was stopped.",
        "研究を実行します。\n制限時間の中で複数のコアを使います。中断しても、同じコマンドで続きから再開します。",
    ),
    examples=("ropewalk lab run examples/studies/order.toml --quick --output order",),
)
@click.argument("study", metavar="STUDY.toml")
@option("--output", metavar="FOLDER", text=("Where it is kept; its name otherwise.", "保存先。省略すると研究の名前。"))
@quick_option
@option("--workers", type=Whole(1), metavar="N", text=("Processes; one a core.", "プロセス数。省略するとコア数。"))
@option(
    "--minutes",
    type=Whole(1),
    metavar="N",
    text=("At most; the study's own otherwise.", "制限時間（分）。省略すると研究に書かれた時間。"),
)
@json_option
@lang_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    study: str,
    output: str | None,
    quick: bool,
    workers: int | None,
    minutes: int | None,
    as_json: bool,
) -> None:
    """Prepare, conduct, tell."""
    from ropewalk.benchmark.machine import cores
    from ropewalk.lab.conduct import conduct, prepare

    found = _read(study, quick)
    folder = Path(output or f"study-{found.name}")
    with _failing(folder):
        prepare(folder, found, ["ropewalk", *sys.argv[1:]])
        with _progress() as tell:
            outcome = conduct(folder, found, workers=workers or cores(), minutes=minutes, tell=tell)
    _tell(folder, found, as_json=as_json)
    if outcome.reason is not None:
        why = say("time is up", "制限時間に達しました") if outcome.reason == "time" else say("stopped", "中断しました")
        click.echo(
            say(
                f"{why}: {outcome.done} of {outcome.total} runs are done; the same command goes on",
                f"{why}: {outcome.total} 回のうち {outcome.done} 回まで終了。同じコマンドで続きから再開します",
            ),
            err=True,
        )
        ctx.exit(130 if outcome.reason == "interrupt" else 1)


@command.command(
    "report",
    cls=Command,
    text=(
        "Write what a study found as one HTML page.\nTables, curves, spread, verdicts, the command and the machine.",
        "研究の結果を 1 つの HTML にまとめます。\n表、曲線、ばらつき、判定、コマンド、計算機を含みます。",
    ),
    examples=("ropewalk lab report order --output order.html",),
)
@click.argument("folder", metavar="FOLDER")
@option(
    "--output",
    type=Target(".html", ".htm"),
    metavar="FILE",
    text=("The page; report.html in the folder otherwise.", "ページ。省略するとフォルダーの report.html。"),
)
@json_option
@lang_option
def report(folder: str, output: Path | None, as_json: bool) -> None:
    """Read the results, write the page."""
    from ropewalk.cli import output as printing
    from ropewalk.lab.conduct import study_in

    place = Path(folder)
    target = output or place / "report.html"
    with _failing(place):
        found = study_in(place)
        printing.check_can_draw(target)
        from ropewalk.lab.report import write_report

        write_report(target, place, found, language())
    if as_json:
        printing.print_json({"schema": "ropewalk.report/1", "path": str(target)})
        return
    click.echo(say(f"Report written to {target}", f"報告を保存しました: {target}"))


def _read(path: str, quick: bool) -> Study:
    from ropewalk.lab.study import read

    try:
        return read(Path(path), quick=quick)
    except ValueError as error:
        raise click.UsageError(
            say(str(error), f"この研究は実行できません（{error}）"), click.get_current_context()
        ) from error
    except ModuleNotFoundError as error:
        raise Failure(_missing(error)) from error


def _missing(error: ModuleNotFoundError) -> str:
    return say(
        f"this needs {error.name}: pip install 'ropewalk[lab]'",
        f"{error.name} が要ります: pip install 'ropewalk[lab]'",
    )


class _failing:  # noqa: N801  # reads as a verb
    """Around the work: what goes wrong becomes one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            raise Failure(_missing(error)) from error
        if isinstance(error, (ValueError, RuntimeError)):
            raise Failure(say(str(error), f"研究を行えません（{error}）")) from error
        if isinstance(error, OSError):
            why = error.strerror or error
            where = error.filename or self.folder
            raise Failure(say(f"cannot write {where}: {why}", f"{where} に書き込めません（{why}）")) from error


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar with the time left where stderr is a terminal, else a line for each run that has ended."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
        return

    def line(done: int, total: int, what: str) -> None:
        if what:
            click.echo(f"{done}/{total}  {what}", err=True)

    yield line


# ---- what was found -----------------------------------------------------------------------


def _about(study: Study) -> None:
    from ropewalk.cli import output

    out = output.console()
    output.paragraph(out, f"{study.name}: {study.claim[language()]}", style="bold")
    output.paragraph(out, say("Source: ", "出典: ") + study.source)
    for statement in study.statements:
        output.paragraph(out, "- " + statement.text[language()], indent="  ")
    out.print()


def _tell(folder: Path, study: Study, *, as_json: bool) -> None:
    from ropewalk.cli import output
    from ropewalk.lab.findings import gather, judge

    found = gather(folder, study)
    judged = judge(study, found)
    if as_json:
        output.print_json(_document(study, found, judged))
        return
    _about(study)
    out = output.console()
    out.print(_values(found))
    for one in judged:
        output.paragraph(out, f"- {_word(one)}: {one.statement.text[language()]} {_evidence(one)}", indent="  ")


def _document(study: Study, found: list[Found], judged: list[Judged]) -> dict[str, Any]:
    return {
        "schema": "ropewalk.findings/1",
        "study": study.name,
        "digest": study.digest,
        "quick": study.quick,
        "arms": [
            {
                "label": f.arm.label,
                "learning_rate": f.rate,
                "seeds": [r["settings"]["seed"] for r in f.results],
                "test": [
                    {k: v for k, v in e.items() if k not in ("blocks", "by_position")}
                    for r in f.results
                    for e in r["test"]
                ],
            }
            for f in found
        ],
        "statements": [
            {
                "text": one.statement.text["en"],
                "verdict": one.verdict,
                "why": one.why,
                "values": list(one.values),
                "difference": None
                if one.difference is None
                else {
                    "mean": one.difference.mean,
                    "low": one.difference.low,
                    "high": one.difference.high,
                    "seeds": list(one.difference.seeds),
                },
            }
            for one in judged
        ],
    }


def _word(one: Judged) -> str:
    return {
        "holds": say("holds", "成り立つ"),
        "does not hold": say("does not hold", "成り立たない"),
        "open": say("open", "判定できない"),
        "not measured": say("not measured", "測れない"),
    }[one.verdict]


def _evidence(one: Judged) -> str:
    d = one.difference
    if d is None:
        return f"({one.why})" if language() == "en" else "（値なし）"
    seeds = len(d.seeds)
    return say(
        f"({' against '.join(f'{v:.3f}' for v in one.values)}; difference {d.mean:+.3f}, 95% between {d.low:+.3f} and "
        f"{d.high:+.3f}, {seeds} {'seed' if seeds == 1 else 'seeds'})",
        f"（{' と '.join(f'{v:.3f}' for v in one.values)}、差 {d.mean:+.3f}、95% 区間 {d.low:+.3f}〜{d.high:+.3f}、"
        f"{seeds} シード）",
    )


def _values(found: list[Found]) -> Any:
    """An arm a row, a length a column: mean over seeds and standard deviation."""
    from statistics import fmean

    from ropewalk.cli import output
    from ropewalk.lab.findings import spread

    measured = [r for f in found for r in f.results]
    rows = output.table()
    rows.add_column("")
    multiples = sorted({e["multiple"] for r in measured for e in r["test"]})
    measure = "bits" if any(r["measure"] == "bits" for r in measured) else "accuracy"
    head = say("bits per byte", "ビット/バイト") if measure == "bits" else say("right", "正答率")
    for n in multiples:
        times = say("trained length", "学習時の長さ") if n == 1 else f"× {n}"
        rows.add_column(f"{head}\n{times}" if n == multiples[0] else times, justify="right")
    rows.add_column(say("seeds", "シード"), justify="right")
    for f in found:
        cells = []
        for n in multiples:
            values = f.values(measure, n)
            deviation = spread(values)
            form = "{:.3f}" if measure == "bits" else "{:.1%}"
            mean = form.format(fmean(values)) if values else "–"
            cells.append(mean + (f" ± {form.format(deviation)}" if deviation else ""))
        rows.add_row(f.arm.label, *cells, str(len(f.results)))
    return rows
