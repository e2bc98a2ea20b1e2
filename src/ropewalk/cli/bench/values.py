"""Values of the options of benchmarks: several words or numbers, and a document that may exist already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.base import say
from ropewalk.cli.options import Pick, Whole

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType


class Several(_Type):
    """Some of a few words, separated by commas: `all` for all and, where that makes sense, `none`."""

    name = "words"

    def __init__(self, *words: str, none: bool = False) -> None:
        self.words, self.none = words, none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The words, in the order known, each once."""
        if isinstance(value, tuple):
            return value
        if value == "all":
            return self.words
        if self.none and value == "none":
            return ()
        more = ("all", "none") if self.none else ("all",)
        given = [Pick(*self.words, *more).convert(part.strip(), param, ctx) for part in str(value).split(",")]
        if set(given) & set(more):
            self.fail(
                say(f"{value!r}: all and none stand alone.", f"「{value}」: all と none は単独で使います"), param, ctx
            )
        return tuple(word for word in self.words if word in given)


class Numbers(_Type):
    """Whole numbers from 1 on, separated by commas, and perhaps a word in place of one."""

    name = "numbers"

    def __init__(self, word: str | None = None) -> None:
        self.word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | str, ...]:
        """The numbers in the order given, each once; the word as it is."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        return tuple(dict.fromkeys(p if p == self.word else Whole(1).convert(p, param, ctx) for p in parts))
