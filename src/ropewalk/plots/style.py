"""What all pictures share: one look for each encoding, the Japanese font, and how a figure becomes a file.

Nothing here changes matplotlib's global settings for longer than a picture takes, and pyplot is never imported.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from ropewalk.encodings import ENCODINGS
from ropewalk.language import Language, speaker


class Look(NamedTuple):
    """How one encoding is drawn, everywhere."""

    color: str
    dash: str | tuple[int, tuple[float, ...]]
    marker: str


_DASHED, _DOTTED, _DASHDOT = (0, (5.0, 2.0)), (0, (1.2, 1.4)), (0, (6.0, 1.8, 1.2, 1.8))

PALETTE: dict[str, Look] = {
    "nope": Look("#757575", _DOTTED, "X"),
    "sinusoidal": Look("#e69f00", "solid", "o"),
    "learned": Look("#8c510a", _DASHED, "s"),
    "relative_bias": Look("#c65fae", _DASHED, "D"),
    "shaw": Look("#7b1e4d", _DASHDOT, "v"),
    "t5": Look("#df8fa0", _DOTTED, "^"),
    "alibi": Look("#1b9573", "solid", "P"),
    "kerple": Look("#2c7a3d", _DASHDOT, "<"),
    "fire": Look("#aab535", _DASHED, ">"),
    "cope": Look("#4b2e91", _DOTTED, "*"),
    "rope": Look("#0b4fa0", "solid", "h"),
    "xpos": Look("#56b4e9", _DASHDOT, "d"),
}
"""The same hue may mean two encodings to a colour-blind eye, the same dash to any: lightness and dash together, and the
marker alone, tell all apart, on a grey print too."""

_SPARE = (
    Look("#333333", _DASHED, "p"),
    Look("#9b9b9b", "solid", "H"),
    Look("#b03a2e", _DASHDOT, "8"),
    Look("#5f6b7a", _DASHED, "4"),
)

INK, PALE = "#222222", "#8a8a8a"
SEQUENTIAL, CYCLIC = "cividis", "twilight"
"""Colour maps: the first rises in lightness from end to end, the second returns, as an angle does."""

FONT = Path(__file__).resolve().parents[1] / "fonts" / "NotoSansCJKjp-subset-Regular.ttf"
FAMILIES = ["Noto Sans CJK JP Subset", "DejaVu Sans"]
"""Japanese and Latin from the font that ropewalk ships; the few signs it lacks (⁻ ₀ ᵢ ⌊) from matplotlib's own."""

GETA = "〓"
"""What Japanese typesetters put where a character is missing."""

DIGITS = "DejaVu Sans"
"""For powers of ten: here all superscripts come from one font, elsewhere ¹²³ and the others differ in size."""

SUFFIXES = (".png", ".svg", ".pdf")

_SETTINGS: dict[str, Any] = {
    "font.family": FAMILIES,
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.labelsize": 10.0,
    "axes.edgecolor": PALE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "savefig.dpi": 150,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # letters as outlines, so that the picture looks the same where the font is missing
    "svg.hashsalt": "ropewalk",  # else ids, and so the file, differ from run to run
    "pdf.fonttype": 42,
}


def look(name: str) -> Look:
    """The look of an encoding; one that has no line in `PALETTE` gets a spare look, the same at every call."""
    return PALETTE.get(name) or _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]


def label(name: str) -> str:
    """How an encoding is printed: the class's own label, or the name itself if it is not registered."""
    return next((cls.label for cls in ENCODINGS if cls.name == name), name)


def place_name(place: str, language: Language) -> str:
    """One of the four places, in words."""
    say = speaker(language)
    return {
        "embedding": say("embedding", "埋め込み"),
        "query/key": say("query and key", "クエリとキー"),
        "score": say("score", "スコア"),
        "value": say("value", "バリュー"),
    }[place]


def places_of(name: str, language: Language) -> str:
    """Where an encoding acts, in words: "score, value"; for none a dash."""
    cls = next((cls for cls in ENCODINGS if cls.name == name), None)
    return speaker(language)(", ", "・").join(place_name(p, language) for p in (cls.places() if cls else ())) or "—"


@contextmanager
def context() -> Iterator[None]:
    """Matplotlib's defaults plus ours, for as long as a picture is made or written; then the user's own again."""
    _register()
    with matplotlib.style.context(["default", _SETTINGS]):
        yield


@contextmanager
def figure(width: float = 6.4, height: float = 4.0) -> Iterator[Figure]:
    """An empty figure in inches, and the context to fill it in."""
    with context():
        made = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(made)
        yield made


def grid(made: Figure, panels: int, columns: int = 3, **shared: Any) -> list[Axes]:
    """Axes for so many small panels, in reading order; none is left empty."""
    columns = 2 if panels == 4 else min(columns, panels)
    rows = -(-panels // columns)
    axes = made.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
    for unused in axes[panels:]:
        unused.remove()
    for above in axes[max(panels - columns, 0) : panels]:  # the last of each column carries the labels
        above.xaxis.set_tick_params(labelbottom=True)
    return list(axes[:panels])


def title(made: Figure, text: str) -> None:
    """The heading of a figure, and what a screen reader says of it."""
    width = sum(2 if ord(c) >= 0x2E80 else 1 for c in text)  # Chinese characters and kana are twice as wide as letters
    fits = 11.5 * made.get_figwidth()  # so many half-width characters of 12 points stand side by side
    made.suptitle(text, fontsize=max(7.0, min(12.0, 12 * fits / max(width, 1))), parse_math=False)
    made.set_label(text)


def drawable(text: str) -> str:
    """`text` with 〓 for each character that no font here has: other people's words may hold anything."""
    known = _characters()
    return "".join(c if ord(c) in known else GETA for c in text)


def superscript(exponent: int) -> str:
    """A power of ten as text.

    >>> superscript(-12)
    '10⁻¹²'
    """
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def number(size: float) -> str:
    """Two digits of a size that may be very small.

    >>> number(0.0841), number(2.41e-16), number(0)
    ('0.084', '2.4·10⁻¹⁶', '0')
    """
    if size == 0:
        return "0"
    if abs(size) >= 1e-3:
        return minus(f"{size:#.2g}")
    digits, exponent = f"{size:.1e}".split("e")
    return f"{minus(digits)}·{superscript(int(exponent))}"


def minus(text: str) -> str:
    """The sign of a number as it is typeset: − in place of the hyphen."""
    return text.replace("-", "−")


def save(made: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, as the suffix says: the whole file, or none.

    Raises:
        ValueError: another suffix, or a folder that does not exist.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(f"a picture is a .png, .svg or .pdf file, got {path.name!r}")
    check_place(path)
    write(path, _render(made, kind[1:]))


def svg(made: Figure) -> str:
    """A figure as an `<svg>` element to stand in a page: letters are outlines, ids begin with a hash of the picture.

    So several different pictures can share a page. It has no size of its own, only proportions.
    """
    text = _render(made, "svg").decode()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    mark = "p" + hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'\bid="', f'id="{mark}-', text)
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{mark}-", text)
    name = escape(str(made.get_label()), quote=True)
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(width|height|version)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{name}">{rest}'


def write(path: Path, data: bytes) -> None:
    """Write a file whole: beside its place first, then moved there, so that no half of it is ever seen.

    Raises:
        ValueError: the folder does not exist, or the path is a folder.
    """
    path = Path(path)
    check_place(path)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(beside, 0o666 & ~_umask())  # mkstemp makes files that only their owner may read
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def check_place(path: Path) -> None:
    """Refuse a path where no file can be written, before any work is done.

    Raises:
        ValueError: the folder does not exist, or the path is a folder.
    """
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")


def _render(made: Figure, kind: str) -> bytes:
    out = io.BytesIO()
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with context():
        made.savefig(out, format=kind, metadata=undated.get(kind))
    return out.getvalue()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@lru_cache(maxsize=1)
def _register() -> None:
    font_manager.fontManager.addfont(str(FONT))


@lru_cache(maxsize=1)
def _characters() -> frozenset[int]:
    _register()
    files = [font_manager.findfont(family, fallback_to_default=False) for family in FAMILIES]
    return frozenset(code for file in files for code in FT2Font(file).get_charmap())
