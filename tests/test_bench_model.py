"""The benchmark of a whole model: what it measures is right, what it writes has the promised shape; never how fast."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

pytest.importorskip("transformers")

from ropewalk.benchmark.model import cell as cells
from ropewalk.benchmark.model import report, run
from ropewalk.benchmark.model.cell import DTYPES, Cell
from ropewalk.benchmark.model.oracle import wanted
from ropewalk.benchmark.model.ways import NAMES, Way
from ropewalk.benchmark.timing import Patience
from ropewalk.cli import main
from ropewalk.cli.text import cells as columns
from ropewalk.language import speaker

JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
TINY = ("--lengths", "24", "--dtypes", "float32", "--modes", "eager", "--threads", "1", "--quick", "--rounds", "3")


def command(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["bench", "model", *args], env={"LC_ALL": "en_US.UTF-8", "COLUMNS": "80"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Fewer layers and words than are measured: the tests ask what is right, not how fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "LAYERS", 2)
        patch.setattr(cells, "VOCABULARY", 512)
        yield


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads(command(*TINY, "--json").stdout)


# What is measured is right.


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("part", run.PARTS)
def test_every_contender_is_right_and_nobody_elses_logits_would_do(part: str, dtype: str) -> None:
    cell = Cell(part, "eager", dtype, 40, 1)
    made = run.contenders(cell)
    assert [c.name for c in made] == list(NAMES)
    right = {c.name: c.wanted for c in made}
    for contender in made:
        logits = contender.call()
        assert contender.wanted.error(logits) <= contender.wanted.allowed(contender), contender.name
        for _ in range(2):  # decoding leaves the cache as it was
            assert torch.equal(contender.call()[0], logits[0])
        other = right["without" if contender.name != "without" else "stock"]
        assert other.error(logits) > 4 * other.allowed(contender), contender.name


@pytest.mark.parametrize("part", run.PARTS)
def test_a_wrong_rotation_is_seen(part: str) -> None:
    cell = Cell(part, "eager", "bfloat16", 40, 1)
    made = cells.model(cell)
    (stock,) = [c for c in run.contenders(cell) if c.name == "stock"]
    for factor in (0.9, -1.0):  # a spectrum that is slower by a tenth, and the opposite direction
        changed = Way("stock", made)
        changed.model.model.rotary_emb.inv_freq.mul_(factor)
        assert stock.wanted.error(changed.call(cell)()) > 2 * stock.wanted.allowed(stock)
    for result in (torch.full((1, 1, cells.VOCABULARY), torch.nan), torch.zeros(1, 2, cells.VOCABULARY)):
        assert stock.wanted.error((result.bfloat16(),)) == float("inf")
    assert stock.wanted.error((stock.call()[0].float(),)) == float("inf")


def test_the_reference_is_the_model_in_float64() -> None:
    """Of transformers' own code in float64 it differs by nothing but the angles, which are float32 there."""
    for part, length in (("prefill", 30), ("decode", 29)):
        cell = Cell(part, "eager", "float32", length, 1)
        made = cells.model(cell)
        with torch.no_grad():
            theirs = made.double()(cells.tokens(cell)[:, :30], logits_to_keep=1).logits
        found = wanted(cell, made, rotates=True).logits
        assert float((theirs - found).abs().max() / found.abs().max()) < 1e-5


def test_the_ways_leave_the_model_and_transformers_as_they_were() -> None:
    from transformers.models.llama import modeling_llama

    turn = modeling_llama.apply_rotary_pos_emb
    cell = Cell("decode", "eager", "float32", 8, 1)
    made = cells.model(cell)
    (before,) = Way("stock", made).call(cell)()
    for name in NAMES:
        Way(name, made).call(cell)()
        assert modeling_llama.apply_rotary_pos_emb is turn
        assert torch.equal(Way("stock", made).call(cell)()[0], before)


def test_ropewalk_is_installed_in_one_of_them_alone() -> None:
    from ropewalk.hf import uninstall

    made = cells.model(Cell("decode", "eager", "float32", 8, 1))
    uninstall(Way("installed", made).model)
    for name in ("stock", "without"):
        with pytest.raises(ValueError, match="not installed"):
            uninstall(Way(name, made).model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch's compiler
@pytest.mark.parametrize("part", run.PARTS)
def test_compiled_contenders_are_one_graph_and_right(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured as it is measured, and run without the machine code, which takes longest to make."""
    compiled, real = [], torch.compile

    def captured(model: Any, **options: Any) -> Any:
        compiled.append(options)
        return real(model, backend="aot_eager", **options)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", captured)
    for contender in run.contenders(Cell(part, "compiled", "float32", 16, 1)):
        first, *others = (contender.call()[0] for _ in range(3))
        assert contender.wanted.error((first,)) <= contender.wanted.allowed(contender), contender.name
        assert all(torch.equal(first, other) for other in others)
    assert compiled == [{"dynamic": False, "fullgraph": True}] * 3


# What is written.


def test_the_document_has_all_that_was_asked_for(found: dict[str, Any]) -> None:
    assert list(found) == ["schema", "machine", "model", "cells"]
    assert found["schema"] == "ropewalk.bench.model/1"
    assert found["model"]["width"] == found["model"]["heads"] * found["model"]["head_dim"] == 512
    assert [(c["part"], c["mode"], c["dtype"], c["length"]) for c in found["cells"]] == [
        ("prefill", "eager", "float32", 24),
        ("decode", "eager", "float32", 24),
    ]
    for cell in found["cells"]:
        assert [row["contender"] for row in cell["rows"]] == list(NAMES)
        for row in cell["rows"]:
            assert "error" not in row
            done = {"prefill": 24, "decode": 1}[cell["part"]]
            assert row["tokens_per_second"] == pytest.approx(done / row["seconds"])
            assert 0 < row["over"]["stock"]["low"] <= row["over"]["stock"]["median"]


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_report(language: str, tmp_path: Path) -> None:
    file = tmp_path / "results.md"
    result = command(*TINY, "--markdown", str(file), "--lang", language)
    text = file.read_text(encoding="utf-8")
    assert bool(JAPANESE.search(text)) == bool(JAPANESE.search(result.stdout)) == (language == "ja")
    for printed in (text, result.stdout):
        assert ("decode, eager, 24" if language == "en" else "生成, eager, 24") in printed
        assert re.search(r" %( |（|$| \||未満)", printed)
        assert re.search(r"× \d\.\d\d", printed)
    assert max(columns(line.rstrip()) for line in result.stdout.splitlines()[5:]) <= 80  # after the machine
    for table in [t for t in text.split("\n\n") if t.startswith("|")]:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_the_share_of_the_rotation() -> None:
    def row(name: str, median: float, low: float = 0.0, high: float = 0.0) -> dict[str, Any]:
        over = {"median": median, "low": low or median, "high": high or median}
        return {"contender": name, "tokens_per_second": 1234.5 / median, "over": {"stock": over}}

    stock = row("stock", 1.0)
    part = run.share([stock, row("installed", 0.9), row("without", 0.8, 0.7, 0.95)])
    assert part == pytest.approx({"median": 0.2, "low": 0.05, "high": 0.3})
    assert run.share([stock]) is None
    assert run.share([stock, {"contender": "without", "error": 1.0, "allowed": 0.1}]) is None
    assert report.percent(part, speaker("en")) == "20 % (5.0 to 30)"
    noise = run.share([stock, row("without", 0.99, 0.97, 1.02)])
    assert report.percent(noise, speaker("ja")) == "3.0 % 未満"
    cell = {"part": "decode", "mode": "eager", "dtype": "float32", "length": 9, "threads": 1, "device": "cpu"}
    document = {"cells": [cell | {"rows": [stock, row("installed", 0.9), row("without", 0.8)]}]}
    speeds, shares = report.sheets(document, "en")
    assert speeds.rows == [["decode, eager, 9", "1,234", "1,372, 0.900", "1,543, 0.800"]]
    assert shares.rows == [["decode, eager, 9", "20 % (20 to 20)", "× 1.25", "× 1.11"]]


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.benchmark.model.ways._given_back", lambda q, k, *_: (q * 0.1, k))
    result = command(*TINY, "--json", code=1)
    for cell in json.loads(result.stdout)["cells"]:
        (row,) = [r for r in cell["rows"] if "error" in r]
        assert row["contender"] == "without"
        assert row["error"] > row["allowed"] > 0
        assert "seconds" not in row
        assert run.share(cell["rows"]) is None
    assert "Wrong result, not timed: without eager (prefill, float32, 24)" in result.stderr


def test_it_goes_on_from_what_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, measured = tmp_path / "results.json", []
    monkeypatch.setattr(run, "rows", lambda cell, _: measured.append(cell) or [])
    command(*TINY, "--json", str(file))
    command(*TINY, "--lengths", "24,48", "--json", str(file))
    assert [(c.part, c.length) for c in measured] == [(p, n) for n in (24, 48) for p in run.PARTS]


# The command.


@pytest.mark.parametrize(
    ("args", "en", "ja"),
    [
        ("--lengths 0", "'0' is not a whole number, 1 or more", "1 以上の整数"),
        ("--lengths 9999999", "need tensors of 15,359,998,464 numbers", "テンソル"),
        ("--dtypes float16", "'float16' is not one of float32, bfloat16, all", "「float16」は使えません"),
        ("--modes jit", "'jit' is not one of eager, compiled", "「jit」は使えません"),
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
    assert (full.lengths, full.dtypes, full.modes) == ((1024,), tuple(DTYPES), run.MODES)
    assert (quick.lengths, quick.dtypes, quick.modes) == ((64,), ("float32",), ("eager",))
    assert quick.patience.cell < full.patience.cell
    assert {(c.part, c.mode) for c in full.cells()} == {(p, m) for p in run.PARTS for m in run.MODES}
    assert all(c.weight > 0 for c in replace(full, patience=Patience()).cells())


def test_a_device_that_is_not_there_and_transformers_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no CUDA device" in command("--device", "cuda", code=1).stderr
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = command(code=1)
    assert "pip install 'ropewalk[hf]'" in result.stderr
    assert result.stdout == ""
