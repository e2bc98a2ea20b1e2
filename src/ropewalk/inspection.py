"""What a model's positions do, pair by pair, and what another extension would do to them.

Pure computing: a `RotaryPlan` goes in, reports of numbers come out. The command `inspect` and its picture show them.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor

from ropewalk.angles import angles
from ropewalk.extensions import (
    EXTENSIONS,
    NTK,
    DynamicNTK,
    DynamicYaRN,
    Extension,
    LongRoPE,
    NTKByParts,
    PerPair,
    Product,
    YaRN,
)
from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.spectra import Spectrum

Fate = Literal["kept", "blended", "divided", "raised", "stopped"]
FATES: tuple[Fate, ...] = get_args(Fate)
"""What an extension does to a pair: nothing; divides its frequency by less than its full factor; divides it by that (or
by a factor of the pair's own); slows it by raising the base; stops it."""

LAST_POSITIONS = 512
"""Positions before the end at which precision is measured: enough to meet every phase of the fast pairs."""
LONGEST_SCAN = 1 << 24
"""Distances of which each one is looked at to find the true maximum; more would take seconds."""
LONGEST = 1 << 48
"""Tokens; no extension reaches farther."""
MOST_PAIRS, MOST_KINDS = 4096, 512
"""More pairs in a head, or more kinds of layers, than any model has: a configuration that says so is not computed."""
MOST_MEASURED = 16
"""Kinds of layers that get precision and decay measured; a configuration may hold thousands of kinds."""
_PER_DECADE = 16
_BLOCK = 4096


@dataclass(frozen=True)
class Pair:
    """One pair of channels; lengths in tokens."""

    index: int
    axis: str | None
    """The axis of the positions that it follows; None: there is one."""
    trained: float
    """Wavelength without extension."""
    wavelength: float
    """Wavelength with it; infinite for a pair that stands still."""
    turns: float | None
    """Turns within the trained length, without extension; None where that length is not known."""
    turns_extended: float | None
    """Turns within the extended length, with extension."""
    fate: Fate

    @property
    def ratio(self) -> float:
        """By what its frequency is divided."""
        return self.wavelength / self.trained


@dataclass(frozen=True)
class Errors:
    """The largest error of cos and sin at the positions from `first` to `last`, over all pairs.

    `float32`: frequencies, angles and both functions in float32, as transformers computes them. `bfloat16`: positions,
    frequencies and their product rounded to bfloat16, as a model cast as a whole may. Neither can exceed 2.
    """

    first: int
    last: int
    float32: float
    bfloat16: float


@dataclass(frozen=True)
class Curve:
    """The score of query and key of ones, over the channels that turn: Σ 2·cos(distance·frequency)·attention_factor².

    `beyond[n]` is the highest score at any distance greater than distances[n], each one looked at, up to `scanned`;
    None at the last.
    """

    distances: tuple[int, ...]
    scores: tuple[float, ...]
    beyond: tuple[float | None, ...]
    scanned: int


@dataclass(frozen=True)
class View:
    """The pairs of a rotating layer under one extension, for a text of one length."""

    extension: Extension | None
    length: int | None
    """The length at which an extension that depends on it was evaluated; None: it does not."""
    trained_length: int | None
    extended_length: int | None
    spectrum: Spectrum
    pairs: tuple[Pair, ...]
    errors: Errors | None
    curve: Curve | None

    def never_turn(self) -> tuple[int | None, int | None]:
        """Pairs that complete no turn: without extension within the trained length, with it within the extended one."""
        if self.trained_length is None:
            return None, None
        return (
            sum(1 for pair in self.pairs if pair.turns is not None and pair.turns < 1),
            sum(1 for pair in self.pairs if pair.turns_extended is not None and pair.turns_extended < 1),
        )

    def fates(self) -> dict[Fate, tuple[int, ...]]:
        """The pairs of each fate that occurs."""
        found = {fate: tuple(p.index for p in self.pairs if p.fate == fate) for fate in FATES}
        return {fate: pairs for fate, pairs in found.items() if pairs}

    def json(self) -> dict[str, Any]:
        """All of it but the extension; an infinite wavelength is null."""
        trained, extended = self.never_turn()
        return {
            "trained_length": self.trained_length,
            "extended_length": self.extended_length,
            "trained_wavelength": [p.trained for p in self.pairs],
            "wavelength": [p.wavelength if math.isfinite(p.wavelength) else None for p in self.pairs],
            "turns": [p.turns for p in self.pairs],
            "turns_extended": [p.turns_extended for p in self.pairs],
            "fate": [p.fate for p in self.pairs],
            "never_turn": {"trained": trained, "extended": extended},
            "errors": None if self.errors is None else asdict(self.errors),
            "decay": None if self.curve is None else asdict(self.curve),
        }


@dataclass(frozen=True)
class Kind:
    """Layers that do the same. A kind that does not rotate has no views.

    `views` are those of the configuration: one, or two for an extension that depends on the length where none was
    given: at the trained length, and at the model's full length. `tries` are other extensions, as asked for.
    """

    layers: tuple[int, ...]
    plan: LayerPlan
    views: tuple[View, ...] = ()
    tries: tuple[tuple[str, View], ...] = ()


@dataclass(frozen=True)
class Inspection:
    """A plan and what was computed from it."""

    name: str
    plan: RotaryPlan
    kinds: tuple[Kind, ...]
    length: int | None
    """As asked for."""
    full_length: int | None
    """`length`, or the longest that the configuration speaks of: where precision and decay were measured, except in
    views of another length."""

    def json(self) -> dict[str, Any]:
        """`ropewalk.inspect/1`."""
        document = self.plan.json(length=self.length)
        for entry, kind in zip(document["layers"], self.kinds, strict=True):
            if not kind.views:
                continue
            entry.update(kind.views[0].json())
            if len(kind.views) > 1:
                entry["at_full_length"] = _with_extension(kind.views[1])
            entry["tries"] = [{"try": text, **_with_extension(view)} for text, view in kind.tries]
        return {**document, "measured_at": self.full_length}


def inspect(plan: RotaryPlan, *, length: int | None = None, tries: Sequence[str] = (), name: str = "") -> Inspection:
    """Compute everything that `ropewalk inspect` shows.

    Args:
        plan: as `from_config` reads it.
        length: of the text, for extensions that depend on it, and where precision and decay are measured; by default
            the longest that the configuration speaks of.
        tries: other extensions, `NAME:FACTOR`, as in `try_extension`.
        name: what to call the model.

    >>> plan = RotaryPlan("llama", (LayerPlan("rope", "", 128, 128, layout="half", base=1e4),), original_length=4096)
    >>> inspect(plan).kinds[0].views[0].never_turn()
    (18, 18)

    Raises:
        ValueError: parameters that do not fit the width, a length below 1, sizes beyond any model's, and what
            `try_extension` refuses.
    """
    if length is not None and length < 1:
        raise ValueError(f"length is a positive number of tokens, got {length}")
    _check_sizes(plan)
    tried = [(text, *try_extension(text, plan)) for text in tries]
    full = length or _full_length(plan)
    kinds = []
    for n, (where, layer) in enumerate(plan.groups()):
        if layer.kind != "rope":
            kinds.append(Kind(where, layer))
            continue
        measured = full if n < MOST_MEASURED else None
        depends = layer.extension is not None and layer.extension.depends_on_length
        at: list[int | None] = [length or layer.default_length if depends else None]
        if depends and length is None and full not in (None, layer.default_length):
            at.append(full)
        views = tuple(_view(layer, plan, a, measured and (a or measured)) for a in at)
        other = []
        for text, extension, changed in tried:
            its = changed.plan_of(where[0])
            if its.extension is extension:
                long = length or full or plan.original_length
                stretched = getattr(extension, "factor", None)
                if length is None and stretched is not None and plan.original_length:
                    long = _reach(plan.original_length, stretched)
                a = long if extension.depends_on_length else None
                here = length or (measured and long)
                other.append((text, _view(its, plan, a, here, tried=True)))
        kinds.append(Kind(where, layer, views, tuple(other)))
    return Inspection(name, plan, tuple(kinds), length, full)


def _check_sizes(plan: RotaryPlan) -> None:
    kinds = set(plan.layers)
    if len(kinds) > MOST_KINDS:
        raise ValueError(f"there are {len(kinds)} kinds of layers, more than the {MOST_KINDS} that are computed here")
    for layer in kinds:
        if layer.kind == "rope" and layer.rotary_dim > 2 * MOST_PAIRS:
            raise ValueError(f"rotary_dim = {layer.rotary_dim} (from head_dim) is more than {2 * MOST_PAIRS}")


def _full_length(plan: RotaryPlan) -> int | None:
    """The longest text that the configuration speaks of."""
    reached = [plan.max_length, plan.original_length]
    for layer in set(plan.layers):
        if isinstance(layer.extension, (YaRN, NTKByParts, DynamicNTK)):
            reached.append(_reach(layer.extension.original_length, layer.extension.factor))
    return max((n for n in reached if n), default=None)


def _reach(original: int, factor: float) -> int:
    """original · factor in whole tokens.

    Raises:
        ValueError: nobody means so many.
    """
    if not original * factor < LONGEST:
        raise ValueError(f"factor = {factor:g} makes {original} tokens into more than {LONGEST}, which nobody can mean")
    return round(original * factor)


# ---- one view ------------------------------------------------------------------------------


def _view(layer: LayerPlan, plan: RotaryPlan, length: int | None, measured: int | None, *, tried: bool = False) -> View:
    try:
        before = replace(layer, extension=None).spectrum()
        after = layer.spectrum(length=length)
        same_in_float32 = layer.spectrum(length=length, precision="float32")
    except ArithmeticError as error:
        name = "" if layer.extension is None else f"{layer.extension.name}: "
        raise ValueError(f"{name}these parameters make numbers too large to compute with") from error
    if before is None or after is None or same_in_float32 is None:
        raise AssertionError("only rotating layers come here")
    original = getattr(layer.extension, "original_length", None) or plan.original_length
    extended = _extended(layer, plan, original, length, tried)
    axes = layer.bands.string() if layer.bands is not None else None
    pairs = tuple(
        Pair(
            i,
            axes[i] if axes else None,
            2 * math.pi / f,
            2 * math.pi / g if g else math.inf,
            None if original is None else original * f / (2 * math.pi),
            None if extended is None else extended * g / (2 * math.pi),
            _fate(f, g, layer.extension, length),
        )
        for i, (f, g) in enumerate(zip(before.radians, after.radians, strict=True))
    )
    errors = None if measured is None else precision_errors(after, same_in_float32, measured)
    curve = None if measured is None else decay_curve(after, measured)
    return View(layer.extension, length, original, extended, after, pairs, errors, curve)


def _extended(layer: LayerPlan, plan: RotaryPlan, trained: int | None, length: int | None, tried: bool) -> int | None:
    """How far the extension of a layer reaches.

    YaRN's factor is the ratio of the two lengths. Other extensions of a configuration do not claim that (Llama 3.1 has
    factor 8 and 16 times the length; linear does not say where it counts from), so what the configuration states is
    how far they reach. One that is tried is asked to stretch the trained length by its factor.
    """
    extension = layer.extension
    if trained is None or extension is None:
        return trained
    if extension.depends_on_length:
        return max(trained, length or 0)
    factor = getattr(extension, "factor", None)
    if tried or isinstance(extension, (YaRN, NTKByParts)):
        return trained if factor is None else _reach(trained, factor)
    return max(trained, plan.max_length or 0)


def _fate(before: float, after: float, extension: Extension | None, length: int | None) -> Fate:
    if math.isclose(before, after, rel_tol=1e-12):
        return "kept"
    if after == 0:
        return "stopped"
    parts = extension.parts if isinstance(extension, Product) else (extension,)
    if any(isinstance(part, (NTK, DynamicNTK)) for part in parts):
        return "raised"
    factors = [_full_factor(part, length) for part in parts]
    own = any(factor is None for factor in factors)
    if own or math.isclose(before / after, math.prod(f or 1.0 for f in factors), rel_tol=1e-6):
        return "divided"
    return "blended"


def _full_factor(extension: Extension | None, length: int | None) -> float | None:
    """What the slowest pairs are divided by; None where each pair has a factor of its own."""
    if isinstance(extension, LongRoPE):
        return None
    if isinstance(extension, PerPair):
        largest = max(extension.factors)  # GGUF files hold Llama 3's as such a list, whose slow pairs share the largest
        return largest if extension.factors.count(largest) > 1 else None
    if isinstance(extension, DynamicYaRN):
        return max(1.0, (length or 1) / extension.original_length)
    return float(getattr(extension, "factor", 1.0))


def precision_errors(exact: Spectrum, float32: Spectrum, length: int) -> Errors:
    """How wrong cos and sin are before position `length`; the attention factor does not count.

    Args:
        exact: the frequencies.
        float32: the same as computed in float32.
        length: tokens of the text; its last `LAST_POSITIONS` are looked at.
    """
    first = max(0, length - LAST_POSITIONS)
    ids = torch.arange(first, length)
    true = _plain_angles(ids, exact)
    single = (ids.float()[:, None] * float32.inv_freq.float()).double()
    half = (ids.bfloat16()[:, None] * exact.inv_freq.bfloat16()).double()

    def off(angle: Tensor) -> float:
        return max(float((f(angle) - f(true)).abs().max()) for f in (torch.cos, torch.sin))

    return Errors(first, length - 1, off(single), off(half))


def decay_curve(spectrum: Spectrum, length: int) -> Curve:
    """Scores at distances 0 to `length`, spaced by their logarithm; see `Curve`.

    Every distance is looked at, as distance a + b by cos(a + b) = cos a · cos b - sin a · sin b, which makes of it a
    product of two small matrices.

    >>> from ropewalk import geometric
    >>> curve = decay_curve(geometric(64), 100)
    >>> curve.distances[:3], round(curve.scores[1], 4), curve.scanned
    ((0, 1, 2), 61.8337, 100)
    """
    scanned = min(length, LONGEST_SCAN)
    outer = _plain_angles(torch.arange(0, scanned + 1, _BLOCK), spectrum)
    inner = _plain_angles(torch.arange(_BLOCK), spectrum)
    left = torch.cat([outer.cos(), -outer.sin()], 1)
    every = (left @ torch.cat([inner.cos(), inner.sin()], 1).T).flatten()[: scanned + 1]
    steps = int(_PER_DECADE * math.log10(scanned)) if scanned > 1 else 0
    spaced = {round(10 ** (n / _PER_DECADE)) for n in range(steps + 1)}
    distances = sorted({0, *spaced, min(length, scanned)})
    scale = 2 * spectrum.attention_factor**2
    beyond: list[float | None] = [None]
    for near, far in reversed(list(itertools.pairwise(distances))):
        highest = float(every[near + 1 : far + 1].max()) * scale
        beyond.append(highest if beyond[-1] is None else max(highest, beyond[-1]))
    scores = tuple(float(every[d]) * scale for d in distances)
    return Curve(tuple(distances), scores, tuple(reversed(beyond)), scanned)


def _plain_angles(ids: Tensor, spectrum: Spectrum) -> Tensor:
    """Exact angles; start tokens, if there are any, turn like the others here."""
    return angles(ids, Spectrum(spectrum.radians) if spectrum.start_tokens else spectrum)


def _with_extension(view: View) -> dict[str, Any]:
    return {
        "extension": None if view.extension is None else view.extension.json(),
        "length": view.length,
        "inv_freq": list(view.spectrum.radians),
        "attention_factor": view.spectrum.attention_factor,
        "softmax_multiplier": view.spectrum.softmax_multiplier,
        **view.json(),
    }


# ---- other extensions ----------------------------------------------------------------------


def tryable() -> dict[str, type[Extension]]:
    """Extensions that need no more than a factor and the trained length, by name."""
    return {cls.name: cls for cls in EXTENSIONS if _required(cls) <= {"factor", "original_length"}}


def try_extension(text: str, plan: RotaryPlan) -> tuple[Extension, RotaryPlan]:
    """Read `NAME:FACTOR`, and give the plan with this extension in place of what its rotating layers have.

    Further parameters follow after commas: `yarn:4,beta_fast=16,truncate=false`. `dynamic-yarn` takes no factor. The
    trained length is the plan's, unless `original_length` is given. Where layers with a sliding window stand beside
    others that rotate, they are left as they are: they never see the distances that an extension is for.

    >>> plan = RotaryPlan("llama", (LayerPlan("rope", "", 8, 8, layout="half", base=1e4),), original_length=4096)
    >>> try_extension("yarn:4,truncate=false", plan)[0].json()["original_length"]
    4096

    Raises:
        ValueError: an unknown extension or parameter (naming the nearest), a missing or impossible value, no trained
            length where one is needed, no layer that rotates.
    """
    head, *settings = [part.strip() for part in text.split(",")]
    name, colon, factor = head.partition(":")
    known = tryable()
    cls = known.get(name.strip().lower())
    if cls is None:
        raise ValueError(f"there is no extension {name!r} to try{_nearest(name, known)}; there are {', '.join(known)}")
    turning = [layer for layer in plan.layers if layer.kind == "rope"]
    if not turning:
        raise ValueError(f"no layer of this model rotates, so there is nothing that {cls.name} could extend")
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    values: dict[str, Any] = {}
    if colon:
        if "factor" not in names:
            raise ValueError(
                f"{cls.name} takes no factor (its factor is the length over the trained one), got {text!r}"
            )
        values["factor"] = _value(cls.name, "factor", factor, float)
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or key not in names:
            raise ValueError(
                f"{cls.name} has no parameter {key!r}{_nearest(key, names)}; there are {', '.join(names)}"
                if equals or key not in names
                else f"write {key}=VALUE, got {setting!r}"
            )
        if key in values:
            raise ValueError(f"{key} is given twice in {text!r}")
        values[key] = _value(cls.name, key, value, hints[key])
    if "factor" in _required(cls) and "factor" not in values:
        raise ValueError(f"{cls.name} needs a factor: {cls.name}:4, say")
    if "original_length" in names and "original_length" not in values:
        if plan.original_length is None:
            raise ValueError(
                f"{cls.name} counts from the trained length, which the configuration does not state: "
                f"give {head},original_length=8192, say"
            )
        values["original_length"] = plan.original_length
    extension = cls(**values)
    some_slide = any("sliding" not in layer.label for layer in turning)
    changed = tuple(
        replace(layer, extension=extension)
        if layer.kind == "rope" and not (some_slide and "sliding" in layer.label)
        else layer
        for layer in plan.layers
    )
    return extension, replace(plan, layers=changed)


def _required(cls: type[Extension]) -> set[str]:
    return {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}


def _value(owner: str, key: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{owner}: {key} is true or false, got {text!r}")
        return text.lower() == "true"
    if kind is not int and float not in (kind, *get_args(kind)):
        return text  # a word, which the extension itself checks
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{owner}: {key} is a number, got {text!r}") from None
    return int(number) if kind is int and math.isfinite(number) and number == int(number) else number


def _nearest(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    close = difflib.get_close_matches(word.strip().lower(), list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""
