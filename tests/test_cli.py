"""The command line: the article's numbers through it, every option, every error, both languages, every example."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.cli import doctor, main, output, verdict
from ropewalk.cli.base import Command
from ropewalk.cli.text import cells, pad, wrap
from ropewalk.encodings import ENCODINGS
from ropewalk.kernels import cpu
from ropewalk.measure.decay import Curve, Decay
from ropewalk.version import __version__

GOLDEN = json.loads((Path(__file__).parent / "golden" / "article.json").read_text(encoding="utf-8"))
EXAMPLE_FILES = Path(__file__).parent.parent / "examples"
NAMES = [cls.name for cls in ENCODINGS]
COMMANDS = list(main.commands)
NEED_MODELS = ("extend", "export")
"""Commands whose examples name a checkpoint; their own tests run them with a small one."""
EXAMPLES = sorted({e for c in (main, *main.commands.values()) if c.name not in NEED_MODELS for e in c.examples})
JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
ENGLISH_SENTENCE = re.compile(r"\b[A-Za-z]+(,? [a-z]{2,}){3}")
RUNS = {
    "compare": ["compare"],
    "decay": ["decay"],
    "decay of all": ["decay", "--encodings", "all"],
    "decay random": ["decay", "--vectors", "random", "--pairs", "50"],
    "decay of all random": ["decay", "--vectors", "random", "--pairs", "50", "--encodings", "all"],
    "decay one pair": ["decay", "--vectors", "random", "--pairs", "1"],
    "order": ["order"],
    "order causal": ["order", "--causal"],
    "order mirrored": ["order", "一 二 三", "三 二 一"],
    "list": ["list"],
    "doctor": ["doctor"],
    **{f"show {name}": ["show", name] for name in NAMES},
}


def run(*args: str, code: int = 0, **env: str) -> Result:
    """Run in this process, English unless asked otherwise, and check the exit code."""
    result = CliRunner().invoke(main, list(args), env={"LC_ALL": "en_US.UTF-8", "COLUMNS": "80", **env})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def document(*args: str) -> dict[str, Any]:
    """What `--json` prints: one document, with its schema, and nothing else on stdout."""
    found = json.loads(run(*args, "--json").stdout)
    assert found["schema"] == f"ropewalk.{args[0]}/1"
    return found


def program(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run as a user does, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ropewalk", *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", **env},
        check=False,
    )


def by_encoding(found: dict[str, Any]) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for row in found["rows"]:
        out.setdefault(row["encoding"], []).append(round(row["score"], 4))
    return out


# The article's numbers.


@pytest.mark.parametrize(("seed", "which"), [(42, "seed_42_as_printed"), (3, "seed_3")])
def test_compare_gives_the_numbers_of_the_article(seed: int, which: str) -> None:
    found = document("compare", "--seed", str(seed))
    scores = by_encoding(found)
    assert scores["learned"] == GOLDEN["learned_absolute"][which]
    assert scores["relative_bias"] == GOLDEN["relative_bias"][which]
    assert scores["rope"] == GOLDEN["rope"]["as_printed"]
    assert [row["distance"] for row in found["rows"][:3]] == GOLDEN["setup"]["distances"]
    assert list(scores) == NAMES
    assert (found["dim"], found["query"], found["keys"], found["vectors"], found["seed"]) == (
        64,
        2,
        [3, 5, 20],
        "ones",
        seed,
    )


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_table_of_compare_has_the_same_numbers(language: str) -> None:
    text = run("compare", "--lang", language).stdout
    rows = [line.split() for line in text.splitlines()]
    for label, numbers in (
        ("Learned", GOLDEN["learned_absolute"]["seed_42_as_printed"]),
        ("RoPE", GOLDEN["rope"]["as_printed"]),
    ):
        (row,) = [r for r in rows if r[:1] == [label] and len(r) > 3 and "." in r[1]]
        assert row[1:4] == [f"{n:.4f}" for n in numbers]
    assert "63.5860" in text
    assert "63.9219" in text
    assert "63.3074" in text


def test_decay_gives_the_curve_of_the_article() -> None:
    found = document("decay")
    (curve,) = found["curves"]
    assert curve["scores"] == pytest.approx(GOLDEN["rope_decay_from_position_0"], abs=1e-4)
    assert curve["beyond"][96] == max(curve["scores"][97:])
    assert (curve["rebound"]["low_at"], curve["rebound"]["high_at"]) == (96, 100)
    assert (found["length"], found["query"], found["vectors"]) == (100, 0, "ones")


# What each command prints.


def test_compare_says_what_to_see() -> None:
    text = " ".join(run("compare").stdout.split())
    assert "no softmax" in text
    assert "follow no rule of distance" in text
    assert "at the cost of a lookup" in text
    assert "the score falls with distance" in text
    text = " ".join(run("compare", "--keys", "98,102", "--encodings", "rope").stdout.split())
    assert "does not fall steadily with distance" in text
    assert "Learned (absolute)" not in text


def test_compare_shows_the_change_from_the_nearest_to_the_farthest_key() -> None:
    text = run("compare", "--encodings", "rope,nope", "--keys", "20,5,3").stdout
    assert re.search(r"change from\s*$", text, re.MULTILINE)
    assert "key 3 to 20" in text
    assert re.search(r"RoPE .* -21\.2351 ████████", text)
    assert re.search(r"NoPE .* \+0\.0000\s*$", text, re.MULTILINE)
    assert "change" not in run("compare", "--keys", "3").stdout


def test_compare_with_many_keys_cuts_no_number() -> None:
    keys = ",".join(str(k) for k in range(0, 300, 13))
    scores = by_encoding(document("compare", "--keys", keys))
    text = run("compare", "--keys", keys).stdout
    assert "…" not in text
    for score in (s for row in scores.values() for s in row):
        assert f"{score:.4f}" in text


def test_compare_takes_every_option(tmp_path: Path) -> None:
    found = document("compare", "--query", "7", "--keys", "0, 9", "--dim", "8", "--encodings", "RoPE,relative-bias")
    assert [(r["encoding"], r["distance"]) for r in found["rows"]] == [
        ("rope", -7),
        ("rope", 2),
        ("relative_bias", -7),
        ("relative_bias", 2),
    ]
    assert found["dim"] == 8
    drawn = [by_encoding(document("compare", "--vectors", "random", "--seed", s))["nope"] for s in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    np.save(tmp_path / "two.npy", np.stack([np.full(4, 2.0), np.full(4, 3.0)]))
    found = document("compare", "--vectors", str(tmp_path / "two.npy"), "--dim", "4", "--encodings", "nope")
    assert by_encoding(found) == {"nope": [24.0, 24.0, 24.0]}


def test_decay_says_how_far_the_score_rises_again() -> None:
    text = run("decay").stdout
    flat = " ".join(text.split())
    assert "the largest rebound is from 21.5392 at distance 96 back up to 35.7493 at distance 100" in flat
    assert re.search(r"^ +96 +21\.5392 +35\.7493 *$", text, re.MULTILINE)
    assert re.search(r"^ +100 +35\.7493 *$", text, re.MULTILINE)
    assert "Decay depends on q and k" in flat
    assert re.search(r"64\.0 ┤", text)
    assert re.search(r"[\u2801-\u28ff]", text)
    assert "falls and never rises again" in run("decay", "--encodings", "alibi").stdout
    assert "the same score at every distance" in run("decay", "--encodings", "nope").stdout


def test_decay_of_random_vectors_says_what_the_mean_does() -> None:
    found = document("decay", "--vectors", "random", "--pairs", "400")
    (curve,) = found["curves"]
    text = " ".join(run("decay", "--vectors", "random", "--pairs", "400").stdout.split())
    assert f"between {min(curve['scores']):.4f} and {max(curve['scores']):.4f}" in text
    errors = [s / 400**0.5 for s in curve["spread"]]
    assert f"standard error of {sum(errors) / len(errors):.4f}" in text
    assert f"{errors[10]:.4f}" in text
    assert "flat at zero" in text
    assert "no decay to be seen" in text
    for encoding, words in (("kerple", "the bias alone"), ("sinusoidal", "have a product of their own")):
        text = run("decay", "--vectors", "random", "--pairs", "400", "--encodings", encoding).stdout
        assert words in " ".join(text.split())
        assert "stays within" not in text
    text = run("decay", "--vectors", "random", "--pairs", "29").stdout
    assert "with fewer than 30 pairs this does not show" in " ".join(text.split())


def test_decay_of_several_is_one_table() -> None:
    found = document("decay", "--encodings", "rope,kerple,cope")
    text = run("decay", "--encodings", "rope,kerple,cope").stdout
    for curve in found["curves"]:
        assert f"{curve['scores'][0]:.4f}" in text
        assert f"{curve['scores'][100]:.4f}" in text
    assert re.search(r"RoPE .*96 → 100: \+14\.2102", text)
    assert re.search(r"KERPLE .* - *$", text, re.MULTILINE)
    assert "CoPE: the largest rebound" in text
    text = run("decay", "--encodings", "rope,alibi,learned", "--vectors", "random", "--pairs", "200").stdout
    assert re.search(r"RoPE .*flat at 0 *$", text, re.MULTILINE)
    assert re.search(r"ALiBi .*bias alone *$", text, re.MULTILINE)
    assert re.search(r"Learned .*added *$", text, re.MULTILINE)
    assert "stays within 4.9 standard errors" in " ".join(text.split())
    text = run("decay", "--encodings", "rope,nope", "--vectors", "random", "--pairs", "9").stdout
    assert re.search(r"RoPE .*too few *$", text, re.MULTILINE)


def test_a_mean_that_leaves_zero_by_more_than_chance_is_said_to() -> None:
    curve = Curve("rope", (2.0, 0.0, 0.0), (1.0, 1.0, 1.5), (0.0, 0.0, None), None)
    found = Decay(64, 0, 2, "random", 100, 42, (curve,))
    assert verdict.kind(curve, found) == "other"
    assert "20.0 standard errors from zero" in verdict.sentence(curve, found, "RoPE")
    found = Decay(64, 0, 2, "random", 29, 42, (curve,))
    assert verdict.kind(curve, found) == "few"


def test_decay_takes_every_option(tmp_path: Path) -> None:
    found = document("decay", "--length", "7", "--query", "5", "--dim", "6", "--encodings", "rope,alibi")
    assert [len(c["scores"]) for c in found["curves"]] == [8, 8]
    assert (found["query"], found["dim"]) == (5, 6)
    found = document("decay", "--vectors", "random", "--pairs", "3", "--seed", "9", "--length", "2")
    assert found["pairs"] == 3
    assert found["seed"] == 9
    assert found["curves"][0]["spread"] is not None
    np.save(tmp_path / "one.npy", np.arange(6.0))
    found = document("decay", "--vectors", str(tmp_path / "one.npy"), "--dim", "6", "--length", "2")
    assert found["curves"][0]["scores"][0] == pytest.approx(55)
    assert document("decay", "--encodings", "all", "--length", "2")["curves"][0]["encoding"] == "nope"


def test_order_takes_the_pairs_of_the_articles() -> None:
    found = document("order")
    assert [pair["first"] for pair in found["pairs"]] == ["犬が人を噛む", "I drink coffee in a café"]
    for pair in found["pairs"]:
        told = {row["encoding"]: row["told_apart"] for row in pair["rows"]}
        assert told == {name: name != "nope" for name in NAMES}
    text = " ".join(run("order").stdout.split())
    assert text.count("Without an encoding both orders give the same output to rounding") == 2
    assert text.count(f"the other {len(NAMES) - 1} tell them apart") == 2


def test_order_says_why_a_mirror_image_is_not_seen() -> None:
    text = " ".join(run("order", "dog bites man", "man bites dog").stdout.split())
    assert "ALiBi, KERPLE and FIRE cannot tell them apart either" in text
    assert "distances, not directions" in text
    assert "the other 8 tell them apart" in text
    assert "either" not in run("order", "a b c", "c b a", "--encodings", "alibi").stdout
    assert "distances, not directions" not in run("order", "a b c d", "b a c d").stdout


def test_order_says_that_a_causal_mask_counts() -> None:
    text = " ".join(run("order", "--causal", "a b c", "c a b").stdout.split())
    assert "With a causal mask even NoPE differs" in text
    assert "token n sees n tokens" in text
    text = " ".join(run("order", "--causal", "a b", "b a", "--encodings", "rope,t5").stdout.split())
    assert "All 2 tell them apart" in text


def test_order_takes_every_option() -> None:
    options = ("--dim", "8", "--seed", "5", "--encodings", "rope,nope", "--causal")
    (pair,) = document("order", "a b", "b a", *options)["pairs"]
    assert [row["encoding"] for row in pair["rows"]] == ["rope", "nope"]
    assert (pair["dim"], pair["seed"], pair["causal"], pair["mirrored"], pair["tokens"]) == (
        8,
        5,
        True,
        True,
        ["a", "b"],
    )


def test_list_has_every_encoding() -> None:
    found = document("list")["encodings"]
    assert [card["name"] for card in found] == NAMES
    assert set(found[0]) == {"name", "label", "places", "claims", "idea"}
    text = run("list").stdout
    for cls in ENCODINGS:
        assert re.search(rf"^{cls.name} +{cls.label} ", text, re.MULTILINE)
    assert re.search(r"^shaw .*score, value +shift-invariant$", text, re.MULTILINE)
    assert re.search(r"^relative_bias .*shift-invariant, distance-only, limited$", text, re.MULTILINE)
    assert re.search(r"^fire .*causal-only$", text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_show_has_every_field(name: str) -> None:
    (cls,) = [cls for cls in ENCODINGS if cls.name == name]
    text = run("show", name).stdout
    flat = " ".join(text.split())
    assert text.startswith(f"{cls.label} ({name})")
    for wanted in (cls.formula, cls.paper.title, cls.idea["en"], cls.paper.where):
        assert " ".join(wanted.split()) in flat
    for parameter in cls.parameters_of_constructor():
        assert re.search(rf"^.{{14}}{parameter}\b", text, re.MULTILINE)
    assert f"ropewalk cite {name}" in text
    found = document("show", name)
    assert found["name"] == name
    assert found["idea"] == cls.idea


def test_the_python_line_of_a_card_runs() -> None:
    for name in NAMES:
        (line,) = re.findall(r"In Python +(ropewalk\..*)", run("show", name).stdout)
        made = eval(line, {"ropewalk": __import__("ropewalk")})
        assert made.name == name


def test_cite_prints_each_paper_once() -> None:
    text = run("cite", "t5", "RELATIVE-BIAS", "rope").stdout
    assert re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE) == ["raffel2020t5", "su2021roformer"]
    entries = document("cite", "t5", "relative_bias", "rope")["entries"]
    assert [entry["key"] for entry in entries] == ["raffel2020t5", "su2021roformer"]
    assert "\n\n".join(entry["bibtex"] for entry in entries) + "\n" == text


def test_doctor_tells_versions() -> None:
    found = document("doctor")
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["ropewalk"] == __version__
    assert found["torch"]["devices"][0] == "cpu"
    assert Path(found["font"]).is_file()
    assert found["missing"] == []
    assert found["language"] == "en"
    assert document("doctor", "--lang", "ja")["language"] == "ja"
    text = run("doctor").stdout
    assert metadata.version("torch") in text
    assert ("plain PyTorch (eager)" in text) != ("cpu " in text.split("kernels")[1].splitlines()[0])


@pytest.mark.parametrize(
    ("package", "code", "line"),
    [("matplotlib", 0, "pip install 'ropewalk[plot]'"), ("numpy", 1, "pip install numpy")],
)
def test_doctor_names_what_is_missing(package: str, code: int, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    result = run("doctor", code=code)
    assert re.search(rf"^{package} +not installed: {re.escape(line)}$", result.stdout, re.MULTILINE)
    assert ("missing: numpy" in result.stderr) == (code == 1)


def test_doctor_says_in_both_languages_that_kernels_were_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "KERNELS", cpu.Kernels(None, cpu.NOT_BUILT))
    found = document("doctor")
    assert (found["kernels"], found["rotation"], found["built"]) == ([], "eager", False)
    assert cpu.NOT_BUILT in run("doctor", "--lang", "en").stdout
    japanese = run("doctor", "--lang", "ja").stdout
    assert "ビルドされていません" in japanese
    assert cpu.NOT_BUILT not in japanese


def test_doctor_reports_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("libtorch.so: cannot open shared object file")

    monkeypatch.setattr(doctor, "_torch", broken)
    result = run("doctor", code=1)
    assert "OSError: libtorch.so" in result.stdout
    assert "missing: torch" in result.stderr


# Pictures and the page: that the files come to be; what is in them is tested with the plots.


@pytest.mark.parametrize(
    ("args", "name", "start"),
    [
        (["compare"], "scores.png", b"\x89PNG"),
        (["decay", "--encodings", "rope,alibi"], "decay.svg", b"<?xml"),
        (["decay", "--vectors", "random", "--pairs", "9"], "random.pdf", b"%PDF"),
        (["show", "sinusoidal"], "card.PNG", b"\x89PNG"),
    ],
)
def test_plot_writes_a_picture_beside_the_results(args: list[str], name: str, start: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    result = run(*args, "--plot", str(tmp_path / name), "--json")
    assert (tmp_path / name).read_bytes().startswith(start)
    assert json.loads(result.stdout)["schema"] == f"ropewalk.{args[0]}/1"
    assert f"Picture written to {tmp_path / name}" in result.stderr


def test_demo_writes_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    page = tmp_path / "page.html"
    result = run("demo", "--output", str(page), "--seed", "3", "--lang", "ja", "--json")
    assert json.loads(result.stdout) == {"schema": "ropewalk.demo/1", "path": str(page)}
    assert JAPANESE.search(result.stderr)
    assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")


@pytest.mark.parametrize("args", [["compare"], ["decay"], ["show", "rope"]])
def test_without_matplotlib_the_pip_line_is_named(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run(*args, "--plot", "x.png", code=1)
    assert result.stderr == "Error: pictures need matplotlib: pip install 'ropewalk[plot]'\n"
    assert result.stdout == ""
    assert "pip install 'ropewalk[plot]'" in run("demo", "--lang", "ja", code=1).stderr


def test_a_file_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    nowhere = tmp_path / "none" / "x.png"
    result = run("compare", "--plot", str(nowhere), code=1)
    assert result.stderr == f"Error: the folder {nowhere.parent} does not exist\n"
    assert result.stdout == ""
    (tmp_path / "folder.html").mkdir()
    result = run("demo", "-o", str(tmp_path / "folder.html"), code=1)
    assert result.stderr == f"Error: {tmp_path / 'folder.html'} is a folder\n"
    result = run("demo", "-o", str(tmp_path / "folder.html"), "--lang", "ja", code=1)
    assert "フォルダーです" in result.stderr

    def full(figure: object, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ropewalk.plots.style.save", full)
    result = run("compare", "--plot", str(tmp_path / "x.png"), code=1)
    assert result.stderr == f"Error: cannot write {tmp_path / 'x.png'}: No space left on device\n"


# Errors: the message, in both languages, and the exit code; nothing on stdout.


@pytest.mark.parametrize(
    ("args", "en", "ja"),
    [
        ("foo", r"there is no command 'foo'; there are demo, compare", "「foo」というコマンドはありません"),
        ("comapre", r"did you mean 'compare'\?", "「compare」ですか？"),
        ("show rop", r"there is no encoding 'rop', did you mean 'rope'\?; there are nope", "「rope」ですか？"),
        ("cite alibi zzz", r"there is no encoding 'zzz'; there are nope", "「zzz」という位置符号化はありません"),
        ("compare --encodings relative-bais", r"did you mean 'relative_bias'\?", "「relative_bias」ですか？"),
        ("decay --encodings x", "there is no encoding 'x'", "「x」という位置符号化はありません"),
        ("order --encodings x --json", "there is no encoding 'x'", "「x」という位置符号化はありません"),
        ("compare --encodings ,", "there is no name in it", "名前がありません"),
        (
            "compare --dim 7",
            r"'--dim': '7' is not an even whole number, 2 or more",
            "「7」は使えません。2 以上の偶数を指定してください",
        ),
        ("compare --dim 0", r"'0' is not an even whole number", "2 以上の偶数"),
        ("compare --dim many", r"'many' is not an even", "「many」は使えません"),
        ("compare --query -1", r"'-1' is not a whole number, 0 or more", "0 以上の整数"),
        ("compare --seed 99999999999999999999", "is not a whole number, 0 or more", "0 以上の整数"),
        ("compare --keys 3,-1", r"'3,-1' is not a list of positions", "3,5,20 のように"),
        ("compare --keys 3,,5", r"'3,,5' is not a list of positions", "3,5,20 のように"),
        ("compare --vectors none.npy", r"'none.npy' is not 'ones', 'random', or a .npy file that exists", "存在する"),
        ("compare --vectors one", "is not 'ones', 'random'", "「one」は使えません"),
        (
            "compare --plot x.jpg",
            r"'x.jpg' does not end with one of .png, .svg, .pdf",
            "のどれかで終わる名前にしてください",
        ),
        ("compare --keys 3000000", "positions run from 0 to 1,000,000", "この指定では計算できません"),
        ("compare --dim 100000000", r"need tensors of 2,100,000,000 numbers, more than 268,435,456", "テンソル"),
        ("decay --length 0", r"'0' is not a whole number, 1 or more", "1 以上の整数"),
        ("decay --pairs 0", r"'--pairs'", "1 以上の整数"),
        ("decay --pairs 99999999", "need tensors of 12,799,999,872 numbers", "テンソル"),
        ("decay --length 100000 --vectors random", "need tensors of", "テンソル"),
        ("order one", "give two sentences, or none", "文を二つ指定"),
        ("order --plot x.png", "a picture shows one pair: give its two sentences", "図に描けるのは一組だけ"),
        ("order 'a b' 'a c'", r"only the first has \['b'\] and only the second \['c'\]", "同じ語を別の順に"),
        ("order 'a b' 'a b'", "the same order of the same tokens", "同じ語を別の順に"),
        ("order --dim 20000", "need tensors of", "テンソル"),
        ("demo -o x.txt", r"'x.txt' does not end with one of .html, .htm", "のどれかで終わる名前にしてください"),
        ("compare --lnag ja", "No such option '?--lnag", "--lnag というオプションはありません"),
        ("compare --dim", "'--dim' requires an argument", "オプション --dim の書き方が違います"),
        ("compare --json=1", "'--json' does not take a value", "オプション --json の書き方が違います"),
        ("compare extra", r"unexpected extra argument \(extra\)", "余分な引数があります: extra"),
        ("list a b", r"unexpected extra arguments \(a b\)", "余分な引数があります: a b"),
        ("show", "Missing argument 'NAME'", "NAME を指定してください"),
        ("cite", r"Missing argument 'NAME\.\.\.'", "NAME... を指定してください"),
    ],
)
def test_wrong_usage(args: str, en: str, ja: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(args)
    monkeypatch.chdir(tmp_path)  # where no file is
    result = run(*words, code=2)
    japanese = run("--lang", "ja", *words, code=2)
    assert result.stdout == japanese.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert re.search(en, result.stderr)
    assert japanese.stderr.startswith("エラー: ")
    assert ja in japanese.stderr
    assert len(result.stderr.splitlines()) <= 2  # the message, and where help is


def test_a_language_that_does_not_exist() -> None:
    assert "'fr' is not one of ja, en" in run("compare", "--lang", "fr", code=2).stderr
    assert (
        "「fr」は使えません。ja, en のどれかを指定してください"
        in run("compare", "--lang", "fr", code=2, LC_ALL="ja_JP.UTF-8").stderr
    )


def test_vectors_that_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "v.npy"
    np.save(file, np.ones(3))
    assert "wanted are numbers of shape (64,)" in run("compare", "--vectors", str(file), code=2).stderr
    file.write_bytes(b"nothing")
    assert "cannot be read as a .npy file" in run("decay", "--vectors", str(file), code=2).stderr
    np.save(file, np.full(4, np.nan))
    assert "not finite" in run("decay", "--vectors", str(file), "--dim", "4", code=2).stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("command", ["compare", "decay"])
def test_scores_that_are_not_finite(command: str, options: tuple[str, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "huge.npy", np.full(4, 1e30))
    args = (command, "--vectors", str(tmp_path / "huge.npy"), "--dim", "4", *options)
    result = run(*args, code=1)
    assert result.stdout == ""
    assert "a score is beyond float32" in result.stderr
    assert "float32 の範囲を超えました" in run(*args, "--lang", "ja", code=1).stderr


def test_too_little_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(**options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    monkeypatch.setattr("ropewalk.measure.compare.compare", greedy)
    assert run("compare", code=1).stderr == "Error: not enough memory for such sizes\n"


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(**options: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr("ropewalk.measure.compare.compare", faulty)
    result = CliRunner().invoke(main, ["compare"])
    assert isinstance(result.exception, RuntimeError)
    assert result.exit_code == 1


# Languages.


@pytest.mark.parametrize("what", RUNS)
def test_japanese_is_complete(what: str) -> None:
    args = RUNS[what]
    result = run(*args, "--lang", "ja")
    text = result.stdout
    assert JAPANESE.search(text)
    for cls in ENCODINGS:
        paper = cls.paper
        for english in (paper.title, paper.venue, paper.authors[0], cls.formula):
            text = re.sub(r"\s+".join(re.escape(word) for word in english.split()), "", text)
    text = text.replace("I drink coffee in a café", "").replace("in a café I drink coffee", "")
    assert not ENGLISH_SENTENCE.search(text), ENGLISH_SENTENCE.search(text)
    assert text != run(*args, "--lang", "en").stdout


@pytest.mark.parametrize("what", RUNS)
def test_english_is_english(what: str) -> None:
    text = run(*RUNS[what]).stdout
    for japanese in (
        "犬が人を噛む",
        "人が犬を噛む",
        "犬 | が | 人 | を | 噛 | む",
        "一 二 三",
        "三 二 一",
        "一 | 二 | 三",
    ):
        text = text.replace(japanese, "")
    assert not JAPANESE.search(text)


def test_the_language_is_found_before_and_after_the_command_and_in_the_locale() -> None:
    japanese = run("order", "--lang", "ja").stdout
    assert run("--lang", "ja", "order").stdout == japanese
    assert run("order", "--lang=ja").stdout == japanese
    assert run("order", LC_ALL="ja_JP.UTF-8").stdout == japanese
    assert run("order", LC_ALL="", LC_MESSAGES="ja_JP", LANG="en_US").stdout == japanese
    assert run("--lang", "ja", "order", "--lang", "en", LC_ALL="ja_JP.UTF-8").stdout == run("order").stdout
    assert run("order", "--lang", "en", LC_ALL="ja_JP.UTF-8").stdout == run("order").stdout


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_in_both_languages_ends_with_examples(name: str) -> None:
    command = main.commands[name] if name else main
    assert isinstance(command, Command | type(main))
    english = run(*name.split(), "--help").stdout
    japanese = run(*name.split(), "--help", "--lang", "ja").stdout
    assert japanese == run("--lang", "ja", *name.split(), "--help").stdout
    assert japanese == run(*name.split(), "--help", LC_ALL="ja_JP.UTF-8").stdout
    for text, heading in ((english, "Example:"), (japanese, "例:")):
        lines = text.splitlines()
        at = lines.index(heading)
        assert [line.strip() for line in lines[at + 1 :]] == list(command.examples)
        assert max(cells(line) for line in lines[:at]) <= 80  # an example stays on one line, to be copied
        for option in (p for p in command.params if isinstance(p, click.Option)):
            assert option.opts[0] in text
    assert not JAPANESE.search(english.replace("犬が人を噛む 人が犬を噛む", ""))
    assert not ENGLISH_SENTENCE.search(japanese.replace("[OPTIONS] COMMAND [ARGS]", "").partition("例:")[0])
    defaults = re.findall(r"\[default: (\S+)\]", english)
    assert defaults == re.findall(r"\[既定値: (\S+)\]", japanese)


def test_help_is_what_no_command_gives() -> None:
    assert run().stdout == run("--help").stdout
    assert run("--lang", "ja").stdout == run("--help", "--lang", "ja").stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--plot" in example or "demo" in example:
        pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    typed, _, target = example.partition(" > ")
    program_name, *args = shlex.split(typed)
    assert program_name == "ropewalk"
    (tmp_path / "examples").symlink_to(EXAMPLE_FILES)
    monkeypatch.chdir(tmp_path)
    assert run(*args).stdout
    files = {p.name for p in tmp_path.iterdir()} - {"examples"}
    written = re.findall(r"(?:--plot|--output) (\S+)", example) or (["ropewalk-demo.html"] if "demo" in example else [])
    assert files == set(written)
    assert not target or target.endswith(".bib")


# The terminal.


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize("what", RUNS)
def test_everything_fits_eighty_columns(what: str, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = output.console

    def narrow() -> Any:
        made = wide()
        made.width = 80
        return made

    monkeypatch.setattr(output, "console", narrow)
    text = run(*RUNS[what], "--lang", language).stdout
    if not what.startswith("show"):  # which has formulas with an ellipsis of their own
        assert "…" not in text
    if what != "doctor":  # which prints paths
        assert max(cells(line.rstrip()) for line in text.splitlines()) <= 80


def test_no_colours_where_there_is_no_terminal() -> None:
    for args in RUNS.values():
        assert "\x1b" not in run(*args).stdout


@given(st.text(alphabet="ab RoPE、。「」距離が[]ー（）", max_size=60), st.integers(4, 30))
def test_wrapping_keeps_text_and_width(text: str, columns: int) -> None:
    lines = wrap(text, columns)
    assert "".join("".join(lines).split()) == "".join(text.split())
    for line in lines:
        assert line == line.strip() or not line
    for line, following in pairwise(lines):
        assert following[0] not in "、。」）ー"
        assert line[-1] not in "「（"


def test_wrapping_fills_lines_and_breaks_words_nowhere() -> None:
    assert wrap("one two three four", 9) == ["one two", "three", "four"]
    assert wrap("位置に比例した角度だけ、回転する。", 12) == ["位置に比例し", "た角度だけ、", "回転する。"]
    assert wrap("a [default: x y] b", 6) == ["a", "[default: x y]", "b"]
    assert wrap("", 9) == [""]
    assert pad("距離", 6) == "距離  "


def test_a_bar_is_as_long_as_its_value() -> None:
    assert [output.bar(v, 8.0, 8) for v in (8.0, -4.0, 0.0, 1.125)] == ["████████", "████", "", "█▏"]
    assert output.bar(0.0, 0.0, 8) == ""


def test_a_sparkline_runs_from_lowest_to_highest() -> None:
    assert output.sparkline([0.0, 1.0, 2.0, 7.0], 9) == "▁▂▃█"
    assert output.sparkline([5.0, 5.0 + 1e-9, 5.0], 3) == "▄▄▄"
    assert len(output.sparkline([float(v) for v in range(100)], 20)) == 20


def test_a_chart_draws_a_line_from_corner_to_corner() -> None:
    assert output.chart([[0.0, 1.0]], 4, 2) == ["1.0 ┤⠀⠀⣠⠞", "0.0 ┤⣠⠞⠁"]
    assert [line[:6] for line in output.chart([[1.0, -1.0]], 4, 3)] == [" 1.0 ┤", " 0.0 ┤", "-1.0 ┤"]
    assert output.chart([[0.0, 0.0]], 2, 1) == ["0.0 ┤⠉⠉"]


# The program as a process.


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom ropewalk.cli import main\n"
        "for args in (['--help'], ['compare', '--help'], ['--lang', 'ja', 'decay', '--help'], ['nothing'], ['show']):\n"
        "    try: main(args)\n    except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich', 'triton', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_results_and_messages_go_their_own_ways() -> None:
    done = program("compare", "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert by_encoding(json.loads(done.stdout))["rope"] == GOLDEN["rope"]["as_printed"]
    assert program("--version").stdout == f"ropewalk {__version__}\n"
    done = program("show", "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_left_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "list"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


def test_an_interrupt_ends_the_program_quietly() -> None:
    code = (
        "import os, signal, ropewalk.measure.compare as measured\n"
        f"measured.compare = lambda **options: os.kill(os.getpid(), {int(signal.SIGINT)})\n"
        "from ropewalk.cli import main\nmain(['compare'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.strip() == ""
    assert done.stdout == ""


def test_a_terminal_that_knows_ascii_only_is_served() -> None:
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = program("order", "--json", **env)
    assert json.loads(done.stdout)["pairs"][0]["first"] == "犬が人を噛む"
    done = program("order", **env)
    assert done.returncode == 0
    assert done.stdout.isascii()
    done = program("show", "nothing", "--lang", "ja", **env)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_colours_follow_the_terminal() -> None:
    assert "\x1b[1m" in program("list", FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b" not in program("list").stdout
