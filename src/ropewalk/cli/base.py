"""What all commands share: two languages, help pages with examples, and errors in one line."""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import click

from ropewalk.cli.text import cells, pad, wrap
from ropewalk.language import Language, from_locale, speaker

Both = tuple[str, str]
"""A text in English and Japanese."""

MOST_NUMBERS = 2**28
"""In one tensor: 1 GiB of float32, which any machine that runs torch can hold."""


def language() -> Language:
    """What `--lang` asks for, before or after the command's name, or else the locale."""
    ctx = click.get_current_context(silent=True)
    chosen = None if ctx is None else ctx.find_root().obj
    return cast(Language, chosen) if chosen in ("en", "ja") else from_locale()


def say(en: str, ja: str) -> str:
    """The one of the two that the user reads."""
    return speaker(language())(en, ja)


def _language_in(args: Sequence[str]) -> Language:
    """Looked up before anything is parsed, since help and errors speak it too; the option itself checks the value."""
    chosen = from_locale()
    before_dashes = list(args)[: args.index("--") if "--" in args else None]
    for option, following in zip(before_dashes, [*before_dashes[1:], ""], strict=False):
        value = following if option == "--lang" else option.removeprefix("--lang=")
        if option.startswith("--lang") and value in ("en", "ja"):
            chosen = cast(Language, value)
    return chosen


class Failure(click.ClickException):
    """The job failed: one line on stderr, exit code 1."""


class Option(click.Option):
    """An option whose help is a pair; its default is shown."""

    def __init__(self, *args: Any, text: Both, **options: Any) -> None:
        super().__init__(*args, **options)
        self.text = text
        self.shown = options.get("default")

    def line(self) -> Both:
        """How the help page names it, and what it says about it."""
        metavar = "" if self.is_flag else f" {self.metavar or ''}"
        default = say(f" [default: {self.shown}]", f" [既定値: {self.shown}]") if self.shown is not None else ""
        return ", ".join(self.opts) + metavar, say(*self.text) + default


class _Page:
    """Help in two languages, wrapped by terminal cells, with examples at its end."""

    text: Both
    examples: tuple[str, ...]

    def get_help(self, ctx: click.Context) -> str:
        command = cast(click.Command, self)
        columns = max(40, min(80, int(os.environ.get("COLUMNS", 0)) or _terminal_columns()) - 2)
        pieces = " ".join(command.collect_usage_pieces(ctx))
        out = [say("Usage", "使い方") + f": {ctx.command_path} {pieces}", ""]
        out += [f"  {line}" for paragraph in say(*self.text).split("\n") for line in wrap(paragraph, columns - 2)]
        options = [p.line() for p in command.get_params(ctx) if isinstance(p, Option)]
        options.append(("--help", say("Show this page.", "このページを表示します。")))
        out += ["", say("Options", "オプション") + ":", *_pairs(options, columns)]
        if isinstance(command, click.Group):
            commands = [(n, say(*cast(_Page, c).text).split("\n")[0]) for n, c in command.commands.items()]
            out += ["", say("Commands", "コマンド") + ":", *_pairs(commands, columns)]
        return "\n".join([*out, "", say("Example", "例") + ":", *(f"  {example}" for example in self.examples)])


class Command(_Page, click.Command):
    """A command with a bilingual help page."""

    def __init__(self, *args: Any, text: Both, examples: tuple[str, ...], **options: Any) -> None:
        super().__init__(*args, **options)
        self.text, self.examples = text, examples


class Program(_Page, click.Group):
    """The program: finds the language first, and turns every way to fail into one line and an exit code."""

    def __init__(self, *args: Any, text: Both, examples: tuple[str, ...], **options: Any) -> None:
        super().__init__(*args, **options)
        self.text, self.examples = text, examples

    def main(self, args: Any = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, print what went wrong, and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
        args = sys.argv[1:] if args is None else list(args)
        spoken = _language_in(args)
        extra["standalone_mode"] = False
        # Missing kernels are logged, in English, for users of Python; here `doctor` tells of them, in either language.
        logging.getLogger("ropewalk").addHandler(logging.NullHandler())
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # a character the terminal lacks is shown as "?", not a crash
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        try:
            code = super().main(args, prog_name or "ropewalk", *rest, obj=spoken, **extra)
        except click.Abort:
            code = 130
        except click.ClickException as error:
            click.echo(_explain(error, spoken), err=True)
            code = error.exit_code
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of our output that leaves early (`| head`) is no error worth a message."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes stdout once more at exit; it must find something that listens.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(141)  # as a program stopped by SIGPIPE

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named, or an error with the nearest name."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(unknown(name, self.commands, "command", "コマンド"))
        return super().resolve_command(ctx, args)


def unknown(name: str, known: Iterable[str], en: str, ja: str) -> str:
    """There is no such thing; the nearest; all there are."""
    close = difflib.get_close_matches(name.lower().replace("-", "_"), list(known), n=1)
    return say(
        f"there is no {en} {name!r}{f', did you mean {close[0]!r}?' if close else ''}; there are {', '.join(known)}",
        f"「{name}」という{ja}はありません。{f'「{close[0]}」ですか？' if close else ''}使えるもの: {', '.join(known)}",
    )


@contextmanager
def from_options(ja: str = "この指定では計算できません", *, numbers: int = 0) -> Iterator[None]:
    """Around a computation whose ValueErrors can only come from the values of options: wrong usage.

    Args:
        ja: what Japanese users read before the reason.
        numbers: how many the largest tensor holds; too many are refused, before the system ends the program.
    """
    if numbers > MOST_NUMBERS:
        raise click.UsageError(
            say(
                f"these sizes need tensors of {numbers:,} numbers, more than {MOST_NUMBERS:,}; make them smaller",
                f"この大きさでは {numbers:,} 個の数を持つテンソルが要ります（上限は {MOST_NUMBERS:,} 個です）",
            ),
            click.get_current_context(),
        )
    try:
        yield
    except ValueError as error:
        hint = say(str(error), f"{ja}（{error}）")
        raise click.UsageError(hint, click.get_current_context()) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise Failure(say("not enough memory for such sizes", "この大きさではメモリが足りません")) from error


def missing(error: ModuleNotFoundError) -> str:
    """Which package the lab needs, and the pip line that brings it."""
    return say(
        f"this needs {error.name}: pip install 'ropewalk[lab]'",
        f"{error.name} が要ります: pip install 'ropewalk[lab]'",
    )


def _terminal_columns() -> int:
    try:
        return os.get_terminal_size().columns
    except OSError:
        return 80


def _pairs(rows: list[Both], columns: int) -> list[str]:
    """Terms to the left, explanations to the right, wrapped."""
    left = max(cells(term) for term, _ in rows) + 2
    out = []
    for term, meaning in rows:
        first, *others = wrap(meaning, columns - left - 2)
        out += [f"  {pad(term, left)}{first}", *(f"  {' ' * left}{line}" for line in others)]
    return out


def _explain(error: click.ClickException, spoken: Language) -> str:
    message = error.format_message() if spoken == "en" else _in_japanese(error)
    lines = [speaker(spoken)("Error: ", "エラー: ") + message]
    if isinstance(error, click.UsageError) and error.ctx is not None:
        lines.append(speaker(spoken)("Help: ", "ヘルプ: ") + f"{error.ctx.command_path} --help")
    return "\n".join(lines)


def _in_japanese(error: click.ClickException) -> str:
    """What click says in English only; our own messages are in the user's language already."""
    if isinstance(error, click.NoSuchOption):
        close = f"{error.possibilities[0]} ですか？" if error.possibilities else ""
        return f"{error.option_name} というオプションはありません。{close}"
    if isinstance(error, click.BadOptionUsage):
        return f"オプション {error.option_name} の書き方が違います（値が要るかどうかを確かめてください）"
    if isinstance(error, click.BadArgumentUsage) or "unexpected extra" in error.message:
        return "余分な引数があります: " + ", ".join(re.findall(r"\((.*)\)", error.message))
    if isinstance(error, click.MissingParameter):
        return f"{error.param.human_readable_name if error.param else ''} を指定してください"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{error.param.get_error_hint(cast(click.Context, error.ctx))} の値が正しくありません: {error.message}"
    return error.format_message()
