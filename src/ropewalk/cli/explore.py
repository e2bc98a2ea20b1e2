"""`ropewalk explore`: a local page that shows why it works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ropewalk.cli.base import Command, Failure, language, say
from ropewalk.cli.options import Target, Whole, json_option, lang_option, option


@click.command(
    "explore",
    cls=Command,
    text=(
        "A page in the browser that shows why positional encodings work.\n"
        "Turn a pair, draw scores against distance, stretch a real model, lose precision: every view answers as you "
        "move a slider. The page is served to this computer only, and nothing is fetched from elsewhere. FILES are "
        "models (config.json, folder, GGUF) or results of the lab to show in it. --export writes the page as one file "
        "that opens without a server.",
        "位置符号化がなぜ働くのかを見せるページをブラウザで開きます。\n"
        "ペアを回す、距離に対するスコアを描く、実際のモデルを伸ばす、精度を落とす。どの画面もスライダーにすぐ応じます。"
        "ページを見られるのはこのコンピューターだけで、外部からは何も読み込みません。"
        "FILES には、ページに表示するモデル（config.json、フォルダー、GGUF）や実験の結果を指定します。"
        "--export を使うと、サーバーなしで開ける一つのファイルに書き出します。",
    ),
    examples=(
        "ropewalk explore",
        "ropewalk explore examples/configs/gemma-3-12b.json --no-browser",
        "ropewalk explore --export explorer.html",
    ),
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@option(
    "--export",
    "target",
    type=Target(".html", ".htm"),
    metavar="FILE",
    text=("Write the page to this file instead of serving it.", "ページを配信せず、このファイルに書き出します。"),
)
@option(
    "--port",
    type=Whole(0),
    default=0,
    metavar="N",
    text=("Port of the server; 0 takes a free one.", "サーバーのポート。0 なら空いているものを使います。"),
)
@option(
    "--no-browser",
    is_flag=True,
    text=("Only say where the page is, do not open it.", "ブラウザを開かず、ページの場所だけを表示します。"),
)
@json_option
@lang_option
def command(files: tuple[Path, ...], target: Path | None, port: int, no_browser: bool, as_json: bool) -> None:
    """Serve the page until interrupted, or write it."""
    from ropewalk.cli import output

    missing = next((file for file in files if not file.exists()), None)
    if missing is not None:
        raise click.UsageError(
            say(f"there is no file or folder {missing}", f"{missing} というファイルやフォルダーはありません"),
            click.get_current_context(),
        )
    if target is not None:
        output.check_can_write(target)
        _export(target, files, as_json)
        return
    if port > 65535:
        raise click.UsageError(
            say(f"a port is at most 65535, got {port}", f"ポートは 65535 以下です（指定: {port}）"),
            click.get_current_context(),
        )
    _serve(files, port, no_browser, as_json)


@contextmanager
def _readable() -> Iterator[None]:
    from ropewalk.explorer.api import RefusedError

    try:
        yield
    except RefusedError as error:
        raise Failure(say(f"cannot read a file: {error}", f"ファイルを読み取れません（{error}）")) from error


def _export(target: Path, files: tuple[Path, ...], as_json: bool) -> None:
    from ropewalk.cli import output
    from ropewalk.explorer import export

    with output.writing(target), _readable():
        export.write(target, language(), files)
    written = target.resolve()
    if as_json:
        output.print_json({"schema": "ropewalk.explore/1", "path": str(written)})
    else:
        click.echo(str(written))
        click.echo(
            say(f"Open it in a browser: {written.as_uri()}", f"ブラウザで開いてください: {written.as_uri()}"), err=True
        )


def _serve(files: tuple[Path, ...], port: int, no_browser: bool, as_json: bool) -> None:
    import threading
    import webbrowser

    from ropewalk.cli import output
    from ropewalk.explorer.api import known
    from ropewalk.explorer.server import Server

    try:
        server = Server(files, language=language(), port=port)
    except OSError as error:
        why = error.strerror or error
        raise Failure(say(f"cannot serve at port {port}: {why}", f"ポート {port} で配信できません（{why}）")) from error
    with server:
        if files:
            with _readable():
                server.api.get("models")
        else:
            threading.Thread(target=known, daemon=True).start()  # torch takes seconds to load: while the page opens
        if as_json:
            output.print_json({"schema": "ropewalk.explore/1", "address": server.address})
        else:
            click.echo(server.address)
        click.echo(say("Ctrl-C ends it.", "Ctrl-C で終わります。"), err=True)
        if not no_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("", err=True)
