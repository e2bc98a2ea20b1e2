"""Sinusoidal: add waves of different lengths to the embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from ropewalk.angles import cos_sin
from ropewalk.bands import Bands, check_axes
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import Paper, PositionalEncoding, check_tokens, expect, is_int
from ropewalk.spectra import Ladder, Spectrum, geometric

Order = Literal["interleaved", "concatenated", "cosine_first"]


class Sinusoidal(PositionalEncoding):
    """Adds a vector of sines and cosines to each embedding; a shift of position is one fixed linear map.

    Formula: PE(pos, 2i) = sin(pos · base^(-2i/dim)), PE(pos, 2i+1) = cos(the same). Source: Vaswani et al., Attention
    Is All You Need (1706.03762), §3.5; the multiplication of the embeddings by √dim is §3.4, and is done here, in
    `embed`, by default.

    No parameters, no limit of length (which is not to say that a model trained with it extrapolates). "Even" and "odd"
    count channels, not tokens. Its largest wavelength is 2π·base^((dim-2)/dim), a little short of the 2π·base that the
    paper names: the limit for wide embeddings.

    Where implementations differ: the paper interleaves sine and cosine; its own code, tensor2tensor, concatenates them
    and lets the frequencies end at 1/base exactly, as fairseq does; DiT and others put cosines first. Same channels,
    permuted: it matters when weights are loaded. For an odd dim the last cosine is left out (tensor2tensor: a channel
    of zeros).

    Args:
        dim: width of the embeddings, any.
        base: above 1.
        order: of the channels: `"interleaved"` (paper), `"concatenated"` (tensor2tensor), `"cosine_first"`.
        ladder: of the frequencies: `"paper"`, or `"half-1"`, ending at 1/base exactly.
        embedding_scale: what `embed` multiplies the embeddings by; None is √dim, as in the paper. Give 1 if your
            embedding layer has done it, or does not.
        bands: for positions with several axes, the axis that each pair follows. `Bands.axial(dim, halves="each")` with
            `order="concatenated"` is the usual table of vision Transformers, a half for rows and a half for columns
            (MAE and DiT give columns the first half: `Bands("W" * n + "H" * n, "HW", rungs="each", halves="each")`).

    >>> pe = Sinusoidal(dim=8)
    >>> pe.table(torch.tensor([10]))[0]
    tensor([-0.5440, -0.8391,  0.8415,  0.5403,  0.0998,  0.9950,  0.0100,  0.9999])
    >>> pe.embed(torch.ones(1, 8), [0])  # √8 and PE(0)
    tensor([[2.8284, 3.8284, 2.8284, 3.8284, 2.8284, 3.8284, 2.8284, 3.8284]])

    Raises:
        ValueError: dim below 1, base not above 1, an unknown order or ladder, a scale that is not finite; bands of
            another number of pairs; in use, positions with several axes that the bands do not name.
    """

    name: ClassVar[str] = "sinusoidal"
    label: ClassVar[str] = "Sinusoidal"
    idea: ClassVar[dict[str, str]] = {
        "en": "Add waves of different lengths to the embeddings, fast in the first channels, slow in the last.",
        "ja": "波長の異なる正弦波を埋め込みに足す。前のチャネルほど速く、後ろのチャネルほど遅い波になる。",
    }
    formula: ClassVar[str] = "PE(pos, 2i) = sin(pos · base^(−2i/d)),  PE(pos, 2i+1) = cos(pos · base^(−2i/d))"
    paper: ClassVar[Paper] = Paper(
        key="vaswani2017attention",
        title="Attention Is All You Need",
        authors=(
            "Ashish Vaswani",
            "Noam Shazeer",
            "Niki Parmar",
            "Jakob Uszkoreit",
            "Llion Jones",
            "Aidan N. Gomez",
            "Łukasz Kaiser",
            "Illia Polosukhin",
        ),
        year=2017,
        venue="Advances in Neural Information Processing Systems",
        arxiv="1706.03762",
        where="§3.5; scale of the embeddings §3.4; learned instead: Table 3, row E",
    )

    shift_invariant = False

    def __init__(
        self,
        dim: int,
        *,
        base: float = 10_000.0,
        order: Order = "interleaved",
        ladder: Ladder = "paper",
        embedding_scale: float | None = None,
        bands: Bands | None = None,
    ) -> None:
        super().__init__()
        expect(is_int(dim) and dim > 0, f"dim is a positive whole number, got {dim!r}")
        expect(order in get_args(Order), f"order is one of {', '.join(get_args(Order))}; got {order!r}")
        scale = math.sqrt(dim) if embedding_scale is None else embedding_scale
        expect(math.isfinite(scale), f"embedding_scale is a finite number, got {embedding_scale!r}")
        self.dim, self.base, self.order, self.ladder, self.embedding_scale = dim, base, order, ladder, scale
        expect(
            bands is None or 2 * len(bands.axes) == dim,
            f"bands name the axis of {0 if bands is None else len(bands.axes)} pairs, but dim={dim} has {dim / 2:g}",
        )
        self.bands = bands

        def rungs(width: int) -> Spectrum:
            return geometric(width, base, ladder=ladder)

        self.spectrum: Spectrum = rungs(dim) if bands is None else bands.pick(rungs)

    def table(self, pos: PositionsLike, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The vectors that are added, `(S, dim)` or `(B, S, dim)`."""
        return self._table(Positions.of(pos), dtype)

    def embed(self, x: Tensor, pos: PositionsLike) -> Tensor:
        """`embedding_scale`·x + PE(pos), computed in float32 and rounded once to the dtype of x."""
        pos = Positions.of(pos)
        check_tokens(x, pos.one_axis(), "x")
        expect(x.shape[-1] == self.dim, f"x has {x.shape[-1]} channels, this encoding was made for dim={self.dim}")
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        return (x.to(work) * self.embedding_scale + self._table(pos, work, x.device)).to(x.dtype)

    def shift_matrix(self, k: int | Sequence[int]) -> Tensor:
        """The matrix M with PE(pos + k) = M · PE(pos) for every pos: float64, `(dim, dim)`; §3.5's claim.

        With bands, `k` may have a number for each axis.

        >>> pe = Sinusoidal(dim=4)
        >>> torch.allclose(pe.shift_matrix(7) @ pe.table([3])[0].double(), pe.table([10])[0].double(), atol=1e-6)
        True

        Raises:
            ValueError: for an odd dim, whose last sine has no cosine to turn with.
        """
        expect(
            self.dim % 2 == 0, f"with dim={self.dim} the last sine has no cosine beside it, so no linear map shifts it"
        )
        shift = torch.tensor(k)
        cos, sin = self._waves(Positions(shift.reshape(-1, 1, 1) if shift.dim() else shift[None]), torch.float64)
        at = self._arrange(torch.arange(0, self.dim, 2), torch.arange(1, self.dim, 2))  # where channel c of a pair lies
        place = torch.empty_like(at).scatter_(0, at, torch.arange(self.dim))
        c, s = place[0::2], place[1::2]  # the cosine's and the sine's channel of each pair
        matrix = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        matrix[s, s], matrix[s, c] = cos[0], sin[0]  # sin(a + b) = sin a cos b + cos a sin b
        matrix[c, c], matrix[c, s] = cos[0], -sin[0]
        return matrix

    def _waves(self, pos: Positions, dtype: torch.dtype, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        check_axes(self.bands, pos.axes)
        axes = None if self.bands is None else self.bands.axes
        cos, sin = cos_sin(pos, self.spectrum, axes=axes, dtype=dtype, device=device)
        if pos.axes > 1 and len(cos) == 1:
            return cos[0], sin[0]  # one row for the whole batch, and for x without a batch
        return cos, sin

    def _table(self, pos: Positions, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        return self._arrange(*self._waves(pos, dtype, device))

    def _arrange(self, cos: Tensor, sin: Tensor) -> Tensor:
        if self.bands is not None and len(blocks := self.bands.blocks()) > 1:
            pairs = [width // 2 for width in blocks]
            each = zip(torch.split(cos, pairs, dim=-1), torch.split(sin, pairs, dim=-1), strict=True)
            return torch.cat([self._ordered(c, s) for c, s in each], dim=-1)
        return self._ordered(cos, sin)

    def _ordered(self, cos: Tensor, sin: Tensor) -> Tensor:
        if self.order == "interleaved":
            return torch.stack((sin, cos), dim=-1).flatten(-2)[..., : self.dim]
        cos = cos[..., : self.dim // 2]
        return torch.cat((sin, cos) if self.order == "concatenated" else (cos, sin), dim=-1)
