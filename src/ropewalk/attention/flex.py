"""FlexAttention, lowered to from the same `bias` and the same mask."""

from __future__ import annotations

from torch import Tensor

from ropewalk.attention.call import Call


def refuses(call: Call) -> str | None:
    """Why it cannot serve this, or None."""
    return "not built yet"


def run(call: Call) -> Tensor:
    """Never reached."""
    return call.q
