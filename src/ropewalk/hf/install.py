"""`install`: a live model of transformers turns with ropewalk, until it is taken out again."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ropewalk.hf.probe import probe
from ropewalk.hf.rebind import Patch, Rebinder, rebind
from ropewalk.hf.semantics import NotServedError, Semantics, Signature
from ropewalk.hf.serve import serve
from ropewalk.hf.tables import Tables
from ropewalk.rotation import Impl

MARK = "_ropewalk"
"""The attribute under which a model knows that ropewalk is installed in it."""


@dataclass
class Installation:
    """What was replaced in a model, and the way back. Also a context manager, which uninstalls at its end."""

    model: nn.Module
    replaced: dict[str, Semantics]
    """Functions that ropewalk stands in for, and what they do."""
    left: dict[str, str]
    """Functions that were left as they were, and why."""
    modules: int
    """How many modules call ropewalk now."""
    patch: Patch = field(repr=False)
    installed: bool = True

    def uninstall(self) -> None:
        """Put everything back as it was; a second time does nothing."""
        self.patch.undo()
        self.installed = False

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [f"ropewalk in {type(self.model).__name__}, {self.modules} modules"]
        lines += [f"  {name}: {semantics}" for name, semantics in self.replaced.items()]
        lines += [f"  {name}: left as it is, since {reason}" for name, reason in self.left.items()]
        return "\n".join(lines if self.installed else [*lines, "  (uninstalled)"])


def install(model: nn.Module, *, impl: Impl = "auto") -> Installation:
    """Replace the rotation of a live transformers model, in this model alone."""
    _check(model)
    chooser = _Chooser(impl)
    patch = Patch()
    try:
        touched = rebind(model, Rebinder(chooser), chooser, patch)
        if not touched:
            raise _nothing(model, chooser)
        installation = Installation(model, chooser.replaced, chooser.left, len(touched), patch)
        patch.set(model, MARK, installation)
    except BaseException:
        patch.undo()
        raise
    return installation


def uninstall(model: nn.Module) -> None:
    """Take ropewalk out of a model again, as `Installation.uninstall` does."""
    installation = model.__dict__.get(MARK)
    if installation is None:
        raise ValueError(f"ropewalk is not installed in this {type(model).__name__}")
    installation.uninstall()


class _Chooser:
    """Finds rotations among functions, tries each once, and makes what takes its place."""

    def __init__(self, impl: Impl) -> None:
        self.impl = impl
        self.tables = Tables()
        self.replaced: dict[str, Semantics] = {}
        self.left: dict[str, str] = {}
        self._known: dict[int, tuple[Any, Callable[..., Any] | None]] = {}

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        if id(function) not in self._known:
            self._known[id(function)] = (function, self._find(function))
        return self._known[id(function)][1]

    def _find(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        if not isinstance(function, types.FunctionType) or function.__module__.startswith("ropewalk."):
            return None
        if not _might_rotate(function):
            return None
        name = f"{function.__module__.removeprefix('transformers.models.')}.{function.__qualname__}"
        try:
            semantics = probe(function)
        except NotServedError as error:
            self.left[name] = str(error)
            return None
        self.replaced[name] = semantics
        return serve(function, semantics, self.tables, impl=self.impl)


def _might_rotate(function: Callable[..., Any]) -> bool:
    """Whether to try it: it takes activations and tables."""
    try:
        roles = Signature.of(function).roles
    except (NotServedError, TypeError, ValueError):
        return False
    return bool(roles)


def _check(model: Any) -> None:
    import transformers

    if not isinstance(model, nn.Module) or not any(isinstance(m, transformers.PreTrainedModel) for m in model.modules()):
        raise ValueError(f"install takes a model of transformers, got {type(model).__name__}")
    for module in model.modules():
        if MARK in module.__dict__:
            raise ValueError(
                f"ropewalk is installed in this {type(module).__name__} already: call uninstall() first"
            )


def _nothing(model: nn.Module, chooser: _Chooser) -> ValueError:
    kind = f"{type(model).__name__} (model_type {getattr(getattr(model, 'config', None), 'model_type', 'unknown')!r})"
    if chooser.left:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in chooser.left.items())
        return NotServedError(f"{kind} rotates in a way that ropewalk does not take over: {reasons}")
    return NotServedError(f"{kind} calls no rotation of queries and keys that ropewalk knows of")
