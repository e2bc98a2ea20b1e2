"""A hidden pass key: what share of the probability falls on it, by depth and length, for several extensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ropewalk.language import Language, speaker
from ropewalk.plots import style

if TYPE_CHECKING:
    from ropewalk.lab.checkpoint.needle import Needles


def draw(found: Needles, language: Language) -> Figure:
    """A heat map for each extension, lengths to the right, depths downwards, the share in percent in every field."""
    say = speaker(language)
    count = len(found.found)
    rows = -(-count // 3)
    with style.figure(8.4, 1.3 + 2.5 * rows) as made:
        name = found.setting.checkpoint
        shown = style.drawable(name.path.name if name.kind == "GGUF" else name.name)
        style.title(made, say(f"{shown}: is the hidden key found?", f"{shown}：隠した合言葉は見つかるか"))
        axes = style.grid(made, count, sharex=True, sharey=True)
        image = None
        for axis, one in zip(axes, found.found, strict=True):
            shares = {(length, depth): share for length, depth, share, _ in one.cells}
            field = [[shares[length, depth] for length in found.lengths] for depth in found.depths]
            image = axis.imshow(field, vmin=0, vmax=1, cmap="viridis", aspect="auto")
            for y, line in enumerate(field):
                for x, share in enumerate(line):
                    ink = "black" if share > 0.6 else "white"
                    axis.text(x, y, f"{100 * share:.0f}", ha="center", va="center", color=ink, fontsize=9)
            axis.set_title(style.drawable(one.text), fontsize=10, parse_math=False)
            axis.set_xticks(range(len(found.lengths)), [f"{n:,}" for n in found.lengths])
            axis.set_yticks(range(len(found.depths)), [f"{100 * d:.0f} %" for d in found.depths])
            axis.tick_params(axis="x", labelrotation=30)
            axis.grid(visible=False)
            trained = found.setting.trained
            within = sum(1 for n in found.lengths if trained is None or n <= trained)
            if 0 < within < len(found.lengths):
                axis.axvline(within - 0.5, color="white", linewidth=2.2)
        made.supxlabel(
            say("tokens (right of the white line: longer than trained)", "トークン数（白線の右は学習時より長い）"),
            fontsize=10,
        )
        made.supylabel(say("depth of the key", "合言葉の深さ"), fontsize=10)
        if image is not None:
            bar = made.colorbar(image, ax=axes, format=lambda x, _: f"{100 * x:.0f}")
            bar.set_label(say("share of the right key among ten, %", "10 個の中で正しい合言葉が占める割合（%）"))
    return made
