"""Names of attention implementations in transformers, and the encodings behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.hf import needs
from ropewalk.hf.attention import Encodings, attention_of, mask
from ropewalk.protocol import PositionalEncoding

INSTALLED = "ropewalk-installed"
"""The implementation of every model with an encoding installed; it asks the model's modules for it."""


def register_attention(name: str, encoding: Encodings) -> None:
    """Make an encoding an attention implementation, `from_pretrained(…, attn_implementation=name)`.

    It holds in this process, for every model that is given that name. The model's own rotation goes on; to take it out,
    or to have the encoding's parameters within the model's, use `install(model, encoding=…)`.

    Args:
        name: not one that transformers has already; letters, digits, `-` and `_`.
        encoding: one for all layers, or one for each. Learned parameters are the encoding's own: give
            `encoding.parameters()` to the optimizer and save its `state_dict()` beside the model.

    >>> import torch, transformers
    >>> from ropewalk import ALiBi
    >>> register_attention("by-distance", ALiBi(heads=2))
    >>> config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=9)
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="by-distance")
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 9])
    >>> unregister_attention("by-distance")

    Raises:
        ValueError: a name that is taken or has other signs; an encoding that acts on embeddings.
    """
    known = needs.transformers().AttentionInterface._global_mapping
    if not name.replace("-", "").replace("_", "").isalnum() or "flash" in name or name == "eager":
        raise ValueError(f"a name is letters, digits, - and _, without 'flash' in it, and not 'eager', got {name!r}")
    if name == INSTALLED or (name in known and not _ours(known[name])):
        raise ValueError(f"transformers has an attention implementation {name!r} already; take another name")
    put(name, encoding)


def unregister_attention(name: str) -> None:
    """Take a name away again.

    Raises:
        ValueError: a name that was not registered here.
    """
    from transformers import AttentionInterface

    if not _ours(AttentionInterface._global_mapping.get(name)):
        raise ValueError(f"{name!r} was not registered by register_attention")
    take_out(name)


def _ours(function: Any) -> bool:
    return getattr(function, "ropewalk", False) is True


def put(name: str, encoding: Encodings) -> None:
    """Register both functions under a name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    check(encoding)
    AttentionInterface.register(name, attention_of(encoding))
    AttentionMaskInterface.register(name, mask)


def take_out(name: str) -> None:
    """Forget a name again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(name, None)


def installed() -> str:
    """The name `INSTALLED`, which transformers knows from now on: a copy of a model may outlive the installation."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if INSTALLED not in AttentionInterface._global_mapping:
        AttentionInterface.register(INSTALLED, attention_of(None))
        AttentionMaskInterface.register(INSTALLED, mask)
    return INSTALLED


def check(encoding: Any) -> None:
    """Refuse what attention cannot use.

    Raises:
        ValueError: no encoding, or one that acts before attention.
    """
    each = list(encoding) if isinstance(encoding, Sequence) else [encoding]
    for one in each:
        if isinstance(one, PositionalEncoding):
            if "embedding" in one.places():
                raise ValueError(
                    f"{one.label} acts on embeddings, before attention: add it to the embeddings of the model instead"
                )
        elif isinstance(one, type) or not callable(one):
            raise ValueError(
                "encoding is an encoding such as ALiBi(heads=8), one for each layer, or a function of the layer's "
                f"number, got {one!r}"
            )
