"""「RoPEとは？」を、ropewalk の API とこのプロジェクトの言葉で語り直します。

The first article, "What is RoPE?", retold with our API and in our words: three families of positional encodings,
judged by what becomes of the product of a query at one position and keys at others.

    python examples/articles/rope.py
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from retelling import FAILS, NOT_HERE, PARTLY, Claim, column, heading, judge, note, verdicts
from ropewalk import Learned, RelativeBias, RoPE, geometric
from ropewalk.measure.decay import Curve, decay

DIM = 64
QUERY = 2
KEYS = [3, 5, 20]
ONES = torch.ones(1, DIM)  # 記事と同じく、クエリもキーも成分がすべて 1 です / all ones, as in the article


def draw_tables(seed: int = 42) -> tuple[Learned, RelativeBias]:
    """絶対位置の表（21×64）と、相対距離の表（−20…20）を乱数で作ります。

    Both tables, drawn from a normal distribution in the article's order, so that the same seed gives its numbers. (Its
    listing says seed 3, but the numbers it prints come from seed 42.)
    """
    torch.manual_seed(seed)
    absolute = Learned(dim=DIM, length=21, std=1.0)
    relative = RelativeBias(length=21, std=1.0)
    return absolute.requires_grad_(False), relative.requires_grad_(False)


def absolute_scores(table: Learned, query: int = QUERY, keys: list[int] = KEYS) -> list[float]:
    """位置ベクトルを埋め込みに足してから内積をとります。 / Position is added first, then the product is taken."""
    q = table.embed(ONES, [query])
    k = table.embed(ONES.expand(len(keys), DIM), keys)
    return (q @ k.T)[0].tolist()


def four_terms(table: Learned, query: int, key: int) -> dict[str, float]:
    """(x + e_m)·(y + e_n) を展開した四つの項です。 / The four terms of the expanded product."""
    e_m, e_n = (table.embed(torch.zeros(1, DIM), [at])[0] for at in (query, key))
    x = y = ONES[0]
    pairs: dict[str, tuple[Tensor, Tensor]] = {
        "単語·単語 word·word": (x, y),
        "単語·位置 word·position": (x, e_n),
        "位置·単語 position·word": (e_m, y),
        "位置·位置 position·position": (e_m, e_n),
    }
    return {name: float(a @ b) for name, (a, b) in pairs.items()}


def relative_scores(table: RelativeBias, query: int = QUERY, keys: list[int] = KEYS) -> list[float]:
    """内積に、距離 n − m で引いた数を足します。 / The product, plus a number looked up by the distance n - m."""
    i, j = torch.tensor([query]), torch.tensor(keys)
    return (ONES[0] @ ONES[0] + table.bias(torch.tensor(0), i, j)).tolist()


def rotary_scores(query: int = QUERY, keys: list[int] = KEYS) -> list[float]:
    """クエリとキーを、それぞれの位置に比例した角度だけ回転します。 / Query and key are turned, each by its position."""
    rope = RoPE(head_dim=DIM, layout="interleaved")  # 隣り合うチャネルを組にします / neighbours are paired
    q = rope.query(ONES, [query])
    k = rope.key(ONES.expand(len(keys), DIM), keys)
    return (q @ k.T)[0].tolist()


def drift(scores: list[float], moved: list[float]) -> float:
    """二組のスコアの差のうち最大のものです。 / The largest difference between two lists of scores."""
    return max(abs(a - b) for a, b in zip(scores, moved, strict=True))


def random_means(pairs: int = 2000) -> tuple[float, float]:
    """独立な乱数ベクトルの平均スコア。いちばん 0 から離れた値と、その標準誤差です。

    Independent random vectors: the mean score farthest from zero over distances 0…100, and its standard error.
    """
    curve = decay(vectors="random", pairs=pairs).curves[0]
    assert curve.spread is not None  # there are many pairs
    at = max(range(len(curve.scores)), key=lambda d: abs(curve.scores[d]))
    return curve.scores[at], curve.spread[at] / pairs**0.5


def unfinished_pairs(head_dim: int = 128, base: float = 10_000.0, length: int = 4096) -> tuple[int, int]:
    """学習した長さの中で一回転し終えないペアの数と、全ペア数です。

    How many pairs do not complete a turn within the trained length, and how many there are: beyond that length these
    show the model angles that it has never seen.
    """
    wavelength = geometric(head_dim, base).wavelength
    return int((wavelength > length).sum()), len(wavelength)


def rises(curve: Curve) -> int:
    """曲線が一歩先で上がる回数です。 / How often the curve goes up from one distance to the next."""
    return sum(b > a for a, b in pairwise(curve.scores))


def main() -> list[Claim]:
    """実験を順に行い、記事の主張を判定します。 / Run the experiments in order and judge the article's claims."""
    absolute, relative = draw_tables()
    distances = [key - QUERY for key in KEYS]
    from_absolute, from_relative, from_rotary = absolute_scores(absolute), relative_scores(relative), rotary_scores()

    heading(
        f"One query at {QUERY}, keys at {KEYS}: the raw products",
        f"位置 {QUERY} のクエリと、位置 {KEYS} のキーの内積",
    )
    print(f"  {column('距離 distance', 32)}" + "".join(f"{d:>10}" for d in distances))
    for name, scores in (
        ("絶対（学習） absolute, learned", from_absolute),
        ("相対バイアス relative bias", from_relative),
        ("回転（RoPE） rotary", from_rotary),
    ):
        print(f"  {column(name, 32)}" + "".join(f"{s:10.4f}" for s in scores))

    heading("Absolute: four terms, none of which is the distance", "絶対位置：四つの項のどれも距離ではありません")
    for name, term in four_terms(absolute, QUERY, KEYS[0]).items():
        print(f"  {term:10.4f}  {name}")
    here, there = absolute_scores(absolute, 2, [3])[0], absolute_scores(absolute, 12, [13])[0]
    note(
        f"The same distance 1 scores {here:.4f} at 2 → 3, but {there:.4f} at 12 → 13.",
        f"同じ距離 1 でも、2 → 3 では {here:.4f}、12 → 13 では {there:.4f} です。",
    )

    heading("Relative and rotary: only the distance counts", "相対と回転：距離だけで決まります")
    moved_relative = drift(from_relative, relative_scores(relative, 1002, [1003, 1005, 1020]))
    moved_rotary = drift(from_rotary, rotary_scores(1002, [1003, 1005, 1020]))
    note(
        f"Moved on by 1000, the relative scores change by {moved_relative:.1e}, the rotary ones by {moved_rotary:.1e}.",
        f"全体を 1000 だけずらすと、スコアの変化は相対で {moved_relative:.1e}、RoPE で {moved_rotary:.1e} です。",
    )

    heading("RoPE against distance, query at 0", "RoPE のスコアと距離（クエリは位置 0）")
    curve = decay().curves[0]
    print("  距離 distance   スコア score   それより遠くでの最大 highest beyond")
    for d in (0, 1, 2, 5, 10, 20, 50, 76, 96, 100):
        beyond = curve.beyond[d]
        print(f"  {d:>13}   {curve.scores[d]:12.1f}   {'—' if beyond is None else f'{beyond:.1f}':>20}")
    rebound, up = curve.rebound, rises(curve)
    assert rebound is not None  # measured: the curve comes back up
    note(
        f"It goes up {up} times in 100 steps; the largest return is from {rebound.low:.1f} at {rebound.low_at} "
        f"to {rebound.high:.1f} at {rebound.high_at}.",
        f"100 歩のうち {up} 回は上がります。最大の戻りは、距離 {rebound.low_at} の {rebound.low:.1f} から"
        f"距離 {rebound.high_at} の {rebound.high:.1f} までです。",
    )
    mean, error = random_means()
    note(
        f"For independent random vectors the mean farthest from zero is {mean:+.2f} (standard error {error:.2f}).",
        f"独立な乱数ベクトルでは、0 から最も離れた平均でも {mean:+.2f}（標準誤差 {error:.2f}）です。",
    )

    heading("Beyond the trained length", "学習した長さの先では")
    slow, pairs = unfinished_pairs()
    note(
        f"With head_dim 128 and base 10000, {slow} of {pairs} pairs do not complete a turn within 4096 tokens.",
        f"head_dim 128、base 10000 では、{pairs} ペアのうち {slow} ペアが 4096 トークン以内に一回転し終えません。",
    )
    note(
        "Farther on they take angles never seen in training. That is a reason for care, not yet a measurement.",
        "その先では、学習中に一度も現れなかった角度になります。これは注意すべき理由ですが、性能の測定ではありません。",
    )

    monotone = from_rotary == sorted(from_rotary, reverse=True)
    claims = [
        Claim(
            ("Absolute positions: the score does not follow the distance", "絶対位置のスコアは距離に従いません"),
            judge(abs(here - there) > 1),
            (f"distance 1 gives {here:.2f} and {there:.2f}", f"距離 1 でも {here:.2f} と {there:.2f} になりました"),
        ),
        Claim(
            ("Relative bias: exact by distance", "相対バイアスのスコアは距離だけで正確に決まります"),
            judge(moved_relative == 0),
            (f"change when moved: {moved_relative:.1e}", f"ずらしたときの変化は {moved_relative:.1e} でした"),
        ),
        Claim(
            ("It costs a lookup inside attention", "相対バイアスは注意機構の中で表を引く必要があります"),
            judge(relative.places() == ("score",)),
            ("it acts on the score, once for every pair of tokens", "トークンの組ごとに、スコアに足されます"),
        ),
        Claim(
            ("RoPE: the product depends on n - m only", "RoPE の内積は n − m だけで決まります"),
            judge(moved_rotary < 1e-4),
            (
                f"change when moved: {moved_rotary:.1e}, which is rounding",
                f"ずらしたときの変化は丸め誤差の {moved_rotary:.1e} でした",
            ),
        ),
        Claim(
            ("RoPE's score falls smoothly with distance", "RoPE のスコアは距離とともになめらかに下がります"),
            judge(monotone and not up, PARTLY if monotone else FAILS),
            (
                f"it falls over the distances {distances}, but the curve goes up {up} times; "
                f"at {rebound.high_at} it is back at {rebound.high:.1f}",
                f"距離 {distances} では下がりますが、曲線は {up} 回上がり、"
                f"距離 {rebound.high_at} では {rebound.high:.1f} に戻りました",
            ),
        ),
        Claim(
            (
                "Decay is a property of language that RoPE gives the model",
                "減衰は、RoPE がモデルに与える言語の性質です",
            ),
            judge(abs(mean) > 4 * error),
            (
                f"for random vectors the mean stays within {abs(mean) / error:.1f} standard errors of zero: "
                "decay depends on q and k",
                f"乱数ベクトルの平均は、0 から標準誤差の {abs(mean) / error:.1f} 倍以内にとどまりました。"
                "減衰するかどうかは q と k しだいです",
            ),
        ),
        Claim(
            ("Long-context ability improves dramatically", "長い文脈を扱う能力が劇的に向上します"),
            NOT_HERE,
            (
                f"it takes trained models; that {slow} of {pairs} pairs meet unseen angles is a reason for doubt",
                f"学習したモデルで測る必要があります。{slow}/{pairs} ペアが未知の角度に出会うので、過信はできません",
            ),
        ),
    ]
    verdicts(claims)
    return claims


if __name__ == "__main__":
    main()
