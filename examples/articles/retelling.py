"""三つの例が共有する表示です。日本語の下に英語を並べます。

What the three examples share: text in Japanese with English below it, and the verdicts at the end.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

HOLDS = ("holds", "成り立ちます")
PARTLY = ("holds in part", "一部だけ成り立ちます")
FAILS = ("does not hold", "成り立ちません")
NOT_HERE = ("not testable here", "ここでは確かめられません")


@dataclass(frozen=True)
class Claim:
    """記事の主張ひとつと、その判定、そして根拠となる測定値です。 / A claim, our verdict, and what it rests on."""

    said: tuple[str, str]
    """English, 日本語."""
    verdict: tuple[str, str]
    measured: tuple[str, str]


def judge(held: bool, otherwise: tuple[str, str] = FAILS) -> tuple[str, str]:
    """測定の結果から判定を決めます。 / The verdict that a measurement gives."""
    return HOLDS if held else otherwise


def heading(en: str, ja: str) -> None:
    """節の見出しを表示します。 / Print the heading of a section."""
    print(f"\n■ {ja}\n  {en}")


def note(en: str, ja: str) -> None:
    """文をひとつ、二つの言語で表示します。 / Print one sentence in both languages."""
    print(f"  {ja}\n    {en}")


def column(text: str, width: int) -> str:
    """表の欄の幅に合わせて空白を足します。 / Pad to a column's width; a Japanese character is two columns wide."""
    taken = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    return text + " " * (width - taken)


def verdicts(claims: Iterable[Claim]) -> None:
    """主張と判定の一覧を表示します。 / Print the claims and the verdicts."""
    heading("The article's claims, and what we found", "記事の主張と、確かめた結果")
    for claim in claims:
        print(f"  [{claim.verdict[1]} / {claim.verdict[0]}]")
        for language in (1, 0):
            print(f"    {'  ' * (1 - language)}{claim.said[language]} → {claim.measured[language]}")
