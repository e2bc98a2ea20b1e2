"""How surprised a model is by each token of a text, in bounded memory: in chunks through the KV cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ropewalk.lab.checkpoint.llama import Llama

CHUNK = 1024
"""Tokens that go through the layers at once."""
SLICE = 256
"""Tokens whose logits exist at once: each has a number for every entry of the vocabulary."""


def losses(model: Llama, ids: Tensor, *, chunk: int = CHUNK, step: Callable[[float], None] | None = None) -> Tensor:
    """The loss of every token but the first: -ln p(token | all before it), in float32, `(n - 1,)`.

    Perplexity is exp of a mean of these. Number i was predicted at position i, from tokens 0 to i. However long the
    text, memory grows by the keys and values alone.

    Args:
        model: as it turns now; an extension that depends on the length must know this one.
        ids: `(n,)`.
        chunk: how many tokens at once; changes the memory and rounding, not the result.
        step: told after each chunk how much of the work it was; all chunks together are 1.

    Raises:
        ValueError: fewer than two tokens; a loss that is not a finite number.
    """
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"losses need at least two tokens in a row, got shape {tuple(ids.shape)}")
    given, wanted = ids[:-1], ids[1:]
    spans = [(at, min(at + chunk, len(given))) for at in range(0, len(given), chunk)]
    costs = [cost(model, *span) for span in spans]
    caches, out = model.caches(), []
    with torch.inference_mode():
        for (first, last), share in zip(spans, costs, strict=True):
            x = model(given[None, first:last], caches=caches)[0]
            for at in range(0, len(x), SLICE):
                logits = model.logits(x[at : at + SLICE]).float()
                out.append(cross_entropy(logits, wanted[first + at : first + at + len(logits)], reduction="none"))
            if step is not None:
                step(share / sum(costs))
    found = torch.cat(out)
    if not bool(found.isfinite().all()):
        first = int((~found.isfinite()).nonzero()[0])
        raise ValueError(f"the model's numbers are not finite from position {first} on: weights that are damaged?")
    return found


def cost(model: Llama, first: int, last: int) -> float:
    """Multiplications for tokens at positions first … last - 1, roughly: what the time left is estimated from."""
    shape = model.shape
    weights = sum(p.numel() for p in model.parameters())
    seen = 2 * shape.layers * shape.heads * shape.head_dim * (first + last) / 2
    return (last - first) * (weights + seen)
