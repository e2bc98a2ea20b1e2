"""One list of all encodings, a small model to run any of them, and the golden files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk import (
    ENCODINGS,
    FIRE,
    KERPLE,
    T5,
    ALiBi,
    Bands,
    Compose,
    CoPE,
    DynamicNTK,
    Learned,
    LongRoPE,
    NoPE,
    PositionalEncoding,
    Positions,
    RelativeBias,
    RoPE,
    Shaw,
    Sinusoidal,
    XPos,
    YaRN,
    attend,
    build,
)

DIM, HEADS, KV_HEADS, HEAD_DIM = 20, 6, 2, 8  # heads: not a power of two; kv heads: neither 1 nor all; all different
LENGTH = 48  # of encodings with a limit
FAR = 1_000_003  # odd, and beyond what float32 angles or half-precision positions can tell apart


@dataclass(frozen=True)
class Case:
    """One way to build one encoding."""

    id: str
    make: Callable[[], PositionalEncoding]
    far: int = FAR
    """An odd, far shift of positions that this one takes."""
    exact: bool = True
    """False where angles are float32 on purpose, so that far positions differ from near ones."""
    start: int = 0
    """The first position at which this one is used."""

    def built(self, dtype: torch.dtype = torch.float64) -> PositionalEncoding:
        """Built, every parameter drawn so that it matters (some start at zero), in `dtype`."""
        torch.manual_seed(1)
        return randomised(self.make()).to(dtype)


def randomised(encoding: PositionalEncoding) -> PositionalEncoding:
    """Give every parameter a value at which it makes a difference; returns the encoding."""
    with torch.no_grad():
        for name, p in encoding.named_parameters():
            if name.endswith(("stretch", ".c")) or name == "c":  # FIRE's scalars: near where they start
                p.mul_(1.25)
            else:
                p.normal_(std=0.7)
    return encoding


def _case(name: str, make: Callable[[], PositionalEncoding], **more: Any) -> Case:
    return Case(name, make, **more)


def start_tokens() -> LongRoPE:
    """An extension whose first three positions turn faster than the rest."""
    return LongRoPE([1.0] * 4, [2.0, 4.0, 8.0, 8.0], original_length=4096, factor=8, start_tokens=3)


CASES = [
    _case("nope", NoPE),
    _case("sinusoidal", lambda: Sinusoidal(DIM)),
    _case("sinusoidal-odd", lambda: Sinusoidal(21, order="concatenated")),
    _case("sinusoidal-cosine-first", lambda: Sinusoidal(DIM, order="cosine_first", ladder="half-1", base=100.0)),
    _case("sinusoidal-scale-1", lambda: Sinusoidal(DIM, embedding_scale=1.0)),
    _case("sinusoidal-bands", lambda: Sinusoidal(DIM, order="concatenated", bands=Bands.axial(DIM, halves="each"))),
    _case("learned", lambda: Learned(DIM, length=LENGTH)),
    _case("learned-offset", lambda: Learned(DIM, length=40, offset=2, std=1.0)),
    _case("relative-bias", lambda: RelativeBias()),
    _case("relative-bias-length", lambda: RelativeBias(length=LENGTH, std=1.0)),
    _case("relative-bias-length-heads", lambda: RelativeBias(length=LENGTH, heads=HEADS)),
    _case("relative-bias-clip", lambda: RelativeBias(clip=3)),
    _case("relative-bias-clip-heads", lambda: RelativeBias(clip=1, heads=HEADS)),
    _case("shaw", lambda: Shaw(HEAD_DIM)),
    _case("shaw-heads", lambda: Shaw(HEAD_DIM, clip=3, heads=HEADS, std=1.0)),
    _case("shaw-clip-1", lambda: Shaw(HEAD_DIM, clip=1)),
    _case("t5", lambda: T5(HEADS)),
    _case("t5-causal", lambda: T5(HEADS, bidirectional=False)),
    _case("t5-few", lambda: T5(HEADS, buckets=7, max_distance=9, std=1.0)),
    _case("alibi", lambda: ALiBi(HEADS)),
    _case("alibi-causal", lambda: ALiBi(HEADS, bidirectional=False)),
    _case("kerple", lambda: KERPLE(HEADS)),
    _case("kerple-power", lambda: KERPLE(HEADS, kernel="power")),
    _case("fire", lambda: FIRE(HEADS)),
    _case("fire-near", lambda: FIRE(HEADS, threshold=4.0, width=5)),
    _case("fire-bidirectional", lambda: FIRE(HEADS, threshold=2.0, bidirectional=True)),
    _case("cope", lambda: CoPE(HEAD_DIM)),
    _case("cope-short", lambda: CoPE(HEAD_DIM, length=3, std=1.0)),
    _case("cope-bidirectional", lambda: CoPE(HEAD_DIM, length=5, bidirectional=True)),
    _case("rope", lambda: RoPE(HEAD_DIM)),
    _case("rope-interleaved", lambda: RoPE(HEAD_DIM, layout="interleaved", base=500)),
    _case("rope-eager", lambda: RoPE(HEAD_DIM, impl="eager")),
    _case("rope-partial", lambda: RoPE(HEAD_DIM, rotary_dim=4)),
    _case("rope-partial-interleaved", lambda: RoPE(HEAD_DIM, rotary_dim=6, layout="interleaved")),
    _case("rope-trailing", lambda: RoPE(HEAD_DIM, rotary_dim=4, place="trailing")),
    _case("rope-trailing-interleaved", lambda: RoPE(HEAD_DIM, rotary_dim=2, place="trailing", layout="interleaved")),
    _case("rope-float32", lambda: RoPE(HEAD_DIM, precision="float32"), far=901, exact=False),
    _case(
        "rope-yarn", lambda: RoPE(HEAD_DIM, extension=YaRN(factor=4, original_length=64, mscale=1, mscale_all_dim=2))
    ),
    _case("rope-dynamic", lambda: RoPE(HEAD_DIM, extension=DynamicNTK(factor=2, original_length=16), at_length=64)),
    _case("rope-start-tokens", lambda: RoPE(HEAD_DIM, extension=start_tokens(), at_length=9000)),
    _case("rope-bands", lambda: RoPE(HEAD_DIM, bands=Bands("THWT"))),
    _case("rope-bands-each", lambda: RoPE(HEAD_DIM, rotary_dim=6, bands=Bands.axial((2, 4), halves="each"))),
    _case("xpos", lambda: XPos(HEAD_DIM), far=20_001),
    _case("xpos-interleaved", lambda: XPos(HEAD_DIM, layout="interleaved", scale_base=64.0), far=2_001),
    _case("xpos-partial", lambda: XPos(HEAD_DIM, rotary_dim=6, place="trailing", base=50), far=20_001),
    _case("xpos-reference", lambda: XPos(HEAD_DIM, scale_base=32.0, reference=FAR - 3), far=901, start=FAR),
    _case("compose-learned-alibi", lambda: Compose(Learned(DIM, length=LENGTH), ALiBi(HEADS))),
    _case("compose-rope-shaw", lambda: Compose(RoPE(HEAD_DIM), Shaw(HEAD_DIM, clip=2))),
    _case("compose-rope-cope", lambda: Compose(RoPE(HEAD_DIM, layout="interleaved"), CoPE(HEAD_DIM, length=4))),
    _case("compose-biases", lambda: Compose(T5(HEADS), Shaw(HEAD_DIM, clip=2), KERPLE(HEADS), Shaw(HEAD_DIM, clip=4))),
    _case(
        "compose-nested",
        lambda: Compose(Sinusoidal(DIM), Compose(XPos(HEAD_DIM, rotary_dim=2), FIRE(HEADS, threshold=3.0))),
        far=20_001,
    ),
]
"""Every encoding in every manner in which it can be built: all options, and several at once."""

_listed = {type(e) for case in CASES for e in case.make().modules()}
CASES += [
    _case(cls.name, partial(build, cls.name, dim=DIM, heads=HEADS, head_dim=HEAD_DIM))
    for cls in ENCODINGS
    if cls not in _listed
]  # so that the laws hold a new encoding from the moment it is registered


def by_id(cases: list[Case]) -> dict[str, Any]:
    """Arguments for `pytest.mark.parametrize`."""
    return {"argnames": "case", "argvalues": cases, "ids": [c.id for c in cases]}


class Model:
    """Embeddings to attention output: x → embed → fixed random projections → what `attend` takes."""

    def __init__(self, case: Case, dtype: torch.dtype = torch.float64) -> None:
        self.encoding = case.built(dtype)
        self.start = case.start
        self.dtype = dtype
        self.dim = next((e.dim for e in self.encoding.modules() if isinstance(e, (Sinusoidal, Learned))), DIM)
        random = torch.Generator().manual_seed(2)

        def draw(*shape: int) -> Tensor:
            return (torch.randn(*shape, generator=random, dtype=torch.float64) * shape[0] ** -0.5).to(dtype)

        self.wq = draw(self.dim, HEADS * HEAD_DIM) * 3  # sharp enough that the weights are far from uniform
        self.wk, self.wv = draw(self.dim, KV_HEADS * HEAD_DIM), draw(self.dim, KV_HEADS * HEAD_DIM)

    def tokens(self, batch: int, length: int) -> Tensor:
        """Random embeddings, the same for the same shape."""
        random = torch.Generator().manual_seed(3)
        return torch.randn(batch, length, self.dim, generator=random, dtype=torch.float64).to(self.dtype)

    def arange(self, n: int, offset: int = 0) -> Positions:
        return Positions.arange(n, offset=self.start + offset)

    def project(self, x: Tensor, pos: Positions) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of embeddings at their positions; q and k not yet through `query` and `key`."""
        x = self.encoding.embed(x, pos)
        return tuple((x @ w).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))

    def __call__(self, x: Tensor, pos: Positions, **options: Any) -> Tensor:
        """All tokens at once."""
        return attend(*self.project(x, pos), self.encoding, pos, **options)

    def cached(self, x: Tensor, pos: Positions, cuts: list[int], **options: Any) -> Tensor:
        """The same in pieces, with a cache of encoded keys: a prefill in chunks, then decoding."""
        out, keys, values = [], [], []
        for begin, end in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
            here = pos[begin:end]
            q, k, v = self.project(x[:, begin:end], here)
            keys.append(self.encoding.key(k, here))
            values.append(v)
            so_far = {"key_positions": pos[:end], "keys_encoded": True}
            out.append(attend(q, torch.cat(keys, 2), torch.cat(values, 2), self.encoding, here, **so_far, **options))
        return torch.cat(out, 2)


def close(one: Tensor, other: Tensor, dtype: torch.dtype = torch.float64) -> None:
    """Assert that both agree to some roundings of `dtype`, in which both were computed."""
    assert one.dtype == other.dtype == dtype
    one, other = one.detach(), other.detach()
    assert bool(other.isfinite().all())
    slack = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(one, other, rtol=0, atol=slack * float(other.abs().max()))


def golden(name: str) -> dict[str, Any]:
    """A file of `tests/golden`."""
    return json.loads((Path(__file__).parent / "golden" / name).read_text(encoding="utf-8"))
