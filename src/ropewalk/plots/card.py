"""The picture on an encoding's card. Which one it is follows from the places where the encoding acts."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ropewalk.angles import angles
from ropewalk.encodings import build, find
from ropewalk.language import Language, Say, speaker
from ropewalk.measure.decay import decay
from ropewalk.measure.panel import SETTINGS
from ropewalk.plots import bias, style, waves
from ropewalk.plots.decay import panel
from ropewalk.positions import Positions
from ropewalk.protocol import PositionalEncoding
from ropewalk.spectra import Spectrum

DIM, HEADS, LENGTH, SEED = 64, 4, 100, 42


def draw(name: str, language: Language) -> Figure:
    """Two panels for the encoding of that name.

    On the embedding: the vectors that are added, then their wavelengths or, without a spectrum, their products. On
    query and key: the score against distance, then the angle of every pair. On the score: the term for every query and
    key, then by distance. Nowhere: the flat map that says so, and the flat curve.

    Raises:
        ValueError: an unknown name.
    """
    say = speaker(language)
    cls = find(name)
    asked = cls.parameters_of_constructor()
    options = {n: v for n, v in {**SETTINGS, "length": LENGTH}.items() if n in asked}
    with torch.random.fork_rng(devices=[]):  # drawing a picture must not move the caller's random numbers
        torch.manual_seed(SEED)
        encoding = build(cls.name, dim=DIM, heads=HEADS, head_dim=DIM, **options)
    spectrum = getattr(encoding, "spectrum", None)
    with style.figure(6.4, 3.9) as made:
        left, right = made.subplots(1, 2)
        if "embedding" in encoding.places():
            waves.heat_map(left, encoding, DIM, LENGTH, language)
            if isinstance(spectrum, Spectrum):
                waves.wavelengths(right, spectrum, getattr(encoding, "base", math.nan), language)
            else:
                waves.likeness(right, encoding, DIM, LENGTH, language)
        elif "query/key" in encoding.places():
            _against_distance(left, cls.name, language)
            if isinstance(spectrum, Spectrum):
                _turns(right, spectrum, language)
            else:
                _product_map(right, encoding, language)
        elif "score" in encoding.places():
            bias.score_map(left, encoding, language, length=LENGTH)
            bias.by_distance(right, encoding, language, length=LENGTH)
        else:
            bias.score_map(left, encoding, language, length=LENGTH)
            _against_distance(right, cls.name, language)
        where = style.places_of(cls.name, language) if encoding.places() else say("acts nowhere", "どこにも作用しない")
        style.title(made, say(f"{cls.label} ({where})", f"{cls.label}（{where}）"))
        made.supxlabel(_note(encoding, say), fontsize=9, color="#555555")
    return made


def _note(encoding: PositionalEncoding, say: Say) -> str:
    drawn = any(True for _ in encoding.parameters())
    return say(
        f"d = {DIM}" + (f"; learned numbers are drawn at random here (seed {SEED})" if drawn else ""),
        f"d = {DIM}" + (f"（学習する値は乱数で初期化したもの。シード {SEED}）" if drawn else ""),
    )


def _against_distance(axis: Axes, name: str, language: Language) -> None:
    say = speaker(language)
    panel(axis, decay(dim=DIM, length=LENGTH, encodings=[name], seed=SEED), language)
    axis.set_title(say("score, for vectors of ones", "要素がすべて 1 のベクトルのスコア"))


def _turns(axis: Axes, spectrum: Spectrum, language: Language) -> None:
    """The angle of every pair at every position, from -π to π: a colour that returns, as the angle does."""
    say = speaker(language)
    found = angles(Positions.arange(LENGTH), spectrum).numpy()
    image = axis.imshow(
        found, origin="lower", aspect="auto", cmap=style.CYCLIC, vmin=-math.pi, vmax=math.pi,
        interpolation="nearest", rasterized=True,
    )  # fmt: skip
    axis.grid(visible=False)
    axis.set(
        xlabel=say("pair of channels", "チャネルの組"),
        ylabel=say("position", "位置"),
        title=say("angle of every pair", "各組の回転角"),
    )
    bar = axis.figure.colorbar(image, ax=axis, shrink=0.9, pad=0.02, ticks=[-math.pi, 0, math.pi])
    bar.ax.set_yticklabels(["−π", "0", "π"])


def _product_map(axis: Axes, encoding: PositionalEncoding, language: Language) -> None:
    """The product of query and key of ones at every two positions."""
    say = speaker(language)
    q, k = encoding.query_key(torch.ones(LENGTH, DIM), torch.ones(LENGTH, DIM), Positions.arange(LENGTH))
    image = axis.imshow((q @ k.T).detach().numpy(), cmap=style.SEQUENTIAL, interpolation="nearest", rasterized=True)
    axis.grid(visible=False)
    axis.set(xlabel=say("key position", "キーの位置"), ylabel=say("query position", "クエリの位置"))
    axis.figure.colorbar(image, ax=axis, shrink=0.75, pad=0.02)
