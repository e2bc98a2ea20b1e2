"""Context extensions: how to stretch RoPE beyond the length it was trained with. One file a method, simplest first."""

from __future__ import annotations

from ropewalk.extensions.base import Extension
from ropewalk.extensions.linear import Linear
from ropewalk.extensions.llama3 import Llama3
from ropewalk.extensions.longrope import LongRoPE, PerPair
from ropewalk.extensions.ntk import NTK, DynamicNTK
from ropewalk.extensions.product import Product
from ropewalk.extensions.proportional import Proportional
from ropewalk.extensions.yarn import DynamicYaRN, NTKByParts, YaRN

EXTENSIONS: tuple[type[Extension], ...] = (
    Linear,
    NTK,
    DynamicNTK,
    NTKByParts,
    YaRN,
    DynamicYaRN,
    Llama3,
    LongRoPE,
    PerPair,
    Proportional,
    Product,
)
"""All of them, in teaching order."""

__all__ = [
    "EXTENSIONS",
    "NTK",
    "DynamicNTK",
    "DynamicYaRN",
    "Extension",
    "Linear",
    "Llama3",
    "LongRoPE",
    "NTKByParts",
    "PerPair",
    "Product",
    "Proportional",
    "YaRN",
]
