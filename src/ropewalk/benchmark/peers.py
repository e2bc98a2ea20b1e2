"""The same rotation as others do it: packages, where they are installed, and formulas."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

PEERS = ("hf", "hf-compiled", "liger", "rotary-embedding-torch", "torchtune", "complex")
"""transformers' Llama, as it is and under `torch.compile`; two packages; two formulas. All are measured by default."""

PACKAGE_OF = {
    "hf": "transformers",
    "hf-compiled": "transformers",
    "liger": "liger_kernel",
    "rotary-embedding-torch": "rotary_embedding_torch",
}

Rope = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def absent(peer: str, device: str = "cpu") -> str | None:
    """Why a peer cannot take part, or None.

    >>> absent("complex")
    """
    if peer == "liger" and device != "cuda":
        return "its kernels are for GPUs: --device cuda"
    package = PACKAGE_OF.get(peer)
    if package is not None and importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        return f"{name} is not installed: pip install {name if peer == 'liger' else repr('ropewalk[bench]')}"
    compilers = (os.environ.get("CXX"), "g++", "clang++", "c++", "cl")
    if peer == "hf-compiled" and device == "cpu" and not any(shutil.which(c) for c in compilers if c):
        return "torch.compile needs a C++ compiler"
    return None


def hf() -> Rope:
    """`apply_rotary_pos_emb(q, k, cos, sin)` of transformers' Llama; half layout, doubled tables `(1, S, D)`."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    return cast(Rope, apply_rotary_pos_emb)


@functools.lru_cache(maxsize=1)
def hf_compiled(threads: int, dtype: torch.dtype, trained: bool) -> Rope:
    """The same under `torch.compile`, for any length; compiled anew for each of these, which it takes as constants."""
    torch._dynamo.reset()
    return cast(Rope, torch.compile(hf(), dynamic=True, fullgraph=True))


def liger() -> Rope:
    """`liger_rotary_pos_emb` of Liger-Kernel; half layout, doubled tables `(1, S, D)`.

    Where tokens already lie before heads in memory, as a single token does, it turns its inputs in place: so it is
    given copies, which costs it a copy that its users may not need.
    """
    turn = cast(Rope, importlib.import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb)
    return lambda q, k, cos, sin: turn(q.clone(), k.clone(), cos, sin)


def hf_tables(head_dim: int, base: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The module of transformers' Llama that makes cos and sin, `(1, S, D)`, of the dtype of its first argument."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_type": "default", "rope_theta": base}
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=131_072, rope_parameters=rope)
    return cast("Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]", LlamaRotaryEmbedding(config))


def hf_norm(weight: Tensor, epsilon: float) -> Callable[[Tensor], Tensor]:
    """Qwen3's RMSNorm over the channels of a head, with these weights."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    norm = Qwen3RMSNorm(len(weight), eps=epsilon)
    norm.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    return cast("Callable[[Tensor], Tensor]", norm)


def hf_half() -> Callable[[Tensor], Tensor]:
    """`rotate_half` of transformers' Llama, of which its rotation of a single tensor is made."""
    from transformers.models.llama.modeling_llama import rotate_half

    return cast("Callable[[Tensor], Tensor]", rotate_half)


def rotary_embedding_torch(head_dim: int, length: int, base: float, device: str = "cpu") -> Callable[[Tensor], Tensor]:
    """That package's rotation of one tensor; it keeps the angles and takes their cosine and sine at every call.

    Given positions in float32: in the dtype of the activations, which its own method takes, bfloat16 cannot count
    beyond 256.
    """
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    at = torch.arange(length, dtype=torch.float32, device=device)
    freqs = RotaryEmbedding(head_dim, theta=base).to(device)(at).detach()
    return lambda x: cast(Tensor, apply_rotary_emb(freqs, x))


def torchtune(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula that torchtune documents: neighbours as the last axis, in float32, both results stacked."""
    a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)


def by_complex(x: Tensor, unit: Tensor) -> Tensor:
    """Neighbours as one complex number, times e^(i·angle), as in Meta's Llama.

    >>> by_complex(torch.tensor([[1.0, 0.0]]), torch.tensor([[1j]]))
    tensor([[0., 1.]])
    """
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * unit).flatten(-2).to(x.dtype)
