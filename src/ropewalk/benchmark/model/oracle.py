"""What every contender has to give: the same model in float64, written apart from all that is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from ropewalk.benchmark.model.cell import BASE, HEAD_DIM, HEADS, KEY_HEADS, Cell, tokens
from ropewalk.benchmark.timing import Contender

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


@dataclass(frozen=True)
class Wanted:
    """The right logits, float64; errors relate to the largest of them.

    Attributes:
        logits: `(1, 1, vocabulary)`.
        dtype: that the results shall have.
    """

    logits: Tensor
    dtype: torch.dtype

    def error(self, results: Sequence[Tensor]) -> float:
        """The largest deviation; infinite if anything is not a number, or if shape or dtype differ."""
        (result,) = results
        if result.dtype != self.dtype or result.shape != self.logits.shape:
            return float("inf")
        off = float((result.double() - self.logits).abs().max() / self.logits.abs().max())
        return off if off == off else float("inf")

    def allowed(self, contender: Contender) -> float:
        """How far this contender's logits may be off, in parts of the largest."""
        return contender.roundings * torch.finfo(self.dtype).eps + contender.drift


@torch.no_grad()
def wanted(cell: Cell, model: LlamaForCausalLM, *, rotates: bool) -> Wanted:
    """Logits of the last token, by one pass over all tokens, without a cache; pairs turn as complex numbers.

    Args:
        cell: what is measured.
        model: of transformers; only its weights are read.
        rotates: whether there is a rotation at all.
    """
    weights = {name: w.double() for name, w in model.state_dict().items()}
    epsilon = model.config.rms_norm_eps
    unit = _unit(cell.length + 1, cell.device) if rotates else None
    x = weights["model.embed_tokens.weight"][tokens(cell)[:, : cell.length + (cell.part == "decode")]]
    for layer in range(model.config.num_hidden_layers):
        w = {n.removeprefix(start): v for n, v in weights.items() if n.startswith(start := f"model.layers.{layer}.")}
        h = _normed(x, w["input_layernorm.weight"], epsilon)
        q, k, v = (_heads(h @ w[f"self_attn.{name}_proj.weight"].mT) for name in "qkv")
        q, k = _turned(q, unit), _turned(k, unit)
        k, v = (t.repeat_interleave(HEADS // KEY_HEADS, 1) for t in (k, v))
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + out.transpose(1, 2).flatten(2) @ w["self_attn.o_proj.weight"].mT
        h = _normed(x, w["post_attention_layernorm.weight"], epsilon)
        x = (
            x
            + (silu(h @ w["mlp.gate_proj.weight"].mT) * (h @ w["mlp.up_proj.weight"].mT)) @ w["mlp.down_proj.weight"].mT
        )
    logits = _normed(x[:, -1:], weights["model.norm.weight"], epsilon) @ weights["lm_head.weight"].mT
    return Wanted(logits, cell.torch_dtype)


def _unit(length: int, device: str) -> Tensor:
    """Each pair's e^(i·angle) at every position, `(length, HEAD_DIM / 2)`."""
    pairs = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * BASE ** (-2 * pairs / HEAD_DIM)
    return torch.polar(torch.ones_like(angles), angles).to(device)


def _turned(x: Tensor, unit: Tensor | None) -> Tensor:
    if unit is None:
        return x
    turned = torch.complex(*x.chunk(2, -1)) * unit[: x.shape[2]]
    return torch.cat((turned.real, turned.imag), -1)


def _heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], -1, HEAD_DIM).transpose(1, 2)


def _normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight
