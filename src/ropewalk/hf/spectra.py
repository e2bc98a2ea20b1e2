"""An extension or a spectrum of ropewalk as a `rope_type` of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.extensions import Extension
from ropewalk.hf import needs
from ropewalk.spectra import Spectrum

NATIVE = "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "axial"


def register_spectrum(name: str, of: Extension | Spectrum, *, at_length: int | None = None) -> None:
    """Make an extension a `rope_type`, so that a configuration can name it: `{"rope_type": name, "rope_theta": 1e4}`.

    A model built from such a configuration has the extension's frequencies (its base and width are the model's own) and
    multiplies cos and sin by its attention factor. It is saved and loaded like any other: the name stands in its
    config.json, so a process that loads it registers it first.

    Frequencies are rounded to float32 and angles computed by transformers; `install(model, exact=True)` has them exact.

    Args:
        name: not one of transformers' own, and without "dynamic" in it, at which transformers would act by itself.
        of: an extension such as `YaRN(factor=4, original_length=8192)`, or a spectrum as it is.
        at_length: for an extension that depends on the length of the text: that length, chosen beforehand.

    >>> import transformers
    >>> from ropewalk import Linear
    >>> register_spectrum("slower", Linear(factor=2))
    >>> rope = {"rope_type": "slower", "rope_theta": 10_000.0}
    >>> sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    >>> config = transformers.LlamaConfig(**sizes, rope_parameters=rope)
    >>> transformers.LlamaModel(config).rotary_emb.inv_freq[:2]
    tensor([0.5000, 0.0500])
    >>> unregister_spectrum("slower")

    Raises:
        ValueError: a name that is taken; an extension that depends on the length without `at_length`, or the reverse; a
            softmax_multiplier, which a `rope_type` cannot bring; in use, a spectrum of another number of pairs.
    """
    needs.transformers()
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RotaryEmbeddingConfigMixin

    if not isinstance(of, (Extension, Spectrum)):
        raise ValueError(f"register_spectrum takes an extension or a spectrum, got {of!r}")
    if not name.isidentifier() and not name.replace("-", "_").isidentifier():
        raise ValueError(f"a name is letters, digits, - and _, got {name!r}")
    if "dynamic" in name:
        raise ValueError(
            f"transformers changes frequencies by itself where 'dynamic' is in a name: take another than {name!r}"
        )
    if name in NATIVE or (name in ROPE_INIT_FUNCTIONS and registered(name) is None):
        raise ValueError(f"transformers has a rope_type {name!r} already; take another name")
    depends = isinstance(of, Extension) and of.depends_on_length
    if depends != (at_length is not None):
        raise ValueError(
            f"{type(of).__name__} depends on the length of the text: give at_length, the length of the whole"
            if depends
            else f"at_length={at_length} needs an extension that depends on the length of the text"
        )
    ROPE_INIT_FUNCTIONS[name] = _init(name, of, at_length)
    # Without such a method every configuration that names it would log a warning.
    setattr(RotaryEmbeddingConfigMixin, f"_validate_{name}_rope_parameters", _validate)


def unregister_spectrum(name: str) -> None:
    """Take a name away again.

    Raises:
        ValueError: a name that was not registered here.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RotaryEmbeddingConfigMixin

    if registered(name) is None:
        raise ValueError(f"{name!r} was not registered by register_spectrum")
    del ROPE_INIT_FUNCTIONS[name]
    delattr(RotaryEmbeddingConfigMixin, f"_validate_{name}_rope_parameters")


def registered(name: str) -> Extension | Spectrum | None:
    """What was registered under a name; None for transformers' own names and unknown ones."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return getattr(ROPE_INIT_FUNCTIONS.get(name), "ropewalk", None)


def _init(name: str, of: Extension | Spectrum, at_length: int | None) -> Callable[..., tuple[Tensor, float]]:
    def init(
        config: Any,
        device: torch.device | str | None = None,
        seq_len: int | None = None,
        layer_type: str | None = None,
        **more: Any,
    ) -> tuple[Tensor, float]:
        """Frequencies and attention factor, as transformers asks for them."""
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        width = _width(config, parameters, layer_type)
        if isinstance(of, Spectrum):
            spectrum = of
            if len(of.radians) * 2 != width:
                raise ValueError(f"rope_type {name!r} has {len(of.radians)} pairs, this model {width // 2}")
        else:
            spectrum = of.spectrum(width, parameters["rope_theta"], length=at_length, precision="float32")
        if spectrum.softmax_multiplier != 1:
            raise ValueError(
                f"rope_type {name!r} has a softmax_multiplier of {spectrum.softmax_multiplier:g}, "
                "which a rope_type of transformers cannot bring"
            )
        return spectrum.inv_freq.to(torch.float32).to(device), spectrum.attention_factor

    init.ropewalk = of  # type: ignore[attr-defined]  # so that a second registration is known as ours
    return init


def _width(config: Any, parameters: dict[str, Any], layer_type: str | None) -> int:
    """How many channels of a head turn, as transformers' own functions find it."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if layer_type == "full_attention" and getattr(config, "global_head_dim", None):
        head_dim = config.global_head_dim
    width = getattr(config, "qk_rope_head_dim", None)
    return int(width) if width else int(head_dim * parameters.get("partial_rotary_factor", 1.0))


def _validate(self: Any, rope_parameters: dict[str, Any], ignore_keys: set[str] | None = None) -> None:
    """Which keys a configuration has beside the name is the extension's business."""
