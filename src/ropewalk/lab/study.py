"""A study as a record: what is claimed, the arms that are compared, the runs that takes, and how they are judged."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.lab.settings import Settings

TUNING_SEED = 1000


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared: settings without seed and learning rate."""

    label: str
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What it is called beside arms of its group: its encoding, or a label of its own."""
        return self.label.partition(", ")[0]

    @property
    def group(self) -> str:
        """The settings of the grid beside the encoding, which arms of one picture share; empty where there are none."""
        return self.label.partition(", ")[2]

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
