"""What `ropewalk inspect` prints: a card for each kind of layer, its pairs, and the tries side by side."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from ropewalk.cli.base import language, say
from ropewalk.cli.ladder import bands, fate_name, ladder, number, numbers, tokens
from ropewalk.cli.text import pad, wrap

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.extensions import Extension
    from ropewalk.inspection import Inspection, Kind, View
    from ropewalk.plans import LayerPlan

LEFT = 14
"""Columns of the headings."""
MOST_KINDS = 6
SOME_PAIRS = 9


def show(found: Inspection, *, every: bool = False) -> None:
    """Everything, from the whole to the details; warnings last, where they are still on the screen."""
    from ropewalk.cli import output

    out = output.console()
    plan = found.plan
    out.print(_clean(found.name), style="bold", soft_wrap=True)
    output.paragraph(out, _about_model(found))
    for kind in found.kinds[:MOST_KINDS]:
        out.print()
        out.print(_which_layers(kind, found), style="bold", soft_wrap=True)
        _card(out, kind)
        for view in kind.views[-1:]:
            out.print()
            out.print(*ladder(view), sep="\n", soft_wrap=True)
            if kind.tries:
                out.print()
                out.print(_side_by_side(kind))
            out.print()
            _print_whole(out, _pairs(kind, every=every))
    if len(found.kinds) > MOST_KINDS:
        more = len(found.kinds) - MOST_KINDS
        output.paragraph(
            out,
            say(
                f"… and {more} more kinds of layers; --json has all.",
                f"ほかに {more} 種類の層があります（--json ですべて出力します）。",
            ),
        )
    if plan.warnings:
        out.print()
        out.print(say("Warnings", "注意") + f" ({len(plan.warnings)})", style="bold")
        for advice in plan.warnings:
            output.paragraph(out, f"- {_clean(advice.text(language()), 2000)} [{advice.code}]", indent="  ")
    else:
        output.paragraph(out, say("No warnings.", "注意すべき点は見つかりませんでした。"))


# ---- the card ------------------------------------------------------------------------------


def _about_model(found: Inspection) -> str:
    plan = found.plan
    model = _clean(plan.model_type) or say("unknown model", "不明なモデル")
    parts = [say(f"{model}, read from {plan.source}", f"{model}（{plan.source} から読み取り）")]
    trained, stated = plan.original_length, plan.max_length
    if trained and stated and trained != stated:
        parts.append(say(f"trained with {trained:,} tokens", f"学習時の長さ {trained:,} トークン"))
    if stated:
        parts.append(say(f"the configuration states {stated:,} tokens", f"設定にある長さ {stated:,} トークン"))
    if plan.heads and plan.kv_heads and plan.kv_heads != plan.heads:
        parts.append(
            say(
                f"{plan.heads} heads, {plan.kv_heads} for keys",
                f"クエリのヘッド {plan.heads}、キーのヘッド {plan.kv_heads}",
            )
        )
    elif plan.heads:
        parts.append(say(f"{plan.heads} heads", f"ヘッド {plan.heads}"))
    return say("; ", "、").join(parts) + say(".", "。")


def _which_layers(kind: Kind, found: Inspection) -> str:
    count, total = len(kind.layers), len(found.plan.layers)
    label = f": {_clean(kind.plan.label)}" if kind.plan.label else ""
    if not found.plan.counted:
        if len(found.kinds) > 1:
            return say("Layers", "層") + label
        return (
            say("All layers (the configuration does not count them)", "すべての層（設定に層の数がありません）") + label
        )
    if count == total:
        return say(f"All {total} layers", f"すべての層（{total} 層）") + label
    which = numbers(kind.layers)
    return say(f"Layers {which} ({count} of {total})", f"層 {which}（{total} 層のうち {count} 層）") + label


def _card(out: Console, kind: Kind) -> None:
    from ropewalk.cli import output

    columns = min(out.width, output.SENTENCES) - LEFT

    def field(heading: str, text: str) -> None:
        lines = wrap(text, columns)
        for start, line in zip([heading, *[""] * len(lines)], lines, strict=False):
            out.print(pad(start, LEFT) + line, soft_wrap=True)

    plan = kind.plan
    if plan.kind == "encoding":
        field(say("encoding", "位置符号化"), _encoding(plan))
    elif plan.kind == "none":
        field(
            say("rotation", "回転"),
            say("none: these layers have no positional encoding", "なし（位置符号化のない層です）"),
        )
    else:
        field(say("rotation", "回転"), _rotation(plan))
        field("base", number(plan.base or 0))
        field(say("extension", "拡張"), _extension(plan.extension))
        if plan.bands is not None:
            field(say("axes", "軸"), _bands(plan))
    if plan.temperature is not None:
        t = plan.temperature
        m = f"(m + {t.shift})" if t.shift else "m"
        field(
            say("queries", "クエリ"),
            say("multiplied by", "掛ける数は")
            + f" 1 + {number(t.scale)}·ln(1 + ⌊{m} / {t.floor:,}⌋)"
            + say(" at position m", "（m は位置）"),
        )
    for view in kind.views:
        if len(kind.views) > 1:
            field(
                "", say(f"For a text of {view.length or 0:,} tokens:", f"{view.length or 0:,} トークンのテキストでは:")
            )
        elif view.length is not None:
            field("", say(f"(for a text of {view.length:,} tokens)", f"（{view.length:,} トークンのテキストの場合）"))
        field(say("multipliers", "乗数"), _multipliers(view))
        if view.extension is not None:
            field(say("pairs", "ペア"), _fates(view))
        for heading, text in (
            (say("no full turn", "一回転未満"), _never(view)),
            (say("precision", "精度"), _precision(view)),
            (say("decay", "減衰"), _decay(view)),
        ):
            if text:
                field(heading, text)


def _rotation(plan: LayerPlan) -> str:
    width, head = plan.rotary_dim, plan.head_dim or plan.rotary_dim
    half = say(f"x[i] with x[i + {width // 2}]", f"x[i] と x[i + {width // 2}]")
    neighbours = say("x[2i] with x[2i + 1]", "x[2i] と x[2i + 1]")
    pairs = half if plan.layout == "half" else neighbours
    if width == head:
        where = say(f"all {head} channels of a head", f"ヘッドの {head} チャネルすべて")
    else:
        place = {"leading": say("first", "先頭の"), "trailing": say("last", "末尾の")}[plan.place]
        where = say(
            f"the {place} {width} of {head} channels of a head",
            f"ヘッドの {head} チャネルのうち{place} {width} チャネル",
        )
    return where + say(f", in pairs of layout {plan.layout} ({pairs})", f"、ペアの組み方は {plan.layout}（{pairs}）")


def _extension(extension: Extension | None) -> str:
    if extension is None:
        return say("none", "なし")
    parts = []
    for f in dataclasses.fields(extension):
        value = getattr(extension, f.name)
        if value is None or (f.name, value) in (("start_tokens", 0), ("ramp", "index")):
            continue  # what no configuration says, and every program does
        parts.append(f"{f.name} {_value(value)}")
    return f"{extension.name}" + (": " if parts else "") + ", ".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, tuple) and value and all(isinstance(v, float) for v in value):
        if len(value) <= 4:
            return ", ".join(number(v) for v in value)
        listed = f"{number(value[0])} … {number(value[-1])}"
        return listed + say(f" ({len(value)} numbers)", f"（{len(value)} 個）")
    if isinstance(value, tuple):
        return " × ".join(f"({_extension(v)})" for v in value)
    return str(value)


def _bands(plan: LayerPlan) -> str:
    string = plan.bands.string() if plan.bands is not None else ""
    names = {"T": say("time", "時間"), "H": say("height", "高さ"), "W": say("width", "幅")}
    meaning = ", ".join(f"{letter} = {names[letter]}" for letter in dict.fromkeys(string) if letter in names)
    return f"{bands(string)} ({meaning})" if meaning else bands(string)


def _encoding(plan: LayerPlan) -> str:
    from ropewalk.cli import output

    label = output.labels().get(plan.encoding or "", plan.encoding or "")
    options = ", ".join(f"{key} {_value(value)}" for key, value in plan.options)
    return label + (f": {options}" if options else "")


def _multipliers(view: View) -> str:
    spectrum = view.spectrum
    parts = []
    if spectrum.attention_factor != 1:
        by = f"{spectrum.attention_factor:.6g}"
        parts.append(say(f"cos and sin by {by} (attention_factor)", f"cos と sin に {by}（attention_factor）"))
    if spectrum.softmax_multiplier != 1:
        by = f"{spectrum.softmax_multiplier:.6g}"
        parts.append(
            say(f"the softmax scale by {by} (softmax_multiplier)", f"softmax のスケールに {by}（softmax_multiplier）")
        )
    return say(", ", "、").join(parts) or say("none", "なし")


def _fates(view: View) -> str:
    parts = []
    for fate, pairs in view.fates().items():
        ratios = [view.pairs[i].ratio for i in pairs]
        by = ""
        if fate in ("divided", "raised"):
            same = math.isclose(min(ratios), max(ratios), rel_tol=1e-6)
            span = number(ratios[0]) if same else f"{number(round(min(ratios), 3))}–{number(round(max(ratios), 3))}"
            by = say(f" slower by {span}" if fate == "raised" else f" by {span}", f"、÷ {span}")
        parts.append(
            say(
                f"{len(pairs)} {fate_name(fate)}{',' if fate == 'raised' else ''}{by} ({numbers(pairs)})",
                f"{fate_name(fate)} {len(pairs)}（{numbers(pairs)}{by}）",
            )
        )
    return say(f"{len(view.pairs)}: ", f"全 {len(view.pairs)} ペア: ") + say(", ", "、").join(parts)


def _never(view: View) -> str:
    trained, extended = view.never_turn()
    pairs = len(view.pairs)
    if trained is None or view.trained_length is None:
        return ""
    first = say(
        f"{trained} of {pairs} pairs within {view.trained_length:,} tokens",
        f"{view.trained_length:,} トークンの間では {pairs} ペア中 {trained} ペア",
    )
    if view.extension is None or view.extended_length is None:
        return first
    return first + say(
        f" without the extension; {extended} within {view.extended_length:,} with it",
        f"（拡張なし）、{view.extended_length:,} トークンの間では {extended} ペア（拡張あり）",
    )


def _precision(view: View) -> str:
    errors = view.errors
    if errors is None:
        return ""
    where = say(
        f"at positions {errors.first:,} to {errors.last:,} the largest error of cos and sin is ",
        f"位置 {errors.first:,}〜{errors.last:,} での cos と sin の最大誤差は、",
    )
    single, half = f"{errors.float32:#.2g}", f"{errors.bfloat16:#.2g}"
    useless = errors.bfloat16 > 0.5
    return where + say(
        f"{single} with angles in float32, {half} in bfloat16" + (" (useless)" if useless else ""),
        f"角度を float32 で計算すると {single}、bfloat16 では {half} です"
        + ("（使いものになりません）" if useless else ""),
    )


def _decay(view: View) -> str:
    curve = view.curve
    if curve is None:
        return ""
    at = {d: n for n, d in enumerate(curve.distances)}
    tens = [d for d in curve.distances if d > 0 and math.log10(d).is_integer()]
    listed = say(", ", "、").join(
        say(f"{curve.scores[at[d]]:.1f} at {d:,}", f"{d:,} で {curve.scores[at[d]]:.1f}") for d in tens
    )
    text = say(
        f"for vectors of ones the score is {curve.scores[0]:.1f} at distance 0, {listed}",
        f"すべて 1 のベクトルのスコアは、距離 0 で {curve.scores[0]:.1f}、{listed}",
    )
    beyond = [(d, curve.beyond[at[d]]) for d in tens[-2:]]
    highest = say(", ", "、").join(
        say(f"{score:.1f} beyond {d:,}", f"{d:,} より遠くで {score:.1f}") for d, score in beyond if score is not None
    )
    text += say(f"; the highest is {highest}", f"。最大値は、{highest}") if highest else ""
    if view.errors is not None and view.errors.last >= curve.scanned:
        text += say(f" (of distances up to {curve.scanned:,})", f"（距離 {curve.scanned:,} までのうち）")
    return text


# ---- tables --------------------------------------------------------------------------------


def _side_by_side(kind: Kind) -> Any:
    from ropewalk.cli import output

    views = [*kind.views[-1:], *(view for _, view in kind.tries)]
    rows = output.table()
    rows.add_column("", no_wrap=True)
    rows.add_column(say("as configured", "設定どおり"), justify="right")
    for text, _ in kind.tries:
        rows.add_column(_clean(text), justify="right")

    def row(heading: str, *values: str) -> None:
        rows.add_row(heading, *values)

    row(say("extension", "拡張"), *(say("none", "なし") if v.extension is None else v.extension.name for v in views))
    row(say("reaches", "届く長さ"), *("" if v.extended_length is None else f"{v.extended_length:,}" for v in views))
    row(say("cos and sin times", "cos と sin の乗数"), *(f"{v.spectrum.attention_factor:.6g}" for v in views))
    row(say("softmax scale times", "softmax の乗数"), *(f"{v.spectrum.softmax_multiplier:.6g}" for v in views))
    for fate in dict.fromkeys(fate for v in views for fate in v.fates()):
        row(say("pairs ", "ペア: ") + fate_name(fate), *(str(len(v.fates().get(fate, ()))) for v in views))
    row(
        say("never turn once", "一回転未満"),
        *("" if v.never_turn()[1] is None else str(v.never_turn()[1]) for v in views),
    )
    row(say("fastest pair", "最速のペア"), *(tokens(min(p.wavelength for p in v.pairs)) for v in views))
    row(say("slowest pair", "最遅のペア"), *(tokens(max(p.wavelength for p in v.pairs)) for v in views))
    row(say("float32 error", "float32 の誤差"), *("" if v.errors is None else f"{v.errors.float32:.2g}" for v in views))
    return rows


def _pairs(kind: Kind, *, every: bool) -> Any:
    """Wavelengths before and after, pair by pair."""
    from ropewalk.cli import output

    view = kind.views[-1]
    count = len(view.pairs)
    some = range(count) if every or count <= SOME_PAIRS else _sample(view)
    rows = output.table()
    rows.add_column(say("pair", "ペア"), justify="right")
    if view.pairs[0].axis:
        rows.add_column(say("axis", "軸"))
    rows.add_column(say("wavelength", "波長"), justify="right")
    if view.trained_length is not None:
        rows.add_column(
            say(f"turns in {view.trained_length:,}", f"{view.trained_length:,} での回転数"), justify="right"
        )
    shown = [(view.extension.name, view)] if view.extension is not None else []
    shown += [(_clean(text), tried) for text, tried in kind.tries]
    for name, _ in shown:
        rows.add_column(name, justify="right")
        rows.add_column("", no_wrap=True)
    for i in some:
        pair = view.pairs[i]
        cells_ = [str(i)] + ([pair.axis] if pair.axis else []) + [tokens(pair.trained)]
        if view.trained_length is not None:
            cells_.append(
                "" if pair.turns is None else f"{pair.turns:,.3g}" if pair.turns < 1000 else f"{pair.turns:,.0f}"
            )
        for _, other in shown:
            p = other.pairs[i]
            cells_ += [
                tokens(p.wavelength),
                fate_name(p.fate) + ("" if p.fate in ("kept", "stopped") else f" ÷{p.ratio:.3g}"),
            ]
        rows.add_row(*cells_)
    return rows


def _print_whole(out: Any, rows: Any) -> None:
    """In a file or a pipe a table may be as wide as its numbers are; in a terminal it fits the window."""
    if not out.is_terminal:
        needed = rows.__rich_measure__(out, out.options.update(max_width=10_000)).maximum
        rows.width = needed if needed > out.width else None
    out.print(rows, crop=False)


def _sample(view: View) -> list[int]:
    """A few pairs from first to last, and those at which a fate begins or ends."""
    last = len(view.pairs) - 1
    edges = {i for pairs in view.fates().values() for i in (pairs[0], pairs[-1])} if len(view.fates()) < 4 else set()
    return sorted({round(n * last / (SOME_PAIRS - 1)) for n in range(SOME_PAIRS)} | edges)


def _clean(text: str, most: int = 200) -> str:
    """Other people's text, without characters that a terminal takes as commands."""
    return "".join(c if c.isprintable() else "?" for c in text)[:most]
