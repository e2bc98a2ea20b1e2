"""`ropewalk lab report FOLDER`: one page of what a study found."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ropewalk.cli.base import Command, language, say
from ropewalk.cli.lab.running import failing
from ropewalk.cli.options import Target, json_option, lang_option, option


@click.command(
    "report",
    cls=Command,
    text=(
        "Write what a study found as one HTML page.\nTables, curves, spread, verdicts, the command and the machine. "
        "With a name that ends with .json: the same as data, which `ropewalk explore` draws.",
        "研究の結果を 1 つの HTML にまとめます。\n表、曲線、ばらつき、判定、コマンド、計算機を含みます。"
        "名前が .json で終わる場合は同じ内容をデータとして書き出し、ropewalk explore で描けます。",
    ),
    examples=("ropewalk lab report order --output order.html", "ropewalk lab report order --output order.json"),
)
@click.argument("folder", metavar="FOLDER")
@option(
    "--output",
    type=Target(".html", ".htm", ".json"),
    metavar="FILE",
    text=(
        "What to write; report.html in the folder otherwise.",
        "書き出すファイル。省略時はフォルダーの report.html。",
    ),
)
@json_option
@lang_option
def command(folder: str, output: Path | None, as_json: bool) -> None:
    """Read the results, write the page."""
    from ropewalk.cli import output as printing
    from ropewalk.lab.conduct import study_in

    place = Path(folder)
    target = output or place / "report.html"
    with failing(place):
        found = study_in(place)
        if target.suffix.lower() == ".json":
            from ropewalk.lab.findings import document
            from ropewalk.plots.style import write

            printing.check_can_write(target)
            write(target, (json.dumps(document(place, found), ensure_ascii=False) + "\n").encode())
        else:
            from ropewalk.lab.report import write_report

            printing.check_can_draw(target)
            write_report(target, place, found, language())
    if as_json:
        printing.print_json({"schema": "ropewalk.report/1", "path": str(target)})
        return
    click.echo(say(f"Report written to {target}", f"報告を保存しました: {target}"))
