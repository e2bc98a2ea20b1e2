"""What curves of score against distance say, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from ropewalk.cli.base import say

if TYPE_CHECKING:
    from ropewalk.measure.decay import Curve, Decay

ENOUGH = 30
"""Pairs from which on the standard error can be relied upon."""

Kind = Literal["bias", "few", "flat", "embedding", "other"]
"""Of a mean: moved by a bias alone; too few pairs to tell; flat at zero; moved by added vectors; anything else."""


def sentence(curve: Curve, found: Decay, label: str) -> str:
    """What one curve does, in one sentence."""
    if curve.spread:
        return _about_mean(curve, found, label)
    rise = curve.rebound
    if rise is not None and rises(curve):
        return say(
            f"{label}: the largest rebound is from {rise.low:.4f} at distance {rise.low_at} "
            f"back up to {rise.high:.4f} at distance {rise.high_at}.",
            f"{label}: 最大の戻りは、距離 {rise.low_at} の {rise.low:.4f} から"
            f"距離 {rise.high_at} の {rise.high:.4f} への上昇です。",
        )
    if _constant(curve.scores):
        return say(f"{label}: the same score at every distance.", f"{label}: どの距離でも同じスコアです。")
    return say(f"{label}: it falls and never rises again.", f"{label}: 下がり続け、再び上がることはありません。")


def _constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 1e-5 * max(abs(v) for v in values)


def errors(curve: Curve, found: Decay) -> list[float]:
    """Standard error of the mean at each distance."""
    return [s / math.sqrt(found.pairs) for s in curve.spread or ()]


def _from_zero(curve: Curve, found: Decay) -> float:
    """How many standard errors the mean is from zero, at most."""
    return max(abs(m) / e if e else 0.0 for m, e in zip(curve.scores, errors(curve, found), strict=True))


def _chance(found: Decay) -> float:
    """Standard errors that chance may bring: beyond lies one of so many distances once in 10,000 runs, or less."""
    return NormalDist().inv_cdf(1 - 1e-4 / (2 * (found.length + 1)))


def kind(curve: Curve, found: Decay) -> Kind:
    """What moves the mean.

    The same pairs stand at every distance: where the spread is constant, the mean is moved by a bias alone, which shows
    exactly, however small it is beside the noise.
    """
    from ropewalk.encodings import find

    each = errors(curve, found)
    if _constant(each) and not _constant([m + max(each) for m in curve.scores]):
        return "bias"
    if found.pairs < ENOUGH:
        return "few"
    if _from_zero(curve, found) <= _chance(found):
        return "flat"
    return "embedding" if "embedding" in find(curve.encoding).places() else "other"


def _about_mean(curve: Curve, found: Decay, label: str) -> str:
    low, high, each = min(curve.scores), max(curve.scores), errors(curve, found)
    error, most = sum(each) / len(each), _from_zero(curve, found)
    between = say(
        f"{label}: the mean score lies between {low:.4f} and {high:.4f}, with a standard error of {error:.4f}",
        f"{label}: 平均スコアは {low:.4f} から {high:.4f} の間で、標準誤差は {error:.4f} です",
    )
    rest = {
        "bias": say(
            "; what moves it is the bias alone, the same whatever the vectors are.",
            "。平均を動かしているのはバイアスだけで、ベクトルが何であっても同じです。",
        ),
        "few": say(
            f"; with fewer than {ENOUGH} pairs this does not show whether it is flat at zero.",
            f"。組が {ENOUGH} 個より少ないので、ゼロのまま平らかどうかは分かりません。",
        ),
        "flat": say(
            f": flat at zero, since it stays within {most:.1f} standard errors of it (chance alone brings up to "
            f"{_chance(found):.1f}); there is no decay to be seen.",
            f"。ゼロから標準誤差の {most:.1f} 倍以内（偶然でも {_chance(found):.1f} 倍まではありえます）なので、"
            "ゼロのまま平らで、減衰は見られません。",
        ),
        "embedding": say(
            f": not flat at zero (up to {most:.1f} standard errors from it), since the vectors that are added to query "
            "and key have a product of their own.",
            f"。ゼロのまま平らではありません（最大で標準誤差の {most:.1f} 倍）。"
            "クエリとキーに足したベクトルどうしの内積が加わるからです。",
        ),
        "other": say(
            f": up to {most:.1f} standard errors from zero, more than the {_chance(found):.1f} that chance brings.",
            f"。ゼロから標準誤差の {most:.1f} 倍まで離れ、偶然でありうる {_chance(found):.1f} 倍を超えています。",
        ),
    }
    return between + rest[kind(curve, found)]


def conclusion(found: Decay) -> str:
    """When there is decay."""
    if found.vectors == "random" and found.pairs > 1:
        return say(
            "Decay depends on q and k: for independent random vectors rotation alone favours no distance. "
            "Compare --vectors ones.",
            "減衰するかどうかは q と k によります。独立な乱数のベクトルでは、回転だけではどの距離も優遇されません。"
            "--vectors ones と比べてみてください。",
        )
    return say(
        "Decay depends on q and k: this is the curve of these vectors alone. Compare --vectors random.",
        "減衰するかどうかは q と k によります。これはこのベクトルだけの曲線です。"
        "--vectors random と比べてみてください。",
    )


def about_several(found: Decay, labels: dict[str, str]) -> list[str]:
    """What the words of the table mean, or which rebound is the largest."""
    if found.curves[0].spread:
        used = {kind(curve, found) for curve in found.curves}
        legend = {
            "flat": say(
                f"flat at 0: the mean stays within {_chance(found):.1f} standard errors of zero, which chance alone "
                "can bring, so there is no decay to be seen.",
                f"ゼロで平ら: 平均がゼロから標準誤差の {_chance(found):.1f} 倍以内（偶然でもありうる範囲）にあるので、"
                "減衰は見られません。",
            ),
            "bias": say(
                "bias alone: what moves the mean is the same whatever the vectors are.",
                "バイアスのみ: 平均を動かす項は、ベクトルが何であっても同じです。",
            ),
            "embedding": say(
                "added: the vectors that are added to query and key have a product of their own.",
                "加算: クエリとキーに足したベクトルどうしの内積が加わります。",
            ),
            "other": say(
                "not flat: the mean leaves zero by more than chance brings.",
                "平らでない: 平均が偶然の範囲を超えてゼロから離れています。",
            ),
            "few": say(
                f"too few: with fewer than {ENOUGH} pairs this does not show whether the mean is flat at zero.",
                f"組が少ない: 組が {ENOUGH} 個より少ないので、平均がゼロのまま平らかどうかは分かりません。",
            ),
        }
        return [line for word, line in legend.items() if word in used]
    rising = [curve for curve in found.curves if rises(curve)]
    largest = max(rising, key=lambda c: c.rebound.high - c.rebound.low if c.rebound else 0.0, default=found.curves[0])
    return [sentence(largest, found, labels[largest.encoding])]


def rises(curve: Curve) -> bool:
    """Whether it rises again by more than rounding."""
    rise = curve.rebound
    return rise is not None and rise.high - rise.low > 1e-5 * max(abs(rise.high), abs(rise.low))
