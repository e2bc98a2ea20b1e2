"""Which axis of position each pair of channels follows: one statement for all layouts of images, videos and text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ropewalk.spectra import Precision, Spectrum, geometric

if TYPE_CHECKING:
    from ropewalk.extensions import Extension

Rungs: TypeAlias = Literal["one", "each", "dealt"]
Halves: TypeAlias = Literal["whole", "each"]


@dataclass(frozen=True, init=False, repr=False)
class Bands:
    """The axis that each pair follows, and which frequency it has: a token then turns by time, height and width.

    The product of query and key depends on the distance along each axis, as RoPE's does on the one distance.

    Args:
        axes: for each pair, in order, its axis: a string of names such as `"THWTHW"`, or indices.
        names: a letter for each axis of the positions, in their order.
        rungs: which frequencies pairs have. `"one"`: one ladder over all pairs, as without bands, so that text is
            placed as by plain RoPE, to the bit. `"each"`: a ladder for each axis, over that axis's own pairs.
            `"dealt"`: one ladder dealt out in turn, the first axis getting rungs 0, n, 2n, … (Pixtral).
        halves: what layout `"half"` halves: `"whole"`, all the channels that turn, as [H, W, H, W]; `"each"`, the
            channels of each axis by themselves, [H, H, W, W] (Gemma 4's vision). Layout `"interleaved"` is the same
            with both. For sinusoids: what an order that puts all sines together puts together.

    >>> Bands("THWTHW")
    Bands('THWTHW', names='THW', rungs='one', halves='whole')
    >>> Bands.axial((4, 4)).string()
    'HHWW'

    Raises:
        ValueError: no pairs, an axis without a name, and what `rungs` or `halves` cannot be with these axes.
    """

    axes: tuple[int, ...]
    names: str
    rungs: Rungs
    halves: Halves

    def __init__(
        self, axes: str | Sequence[int], names: str = "THW", *, rungs: Rungs = "one", halves: Halves = "whole"
    ) -> None:
        if not isinstance(names, str) or not names or len(set(names)) < len(names):
            raise ValueError(f"names has one letter for each axis, each different, got {names!r}")
        if rungs not in get_args(Rungs):
            raise ValueError(f"rungs is 'one', 'each' or 'dealt', got {rungs!r}")
        if halves not in get_args(Halves):
            raise ValueError(f"halves is 'whole' or 'each', got {halves!r}")
        if isinstance(axes, str):
            for letter in axes:
                if letter not in names:
                    raise ValueError(f"axis {letter!r} of {axes!r} is not among the names {names!r}")
            axes = [names.index(letter) for letter in axes]
        for axis in axes:
            if not isinstance(axis, int) or isinstance(axis, bool) or not 0 <= axis < len(names):
                raise ValueError(f"{names!r} names axes 0 to {len(names) - 1}, got axis {axis!r}")
        if not axes:
            raise ValueError("bands have at least one pair, got none")
        object.__setattr__(self, "axes", tuple(axes))
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "rungs", rungs)
        object.__setattr__(self, "halves", halves)
        if rungs == "dealt" and len(set(self.counts())) > 1:
            raise ValueError(f"rungs are dealt evenly, but the axes {names!r} have {self.counts()} pairs")
        if halves == "each" and len(self.blocks()) > len(set(self.axes)):
            raise ValueError(f"halves of each axis need the pairs of an axis side by side, got {self.string()!r}")

    @classmethod
    def chunked(cls, sections: Sequence[int], names: str = "THW") -> Bands:
        """All pairs of the first axis, then all of the next: Qwen2-VL, GLM-4V. One ladder, its fast end to the first.

        >>> Bands.chunked((2, 3, 3)).string()
        'TTHHHWWW'

        Raises:
            ValueError: sections that are negative or not whole, or more of them than names.
        """
        _check_sections(sections, names)
        return cls("".join(name * n for name, n in zip(names, sections, strict=False)), names)

    @classmethod
    def interleaved(cls, sections: Sequence[int], names: str = "THW") -> Bands:
        """Axes in turn, so that each has fast and slow pairs: Qwen3-VL. What is over belongs to the first axis.

        Axis a of n takes pairs a, a + n, a + 2n, … until it has its section; the first takes all the rest.

        >>> Bands.interleaved((4, 2, 2)).string()
        'THWTHWTT'

        Raises:
            ValueError: as `chunked`; also sections for which there is no room at those places.
        """
        _check_sections(sections, names)
        pairs, n = sum(sections), len(sections)
        axes = [0] * pairs
        for axis in range(1, n):
            room = len(range(axis, pairs, n))
            if sections[axis] > room:
                raise ValueError(
                    f"of {pairs} pairs only {room} are at places {axis}, {axis + n}, … where interleaving puts "
                    f"{names[axis]}, which asks for {sections[axis]}"
                )
            axes[axis : n * sections[axis] : n] = [axis] * sections[axis]
        return cls(axes, names)

    @classmethod
    def ernie(cls, sections: Sequence[int]) -> Bands:
        """Height and width in turn, time last, on the slowest pairs: ERNIE 4.5 VL, whose sections are (H, W, T).

        It goes with layout `"interleaved"`.

        >>> Bands.ernie((2, 2, 3)).string()
        'HWHWTTT'

        Raises:
            ValueError: as `chunked`; also unless there are three sections, the first two alike.
        """
        _check_sections(sections, "HWT")
        if len(sections) != 3 or sections[0] != sections[1]:
            raise ValueError(f"sections are (H, W, T) with as many pairs for H as for W, got {tuple(sections)}")
        return cls("HW" * sections[0] + "T" * sections[2])

    @classmethod
    def axial(cls, widths: Sequence[int] | int, names: str | None = None, *, halves: Halves = "whole") -> Bands:
        """Each axis has channels of its own and a ladder of its own: vision towers, FLUX, video models.

        Args:
            widths: channels for each axis, even. One number is the whole width, split as evenly as pairs allow, what is
                over to the first axis: 64 over time, height and width is 24, 20, 20.
            names: by default `"HW"` for two axes and `"THW"` for three.
            halves: see `Bands`.

        >>> Bands.axial(64, "THW").widths
        (24, 20, 20)
        >>> Bands.axial((36, 36))  # Qwen2-VL's vision tower
        Bands('HHHHHHHHHHHHHHHHHHWWWWWWWWWWWWWWWWWW', names='HW', rungs='each', halves='whole')

        Raises:
            ValueError: a width that is odd or not positive, or not one for each name.
        """
        if isinstance(widths, int):
            names = "HW" if names is None else names
            if widths % 2 or widths < 2 * len(names):
                raise ValueError(f"a width for {len(names)} axes is even and at least {2 * len(names)}, got {widths}")
            share = 2 * (widths // (2 * len(names)))
            widths = (widths - share * (len(names) - 1), *[share] * (len(names) - 1))
        if names is None:
            names = {1: "T", 2: "HW", 3: "THW"}.get(len(widths), "")
            if not names:
                raise ValueError(f"give names, a letter for each of {len(widths)} axes")
        if len(widths) != len(names):
            raise ValueError(f"widths has {len(widths)} numbers for the {len(names)} axes {names!r}")
        for name, width in zip(names, widths, strict=True):
            if not isinstance(width, int) or isinstance(width, bool) or width < 2 or width % 2:
                raise ValueError(f"the channels of an axis are even and at least 2, got {width!r} for {name}")
        axes = "".join(name * (width // 2) for name, width in zip(names, widths, strict=True))
        return cls(axes, names, rungs="each", halves=halves)

    def string(self) -> str:
        """The axis of every pair, by name."""
        return "".join(self.names[axis] for axis in self.axes)

    def counts(self) -> tuple[int, ...]:
        """How many pairs follow each axis."""
        return tuple(self.axes.count(axis) for axis in range(len(self.names)))

    @property
    def widths(self) -> tuple[int, ...] | None:
        """How many channels each axis has a ladder over; None where there is one ladder for all."""
        return tuple(2 * count for count in self.counts()) if self.rungs == "each" else None

    def blocks(self) -> tuple[int, ...]:
        """Widths of the stretches of channels that are halved by themselves."""
        if self.halves == "whole":
            return (2 * len(self.axes),)
        return tuple(2 * len(list(run)) for _, run in groupby(self.axes))

    def channels(self, layout: str) -> str:
        """The axis of every channel that turns, by name: the picture that model cards draw.

        >>> for halves in ("whole", "each"):
        ...     Bands.axial((4, 4), halves=halves).channels("half")
        'HHWWHHWW'
        'HHHHWWWW'
        """
        if layout == "half" and self.halves == "whole":
            return 2 * self.string()
        return "".join(2 * name for name in self.string())

    def spectrum(
        self,
        base: float = 10_000.0,
        *,
        extension: Extension | None = None,
        length: int | None = None,
        precision: Precision = "exact",
    ) -> Spectrum:
        """The frequency of every pair; a context extension is applied to each ladder.

        >>> Bands.axial((4, 4)).spectrum().radians
        (1.0, 0.01, 1.0, 0.01)

        Raises:
            ValueError: an impossible base, and what `pick` refuses.
        """

        def ladder(width: int) -> Spectrum:
            if extension is None:
                return geometric(width, base, precision=precision)
            return extension.spectrum(width, base, length=length, precision=precision)

        return self.pick(ladder)

    def pick(self, ladder: Callable[[int], Spectrum]) -> Spectrum:
        """The frequency of every pair, from the spectra that `ladder` gives for a width.

        Raises:
            ValueError: spectra with start tokens, or with other multipliers for one width than for another.
        """
        if self.rungs == "each":
            own = {axis: ladder(2 * count) for axis, count in enumerate(self.counts()) if count}
            picks = [(own[axis], self.axes[:at].count(axis)) for at, axis in enumerate(self.axes)]
        else:
            whole, n = ladder(2 * len(self.axes)), len(self.names) if self.rungs == "dealt" else 0
            picks = [(whole, self.axes[:at].count(axis) * n + axis if n else at) for at, axis in enumerate(self.axes)]
        first = picks[0][0]
        for spectrum, _ in picks:
            if spectrum.start_tokens and len(self.names) > 1:
                raise ValueError(
                    "start tokens are the first of one text; with several axes nothing says which those are"
                )
            for what in ("attention_factor", "softmax_multiplier"):
                if getattr(spectrum, what) != getattr(first, what):
                    raise ValueError(
                        f"this extension gives axes of different widths a different {what} "
                        f"({getattr(first, what)} and {getattr(spectrum, what)}), and attention has one"
                    )
        if self.rungs == "one":
            return first
        picked = Spectrum([s.radians[rung] for s, rung in picks], first.attention_factor, first.softmax_multiplier)
        # These were rounded once, from 50 digits; made from the radians they would be rounded twice.
        object.__setattr__(picked, "turns", tuple(s.turns[rung] for s, rung in picks))
        return picked

    def __repr__(self) -> str:
        return f"Bands({self.string()!r}, names={self.names!r}, rungs={self.rungs!r}, halves={self.halves!r})"


def _check_sections(sections: Sequence[Any], names: str) -> None:
    if len(sections) > len(names):
        raise ValueError(f"there are {len(sections)} sections for the {len(names)} axes {names!r}")
    for section in sections:
        if not isinstance(section, int) or isinstance(section, bool) or section < 0:
            raise ValueError(f"a section is a whole number of pairs, 0 or more, got {section!r} in {list(sections)}")


def check_axes(bands: Bands | None, axes: int) -> None:
    """Refuse positions with `axes` axes that these bands, or no bands, do not name.

    Raises:
        ValueError: saying how many there are of both.
    """
    if axes == 1:
        return
    if bands is None:
        raise ValueError(
            f"these positions have {axes} axes: give bands, such as Bands.chunked((16, 24, 24)), "
            "to say which axis each pair follows"
        )
    if len(bands.names) != axes:
        raise ValueError(f"bands name {len(bands.names)} axes, {bands.names!r}, but the positions have {axes}")
