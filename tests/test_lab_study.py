"""Studies: refused when wrong, carried out in parallel, resumed, judged by their own rules, told in one page."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ropewalk.cli import main
from ropewalk.lab import findings
from ropewalk.lab.conduct import Outcome, conduct, prepare, rates, result_of, study_in
from ropewalk.lab.findings import Found, gather, judge
from ropewalk.lab.reading import of, read
from ropewalk.lab.saving import alone
from ropewalk.lab.statistics import compare
from ropewalk.lab.study import TUNING_SEED
from ropewalk.lab.train import RESULT

pytest.importorskip("safetensors", reason="the lab extra is not installed")

STUDIES = sorted((Path(__file__).parent.parent / "examples" / "studies").glob("*.toml"))
TINY: dict[str, Any] = {
    "name": "tiny",
    "claim": {"en": "a claim", "ja": "主張"},
    "source": "nobody",
    "minutes": 5,
    "run": {
        "goal": "copy",
        **{"dim": 8, "heads": 2, "layers": 1, "length": 16, "batch": 4, "steps": 4, "checks": 2},
        **{"lengths": [1, 2], "test_tokens": 256, "validation_tokens": 128},
    },
    "tune": {"learning_rate": [1e-3, 1e-2], "steps": 2},
    "grid": {"encoding": ["nope", "rope"], "seed": [0, 1]},
    "expect": [
        {"en": "one", "ja": "一", "better": {"encoding": "rope"}, "than": {"encoding": "nope"}},
        {"en": "two", "ja": "二", "equal": [{"encoding": "rope"}, {"encoding": "rope", "at": 2}], "margin": 1.5},
        {"en": "three", "ja": "三", "arm": {"encoding": "rope"}, "at_most": 1.0, "measure": "exact"},
    ],
}


def changed(**parts: Any) -> dict[str, Any]:
    return {**copy.deepcopy(TINY), **parts}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study carried out by two workers."""
    folder = tmp_path_factory.mktemp("studies") / "done"
    study = of(TINY)
    prepare(folder, study, ["ropewalk", "lab", "run", "tiny.toml"])
    told: list[tuple[int, int, str]] = []
    outcome = conduct(folder, study, workers=2, tell=lambda *line: told.append(line))
    assert outcome == Outcome(8, 8)
    assert told[-1][:2] == (8, 8)
    return folder


def test_a_study_runs_everything_and_tests_nothing_while_tuning(done: Path) -> None:
    study = study_in(done)
    assert study == of(TINY)
    tuning = study.tuning()
    assert len(tuning) == 4
    for run in tuning:
        result = result_of(done, run)
        assert result is not None
        assert result["test"] == []
        assert result["settings"]["seed"] == TUNING_SEED
        assert result["steps"] == 2
    chosen = rates(done, study)
    assert set(chosen) == {"NoPE", "RoPE"}
    for label, rate in chosen.items():
        tried = {
            r.settings.learning_rate: result_of(done, r)["validation"][-1][1] for r in tuning if r.arm.label == label
        }
        assert tried[rate] == max(tried.values())
    found = gather(done, study)
    for f in found:
        assert [r["settings"]["seed"] for r in f.results] == [0, 1]
        assert {r["settings"]["learning_rate"] for r in f.results} == {chosen[f.arm.label]}
        assert all(r["threads"] == 1 for r in f.results)
    assert {p.name for p in done.iterdir()} == {"study.json", "runs"}
    assert len(list((done / "runs").iterdir())) == 8


@pytest.mark.parametrize(("goal", "best"), [("causal", 1e-2), ("copy", 1e-3)])
def test_the_best_rate_is_chosen_by_the_last_check(goal: str, best: float, tmp_path: Path) -> None:
    study = of(changed(run={**TINY["run"], "goal": goal}, expect=[]))
    measure = "bits" if goal == "causal" else "accuracy"
    for each in study.tuning():
        assert rates(tmp_path, study).keys() < {"NoPE", "RoPE"}, "not before all rates of an arm have been tried"
        value = 0.9 if each.settings.learning_rate == 1e-3 else 0.4
        place = tmp_path / "runs" / each.folder
        place.mkdir(parents=True)
        document = {"measure": measure, "validation": [[1, 1 - value], [2, value]]}
        (place / RESULT).write_text(json.dumps(document), encoding="utf-8")
    assert rates(tmp_path, study) == {"NoPE": best, "RoPE": best}
    assert {r.settings.learning_rate for r in study.runs(rates(tmp_path, study))} == {best}


def test_a_finished_study_is_not_done_again(done: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in done.rglob("*")}
    assert conduct(done, study_in(done)) == Outcome(8, 8)
    assert {p: p.stat().st_mtime_ns for p in done.rglob("*")} == before


def test_time_ends_a_study_and_the_next_call_goes_on(done: Path, tmp_path: Path) -> None:
    folder, study = tmp_path / "study", of(TINY)
    prepare(folder, study, [])
    assert conduct(folder, study, minutes=0.0).reason == "time"
    assert "has ended yet" in run("report", str(folder), code=1).stderr
    for each in study.tuning()[:3]:  # what was done before is taken as it is
        target = folder / "runs" / each.folder
        target.mkdir(parents=True, exist_ok=True)
        (target / RESULT).write_bytes((done / "runs" / each.folder / RESULT).read_bytes())
    assert conduct(folder, study) == Outcome(8, 8)
    for each in study.runs(rates(folder, study)):
        one, other = result_of(folder, each), result_of(done, each)
        assert one is not None
        assert other is not None
        assert one["test"] == other["test"], "the order of runs and the number of workers change nothing"


def test_an_interrupted_study_leaves_no_worker_behind(tmp_path: Path) -> None:
    document = changed(run={**TINY["run"], "steps": 100_000, "dim": 32}, tune={})
    (tmp_path / "s.json").write_text(json.dumps(document), encoding="utf-8")
    command = [sys.executable, "-m", "ropewalk", "lab", "run", "s.json", "--output", "out", "--workers", "2"]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if len(list(tmp_path.glob("out/runs/*/metrics.jsonl"))) == 2:
                break
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 130, said
    assert "stopped: 0 of 4 runs are done; the same command goes on" in said
    saved = list(tmp_path.glob("out/runs/*/checkpoint.safetensors"))
    assert len(saved) == 2, "what ran was saved"
    assert (
        "ropewalk.lab.worker"
        not in subprocess.run(
            ["ps", "-o", "args", "--ppid", str(running.pid)], capture_output=True, text=True, check=False
        ).stdout
    )


def test_a_worker_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, study = tmp_path / "study", of(TINY)
    prepare(folder, study, [])
    popen = subprocess.Popen

    def dying(command: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-c", "import os, signal; input(); os.kill(os.getpid(), 9)"], **options)

    with monkeypatch.context() as patched:
        patched.setattr("ropewalk.lab.conduct.subprocess.Popen", dying)
        with pytest.raises(RuntimeError, match=r"a worker died \(signal 9\) in nope-tune-.*; the same command goes on"):
            conduct(folder, study)
    assert os.listdir(folder / "runs")


def test_what_a_run_cannot_do_ends_the_study_with_its_words(tmp_path: Path) -> None:
    study = of(changed(run={**TINY["run"], "goal": "causal", "corpus": [str(tmp_path / "none.txt")]}, expect=[]))
    prepare(tmp_path / "study", study, [])
    with pytest.raises(ValueError, match=r"nope-tune-\w+: there is no file, folder or corpus"):
        conduct(tmp_path / "study", study)


def test_folders_of_other_studies_are_refused(done: Path, tmp_path: Path) -> None:
    prepare(done, of(TINY), [])
    with pytest.raises(ValueError, match="holds another study"):
        prepare(done, of(changed(name="other")), [])
    (tmp_path / "x").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="is there already, and holds no study"):
        prepare(tmp_path, of(TINY), [])
    with pytest.raises(ValueError, match="there is no study in"):
        study_in(tmp_path)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"nmae": "x"}, r"a study has no key 'nmae', did you mean 'name'\?"),
        ({"claim": {"ja": "だけ"}}, r"claim is said in English"),
        ({"minutes": 0}, "minutes is a number above 0, got 0"),
        ({"minutes": True}, "minutes is a number above 0, got True"),
        ({"run": {"stpes": 3}}, r"run has no key 'stpes', did you mean 'steps'\?"),
        ({"run": []}, r"run is a table, got \[\]"),
        ({"name": "../x"}, "name is a word that a folder can have, got '../x'"),
        ({"name": 5}, "name is a word that a folder can have, got 5"),
        ({"claim": {"en": 5}}, "claim is said in words"),
        ({"minutes": float("inf")}, "minutes is a number above 0, got inf"),
        ({"quick": {"run": 5}}, "quick.run is a table, got 5"),
        ({"run": {"options": 5}}, "options of run are a table, got 5"),
        ({"run": {**TINY["run"], "lengths": 5}}, "lengths is a list, got 5"),
        ({"run": {"seed": 3}}, r"seeds stand in grid, as seed = \[0, 1, 2\]; run has none"),
        ({"arm": [{"seed": 3}]}, "arm has no key 'seed'"),
        ({"arm": [{"label": 5}]}, "label is a word, got 5"),
        ({"arm": [{"options": 5}]}, "options of arm are a table, got 5"),
        ({"grid": {"encoding": [5]}}, "encoding is a name, got 5"),
        ({"grid": {"encoding": ["rope"], "options": [5]}}, "options of grid are a table, got 5"),
        ({"grid": {"encoding": ["nope", "rope"], "seed": [0, 0]}}, "grid.seed has 0 twice"),
        ({"tune": {"learning_rate": [1e-3, 1e-3]}}, "tune.learning_rate has 0.001 twice"),
        ({"expect": 5}, "expect is a list of tables, got 5"),
        ({"expect": [{"en": "s", "arm": 5, "at_least": 1}]}, "an arm is picked by settings, .* got 5"),
        (
            {"expect": [{"en": "s", "arm": {"encoding": "rope", "options": 5}, "at_least": 1}]},
            "options of an arm are a table, got 5",
        ),
        ({"expect": [{"en": "s", "arm": {"encoding": "rope"}, "at_least": "x"}]}, "'s': at_least is a number, got 'x'"),
        (
            {"expect": [{"en": "s", "arm": {"encoding": "rope"}, "at_least": 1, "margin": [1]}]},
            r"'s': margin is a number, got \[1\]",
        ),
        (
            {"expect": [{"en": "s", "equal": [{"encoding": "rope"}, {"encoding": "nope"}], "margin": -1}]},
            "'s': margin is 0 or more, got -1",
        ),
        (
            {"expect": [{"en": "s", "arm": {"encoding": "rope", "at": 3}, "at_least": 1}]},
            "at = 3 is not among the lengths of its runs, 1, 2",
        ),
        (
            {"expect": [{"en": "s", "arm": {"encoding": "rope"}, "at_least": 1, "measure": "bits"}]},
            "copy is not measured in bits",
        ),
        ({"run": {"steps": -3}}, "steps is a positive whole number, got -3"),
        ({"grid": {"encoding": "rope"}}, "grid.encoding is a list of values to try, got 'rope'"),
        ({"grid": {"encoding": ["rop"]}}, "no encoding is called 'rop', did you mean 'rope'"),
        ({"tune": {"rate": [1]}}, "tune has no key 'rate'"),
        ({"tune": {"steps": 3}}, "tune has a list of learning rates"),
        ({"quick": {"arm": []}}, "quick has no key 'arm'"),
        ({"arm": [{"encoding": "rope"}, {"encoding": "rope"}], "grid": {}, "expect": []}, "two arms are called 'RoPE'"),
        ({"arm": [{"lable": "x"}]}, r"arm has no key 'lable', did you mean 'label'\?"),
        ({"expect": [{"en": "s"}]}, "'s' has one of better, equal, arm; got none"),
        ({"expect": [{"en": "s", "better": {"encoding": "rope"}}]}, "'s' says better, but not than what"),
        ({"expect": [{"en": "s", "equal": [{}, {}]}]}, "'s': equal is a list of two, with a margin"),
        ({"expect": [{"en": "s", "arm": {"encoding": "rope"}}]}, "'s' gives one of at_least and at_most"),
        (
            {"expect": [{"en": "s", "arm": {"encoding": "rope"}, "at_least": 0, "at_most": 1}]},
            "'s' gives one of at_least and at_most",
        ),
        ({"expect": [{"en": "s", "arm": {}, "at_least": 1}]}, "picks 2 arms, where it should pick one of NoPE, RoPE"),
        ({"expect": [{"en": "s", "arm": {"encoding": "t5"}, "at_least": 1}]}, "picks 0 arms"),
        (
            {"expect": [{"en": "s", "arm": {"encoding": "rope"}, "at_least": 1, "measure": "bit"}]},
            r"measure is one of .* got 'bit', did you mean 'bits'\?",
        ),
        (
            {"expect": [{"en": "s", "arm": {"encoding": "rope", "extension": "yarn:4"}, "at_least": 1}]},
            "yarn:4 is not among the extensions of its runs",
        ),
    ],
)
def test_wrong_studies_are_refused(parts: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(changed(**parts)), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)
    result = CliRunner().invoke(main, ["lab", "run", str(path)], env={"LC_ALL": "C.UTF-8"})
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


def test_files_that_are_no_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="there is no study"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad\.toml cannot be read: "):
        read(tmp_path / "bad.toml")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"deep\.json cannot be read: maximum recursion"):
        read(tmp_path / "deep.json")

    def forbidden(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(ValueError, match=r"bad\.toml cannot be read: Permission denied"):
        read(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match="a study has a source, and this one has none"):
        of({"name": "x", "claim": "y"})
    with pytest.raises(ValueError, match=r"a study is a table, got \[\]"):
        of([])


def test_a_study_that_was_changed_after_it_began(done: Path, tmp_path: Path) -> None:
    document = json.loads((done / "study.json").read_text(encoding="utf-8"))
    document["study"]["expect"][0]["margin"] = -0.5
    (tmp_path / "study.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match=r"study\.json was changed after the study began"):
        study_in(tmp_path)
    for key in ("digest", "study", "command", "machine"):
        some = {k: v for k, v in document.items() if k != key}
        (tmp_path / "study.json").write_text(json.dumps(some), encoding="utf-8")
        with pytest.raises(ValueError, match=f"is damaged: it has no {key}"):
            study_in(tmp_path)


def test_two_at_once_in_one_folder(done: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    with alone(done / "study.json"):
        said = run("run", str(path), "--output", str(done), code=1).stderr
        assert said == f"Error: another process is at work in {done}; wait for it to end\n"
    assert conduct(done, study_in(done)) == Outcome(8, 8)


def test_what_a_killed_writer_left_stands_in_nobodys_way(tmp_path: Path) -> None:
    folder, study = tmp_path / "study", of(changed(tune={}, grid={"encoding": ["nope"]}, expect=[]))
    places = [folder, *(folder / "runs" / each.folder for each in study.runs({}))]
    for place in places:
        place.mkdir(parents=True)
        if place is folder:
            (place / ".study.json.77.part").write_text("{", encoding="utf-8")
            prepare(folder, study, [])
        else:
            (place / ".settings.json.77.part").write_text("{", encoding="utf-8")
    assert conduct(folder, study) == Outcome(1, 1)
    assert not list(folder.rglob("*.part"))


def test_without_safetensors_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.json").write_text(json.dumps(TINY), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    said = run("run", str(tmp_path / "s.json"), "--output", str(tmp_path / "out"), code=1).stderr
    assert said == "Error: this needs safetensors: pip install 'ropewalk[lab]'\n"
    assert not list(tmp_path.glob("out/runs/*"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_the_ready_studies_say_beforehand_what_would_decide(path: Path) -> None:
    full, quick = read(path), read(path, quick=True)
    assert full.name == path.stem
    assert re.search("[ぁ-ん]", full.claim["ja"])
    assert full.source["en"] != full.source["ja"]
    assert len(full.seeds) >= 3
    assert full.minutes < 60
    assert full.statements
    assert len(quick.seeds) == 1
    for statement in full.statements:
        assert statement.text["en"] != statement.text["ja"]
    cost = [sum(r.settings.steps for r in s.runs({}) + s.tuning()) for s in (full, quick)]
    assert cost[1] * 20 < cost[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_the_quick_form_of_a_ready_study_runs(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    told = run("run", str(path), "--quick", "--output", str(folder), "--json")
    found = json.loads(told.stdout)
    study = read(path, quick=True)
    assert [arm["label"] for arm in found["arms"]] == [arm.label for arm in study.arms]
    assert all(arm["seeds"] == [0] and arm["learning_rate"] for arm in found["arms"])
    for statement in found["statements"]:
        assert statement["verdict"] in ("open", "not measured")
        if statement["verdict"] == "open":
            assert statement["difference"]["seeds"], "one seed decides nothing, but it was measured"
    assert any(statement["verdict"] == "open" for statement in found["statements"])
    run("report", str(folder), "--output", str(tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8")) == found


def test_there_are_six_ready_studies() -> None:
    assert [p.stem for p in STUDIES] == ["extrapolate", "layout", "long-classify", "order", "roformer", "row-e"]


# ---- statistics and verdicts --------------------------------------------------------------


def test_an_interval_covers_the_true_difference_and_narrows_with_data() -> None:
    import torch

    random = torch.Generator().manual_seed(0)
    covered, widths = 0, []
    for n in range(60):
        noise = torch.randn(8, 40, generator=random) + torch.randn(8, 1, generator=random) * 0.3
        shared = torch.randn(8, 40, generator=random) * 5  # which pairs take away
        found = compare((shared + noise + 0.5).tolist(), shared.tolist(), draws=400, seed=n)
        covered += found.low <= 0.5 <= found.high
        widths.append(found.high - found.low)
    assert covered >= 50
    assert max(widths) < 1.2
    exact = compare([[1.0, 2.0], [3.0, 4.0]], [[0.0, 1.0], [2.0, 3.0]])
    assert (exact.mean, exact.low, exact.high, exact.seeds) == (1.0, 1.0, 1.0, (1.0, 1.0))
    by_text = compare([[1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]])
    assert (by_text.low, by_text.high) == (0.0, 1.0), "text is drawn anew, not only seeds"
    by_seed = compare([[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]])
    wide = 2**0.5 * 12.706 / 1.96 / 2  # the two seeds' deviations, stretched by Student's t
    assert (by_seed.low, by_seed.high) == pytest.approx((0.5 - wide, 0.5 + wide))
    alone = compare([[1.0, 1.0]], [[0.0, 0.0]])
    assert (alone.low, alone.high) == (1.0, 1.0)


@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_an_interval_over_few_seeds_covers_what_it_promises(seeds: int) -> None:
    import torch

    random = torch.Generator().manual_seed(seeds)
    covered = 0
    for n in range(300):
        seed, text = torch.randn(seeds, 1, generator=random), torch.randn(1, 8, generator=random)
        found = compare((seed + 0.3 * text).tolist(), [[0.0] * 8] * seeds, draws=200, seed=n)
        covered += found.low <= 0.0 <= found.high
    assert 0.89 <= covered / 300 <= 0.99, "95%, and three standard errors of this measurement"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([], [], "measurements come in pairs"),
        ([[1.0]], [[1.0, 2.0]], r"got \[1\] and \[2\]"),
        ([[1.0], [1.0, 2.0]], [[1.0], [1.0, 2.0]], "all seeds are measured on the same text"),
        ([[]], [[]], "measurements come in pairs"),
    ],
)
def test_what_cannot_be_compared(first: Any, second: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(first, second)


def results(study: Any, values: dict[str, list[list[float]]], measure: str = "bits") -> list[Found]:
    """Made-up results: for each arm the values of its seeds at L and 2 L."""
    found = []
    for arm in study.arms:
        made = []
        for seed, row in enumerate(values[arm.label]):
            test = [{"multiple": n + 1, measure: v, "blocks": [v - 0.01, v + 0.01]} for n, v in enumerate(row)]
            checks = [[1, row[0] + 1], [2, row[0]]]
            settings = {"seed": seed}
            made.append(
                {"measure": measure, "test": test, "validation": checks, "extensions": {}, "settings": settings}
            )
        found.append(Found(arm, None, tuple(made)))
    return found


@pytest.mark.parametrize(
    ("statement", "nope", "rope", "verdict"),
    [
        ("better", [[3.0], [3.1]], [[2.0], [2.1]], "holds"),
        ("better", [[2.0], [2.1]], [[3.0], [3.1]], "does not hold"),
        ("better", [[2.0], [3.1]], [[3.0], [2.1]], "open"),
        ("better", [[2.0], [2.0]], [[2.0], [2.0]], "open"),
        ("better", [[3.0]] * 4, [[0.0], [0.0], [0.0], [3.05]], "open"),
        ("better", [[3.0]], [[2.0]], "open"),
        ("better by 2", [[3.0], [3.1]], [[2.0], [2.1]], "does not hold"),
        ("better by -0.5", [[3.0], [3.1]], [[3.2], [3.3]], "holds"),
        ("better by -0.5", [[3.0], [3.1], [3.1]], [[3.1], [3.1], [3.0]], "holds"),
        ("better by -0.5", [[3.0]] * 9, [[2.0]] * 8 + [[3.6]], "holds"),
        ("better by -0.5", [[3.0]] * 3, [[2.0]] * 2 + [[3.6]], "open"),
        ("better by 2", [[3.0], [3.1]], [[3.1], [3.0]], "does not hold"),
        ("equal", [[3.0], [3.1]], [[3.04], [3.13]], "holds"),
        ("equal", [[3.0], [3.1]], [[4.0], [4.1]], "does not hold"),
        ("equal", [[3.0], [3.1]], [[3.15], [3.0]], "open"),
        ("at_most", [[9.0], [9.0]], [[1.0], [1.1]], "holds"),
        ("at_most", [[9.0], [9.0]], [[3.0], [3.1]], "does not hold"),
        ("at_most", [[9.0], [9.0]], [[1.0], [3.1]], "open"),
        ("at_least", [[9.0], [9.0]], [[3.0], [3.1]], "holds"),
        ("at_least", [[9.0], [9.0]], [[2.0], [2.0]], "open"),
        ("convergence", [[3.0], [3.1]], [[2.0], [2.1]], "holds"),
        ("longer", [[9.0, 9.0], [9.0, 9.0]], [[2.0, 2.5], [2.0, 2.52]], "does not hold"),
        ("longer", [[9.0], [9.0]], [[2.0], [2.0]], "not measured"),
    ],
)
def test_verdicts_follow_the_rule(
    statement: str, nope: list[list[float]], rope: list[list[float]], verdict: str
) -> None:
    arms = {"better": {"encoding": "rope"}, "than": {"encoding": "nope"}}
    rule = {
        "better": arms,
        "better by 2": {**arms, "margin": 2.0},
        "better by -0.5": {**arms, "margin": -0.5},
        "convergence": {**arms, "measure": "convergence"},
        "equal": {"equal": [{"encoding": "rope"}, {"encoding": "nope"}], "margin": 0.1},
        "at_most": {"arm": {"encoding": "rope"}, "at_most": 2.0},
        "at_least": {"arm": {"encoding": "rope"}, "at_least": 2.0},
        "longer": {"better": {"encoding": "rope", "at": 2}, "than": {"encoding": "rope"}, "margin": -0.1},
    }[statement]
    study = of(changed(run={**TINY["run"], "goal": "causal"}, expect=[{"en": "s", "measure": "bits", **rule}]))
    (one,) = judge(study, results(study, {"NoPE": nope, "RoPE": rope}))
    assert one.verdict == verdict
    if verdict == "not measured":
        assert one.why


@pytest.mark.parametrize(("goal", "measure"), [("copy", "accuracy"), ("causal", "bits")])
def test_what_is_measured_follows_the_goal_of_the_arm(goal: str, measure: str) -> None:
    """Also where the goal is among the things that are compared, and not one for all."""
    both = {k: v for k, v in TINY["run"].items() if k != "goal"}
    arm = {"encoding": "rope", "goal": goal}
    grid = {"encoding": ["nope", "rope"], "goal": ["copy", "causal"]}
    assert (
        of(changed(run=both, grid=grid, expect=[{"en": "s", "arm": arm, "at_least": 1}])).statements[0].measure
        == measure
    )


def test_more_is_better_for_answers() -> None:
    study = of(changed(expect=[TINY["expect"][0]]))
    found = results(study, {"NoPE": [[0.2], [0.3]], "RoPE": [[0.8], [0.9]]}, "accuracy")
    assert judge(study, found)[0].verdict == "holds"


def test_a_study_cut_short_compares_the_seeds_that_both_have() -> None:
    statement = {"en": "s", "measure": "bits", **{k: TINY["expect"][0][k] for k in ("better", "than")}}
    study = of(changed(run={**TINY["run"], "goal": "causal"}, expect=[statement]))
    found = results(study, {"NoPE": [[3.0], [3.1], [9.0]], "RoPE": [[2.0], [2.2]]})
    found[1] = Found(found[1].arm, None, found[1].results[::-1])
    (one,) = judge(study, found)
    assert one.difference is not None
    assert one.difference.seeds == pytest.approx((-1.0, -0.9))
    assert findings.spread([1.0]) is None
    none = [Found(f.arm, None, ()) for f in found]
    assert judge(study, none)[0].verdict == "not measured"


# ---- the command and the page -------------------------------------------------------------


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, ["lab", *args], env={"LC_ALL": "en_US.UTF-8"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_page_tells_everything(done: Path, tmp_path: Path, language: str) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    target = tmp_path / "page.html"
    run("report", str(done), "--output", str(target), "--lang", language)
    page = target.read_text(encoding="utf-8")
    study = study_in(done)
    for words in (study.claim[language], *(s.text[language] for s in study.statements), study.digest, "torch"):
        assert words in page
    assert page.count("<svg") == 2
    assert "ropewalk lab run tiny.toml" in page
    assert not re.search(r'(src|href)="https?:', page)
    for f in gather(done, study):
        values = f.values("accuracy")
        assert f"{sum(values) / 2:.1%}" in page


def test_the_command_carries_out_and_tells(done: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    told = run("run", str(path), "--output", str(done))
    assert "a claim" in told.stdout
    assert re.search(r"RoPE .*% ± .*% +2", told.stdout)
    assert "holds: two" in told.stdout
    found = json.loads(run("run", str(path), "--output", str(done), "--json").stdout)
    assert [s["verdict"] for s in found["statements"]][1:] == ["holds", "holds"]
    assert "主張" in run("run", str(path), "--output", str(done), "--lang", "ja").stdout
    assert "4 runs (2 arms, 2 seeds) after 4 short ones" in run("show", str(path)).stdout
    assert json.loads(run("show", str(path), "--json").stdout)["study"]["name"] == "tiny"
