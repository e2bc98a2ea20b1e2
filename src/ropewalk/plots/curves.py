"""Curves of trained models: learning, test length, position. With the range over seeds around their mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from ropewalk.plots import style


@dataclass(frozen=True)
class Series:
    """One curve: what it is called, which encoding it shows, and a mean with its lowest and highest seed."""

    label: str
    encoding: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Curves that share a pair of axes."""

    title: str
    series: tuple[Series, ...]


def draw(
    panels: Sequence[Panel], *, title: str, across: str, up: str, doubling: bool = False, mark: float | None = None
) -> Figure:
    """A panel for each group of curves.

    Args:
        panels: at least one.
        title: of the figure.
        across: what the horizontal axis counts.
        up: what the vertical one measures.
        doubling: the horizontal axis doubles at even steps, and each point has a number.
        mark: where to draw a line across, the trained length say.
    """
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    with style.figure(7.2, 1.3 + 2.7 * rows) as made:
        style.title(made, title)
        axes = style.grid(made, len(panels), columns=columns)
        shown: dict[str, Artist] = {}
        for axis, panel in zip(axes, panels, strict=True):
            used: set[style.Look] = set()
            for one in panel.series:
                # several curves of one encoding need looks of their own; the first has the encoding's
                names = (one.encoding, *(f"{one.label} {n}" for n in range(30)))
                color, dash, marker = here = next(
                    (s for n in names if (s := style.look(n)) not in used), style.look("")
                )
                used.add(here)
                (line,) = axis.plot(
                    one.x,
                    one.mean,
                    color=color,
                    linestyle=dash,
                    marker=marker if len(one.x) <= 24 else None,
                    markersize=4,
                    label=style.drawable(one.label),
                )
                if one.low != one.high:
                    axis.fill_between(one.x, one.low, one.high, color=color, alpha=0.15, linewidth=0)
                shown.setdefault(style.drawable(one.label), line)
            if doubling:
                axis.set_xscale("log", base=2)
                points = sorted({x for one in panel.series for x in one.x})
                axis.set_xticks(points, [f"{x:g}" for x in points])
                axis.minorticks_off()
            if mark is not None:
                axis.axvline(mark, color=style.INK, linewidth=0.8, linestyle=(0, (3, 2)))
            axis.set(xlabel=across, ylabel=up)
            if panel.title:
                axis.set_title(style.drawable(panel.title), fontsize=9.5)
        made.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=min(len(shown), 4))
    return made
