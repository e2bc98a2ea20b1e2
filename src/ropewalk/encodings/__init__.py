"""All encodings, one file each, in teaching order. Adding one: a file here and a line in the tuple."""

from __future__ import annotations

import difflib
from typing import Any

from ropewalk.encodings.alibi import ALiBi
from ropewalk.encodings.cope import CoPE
from ropewalk.encodings.fire import FIRE
from ropewalk.encodings.kerple import KERPLE
from ropewalk.encodings.learned import Learned
from ropewalk.encodings.relative_bias import RelativeBias
from ropewalk.encodings.rope import RoPE
from ropewalk.encodings.shaw import Shaw
from ropewalk.encodings.sinusoidal import Sinusoidal
from ropewalk.encodings.t5 import T5
from ropewalk.encodings.xpos import XPos
from ropewalk.protocol import PositionalEncoding

ENCODINGS: tuple[type[PositionalEncoding], ...] = (
    PositionalEncoding,  # NoPE
    Sinusoidal,
    Learned,
    RelativeBias,
    Shaw,
    T5,
    ALiBi,
    KERPLE,
    FIRE,
    CoPE,
    RoPE,
    XPos,
)
"""The registry."""


def find(name: str) -> type[PositionalEncoding]:
    """The class registered under `name`, in any case, with hyphens or underscores.

    >>> find("relative-bias").__name__
    'RelativeBias'

    Raises:
        ValueError: naming the nearest name, and all of them.
    """
    names = {cls.name: cls for cls in ENCODINGS}
    wanted = name.lower().replace("-", "_")
    if wanted not in names:
        raise ValueError(f"no encoding is called {name!r}{_nearest(wanted, names)}; there are {', '.join(names)}")
    return names[wanted]


def build(
    name: str, *, dim: int | None = None, heads: int | None = None, head_dim: int | None = None, **options: Any
) -> PositionalEncoding:
    """Make an encoding by name from what a model knows, passing each class what it asks for.

    Args:
        name: as in `ropewalk list`.
        dim: width of the embeddings.
        heads: number of query heads.
        head_dim: channels of a head.
        **options: passed on; one that the class does not have is refused.

    >>> build("alibi", dim=512, heads=8, head_dim=64)
    ALiBi(heads=8, bidirectional=True)
    >>> build("rope", dim=512, heads=8, head_dim=64, base=500_000).base
    500000

    Raises:
        ValueError: an unknown name or option, or one of the three sizes missing where it is needed.
    """
    cls = find(name)
    asked = cls.parameters_of_constructor()
    for option in options:
        if option not in asked:
            offered = [n for n in asked if n not in ("dim", "heads", "head_dim")]
            raise ValueError(
                f"{cls.label} has no option {option!r}{_nearest(option, offered)}; "
                f"it has {', '.join(offered) or 'none'}"
            )
    sizes = {n: v for n, v in (("dim", dim), ("heads", heads), ("head_dim", head_dim)) if n in asked and v is not None}
    missing = [n for n, p in asked.items() if p.default is p.empty and n not in sizes and n not in options]
    if missing:
        raise ValueError(f"{cls.label} needs {', '.join(missing)}")
    return cls(**{**sizes, **options})


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""
