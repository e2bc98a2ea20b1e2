"""The rotation of a trained model with a context extension that it was not trained with."""

from __future__ import annotations

from ropewalk.encodings.rope import RoPE
from ropewalk.inspection import try_extension
from ropewalk.plans import LayerPlan, RotaryPlan


def stretched(rope: RoPE, text: str, *, trained: int, length: int) -> RoPE:
    """The same RoPE with an extension.

    Args:
        rope: as it was trained.
        text: `NAME:FACTOR` and further parameters, as `ropewalk inspect --try` takes them.
        trained: the length of training.
        length: of the text, for extensions that depend on it.

    >>> stretched(RoPE(8), "linear:4", trained=64, length=256).extension
    Linear(factor=4.0)

    Raises:
        ValueError: no such extension, or impossible parameters.
    """
    layer = LayerPlan("rope", "", rope.head_dim, rope.rotary_dim, layout=rope.layout, base=rope.base)
    extension, _ = try_extension(text, RotaryPlan("lab", (layer,), original_length=trained))
    options = {name: getattr(rope, name) for name in rope.parameters_of_constructor()}
    options |= {"extension": extension, "at_length": length if extension.depends_on_length else None}
    return RoPE(**options)
