"""One page of a study: what was claimed, what was found, how sure that is, and how to do it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from ropewalk.lab.conduct import STUDY
from ropewalk.lab.findings import WORDS, Found, Judged, entry, gather, judge, spread, variants
from ropewalk.lab.saving import read_json
from ropewalk.lab.study import Study
from ropewalk.language import Language, Say, speaker
from ropewalk.page import page, picture, table, text
from ropewalk.plots import style
from ropewalk.plots.curves import Panel, Series, draw
from ropewalk.plots.style import minus

_CLASS = {"holds": "held", "does not hold": "failed", "open": "open", "not measured": "open"}


def write_report(path: Path, folder: Path, study: Study, language: Language) -> Path:
    """Write the page of a study, finished or not.

    Args:
        path: the file.
        folder: of the study.
        study: as `study_in(folder)` gives it.
        language: of the page.

    Raises:
        ValueError: no run has ended yet, or the file cannot be there.
    """
    style.check_place(path)
    found = gather(folder, study)
    if not any(f.results for f in found):
        raise ValueError(f"no run of the study in {folder} has ended yet")
    say = speaker(language)
    about = read_json(folder / STUDY)
    parts: list[tuple[str, str]] = [
        (say("Verdicts", "判定"), _verdicts(judge(study, found), say, language)),
        (say("What was measured", "測定結果"), _values(found, say)),
        (say("Learning", "学習の経過"), _learning(found, say)),
        (say("Beyond the trained length", "学習時の長さを超えると"), _lengths(found, say)),
        (say("Where in the text", "テキストのどこで"), _positions(found, say)),
        (say("Where attention goes", "注意の向かう先"), _attention(found, say)),
        (say("How to do it again", "再現の方法"), _again(study, found, about, say)),
    ]
    body = f"<h1>{escape(study.name)}</h1>\n<p>{text(study.claim[language])}</p>\n"
    body += f"<p>{text(say('Source: ', '出典：') + study.source[language])}</p>\n"
    if study.quick:
        body += f"<p>{text(say(*_QUICK))}</p>\n"
    body += "\n".join(f"<section><h2>{escape(head)}</h2>\n{html}\n</section>" for head, html in parts if html)
    style.write(path, page(f"ropewalk lab: {study.name}", body, language).encode())
    return path


_QUICK = (
    "This is the quick form: far too little training and one seed. It shows that everything runs, and decides nothing.",
    "これは短縮版です。学習量は少なく、シードも一つなので、動作の確認にはなりますが、何も判定できません。",
)


def _verdicts(judged: Sequence[Judged], say: Say, language: Language) -> str:
    rows = []
    for one in judged:
        d = one.difference
        rows.append(
            [
                text(one.statement.text[language]),
                " / ".join(f"{v:.3f}" for v in one.values) if one.values else text(one.why),
                "" if d is None else minus(f"{d.mean:+.3f}"),
                "" if d is None else minus(f"{d.low:+.3f} … {d.high:+.3f}"),
                f'<span class="{_CLASS[one.verdict]}">{escape(say(*WORDS[one.verdict]))}</span>',
            ]
        )
    if not rows:
        return ""
    head = [
        say("Expected beforehand", "事前に立てた予想"),
        say("values", "値"),
        say("difference", "差"),
        say("95% interval", "95% 区間"),
        say("verdict", "判定"),
    ]
    caption = say(
        "Judged by the rule written in the study. Differences are taken pair by pair: same seed, same batches, same "
        "text; the interval is a bootstrap over seeds and stretches of text, widened by Student's t for few seeds.",
        "判定は研究に書かれた規則によります。差は同じシード、同じバッチ、同じテキストの対で取り、区間はシードとテキストの"
        "ブートストラップで、シードの少なさに応じてスチューデントの t で広げてあります。",
    )
    return table(caption, head, rows, numbers=(1, 2, 3), wide=(0,))


def _form(measure: str) -> Callable[[float], str]:
    return "{:.3f}".format if measure == "bits" else "{:.1%}".format


def _measure(found: Sequence[Found]) -> str:
    return next(str(r["measure"]) for f in found for r in f.results)


def _unit(found: Sequence[Found], say: Say) -> str:
    bits = _measure(found) == "bits"
    return say("bits per byte", "ビット/バイト") if bits else say("right answers", "正答率")


def _name(label: str, extension: str | None) -> str:
    return label if extension is None else f"{label} + {extension}"


def _values(found: Sequence[Found], say: Say) -> str:
    measure = _measure(found)
    form = _form(measure)
    multiples = sorted({e["multiple"] for f in found for r in f.results for e in r["test"]})
    rows = []
    for f in found:
        for extension in variants(f):
            cells = []
            for at in multiples:
                values = f.values(measure, at, extension)
                deviation = spread(values)
                cells.append((form(fmean(values)) if values else "–") + (f" ± {form(deviation)}" if deviation else ""))
            training = ["", "", "", ""] if extension else _about_training(f)
            rows.append([text(_name(f.arm.label, extension)), *cells, *training])
    head = [say("Arm", "条件")]
    head += [f"× {at}" if at > 1 else say("trained length", "学習時の長さ") for at in multiples]
    head += [say("learning rate", "学習率"), say("its own parameters", "固有のパラメーター")]
    head += [say("tokens/s", "トークン/秒"), say("seeds", "シード")]
    caption = _unit(found, say) + say(
        " on the test part, which was read once, at the end; mean over seeds ± standard deviation. – : the encoding "
        "ends before, or the text is too short.",
        "（テスト部分で最後に一度だけ測定、シードの平均 ± 標準偏差）。"
        "–：位置符号化がそこまで届かないか、テキストが足りません。",
    )
    return table(caption, [text(h) for h in head], rows, numbers=tuple(range(1, len(head))))


def _about_training(f: Found) -> list[str]:
    """Learning rate, parameters of the encoding, tokens per second, seeds."""
    speed = [r["tokens"] / r["seconds"]["training"] for r in f.results if r["seconds"]["training"]]
    return [
        "–" if f.rate is None else f"{f.rate:g}",
        f"{f.results[0]['encoding_parameters']:,}" if f.results else "–",
        f"{fmean(speed):,.0f}" if speed else "–",
        str(len(f.results)),
    ]


Points = Callable[[dict[str, Any], "str | None"], list[tuple[float, float]]]
"""From a result, and perhaps an extension, to a curve."""


def _panels(found: Sequence[Found], points: Points, *, extensions: bool = False) -> list[Panel]:
    """Arms that differ by encoding share axes; other settings get axes of their own."""
    groups: dict[str, list[Series]] = {}
    for f in found:
        for extension in variants(f) if extensions else [None]:
            drawn = [points(r, extension) for r in f.results]
            if not drawn or not drawn[0] or len({tuple(x for x, _ in d) for d in drawn}) > 1:
                continue
            columns = list(zip(*([y for _, y in d] for d in drawn), strict=True))
            ends = tuple(map(min, columns)), tuple(map(max, columns))
            encoding = str(f.results[0]["settings"]["encoding"])
            across = tuple(x for x, _ in drawn[0])
            groups.setdefault(f.arm.group, []).append(
                Series(_name(f.arm.name, extension), encoding, across, tuple(map(fmean, columns)), *ends)
            )
    return [Panel(title, tuple(series)) for title, series in groups.items()]


def _learning(found: Sequence[Found], say: Say) -> str:
    panels = _panels(found, lambda r, _: [(step, value) for step, value in r["validation"]])
    if not panels:
        return ""
    up = _unit(found, say)
    made = draw(panels, title=say("Validation", "検証部分での値"), across=say("step", "ステップ"), up=up)
    return picture(style.svg(made), say("Mean over seeds; the band is their range.", "シードの平均。帯はその範囲。"))


def _lengths(found: Sequence[Found], say: Say) -> str:
    measure = _measure(found)

    def points(result: dict[str, Any], extension: str | None) -> list[tuple[float, float]]:
        entries = result["test"] if extension is None else result["extensions"].get(extension, [])
        return [(e["length"], e[measure]) for e in entries if measure in e]

    panels = _panels(found, points, extensions=True)
    if all(len(one.x) < 2 for panel in panels for one in panel.series):
        return ""
    trained = found[0].results[0]["settings"]["length"] if found[0].results else None
    made = draw(
        panels,
        title=say("Test length", "テストの長さ"),
        across=say("tokens", "トークン数"),
        up=_unit(found, say),
        doubling=True,
        mark=trained,
    )
    return picture(style.svg(made), say("The line is the trained length.", "破線は学習時の長さ。"))


def _positions(found: Sequence[Found], say: Say) -> str:
    measure = _measure(found)

    def points(result: dict[str, Any], _: str | None) -> list[tuple[float, float]]:
        longest = max((e["multiple"] for e in result["test"] if measure in e), default=1)
        e = entry(result, longest) or {}
        return [((s["from"] + s["to"]) / 2, s["mean"]) for s in e.get("by_position", [])]

    panels = _panels(found, points)
    if measure != "bits" or not panels:
        return ""
    made = draw(
        panels,
        title=say("By position, in the longest texts", "最も長いテキストでの位置ごとの値"),
        across=say("position", "位置"),
        up=_unit(found, say),
        mark=next(f.results[0]["settings"]["length"] for f in found if f.results),
    )
    caption = say(
        "Each curve at the longest length that its encoding reaches; the line is the trained length.",
        "各曲線は、その位置符号化が届く最も長いテキストでの値。破線は学習時の長さ。",
    )
    return picture(style.svg(made), caption)


def _attention(found: Sequence[Found], say: Say) -> str:
    rows = []
    for f in found:
        heads = [h for r in f.results for h in r["attention"]]
        if not heads:
            continue
        layers = sorted({h["layer"] for h in heads})
        for layer in (layers[0], layers[-1]) if len(layers) > 1 else layers:
            some = [h for h in heads if h["layer"] == layer]
            rows.append(
                [
                    text(f.arm.label),
                    str(layer + 1),
                    *(f"{fmean(h[key] for h in some):.2f}" for key in ("entropy", "distance")),
                    f"{min(h['distance'] for h in some):.1f} … {max(h['distance'] for h in some):.1f}",
                ]
            )
    if not rows:
        return ""
    head = [
        say("Arm", "条件"),
        say("layer", "層"),
        say("entropy, bits", "エントロピー（ビット）"),
        say("mean distance", "平均距離"),
        say("by head", "ヘッドごと"),
    ]
    caption = say(
        "Of the attention weights at the trained length, first and last layer: how spread out, and how far away.",
        "学習時の長さでの注意の重み（最初と最後の層）。どれだけ広がり、どれだけ遠くを見るか。",
    )
    return table(caption, head, rows, numbers=(1, 2, 3, 4))


def _again(study: Study, found: Sequence[Found], about: dict[str, Any], say: Say) -> str:
    rows = [[text(key), text(str(value))] for key, value in about["machine"].items() if value is not None]
    data = sorted({f"{', '.join(r['settings']['corpus'])} {r['data']}" for f in found for r in f.results})
    rows.append([text(say("data", "データ")), text("; ".join(data))])
    rows.append([text(say("study", "研究")), text(study.digest)])
    tried = len(study.tune.get("learning_rate", ()))
    budget = say(
        f"Every arm had the same tuning: {tried} learning rates, compared on the validation part.",
        f"どの条件も同じ調整をしています（検証部分で学習率 {tried} 通りを比較）。",
    )
    command = shlex.join(about["command"])
    written = json.dumps(study.document, ensure_ascii=False, indent=1)
    return (
        f"<p>{text(budget)}</p>\n{_typed(command)}\n"
        + table(say("Machine and versions", "計算機とバージョン"), [say("what", "項目"), say("value", "値")], rows)
        + f"\n<details><summary>{escape(say('The study, as it was run', '実行した研究の全文'))}</summary>"
        f"{_typed(written)}</details>"
    )


def _typed(words: str) -> str:
    """Lines as they were typed, which scroll where the page is narrow."""
    return f'<pre style="overflow-x: auto"><code>{escape(words)}</code></pre>'
