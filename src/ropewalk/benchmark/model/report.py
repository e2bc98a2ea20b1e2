"""The document of the benchmark of a model as tables, in both languages."""

from __future__ import annotations

from typing import Any

from ropewalk.benchmark.model.run import share
from ropewalk.benchmark.tables import Sheet, as_markdown, machine_lines, ratio, where
from ropewalk.language import Language, Say, speaker

PARTS = {"prefill": ("prefill", "プロンプト処理"), "decode": ("decode", "生成")}

MODES = {"eager": ("eager", "eager"), "compiled": ("compiled", "コンパイル")}


NAMES = {"stock": ("stock", "標準"), "installed": ("installed", "導入後"), "without": ("no rotation", "回転なし")}


def sheets(document: dict[str, Any], language: Language) -> list[Sheet]:
    """Two for every dtype and number of threads: how fast it is, and what share of that the rotation has.

    Its share is that of cosines and sines, too.
    """
    say = speaker(language)
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in document["cells"]:
        groups.setdefault(f"{cell['dtype']}{say(', ', '、')}{where(cell, say)}", []).append(cell)
    return [made(title, cells, say) for title, cells in groups.items() for made in (_speeds, _shares)]


def _speeds(where_: str, cells: list[dict[str, Any]], say: Say) -> Sheet:
    rows = []
    for cell in cells:
        found = {row["contender"]: row for row in cell["rows"]}
        rows.append([_what(cell, say), *(_number(found.get(name, {}), say) for name in NAMES)])
    title = say(f"{where_}: tokens per second, time ÷ stock", f"{where_}: 毎秒のトークン数、標準との時間の比")
    return Sheet(title, [say("tokens", "トークン数"), *(say(*name) for name in NAMES.values())], rows)


def _shares(where_: str, cells: list[dict[str, Any]], say: Say) -> Sheet:
    rows = []
    for cell in cells:
        part = share(cell["rows"])
        ours = next((r["over"]["stock"] for r in cell["rows"] if r["contender"] == "installed" and r.get("over")), None)
        if part is not None:
            most, reached = f"× {1 / (1 - part['median']):.2f}", "-" if ours is None else f"× {1 / ours['median']:.2f}"
            rows.append([_what(cell, say), percent(part, say), most, reached])
    title = say(
        f"{where_}: share of the rotation, and how much faster the whole is",
        f"{where_}: 回転が占める割合と、全体が速くなる倍率",
    )
    header = [
        say("tokens", "トークン数"),
        say("share", "割合"),
        say("without any", "回転なし"),
        say("with ours", "導入後"),
    ]
    return Sheet(title, header, rows)


def targets(document: dict[str, Any], language: Language) -> Sheet:
    """None are set: what can be won is what the rotation takes, and that is measured."""
    return Sheet("", [], [])


def _what(cell: dict[str, Any], say: Say) -> str:
    return f"{say(*PARTS[cell['part']])}, {say(*MODES[cell['mode']])}, {cell['length']:,}"


def _number(row: dict[str, Any], say: Say) -> str:
    if "error" in row:
        return say("wrong", "誤り")
    if not row:
        return ""
    speed = f"{row['tokens_per_second']:,.{0 if row['tokens_per_second'] >= 100 else 1}f}"
    over = row.get("over", {}).get("stock")
    return speed if over is None or row["contender"] == "stock" else f"{speed}, {ratio(over['median'])}"


def percent(part: dict[str, float], say: Say) -> str:
    """With the lowest and the highest of all rounds; where that range holds 0 it is too small to be seen.

    >>> percent({"median": 0.1234, "low": 0.1, "high": 0.151}, speaker("en"))
    '12 % (10 to 15)'
    >>> percent({"median": 0.01, "low": -0.01, "high": 0.021}, speaker("en"))
    'below 2.1 %'
    """
    median, low, high = (_digits(100 * part[name]) for name in ("median", "low", "high"))
    if part["low"] <= 0:
        return say(f"below {high} %", f"{high} % 未満")
    return say(f"{median} % ({low} to {high})", f"{median} %（{low}～{high}）")


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}"


def about(document: dict[str, Any], language: Language) -> list[str]:
    """The machine and the model in words, one line each."""
    m = document["model"]
    shape = speaker(language)(
        f"model: Llama of transformers, {m['layers']} layers of width {m['width']}, {m['heads']} heads of "
        f"{m['head_dim']} channels, {m['key_heads']} key heads, vocabulary {m['vocabulary']:,}, random weights",
        f"モデル: transformers の Llama、{m['layers']} 層、幅 {m['width']}、{m['head_dim']} 次元 × {m['heads']} ヘッド"
        f"（キーは {m['key_heads']} ヘッド）、語彙 {m['vocabulary']:,}、重みは乱数",
    )
    return [*machine_lines(document["machine"], language), shape]


def markdown(document: dict[str, Any], language: Language) -> str:
    """The whole report."""
    say = speaker(language)
    head = [
        say("# Speed of a whole model", "# モデル全体の速度"),
        say(
            "Made by `ropewalk bench model`. Medians; ratios are of the times of one round, below 1 is faster than the "
            "stock model. `no rotation` is the same model with the rotation and its cosines and sines taken out: its "
            "answers are wrong, and its time is the bound that no rotation can beat. The wider a model, the more of "
            "its time goes into matrices and the less into the rotation.",
            "`ropewalk bench model` の結果です。数値は中央値で、比は同じ回に測った時間の比です（1 より小さければ標準の"
            "モデルより速い）。「回転なし」は同じモデルから回転と cos・sin の計算を取り除いたもので、出力は正しく"
            "ありませんが、どんな回転の実装もこれより速くはなりません。幅の広いモデルほど行列積の割合が増え、"
            "回転の割合は小さくなります。",
        ),
        "\n".join(f"- {line}" for line in about(document, language)),
    ]
    return "\n\n".join([*head, *map(as_markdown, sheets(document, language))]) + "\n"
