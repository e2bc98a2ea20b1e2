"""What an encoding adds to the score, found through its hooks alone."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ropewalk.attention import scores
from ropewalk.language import Language, speaker
from ropewalk.plots import style
from ropewalk.positions import Positions
from ropewalk.protocol import NoPE, PositionalEncoding

HEAD_DIM = 64
"""Width of the vectors of ones that stand for a query and a key, if the encoding does not say its own."""


def draw(encoding: PositionalEncoding, language: Language, *, length: int = 64) -> Figure:
    """Two views of the term: for every query and key in the first head, and by distance in the first and the last.

    For an encoding that reads the content (Shaw, CoPE), query and keys are vectors of ones.

    Raises:
        ValueError: an encoding that does not act on the score; and what the encoding itself says of the length.
    """
    if "score" not in encoding.places():
        raise ValueError(f"{encoding.label} adds nothing to the score; it acts on: {encoding.places() or 'nothing'}")
    say = speaker(language)
    with style.figure(6.4, 3.5) as made:
        left, right = made.subplots(1, 2)
        score_map(left, encoding, language, length=length)
        by_distance(right, encoding, language, length=length)
        style.title(
            made, say(f"{encoding.label}: what it adds to the score", f"{encoding.label}：スコアに足されるもの")
        )
    return made


def term(encoding: PositionalEncoding, length: int) -> NDArray[np.float64]:
    """`(heads, queries, keys)`: scores with the encoding minus scores without; NaN where a query may not look."""
    heads = getattr(encoding, "heads", None) or 1
    width = getattr(encoding, "head_dim", HEAD_DIM)
    x, pos = torch.ones(1, heads, length, width), Positions.arange(length)
    with torch.no_grad():
        one, other = (scores(x, x, e, pos, pos, causal=encoding.causal_only) for e in (encoding, NoPE()))
    found: NDArray[np.float64] = (one - other)[0].double().numpy()
    return found


def score_map(axis: Axes, encoding: PositionalEncoding, language: Language, *, length: int) -> None:
    """The term of the first head for every query (downwards) and key (across)."""
    say = speaker(language)
    found = term(encoding, length)
    flat = np.nanmax(found[0]) == np.nanmin(found[0])
    low, high = (-1, 1) if flat else (None, None)  # a map of one value needs a scale to be read against
    image = axis.imshow(found[0], cmap=style.SEQUENTIAL, interpolation="nearest", rasterized=True, vmin=low, vmax=high)
    axis.grid(visible=False)
    heads = len(found)
    axis.set(
        xlabel=say("key position", "キーの位置"),
        ylabel=say("query position", "クエリの位置"),
        title=say(f"head 1 of {heads}", f"全 {heads} ヘッドの 1 番目")
        if heads > 1
        else say("what is added to the score", "スコアに足されるもの"),
    )
    axis.figure.colorbar(image, ax=axis, shrink=0.75, pad=0.02)


def by_distance(axis: Axes, encoding: PositionalEncoding, language: Language, *, length: int) -> None:
    """The term as a query in the middle sees it, in the first head and the last: more lines would hide one another."""
    say = speaker(language)
    found = term(encoding, length)
    middle = length - 1 if encoding.causal_only else length // 2
    for head in dict.fromkeys((0, len(found) - 1)):
        axis.plot(
            np.arange(length) - middle,
            found[head, middle],
            color=style.PALE if head else style.INK,
            linestyle=(0, (5, 2)) if head else "solid",
            linewidth=1.5,
            label=say(f"head {head + 1}", f"ヘッド {head + 1}"),
        )
    if len(found) > 1:
        axis.legend(fontsize=8.5)
    axis.set(
        xlabel=say("distance (key − query)", "距離（キー − クエリ）"),
        title=say(f"for a query at {middle}", f"位置 {middle} のクエリから見た値"),
    )
