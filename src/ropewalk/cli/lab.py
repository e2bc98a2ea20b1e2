"""`ropewalk lab run` and `report`: studies, each answering one claim."""

from __future__ import annotations

import click

from ropewalk.cli.base import Program
from ropewalk.cli.options import lang_option


@click.command(
    "lab",
    cls=Program,
    invoke_without_command=True,
    text=(
        "Studies: many runs that together answer one claim.",
        "一つの主張を確かめるために、多数の学習をまとめて行います。",
    ),
    examples=("ropewalk lab",),
)
@click.pass_context
@lang_option
def command(ctx: click.Context) -> None:
    """Run the command named; show the help if there is none."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
