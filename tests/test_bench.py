"""The benchmark: what it measures is right, what it writes has the promised shape. Never how fast anything is."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from ropewalk import cos_sin, geometric, rotate
from ropewalk.benchmark import oracle, peers, report, run, targets, timing
from ropewalk.benchmark.machine import machine
from ropewalk.benchmark.rotation import DTYPES, Cell
from ropewalk.benchmark.timing import FEWEST_ROUNDS, Contender, Patience
from ropewalk.cli import bench, main
from ropewalk.cli.text import cells as columns

TINY = ("--lengths", "1,3", "--dtypes", "float32", "--threads", "1", "--quick", "--rounds", "3", "--peers")
FORMULAS = "torchtune,complex"
PARTS = set(run.PARTS)
JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
INSTALLED = [p for p in ("hf", "rotary-embedding-torch") if peers.absent(p) is None]


def call(*args: str, code: int = 0, command: tuple[str, ...] = ("bench", "rotation"), **env: str) -> Result:
    result = CliRunner().invoke(main, [*command, *args], env={"LC_ALL": "en_US.UTF-8", "COLUMNS": "80", **env})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def rows(document: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    return [(cell["part"], cell["length"], row) for cell in document["cells"] for row in cell["rows"]]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads(call(*TINY, FORMULAS, "--json").stdout)


# What is written.


def test_the_document_has_all_that_was_asked_for(found: dict[str, Any]) -> None:
    assert list(found) == ["schema", "machine", "skipped", "cells", "targets"]
    assert found["schema"] == "ropewalk.bench.rotation/1"
    assert found["machine"] == machine()
    assert found["skipped"] == []
    assert {(c["part"], c["length"]) for c in found["cells"]} == {
        (part, length) for part in PARTS for length in (1, 3) if (part, length) != ("decode", 3)
    }
    assert {(c["dtype"], c["threads"], *c["layouts"], *c["peers"]) for c in found["cells"]} == {
        ("float32", 1, "half", "interleaved", "torchtune", "complex")
    }
    names = {row["contender"] for part, _, row in rows(found) if part == "rotation"}
    assert names == {"new", "query_key", "in place", "out=", "copy_", "clone", "mul_", "torchtune", "complex"}


def test_every_contender_was_right_and_every_ratio_is_positive(found: dict[str, Any]) -> None:
    for part, _, row in rows(found):
        assert "error" not in row, (part, row)
        assert row["seconds"] > 0
        assert row["calls"] >= 1
        assert row["rounds"] == 3
        assert set(row["over"]) <= {"copy_", "clone"}
        assert part in ("angles", "decode") or "copy_" in row["over"]
        for over in row["over"].values():
            assert 0 < over["low"] <= over["median"] <= over["high"]
        if row["contender"] in row["over"]:
            assert row["over"][row["contender"]] == {"median": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.parametrize("peer", INSTALLED)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("part", list(PARTS))
def test_the_peers_are_right_too(part: str, dtype: str, peer: str) -> None:
    length = 1 if part == "decode" else 300
    cell = Cell(part, dtype, length, 1, ("half", "interleaved"), (peer,))
    made = run.PARTS[part](cell)
    assert peer in [c.name for c in made] or (peer != "hf" and part not in ("rotation", "trained"))
    for contender in made:
        if contender.prepare:
            contender.prepare()
        assert contender.wanted.error(contender.call()) <= contender.wanted.allowed(contender), contender.name


@pytest.mark.slow
@pytest.mark.skipif(peers.absent("hf-compiled") is not None, reason="needs transformers and a compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inside torch's compiler
def test_what_is_compiled_is_right() -> None:
    for part in ("rotation", "trained"):
        made = run.PARTS[part](Cell(part, "float32", 3, 1, ("half",), ("hf-compiled",)))
        (contender,) = [c for c in made if c.name == "hf-compiled"]
        assert contender.wanted.error(contender.call()) <= contender.wanted.allowed(contender)


def test_a_peer_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    gone = ("transformers", "rotary_embedding_torch")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name in gone else there(name, *more))
    arguments = ("--lengths", "1", *TINY[2:], "all", "--no-backward")
    result = json.loads(call(*arguments, "--json").stdout)
    assert [s["contender"] for s in result["skipped"]] == ["hf", "hf-compiled", "liger", "rotary-embedding-torch"]
    assert result["skipped"][2]["why"] == "its kernels are for GPUs: --device cuda"
    assert result["skipped"][3]["why"] == "rotary-embedding-torch is not installed: pip install 'ropewalk[bench]'"
    assert {row["contender"] for _, _, row in rows(result)}.isdisjoint(gone)
    assert [t for t in result["targets"] if t["over"] == "hf" and t["met"] is not None] == []
    text = call(*arguments).stdout
    assert "left out: hf (transformers is not installed: pip install 'ropewalk[bench]')" in text
    assert "測定しなかったもの: hf " in call(*arguments, "--lang", "ja").stdout


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "torchtune", lambda x, cos, sin: x + 1e-4)
    arguments = ("--lengths", "3", *TINY[2:], FORMULAS, "--no-backward")
    result = json.loads(call(*arguments, "--json", code=1).stdout)
    (row,) = [row for _, _, row in rows(result) if row["contender"] == "torchtune"]
    assert set(row) == {"contender", "layout", "error", "allowed"}
    assert row["error"] > row["allowed"] > 0
    said = call(*arguments, code=1)
    assert re.search(r"torchtune's formula +wrong", said.stdout)
    assert "Wrong result, not timed: torchtune" in said.stderr
    monkeypatch.setattr(peers, "torchtune", lambda x, cos, sin: x * torch.nan)
    assert "（誤差 NaN、" in call(*arguments, "--lang", "ja", code=1).stderr


# Resuming.


def test_it_goes_on_from_what_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    first = call("--lengths", "1", *TINY[2:], "complex", "--json", str(file))
    assert "rotation of q and k" in first.stdout
    before = json.loads(file.read_text(encoding="utf-8"))["cells"]
    measured = []
    monkeypatch.setattr(run, "measure", lambda contenders, *rest: measured.append(contenders) or [])
    call(*TINY, "complex", "--json", str(file))
    after = json.loads(file.read_text(encoding="utf-8"))["cells"]
    assert len(measured) == 5  # all but the decoded token, at three tokens
    assert [c for c in after if c["length"] == 1] == before
    call(*TINY, "torchtune", "--json", str(file))  # another question, which the file does not answer
    assert len(measured) == 5 + 11
    assert all(cell in json.loads(file.read_text(encoding="utf-8"))["cells"] for cell in after)
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, real = [0], timing.measure

    def impatient(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(run, "measure", impatient)
    file = tmp_path / "results.json"
    result = call(*TINY, "none", "--json", str(file), code=130)
    assert result.stderr == "Stopped after 2 of 11. The same command goes on from here.\n"
    assert "rotation of q and k" in result.stdout
    assert len(json.loads(file.read_text(encoding="utf-8"))["cells"]) == 2
    assert call(*TINY, "none", "--json", str(file)).stderr == ""
    assert len(json.loads(file.read_text(encoding="utf-8"))["cells"]) == 11


def test_files_of_others_are_left_alone(tmp_path: Path, found: dict[str, Any]) -> None:
    file = tmp_path / "results.json"
    elsewhere = {**found, "machine": {**found["machine"], "processor": "Z80"}}
    for content, en, ja in (
        ("{}", "is no result of this benchmark", "このベンチマークの結果ではありません"),
        ("[1", "is no result of this benchmark", "このベンチマークの結果ではありません"),
        (json.dumps(elsewhere), "results of another machine or other versions", "別の計算機か別のバージョン"),
    ):
        file.write_text(content, encoding="utf-8")
        assert en in call(*TINY, "none", "--json", str(file), code=1).stderr
        assert ja in call(*TINY, "none", "--json", str(file), "--lang", "ja", code=1).stderr
        assert file.read_text(encoding="utf-8") == content
    for option, name in (("--json", "x.json"), ("--markdown", "x.md")):
        result = call(*TINY, "none", option, str(tmp_path / "none" / name), code=1)
        assert (result.stdout, result.stderr) == ("", f"Error: the folder {tmp_path / 'none'} does not exist\n")


# What is read.


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_report_as_markdown(language: str, tmp_path: Path, found: dict[str, Any]) -> None:
    file = tmp_path / "results.md"
    result = call(*TINY, "complex", "--markdown", str(file), "--lang", language)
    assert str(file) in result.stderr
    text = file.read_text(encoding="utf-8")
    assert bool(JAPANESE.search(text)) == (language == "ja")
    assert machine()["processor"] in text
    assert f"torch {machine()['torch']}" in text
    for sheet in report.sheets(found, language):  # type: ignore[arg-type]
        assert f"## {sheet.title}\n" in text.replace("HF / ", "")
    tables = [t for t in text.split("\n\n") if t.startswith("|")]
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert re.search(r"\| (new outputs|新しい出力), half \| \d", text)


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_number_is_cut(width: int, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over = {"hf": {"median": 0.123, "low": 0.1, "high": 0.2}, "copy_": {"median": 12.3, "low": 1, "high": 20}}
    row = {"seconds": 1.0, "rounds": 3, "calls": 1, "over": over}
    names = [(c, layout) for c in report.CONTENDERS for layout in ("half", "interleaved")]
    cells = [
        {"part": part, "dtype": "bfloat16", "length": length, "threads": 2 - (length == 4096)}
        | {"rows": [{"contender": c, "layout": layout, **row} for c, layout in names]}
        for part in PARTS
        for length in (1, 16, 512, 4096, 8192, 32768)
    ]
    made = {"machine": machine(), "skipped": [], "cells": cells, "targets": targets.judge(cells)}
    from ropewalk.cli import output
    from ropewalk.cli.bench import running

    wide = output.console

    def sized() -> Any:
        console = wide()
        console.width = width
        return console

    monkeypatch.setattr(output, "console", sized)
    monkeypatch.setattr(running, "language", lambda: language)

    import click

    @click.command()
    def printed() -> None:
        running.show(made, report)

    text = CliRunner().invoke(printed).stdout
    assert "…" not in text
    assert text.count("0.123 / 12.3") >= len(PARTS) * 6 * len(names)
    body = [line for line in text.splitlines() if "÷" not in line or "≤" in line]
    assert max(columns(line.rstrip()) for line in body[3:]) <= width


def test_targets_are_judged_by_the_worse_layout() -> None:
    def cell(ratio: float, layout: str, threads: int = 1) -> dict[str, Any]:
        row = {"contender": "new", "layout": layout, "over": {"hf": {"median": ratio, "low": 0.0, "high": 9.0}}}
        return {"part": "rotation", "dtype": "bfloat16", "length": 1, "threads": threads, "rows": [row]}

    def verdict(*cells: dict[str, Any]) -> Any:
        found = targets.judge(cells)
        assert len(found) == len(targets.TARGETS)
        assert all(t["met"] is None and t["measured"] == {} for t in found[1:])
        return found[0]["met"]

    assert targets.TARGETS[0].limit == 0.12
    assert verdict(cell(0.12, "half"), cell(0.01, "interleaved")) is True
    assert verdict(cell(0.01, "half"), cell(0.121, "interleaved")) is False
    assert verdict(cell(0.01, "half"), cell(0.5, "interleaved", threads=2)) is True
    assert verdict(cell(0.01, "half", threads=2)) is None
    wrong = {**cell(0, "half"), "rows": [{"contender": "new", "layout": "half", "error": 1.0, "allowed": 0.1}]}
    assert verdict(wrong) is None


def test_every_target_names_something_that_is_measured() -> None:
    every = peers.PEERS[:1]
    for target in targets.TARGETS:
        names = {c.name for c in run.PARTS[target.part](Cell(target.part, target.dtype, 1, 1, ("half",), ()))}
        assert target.contender in names
        assert target.over in names | set(every)
    assert set(report.PARTS) == PARTS
    assert set(report.CONTENDERS) >= set(peers.PEERS) | {t.contender for t in targets.TARGETS}


# How it is measured.


def test_calls_take_turns_in_bunches() -> None:
    calls: list[str] = []
    both = [lambda: calls.append("a"), lambda: calls.append("b")]
    found = timing.in_turn(both, [9.0, 9.0], Patience(7, 0.001, 200.0))  # calls that took nine seconds: one a round
    assert [(len(bunch.seconds), bunch.calls) for bunch in found] == [(7, 1), (7, 1)]
    assert {"".join(calls[n : n + 2]) for n in range(0, 14, 2)} == {"ab", "ba"}
    calls.clear()
    short, long = timing.in_turn(both, [0.0, 9.0], Patience(7, 0.001, 60.0))
    assert (len(short.seconds), len(long.seconds), long.calls) == (6, 6, 1)  # six rounds of nine seconds fill a minute
    assert short.calls > 10
    assert calls.count("a") == 1 + 6 * short.calls  # and one to see how long it takes
    assert "a" * short.calls in "".join(calls)


def test_what_takes_long_is_timed_once() -> None:
    x = torch.zeros(2, 4)
    called: list[str] = []

    def contender(name: str, seconds: float) -> Contender:
        def work() -> tuple[torch.Tensor]:
            called.append(name)
            time.sleep(seconds)
            return (x,)

        return Contender(name, work, oracle.same((x,)))

    made = [contender("hf", 0.02), contender("slow", 0.03), contender("fast", 0.0)]
    hf, slow, fast = timing.measure(made, ("hf", "copy_"), Patience(4, 1e-4, 9.0, once=0.01))
    assert [row["rounds"] for row in (hf, slow, fast)] == [4, 1, 4]
    assert slow["calls"] == 1
    assert called.count("slow") == 2  # to be checked, and to be timed
    assert slow["over"]["hf"]["median"] == pytest.approx(slow["seconds"] / hf["seconds"])
    assert slow["over"]["hf"]["median"] == slow["over"]["hf"]["high"] > 1
    assert fast["over"]["hf"]["median"] < 1
    assert list(slow["over"]) == ["hf"]


def test_rounds_are_few_where_they_are_long_and_never_below_three() -> None:
    slow = [100.0]
    assert len(timing.in_turn([list], slow, Patience(15, 0.001, 5.0))[0].seconds) == FEWEST_ROUNDS
    assert len(timing.in_turn([list], [0.0], Patience(15, 0.001, 5.0))[0].seconds) == 15


def test_the_collector_runs_again_and_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    plan = run.Plan((1,), ("float32",), ("half",), (before + 1,), (), backward=False, patience=Patience(3, 1e-4, 0.1))
    seen = [torch.get_num_threads() for _ in run.run(plan)]
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before
    assert gc.isenabled()


@pytest.mark.parametrize("part", list(PARTS))
def test_nothing_of_a_cell_stays_in_memory(part: str) -> None:
    made = run.PARTS[part](Cell(part, "float32", 1, 1, ("half",), ("complex", *INSTALLED)))
    tensors = [weakref.ref(t) for contender in made for t in (*contender.wanted.values, *contender.call())]
    gc.collect()
    gc.disable()
    try:
        del made
        assert not [t for t in tensors if t() is not None]
    finally:
        gc.enable()


def test_a_plan_holds_what_was_asked_for() -> None:
    plan = run.Plan((1, 4096, 32768), ("bfloat16", "float16"), ("half",), (1, 2), ("complex",))
    cells = plan.cells()
    assert len(set(cells)) == len(cells)
    assert {(c.part, c.dtype) for c in cells if c.part == "angles"} == {("angles", "float32")}
    assert {c.part for c in cells if c.length == 32768} == {"rotation", "trained", "angles"}
    assert not [c for c in replace(plan, backward=False).cells() if c.part == "trained"]
    groups = [key for key, _ in itertools.groupby((c.threads, c.dtype, c.part) for c in cells if c.part != "angles")]
    assert len(set(groups)) == len(groups)  # what is compiled once is measured together
    assert all(c.weight > 0 for c in cells)


# The oracle.


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("inverse", [False, True])
def test_the_oracle_agrees_with_the_reference(layout: Any, inverse: bool) -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    spectrum = geometric(8)
    cos, sin = cos_sin(torch.arange(7, 12), spectrum, dtype=torch.float64)
    mine = oracle.turn(x, torch.arange(7, 12), spectrum.inv_freq, layout, inverse=inverse)
    theirs = rotate(x, cos, sin, layout=layout, inverse=inverse, impl="eager")
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)


def test_the_oracle_sees_every_kind_of_error() -> None:
    x = torch.randn(1, 2, 4096, 8)
    wanted = oracle.same((x, x))
    assert wanted.error((x, x)) == 0
    for token in (0, 4095, int(oracle.tokens(4096)[100])):
        off = x.clone()
        off[0, 1, token, 3] += 0.5
        assert wanted.error((x, off)) == pytest.approx(0.5)
        off[0, 1, token, 3] = torch.nan
        assert wanted.error((off, x)) == float("inf")
    assert wanted.error((x, x.double())) == float("inf")
    assert wanted.error((x, x[:, :1])) == float("inf")
    with pytest.raises(ValueError, match="zip"):
        wanted.error((x,))
    contender = Contender("x", list, wanted, roundings=2, drift=0.25)
    assert wanted.allowed(contender) == pytest.approx(wanted.largest * (2 * torch.finfo(torch.float32).eps + 0.25))


def test_few_tokens_are_all_compared() -> None:
    assert oracle.tokens(257).tolist() == list(range(257))
    far = oracle.tokens(32768)
    assert (int(far[0]), int(far[-1]), len(far.unique())) == (0, 32767, 257)


# The command.


@pytest.mark.parametrize(
    ("args", "en", "ja"),
    [
        ("--lengths 0", "'0' is not a whole number, 1 or more", "1 以上の整数"),
        ("--lengths 1,,2", "'' is not a whole number", "1 以上の整数"),
        ("--lengths all", "'all' is not a whole number", "1 以上の整数"),
        ("--lengths 99999999", "need tensors of 409,599,995,904 numbers", "テンソル"),
        ("--dtypes float8", "'float8' is not one of float32, bfloat16, float16, all", "「float8」は使えません"),
        ("--dtypes all,float32", "all and none stand alone", "単独で使います"),
        ("--layouts neox", "'neox' is not one of half, interleaved, all", "「neox」は使えません"),
        ("--layouts none", "'none' is not one of half, interleaved, all", "「none」は使えません"),
        ("--threads 0", "'0' is not a whole number", "1 以上の整数"),
        ("--threads none", "'none' is not a whole number", "1 以上の整数"),
        ("--peers flash", "'flash' is not one of hf, hf-compiled", "「flash」は使えません"),
        ("--rounds 2", "'2' is not a whole number, 3 or more", "3 以上の整数"),
        ("--markdown x.txt", "'x.txt' does not end with one of .md", "終わる名前にしてください"),
        ("--forward", "No such option '?--forward", "--forward というオプションはありません"),
    ],
)
def test_wrong_usage(args: str, en: str, ja: str) -> None:
    result = call(*shlex.split(args), code=2)
    assert result.stdout == ""
    assert re.search(en, result.stderr)
    japanese = call(*shlex.split(args), "--lang", "ja", code=2)
    assert ja in japanese.stderr
    assert len(result.stderr.splitlines()) == 2


def test_an_unknown_benchmark_is_refused_with_the_nearest() -> None:
    assert "did you mean 'rotation'?" in call(command=("bench", "rotaton"), code=2).stderr
    assert "「rotation」ですか？" in call(command=("--lang", "ja", "bench", "rotaton"), code=2).stderr
    assert call(command=("bench",)).stdout == call("--help", command=("bench",)).stdout


@pytest.mark.parametrize("name", list(bench.command.commands))
def test_help_in_both_languages_ends_with_examples_that_parse(name: str) -> None:
    command = bench.command.commands[name]
    english = call("--help", command=("bench", name)).stdout
    japanese = call("--help", "--lang", "ja", command=("bench", name)).stdout
    for text, heading in ((english, "Example:"), (japanese, "例:")):
        lines = text.splitlines()
        at = lines.index(heading)
        assert [line.strip() for line in lines[at + 1 :]] == list(command.examples)  # type: ignore[attr-defined]
        assert max(columns(line) for line in lines[:at]) <= 80
        for option in command.params:
            assert option.opts[0] in text
    assert not JAPANESE.search(english)
    assert re.findall(r"\[default: (\S+)\]", english) == re.findall(r"\[既定値: (\S+)\]", japanese)
    for example in command.examples:  # type: ignore[attr-defined]
        program, group, word, *arguments = shlex.split(example)
        assert (program, group, word) == ("ropewalk", "bench", name)
        command.make_context(name, arguments)


def test_a_dash_and_nothing_print_json_alone(found: dict[str, Any]) -> None:
    for option in (["--json", "-"], ["--json=-"], ["--json"]):
        result = call("--lengths", "1", *TINY[2:], "none", "--no-backward", *option)
        assert json.loads(result.stdout)["schema"] == found["schema"]
        assert result.stderr == ""


def test_quick_leaves_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[run.Plan] = []
    monkeypatch.setattr(run, "run", lambda plan, earlier: plans.append(plan) or iter(()))
    call("--quick", "--lengths", "7")
    call()
    call("--threads", "1,1,all", "--layouts", "interleaved,half")
    quick, full, more = plans
    assert (quick.lengths, quick.dtypes, quick.threads) == ((7,), ("float32", "bfloat16"), (1,))
    assert "hf-compiled" not in quick.peers
    assert quick.patience.cell < full.patience.cell
    assert (full.lengths, full.dtypes, full.peers) == ((1, 16, 512, 4096, 32768), tuple(DTYPES), peers.PEERS)
    assert full.backward
    assert len(set(more.threads)) == len(more.threads)
    assert more.layouts == ("half", "interleaved")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom ropewalk.cli import main\n"
        "for args in (['bench', '--help'], ['bench', 'rotation', '--help'], ['bench', 'rotation', '--lengths', '0']):\n"
        "    try: main(args)\n    except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'rich', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
