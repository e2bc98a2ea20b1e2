"""「Positional Encodingとは？RoPEでLLMが語順を扱う仕組みを理解する」を、ropewalk の API で語り直します。

The second article retold: from the Transformer's sinusoids to RoFormer's rotation, with a minimal cache and application
that anyone can read, and with the figures it quotes set beside the paper.

    python examples/articles/from_transformer_to_roformer.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from retelling import NOT_HERE, Claim, heading, judge, note, verdicts
from ropewalk import RoPE, Sinusoidal, attend, cos_sin, geometric, rotate
from ropewalk.measure.order import order

# ---- 最小の実装 / the minimal implementation ----------------------------------------------------------------------


def build_cache(
    length: int, head_dim: int, device: torch.device | str = "cpu", base: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    """位置 0 … length − 1 の cos と sin を作ります。形は `(1, 1, length, head_dim/2)` です。

    Cosine and sine for positions 0 … length - 1, `(1, 1, length, head_dim/2)`: one column a pair, ready to broadcast
    against `(batch, heads, length, head_dim)`.

    Raises:
        ValueError: length が 1 未満、head_dim が奇数または正でない、base が 1 以下のとき。 / Length below 1, head_dim
            odd or not positive, base not above 1.
    """
    if length < 1:
        raise ValueError(f"長さは 1 以上にしてください / the length is 1 or more, got {length}")
    if head_dim < 1 or head_dim % 2:
        raise ValueError(
            f"head_dim は正の偶数にしてください（二つずつ回転します） / "
            f"head_dim is positive and even, since channels turn in pairs, got {head_dim}"
        )
    if not (math.isfinite(base) and base > 1):
        raise ValueError(f"base は 1 より大きい有限の数にしてください / base is a finite number above 1, got {base}")
    cos, sin = cos_sin(torch.arange(length), geometric(head_dim, base), device=device)
    return cos[None, None], sin[None, None]


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`(batch, heads, S, head_dim)` の隣り合うチャネルを組にして回転します。

    クエリとキーに使い、バリューには使いません。 / Turn neighbouring channels as pairs: queries and keys, not values.

    Raises:
        ValueError: 最後の次元が奇数のとき、cos と sin の形が互いに、または x と合わないとき。 / An odd last dimension;
            cos and sin of different shapes, or that do not match x.
    """
    if x.dim() != 4:
        raise ValueError(f"x の形は (batch, heads, S, head_dim) です / x has four axes, got {tuple(x.shape)}")
    if x.shape[-1] % 2:
        raise ValueError(f"最後の次元は偶数にしてください / the last dimension is even, got {x.shape[-1]}")
    if cos.shape != sin.shape:
        raise ValueError(
            f"cos と sin の形が違います / cos and sin have different shapes: {tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    wanted = (1, 1, x.shape[2], x.shape[3] // 2)
    if cos.shape != wanted:
        raise ValueError(
            f"cos と sin の形が x と合いません / cos and sin do not match x {tuple(x.shape)}: "
            f"wanted {wanted}, got {tuple(cos.shape)}"
        )
    return rotate(x, cos, sin, layout="interleaved")


# ---- 実験 / experiments ------------------------------------------------------------------------------------------

PAPER_GLUE = {  # RoFormer 論文の表 2。公開された要約から読み取れた値です / Table 2, as we could read it in a summary
    "BERT": {"MRPC": 88.9, "SST-2": 93.5, "QNLI": 90.5, "STS-B": 85.8, "QQP": 71.2, "MNLI": (84.6 + 83.4) / 2},
    "RoFormer": {"MRPC": 89.5, "SST-2": 90.7, "QNLI": 88.0, "STS-B": 87.0, "QQP": 86.4, "MNLI": (80.2 + 79.8) / 2},
}
ARTICLE_GLUE = {"RoFormer": 78.8, "BERT": 75.8, "sinusoidal": 76.8, "relative": 77.4}
PAPER_CAIL = {"RoFormer-512": 68.29, "RoFormer-1024": 69.79}  # 表 5、テストの正解率 / Table 5, test accuracy


def denominators(dim: int = 8, base: float = 10_000.0) -> list[float]:
    """位置を割る数 base^(2i/dim) を、組ごとに並べます。 / What the position is divided by, pair by pair."""
    return (1 / geometric(dim, base).inv_freq).tolist()


def both_ways(m: int = 7, n: int = 3, dim: int = 8) -> dict[str, float]:
    """同じ内積の三通りの書き方です。どれも同じ数になります。

    Three ways of writing one product: rotate both, or turn the query back by m - n, or the key by n - m.
    """
    random = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, dim, generator=random, dtype=torch.float64)
    rope = RoPE(head_dim=dim, layout="interleaved")
    return {
        "(R_m q)·(R_n k)": float(rope.query(q, [m])[0] @ rope.key(k, [n])[0]),
        "kᵀ R₍ₘ₋ₙ₎ q": float(k[0] @ rope.query(q, [m - n])[0]),
        "qᵀ R₍ₙ₋ₘ₎ k": float(q[0] @ rope.key(k, [n - m])[0]),
    }


def shift_of_output(*, turn_value: bool, shift: int = 100) -> float:
    """全体を shift だけずらしたとき、注意機構の出力がどれだけ変わるかです。

    How much attention's output changes when all positions move by `shift`, relative to its size. With values left alone
    it is rounding; with values rotated too, the absolute position leaks into the output.
    """
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 6, 8, generator=random, dtype=torch.float64)
    rope = RoPE(head_dim=8, layout="interleaved")
    here, there = torch.arange(6), torch.arange(6) + shift
    first, moved = (attend(q, k, rope.key(v, at) if turn_value else v, rope, at) for at in (here, there))
    return float((first - moved).norm() / first.norm())


def cached_step() -> float:
    """回転済みのキーを保存しておき、最後のトークンだけを計算したときの、全体計算との差です。

    A decoding step from rotated keys kept in a cache against the full pass: the largest difference.
    """
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 10, 8, generator=random, dtype=torch.float64)
    rope, pos = RoPE(head_dim=8), torch.arange(10)
    full = attend(q, k, v, rope, pos)
    kept = rope.key(k, pos)  # 保存されるもの / what a cache holds
    step = attend(q[:, :, 9:], kept, v, rope, pos[9:], key_positions=pos, keys_encoded=True)
    return float((step[:, :, 0] - full[:, :, 9]).abs().max())


def main() -> list[Claim]:
    """実験を順に行い、記事の主張を判定します。 / Run the experiments in order and judge the article's claims."""
    heading("Without position, order is invisible", "位置がなければ、語順は見えません")
    told = {row.encoding: row for row in order("犬が人を噛む", "人が犬を噛む").rows}
    for name in ("nope", "sinusoidal", "rope"):
        print(f"  {name:<12}{told[name].difference:10.1e}")
    note(
        "Relative difference between the pooled outputs of 犬が人を噛む and 人が犬を噛む; 1e-16 is rounding.",
        "「犬が人を噛む」と「人が犬を噛む」の出力（平均）の相対的な差です。1e-16 は丸め誤差です。",
    )

    heading("The sinusoidal table for d_model = 8", "d_model = 8 の正弦波の表")
    below = denominators()
    print("  分母 denominators: " + ", ".join(f"{d:g}" for d in below))
    for position, row in enumerate(Sinusoidal(dim=8).table([0, 1, 2, 3]).tolist()):
        print(f"  pos {position}  " + " ".join(f"{value:8.4f}" for value in row))
    note(
        "Even and odd count channels, not tokens: sine and cosine of one angle stand side by side.",
        "偶数・奇数はトークンではなくチャネルの番号です。同じ角度の sin と cos が隣り合います。",
    )
    counted_from_one = [10_000.0 ** (-2 * (i - 1) / 8) for i in range(1, 5)]
    same_ladder = torch.allclose(geometric(8).inv_freq, torch.tensor(counted_from_one, dtype=torch.float64))
    note(
        f"With i counted from 1, as in the RoFormer paper, the frequencies are the same: {same_ladder}.",
        f"RoFormer の論文のように i を 1 から数えても、周波数は同じです：{same_ladder}。",
    )

    heading("One product, written three ways (m = 7, n = 3)", "同じ内積の三通りの書き方（m = 7、n = 3）")
    ways = both_ways()
    for name, value in ways.items():
        print(f"  {value:12.8f}  {name}")

    heading("The minimal cache and its application", "最小のキャッシュと回転")
    cos, sin = build_cache(16, 8)
    x = torch.randn(2, 3, 16, 8, generator=torch.Generator().manual_seed(0))
    turned = apply_rope(x, cos, sin)
    same = torch.equal(turned, RoPE(head_dim=8, layout="interleaved").query(x, torch.arange(16)))
    norm = float((turned.norm(dim=-1) / x.norm(dim=-1) - 1).abs().max())
    print(f"  cos, sin {tuple(cos.shape)}   x {tuple(x.shape)} → {tuple(turned.shape)}")
    note(
        f"Equal to ropewalk.RoPE bit for bit: {same}. Lengths change by at most {norm:.1e}.",
        f"ropewalk.RoPE とビット単位で一致：{same}。ベクトルの長さの変化は最大 {norm:.1e} です。",
    )
    for call in (
        lambda: build_cache(0, 8),
        lambda: build_cache(16, 7),
        lambda: build_cache(16, 8, base=1),
        lambda: apply_rope(x[..., :7], cos, sin),
        lambda: apply_rope(x, cos, sin[..., :2]),
        lambda: apply_rope(x[:, :, :5], cos, sin),
    ):
        try:
            call()
        except ValueError as refused:
            print(f"  × {refused}")

    heading("Query and key are rotated, value is not", "クエリとキーは回転し、バリューは回転しません")
    still, leaks = shift_of_output(turn_value=False), shift_of_output(turn_value=True)
    note(
        f"Moved on by 100, the output changes by {still:.1e}; if values were rotated too, by {leaks:.2f}.",
        f"全体を 100 ずらしたときの出力の変化は {still:.1e} です。バリューも回転すると {leaks:.2f} になります。",
    )
    step = cached_step()
    note(
        f"A key turns by its own position alone, so it can be kept: "
        f"a step from kept keys differs from the full pass by {step:.1e}.",
        f"キーの回転は自分の位置だけで決まるので、保存しておけます。"
        f"保存したキーで計算しても、全体計算との差は {step:.1e} です。",
    )

    heading("The figures the article quotes", "記事が引用する数値")
    averages = {name: sum(row.values()) / len(row) for name, row in PAPER_GLUE.items()}
    in_paper = {name: abs(averages.get(name, math.inf) - quoted) < 0.5 for name, quoted in ARTICLE_GLUE.items()}
    for name, quoted in ARTICLE_GLUE.items():
        of_paper = f"{averages[name]:.2f}" if name in averages else "—"
        print(f"  {name:<12}記事 article {quoted}   論文の表 2 から計算 computed from Table 2: {of_paper}")
    note(
        "Table 2 of the paper, as we could read it, has the rows BERT and RoFormer, six tasks and no average.",
        "私たちが読み取れたかぎり、論文の表 2 は BERT と RoFormer の二行、六つの課題で、平均の欄はありません。",
    )
    note(
        "Its BERT row is from the test server and RoFormer's from validation, so even these averages do not compare.",
        "BERT の行はテスト、RoFormer の行は検証データの値なので、この平均どうしも比べられません。",
    )
    gain = PAPER_CAIL["RoFormer-1024"] - PAPER_CAIL["RoFormer-512"]
    note(
        f"Long Chinese texts (CAIL2019-SCM), test accuracy as we could read it: "
        f"{PAPER_CAIL['RoFormer-512']} at 512 tokens, {PAPER_CAIL['RoFormer-1024']} at 1024 ({gain:+.2f}).",
        f"中国語の長文（CAIL2019-SCM）のテスト正解率は、読み取れた値で 512 トークンでは {PAPER_CAIL['RoFormer-512']}、"
        f"1024 では {PAPER_CAIL['RoFormer-1024']} です（{gain:+.2f}）。",
    )

    spread = max(ways.values()) - min(ways.values())
    claims = [
        Claim(
            ("Without position, attention cannot tell orders apart", "位置がなければ、注意機構は語順を区別できません"),
            judge(not told["nope"].told_apart and told["sinusoidal"].told_apart and told["rope"].told_apart),
            (
                f"difference {told['nope'].difference:.1e} without, {told['rope'].difference:.2f} with RoPE "
                "(no causal mask)",
                f"差は、なしで {told['nope'].difference:.1e}、RoPE で {told['rope'].difference:.2f} でした"
                "（因果マスクなし）",
            ),
        ),
        Claim(
            ("For d_model = 8 the denominators are 1, 10, 100, 1000", "d_model = 8 の分母は 1、10、100、1000 です"),
            judge(all(math.isclose(a, b) for a, b in zip(below, (1, 10, 100, 1000), strict=True))),
            (", ".join(f"{d:.12g}" for d in below), "、".join(f"{d:.12g}" for d in below)),
        ),
        Claim(
            ("kᵀR₍ₘ₋ₙ₎q and qᵀR₍ₙ₋ₘ₎k are the same product", "kᵀR₍ₘ₋ₙ₎q と qᵀR₍ₙ₋ₘ₎k は同じ内積です"),
            judge(spread < 1e-12),
            (f"they differ by {spread:.1e}", f"差は {spread:.1e} でした"),
        ),
        Claim(
            ("Values need no rotation", "バリューは回転しません"),
            judge(still < 1e-12 < leaks),
            (
                f"rotating them would let the absolute position into the output ({leaks:.2f})",
                f"回転すると絶対位置が出力に混ざります（{leaks:.2f}）",
            ),
        ),
        Claim(
            (
                "The paper has GLUE averages: RoFormer 78.8, BERT 75.8, sinusoidal 76.8, relative 77.4",
                "論文にある GLUE 平均は RoFormer 78.8、BERT 75.8、正弦波 76.8、相対 77.4 です",
            ),
            judge(all(in_paper.values())),
            (
                "as we could read it, it has neither these averages nor the last two rows; not reproduced here",
                "読み取れたかぎり、平均も後の二行も論文にはありません。ここでは再現していません",
            ),
        ),
        Claim(
            (
                "Trained at 512 tokens, RoFormer gains from 1024",
                "512 トークンで学習した RoFormer は、1024 トークンで性能が上がります",
            ),
            NOT_HERE,
            (
                f"{gain:+.2f} points in the paper as we could read it; not reproduced here",
                f"読み取れた論文の値では {gain:+.2f} ポイントです。ここでは再現していません",
            ),
        ),
    ]
    verdicts(claims)
    return claims


if __name__ == "__main__":
    main()
