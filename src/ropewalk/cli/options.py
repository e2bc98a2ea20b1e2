"""Options that several commands have, and the types of their values, which say in both languages what they want."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from ropewalk.cli.base import Both, Option, say

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # generic for type checkers, but not in every version that runs

F = TypeVar("F", bound="Callable[..., Any] | click.Command")


class Decorator(Protocol):
    """Takes a function or command and gives one of the same type."""

    def __call__(self, command: F, /) -> F:
        """Add an option to a command."""


class Pick(_Type):
    """One of a few words."""

    name = "choice"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, or an error that lists all."""
        if value not in self.words:
            names = ", ".join(self.words)
            self.fail(
                say(
                    f"{value!r} is not one of {names}.", f"「{value}」は使えません。{names} のどれかを指定してください"
                ),
                param,
                ctx,
            )
        return str(value)


class Whole(_Type):
    """A whole number from `least` on."""

    name = "integer"

    def __init__(self, least: int, *, even: bool = False) -> None:
        self.least, self.even = least, even

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or an error that says which ones are allowed."""
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if not self.least <= number < 2**63 or (self.even and number % 2):
            kind = say("an even whole number", "偶数") if self.even else say("a whole number", "整数")
            self.fail(
                say(
                    f"{value!r} is not {kind}, {self.least} or more.",
                    f"「{value}」は使えません。{self.least} 以上の{kind}を指定してください",
                ),
                param,
                ctx,
            )
        return number


class Positions(_Type):
    """Positions separated by commas: `3,5,20`."""

    name = "positions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The positions."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(Whole(0).convert(part.strip(), param, ctx) for part in str(value).split(","))
        except click.BadParameter:
            self.fail(
                say(
                    f"{value!r} is not a list of positions, 0 or more, such as 3,5,20.",
                    f"「{value}」は使えません。3,5,20 のように 0 以上の位置を並べてください",
                ),
                param,
                ctx,
            )


class Names(_Type):
    """Names of encodings separated by commas, or `all`; checked by the command, which knows them."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names as given; none for `all`."""
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(",") if part.strip())
        if not names:
            self.fail(
                say("there is no name in it; try rope,alibi.", "名前がありません。rope,alibi のように並べます"),
                param,
                ctx,
            )
        return () if "all" in names else names


class Vectors(_Type):
    """`ones`, `random`, or a `.npy` file that exists."""

    name = "vectors"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As given."""
        if value not in ("ones", "random") and not (str(value).endswith(".npy") and Path(value).is_file()):
            self.fail(
                say(
                    f"{value!r} is not 'ones', 'random', or a .npy file that exists.",
                    f"「{value}」は使えません。ones、random、または存在する .npy ファイルを指定してください",
                ),
                param,
                ctx,
            )
        return str(value)


class Target(_Type):
    """A file to write, of one of a few kinds."""

    name = "file"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path."""
        if Path(value).suffix.lower() not in self.suffixes:
            kinds = ", ".join(self.suffixes)
            self.fail(
                say(
                    f"{str(value)!r} does not end with one of {kinds}.",
                    f"「{value}」は使えません。{kinds} のどれかで終わる名前にしてください",
                ),
                param,
                ctx,
            )
        return Path(value)


def option(*names: str, text: Both, **options: Any) -> Decorator:
    """`click.option` with a bilingual help."""
    return click.option(*names, cls=Option, text=text, **options)


lang_option = option(
    "--lang",
    type=Pick("ja", "en"),
    metavar="ja|en",
    is_eager=True,
    expose_value=False,
    text=("Language; the locale's if not given.", "表示する言語。省略するとロケールに従います。"),
)
json_option = option(
    "--json",
    "as_json",
    is_flag=True,
    text=("Print JSON, and nothing else.", "結果を JSON だけで出力します。"),
)
seed_option = option(
    "--seed",
    type=Whole(0),
    default=42,
    metavar="N",
    text=("Seed of all random numbers.", "乱数のシード。"),
)
plot_option = option(
    "--plot",
    type=Target(".png", ".svg", ".pdf"),
    metavar="FILE",
    text=("Also draw a picture: .png, .svg or .pdf.", "図も描いて保存します（.png、.svg、.pdf）。"),
)
dim_option = option(
    "--dim",
    type=Whole(2, even=True),
    default=64,
    metavar="N",
    text=("Width of the vectors, even.", "ベクトルの次元（偶数）。"),
)
vectors_option = option(
    "--vectors",
    type=Vectors(),
    default="ones",
    metavar="ones|random|FILE.npy",
    text=(
        "Query and key: all ones, normal random numbers, or a .npy file of shape (dim,) for both or (2, dim).",
        "クエリとキー: すべて 1、正規乱数、または .npy ファイル（形は共通なら (dim,)、別々なら (2, dim)）。",
    ),
)


def encodings_option(default: str) -> Decorator:
    """`--encodings rope,alibi`; the default differs by command."""
    return option(
        "--encodings",
        type=Names(),
        default=default,
        metavar="NAMES",
        text=(
            "Names separated by commas, or all; `ropewalk list` shows them.",
            "カンマで区切った名前、または all（すべて）。名前は ropewalk list で見られます。",
        ),
    )
