"""What a model's rotation function means: how it is called, and what it does to channels and tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ropewalk.rotation import Layout, Place

Columns = Literal["doubled", "repeated", "single", "complex", "stacked"]
"""How a table lays out its pairs c₀, c₁, …:

- `"doubled"`: c₀ c₁ … c₀ c₁ …
- `"repeated"`: c₀ c₀ c₁ c₁ …
- `"single"`: c₀ c₁ …
- `"complex"`: cos + i sin, one number a pair
- `"stacked"`: one table, the sines and then the cosines
"""

Heads = Literal["given", "last", "second", "none"]
"""Where cos and sin get the axis of heads: by the argument `unsqueeze_dim`, last but one, second, or they have it."""

ROLES: dict[str, str] = {
    **dict.fromkeys(("q", "query", "xq", "query_layer", "tensor", "x", "hidden_states"), "q"),
    **dict.fromkeys(("k", "key", "xk", "key_layer"), "k"),
    **dict.fromkeys(("v", "value", "value_layer"), "v"),
    "cos": "cos",
    "sin": "sin",
    **dict.fromkeys(("freqs_cis", "freqs_ci", "sinusoidal_pos"), "table"),
    "unsqueeze_dim": "unsqueeze_dim",
    "position_ids": "position_ids",
}
"""Names of arguments, which say where to put what when a function is tried; what it then does, they do not say."""


class NotServedError(ValueError):
    """A rotation that ropewalk does not take over, with the reason."""


@dataclass(frozen=True)
class Signature:
    """Where the arguments of a rotation function go."""

    names: tuple[str, ...]
    roles: Mapping[str, str]
    """Role → the argument's name."""
    required: frozenset[str]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """Read it off the function.

        Raises:
            NotServedError: no queries or no tables among its arguments.
        """
        parameters = inspect.signature(getattr(function, "forward", function)).parameters
        plain = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)}
        roles: dict[str, str] = {}
        for name in plain:
            if name in ROLES:
                roles.setdefault(ROLES[name], name)
        if "q" not in roles or not ("table" in roles or {"cos", "sin"} <= roles.keys()):
            raise NotServedError(f"its arguments ({', '.join(parameters)}) are not activations and tables")
        required = frozenset(n for n, p in plain.items() if p.default is p.empty)
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        return cls(tuple(plain), roles, required, defaults)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, without defaults."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    @property
    def unknown(self) -> list[str]:
        """Arguments without a role that have to be given."""
        known = set(self.roles.values())
        return [n for n in self.names if n in self.required and n not in known]


@dataclass(frozen=True)
class Semantics:
    """What a rotation function does, as found by trying it."""

    layout: Layout
    """Which channels of the input make a pair."""
    columns: Columns
    """How its tables lay out the pairs."""
    heads: Heads
    """Where its tables get the axis of heads."""
    emits_half: bool = False
    """Neighbours pair up in the input and stand in two halves in the output."""
    inverse: bool = False
    """It turns the other way."""
    place: Place = "leading"
    partial: bool = False
    """Channels beyond the tables pass."""
    skips_prefix: bool = False
    """Tokens before those that the tables cover pass."""
    last_rows: bool = False
    """Fewer queries than rows in the tables stand at the last of them."""
    without_key: Literal["", "alone", "pair"] = ""
    """What it returns where the key is None: the query alone, or a pair with None."""
    turns_values: bool = False
    """It turns the values too."""
    picks_rows: bool = False
    """Its tables have a row for each position, from which it takes those of the tokens."""

    def __str__(self) -> str:
        """In words, with what is not usual."""
        says: list[str] = [self.layout]
        if self.emits_half:
            says.append("emitted as half")
        if self.partial:
            says.append("partial" if self.place == "leading" else "partial, trailing")
        says += [
            text
            for text, holds in (
                ("opposite sign", self.inverse),
                ("prefix skipped", self.skips_prefix),
                ("values too", self.turns_values),
                ("rows by position", self.picks_rows),
                ("tokens before heads", self.heads == "last"),
            )
            if holds
        ]
        return f"{', '.join(says)}; tables {self.columns}"


def halves(x: Tensor) -> Tensor:
    """Neighbours moved apart: first channels of all pairs, then second ones."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
