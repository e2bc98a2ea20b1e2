"""One place in the grid of measurements, and the model that all its contenders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

WIDTH, LAYERS, HEADS, KEY_HEADS, HEAD_DIM, VOCABULARY, BASE = 512, 6, 8, 2, 64, 8192, 10_000.0

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

SHARPNESS = 1.5
"""Standard deviation of the components of queries and keys: scores that differ, so that a wrong rotation shows."""


@dataclass(frozen=True)
class Cell:
    """What is measured; what it is asked to measure is part of it.

    Attributes:
        part: `prefill`, all tokens of a prompt at once, or `decode`, one token after that many.
        mode: `eager` or `compiled`.
        dtype: of weights and activations.
        length: tokens of the prompt.
        threads: how many.
        device: cpu or cuda.
    """

    part: str
    mode: str
    dtype: str
    length: int
    threads: int
    device: str = "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """As torch has it."""
        return DTYPES[self.dtype]

    @property
    def compiled(self) -> bool:
        """Whether the model goes through `torch.compile`."""
        return self.mode == "compiled"

    @property
    def label(self) -> str:
        """What is shown while it is measured."""
        return f"{self.part}, {self.mode}, {self.dtype}, {self.length:,}, ×{self.threads}"

    @property
    def weight(self) -> float:
        """About how long it takes, compared with others: compiling takes longest."""
        return 1 + self.length / 1024 + 8 * self.compiled


def model(cell: Cell) -> LlamaForCausalLM:
    """Llama of transformers, 6 layers of width 512, 8 heads of 64 channels on 2 key heads, random weights.

    As initialised, the scores of a model are so close to zero that its logits hardly depend on positions, and no check
    of results would see a rotation that is wrong. So query and key projections are drawn wider. Only the weights are
    cast, as `from_pretrained` does: frequencies in bfloat16 would be wrong by more than all rounding together.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    options: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": 3 * WIDTH,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 131_072,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "attn_implementation": "sdpa",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = LlamaForCausalLM(LlamaConfig(**options))
        made.train(False).requires_grad_(False)
        for name, weight in made.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.normal_(std=SHARPNESS * WIDTH**-0.5)
    for weight in made.parameters():
        weight.data = weight.data.to(cell.torch_dtype)
    torch.nn.Module.to(made, cell.device)  # transformers wraps its own in a way that type checkers misread
    return made


def tokens(cell: Cell) -> Tensor:
    """The prompt and one token more, `(1, length + 1)`, the same every time."""
    random = torch.Generator().manual_seed(cell.length)
    return torch.randint(VOCABULARY, (1, cell.length + 1), generator=random).to(cell.device)
