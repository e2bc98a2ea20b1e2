"""What the commands of the lab share: reading a study, progress, and failures in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import Failure, missing, say
from ropewalk.cli.options import option

if TYPE_CHECKING:
    from ropewalk.lab.study import Study

quick_option = option(
    "--quick", is_flag=True, text=("Its short form, within two minutes.", "2 分以内で終わる短い形で行います。")
)


def read(path: str, quick: bool) -> Study:
    """The study, or what is wrong with it as wrong usage."""
    from ropewalk.lab import reading

    try:
        return reading.read(Path(path), quick=quick)
    except ValueError as error:
        raise click.UsageError(
            say(str(error), f"この研究は実行できません（{error}）"), click.get_current_context()
        ) from error
    except ModuleNotFoundError as error:
        raise Failure(missing(error)) from error


class failing:  # noqa: N801  # reads as a verb
    """Around the work: what goes wrong becomes one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            raise Failure(missing(error)) from error
        if isinstance(error, (ValueError, RuntimeError)):
            raise Failure(say(str(error), f"研究を行えません（{error}）")) from error
        if isinstance(error, OSError):
            why = error.strerror or error
            where = error.filename or self.folder
            raise Failure(
                say(f"cannot read or write {where}: {why}", f"{where} を読み書きできません（{why}）")
            ) from error


@contextmanager
def progress() -> Iterator[Any]:
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
