"""The command line: one file a command. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import click

from ropewalk.cli import bench, cite, compare, decay, demo, doctor, export, extend, inspect, listing, order, show
from ropewalk.cli.base import Option, Program
from ropewalk.cli.options import lang_option
from ropewalk.version import __version__


def _version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"ropewalk {__version__}")
        ctx.exit()


@click.command(
    "ropewalk",
    cls=Program,
    invoke_without_command=True,
    text=(
        "Positional encodings of Transformers: use them, compare them, see them.",
        "Transformer の位置符号化を、使う・比べる・見る。",
    ),
    examples=("ropewalk compare", "ropewalk show rope", "ropewalk --lang ja order"),
)
@click.pass_context
@lang_option
@click.option(
    "--version",
    cls=Option,
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    text=("Print the version.", "バージョンを表示します。"),
)
def main(ctx: click.Context) -> None:
    """Parse the command line and run the command it names; show the help if it names none."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


# in a newcomer's order
for _module in (demo, compare, decay, order, inspect, extend, export, listing, show, bench, cite, doctor):
    main.add_command(_module.command)

__all__ = ["main"]
