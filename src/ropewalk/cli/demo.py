"""`ropewalk demo`: everything at once, as one page."""

from __future__ import annotations

from pathlib import Path

import click

from ropewalk.cli.base import Command, language, say
from ropewalk.cli.options import Target, json_option, lang_option, option, seed_option


@click.command(
    "demo",
    cls=Command,
    text=(
        "The three experiments at once, as one page.\n"
        "The page holds their tables and pictures with explanations, and opens without a network.",
        "三つの実験をまとめて実行し、一つのページにします。\n"
        "ページには表と図と説明が入っていて、ネットワークなしで開けます。",
    ),
    examples=("ropewalk demo", "ropewalk demo --lang ja --output demo.html"),
)
@option(
    "--output",
    "-o",
    "path",
    type=Target(".html", ".htm"),
    default="ropewalk-demo.html",
    metavar="FILE",
    text=("Where to write the page.", "ページを書き込むファイル。"),
)
@seed_option
@json_option
@lang_option
def command(path: Path, seed: int, as_json: bool) -> None:
    """Write the page and say where it is."""
    from ropewalk.cli import output

    output.check_can_draw(path)
    from ropewalk.demo import write_demo

    with output.writing(path):
        written = write_demo(path, language(), seed, lambda line: click.echo(line, err=True)).resolve()
    if as_json:
        output.print_json({"schema": "ropewalk.demo/1", "path": str(written)})
    else:
        click.echo(str(written))
        click.echo(
            say(f"Open it in a browser: {written.as_uri()}", f"ブラウザで開いてください: {written.as_uri()}"), err=True
        )
