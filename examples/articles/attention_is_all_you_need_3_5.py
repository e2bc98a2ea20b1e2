"""「Attention Is All You Need」3.5 節の講義を、ropewalk の API で語り直します。

The third article retold, a lecture on §3.5 of Attention Is All You Need: sinusoids of different wavelengths, a shift of
position as a linear map, what order changes, and what stays parallel.

    python examples/articles/attention_is_all_you_need_3_5.py
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from retelling import FAILS, NOT_HERE, PARTLY, Claim, heading, judge, note, verdicts
from ropewalk import Learned, NoPE, Sinusoidal, attend, geometric
from ropewalk.measure.order import order

SENTENCE = "I drink coffee in a café"


def wavelengths(dim: int = 512, base: float = 10_000.0) -> tuple[float, float, float]:
    """最短と最長の波長、そして隣どうしの比のばらつきです。

    The shortest and the longest wavelength, and how far the ratios of neighbours differ from one another: zero, up to
    rounding, for a geometric progression.
    """
    length = geometric(dim, base).wavelength
    ratio = length[1:] / length[:-1]
    return float(length[0]), float(length[-1]), float(ratio.max() / ratio.min() - 1)


def shift_error(dim: int = 64, positions: int = 2000, shifts: tuple[int, ...] = (1, 7, 100, 5000)) -> float:
    """PE(pos + k) と、k だけで決まる行列を PE(pos) に掛けたものの差の最大値です。

    The largest difference between PE(pos + k) and a matrix that knows k only, times PE(pos).
    """
    pe = Sinusoidal(dim=dim)
    at = torch.arange(positions)
    table = pe.table(at, dtype=torch.float64)
    return max(
        float((pe.table(at + k, dtype=torch.float64) - table @ pe.shift_matrix(k).T).abs().max()) for k in shifts
    )


def shuffles(sentence: str = SENTENCE, count: int = 8, seed: int = 0) -> list[str]:
    """同じ単語を並べ替えた文です。 / The same words in other orders, all of them different."""
    words, dice = sentence.split(), random.Random(seed)
    found: list[str] = []
    while len(found) < count:
        other = " ".join(dice.sample(words, len(words)))
        if other != sentence and other not in found:
            found.append(other)
    return found


def told_apart(sentences: list[str], encoding: str) -> list[bool]:
    """元の文と区別できるかを、並べ替えごとに調べます。 / Whether attention tells each from the sentence."""
    return [order(SENTENCE, other, encodings=[encoding]).rows[0].told_apart for other in sentences]


class CountProducts(TorchDispatchMode):
    """行列積が何回呼ばれたかを数えます。 / Count the matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """呼び出しを数えて、そのまま渡します。 / Count a call and pass it on."""
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def products(self) -> int:
        """行列積の回数です。 / How many there were."""
        return sum(self.calls[name] for name in ("mm", "bmm", "addmm", "baddbmm"))


def products_for(length: int, dim: int = 16) -> int:
    """位置符号化を足し、注意機構を一度通すのに要る行列積の回数です。

    Matrix products that one pass of attention takes, position added. If positions were worked through one after the
    other, as in a recurrent network, the number would grow with the length.
    """
    x = torch.randn(1, length, dim, generator=torch.Generator().manual_seed(0))
    pos = torch.arange(length)
    with CountProducts() as count:
        x = Sinusoidal(dim=dim).embed(x, pos)[:, None]  # 位置はここで足されます / position is added here
        attend(x, x, x, NoPE(), pos, impl="reference")  # 定義どおりの計算 / as defined, product by product
    return count.products


def far_row(position: int = 1_000_000) -> float:
    """遠い位置でも表の値は決まります。sin² + cos² = 1 からの誤差を返します。

    The formula has a value at any position: the error of sin² + cos² = 1 there. It says nothing of a trained model.
    """
    row = Sinusoidal(dim=64).table([position], dtype=torch.float64)[0]
    return float((row[0::2] ** 2 + row[1::2] ** 2 - 1).abs().max())


def main() -> list[Claim]:
    """実験を順に行い、記事の主張を判定します。 / Run the experiments in order and judge the article's claims."""
    heading("Wavelengths, from 2π towards 10000·2π", "波長：2π から 10000·2π へ")
    print("       d   最短 shortest   最長 longest   10000·2π に対する割合 share of 10000·2π")
    limit = 2 * math.pi * 10_000
    for dim in (8, 64, 512, 4096):
        shortest, longest, _ = wavelengths(dim)
        print(f"  {dim:>6}   {shortest:13.4f}   {longest:12.1f}   {longest / limit:>10.1%}")
    note(
        "The last pair has 10000^(−(d−2)/d), so the longest wave is 2π·10000^((d−2)/d): 10000·2π is its limit.",
        "最後の組の周波数は 10000^(−(d−2)/d) なので、最長の波は 2π·10000^((d−2)/d) です。10000·2π は極限です。",
    )
    shortest, longest, uneven = wavelengths()
    geometric_from_2pi = uneven < 1e-12 and math.isclose(shortest, 2 * math.pi)

    heading("A shift is one linear map", "位置をずらすことは、ひとつの線形写像です")
    error = shift_error()
    note(
        f"PE(pos + k) = M_k · PE(pos) for 2000 positions and k = 1, 7, 100, 5000: largest error {error:.1e}.",
        f"2000 個の位置と k = 1、7、100、5000 で PE(pos + k) = M_k · PE(pos) です。最大誤差は {error:.1e} でした。",
    )
    print("  M_1 (d = 4)")
    for row in Sinusoidal(dim=4).shift_matrix(1).tolist():
        print("    " + " ".join(f"{value:8.4f}" for value in row))

    heading(f'"{SENTENCE}" and its shuffles', f"「{SENTENCE}」と、その並べ替え")
    others = shuffles()
    without, with_waves = told_apart(others, "nope"), told_apart(others, "sinusoidal")
    print("  なし none   正弦波 sinusoidal")
    for other, plain, waved in zip(others, without, with_waves, strict=True):
        print(f"  {'≠' if plain else '=':>9}   {'≠' if waved else '=':>17}   {other}")
    note(
        "= means that the pooled output is identical to rounding (attention without a causal mask).",
        "= は、出力の平均が丸め誤差の範囲で一致することを表します（因果マスクなしの注意機構）。",
    )

    heading("Still parallel", "並列計算は保たれます")
    counts = {length: products_for(length) for length in (8, 64, 512)}
    for length, products in counts.items():
        print(f"  {length:>5} トークン tokens: 行列積 {products} 回 matrix products")
    note(
        "No loop over positions: one product gives the scores of all tokens, one more their outputs. "
        "(Above 1024 tokens this form of `attend` takes the queries in blocks, to save memory.)",
        "位置ごとの繰り返しはありません。一回の積で全トークンのスコアが、もう一回で出力が得られます。"
        "（1024 トークンを超えると、この形の `attend` はメモリを節約するためクエリをブロックに分けます。）",
    )

    heading("Learned or sinusoidal", "学習した表か、正弦波か")
    far = far_row()
    try:
        Learned(dim=64, length=512).embed(torch.zeros(1, 64), [512])
        refused = ""
    except ValueError as beyond:
        refused = str(beyond)
    note(
        f"Sinusoids have a value at position 1,000,000 (sin² + cos² is off by {far:.1e}); a table has an end:",
        f"正弦波は位置 1,000,000 でも値が決まります（sin² + cos² の誤差 {far:.1e}）。表には終わりがあります：",
    )
    print(f"    × {refused}")

    heading("Two practice questions", "練習問題を二つ")
    # 問題文は私たちの言葉です。 / The questions are in our words.
    note(
        "1. Learned tables did about as well. Why did the authors keep sinusoids?",
        "問 1　学習した表でもほぼ同じ性能でした。著者が正弦波を選んだのはなぜですか。",
    )
    note(
        "They hoped that a model would carry on to sequences longer than those it was trained on. "
        "The formula reaches there, a table does not (both shown above); whether a model does is not measured here.",
        "学習時より長い系列にも通用することを期待したからです。式の値は遠くでも決まり、表にはありません（上で確かめました）。"
        "モデルが通用するかどうかは別の問題で、ここでは測っていません。",
    )
    pe, x = Sinusoidal(dim=8), torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    added = float((pe.embed(x, torch.arange(5)) - math.sqrt(8) * x - pe.table(torch.arange(5))).abs().max())
    distinct = len(set(geometric(8).radians))
    note(
        "2. Which is right: the formula (a) is learned, (b) replaces the embedding, or (c) takes position and channel, "
        "gives a sine or cosine whose frequency differs from pair to pair, and is added to the embedding?",
        "問 2　正しいのはどれですか。この式は、(a) 学習で決まる、(b) 埋め込みの代わりになる、"
        "(c) 位置とチャネルから、組ごとに周波数の異なる sin と cos を作り、埋め込みに足す。",
    )
    parameters = sum(p.numel() for p in pe.parameters())
    note(
        f"(c). Parameters: {parameters}. Distinct frequencies for d = 8: {distinct}. "
        f"embed(x) minus √d·x is the table, to {added:.1e}.",
        f"(c) です。パラメータは {parameters} 個、d = 8 の異なる周波数は {distinct} 個、"
        f"embed(x) から √d·x を引くと表に一致します（誤差 {added:.1e}）。",
    )

    claims = [
        Claim(
            (
                "Wavelengths are a geometric progression from 2π to 10000·2π",
                "波長は 2π から 10000·2π までの等比数列です",
            ),
            judge(geometric_from_2pi and math.isclose(longest, limit), PARTLY if geometric_from_2pi else FAILS),
            (
                f"geometric, from 2π; but for d = 512 it ends at {longest:,.1f}, {longest / limit:.1%} of 10000·2π",
                f"2π から始まる等比数列ですが、d = 512 の最後は {longest:,.1f} で、"
                f"10000·2π の {longest / limit:.1%} です",
            ),
        ),
        Claim(
            ("For a fixed k, PE(pos + k) is linear in PE(pos)", "k を固定すると PE(pos + k) は PE(pos) の線形関数です"),
            judge(error < 1e-12),
            (f"largest error {error:.1e}", f"最大誤差は {error:.1e} でした"),
        ),
        Claim(
            ("Without position, shuffles cannot be told apart", "位置がなければ、並べ替えを区別できません"),
            judge(not any(without) and all(with_waves)),
            (
                f"of {len(others)}, {sum(without)} told apart without, {sum(with_waves)} with sinusoids",
                f"区別できた数は、なしで {sum(without)}/{len(others)}、正弦波で {sum(with_waves)}/{len(others)} でした",
            ),
        ),
        Claim(
            ("Parallel computation is kept", "並列計算は保たれます"),
            judge(len(set(counts.values())) == 1),
            (
                f"{counts[8]} matrix products for 8 tokens, {counts[512]} for 512",
                f"行列積は 8 トークンで {counts[8]} 回、512 トークンで {counts[512]} 回でした",
            ),
        ),
        Claim(
            ("Learned tables give nearly identical results", "学習した表でも結果はほぼ同じです"),
            NOT_HERE,
            ("it takes two trained translation models (Table 3, row E)", "翻訳モデルの学習が必要です（表 3、行 E）"),
        ),
        Claim(
            ("Sinusoids may extrapolate to longer sequences", "正弦波は学習時より長い系列に外挿できるかもしれません"),
            NOT_HERE,
            (
                "the formula reaches any position, which is no proof that a trained model does",
                "式の値はどの位置でも決まりますが、学習したモデルが通用する証明にはなりません",
            ),
        ),
    ]
    verdicts(claims)
    return claims


if __name__ == "__main__":
    main()
