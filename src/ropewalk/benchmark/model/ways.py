"""The contenders: the model as it is, with our rotation installed, and without any rotation."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ropewalk.benchmark.model.cell import Cell, tokens

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

NAMES = ("stock", "installed", "without")
"""As transformers has it; after `ropewalk.hf.install`; no angles and no rotation, whose logits are wrong on purpose."""

Call = Callable[[], tuple[Tensor, ...]]


class Way:
    """One of `NAMES`, on a copy of a model.

    Attributes:
        name: which.
        model: the copy.
    """

    def __init__(self, name: str, model: LlamaForCausalLM) -> None:
        self.name, self.model = name, copy.deepcopy(model)
        if name == "installed":
            from ropewalk.hf import install

            install(self.model)
        elif name == "without":
            self.model.model.rotary_emb = _NoAngles()

    def call(self, cell: Cell) -> Call:
        """What is measured in this cell: gives the logits of the last token, `(1, 1, vocabulary)`."""
        called = torch.compile(self.model, dynamic=False, fullgraph=True) if cell.compiled else self.model
        once = _prefill(cell, called) if cell.part == "prefill" else _decode(cell, called, self._filled(cell))

        @torch.no_grad()
        def call() -> tuple[Tensor]:
            with self._turning():
                return (once(),)

        return call

    def _turning(self) -> Any:
        return _no_rotation() if self.name == "without" else nullcontext()

    @torch.no_grad()
    def _filled(self, cell: Cell) -> Any:
        """A cache that holds the prompt. As in `generate` it grows if nothing is compiled, else has a fixed size."""
        from transformers import DynamicCache, StaticCache

        config = self.model.config
        cache = StaticCache(config, max_cache_len=cell.length + 1) if cell.compiled else DynamicCache(config=config)
        with self._turning():
            self.model(tokens(cell)[:, : cell.length], use_cache=True, logits_to_keep=1, **{_cache_argument(): cache})
        return cache


def _prefill(cell: Cell, called: Callable[..., Any]) -> Callable[[], Tensor]:
    """All tokens of the prompt at once, into a new cache."""
    prompt = tokens(cell)[:, : cell.length]
    return lambda: called(prompt, use_cache=True, logits_to_keep=1).logits


def _decode(cell: Cell, called: Callable[..., Any], cache: Any) -> Callable[[], Tensor]:
    """One more token, which leaves the cache again, so that all calls are alike."""
    token, at = tokens(cell)[:, cell.length :], torch.tensor([[cell.length]], device=cell.device)
    given = {"position_ids": at, "use_cache": True, _cache_argument(): cache}

    def step() -> Tensor:
        logits: Tensor = called(token, **given).logits
        if cell.compiled:
            for layer in cache.layers:
                layer.cumulative_length.sub_(1)
        else:
            cache.crop(-1)
        return logits

    return step


def _cache_argument() -> str:
    """What this version of transformers calls it."""
    from transformers import LlamaForCausalLM

    return "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


class _NoAngles(torch.nn.Module):
    """In place of the module that makes cos and sin."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@contextmanager
def _no_rotation() -> Iterator[None]:
    """The function that turns queries and keys gives them back as they are."""
    from transformers.models.llama import modeling_llama

    kept = modeling_llama.apply_rotary_pos_emb
    modeling_llama.apply_rotary_pos_emb = _given_back
    try:
        yield
    finally:
        modeling_llama.apply_rotary_pos_emb = kept


def _given_back(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    return q, k
