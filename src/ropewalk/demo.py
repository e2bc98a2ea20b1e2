"""The demonstration: every experiment of the articles in one page, and what of their claims held in this very run.

All numbers on the page come from `ropewalk.measure` or from an encoding; none is typed by hand.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib
import numpy as np
import torch

from ropewalk.encodings import ENCODINGS
from ropewalk.encodings.sinusoidal import Sinusoidal
from ropewalk.language import Language, Say, speaker
from ropewalk.measure.compare import Comparison, compare
from ropewalk.measure.decay import Curve, Decay, decay
from ropewalk.measure.order import PAIRS, WordOrder, order
from ropewalk.measure.panel import panel, raw_scores
from ropewalk.page import page, picture, table, text
from ropewalk.plots import decay as decay_plot
from ropewalk.plots import order as order_plot
from ropewalk.plots import scores as scores_plot
from ropewalk.plots import style, waves
from ropewalk.plots.style import label, minus, number
from ropewalk.positions import Positions
from ropewalk.protocol import PLACES
from ropewalk.version import __version__

DIM, SHIFT, FARTHEST = 64, 10, 100
MIRRORED = {"en": ("dog bites man", "man bites dog"), "ja": ("昼と夜", "夜と昼")}
"""One order read backwards is the other: what a bias of the bare distance cannot tell apart."""

SAME = 1e-3
"""Scores of about 64, in float32: a smaller change is rounding."""


class Found(NamedTuple):
    """All that one run measures."""

    compared: Comparison
    moved: dict[str, float]
    curve: Decay
    ones: Decay
    random: Decay
    orders: tuple[WordOrder, ...]
    causal: WordOrder
    mirror: WordOrder
    waves: Sinusoidal
    shifted: float


def write_demo(path: Path, language: Language, seed: int, progress: Callable[[str], None]) -> Path:
    """Measure, draw, and write one HTML file that opens offline; returns its path.

    Args:
        path: the file to write, whole or not at all.
        language: of the page, and of what `progress` is told.
        seed: for learned tables and random vectors; the articles' numbers are those of 42.
        progress: called with a line before each step.

    Raises:
        ValueError: the folder does not exist, or the path is a folder.
    """
    path = Path(path)
    style.check_place(path)
    say = speaker(language)
    found = _measure(language, seed, progress, say)
    progress(say("drawing and writing the page", "図を描き、ページを書き出しています"))
    title = say("ropewalk: how position enters attention", "ropewalk：位置はどのように注意機構に入るのか")
    sections = (
        ("places", say("Four places for position", "位置が作用する四つの場所"), _places(say, language)),
        ("compare", say("One query, three keys", "一つのクエリと三つのキー"), _compare(found, say, language)),
        ("decay", say("Does the score fall with distance?", "スコアは距離で減衰するか"), _decay(found, say, language)),
        ("random", say("And for other vectors?", "ほかのベクトルではどうか"), _random(found, say, language)),
        ("order", say("Can attention see the order?", "注意機構は語順を区別できるか"), _order(found, say, language)),
        ("waves", say("The sinusoidal waves", "正弦波による位置符号化"), _waves(found, say, language)),
        ("held", say("What held and what did not", "成り立ったこと、成り立たなかったこと"), _held(found, say)),
    )  # fmt: skip
    contents = "".join(f'<li><a href="#{key}">{escape(head)}</a></li>' for key, head, _ in sections)
    body = (
        f"<h1>{escape(title)}</h1>\n{_introduction(say)}\n<nav><ol>{contents}</ol></nav>\n"
        + "\n".join(f'<section id="{key}"><h2>{escape(head)}</h2>\n{html}\n</section>' for key, head, html in sections)
        + f"\n<footer>{_footer(say, seed)}</footer>"
    )
    style.write(path, page(title, body, language).encode())
    return path


def _measure(language: Language, seed: int, progress: Callable[[str], None], say: Say) -> Found:
    names = [cls.name for cls in ENCODINGS]
    progress(say("comparing the scores of one query", "一つのクエリのスコアを比較しています"))
    compared = compare(dim=DIM, seed=seed)
    moved = _moved(compared, seed)
    progress(say("following the score into the distance", "距離によるスコアの変化を調べています"))
    curve = decay(dim=DIM, length=FARTHEST, seed=seed)
    ones = decay(dim=DIM, length=FARTHEST, seed=seed, encodings=names)
    progress(say("the same for random vectors", "乱数ベクトルでも同じことを調べています"))
    random = decay(dim=DIM, length=FARTHEST, seed=seed, encodings=names, vectors="random")
    progress(say("swapping words", "語順を入れ替えています"))
    first = PAIRS if language == "ja" else PAIRS[::-1]
    orders = tuple(order(*pair, dim=DIM, seed=seed) for pair in first)
    causal = order(*first[0], dim=DIM, seed=seed, causal=True)
    mirror = order(*MIRRORED[language], dim=DIM, seed=seed)
    sinusoidal = Sinusoidal(DIM)
    return Found(
        compared, moved, curve, ones, random, orders, causal, mirror, sinusoidal, _shifted(sinusoidal, SHIFT)
    )  # fmt: skip


def _moved(compared: Comparison, seed: int) -> dict[str, float]:
    """How much the scores of the comparison change at most when the query and all keys move on by `SHIFT`."""
    drawn = panel(dim=DIM, length=max(compared.keys) + SHIFT + 1, seed=seed)
    q, k = torch.ones(DIM), torch.ones(len(compared.keys), DIM)
    here, there = (Positions([key + by for key in compared.keys]) for by in (0, SHIFT))
    out = {}
    for name, encoding in drawn.items():
        before = raw_scores(encoding, q, k, compared.query, here)
        after = raw_scores(encoding, q, k, compared.query + SHIFT, there)
        out[name] = float((before - after).abs().max())
    return out


def _shifted(encoding: Sinusoidal, k: int) -> float:
    """The largest error of M · PE(pos) = PE(pos + k) over all channels and positions 0 … `FARTHEST`, in float64."""
    table = encoding.table(Positions.arange(FARTHEST + k + 1), dtype=torch.float64)
    return float((table[:-k] @ encoding.shift_matrix(k).T - table[k:]).abs().max())


def _introduction(say: Say) -> str:
    return _p(
        say(
            "Attention compares every token with every other and is blind to their order: shuffle the tokens, and the "
            "outputs are the same, shuffled. Position has to be brought in from outside, and there are four places "
            "where it can act: the embedding, the query and key, the score, the value. Here every encoding that "
            "ropewalk knows is put through the same experiments, and every number below was measured in the run that "
            "wrote this page.",
            "注意機構はすべてのトークンを互いに比べますが、並び順は見ていないので、トークンを並べ替えても同じ出力が"
            "並べ替わるだけです。位置は外から与える必要があり、作用できる場所は埋め込み、クエリとキー、スコア、"
            "バリューの四つです。ここでは ropewalk にあるすべての位置符号化を同じ実験にかけます。以下の数値は"
            "すべて、このページを書き出したときに実際に測ったものです。",
        )
    )


def _places(say: Say, language: Language) -> str:
    acting = {place: say(", ", "、").join(cls.label for cls in ENCODINGS if place in cls.places()) for place in PLACES}
    what = {
        "embedding": say("a vector is added to each token", "各トークンにベクトルを足す"),
        "query/key": say("query and key are transformed, each by its position", "クエリとキーを各自の位置で変換する"),
        "score": say("a term is added to q·k", "q·k に項を足す"),
        "value": say("a term is added to the weighted sum of values", "バリューの加重和に項を足す"),
    }  # fmt: skip
    rows = [[escape(style.place_name(p, language)), escape(what[p]), escape(acting[p])] for p in PLACES]
    nowhere = say(", ", "、").join(cls.label for cls in ENCODINGS if not cls.places())
    rows.append([say("nowhere", "なし"), say("the baseline of every comparison", "比較の基準"), escape(nowhere)])
    ideas = [[escape(cls.label), escape(cls.idea[language])] for cls in ENCODINGS]
    return table(
        say("Where each encoding acts, in the order of the computation", "各位置符号化が作用する場所（計算の順）"),
        [say("place", "場所"), say("what happens", "何が起こるか"), say("encodings", "位置符号化")],
        rows,
    ) + table(
        say("What each one does", "それぞれの考え方"),
        [say("encoding", "位置符号化"), say("idea", "考え方")],
        ideas,
        wide=[1],
    )


def _compare(found: Found, say: Say, language: Language) -> str:
    c = found.compared
    keys = say(", ", "、").join(map(str, c.keys))
    head = [
        say("encoding", "位置符号化"),
        *(say(f"distance {key - c.query}", f"距離 {key - c.query}") for key in c.keys),
        say(f"change if all move by {SHIFT}", f"全体を {SHIFT} 動かしたときの変化"),
    ]
    rows = [
        [escape(label(name)), *(minus(f"{s:.4f}") for s in scores), _change(found.moved[name], say)]
        for name, scores in c.table().items()
    ]
    return (
        _p(
            say(
                f"Query and keys are vectors of ones, {c.dim} wide; the query stands at {c.query}, the keys at {keys}. "
                "The score is the plain product, without scale or softmax, so that without any encoding every "
                f"distance has the same score, {c.dim}. Learned numbers are not trained here but drawn at random.",
                f"クエリとキーは要素がすべて 1 の {c.dim} 次元ベクトルで、クエリは位置 {c.query}、キーは位置 {keys} "
                "にあります。スコアはスケールもソフトマックスもかけない内積です。位置符号化がなければ、どの距離でも"
                f"同じ {c.dim} になります。学習する値は、ここでは訓練せず乱数で初期化しています。",
            )
        )
        + table(
            say(f"Score by distance (seed {c.seed})", f"距離ごとのスコア（シード {c.seed}）"),
            head,
            rows,
            numbers=range(1, len(head)),
        )
        + picture(
            style.svg(scores_plot.draw(c, language)),
            say(
                "A vector added to the embedding (sinusoidal, learned) gives products of words and positions, none of "
                "which is the distance itself. A number looked up by distance (relative bias, T5, ALiBi and others) is "
                "exact, and moves the score by as much as the table says. A rotation (RoPE, xPos) has no table and "
                "changes smoothly. The last column of the table shows who depends on the distance alone: move the "
                "query and all keys together, and the score stays.",
                "埋め込みにベクトルを足す方式（Sinusoidal、Learned）では、展開すると単語と位置の積が四つ現れますが、"
                "距離そのものの項はありません。距離で表を引く方式（Relative bias、T5、ALiBi など）は距離に対して正確"
                "で、表の値の分だけスコアが動きます。回転による方式（RoPE、xPos）は表を持たず、なめらかに変化します。"
                "表の最後の列は、距離だけで決まる方式を示しています。クエリとすべてのキーを一緒に動かしても、"
                "スコアは変わりません。",
            ),
        )
    )


def _decay(found: Found, say: Say, language: Language) -> str:
    curve = found.curve.curves[0]
    at = _some(curve)
    rows = [[escape(label(c.encoding)), *(minus(f"{c.scores[d]:.1f}") for d in at), _rebound(c, say)]
            for c in found.ones.curves]  # fmt: skip
    return (
        _p(
            say(
                f"The query stands at {found.curve.query}, the key moves from distance 0 to {found.curve.length}. This "
                "is the curve by which RoPE is often introduced.",
                f"クエリを位置 {found.curve.query} に置き、キーを距離 0 から {found.curve.length} まで動かします。"
                "RoPE の紹介でよく使われる曲線です。",
            )
        )
        + picture(style.svg(decay_plot.draw(found.curve, language)), _curve_caption(curve, say))
        + table(
            say("Vectors of ones: score at some distances", "要素がすべて 1 のベクトル：いくつかの距離でのスコア"),
            [
                say("encoding", "位置符号化"),
                *(say(f"at {d}", f"距離 {d}") for d in at),
                say("largest rebound", "最大の戻り"),
            ],
            rows,
            numbers=range(1, len(at) + 2),
        )
        + picture(
            style.svg(decay_plot.draw(found.ones, language)),
            say(
                "The same for every encoding, all panels on one scale. Dots mark the largest rebound, the dashed line "
                "is the highest score that still follows.",
                "すべての位置符号化について同じことを調べたものです（目盛りは共通）。点は最大の戻り、破線はそれより遠い"
                "距離での最高スコアです。",
            ),
        )
    )


def _curve_caption(curve: Curve, say: Say) -> str:
    r, name = curve.rebound, label(curve.encoding)
    if r is None:
        return say(f"{name} falls without ever rising again.", f"{name} のスコアは一度も上がることなく下がり続けます。")
    return say(
        f"{name} falls, but not without return: the curve is a sum of cosines of different wavelengths, and goes up "
        f"and down. At distance {r.low_at} it stands at {r.low:.1f}, at {r.high_at} again at {r.high:.1f}. The dashed "
        "line says how high a score is still to come.",
        f"{name} のスコアは下がっていきますが、戻らないわけではありません。波長の異なる余弦の和なので、上下しながら"
        f"下がります。距離 {r.low_at} では {r.low:.1f} ですが、距離 {r.high_at} では {r.high:.1f} まで戻ります。"
        "破線は、それより遠い距離で現れる最高のスコアです。",
    )


def _random(found: Found, say: Say, language: Language) -> str:
    at = _some(found.random.curves[0])
    rows = [
        [
            escape(label(c.encoding)),
            *(minus(f"{c.scores[d]:.2f}") for d in at),
            f"{fmean(c.spread or (0.0,)):.2f}",
        ]
        for c in found.random.curves
    ]
    return (
        _p(
            say(
                f"Vectors of ones are a special case: query and key are equal. Now {found.random.pairs:,} pairs are "
                "drawn independently from a normal distribution. A trained model is neither of the two; what its "
                "queries and keys hold, training decides.",
                "要素がすべて 1 のベクトルは、クエリとキーが等しいという特別な場合です。そこで今度は、正規分布から"
                f"独立に {found.random.pairs:,} 組を取り出します。訓練されたモデルはそのどちらでもなく、"
                "クエリとキーが何を持つかは訓練で決まります。",
            )
        )
        + picture(
            style.svg(decay_plot.draw(found.random, language)),
            say(
                "Mean (line) and one standard deviation (band) of the score. A rotation alone gives no preference to "
                "near tokens: the mean of RoPE stays at zero at every distance, give or take what chance "
                "leaves in so many pairs. A "
                "bias adds its own slope whatever the vectors are. Vectors added to the embeddings bring their own "
                "products with them, which is why sinusoidal scores lean towards near tokens even here.",
                "スコアの平均（線）と標準偏差（帯）です。回転だけでは近いトークンが優先されることはなく、RoPE の平均は"
                "どの距離でも、この組数での誤差の範囲でゼロにとどまります。バイアスは、ベクトルが何であっても自分の傾きを"
                "加えます。埋め込みに足したベクトルは、ベクトル同士の内積を持ち込みます。Sinusoidal のスコアがここでも"
                "近いトークンに傾くのはそのためです。",
            ),
        )
        + table(
            say(
                "Random vectors: mean score at some distances, and average spread",
                "乱数ベクトル：いくつかの距離での平均スコアと、ばらつきの平均",
            ),
            [
                say("encoding", "位置符号化"),
                *(say(f"at {d}", f"距離 {d}") for d in at),
                say("standard deviation", "標準偏差"),
            ],
            rows,
            numbers=range(1, len(at) + 2),
        )
    )


def _order(found: Found, say: Say, language: Language) -> str:
    shown = (*found.orders, found.mirror)
    pairs = [
        say(f"“{escape(o.first)}” or<br>“{escape(o.second)}”", f"「{escape(o.first)}」と<br>「{escape(o.second)}」")
        for o in shown
    ]
    same = say(" (same)", "（同じ）")
    rows = [
        [
            escape(label(told[0].encoding)),
            *(text(number(t.difference) + ("" if t.told_apart else same)) for t in told),
        ]
        for told in zip(*(o.rows for o in shown), strict=True)
    ]  # fmt: skip
    blind = _names([r.encoding for r in found.mirror.rows if not r.told_apart and r.encoding != "nope"], say)
    return (
        _p(
            say(
                "Each different token gets a random vector; both orders pass through the same attention without a "
                "mask, and the outputs are averaged. If attention cannot see the order, the averages agree to the "
                "last digits of float64.",
                "異なるトークンそれぞれに乱数ベクトルを与え、両方の語順をマスクのない同じ注意機構に通し、出力を平均"
                "します。注意機構に語順が見えないなら、二つの平均は float64 の最後の桁あたりまで一致します。",
            )
        )
        + table(
            say("Relative difference of the pooled outputs", "プーリングした出力の相対差"),
            [say("encoding", "位置符号化"), *pairs],
            rows,
            numbers=range(1, len(pairs) + 1),
        )
        + picture(
            style.svg(order_plot.draw(found.orders[0], language)),
            say(
                "The scale is logarithmic: every large step is a factor of a thousand. What lies in the shaded part "
                "is rounding, not information.",
                "目盛りは対数で、1 目盛りごとに千倍になります。灰色の範囲にあるのは丸め誤差で、情報ではありません。",
            ),
        )
        + _p(
            say(
                f"The last pair is special: read backwards, “{found.mirror.first}” is “{found.mirror.second}”. "
                + (
                    f"A bias that knows only how far apart two tokens are, not which comes first, cannot tell them "
                    f"apart: {blind}. In a decoder the causal mask supplies the direction."
                    if blind
                    else "Every encoding told even these apart."
                ),
                f"最後の組は特別で、「{found.mirror.first}」を逆から読むと「{found.mirror.second}」になります。"
                + (
                    f"二つのトークンがどれだけ離れているかだけを見て、どちらが先かを見ないバイアスでは区別できません"
                    f"（{blind}）。デコーダーでは、因果マスクが向きを与えます。"
                    if blind
                    else "すべての位置符号化が、この組も区別しました。"
                ),
            )
        )
    )


def _waves(found: Found, say: Say, language: Language) -> str:
    w = found.waves
    longest, shortest = float(w.spectrum.wavelength.max()), float(w.spectrum.wavelength.min())
    limit = 2 * np.pi * w.base
    return (
        _p(
            say(
                "Each pair of channels holds the sine and the cosine of one wave, fast in the first channels and slow "
                f"in the last. The wavelengths form a geometric progression from {shortest:.4f} (2π) towards "
                f"{limit:,.0f} (2π·{w.base:,.0f}); for {w.dim} channels the longest is {longest:,.0f}, since the last "
                f"exponent is {w.dim - 2}/{w.dim} and not 1.",
                "チャネルの各組は一つの波の正弦と余弦を持ちます。前のチャネルほど速く、後ろのチャネルほど遅い波です。"
                f"波長は {shortest:.4f}（2π）から {limit:,.0f}（2π·{w.base:,.0f}）へ向かう等比数列ですが、"
                f"{w.dim} チャネルでの最長は {longest:,.0f} です。最後の指数が 1 ではなく {w.dim - 2}/{w.dim} "
                "だからです。",
            )
        )
        + picture(
            style.svg(waves.draw(language, dim=w.dim, base=w.base)),
            say(
                "Left, the vectors that are added: one row a position, one column a channel. Right, the wavelength of "
                "every pair.",
                "左：足されるベクトル。1 行が一つの位置、1 列が一つのチャネルです。右：各組の波長。",
            ),
        )
        + _p(
            say(
                "A shift is a linear map: for every k there is one matrix M with PE(pos + k) = M · PE(pos), whatever "
                f"pos is. Checked here for k = {SHIFT} at positions 0 to {FARTHEST}: the largest error in any channel "
                f"is {number(found.shifted)}, which is rounding in float64.",
                "位置をずらすことは線形写像です。どの k についても、pos によらず PE(pos + k) = M · PE(pos) となる行列 "
                f"M が一つあります。k = {SHIFT}、位置 0 から {FARTHEST} までで確かめたところ、最大の誤差は "
                f"{number(found.shifted)} でした。これは float64 の丸め誤差です。",
            )
        )
    )


def _held(found: Found, say: Say) -> str:
    rows = [
        [text(claim), text(measured), f'<span class="{kind}">{escape(word)}</span>']
        for claim, measured, (kind, word) in _claims(found, say)
    ]
    return _p(
        say(
            "The articles that this project began from make claims. Each stands here beside what this run measured.",
            "このプロジェクトの出発点となった記事の主張を、この実行で測った結果と並べます。",
        )
    ) + table(
        say("Claims and measurements", "主張と測定結果"),
        [say("claim", "主張"), say("measured here", "測定結果"), say("verdict", "判定")],
        rows,
        wide=[0, 1],
    )


def _claims(found: Found, say: Say) -> list[tuple[str, str, tuple[str, str]]]:
    """Claim, measurement, verdict. Verdicts are decided by the numbers, not written down beforehand."""
    held, failed = ("held", say("held", "成り立った")), ("failed", say("did not hold", "成り立たなかった"))
    partly = ("partly", say("only in part", "一部だけ成り立った"))
    not_measured = ("open", say("not measured here", "ここでは測っていない"))
    comma = say(", ", "、")
    scores, curve = found.compared.table(), found.curve.curves[0]
    learned, rope = (comma.join(minus(f"{s:.1f}") for s in scores[name]) for name in ("learned", "rope"))
    falling = all(a > b for a, b in itertools.pairwise(scores["rope"]))
    mean = next(c for c in found.random.curves if c.encoding == "rope")
    spread = fmean(mean.spread or (0.0,))
    error = spread / found.random.pairs**0.5
    most = max(mean.scores, key=abs)
    nope = [next(r for r in o.rows if r.encoding == "nope") for o in found.orders]
    causal = next(r for r in found.causal.rows if r.encoding == "nope")
    told = [r.told_apart for o in found.orders for r in o.rows if r.encoding != "nope"]
    blind = [r.encoding for r in found.mirror.rows if not r.told_apart and r.encoding != "nope"]
    longest = float(found.waves.spectrum.wavelength.max())
    limit = 2 * np.pi * found.waves.base
    r = curve.rebound
    return [
        (
            say(
                "Scores of a learned absolute encoding are irregular in distance.",
                "学習型の絶対位置符号化では、スコアは距離に対して不規則になります。",
            ),
            say(
                f"{learned} from near to far, untrained. If all tokens move by {SHIFT}, a score changes by up to "
                f"{found.moved['learned']:.1f}.",
                f"近い順に {learned} です（未訓練）。全体を {SHIFT} 動かすと、スコアは最大 "
                f"{found.moved['learned']:.1f} 変わります。",
            ),
            failed if _monotone(scores["learned"]) else held,
        ),
        (
            say(
                "A relative bias and a rotation depend on the distance alone.",
                "相対バイアスと回転は、距離だけで決まります。",
            ),
            say(
                f"If all tokens move by {SHIFT}, scores change by at most {number(found.moved['relative_bias'])} "
                f"(relative bias) and {number(found.moved['rope'])} (RoPE, rounding in float32).",
                f"全体を {SHIFT} 動かしたときの変化は、相対バイアスで最大 {number(found.moved['relative_bias'])}、"
                f"RoPE で最大 {number(found.moved['rope'])} です（float32 の丸め誤差）。",
            ),
            held if max(found.moved["relative_bias"], found.moved["rope"]) < SAME else failed,
        ),
        (
            say("With RoPE the score falls from key to key.", "RoPE では、キーが遠いほどスコアが下がります。"),
            say(f"{rope} from near to far.", f"近い順に {rope} です。"),
            held if falling else failed,
        ),
        (
            say(
                "Once fallen, it does not return to a high score.",
                "いったん下がったスコアが高い値に戻ることはありません。",
            ),
            say(
                "It never rises." if r is None else f"It returns from {r.low:.1f} at distance {r.low_at} to "
                f"{r.high:.1f} at {r.high_at}; the highest score beyond 10 is {curve.beyond[10]:.1f}.",
                "一度も上がりません。" if r is None else f"距離 {r.low_at} の {r.low:.1f} から、距離 {r.high_at} の "
                f"{r.high:.1f} まで戻ります。10 より遠い距離での最高スコアは {curve.beyond[10]:.1f} です。",
            ),
            held if r is None else failed,
        ),
        (
            say(
                "Decay is a property that RoPE gives to every model.",
                "減衰は、RoPE がどのモデルにも与える性質です。",
            ),
            say(
                f"For {found.random.pairs:,} random pairs the mean stays within {abs(most):.2f} of zero at all "
                f"distances (standard error {error:.2f}), with a spread of {spread:.2f}. Whether there is decay "
                "depends on what q and k hold.",
                f"乱数ベクトル {found.random.pairs:,} 組の平均は、どの距離でもゼロから {abs(most):.2f} 以内"
                f"（標準誤差 {error:.2f}）で、標準偏差は {spread:.2f} です。"
                "減衰するかどうかは q と k の中身で決まります。",
            ),
            failed if abs(most) < spread / 4 else partly,
        ),
        (
            say(
                "Without an encoding, attention cannot tell word orders apart.",
                "位置符号化がなければ、注意機構は語順を区別できません。",
            ),
            say(
                f"Difference {comma.join(number(t.difference) for t in nope)}: rounding. But a causal mask alone "
                f"already tells them apart: {number(causal.difference)}.",
                f"差は {comma.join(number(t.difference) for t in nope)} で、丸め誤差です。ただし、"
                f"因果マスクがあるだけで区別できるようになります（{number(causal.difference)}）。",
            ),
            failed if any(t.told_apart for t in nope) else partly if causal.told_apart else held,
        ),
        (
            say("With an encoding, it can.", "位置符号化があれば区別できます。"),
            say(
                f"{sum(told)} of {len(told)} cases told apart on the articles' pairs. "
                + (f"On mirror images not: {_names(blind, say)}." if blind else "On mirror images too."),
                f"記事の例では {len(told)} 件中 {sum(told)} 件を区別できました。"
                + (f"鏡像で区別できないのは {_names(blind, say)} です。" if blind else "鏡像の組も区別できました。"),
            ),
            failed if not any(told) else held if all(told) and not blind else partly,
        ),
        (
            say("Sinusoidal wavelengths run from 2π to 10000·2π.", "正弦波の波長は 2π から 10000·2π までです。"),
            say(
                f"The longest of {found.waves.dim // 2} is {longest:,.0f}, {longest / limit:.0%} of {limit:,.0f}, "
                "which is the limit for wide embeddings.",
                f"{found.waves.dim // 2} 個のうち最長は {longest:,.0f} で、{limit:,.0f} の {longest / limit:.0%} です。"
                "後者は次元を増やしたときの極限です。",
            ),
            held if np.isclose(longest, limit) else partly,
        ),
        (
            say("PE(pos + k) is a linear function of PE(pos).", "PE(pos + k) は PE(pos) の線形関数です。"),
            say(f"Largest error {number(found.shifted)}.", f"最大の誤差は {number(found.shifted)} です。"),
            held if found.shifted < 1e-9 else failed,
        ),
        (
            say("RoPE greatly improves the handling of long texts.", "RoPE は長い文章の扱いを大きく改善します。"),
            say(
                "This needs trained models, which this page does not have.",
                "訓練したモデルが必要なので、このページでは確かめられません。",
            ),
            not_measured,
        ),
    ]  # fmt: skip


def _footer(say: Say, seed: int) -> str:
    versions = f"ropewalk {__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
    versions += f"numpy {np.__version__}, matplotlib {matplotlib.__version__}"
    return escape(say(f"{versions}; seed {seed}, d = {DIM}.", f"{versions}。シード {seed}、d = {DIM}。"))


def _some(curve: Curve) -> list[int]:
    """A few distances, near and far; the last is where the curve ends."""
    end = len(curve.scores) - 1
    return [d for d in (0, 1, 10, 50) if d < end] + [end]


def _rebound(curve: Curve, say: Say) -> str:
    r = curve.rebound
    if r is None or r.high - r.low < SAME:
        return say("none", "なし")
    return minus(say(f"{r.low:.1f} at {r.low_at} → {r.high:.1f} at {r.high_at}",
                     f"{r.low:.1f}（{r.low_at}）→ {r.high:.1f}（{r.high_at}）"))  # fmt: skip


def _change(change: float, say: Say) -> str:
    return say("none", "なし") if change < SAME else f"{change:.4f}"


def _monotone(values: Sequence[float]) -> bool:
    steps = [b - a for a, b in itertools.pairwise(values)]
    return all(s >= 0 for s in steps) or all(s <= 0 for s in steps)


def _names(names: Sequence[str], say: Say) -> str:
    return say(", ", "、").join(label(n) for n in names)


def _p(words: str) -> str:
    return f"<p>{text(words)}</p>\n"
