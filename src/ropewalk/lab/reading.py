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

import importlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ropewalk.encodings import find
from ropewalk.lab.settings import Settings
from ropewalk.lab.study import Arm, Side, Statement, Study
from ropewalk.lab.tables import both, distinct, is_number, keys, nearest, options, tables
from ropewalk.protocol import expect

MEASURES = ("bits", "accuracy", "exact", "convergence")
IN_BITS = ("causal", "masked")
_SETTINGS = tuple(f.name for f in fields(Settings))
_TOP = ("name", "claim", "source", "minutes", "run", "tune", "grid", "arm", "expect", "quick")
_TABLES = {"run": _SETTINGS, "grid": _SETTINGS, "tune": ("learning_rate", "steps")}
_STATEMENT = ("en", "ja", "better", "than", "equal", "arm", "at_least", "at_most", "margin", "measure")


def read(path: Path, *, quick: bool = False) -> Study:
    """Read a study from TOML (or the same in JSON), and check all of it before anything runs.

    Raises:
        ValueError: no such file, no TOML, an unknown key (naming the nearest), settings that are not possible, or a
            statement that picks no arm or several.
        ModuleNotFoundError: Python 3.10 without tomli.
    """
    if not path.is_file():
        raise ValueError(f"there is no study {path}")
    try:
        text = path.read_bytes()
        document = json.loads(text) if path.suffix == ".json" else _toml(text.decode())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # a fault of TOML, JSON or UTF-8
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
    document = _checked(document, quick)
    common, grid, tune = (dict(document.get(key, {})) for key in _TABLES)
    seeds = tuple(grid.pop("seed", [0]))
    arms = _arms(document.get("arm", [{}]), grid, common)
    study = Study(
        name=document["name"],
        claim=both(document["claim"], "claim"),
        source=both(document["source"], "source"),
        minutes=float(document.get("minutes", 60)),
        common=common,
        arms=arms,
        seeds=seeds,
        tune=tune,
        statements=tuple(_statement(s, arms, common) for s in tables(document.get("expect", []), "expect")),
        quick=quick,
        document=document,
    )
    study.tuning(), study.runs({})  # made, to see that each of them is possible
    for statement in study.statements:
        for side in statement.sides:
            _measurable(side, statement.measure, study.settings(side.arm))
    return study


def _checked(document: Any, quick: bool) -> dict[str, Any]:
    """The document with what --quick changes, after all has been looked at that concerns it as a whole."""
    keys(document, _TOP, "a study")
    for key in ("name", "claim", "source"):
        expect(key in document, f"a study has a {key}, and this one has none")
    name = document["name"]
    fits = isinstance(name, str) and name.strip() not in ("", ".", "..") and not {"/", "\\"} & set(name)
    expect(fits, f"name is a word that a folder can have, got {name!r}")
    changes = document.get("quick", {})
    keys(changes, ("run", "tune", "grid", "minutes"), "quick")
    for key, known in _TABLES.items():
        keys(document.get(key, {}), known, key)
        keys(changes.get(key, {}), known, f"quick.{key}")
    made: dict[str, Any] = {k: v for k, v in document.items() if k != "quick"}
    if quick:
        for key, change in changes.items():
            made[key] = {**made.get(key, {}), **change} if isinstance(change, dict) else change
    minutes, tune = made.get("minutes", 60), made.get("tune", {})
    expect(is_number(minutes) and minutes > 0, f"minutes is a number above 0, got {minutes!r}")
    if tune:
        wanted = "tune has a list of learning rates, learning_rate = [1e-3, 3e-3] say"
        expect(isinstance(tune.get("learning_rate"), list), wanted)
        distinct(tune["learning_rate"], "tune.learning_rate")
    for key, value in made.get("grid", {}).items():
        distinct(value, f"grid.{key}")
    expect("seed" not in made.get("run", {}), "seeds stand in grid, as seed = [0, 1, 2]; run has none")
    return made


def _arms(given: Any, grid: dict[str, list[Any]], common: Mapping[str, Any]) -> tuple[Arm, ...]:
    arms = []
    options(common, "run")
    for own in given if isinstance(given, list) else [given]:
        keys(own, ("label", *(name for name in _SETTINGS if name != "seed")), "arm")
        options(own, "arm")
        for values in itertools.product(*grid.values()):
            settings = {**own, **dict(zip(grid, values, strict=True))}
            options(settings, "grid")
            label = settings.pop("label", None)
            expect(label is None or (isinstance(label, str) and label != ""), f"label is a word, got {label!r}")
            settings["options"] = {**own.get("options", {}), **settings.get("options", {})}
            encoding = settings.get("encoding", common.get("encoding", Settings.encoding))
            expect(isinstance(encoding, str), f"encoding is a name, got {encoding!r}")
            settings["encoding"] = find(encoding).name
            parts = [label or find(encoding).label, *(str(settings[k]) for k in grid if k != "encoding")]
            arms.append(Arm(", ".join(parts), settings))
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ValueError(f"two arms are called {twice!r}; give each a label of its own")
    return tuple(arms)


def _statement(given: Any, arms: tuple[Arm, ...], common: Mapping[str, Any]) -> Statement:
    keys(given, _STATEMENT, "expect")
    text = both({key: given[key] for key in ("en", "ja") if key in given}, "expect")
    said = repr(text["en"])
    kinds = [kind for kind in ("better", "equal", "arm") if kind in given]
    expect(len(kinds) == 1, f"{said} has one of better, equal, arm; got {', '.join(kinds) or 'none'}")
    (kind,) = kinds
    equal = given.get("equal")
    two = isinstance(equal, list) and len(equal) == 2 and "margin" in given
    expect(kind != "better" or "than" in given, f"{said} says better, but not than what")
    expect(kind != "equal" or two, f"{said}: equal is a list of two, with a margin")
    bounds = [key for key in ("at_least", "at_most") if key in given]
    expect(kind != "arm" or len(bounds) == 1, f"{said} gives one of at_least and at_most")
    for key in ("margin", *bounds):
        value = given.get(key, 0.0)
        expect(is_number(value), f"{said}: {key} is a number, got {value!r}")
    expect(kind != "equal" or given["margin"] >= 0, f"{said}: margin is 0 or more, got {given.get('margin')!r}")
    picked = [given["better"], given["than"]] if kind == "better" else equal if kind == "equal" else [given["arm"]]
    sides = tuple(_side(one, arms) for one in picked or ())
    goal = sides[0].arm.settings.get("goal", common.get("goal", Settings.goal))
    measure = given.get("measure", "bits" if goal in IN_BITS else "accuracy")
    expect(measure in MEASURES, f"measure is one of {', '.join(MEASURES)}; got {measure!r}{nearest(measure, MEASURES)}")
    return Statement(
        text,
        "value" if kind == "arm" else kind,
        sides,
        measure,
        float(given.get("margin", 0.0)),
        given.get("at_least"),
        given.get("at_most"),
    )


def _side(given: Any, arms: Sequence[Arm]) -> Side:
    expect(isinstance(given, dict), f"an arm is picked by settings, {{ encoding = 'rope' }} say; got {given!r}")
    options(given, "an arm")
    wanted = dict(given)
    at, extension = wanted.pop("at", 1), wanted.pop("extension", None)
    found = [arm for arm in arms if arm.matches(wanted)]
    if len(found) != 1:
        labels = ", ".join(arm.label for arm in found or arms)
        raise ValueError(f"{wanted} picks {len(found)} arms, where it should pick one of {labels}")
    return Side(found[0], at, extension)


def _measurable(side: Side, measure: str, settings: Settings) -> None:
    """See that its runs will have measured this, there."""
    expect(side.extension in (None, *settings.extensions), f"{side.extension} is not among the extensions of its runs")
    if measure == "convergence":
        return
    lengths = ", ".join(map(str, settings.lengths))
    expect(side.at in settings.lengths, f"at = {side.at!r} is not among the lengths of its runs, {lengths}")
    expect((measure == "bits") == (settings.goal in IN_BITS), f"{settings.goal} is not measured in {measure}")
