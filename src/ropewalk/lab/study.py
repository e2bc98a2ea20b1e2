"""A study: what is claimed, what would confirm or refute it, and the runs that decide. Written down before any of them.

    name = "row-e"                                    # TOML
    claim.en = "…"
    claim.ja = "…"
    source = "Attention Is All You Need, Table 3, row E"     # or source.en and source.ja
    minutes = 45                                      # the time that it may take on two cores

    [run]                                             # settings of all runs, as in `Settings`
    goal = "causal"
    steps = 600

    [tune]                                            # alike for every arm, on the validation part, with its own seed
    learning_rate = [1e-3, 3e-3, 1e-2]
    steps = 150

    [grid]                                            # all combinations are tried, each with every seed
    encoding = ["sinusoidal", "learned"]
    seed = [0, 1, 2]

    [[arm]]                                           # besides, settings that go together; then all of these × the grid
    label = "RoPE, half"
    options = { layout = "half" }

    [[expect]]                                        # one or more statements, judged by rule
    en = "…"
    ja = "…"
    equal = [{ encoding = "learned" }, { encoding = "sinusoidal" }]
    margin = 0.02

    [quick.run]                                       # what --quick changes
    steps = 40

A statement names arms by settings that pick exactly one, with `at`, the multiple of the trained length (1), and
`extension` if it is about one. It is one of

    better = {…}, than = {…}      by more than `margin` (0)
    equal = [{…}, {…}]            within `margin`
    arm = {…}                     at_least or at_most a value

`measure` is bits, accuracy, exact or convergence (the mean of all checks on the validation part).
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ropewalk.encodings import find
from ropewalk.lab.settings import Settings, nearest

TUNING_SEED = 1000
MEASURES = ("bits", "accuracy", "exact", "convergence")
_TOP = ("name", "claim", "source", "minutes", "run", "tune", "grid", "arm", "expect", "quick")
_STATEMENT = ("en", "ja", "better", "than", "equal", "arm", "at_least", "at_most", "margin", "measure")


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared: settings without seed and learning rate."""

    label: str
    settings: Mapping[str, Any]

    def matches(self, wanted: Mapping[str, Any]) -> bool:
        """Whether it has all these settings; options count one by one."""
        return all(
            all(self.settings.get("options", {}).get(k) == v for k, v in value.items())
            if key == "options"
            else self.settings.get(key) == value or (key == "label" and self.label == value)
            for key, value in wanted.items()
        )


@dataclass(frozen=True)
class Side:
    """What a statement is about: an arm, at a multiple of the trained length, with an extension or without."""

    arm: Arm
    at: int = 1
    extension: str | None = None


@dataclass(frozen=True)
class Statement:
    """What is expected, and by which rule it is judged."""

    text: Mapping[str, str]
    kind: str
    """better, equal or value."""
    sides: tuple[Side, ...]
    measure: str
    margin: float = 0.0
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    arm: Arm
    settings: Settings
    tuning: bool

    @property
    def folder(self) -> str:
        """Its name within the study's folder: told apart by a hash, readable by its label."""
        words = re.sub(r"[^a-z0-9]+", "-", self.arm.label.lower()).strip("-")
        digest = hashlib.sha256(json.dumps(self.settings.json(), sort_keys=True).encode()).hexdigest()[:8]
        kind = "tune" if self.tuning else f"seed{self.settings.seed}"
        return f"{words}-{kind}-{digest}"


@dataclass(frozen=True)
class Study:
    """A study, read and checked."""

    name: str
    claim: Mapping[str, str]
    source: Mapping[str, str]
    minutes: float
    common: Mapping[str, Any]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    tune: Mapping[str, Any]
    statements: tuple[Statement, ...]
    quick: bool
    document: Mapping[str, Any]
    """As it was written, with what --quick changes."""

    @property
    def digest(self) -> str:
        """Names this very study: its results belong to no other."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True).encode()).hexdigest()[:16]

    def settings(self, arm: Arm, **more: Any) -> Settings:
        """Of a run of that arm."""
        merged = {**self.common, **arm.settings, **more}
        merged["options"] = {**self.common.get("options", {}), **arm.settings.get("options", {})}
        return Settings.from_json({"threads": 1, **merged})

    def tuning(self) -> list[Run]:
        """Short runs, one for each learning rate of each arm; they leave the test part alone."""
        if not self.tune:
            return []
        steps = self.tune.get("steps", self.common.get("steps", Settings.steps))
        return [
            Run(
                arm,
                self.settings(arm, learning_rate=rate, steps=steps, seed=TUNING_SEED, test_tokens=0, extensions=()),
                True,
            )
            for arm in self.arms
            for rate in self.tune["learning_rate"]
        ]

    def runs(self, rates: Mapping[str, float]) -> list[Run]:
        """The runs that are compared, a seed of all arms at a time, so that a study cut short is still balanced."""
        return [
            Run(
                arm,
                self.settings(arm, seed=seed, **({"learning_rate": rates[arm.label]} if arm.label in rates else {})),
                False,
            )
            for seed in self.seeds
            for arm in self.arms
        ]


def read(path: Path, *, quick: bool = False) -> Study:
    """Read a study from TOML (or the same in JSON), and check all of it before anything runs.

    Raises:
        ValueError: no such file, no TOML, an unknown key (naming the nearest), settings that are not possible, or a
            statement that picks no arm or several.
        ModuleNotFoundError: Python 3.10 without tomli.
    """
    if not path.is_file():
        raise ValueError(f"there is no study {path}")
    text = path.read_bytes()
    try:
        document = json.loads(text) if path.suffix == ".json" else _toml(text.decode())
    except ValueError as error:  # a fault of TOML, JSON or UTF-8
        raise ValueError(f"{path} cannot be read: {error}") from error
    try:
        return of(document, quick=quick)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _toml(text: str) -> Any:
    reader: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return reader.loads(text)


def of(document: Any, *, quick: bool = False) -> Study:
    """A study from its document.

    Raises:
        ValueError: as in `read`.
    """
    _keys(document, _TOP, "a study")
    for key in ("name", "claim", "source"):
        if key not in document:
            raise ValueError(f"a study has a {key}, and this one has none")
    changes = document.get("quick", {})
    _keys(changes, ("run", "tune", "grid", "minutes"), "quick")
    document = {k: v for k, v in document.items() if k != "quick"}
    if quick:
        for key, change in changes.items():
            document[key] = {**document.get(key, {}), **change} if isinstance(change, dict) else change
    names = [f.name for f in fields(Settings)]
    for what, known in (("run", names), ("grid", names), ("tune", ("learning_rate", "steps"))):
        _keys(document.get(what, {}), known, what)
    common, grid, tune = (dict(document.get(key, {})) for key in ("run", "grid", "tune"))
    if tune and not _is_list(tune.get("learning_rate")):
        raise ValueError("tune has a list of learning rates, learning_rate = [1e-3, 3e-3] say")
    for key, value in grid.items():
        if not _is_list(value):
            raise ValueError(f"grid.{key} is a list of values to try, got {value!r}")
    seeds = tuple(grid.pop("seed", [0]))
    minutes = document.get("minutes", 60)
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or not minutes > 0:
        raise ValueError(f"minutes is a number above 0, got {minutes!r}")
    arms = _arms(document.get("arm", [{}]), grid, names, common)
    study = Study(
        str(document["name"]),
        _both(document["claim"], "claim"),
        _both(document["source"], "source"),
        float(minutes),
        common,
        arms,
        seeds,
        tune,
        tuple(_statement(s, arms, common) for s in document.get("expect", [])),
        quick,
        document,
    )
    study.tuning(), study.runs({})  # made, to see that each of them is possible
    for side in (side for statement in study.statements for side in statement.sides):
        if side.extension not in (None, *study.settings(side.arm).extensions):
            raise ValueError(f"{side.extension} is not among the extensions of its runs")
    return study


def _arms(given: Any, grid: dict[str, list[Any]], names: list[str], common: Mapping[str, Any]) -> tuple[Arm, ...]:
    arms = []
    for own in given if isinstance(given, list) else [given]:
        _keys(own, ("label", *names), "arm")
        for values in itertools.product(*grid.values()):
            settings = {**own, **dict(zip(grid, values, strict=True))}
            label = settings.pop("label", None)
            settings["options"] = {**own.get("options", {}), **settings.get("options", {})}
            encoding = settings.get("encoding", common.get("encoding", Settings.encoding))
            settings["encoding"] = find(encoding).name
            parts = [label or find(encoding).label, *(str(settings[k]) for k in grid if k != "encoding")]
            arms.append(Arm(", ".join(parts), settings))
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ValueError(f"two arms are called {twice!r}; give each a label of its own")
    return tuple(arms)


def _statement(given: Any, arms: tuple[Arm, ...], common: Mapping[str, Any]) -> Statement:
    _keys(given, _STATEMENT, "expect")
    text = _both({key: given[key] for key in ("en", "ja") if key in given}, "expect")
    kinds = [kind for kind in ("better", "equal", "arm") if kind in given]
    if len(kinds) != 1:
        raise ValueError(f"{text['en']!r} has one of better, equal, arm; got {', '.join(kinds) or 'none'}")
    (kind,) = kinds
    if kind == "better" and "than" not in given:
        raise ValueError(f"{text['en']!r} says better, but not than what")
    if kind == "equal" and not (_is_list(given["equal"]) and len(given["equal"]) == 2 and "margin" in given):
        raise ValueError(f"{text['en']!r}: equal is a list of two, with a margin")
    if kind == "arm" and len({"at_least", "at_most"} & set(given)) != 1:
        raise ValueError(f"{text['en']!r} gives one of at_least and at_most")
    goal = str(common.get("goal", "causal"))
    measure = given.get("measure", "bits" if goal in ("causal", "masked") else "accuracy")
    if measure not in MEASURES:
        raise ValueError(f"measure is one of {', '.join(MEASURES)}; got {measure!r}{nearest(measure, MEASURES)}")
    picked = (
        [given["better"], given["than"]] if kind == "better" else given["equal"] if kind == "equal" else [given["arm"]]
    )
    return Statement(
        text,
        "value" if kind == "arm" else kind,
        tuple(_side(one, arms) for one in picked),
        measure,
        float(given.get("margin", 0.0)),
        given.get("at_least"),
        given.get("at_most"),
    )


def _side(given: Any, arms: tuple[Arm, ...]) -> Side:
    wanted = dict(given)
    at, extension = wanted.pop("at", 1), wanted.pop("extension", None)
    found = [arm for arm in arms if arm.matches(wanted)]
    if len(found) != 1:
        labels = ", ".join(arm.label for arm in found or arms)
        raise ValueError(f"{wanted} picks {len(found)} arms, where it should pick one of {labels}")
    return Side(found[0], at, extension)


def _keys(table: Any, known: Any, what: str) -> None:
    if not isinstance(table, dict):
        raise ValueError(f"{what} is a table, got {table!r}")
    for key in table:
        if key not in known:
            raise ValueError(f"{what} has no key {key!r}{nearest(key, known)}; there are {', '.join(known)}")


def _both(text: Any, what: str) -> Mapping[str, str]:
    if isinstance(text, str):
        return {"en": text, "ja": text}
    if not isinstance(text, dict) or "en" not in text:
        raise ValueError(f"{what} is said in English (en), and better in Japanese (ja) too")
    return {"en": text["en"], "ja": text.get("ja", text["en"])}


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0
