"""The document of the benchmark of attention as tables, in both languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ropewalk.benchmark.tables import Sheet, as_markdown, machine_lines, ratio, where
from ropewalk.encodings import find
from ropewalk.language import Language, Say, speaker

PARTS = {"forward": ("forward", "順伝播"), "trained": ("forward + backward", "順伝播＋逆伝播")}

CONTENDERS = {
    "attend": ("attend", "attend"),
    "flex": ("FlexAttention", "FlexAttention"),
    "materialised": ("as a matrix", "行列"),
    "plain": ("plain attention", "位置符号化なし"),
}
"""How each is called in a report; ours come first."""

SKIPPED = {"memory": ("too large", "メモリー不足"), "time": ("too slow", "時間切れ"), "failed": ("failed", "失敗")}


def sheets(document: dict[str, Any], language: Language) -> list[Sheet]:
    """One for every part, dtype and number of threads: time and memory, one column a length."""
    say = speaker(language)
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in document["cells"]:
        groups.setdefault((where(cell, say), cell["part"], cell["dtype"]), []).append(cell)
    return [_sheet(*key, cells, say) for key, cells in groups.items()]


def _sheet(place: str, part: str, dtype: str, cells: list[dict[str, Any]], say: Say) -> Sheet:
    lengths = sorted({cell["length"] for cell in cells})
    found = {(c["encoding"], c["length"], row["contender"]): row for c in cells for row in c["rows"]}
    encodings = list(dict.fromkeys(c["encoding"] for c in cells))
    pairs = [(encoding, name) for name in CONTENDERS for encoding in encodings]
    there = [pair for pair in pairs if any((pair[0], n, pair[1]) in found for n in lengths)]
    rows = []
    for encoding, name in sorted(there, key=lambda pair: encodings.index(pair[0])):
        if name == "plain":
            continue
        numbers = [_number(found.get((encoding, n, name)), say) for n in lengths]
        rows.append([f"{find(encoding).label}, {say(*CONTENDERS[name])}", *numbers])
    rows.append([say("plain attention, seconds", "位置符号化なし（秒）"), *(_plain(cells, n, say) for n in lengths)])
    title = say(
        f"{PARTS[part][0]}, {dtype}, {place}: time ÷ plain, extra memory",
        f"{PARTS[part][1]}、{dtype}、{place}: 位置符号化なしとの時間の比、追加のメモリー",
    )
    return Sheet(title, [say("tokens", "トークン数"), *(f"{n:,}" for n in lengths)], rows)


def _number(row: dict[str, Any] | None, say: Say) -> str:
    if row is None:
        return ""
    if "skipped" in row:
        return say(*SKIPPED[row["skipped"]])
    if "error" in row:
        return say("wrong", "誤り")
    time = ratio(row["over"]["plain"]["median"]) if row["over"] else "-"
    return f"{time}, {size(row['extra_bytes'])}"


def _plain(cells: list[dict[str, Any]], length: int, say: Say) -> str:
    """The fastest of those that were measured beside the encodings."""
    rows = [row for c in cells if c["length"] == length for row in c["rows"] if row["contender"] == "plain"]
    timed = [row for row in rows if "seconds" in row]
    if not timed:
        return _number(rows[0] if rows else None, say)
    fastest = min(timed, key=lambda row: float(row["seconds"]))
    return f"{ratio(fastest['seconds'])}, {size(fastest['extra_bytes'])}"


def size(extra: int | None) -> str:
    """In MiB or GiB.

    >>> size(3 * 2**19), size(3 * 2**30), size(None)
    ('1.5 MiB', '3.0 GiB', '?')
    """
    if extra is None:
        return "?"
    mib = extra / 2**20
    return f"{mib / 1024:.1f} GiB" if mib >= 1000 else f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"


def targets(document: dict[str, Any], language: Language) -> Sheet:
    """Each target that was measured, and the verdict; the title counts the others."""
    say = speaker(language)
    verdicts = {True: say("met", "達成"), False: say("not met", "未達")}
    over = {
        "plain": say("÷ plain", "÷ 位置符号化なし"),
        "materialised": say("÷ matrix", "÷ 行列"),
        "memory": say("MiB", "MiB"),
    }
    rows = []
    for t in (t for t in document["targets"] if t["met"] is not None):
        what = f"{find(t['encoding']).label}, {say(*PARTS[t['part']])}, {t['dtype']}, {t['length']:,}"
        measured = " / ".join(ratio(t["measured"][threads]) for threads in sorted(t["measured"], key=int))
        rows.append([what, f"{over[t['over']]} ≤ {t['limit']:.3g}", measured, verdicts[t["met"]]])
    others = len(document["targets"]) - len(rows)
    met = sum(t["met"] is True for t in document["targets"])
    title = say(
        f"Targets: {met} met, {len(rows) - met} not met, {others} not measured",
        f"目標: 達成 {met}、未達 {len(rows) - met}、未測定 {others}",
    )
    return Sheet(title, ["", say("target", "目標"), say("measured", "実測"), ""], rows)


def about(document: dict[str, Any], language: Language) -> list[str]:
    """The machine in words, which way attention took, and who was left out, one line each."""
    return [
        *machine_lines(document["machine"], language),
        *_paths(document, speaker(language)),
        *left_out(document, language),
    ]


def _paths(document: dict[str, Any], say: Say) -> Iterator[str]:
    taken = dict.fromkeys(
        f"{find(cell['encoding']).label}: {row['path']}"
        for cell in document["cells"]
        for row in cell["rows"]
        if "path" in row
    )
    if taken:
        yield say("paths of attend", "attend の経路") + ": " + ", ".join(taken)


def left_out(document: dict[str, Any], language: Language) -> list[str]:
    """Who was not measured, where, and why."""
    say = speaker(language)
    where_by_reason: dict[tuple[str, str], list[str]] = {}
    for cell in document["cells"]:
        for row in (row for row in cell["rows"] if "skipped" in row):
            who = f"{find(cell['encoding']).label}, {say(*CONTENDERS[row['contender']])}"
            place = f"{say(*PARTS[cell['part']])} {cell['dtype']} {cell['length']:,}"
            where_by_reason.setdefault((who, _reason(row, say)), []).append(place)
    word = say("left out", "測定しなかったもの")
    return [f"{word}: {who} ({', '.join(dict.fromkeys(at))}): {why}" for (who, why), at in where_by_reason.items()]


def _reason(row: dict[str, Any], say: Say) -> str:
    if row["skipped"] == "memory":
        needs, free = (f"{row[name] / 2**30:.1f}" for name in ("needs_bytes", "free_bytes"))
        return say(f"needs about {needs} GiB, {free} are free", f"約 {needs} GiB 必要、空きは {free} GiB")
    if row["skipped"] == "time":
        return say(f"more than {row['limit_seconds']:.0f} s", f"{row['limit_seconds']:.0f} 秒を超える")
    return str(row["why"])


def markdown(document: dict[str, Any], language: Language) -> str:
    """The whole report."""
    say = speaker(language)
    head = [
        say("# Times and memory of attention", "# 注意機構の実行時間とメモリー"),
        say(
            "Made by `ropewalk bench attention`. Queries, keys and values are `(1, 8, n, 64)`. Times are medians of "
            "the ratios to plain causal attention of the same round, `scaled_dot_product_attention(is_causal=True)`. "
            "Memory is the most that one call needs at once, less its inputs and results.",
            "`ropewalk bench attention` の結果です。クエリ、キー、バリューは `(1, 8, n, 64)` です。時間は、同じ回に"
            "測った位置符号化なしの因果的注意機構 `scaled_dot_product_attention(is_causal=True)` との比の中央値です。"
            "メモリーは、1 回の呼び出しが同時に使う最大量から入力と結果を除いたものです。",
        ),
        "\n".join(f"- {line}" for line in about(document, language)),
    ]
    return "\n\n".join([*head, *map(as_markdown, [targets(document, language), *sheets(document, language)])]) + "\n"
