"""What a study found: values of each arm, and a verdict on each statement, by the rule that it states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from ropewalk.lab.conduct import STUDY, rates, result_of
from ropewalk.lab.saving import read_json
from ropewalk.lab.statistics import Difference, compare
from ropewalk.lab.study import Arm, Side, Statement, Study

Verdict = Literal["holds", "does not hold", "open", "not measured"]

WORDS: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "成り立つ"),
    "does not hold": ("does not hold", "成り立たない"),
    "open": ("open", "判定できない"),
    "not measured": ("not measured", "測れない"),
}
"""Verdicts in English and Japanese."""


@dataclass(frozen=True)
class Judged:
    """A statement, what was measured for it, and what follows."""

    statement: Statement
    verdict: Verdict
    why: str = ""
    """Why nothing was measured, if so."""
    difference: Difference | None = None
    """The first side less the second; of a value less its bound."""
    values: tuple[float, ...] = ()
    """The mean of each side."""


@dataclass(frozen=True)
class Found:
    """The results of an arm, seed by seed."""

    arm: Arm
    rate: float | None
    results: tuple[dict[str, Any], ...]

    def only(self, seeds: set[int]) -> Found:
        """The results of these seeds, in their order."""
        some = sorted((r for r in self.results if r["settings"]["seed"] in seeds), key=lambda r: r["settings"]["seed"])
        return Found(self.arm, self.rate, tuple(some))

    def values(self, measure: str, at: int = 1, extension: str | None = None) -> list[float]:
        """The value of each seed; none where it is refused or was not measured."""
        if measure == "convergence":
            return [fmean(value for _, value in r["validation"]) for r in self.results]
        entries = [entry(r, at, extension) for r in self.results]
        return [e[measure] for e in entries if e is not None and measure in e]

    def blocks(self, measure: str, at: int, extension: str | None) -> list[list[float]]:
        """Finer than that, stretch by stretch of the text, where there is such a thing."""
        if measure in ("bits", "accuracy"):
            entries = [entry(r, at, extension) for r in self.results]
            found = [e["blocks"] for e in entries if e is not None and e.get("blocks")]
            if len(found) == len(self.results) and len({len(b) for b in found}) == 1:
                return found
        return [[value] for value in self.values(measure, at, extension)]


def entry(result: dict[str, Any], at: int, extension: str | None = None) -> dict[str, Any] | None:
    """What one run found at a multiple of its length."""
    entries = result["test"] if extension is None else result["extensions"].get(extension, [])
    return next((e for e in entries if e["multiple"] == at), None)


def spread(values: list[float]) -> float | None:
    """The standard deviation over seeds; None for a single one."""
    return stdev(values) if len(values) > 1 else None


def gather(folder: Path, study: Study) -> list[Found]:
    """All results that are there, arm by arm."""
    chosen = rates(folder, study)
    by_arm: dict[str, list[dict[str, Any]]] = {arm.label: [] for arm in study.arms}
    for run in study.runs(chosen):
        result = result_of(folder, run)
        if result is not None:
            by_arm[run.arm.label].append(result)
    return [Found(arm, chosen.get(arm.label), tuple(by_arm[arm.label])) for arm in study.arms]


def judge(study: Study, found: list[Found]) -> list[Judged]:
    """All statements."""
    by_label = {f.arm.label: f for f in found}
    return [_judge(statement, [(by_label[s.arm.label], s) for s in statement.sides]) for statement in study.statements]


def _judge(statement: Statement, sides: list[tuple[Found, Side]]) -> Judged:
    measure = statement.measure
    shared = set.intersection(*({r["settings"]["seed"] for r in f.results} for f, _ in sides))
    sides = [(f.only(shared), side) for f, side in sides]  # a study cut short may have more seeds of one arm
    blocks = []
    for f, side in sides:
        values = f.blocks(measure, side.at, side.extension)
        if not values:
            refused = [e.get("refused") for r in f.results if (e := entry(r, side.at, side.extension)) is not None]
            why = next((r for r in refused if r), "no run has ended")
            return Judged(statement, "not measured", f"{f.arm.label}: {why}")
        blocks.append(values)
    seeds = len(shared)
    if statement.kind == "value":
        bound = statement.at_least if statement.at_least is not None else statement.at_most
        assert bound is not None
        difference = compare(blocks[0], [[bound] * len(row) for row in blocks[0]])
        sign = 1 if statement.at_least is not None else -1
        verdict = _side_of_zero(sign * difference.low, sign * difference.high, seeds, touching=True)
        return Judged(statement, verdict, "", difference, (difference.mean + bound,))
    if len(blocks[0][0]) != len(blocks[1][0]):
        blocks = [[[fmean(row)] for row in side] for side in blocks]
    difference = compare(*blocks)
    means = tuple(fmean(map(fmean, side)) for side in blocks)
    if statement.kind == "equal":
        inside = -statement.margin <= difference.low and difference.high <= statement.margin
        outside = difference.low > statement.margin or difference.high < -statement.margin
        if seeds < 2:
            return Judged(statement, "open", "", difference, means)
        return Judged(statement, "holds" if inside else "does not hold" if outside else "open", "", difference, means)
    fewer = measure == "bits" or (measure == "convergence" and sides[0][0].results[0]["measure"] == "bits")
    better = -1 if fewer else 1
    verdict = _side_of_zero(
        better * difference.low - statement.margin, better * difference.high - statement.margin, seeds
    )
    return Judged(statement, verdict, "", difference, means)


def _side_of_zero(one: float, other: float, seeds: int, *, touching: bool = False) -> Verdict:
    """Whether an interval lies above zero; a single seed decides nothing."""
    low, high = min(one, other), max(one, other)
    if seeds < 2:
        return "open"
    return "holds" if low > 0 or (touching and low == 0) else "does not hold" if high < 0 else "open"


def document(folder: Path, study: Study) -> dict[str, Any]:
    """All of it as JSON: the claim, the command and the machine, curves and values of each seed, verdicts."""
    about = read_json(folder / STUDY)
    found = gather(folder, study)
    return {
        "schema": "ropewalk.findings/1",
        "study": study.name,
        "claim": dict(study.claim),
        "source": dict(study.source),
        "digest": study.digest,
        "quick": study.quick,
        "command": about["command"],
        "machine": about["machine"],
        "seeds": list(study.seeds),
        "document": dict(study.document),
        "arms": [_arm(f) for f in found],
        "statements": [_statement(one) for one in judge(study, found)],
    }


def variants(f: Found) -> list[str | None]:
    """None for the arm as it was trained, then the extensions that it was measured with."""
    return [None, *dict.fromkeys(x for r in f.results for x in r["extensions"])]


def _arm(f: Found) -> dict[str, Any]:
    head = {"label": f.arm.label, "name": f.arm.name, "group": f.arm.group, "encoding": f.arm.settings["encoding"]}
    if not f.results:
        return {**head, "learning_rate": f.rate, "seeds": []}
    first = f.results[0]
    return {
        **head,
        "learning_rate": f.rate,
        "seeds": [r["settings"]["seed"] for r in f.results],
        "measure": first["measure"],
        "length": first["settings"]["length"],
        "parameters": first["parameters"],
        "encoding_parameters": first["encoding_parameters"],
        "seconds": [round(r["seconds"]["training"] + r["seconds"]["testing"], 1) for r in f.results],
        "validation": {
            "steps": [step for step, _ in first["validation"]],
            "values": [[_short(value) for _, value in r["validation"]] for r in f.results],
        },
        "test": [_tested(f, extension, at) for extension in variants(f) for at in first["settings"]["lengths"]],
        "by_position": [_spans(f, extension) for extension in variants(f)],
    }


def _tested(f: Found, extension: str | None, at: int) -> dict[str, Any]:
    """The value of each seed at one length."""
    entries = [e for r in f.results if (e := entry(r, at, extension)) is not None]
    measures = ["bits"] if f.results[0]["measure"] == "bits" else ["accuracy", "exact"]
    values = {m: [_short(e[m]) for e in entries if m in e] for m in measures}
    refused = next((e["refused"] for e in entries if "refused" in e), None)
    return {"extension": extension, "multiple": at, **({"refused": refused} if refused else values)}


def _spans(f: Found, extension: str | None) -> dict[str, Any]:
    """Of each span of positions, at the longest length that was measured."""
    multiples = sorted({e["multiple"] for e in f.results[0]["test"]}, reverse=True)
    for at in multiples:
        entries = [e for r in f.results if (e := entry(r, at, extension)) is not None and "by_position" in e]
        if entries:
            spans = [
                {"from": s["from"], "to": s["to"], "values": [_short(e["by_position"][n]["mean"]) for e in entries]}
                for n, s in enumerate(entries[0]["by_position"])
            ]
            return {"extension": extension, "multiple": at, "spans": spans}
    return {"extension": extension, "multiple": None, "spans": []}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _statement(one: Judged) -> dict[str, Any]:
    d = one.difference
    return {
        "text": dict(one.statement.text),
        "measure": one.statement.measure,
        "verdict": one.verdict,
        "why": one.why,
        "values": list(one.values),
        "difference": None if d is None else {"mean": d.mean, "low": d.low, "high": d.high, "seeds": list(d.seeds)},
    }
