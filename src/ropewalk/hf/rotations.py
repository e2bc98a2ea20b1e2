"""Find the rotations among a model's functions, try each once, and make what takes its place."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ropewalk.hf.probing import probe
from ropewalk.hf.semantics import NotServedError, Semantics, Signature
from ropewalk.hf.serve import serve
from ropewalk.hf.tables import Tables
from ropewalk.rotation import Impl

Function = Callable[..., Any]


class Rotations:
    """Called with a function, gives what takes its place, or None if it is no rotation or not one that is served."""

    def __init__(self, impl: Impl, *, turns: bool = True) -> None:
        self.replaced: dict[str, Semantics] = {}
        self.left: dict[str, str] = {}
        self._impl, self._turns = impl, turns
        self._tables = Tables()
        self._known: dict[int, tuple[Function, Function | None]] = {}

    def __call__(self, function: Function) -> Function | None:
        """What takes the place of a function, or None; each is tried once."""
        if id(function) not in self._known:
            self._known[id(function)] = (function, self._find(function))  # kept, so that its id is not given away
        return self._known[id(function)][1]

    def _find(self, function: Function) -> Function | None:
        if not might_rotate(function):
            return None
        name = f"{function.__module__.removeprefix('transformers.models.')}.{_name(function)}"
        try:
            semantics = probe(function)
        except NotServedError as error:
            self.left[name] = str(error)
            return None
        self.replaced[name] = semantics
        return serve(function, semantics, self._tables, impl=self._impl, turns=self._turns)


def might_rotate(function: Function) -> bool:
    """Whether to try it: a function of activations and tables that is not our own.

    The package `kernels`, where it is installed, makes modules of functions that it may replace.
    """
    if not isinstance(function, types.FunctionType) and not hasattr(function, "kernel_layer_name"):
        return False
    if isinstance(function, type) or function.__module__.startswith("ropewalk."):
        return False
    try:
        return "self" not in Signature.of(function).names
    except (NotServedError, TypeError, ValueError):
        return False


def _name(function: Function) -> str:
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
