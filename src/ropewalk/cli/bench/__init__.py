"""`ropewalk bench`: how long things take on this machine. One file a benchmark."""

from __future__ import annotations

import click

from ropewalk.cli.base import Program
from ropewalk.cli.bench import attention, model, rotation
from ropewalk.cli.options import lang_option


@click.command(
    "bench",
    cls=Program,
    invoke_without_command=True,
    text=(
        "How long things take on this machine, against others and against moving the bytes.",
        "この計算機での実行時間を、他の実装やメモリーのコピーと比べます。",
    ),
    examples=("ropewalk bench rotation --lengths 1,16 --dtypes float32 --threads 1 --peers complex --rounds 3",),
)
@click.pass_context
@lang_option
def command(ctx: click.Context) -> None:
    """Run the benchmark named; show the help if there is none."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


command.add_command(rotation.command)
command.add_command(attention.command)
command.add_command(model.command)
