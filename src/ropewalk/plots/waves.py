"""What an encoding adds to the embeddings: the table as a heat map, and its wavelengths or its likeness to itself."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator
from torch import Tensor

from ropewalk.encodings.sinusoidal import Sinusoidal
from ropewalk.language import Language, speaker
from ropewalk.plots import style
from ropewalk.positions import Positions
from ropewalk.protocol import PositionalEncoding
from ropewalk.spectra import Spectrum


def draw(language: Language, *, dim: int = 64, base: float = 10_000.0, length: int = 100) -> Figure:
    """The waves of Attention Is All You Need: the table for `length` positions, and the wavelength of every pair."""
    say = speaker(language)
    with style.figure(6.4, 3.6) as made:
        left, right = made.subplots(1, 2, width_ratios=(1.15, 1))
        waves = Sinusoidal(dim, base=base)
        heat_map(left, waves, dim, length, language)
        wavelengths(right, waves.spectrum, base, language)
        style.title(
            made, say(f"Sinusoidal: waves of {dim // 2} lengths", f"Sinusoidal：波長の異なる {dim // 2} 組の波")
        )
    return made


def added(encoding: PositionalEncoding, dim: int, length: int) -> Tensor:
    """The vectors that an encoding adds to embeddings at positions 0 … length - 1: what it makes of zeros."""
    with torch.no_grad():
        return encoding.embed(torch.zeros(length, dim), Positions.arange(length))


def heat_map(axis: Axes, encoding: PositionalEncoding, dim: int, length: int, language: Language) -> None:
    """Position upwards, channel across; both sine and cosine of a pair have a column."""
    say = speaker(language)
    table = added(encoding, dim, length).numpy()
    image = axis.imshow(
        table, origin="lower", aspect="auto", cmap=style.SEQUENTIAL, interpolation="nearest", rasterized=True
    )
    axis.grid(visible=False)
    axis.set(
        xlabel=say("channel", "チャネル"),
        ylabel=say("position", "位置"),
        title=say("what is added to the embedding", "埋め込みに足されるもの"),
    )
    axis.figure.colorbar(image, ax=axis, shrink=0.9, pad=0.02)


def wavelengths(axis: Axes, spectrum: Spectrum, base: float, language: Language) -> None:
    """The wavelength of every pair, between the two that the paper names; the longest is stated exactly."""
    say = speaker(language)
    found = spectrum.wavelength.tolist()
    axis.set_yscale("log")
    axis.plot(range(len(found)), found, color=style.INK, marker="o", markersize=3, linestyle="none")
    for value, words in ((2 * math.pi, "2π"), (2 * math.pi * base, f"2π·{base:,.0f}")):
        axis.axhline(value, color=style.PALE, linestyle=(0, (4, 2)), linewidth=1)
        axis.annotate(
            words, (0.2 if value < 100 else 0.02, value), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points",
            fontsize=9, color="#555555",
        )  # fmt: skip
    longest = max(found)
    width = 2 * len(found)
    ladder = math.isclose(longest, 2 * math.pi * base ** ((width - 2) / width), rel_tol=1e-9)
    exact = f"2π·{base:,.0f}^({width - 2}/{width})\n= {longest:,.0f}" if ladder else f"{longest:,.0f}"
    axis.annotate(
        say(f"longest: {exact}", f"最長：{exact}"),
        (found.index(longest), longest),
        xytext=(0.99, 0.26),
        textcoords="axes fraction",
        ha="right",
        va="top",
        fontsize=9,
        arrowprops={"arrowstyle": "->", "color": style.INK, "shrinkB": 4},
    )
    axis.set(
        xlabel=say("pair of channels", "チャネルの組"),
        title=say("wavelength, in tokens", "波長（トークン数）"),
        ylim=(2, 2 * math.pi * base * 4),
    )
    axis.yaxis.set_major_locator(LogLocator())
    axis.tick_params(axis="y", labelfontfamily=style.DIGITS)
    axis.yaxis.set_minor_locator(LogLocator(numticks=1))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: style.superscript(round(math.log10(y)))))


def likeness(axis: Axes, encoding: PositionalEncoding, dim: int, length: int, language: Language) -> None:
    """The product of every vector with every other: all that an added table brings to a score by itself."""
    say = speaker(language)
    table = added(encoding, dim, length)
    image = axis.imshow(
        (table @ table.T).numpy(), origin="lower", cmap=style.SEQUENTIAL, interpolation="nearest", rasterized=True
    )
    axis.grid(visible=False)
    axis.set(
        xlabel=say("position", "位置"),
        ylabel=say("position", "位置"),
        title=say("product of two of its vectors", "ベクトル同士の内積"),
    )
    axis.figure.colorbar(image, ax=axis, shrink=0.9, pad=0.02)
