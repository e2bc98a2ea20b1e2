"""The documents: what they show runs, what they number is measured, and both languages say the same."""

from __future__ import annotations

import doctest
import json
import re
import shlex
from decimal import Decimal, localcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import ropewalk
from ropewalk import ENCODINGS, build, cos_sin, geometric
from ropewalk.cli import main
from ropewalk.lab.reading import read as read_study
from ropewalk.measure.compare import compare
from ropewalk.measure.decay import decay
from ropewalk.measure.order import order

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README.ja.md")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for folder in (".", "docs", "benchmarks") for path in (ROOT / folder).glob("*.md")
)
SET_UP = """\
python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[lab]' && .venv/bin/ropewalk demo
.venv/bin/pip install -c constraints.txt -e '.[test]' && .venv/bin/pytest -q
"""
PLACES = {"埋め込み": "embedding", "クエリとキー": "query/key", "スコア": "score", "バリュー": "value"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, kind: str | None = None) -> list[str]:
    """The contents of the fenced code blocks, of one kind or of all."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", read(name), flags=re.M | re.S)
    return [text for info, text in found if kind is None or info == kind]


def prose(name: str) -> str:
    return re.sub(r"^```.*?^```$", "", read(name), flags=re.M | re.S)


def table(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    (body,) = re.findall(rf"^\| {re.escape(header)} \|.*\n\|[-|: ]+\|\n((?:\|.*\n)+)", text, flags=re.M)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body.splitlines()]


# ---- the READMEs ------------------------------------------------------------------------


@pytest.mark.parametrize("name", READMES)
def test_there_are_exactly_the_two_set_up_commands(name: str) -> None:
    assert blocks(name, "sh") == [SET_UP]


@pytest.mark.parametrize("name", READMES)
def test_python_examples_run(name: str) -> None:
    examples = "".join(blocks(name, "python"))
    test = doctest.DocTestParser().get_doctest(examples, {}, name, name, 0)
    assert len(test.examples) >= 15
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(test, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize(
    ("name", "command", "shown"),
    [
        (name, line, shown)
        for name in READMES
        for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks(name, "console")), flags=re.M)
    ],
)
def test_commands_print_what_is_shown(name: str, command: str, shown: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "ropewalk"
    ran = CliRunner().invoke(main, arguments, env={"LC_ALL": "C.UTF-8"})
    assert ran.exit_code == 0, ran.output
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert shown.strip().count("\n") >= 3
    assert doctest.OutputChecker().check_output(shown, ran.stdout, flags), ran.stdout


@pytest.mark.parametrize("name", READMES)
def test_named_commands_exist(name: str) -> None:
    named = set(re.findall(r"`ropewalk (?:--lang \w+ )?([a-z]+)", read(name)))
    assert named >= {"list", "cite"}
    for command in named:
        ran = CliRunner().invoke(main, [command, "--help"])
        assert ran.exit_code == 0, f"{command}: {ran.output}"


def test_both_readmes_have_the_same_structure() -> None:
    english, japanese = READMES
    levels = [[len(mark) for mark in re.findall(r"^(#+) ", prose(name), flags=re.M)] for name in READMES]
    assert levels[0] == levels[1]
    kinds = [re.findall(r"^```(\w+)$", read(name), flags=re.M) for name in READMES]
    assert kinds[0] == kinds[1]

    def code(name: str) -> list[str]:
        return [re.sub(r" +# .*", "", text) for text in blocks(name, "python")]

    def commands(name: str) -> list[str]:
        lines = re.findall(r"^\$ (.*)$", read(name), flags=re.M)
        return [line.replace("ropewalk --lang ja ", "ropewalk ") for line in lines]

    assert code(english) == code(japanese)
    assert commands(english) == commands(japanese)
    assert len(table(read(english), "Place")) == len(table(read(japanese), "場所"))
    paths = [[line.split()[0] for line in blocks(name, "text")[0].splitlines()] for name in READMES]
    assert paths[0] == paths[1]
    targets = [re.findall(r"\]\(([^)]+)\)", read(name)) for name in READMES]
    swapped = {"docs/images/decay-ja.png": "docs/images/decay-en.png"}
    assert sorted(t for t in targets[0] if t != "README.ja.md") == sorted(
        swapped.get(t, t.replace(".ja.md", ".md")) for t in targets[1] if t != "README.md"
    )


@pytest.mark.parametrize("name", READMES)
def test_the_tree_is_that_of_the_repository(name: str) -> None:
    listed: list[str] = []
    for line in blocks(name, "text")[0].splitlines():
        path, *words = line.split()
        listed.append(f"src/ropewalk/{path}" if line.startswith("  ") else path)
        assert words or path == "src/ropewalk/", f"{path} has no description"
    for path in listed:
        assert (ROOT / path).exists(), path
        assert (ROOT / path).is_dir() == path.endswith("/"), path
    package = ROOT / "src" / "ropewalk"
    there = {f"src/ropewalk/{path.name}" for path in package.glob("*.py")}
    there |= {f"src/ropewalk/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    missing = sorted(there - set(listed))
    assert not missing, f"give each of these a line in the tree of {' and '.join(READMES)}: {missing}"


@pytest.mark.parametrize(("name", "header"), [("README.md", "Place"), ("README.ja.md", "場所")])
def test_the_table_of_encodings_is_the_registry(name: str, header: str) -> None:
    rows = table(read(name), header)
    for (places, _, cls), encoding in zip(rows, ENCODINGS, strict=True):
        assert getattr(ropewalk, cls.strip("`")) is encoding
        named = tuple(PLACES.get(place, place) for place in re.split(r", |、", places))
        assert (() if named in (("none",), ("なし",)) else named) == encoding.places()


# ---- every document ------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_resolve(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(name)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / name).parent / path if path else ROOT / name
        assert there.exists(), f"{name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], target


@pytest.mark.parametrize("name", DOCUMENTS)
def test_inline_code_names_things_that_exist(name: str) -> None:
    """Names written as code, with a capital or with a call, are the library's."""
    missing = [
        word
        for word in re.findall(r"`(?:rw\.|ropewalk\.)?([A-Z][A-Za-z0-9]+)(?:\([^`]*\))?`", prose(name))
        if not hasattr(ropewalk, word)
    ]
    assert missing == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_written_as_code_exist(name: str) -> None:
    for path in re.findall(r"`((?:src|docs|tests|examples|benchmarks|\.ci)/[\w./-]*)`", prose(name)):
        assert (ROOT / path).exists(), f"{name} names {path}"


@pytest.mark.parametrize("name", ["encodings.md", "encodings.ja.md"])
def test_the_reference_has_every_encoding_in_order(name: str) -> None:
    reference = read(f"docs/{name}")
    assert re.findall(r"^### (.*)$", reference, flags=re.M) == [cls.label for cls in ENCODINGS]


@pytest.mark.parametrize(
    "name", ["encodings", "claims", "explorer", "extending", "lab", "parallel", "reading", "transformers"]
)
def test_both_languages_of_a_document_have_the_same_structure(name: str) -> None:
    assert blocks(f"docs/{name}.md") == blocks(f"docs/{name}.ja.md")
    english, japanese = prose(f"docs/{name}.md"), prose(f"docs/{name}.ja.md")
    for pattern in (r"^(#+) ", r"^(\|[-:|]+\|)$", r"^(\|) ", r"^(- \*\*)", r"^(\*\*)"):
        assert len(re.findall(pattern, english, flags=re.M)) == len(re.findall(pattern, japanese, flags=re.M)), pattern
    assert sorted(re.findall(r"`([^`]+)`", english)) == sorted(re.findall(r"`([^`]+)`", japanese))
    tables = [re.findall(r"^\|.*\|$", text, flags=re.M) for text in (english, japanese)]
    verdicts = {
        "成り立つ": "holds",
        "一部": "holds in part",
        "成り立たない": "does not hold",
        "判定できない": "open",
        "ここでは検証できない": "not testable here",
        "まだ": "not measured yet",
    }
    for one, other in zip(*tables, strict=True):
        numbers = [re.sub(r"(?<=\d) ?(?:percent|%)", "%", row) for row in (one, other)]
        decimals = [sorted(re.findall(r"\d+[.,]\d+", row)) for row in numbers]
        assert decimals[0] == decimals[1], other
        if name == "claims" and not one.startswith(("| Claim", "|---")):
            last = [row.split(" | ")[-1] for row in (one, other)]
            (verdict,) = [verdicts[ja] for ja in verdicts if last[1].startswith(ja)]
            assert last[0].startswith(verdict), other


@pytest.mark.parametrize(("name", "header"), [("encodings.md", "Encoding"), ("encodings.ja.md", "位置符号化")])
def test_the_table_for_choosing_is_measured(name: str, header: str) -> None:
    rows = table(read(f"docs/{name}"), header)
    yes, no = ("yes", "no") if header == "Encoding" else ("はい", "いいえ")
    mirrored = order("dog bites man", "man bites dog")
    assert mirrored.mirrored
    told = {row.encoding: row.told_apart for row in mirrored.rows}
    for (label, parameters, longest, fused, direction), cls in zip(rows, ENCODINGS, strict=True):
        made = build(cls.name, dim=512, heads=8, head_dim=64)
        assert label == cls.label
        assert parameters == f"{sum(p.numel() for p in made.parameters()):,}"
        assert longest.startswith(("its length", "表の長さ")) == (made.max_length is not None)
        by_content = cls.score is not ropewalk.PositionalEncoding.score
        assert fused == (no if by_content else yes)
        assert direction == (yes if told[cls.name] else no)


def test_the_numbers_of_the_claims_are_measured() -> None:
    text = read("docs/claims.md")
    scores = compare().table()
    for name in ("learned", "relative_bias", "rope"):
        assert ", ".join(f"{score:.4f}" for score in scores[name]) in text
    curve = decay().curves[0]
    assert curve.rebound is not None
    rises = sum(b > a for a, b in zip(curve.scores, curve.scores[1:], strict=False))
    assert (
        f"goes up {rises} times, the largest return from {curve.rebound.low:.1f} at distance {curve.rebound.low_at} "
        f"to {curve.rebound.high:.1f} at {curve.rebound.high_at}" in text
    )
    longest = float(geometric(512).wavelength[-1])
    assert f"{longest:,.1f}, {longest / (2 * torch.pi * 10_000):.1%} of 10000·2π" in text
    slow = int((geometric(128).wavelength > 4096).sum())
    assert f"{slow} of 64 pairs do not complete a turn" in text
    rows = order("a b c", "c b a").rows
    blind = [build(row.encoding, dim=8, heads=1, head_dim=8).label for row in rows if not row.told_apart]
    assert blind == ["NoPE", "ALiBi", "KERPLE", "FIRE"]
    assert "ALiBi, KERPLE and FIRE give a text and its mirror image the same" in text
    causal = order("犬が人を噛む", "人が犬を噛む", causal=True, encodings=["nope"]).rows[0]
    assert causal.told_apart


def test_the_claim_of_exact_angles() -> None:
    spectrum = geometric(128)
    worst = 0.0
    with localcontext() as context:
        context.prec = 60
        turn = Decimal("6.2831853071795864769252867665590057683943387987502116419498891846")
        for position in (1, 4095, 2**20 - 1, 2**30):
            cos, sin = cos_sin([position], spectrum)
            for pair in range(64):
                angle = position * Decimal(10_000) ** (Decimal(-2 * pair) / 128)
                exact = torch.tensor(float(angle % turn), dtype=torch.float64)
                worst = max(worst, float((cos[0, pair] - exact.cos()).abs()), float((sin[0, pair] - exact.sin()).abs()))
    assert worst < 6e-8
    assert "within 6e-8 of float64 at positions up to 2³⁰" in read("docs/claims.md")
    positions = torch.arange(2**20 - 4096, 2**20)
    multiplied = (positions.float()[:, None] * spectrum.inv_freq.float()).double()
    off = float((multiplied - positions.double()[:, None] * spectrum.inv_freq).abs().max())
    assert f"off by {off:.2f} radians near position 2²⁰" in read("docs/claims.md")


def told(statement: dict[str, Any]) -> str:
    """The numbers of a statement as docs/claims.md has them."""
    d, values = statement["difference"], statement["values"]
    if len(values) == 1:  # against a bound
        low, high = (values[0] - d["mean"] + d[end] for end in ("low", "high"))
        return f"{values[0]:.3f} ({low:.3f} to {high:.3f})"
    numbers = f"{values[0]:.3f} against {values[1]:.3f}, {d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"
    return numbers.replace("-", "−")


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_claims_about_trained_models_are_what_the_studies_found(path: Path) -> None:
    found = json.loads(read(f"benchmarks/results/studies/{path.stem}.json"))
    study = read_study(path)
    decide = ("run", "tune", "grid", "arm")
    assert {k: found["document"].get(k) for k in decide} == {k: study.document.get(k) for k in decide}
    rules = [
        [{k: v for k, v in one.items() if k not in ("en", "ja")} for one in document["expect"]]
        for document in (found["document"], study.document)
    ]
    assert rules[0] == rules[1], "what was published was judged by the rules that the study has"
    assert not found["quick"]
    assert all(arm["seeds"] == found["seeds"] for arm in found["arms"]), "every run has ended"
    assert sum(sum(arm["seconds"]) for arm in found["arms"]) / 2 < 3600, "an hour on two cores"
    rows = [row for row in read("docs/claims.md").splitlines() if f"(../examples/studies/{path.name})" in row]
    measured = [s for s in found["statements"] if s["difference"] is not None]
    for statement in measured:
        assert any(told(statement) in row for row in rows), f"{statement['text']['en']} {told(statement)}"
    for row in rows:
        verdicts = {s["verdict"] for s in measured if told(s) in row}
        assert verdicts, f"no statement of the study is in {row}"
        wanted = verdicts.pop() if len(verdicts) == 1 else "holds in part"
        assert row.split(" | ")[-1].startswith(wanted), row


def test_what_else_the_claims_quote_of_the_studies() -> None:
    text = read("docs/claims.md")
    found = {
        name: {arm["label"]: arm["test"] for arm in json.loads(read(f"benchmarks/results/studies/{name}.json"))["arms"]}
        for name in ("order", "extrapolate", "long-classify")
    }
    seeds = found["order"]["Sinusoidal, reverse, encoder"][0]["accuracy"]
    assert ", ".join(f"{seed:.3f}" for seed in seeds) in text
    near, *_, far = (fmean(entry["bits"]) for entry in found["extrapolate"]["KERPLE"])
    assert f"KERPLE: {far:.3f} against {near:.3f}" in text
    for label in ("Sinusoidal", "Learned", "NoPE"):
        once, twice = (entry["accuracy"] for entry in found["long-classify"][label])
        assert f"({fmean(once):.3f} to {fmean(twice):.3f})" in text
        assert all(b > a for a, b in zip(once, twice, strict=True)), "in every seed"


def test_every_claim_has_a_verdict() -> None:
    text = read("docs/claims.md")
    rows = [row for row in re.findall(r"^\| (.*) \|$", text, flags=re.M) if not row.startswith("Claim |")]
    assert len(rows) >= 15
    for row in rows:
        verdict = row.split(" | ")[-1]
        assert verdict.startswith(("holds", "does not hold", "open", "not testable here", "not measured yet")), row
    scripts = {path.name for path in (ROOT / "examples" / "articles").glob("*.py")} - {"retelling.py"}
    assert all(f"[{script}]" in text for script in scripts)


def test_versions_agree() -> None:
    assert f"version: {ropewalk.__version__}\n" in read("CITATION.cff")
    assert read("CITATION.cff").startswith("cff-version: 1.2.0\n")
    for key in ("message", "title", "authors", "license"):
        assert re.search(rf"^{key}:", read("CITATION.cff"), flags=re.M)


def test_constraints_pin_all_that_the_commands_install() -> None:
    pinned = {}
    where = r"(?:; (?:python_version (?:<|>=) \"3\.11\"|sys_platform == \"linux\"))?"
    for line in read("constraints.txt").splitlines():
        if line and not line.startswith("#"):
            name, version = re.fullmatch(rf"([a-z0-9-]+)==(\S+?){where}", line).groups()
            pinned.setdefault(name, []).append(version)
    assert pinned["torch"] == ["2.13.0"]
    needed = re.findall(r'"([a-z]+)(?:>=[\d.]+)?"', read("pyproject.toml").split("[project.scripts]")[0])
    for name in ("torch", "numpy", "click", "rich", "matplotlib", "pytest", "hypothesis", "ruff", "mypy"):
        assert name in needed
        assert name in pinned


def test_ci_calls_the_readmes_test_command() -> None:
    script = read(".ci/run")
    assert "README.md" in script
    (pattern,) = re.findall(r'grep -E "([^"]+)" README\.md', script)
    found = [line for line in read("README.md").splitlines() if re.search(pattern, line)]
    assert found == [SET_UP.splitlines()[1]]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
