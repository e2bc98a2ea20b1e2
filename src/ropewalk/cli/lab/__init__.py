"""`ropewalk lab`: studies of trained models. One file a command."""

from __future__ import annotations

import click

from ropewalk.cli.base import Program
from ropewalk.cli.lab import report, run, show, speed
from ropewalk.cli.options import lang_option


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


for _module in (show, run, report, speed):
    command.add_command(_module.command)
