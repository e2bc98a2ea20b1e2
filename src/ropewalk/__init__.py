"""ropewalk: positional encodings of Transformers. Use them, compare them, see them.

Names resolve on first use, so that `import ropewalk` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ropewalk.version import __version__

if TYPE_CHECKING:
    from ropewalk import hf
    from ropewalk.angles import cos_sin
    from ropewalk.attention import attend, explain
    from ropewalk.bands import Bands
    from ropewalk.cache import KeyCache
    from ropewalk.encodings import ENCODINGS, build
    from ropewalk.encodings.alibi import ALiBi
    from ropewalk.encodings.cope import CoPE
    from ropewalk.encodings.fire import FIRE
    from ropewalk.encodings.kerple import KERPLE
    from ropewalk.encodings.learned import Learned
    from ropewalk.encodings.relative_bias import RelativeBias
    from ropewalk.encodings.rope import RoPE
    from ropewalk.encodings.shaw import Shaw
    from ropewalk.encodings.sinusoidal import Sinusoidal
    from ropewalk.encodings.t5 import T5
    from ropewalk.encodings.xpos import XPos
    from ropewalk.extensions import (
        NTK,
        DynamicNTK,
        DynamicYaRN,
        Extension,
        Linear,
        Llama3,
        LongRoPE,
        NTKByParts,
        PerPair,
        Product,
        Proportional,
        YaRN,
    )
    from ropewalk.kernels.onnx import onnx_decompositions
    from ropewalk.multimodal import Image, Text, Video
    from ropewalk.permutation import permute
    from ropewalk.plans import RotaryPlan
    from ropewalk.positions import Positions
    from ropewalk.protocol import Compose, NoPE, Paper, PositionalEncoding
    from ropewalk.readers import from_config
    from ropewalk.rotation import norm_rotate, rotate, rotate_, rotate_pair, rotate_pair_, rotate_to_cache
    from ropewalk.spectra import Spectrum, geometric
    from ropewalk.static_cache import StaticKeyCache

_HOME = {
    "ALiBi": "encodings",
    "Bands": "bands",
    "CoPE": "encodings",
    "Compose": "protocol",
    "DynamicNTK": "extensions",
    "DynamicYaRN": "extensions",
    "ENCODINGS": "encodings",
    "Extension": "extensions",
    "FIRE": "encodings",
    "Image": "multimodal",
    "KERPLE": "encodings",
    "KeyCache": "cache",
    "Learned": "encodings",
    "Linear": "extensions",
    "Llama3": "extensions",
    "LongRoPE": "extensions",
    "NTK": "extensions",
    "NTKByParts": "extensions",
    "NoPE": "protocol",
    "Paper": "protocol",
    "PerPair": "extensions",
    "PositionalEncoding": "protocol",
    "Positions": "positions",
    "Product": "extensions",
    "Proportional": "extensions",
    "RelativeBias": "encodings",
    "RoPE": "encodings",
    "RotaryPlan": "plans",
    "Shaw": "encodings",
    "Sinusoidal": "encodings",
    "Spectrum": "spectra",
    "StaticKeyCache": "static_cache",
    "T5": "encodings",
    "Text": "multimodal",
    "Video": "multimodal",
    "XPos": "encodings",
    "YaRN": "extensions",
    "attend": "attention",
    "build": "encodings",
    "cos_sin": "angles",
    "explain": "attention",
    "from_config": "readers",
    "geometric": "spectra",
    "norm_rotate": "rotation",
    "onnx_decompositions": "kernels.onnx",
    "permute": "permutation",
    "rotate": "rotation",
    "rotate_": "rotation",
    "rotate_pair": "rotation",
    "rotate_pair_": "rotation",
    "rotate_to_cache": "rotation",
}

__all__ = [
    "ENCODINGS",
    "FIRE",
    "KERPLE",
    "NTK",
    "T5",
    "ALiBi",
    "Bands",
    "CoPE",
    "Compose",
    "DynamicNTK",
    "DynamicYaRN",
    "Extension",
    "Image",
    "KeyCache",
    "Learned",
    "Linear",
    "Llama3",
    "LongRoPE",
    "NTKByParts",
    "NoPE",
    "Paper",
    "PerPair",
    "PositionalEncoding",
    "Positions",
    "Product",
    "Proportional",
    "RelativeBias",
    "RoPE",
    "RotaryPlan",
    "Shaw",
    "Sinusoidal",
    "Spectrum",
    "StaticKeyCache",
    "Text",
    "Video",
    "XPos",
    "YaRN",
    "__version__",
    "attend",
    "build",
    "cos_sin",
    "explain",
    "from_config",
    "geometric",
    "hf",
    "norm_rotate",
    "onnx_decompositions",
    "permute",
    "rotate",
    "rotate_",
    "rotate_pair",
    "rotate_pair_",
    "rotate_to_cache",
]


_MODULES = {"hf"}
"""Parts that are used under their own name: `ropewalk.hf.install`."""


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"ropewalk.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ropewalk.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
