"""What `ropewalk extend` found, as tables and in one sentence that claims no more than the intervals support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropewalk.cli import output
from ropewalk.cli.base import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ropewalk.lab.checkpoint.extend import Extended, Setting, Tried
    from ropewalk.lab.checkpoint.intervals import Interval
    from ropewalk.lab.checkpoint.needle import Found, Needles

TOGETHER = 5
"""Extensions that fit side by side."""


def show(found: Extended) -> None:
    """Perplexity by position; then ratios with their intervals; then the answer."""
    out = output.console()
    _about(out, found.setting)
    for at in range(0, len(found.tried), TOGETHER):
        _positions(out, found, found.tried[at : at + TOGETHER])
    _ratios(out, found)
    output.paragraph(out, say(" ", "").join(answer(found)))


def _about(out: Console, setting: Setting) -> None:
    trained, windows = setting.trained, len(setting.windows)
    name = setting.checkpoint.path.name if setting.checkpoint.kind == "GGUF" else setting.checkpoint.name
    length = say("trained length not stated", "学習時の長さは不明")
    if trained is not None:
        length = say(f"trained to {trained:,} tokens", f"学習時の長さ {trained:,}")
    read = say(
        f"{setting.text}, {f'{windows} windows of ' if windows > 1 else ''}{setting.length:,} tokens",
        f"{setting.text}、{setting.length:,} トークン{f' × {windows} 区間' if windows > 1 else ''}",
    )
    output.paragraph(out, f"{name} ({length}, {setting.dtype_name})", style="bold")
    output.paragraph(out, read, style="dim")
    out.print()


def _titled(out: Console, title: str) -> Table:
    """A table under a line of its own, since one above a narrow table would be broken."""
    out.print(title, style="bold", soft_wrap=True)
    return output.table()


def _positions(out: Console, found: Extended, tried: Sequence[Tried]) -> None:
    table = _titled(out, say("Perplexity by position", "位置ごとのパープレキシティ"))
    table.add_column(say("positions", "位置"), justify="right", no_wrap=True)
    for one in tried:
        table.add_column(one.text, justify="right")
    trained = found.setting.trained
    for row, (first, last) in enumerate(found.edges):
        ends = last == trained and row + 1 < len(found.edges)
        table.add_row(f"{first:,} – {last - 1:,}", *(size(one.buckets[row].value) for one in tried), end_section=ends)
    out.print(table)


def _ratios(out: Console, found: Extended) -> None:
    """All up to the trained length, then all beyond it, each with the paired comparison."""
    trained = found.setting.trained
    if found.best is None:
        title = say("All positions, with 95 % intervals", "全体と 95 % 区間")
    else:
        title = say(f"Within {trained:,} tokens, with 95 % intervals", f"{trained:,} トークン以内と 95 % 区間")
    _compared(
        out,
        title,
        say("against none", "none との比"),
        [(one.text, one.within, "" if one.cost is None else _change(one.cost)) for one in found.tried],
    )
    if found.best is not None:
        beside = [
            say("best", "最良") if i == found.best else "" if one.behind is None else _change(one.behind)
            for i, one in enumerate(found.tried)
        ]
        _compared(
            out,
            say(f"Beyond {trained:,} tokens", f"{trained:,} トークンより先"),
            say("against the best", "最良との比"),
            [(t.text, t.beyond, ratio) for t, ratio in zip(found.tried, beside, strict=True) if t.beyond is not None],
        )


def _compared(out: Console, title: str, against: str, rows: Sequence[tuple[str, Interval, str]]) -> None:
    table = _titled(out, title)
    table.add_column("")
    table.add_column(say("perplexity", "パープレキシティ"), justify="right", no_wrap=True)
    ratios = len(rows) > 1 and any(row[2] for row in rows)
    if ratios:
        table.add_column(against, justify="right", no_wrap=True)
    for name, perplexity, ratio in rows:
        table.add_row(name, _with_interval(perplexity), *([ratio] if ratios else []))
    out.print(table)


def answer(found: Extended) -> list[str]:
    """Which to take, what it costs, and what happens without."""
    trained, near = found.setting.trained, [found.tried[i] for i in found.as_good]
    if not near:
        costs = [one for one in found.tried if one.cost is not None]
        unsaid = say(
            "This text is not longer than the model was trained for, so nothing is said about extending it.",
            "このテキストは学習時の長さを超えないので、拡張の良し悪しは分かりません。",
        )
        return [unsaid, *([_costs(costs, None)] if costs else [])]
    out = [_best(near, len(found.tried), trained)]
    priced = [one for one in near if one.cost is not None]
    if priced:
        out.append(_costs(priced, trained))
    plain = next((one for one in found.tried if one.text == "none"), None)
    if plain is not None and plain.behind is not None and plain.behind.low > 1:
        out.append(
            say(
                f"Without an extension, perplexity beyond is {_times(plain.behind)} that of the best.",
                f"拡張なしでは、その先のパープレキシティは最良の {_times(plain.behind)}です。",
            )
        )
    elif plain is not None and len(found.tried) > 1:
        out.append(
            say("No extension is shown to be better than none.", "拡張なしより優れていると示された拡張はありません。")
        )
    return out


def _best(near: Sequence[Tried], count: int, trained: int | None) -> str:
    named = [f"{one.text} ({size(one.beyond.value)})" for one in near if one.beyond is not None]
    if count == 1:
        return say(
            f"Beyond {trained:,} tokens there is {named[0]} alone; give more than one --try to compare.",
            f"{trained:,} トークンより先は {named[0]} だけを試しました。--try を複数指定すると比べられます。",
        )
    if len(near) == 1:
        return say(
            f"Beyond {trained:,} tokens {named[0]} is the best, by more than chance.",
            f"{trained:,} トークンより先では {named[0]} が最もよく、差は偶然の範囲を超えています。",
        )
    return say(
        f"Beyond {trained:,} tokens {_and(named)} are the best, and this text does not tell them apart.",
        f"{trained:,} トークンより先では {_and(named)} が最もよく、このテキストでは互いの優劣は分かりません。",
    )


def _costs(priced: Sequence[Tried], trained: int | None) -> str:
    """What each changes where the model needs no extension."""
    parts = []
    for one in priced:
        if one.cost is not None:
            unsure = say(", no difference shown", "、差は示されず") if one.cost.low <= 1 <= one.cost.high else ""
            parts.append(f"{one.text} {_change(one.cost, unsure)}")
    where = say("Against none", "none と比べると")
    if trained is not None:
        where = say(f"Within {trained:,} tokens, against none", f"{trained:,} トークン以内では none と比べて")
    return say(
        f"{where}, perplexity changes by: {'; '.join(parts)}.",
        f"{where}、パープレキシティの変化は {'、'.join(parts)} です。",
    )


def _and(names: Sequence[str]) -> str:
    return say(" and ".join([", ".join(names[:-1]), names[-1]]), "、".join(names))


def size(perplexity: float) -> str:
    """Three digits.

    >>> size(29.51), size(393.2), size(12345.6), size(1e9)
    ('29.5', '393', '12,346', '1.0e+09')
    """
    if perplexity >= 1e6:
        return f"{perplexity:.1e}"
    return f"{perplexity:.1f}" if perplexity < 100 else f"{perplexity:,.0f}"


def _with_interval(interval: Interval) -> str:
    return f"{size(interval.value)} ({f'{size(interval.low)}–{size(interval.high)}' if interval.known else '?'})"


def _change(ratio: Interval, remark: str = "") -> str:
    """A ratio as percent, or as a multiple if it is large."""
    if not ratio.known:
        why = say("too little text to tell", "文章が短く判断できず") if remark else "?"
        return f"{100 * (ratio.value - 1):+.1f} % ({why})"
    to = say(" to ", "〜")
    if ratio.value > 2:
        return f"×{ratio.value:.3g} ({ratio.low:.3g}{to}{ratio.high:.3g}{remark})"
    return f"{100 * (ratio.value - 1):+.1f} % ({100 * (ratio.low - 1):+.1f}{to}{100 * (ratio.high - 1):+.1f}{remark})"


def _times(ratio: Interval) -> str:
    return say(
        f"{ratio.value:.3g} times ({ratio.low:.3g} to {ratio.high:.3g})",
        f"{ratio.value:.3g} 倍（{ratio.low:.3g}〜{ratio.high:.3g}）",
    )


# The needle


SHADES = " ░▒▓█"


def show_needles(found: Needles) -> None:
    """One table an extension: depth by length; then the answer."""
    out = output.console()
    _about(out, found.setting)
    tenth = f"{100 // 10}"
    output.paragraph(
        out,
        say(
            f"Each number is the share, in percent, of the right key in the probability of all ten choices; chance is "
            f"{tenth}.",
            f"数値は、10 個の候補の確率の合計に正しい合言葉が占める割合（%）です。偶然なら {tenth} です。",
        ),
        style="dim",
    )
    out.print()
    for one in found.found:
        table = _titled(out, one.text)
        table.add_column(say("depth", "深さ"), justify="right")
        for length in found.lengths:
            longer = found.setting.trained is not None and length > found.setting.trained
            table.add_column(f"{length:,}{' *' if longer else ''}", justify="right", no_wrap=True)
        shares = {(length, depth): share for length, depth, share, _ in one.cells}
        for depth in found.depths:
            cells = [shares[length, depth] for length in found.lengths]
            table.add_row(f"{100 * depth:.0f} %", *(f"{_shade(share)} {100 * share:3.0f}" for share in cells))
        out.print(table)
    if found.setting.trained is not None and max(found.lengths) > found.setting.trained:
        note = say("* longer than the model was trained for", "* 学習時より長い")
        output.paragraph(out, note, style="dim")
    output.paragraph(out, sought(found))


def _shade(share: float) -> str:
    return SHADES[min(4, int(5 * share))] * 2


def sought(found: Needles) -> str:
    """In how many of the prompts of the greatest length each finds the key."""
    longest = max(found.lengths)
    parts = [f"{one.text} {_found_in(one, longest, len(found.setting.windows))}" for one in found.found]
    return say(
        f"At {longest:,} tokens the right key is the likeliest of the ten: {', '.join(parts)}.",
        f"{longest:,} トークンで正しい合言葉の確率が 10 個中で最も高かったのは、{'、'.join(parts)} です。",
    )


def _found_in(one: Found, length: int, texts: int) -> str:
    cells = [cell for cell in one.cells if cell[0] == length]
    hits, all_ = round(sum(cell[3] * texts for cell in cells)), len(cells) * texts
    return say(f"{hits} of {all_} times", f"{all_} 回中 {hits} 回")
