"""xPos: RoPE whose score is also damped with distance."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.angles import angles
from ropewalk.encodings.rope import RoPE
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import Paper, expect, is_int
from ropewalk.rotation import Layout, Place


class XPos(RoPE):
    """RoPE whose product of each pair is also damped, by ζ^(distance/scale_base).

    Formula: pair i of q is turned and multiplied by ζ_i^((m - reference)/scale_base), of k by ζ_i^(-(n -
    reference)/scale_base), ζ_i = (2i/d + 0.4)/1.4.
    Source: Sun et al. (2212.10554), equations 11 and 12. The product has ζ^((m - n)/scale_base): it falls for keys
    before the query and *grows* for keys after it, so it is meant for causal attention.

    The reference is a constant here, since it cancels in the product only if query and key share it. Where
    implementations differ: torchscale and others centre on the middle of what they are given, so that a query decoded
    alone does not fit cached keys. The price of a constant: factors leave the range of the dtype some 30,000 tokens
    from the reference in float32 and bfloat16 (3,700 in float16), which is refused; move `reference` to the middle of
    your range.

    Args:
        head_dim: channels of a head.
        base: above 1.
        layout: `"half"` or `"interleaved"` (the paper's).
        rotary_dim: how many channels turn, even; all of them by default. The rest are not damped.
        place: whether those lead or trail.
        scale_base: tokens over which a pair is damped by its ζ; the paper: 512.
        reference: the position at which the factors are 1.

    >>> xpos = XPos(head_dim=64, layout="interleaved")
    >>> q, k = xpos.query(torch.ones(1, 64), [20]), xpos.key(torch.ones(3, 64), [19, 17, 2])
    >>> (q @ k.T).round(decimals=3)
    tensor([[61.7740, 51.0650, 40.1710]])

    Raises:
        ValueError: as RoPE; scale_base not above 0; in use, a position too far from the reference.
    """

    name: ClassVar[str] = "xpos"
    label: ClassVar[str] = "xPos"
    idea: ClassVar[dict[str, str]] = {
        "en": "RoPE, with each pair's product damped exponentially as the distance grows.",
        "ja": "RoPE に、距離とともに各ペアの内積を指数的に弱める係数を加える。",
    }
    formula: ClassVar[str] = "q'ₘ·k'ₙ = Σᵢ ζᵢ^((m−n)/B) · (RoPE term of pair i),  ζᵢ = (2i/d + 0.4)/1.4"
    paper: ClassVar[Paper] = Paper(
        key="sun2023xpos",
        title="A Length-Extrapolatable Transformer",
        authors=(
            "Yutao Sun",
            "Li Dong",
            "Barun Patra",
            "Shuming Ma",
            "Shaohan Huang",
            "Alon Benhaim",
            "Vishrav Chaudhary",
            "Xia Song",
            "Furu Wei",
        ),
        year=2023,
        venue="Proceedings of ACL 2023",
        arxiv="2212.10554",
        where="§2.2, equations 11 and 12",
    )

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        layout: Layout = "half",
        rotary_dim: int | None = None,
        place: Place = "leading",
        scale_base: float = 512.0,
        reference: int = 0,
    ) -> None:
        super().__init__(head_dim, base=base, layout=layout, rotary_dim=rotary_dim, place=place)
        expect(math.isfinite(scale_base) and scale_base > 0, f"scale_base is above 0, got {scale_base!r}")
        expect(is_int(reference), f"reference is a position, a whole number, got {reference!r}")
        self.scale_base, self.reference = scale_base, reference

    def reach(self, dtype: torch.dtype) -> int:
        """How far from the reference factors stay in the range of `dtype`, with 2¹⁶ to spare (float16: 2²)."""
        info = torch.finfo(dtype)
        bits = math.log2(info.max) - (2 if dtype == torch.float16 else 16)
        return math.floor(bits * self.scale_base / math.log2(1.4 / 0.4))

    def query_key(self, q: Tensor, k: Tensor, pos: PositionsLike) -> tuple[Tensor, Tensor]:
        """Each by tables of its own, since one grows where the other shrinks."""
        pos = Positions.of(pos)
        return self.query(q, pos), self.key(k, pos)

    def _few(
        self, q: Tensor, k: Tensor | None, pos: Positions, *, inverse: bool = False, in_place: bool = False
    ) -> None:
        """Damped tables are looked up."""

    def _tables(self, x: Tensor, pos: Positions, power: int) -> tuple[Tensor, Tensor]:
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        if not torch.compiler.is_compiling() and len(pos):
            far, reach = max(abs(p - self.reference) for p in pos.span()), self.reach(x.dtype)
            expect(
                far <= reach,
                f"a position {far} tokens from reference {self.reference} has a factor that {x.dtype} cannot hold "
                f"(it reaches {reach}); "
                "move reference towards the middle of your positions, or use a larger scale_base",
            )

        def make() -> tuple[Tensor, Tensor]:
            turned = angles(pos, self.spectrum, device=x.device)
            pair = torch.arange(self.rotary_dim // 2, dtype=torch.float64, device=x.device)
            zeta = (2 * pair / self.rotary_dim + 0.4) / 1.4
            exponent = (pos.ids.to(x.device) - self.reference)[..., None] * (power / self.scale_base)
            factor = zeta**exponent
            return (turned.cos() * factor).to(work), (turned.sin() * factor).to(work)

        key = ("xpos", self.spectrum, self.scale_base, self.reference, power, work, x.device)
        return pos.remember(key, make)
