"""RoPE: rotate query and key by an angle proportional to position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.angles import cos_sin, turn_few
from ropewalk.bands import Bands, check_axes
from ropewalk.extensions import Extension
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import Paper, PositionalEncoding, check_tokens, expect, is_int
from ropewalk.rotation import Impl, Layout, Place, rotate, rotate_pair, rotate_pair_
from ropewalk.spectra import Precision, Spectrum, geometric

if TYPE_CHECKING:
    from typing_extensions import Self


class RoPE(PositionalEncoding):
    """Turns each pair of channels of query and key by position × frequency: q·k then depends on the distance only.

    Formula: q'·k' = (R_m q)·(R_n k) = qᵀ R_(n-m) k with R_m block-diagonal, 2×2 rotations by m·base^(-2i/rotary_dim).
    Source: Su et al., RoFormer (2104.09864), equations 14-16 and 34. Values are not rotated.

    Today's default for language models. It does not by itself extrapolate beyond the trained length, and its score need
    not fall with distance: both depend on what query and key hold. Not to be confused with adding sinusoids (the same
    waves, at place 1).

    Where implementations differ: the pairing (`layout`; the paper and Meta's Llama pair neighbours, GPT-NeoX and Llama
    in transformers halves, and weights fit one only); float32 angles, which drift at long range (here exact). The
    article that this project began from pairs neighbours: for vectors of ones, d = 64, distances 1, 3 and 18 it has
    61.8337, 51.1741 and 40.5986.

    Args:
        head_dim: channels of a head.
        base: above 1; also called theta. Wavelengths run from 2π to nearly 2π·base tokens.
        layout: `"half"` or `"interleaved"`.
        rotary_dim: how many channels turn, even; all of them by default.
        place: whether those lead or trail.
        extension: a context extension such as `YaRN(factor=4, original_length=8192)`.
        at_length: for an extension that depends on the length of the text: that length, chosen beforehand, so that
            neither batch neighbours nor earlier calls change a result. `at(n)` gives the same encoding for another.
        precision: `"exact"`, or `"float32"` to agree bit for bit with the tables of transformers.
        bands: for positions with several axes, the axis that each pair follows, such as `Bands.interleaved((24, 20,
            20))`. Plain positions of text are taken too, as the same number on every axis.
        impl: which rotation: `"eager"`, `"native"` (C++, on the CPU) or `"auto"`, as in `rotate`.

    >>> rope = RoPE(head_dim=64, base=10_000, layout="interleaved")
    >>> q, k = rope.query(torch.ones(1, 64), [2]), rope.key(torch.ones(3, 64), [3, 5, 20])
    >>> (q @ k.T).round(decimals=4)
    tensor([[61.8337, 51.1741, 40.5986]])

    Raises:
        ValueError: a width that is odd, not positive or above head_dim; base not above 1; an unknown layout or place;
            an extension that depends on the length without `at_length`, or `at_length` without such an extension; bands
            of another number of pairs; in use, positions with several axes that the bands do not name.
    """

    name: ClassVar[str] = "rope"
    label: ClassVar[str] = "RoPE"
    idea: ClassVar[dict[str, str]] = {
        "en": "Rotate query and key by an angle proportional to position: their product depends on the distance only.",
        "ja": "クエリとキーを位置に比例した角度だけ回転する。すると内積は距離だけで決まる。",
    }
    formula: ClassVar[str] = "q'ₘ·k'ₙ = qᵀ R₍ₙ₋ₘ₎ k,  pair i turns by m · base^(−2i/d)"
    paper: ClassVar[Paper] = Paper(
        key="su2021roformer",
        title="RoFormer: Enhanced Transformer with Rotary Position Embedding",
        authors=("Jianlin Su", "Yu Lu", "Shengfeng Pan", "Ahmed Murtadha", "Bo Wen", "Yunfeng Liu"),
        year=2021,
        venue="arXiv preprint",
        arxiv="2104.09864",
        where="§3.2.2, equations 14-16; §3.4.2, equation 34",
    )

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        layout: Layout = "half",
        rotary_dim: int | None = None,
        place: Place = "leading",
        extension: Extension | None = None,
        at_length: int | None = None,
        precision: Precision = "exact",
        bands: Bands | None = None,
        impl: Impl = "auto",
    ) -> None:
        super().__init__()
        width = head_dim if rotary_dim is None else rotary_dim
        expect(is_int(head_dim) and head_dim > 0, f"head_dim is a positive whole number, got {head_dim!r}")
        expect(is_int(width) and width > 0, f"rotary_dim is a positive whole number, got {width!r}")
        what = "head_dim" if rotary_dim is None else "rotary_dim"
        expect(width % 2 == 0, f"channels turn in pairs, so {what} must be even, got {width}")
        expect(width <= head_dim, f"rotary_dim is at most head_dim = {head_dim}, got {width}")
        expect(layout in get_args(Layout), f"layout is 'half' or 'interleaved', got {layout!r}")
        expect(place in get_args(Place), f"place is 'leading' or 'trailing', got {place!r}")
        expect(impl in get_args(Impl), f"impl is 'auto', 'eager' or 'native', got {impl!r}")
        self.head_dim, self.base, self.layout, self.rotary_dim, self.place = head_dim, base, layout, width, place
        dynamic = extension is not None and extension.depends_on_length
        expect(
            dynamic == (at_length is not None),
            f"{type(extension).__name__} depends on the length of the text: give at_length, the length of the whole"
            if dynamic
            else f"at_length={at_length} needs an extension that depends on the length of the text",
        )
        expect(
            bands is None or 2 * len(bands.axes) == width,
            f"bands name the axis of {0 if bands is None else len(bands.axes)} pairs, "
            f"but {what}={width} has {width // 2}",
        )
        self.extension, self.at_length, self.precision, self.bands = extension, at_length, precision, bands
        self.impl = impl
        if bands is not None:
            self.spectrum: Spectrum = bands.spectrum(base, extension=extension, length=at_length, precision=precision)
        elif extension is not None:
            self.spectrum = extension.spectrum(width, base, length=at_length, precision=precision)
        else:
            self.spectrum = geometric(width, base, precision=precision)
        self.softmax_multiplier = self.spectrum.softmax_multiplier
        self.shift_invariant = not self.spectrum.start_tokens  # scores across their border know where it is

    def query(self, q: Tensor, pos: PositionsLike) -> Tensor:
        """Turn `(…, S, head_dim)` by its positions."""
        return self._turn(q, pos, "q", power=1)

    def key(self, k: Tensor, pos: PositionsLike) -> Tensor:
        """The same turn as the query's; in the product the common part cancels."""
        return self._turn(k, pos, "k", power=-1)

    def query_key(self, q: Tensor, k: Tensor, pos: PositionsLike) -> tuple[Tensor, Tensor]:
        """Both at once, in one operator where that can serve."""
        pos = Positions.of(pos)
        few = self._few(q, k, pos)
        if few is not None:
            return few  # type: ignore[no-any-return]
        if pos.axes > 1 or self._in_pieces or q.dtype != k.dtype:
            return super().query_key(q, k, pos)
        self._check(q, pos, "q")
        self._check(k, pos, "k")
        cos, sin = self._tables(q, pos, 1)
        return rotate_pair(q, k, cos, sin, layout=self.layout, place=self.place, impl=self.impl)

    def query_key_(self, q: Tensor, k: Tensor, pos: PositionsLike) -> tuple[Tensor, Tensor]:
        """`query_key` in place, as a decoding step may; returns `q` and `k`."""
        pos = Positions.of(pos)
        if self._few(q, k, pos, in_place=True) is not None:
            return q, k
        if pos.axes == 1 and not self._in_pieces and q.dtype == k.dtype and type(self).query_key is RoPE.query_key:
            self._check(q, pos, "q")
            self._check(k, pos, "k")
            rotate_pair_(q, k, *self._tables(q, pos, 1), layout=self.layout, place=self.place, impl=self.impl)
        else:
            for old, new in zip((q, k), self.query_key(q, k, pos), strict=True):
                old.copy_(new)
        return q, k

    def inverse(self, x: Tensor, pos: PositionsLike) -> Tensor:
        """Undo `query`: `inverse(query(q, pos), pos)` is `q` up to rounding."""
        return self._turn(x, pos, "x", power=-1, inverse=True)

    def inverse_key(self, k: Tensor, pos: PositionsLike) -> Tensor:
        """Undo `key`, which a cache does when its tokens move or its spectrum changes."""
        return self._turn(k, pos, "k", power=1, inverse=True)

    def at(self, length: int) -> Self:
        """The same encoding for a text of another length; itself where the extension does not depend on it.

        Keys that were encoded for one length do not fit queries encoded for another.
        """
        if self.at_length is None or self.at_length == length:
            return self
        options = {name: getattr(self, name) for name in self.parameters_of_constructor()}
        return type(self)(**{**options, "at_length": length})

    def _few(
        self, q: Tensor, k: Tensor | None, pos: Positions, *, inverse: bool = False, in_place: bool = False
    ) -> Any:
        """A few tokens in one call, for which tables are made as soon as looked up; None where that cannot serve."""
        if is_compiling() or self.bands is not None or self.precision != "exact" or self.spectrum.start_tokens:
            return None
        factor = self.spectrum.attention_factor
        factor = 1 / factor if inverse else factor
        how = (self.head_dim, self.layout, -2, self.place, inverse, self.impl)
        return turn_few(in_place, q, k, pos.ids, self.spectrum, factor, *how)

    def _turn(self, x: Tensor, pos: PositionsLike, what: str, *, power: int, inverse: bool = False) -> Tensor:
        pos = Positions.of(pos)
        few = self._few(x, None, pos, inverse=inverse)
        if few is not None:
            return few  # type: ignore[no-any-return]
        self._check(x, pos, what)
        cos, sin = self._tables(x, pos, power)
        if pos.axes > 1 and len(cos) == 1:
            cos, sin = cos[0], sin[0]  # one row for the whole batch, and for x without a batch
        if inverse and self.spectrum.attention_factor != 1:
            cos, sin = (t / self.spectrum.attention_factor**2 for t in (cos, sin))
        if self.bands is None or not self._in_pieces:
            return rotate(x, cos, sin, layout=self.layout, place=self.place, inverse=inverse, impl=self.impl)
        blocks = self.bands.blocks()
        rest = self.head_dim - self.rotary_dim
        trailing = self.place == "trailing"
        pieces = list(torch.split(x, [rest, *blocks] if trailing else [*blocks, rest], dim=-1))
        passed = pieces.pop(0 if trailing else -1)
        tables = zip(*(torch.split(t, [width // 2 for width in blocks], dim=-1) for t in (cos, sin)), strict=True)
        turned = [
            rotate(x, c, s, layout="half", inverse=inverse, impl=self.impl)
            for x, (c, s) in zip(pieces, tables, strict=True)
        ]
        return torch.cat([passed, *turned] if trailing else [*turned, passed], dim=-1)

    @property
    def _in_pieces(self) -> bool:
        """Whether each band splits into halves of its own."""
        return self.bands is not None and self.layout == "half" and self.bands.halves != "whole"

    def _check(self, x: Tensor, pos: Positions, what: str) -> None:
        check_axes(self.bands, pos.axes)
        check_tokens(x, pos.one_axis(), what)
        if x.shape[-1] != self.head_dim:
            raise ValueError(f"{what} has {x.shape[-1]} channels, this encoding was made for head_dim={self.head_dim}")

    def _tables(self, x: Tensor, pos: Positions, power: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine for the positions; `power` is the sign of a damping, which RoPE has not and xPos has."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        axes = None if self.bands is None else self.bands.axes
        return cos_sin(pos, self.spectrum, axes=axes, precision=self.precision, dtype=dtype, device=x.device)
