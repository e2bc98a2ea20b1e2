"""The benchmark of attention: what it measures is right, what it writes has the promised shape; never how fast."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from ropewalk import ENCODINGS, rotate
from ropewalk.benchmark import oracle as rotation_oracle
from ropewalk.benchmark import peers, timing
from ropewalk.benchmark import run as rotation_run
from ropewalk.benchmark import targets as rotation_targets
from ropewalk.benchmark.attention import memory, report, run, targets
from ropewalk.benchmark.attention.cell import DTYPES, ROWS, Cell, Work, some_of
from ropewalk.benchmark.attention.memory import Trial, extra
from ropewalk.benchmark.attention.oracle import wanted
from ropewalk.benchmark.attention.ways import call, ways
from ropewalk.benchmark.timing import Contender, Patience
from ropewalk.cli import bench, main

JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
TINY = ("--lengths", "48,96", "--dtypes", "float32", "--threads", "1", "--quick", "--encodings")
NAMES = {option.name: option for option in bench.attention.command.params}["encodings"].type.words
tells_memory = pytest.mark.skipif(
    extra(lambda: ()) is None, reason="the system does not tell the highest amount of memory"
)


def command(*args: str, code: int = 0) -> Result:
    env = {"LC_ALL": "en_US.UTF-8", "COLUMNS": "80"}
    result = CliRunner().invoke(main, ["bench", "attention", *args], env=env)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


class InThisProcess(Trial):
    """Tries contenders where the tests run, which is quicker, and leaves out what compiles."""

    def __call__(self, cell: Cell, name: str) -> dict[str, Any]:
        return {"skipped": "time", "limit_seconds": 0.0} if name == "flex" else memory.tried(cell, name)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Trial", InThisProcess)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Trial", InThisProcess)
        return json.loads(command(*TINY, "rope,alibi,shaw", "--json").stdout)


# What is measured is right.


@pytest.mark.parametrize("length", [40, 300])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("part", run.PARTS)
@pytest.mark.parametrize("encoding", NAMES)
def test_every_contender_is_right(encoding: str, part: str, dtype: str, length: int) -> None:
    cell = Cell(part, encoding, dtype, length, 1)
    work = Work.of(cell)
    there = {name: way for name, way in ways(cell, work).items() if name != "flex"}
    made = run._contenders(cell, work, there)
    assert [c.name for c in made] == list(there)
    for contender in made:
        assert contender.wanted.error(contender.call()) <= contender.wanted.allowed(contender), contender.name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch's compiler
def test_flex_attention_is_right_too() -> None:
    for encoding in ("alibi", "t5"):
        cell = Cell("forward", encoding, "float32", 128, 1)
        work = Work.of(cell)
        (contender,) = run._contenders(cell, work, {"flex": ways(cell, work)["flex"]})
        assert contender.wanted.error(contender.call()) <= contender.wanted.allowed(contender)


def test_who_takes_part() -> None:
    def names(encoding: str, part: str = "forward") -> set[str]:
        cell = Cell(part, encoding, "float32", 8, 1)
        return set(ways(cell, Work.of(cell)))

    assert names("rope") == names("cope") == {"plain", "attend"}
    assert names("shaw") == {"plain", "attend", "materialised"}
    assert names("alibi") == names("t5") == {"plain", "attend", "materialised", "flex"}
    assert names("kerple", "trained") == {"plain", "attend", "materialised"}  # FlexAttention trains on GPUs only
    unmeasured = {"nope", "sinusoidal", "learned", "fire"}  # nothing to add to a score; a gradient that is truly zero
    assert set(NAMES) == {cls.name for cls in ENCODINGS} - unmeasured


@pytest.mark.parametrize("part", run.PARTS)
def test_a_wrong_result_is_seen(part: str) -> None:
    cell = Cell(part, "t5", "float32", 200, 1)
    work = Work.of(cell)
    right = wanted(cell, work, encoded=True)
    results = call(cell, work, ways(cell, work)["attend"])()
    assert len(results) == (1 if part == "forward" else 4)
    assert right.error(results) < 1e-5
    for n, result in enumerate(results):
        off = list(results)
        off[n] = result.clone()
        off[n].view(-1)[-1] += result.abs().max()
        assert right.error(off) > 0.3, n
        off[n].view(-1)[-1] = torch.nan
        assert right.error(off) == float("inf")
        off[n] = result.double()
        assert right.error(off) == float("inf")
    without = wanted(cell, work, encoded=False)
    plain = call(cell, work, ways(cell, work)["plain"])()
    assert without.error(plain) < 1e-5
    assert right.error([*plain, *results[len(plain) :]]) > 0.01  # attention without the bias is something else


def test_the_rows_compared() -> None:
    assert some_of(ROWS).tolist() == list(range(ROWS))
    assert (int(some_of(16384)[0]), int(some_of(16384)[-1]), len(some_of(16384).unique())) == (0, 16383, ROWS)
    work = Work.of(Cell("trained", "alibi", "bfloat16", 100, 1))
    assert work.upstream.abs().sum((0, 1, 3)).nonzero().flatten().tolist() == some_of(100).tolist()
    again = Work.of(Cell("trained", "alibi", "bfloat16", 100, 1))
    assert torch.equal(work.q, again.q)


# Memory.


@tells_memory
def test_extra_memory_is_what_a_call_needs_at_once_without_its_results() -> None:
    def needing(mib: int) -> tuple[torch.Tensor]:
        for _ in range(3):  # one after the other, so no more than once
            torch.ones(mib, 2**18)
        return (torch.ones(8, 2**18),)

    needing(1)
    for mib in (64, 128):
        found = extra(lambda mib=mib: needing(mib))  # type: ignore[misc]
        assert found is not None
        assert abs(found / 2**20 - (mib - 8)) < 6  # the result is made after the rest is given back


@pytest.mark.slow
@tells_memory
def test_contenders_are_tried_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("forward", "alibi", "float32", 1024, 1)
    with Trial() as trial:
        ours, theirs = (trial(cell, name)["extra_bytes"] for name in ("attend", "materialised"))
        assert ours < 16 * 2**20
        assert theirs > 32 * 2**20  # 8 heads, 1024 · 1024 numbers of four bytes, at least
        huge = trial(replace(cell, length=2**20), "materialised")
        assert huge["skipped"] == "memory"
        assert huge["needs_bytes"] > 2**45 > huge["free_bytes"] > 0
        assert trial(cell, "nobody") == {"skipped": "failed", "why": "KeyError: 'nobody'"}
        trial._process.kill()
        assert trial(cell, "attend")["skipped"] == "failed"
        monkeypatch.setattr(memory, "LIMIT", 0.0)
        assert trial(cell, "materialised") == {"skipped": "time", "limit_seconds": 0.0}
        assert trial(cell, "attend")["extra_bytes"] < 16 * 2**20  # another process has taken its place
        last = trial._process
    assert not last.is_alive()


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_status", lambda field: None)
    assert memory.tried(Cell("forward", "alibi", "float32", 8, 1), "materialised") == {"extra_bytes": None}
    assert report.size(None) == "?"


# What is written.


def test_the_document_has_all_that_was_asked_for(found: dict[str, Any]) -> None:
    assert list(found) == ["schema", "machine", "cells", "targets"]
    assert found["schema"] == "ropewalk.bench.attention/1"
    assert [(c["length"], c["part"], c["encoding"]) for c in found["cells"]] == [
        (length, part, encoding)
        for length in (48, 96)
        for part in ("forward", "trained")
        for encoding in ("rope", "shaw", "alibi")
    ]
    for cell in found["cells"]:
        assert cell["device"] == "cpu"
        for row in cell["rows"]:
            if row["contender"] == "flex":
                assert (cell["encoding"], cell["part"], row["skipped"]) == ("alibi", "forward", "time")
                continue
            assert "error" not in row, row
            assert row["seconds"] > 0
            assert row["over"]["plain"]["low"] > 0
            assert row["extra_bytes"] is None or row["extra_bytes"] >= 0
    paths = {c["encoding"]: row["path"] for c in found["cells"] for row in c["rows"] if row["contender"] == "attend"}
    assert paths == {"rope": "sdpa", "shaw": "blocks", "alibi": "strip"}


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_report(language: str, tmp_path: Path, here: None) -> None:
    file = tmp_path / "results.md"
    result = command(*TINY, "alibi,shaw", "--markdown", str(file), "--lang", language)
    text = file.read_text(encoding="utf-8")
    assert bool(JAPANESE.search(text)) == bool(JAPANESE.search(result.stdout)) == (language == "ja")
    for printed in (text, result.stdout):
        assert "ALiBi, attend" in printed
        assert re.search(r"\d\.\d\d, \d+(\.\d)? MiB", printed)
        assert "ALiBi: strip" in printed
        assert "Shaw: blocks" in printed
        assert ("more than 0 s" if language == "en" else "0 秒を超える") in printed
    for table in [t for t in text.split("\n\n") if t.startswith("|")]:
        assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.parametrize("language", ["en", "ja"])
def test_every_reason_is_said(language: Any) -> None:
    reasons = (
        {"skipped": "memory", "needs_bytes": 26 * 2**30, "free_bytes": 2**34},
        {"skipped": "time", "limit_seconds": 60.0},
        {"skipped": "failed", "why": "InductorError: no"},
    )
    cells = [
        {"part": "forward", "encoding": "t5", "dtype": "float32", "length": n, "threads": 2, "device": "cpu"}
        | {"rows": [{"contender": "materialised", **reason}]}
        for reason in reasons
        for n in (8192, 16384)
    ]
    lines = report.left_out({"cells": cells}, language)
    assert len(lines) == 3
    assert all("8,192" in line and "16,384" in line and "T5" in line for line in lines)
    assert "26.0" in lines[0]
    assert "16.0" in lines[0]
    assert "60" in lines[1]
    assert lines[2].endswith("InductorError: no")


def test_it_goes_on_from_what_the_file_has(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    command("--lengths", "48", *TINY[2:], "alibi", "--no-backward", "--json", str(file))
    before = json.loads(file.read_text(encoding="utf-8"))["cells"]
    measured = []
    monkeypatch.setattr(run, "rows", lambda cell, *_: measured.append(cell) or [])
    command(*TINY, "alibi,rope", "--no-backward", "--json", str(file))
    assert [(c.encoding, c.length) for c in measured] == [("rope", 48), ("rope", 96), ("alibi", 96)]
    assert [c for c in json.loads(file.read_text(encoding="utf-8"))["cells"] if c["rows"]] == before


def test_a_wrong_result_is_not_timed(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.benchmark.attention.ways.attend", lambda q, *_: q * 0.5)
    result = command("--lengths", "48", *TINY[2:], "rope", "--no-backward", "--json", code=1)
    (row,) = [r for c in json.loads(result.stdout)["cells"] for r in c["rows"] if r["contender"] == "attend"]
    assert row["error"] > row["allowed"] > 0
    assert "seconds" not in row
    assert "Wrong result, not timed: attend rope (forward, float32, 48)" in result.stderr


# Targets.


def a_cell(target: targets.Target, threads: int = 1, **rows: Any) -> dict[str, Any]:
    where = {n: getattr(target, n) for n in ("part", "encoding", "dtype", "length")}
    return {**where, "threads": threads, "device": "cpu", "rows": [{"contender": n, **r} for n, r in rows.items()]}


def time_of(median: float, mib: float = 0.0) -> dict[str, Any]:
    return {"over": {"plain": {"median": median}}, "extra_bytes": int(mib * 2**20)}


def test_targets_are_judged_by_the_worst_number_of_threads() -> None:
    def verdict(over: str, *cells: dict[str, Any]) -> Any:
        return next(t["met"] for t in targets.judge(cells) if (t["encoding"], t["over"]) == ("alibi", over))

    time_target, matrix_target, memory_target = targets.TARGETS[:3]
    assert (time_target.limit, matrix_target.limit, memory_target.limit) == (1.45, 0.25, 64)
    good, bad = (time_of(ratio, 1) for ratio in (1.45, 1.46))
    plain = time_of(1.0)
    assert verdict("plain", a_cell(time_target, attend=good, plain=plain)) is True
    both = [a_cell(time_target, n, attend=row, plain=plain) for n, row in ((1, good), (2, bad))]
    assert verdict("plain", *both) is False
    assert verdict("materialised", *both) is None
    assert verdict("materialised", a_cell(time_target, attend=time_of(1.2), materialised=time_of(4.8))) is True
    assert verdict("materialised", a_cell(time_target, attend=time_of(1.2), materialised=time_of(4.7))) is False
    assert verdict("materialised", a_cell(time_target, attend=time_of(1.2), materialised={"skipped": "time"})) is None
    assert verdict("memory", a_cell(time_target, attend=time_of(9.0, 64))) is True
    assert verdict("memory", a_cell(time_target, attend=time_of(1.0, 64.5))) is False
    assert verdict("memory", a_cell(time_target, attend={"extra_bytes": None, "over": {}})) is None
    assert verdict("plain", a_cell(time_target, attend={"error": 1.0, "allowed": 0.1}, plain=plain)) is None
    assert verdict("plain", {**a_cell(time_target, attend=good, plain=plain), "device": "cuda"}) is None


def test_every_target_is_measured_if_asked_for() -> None:
    asked = run.Plan(NAMES, (1024, 4096, 8192, 16384), tuple(DTYPES), (1,), backward=True)
    cells = {(c.part, c.encoding, c.dtype, c.length) for c in asked.cells()}
    for t in targets.TARGETS:
        assert (t.part, t.encoding, t.dtype, t.length) in cells
        assert t.over in ("memory", *ways(cell := Cell(t.part, t.encoding, t.dtype, 8, 1), Work.of(cell)))
    by_default = {(c.part, c.dtype, c.length) for c in replace(asked, backward=None).cells()}
    assert ("trained", "float32", 8192) in by_default
    assert not by_default & {("trained", "bfloat16", 8192), ("trained", "float32", 16384)}
    assert not [c for c in replace(asked, backward=False).cells() if c.trains]
    assert all(c.weight > 0 for c in asked.cells())


# The command.


@pytest.mark.parametrize(
    ("args", "en", "ja"),
    [
        ("--lengths 0", "'0' is not a whole number, 1 or more", "1 以上の整数"),
        ("--lengths 99999999", "need tensors of 51,199,999,488 numbers", "テンソル"),
        ("--dtypes float16", "'float16' is not one of float32, bfloat16, all", "「float16」は使えません"),
        ("--encodings fire", "'fire' is not one of rope, xpos", "「fire」は使えません"),
        ("--device tpu", "'tpu' is not one of cpu, cuda", "「tpu」は使えません"),
        ("--rounds 2", "'2' is not a whole number, 3 or more", "3 以上の整数"),
    ],
)
def test_wrong_usage(args: str, en: str, ja: str) -> None:
    assert re.search(en, command(*shlex.split(args), code=2).stderr)
    assert ja in command(*shlex.split(args), "--lang", "ja", code=2).stderr


def test_what_quick_and_nothing_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[run.Plan] = []
    monkeypatch.setattr(run, "run", lambda plan, earlier: plans.append(plan) or iter(()))
    command()
    command("--quick", "--lengths", "64")
    full, quick = plans
    assert full.lengths == (1024, 4096, 8192, 16384)
    assert set(full.encodings) == {"rope", "alibi", "t5", "shaw", "kerple"}
    assert (full.dtypes, full.backward) == (tuple(DTYPES), None)
    assert (quick.lengths, quick.dtypes, quick.encodings) == ((64,), ("float32",), ("alibi", "shaw"))


# CUDA, which is not there.


@pytest.mark.parametrize("name", ["attention", "rotation"])
def test_a_device_that_is_not_there_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for language, words in (("en", "finds no CUDA device"), ("ja", "CUDA デバイスが見つかりません")):
        result = CliRunner().invoke(main, ["bench", name, "--device", "cuda", "--lang", language])
        assert result.exit_code == 1
        assert words in result.stderr
        assert result.stdout == ""


def test_on_a_gpu_the_clock_waits_for_it() -> None:
    assert timing.settled("cpu") is timing.nothing
    assert timing.settled("cuda") is torch.cuda.synchronize
    x, done = torch.zeros(2, 4), []
    busy: list[float] = []

    def launch() -> tuple[torch.Tensor]:
        busy.append(0.01)
        return (x,)

    def wait() -> None:
        time.sleep(sum(busy))
        done.extend(busy)
        busy.clear()

    contender = Contender("copy_", launch, rotation_oracle.same((x,)))
    (row,) = timing.measure([contender], ("copy_",), Patience(3, 0.001, 1.0), wait)
    assert row["seconds"] > 0.01
    assert not busy
    assert timing.once(launch, wait) > 0.01


def test_what_shall_be_repeated_is() -> None:
    x = torch.zeros(2, 4)

    def work() -> tuple[torch.Tensor]:
        time.sleep(0.02)
        return (x,)

    made = [Contender(name, work, rotation_oracle.same((x,)), repeated=name == "ours") for name in ("ours", "theirs")]
    ours, theirs = timing.measure(made, (), Patience(4, 1e-4, 9.0, once=0.01))
    assert (ours["rounds"], theirs["rounds"]) == (4, 1)


def test_the_rotation_on_a_gpu_has_its_own_grid() -> None:
    plan = rotation_run.Plan((1, 4096), ("bfloat16",), ("half",), (1,), ("complex",), device="cuda")
    assert {(c.part, c.device) for c in plan.cells()} == {("rotation", "cuda"), ("trained", "cuda")}
    assert [t.device for t in rotation_targets.TARGETS].count("cuda") == 4


def test_liger_is_given_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_place(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        half = cos.shape[-1] // 2
        for x in (q, k):
            x.copy_(rotate(x, cos[0, :, :half], sin[0, :, :half], layout="half", impl="eager"))
        return q, k

    module = ModuleType("liger_kernel.transformers.rope")
    module.liger_rotary_pos_emb = in_place  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for parent in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    cell = rotation_run.Cell("rotation", "float32", 3, 1, ("half",), ("liger",))
    for part in ("rotation", "trained"):
        (contender,) = [c for c in rotation_run.PARTS[part](replace(cell, part=part)) if c.name == "liger"]
        for _ in range(2):
            assert contender.wanted.error(contender.call()) <= contender.wanted.allowed(contender)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert peers.absent("liger", "cuda") == "liger-kernel is not installed: pip install liger-kernel"
    assert "GPU" in str(peers.absent("liger"))
