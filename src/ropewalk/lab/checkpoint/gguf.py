"""Weights of a GGUF file, dequantised one by one through the `gguf` package.

llama.cpp's converters permute the query and key weights of Llama to the interleaved layout; they are handed out as they
lie there, and the plan of the same file says so (`layout="interleaved"`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ropewalk.readers.gguf import read_header

if TYPE_CHECKING:
    from gguf import GGUFReader

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OF_POSITIONS = ("rope_freqs.weight",)
"""Tensors that the plan has read already."""


class GGUFWeights:
    """See [`Weights`][ropewalk.lab.checkpoint.weights.Weights].

    Raises:
        ValueError: not a whole GGUF file, or a tensor whose name no Llama-shaped model has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = read_header(path).values  # checks every count before the package believes it
        self._reader = _open(path)
        self._tensors = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for tensor in self._reader.tensors:
            if tensor.name in _OF_POSITIONS:
                continue
            name = _named(tensor.name)
            if name is None:
                raise ValueError(f"{path} has a tensor {tensor.name[:60]!r}, which no Llama-shaped model has")
            self._tensors[name] = tensor
            self.shapes[name] = tuple(int(n) for n in reversed(tensor.shape))  # GGUF counts from the inside

    def tensor(self, name: str) -> Tensor:
        """In float32."""
        from gguf import dequantize

        tensor = self._tensors[name]
        try:
            numbers = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise ValueError(
                f"{self.path}: {name} is quantised as {kind}, which the gguf package does not read"
            ) from None
        return torch.from_numpy(numbers.copy()).to(torch.float32).reshape(self.shapes[name])

    def field(self, key: str) -> Any:
        """An entry of the header, arrays of the tokenizer included; None if it is not there."""
        found = self._reader.get_field(key)
        return None if found is None else found.contents()


def _open(path: Path) -> GGUFReader:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # an index, a shape, an unknown type: the package checks nothing
        why = " ".join(str(error).split())[:100]
        raise ValueError(f"{path} is not a whole GGUF file: its tensors do not fit in it ({why})") from None


def _named(name: str) -> str | None:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if found is None or found[2] not in _INSIDE:
        return None
    return f"model.layers.{int(found[1])}.{_INSIDE[found[2]]}.{found[3]}"
