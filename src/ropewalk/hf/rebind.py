"""Give one model's methods other functions to call, and take them back; other models never notice.

A method finds the functions it calls in the globals of its module, or in the closure of a decorator. Here it is copied,
with globals of its own in which some names mean something else, and the copy is bound to the one instance.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

Function = Callable[..., Any]
Choose = Callable[[Function], Function | None]
"""What to call in place of a function; None: the function itself."""

_ABSENT = object()


class Patch:
    """What was set in live modules, in order, and what was there before."""

    def __init__(self) -> None:
        self._undo: list[tuple[nn.Module, str | None, str, Any]] = []

    def set(self, owner: nn.Module, name: str, value: Any, *, among: str | None = None) -> None:
        """Set an attribute of a module, past its `__setattr__`, or an entry of one of its dicts: `among="_modules"`."""
        into = _entries(owner, among)
        self._undo.append((owner, among, name, into.get(name, _ABSENT)))
        into[name] = value

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._undo:
            owner, among, name, before = self._undo.pop()
            if before is _ABSENT:
                _entries(owner, among).pop(name, None)
            else:
                _entries(owner, among)[name] = before

    def __len__(self) -> int:
        return len(self._undo)

    def modules(self) -> list[nn.Module]:
        """Modules that were touched, each once."""
        return list({id(owner): owner for owner, *_ in self._undo}.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> Patch:
        """For a copied model: what was there before in the copy."""
        made = Patch()
        made._undo = [
            (copy.deepcopy(owner, memo), among, name, before if before is _ABSENT else copy.deepcopy(before, memo))
            for owner, among, name, before in self._undo
        ]
        return made


def _entries(owner: nn.Module, among: str | None) -> dict[str, Any]:
    return owner.__dict__ if among is None else owner.__dict__[among]


class Rebinder:
    """Copies functions so that they call what `choose` says, however deep the call stands: wrappers, closures, helpers
    of the same file.

    One copy serves all instances of a class.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._copies: dict[int, tuple[Function, Function]] = {}
        self._globals: dict[tuple[int, tuple[tuple[str, int], ...]], dict[str, Any]] = {}
        self._open: set[int] = set()

    def copy(self, function: Function) -> Function:
        """The function itself where nothing changes for it, or a copy."""
        if not isinstance(function, types.FunctionType):
            return function
        known = self._copies.get(id(function))
        if known is not None:
            return known[1]
        if id(function) in self._open:  # it calls itself, by a helper
            return function
        self._open.add(id(function))
        try:
            made = self._copy(function)
        finally:
            self._open.discard(id(function))
        self._copies[id(function)] = (function, made)  # the original is kept, so that its id is not given away
        return made

    def _copy(self, function: types.FunctionType) -> Function:
        changed: dict[str, Any] = {}
        for name in sorted(names_of(function.__code__)):
            value = function.__globals__.get(name)
            if callable(value):
                new = self._other(value, near=function)
                if new is not value:
                    changed[name] = new
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        defaults = tuple(self._value(v) for v in function.__defaults__ or ())
        keywords = {n: self._value(v) for n, v in (function.__kwdefaults__ or {}).items()}
        same = (
            not changed
            and all(new is old for new, old in zip(cells, function.__closure__ or (), strict=True))
            and all(new is old for new, old in zip(defaults, function.__defaults__ or (), strict=True))
            and all(keywords[n] is v for n, v in (function.__kwdefaults__ or {}).items())
        )
        if same:
            return function
        made = types.FunctionType(
            function.__code__.replace(),  # a code object of its own: compilers keep what they made of one with it
            self._scope(function, changed),
            function.__name__,
            defaults or None,
            tuple(cells) or None,
        )
        made.__kwdefaults__ = keywords or None
        made.__dict__.update({n: self._value(v) for n, v in function.__dict__.items()})
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        made.__annotations__ = function.__annotations__
        return made

    def _other(self, value: Function, near: types.FunctionType) -> Function:
        chosen = self._choose(value)
        if chosen is not None:
            return chosen
        same_file = isinstance(value, types.FunctionType) and value.__module__ == near.__module__
        return self.copy(value) if same_file else value

    def _value(self, value: Any) -> Any:
        if not callable(value):
            return value
        chosen = self._choose(value)
        return self.copy(value) if chosen is None else chosen

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty still
            return cell
        new = self._value(value)
        return cell if new is value else types.CellType(new)

    def _scope(self, function: types.FunctionType, changed: dict[str, Any]) -> dict[str, Any]:
        key = (id(function.__globals__), tuple((n, id(v)) for n, v in changed.items()))
        if key not in self._globals:
            scope = {**function.__globals__, **changed}
            # Given a module's name, torch.compile would look names up in that module, and not here.
            scope.pop("__name__", None)
            self._globals[key] = scope
        return self._globals[key] if changed else function.__globals__


def names_of(code: types.CodeType) -> set[str]:
    """The global names and attributes that a function mentions, also in functions defined within it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_of(constant)
    return found


def methods(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Functions of a module's class by name, as the class holds them; those of torch itself left out."""
    seen: set[str] = set()
    for cls in type(module).__mro__:
        if cls is object or cls.__module__.partition(".")[0] == "torch":
            continue
        for name, value in vars(cls).items():
            if name not in seen and isinstance(value, (types.FunctionType, staticmethod)):
                yield name, value
            seen.add(name)


def rebind(model: nn.Module, rebinder: Rebinder, choose: Choose, patch: Patch) -> list[nn.Module]:
    """Bind copies of methods to the modules of a model; returns the modules for which something changed."""
    touched = []
    for module in model.modules():
        before = len(patch)
        own = dict(module.__dict__)
        for name, value in methods(module):
            if name in own or name.startswith("__"):
                continue  # shadowed by the instance's own, which is looked at below; or looked up on the class
            function = value.__func__ if isinstance(value, staticmethod) else value
            chosen = choose(function)
            new = rebinder.copy(function) if chosen is None else chosen
            if new is not function:
                bound = new if isinstance(value, staticmethod) else types.MethodType(new, module)
                patch.set(module, name, bound)
        for name, value in own.items():
            if isinstance(value, types.FunctionType):
                chosen = choose(value)
                new = rebinder.copy(value) if chosen is None else chosen
                if new is not value:
                    patch.set(module, name, new)
            elif isinstance(value, types.MethodType) and isinstance(value.__func__, types.FunctionType):
                new = rebinder.copy(value.__func__)
                if new is not value.__func__:
                    patch.set(module, name, types.MethodType(new, value.__self__))
        if len(patch) > before:
            touched.append(module)
    return touched
