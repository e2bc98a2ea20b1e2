"""Find the rotations among a model's functions, try each once, and make what takes its place."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ropewalk.hf.probe import probe
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
        if id(function) not in self._known:
            self._known[id(function)] = (function, self._find(function))  # kept, so that its id is not given away
        return self._known[id(function)][1]

    def _find(self, function: Function) -> Function | None:
        if not might_rotate(function):
            return None
        name = f"{function.__module__.removeprefix('transformers.models.')}.{function.__qualname__}"
        try:
            semantics = probe(function)
        except NotServedError as error:
            self.left[name] = str(error)
            return None
        self.replaced[name] = semantics
        return serve(function, semantics, self._tables, impl=self._impl, turns=self._turns)


def might_rotate(function: Function) -> bool:
    """Whether to try it: a function of activations and tables that is not our own."""
    if not isinstance(function, types.FunctionType) or function.__module__.startswith("ropewalk."):
        return False
    try:
        Signature.of(function)
    except (NotServedError, TypeError, ValueError):
        return False
    return True
