"""The document of a benchmark as tables, for the terminal and as markdown, in both languages."""

from __future__ import annotations

from typing import Any

from ropewalk.benchmark.tables import Sheet, as_markdown, machine_lines, ratio, where
from ropewalk.language import Language, Say, speaker

PARTS = {
    "rotation": ("rotation of q and k", "q と k の回転"),
    "trained": ("forward + backward", "順伝播＋逆伝播"),
    "norm": ("norm, then rotation", "正規化と回転"),
    "cache": ("k, v into the cache", "キャッシュへの書き込み"),
    "angles": ("cos and sin", "cos と sin"),
    "decode": ("one decoded token", "1 トークンの生成"),
}

CONTENDERS = {
    "new": ("new outputs", "新しい出力"),
    "query_key": ("RoPE.query_key", "RoPE.query_key"),
    "in place": ("in place", "上書き"),
    "out=": ("out=", "out="),
    "eager": ("eager form", "eager 版"),
    "fused": ("norm_rotate", "norm_rotate"),
    "into the cache": ("rotate_to_cache", "rotate_to_cache"),
    "exact": ("cos_sin, exact", "cos_sin（正確）"),
    "hf": ("transformers (HF)", "transformers（HF）"),
    "hf-compiled": ("HF, compiled", "HF（コンパイル）"),
    "liger": ("Liger-Kernel", "Liger-Kernel"),
    "rotary-embedding-torch": ("rotary-embedding-torch", "rotary-embedding-torch"),
    "torchtune": ("torchtune's formula", "torchtune の式"),
    "complex": ("complex numbers", "複素数"),
    "copy_": ("copy_", "copy_"),
    "clone": ("clone", "clone"),
    "mul_": ("mul_ in place", "mul_（上書き）"),
}
"""How each is called in a report; ours come first."""


def sheets(document: dict[str, Any], language: Language) -> list[Sheet]:
    """One for every part, dtype and number of threads: times ÷ transformers' / ÷ copy's, one column a length."""
    say = speaker(language)
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in document["cells"]:
        groups.setdefault((where(cell, say), cell["part"], cell["dtype"]), []).append(cell)
    return [_sheet(*key, sorted(cells, key=lambda c: int(c["length"])), say) for key, cells in groups.items()]


def _sheet(place: str, part: str, dtype: str, cells: list[dict[str, Any]], say: Say) -> Sheet:
    by_row = [{(r["contender"], r["layout"]): r for r in cell["rows"]} for cell in cells]
    names = sorted({name for rows in by_row for name in rows}, key=lambda n: (list(CONTENDERS).index(n[0]), n[1]))
    over = [r for r in ("hf", "copy_") if any(r in row.get("over", {}) for rows in by_row for row in rows.values())]
    rows = [[_name(name, say), *(_cell(rows.get(name), over, say) for rows in by_row)] for name in names]
    divided = " / ".join("÷ HF" if r == "hf" else "÷ copy_" for r in over)
    title = f"{say(*PARTS[part])}, {dtype}, {place}" + (f": {divided}" if divided else "")
    return Sheet(title, [say("tokens", "トークン数"), *(f"{cell['length']:,}" for cell in cells)], rows)


def _name(name: tuple[str, str], say: Say) -> str:
    contender, layout = name
    return say(*CONTENDERS[contender]) + (f", {layout}" if layout else "")


def _cell(row: dict[str, Any] | None, over: list[str], say: Say) -> str:
    if row is None:
        return ""
    if "error" in row:
        return say("wrong", "誤り")
    if not over:  # nothing to divide by
        return f"{row['seconds'] * 1e6:,.1f} µs"
    return " / ".join(ratio(row["over"][r]["median"]) if r in row["over"] else "-" for r in over)


def targets(document: dict[str, Any], language: Language) -> Sheet:
    """Each target that was measured, and the verdict; the title counts the others."""
    say = speaker(language)
    verdicts = {True: say("met", "達成"), False: say("not met", "未達")}
    rows = []
    for t in (t for t in document["targets"] if t["met"] is not None):
        place = ", CUDA" if t["device"] == "cuda" else ""
        what = f"{say(*PARTS[t['part']])}, {t['dtype']}, {t['length']:,}{place}: {say(*CONTENDERS[t['contender']])}"
        against = "HF" if t["over"] == "hf" else t["over"]
        measured = " / ".join(ratio(t["measured"][layout]) for layout in sorted(t["measured"]))
        rows.append([what, f"÷ {against} ≤ {t['limit']:.3g}", measured, verdicts[t["met"]]])
    others = len(document["targets"]) - len(rows)
    met = sum(t["met"] is True for t in document["targets"])
    title = say(
        f"Targets on one thread: {met} met, {len(rows) - met} not met, {others} not measured",
        f"目標（1 スレッド）: 達成 {met}、未達 {len(rows) - met}、未測定 {others}",
    )
    return Sheet(title, ["", say("target", "目標"), "half / interleaved", ""], rows)


def about(document: dict[str, Any], language: Language) -> list[str]:
    """The machine in words, and who was left out, one line each."""
    left_out = speaker(language)("left out", "測定しなかったもの")
    skipped = [f"{left_out}: {skip['contender']} ({skip['why']})" for skip in document["skipped"]]
    return [*machine_lines(document["machine"], language), *skipped]


def markdown(document: dict[str, Any], language: Language) -> str:
    """The whole report."""
    say = speaker(language)
    head = [
        say("# Times of the rotation", "# 回転の実行時間"),
        say(
            "Made by `ropewalk bench rotation`. Medians of the ratios of each round; below 1 is faster than what it is "
            "divided by: transformers' own code (HF), or `copy_` of the same tensors into memory that exists. "
            "q `(1, 32, S, 128)`, k `(1, 8, S, 128)`.",
            "`ropewalk bench rotation` の結果です。数値は各回の比の中央値で、1 より小さければ、割った相手より速いことを"
            "示します。割る相手は transformers の実装（HF）と、同じテンソルを既存のメモリーに写す `copy_` です。"
            "q は `(1, 32, S, 128)`、k は `(1, 8, S, 128)` です。",
        ),
        "\n".join(f"- {line}" for line in about(document, language)),
    ]
    return "\n\n".join([*head, *map(as_markdown, [targets(document, language), *sheets(document, language)])]) + "\n"
