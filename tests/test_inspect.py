"""`ropewalk inspect`: what it prints, draws and refuses, in both languages."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from matplotlib.text import Text

from helpers import golden
from ropewalk.cli import main
from ropewalk.cli.ladder import ladder
from ropewalk.extensions import LongRoPE, Proportional
from ropewalk.inspection import FATES, inspect
from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.plots import inspect as plot
from ropewalk.plots import style
from ropewalk.readers import read

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "configs"
CONFIGS = {m["name"]: m["config"] for m in golden("model-configs.json")["models"]}
FREQUENCIES = {c["name"]: c for c in golden("frequencies.json")["cases"]}
LLAMA = str(EXAMPLES / "llama-3.1-8b.json")
QWEN = str(EXAMPLES / "qwen2.5-7b.json")
JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
ENGLISH_SENTENCE = re.compile(r"\b[A-Za-z]+(,? [a-z]{2,}){3}")
BROKEN = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}


def run(*args: str, code: int = 0, lang: str = "en") -> Result:
    ran = CliRunner().invoke(main, ["--lang", lang, "inspect", *args])
    assert ran.exit_code == code, ran.output
    assert "Traceback" not in ran.output
    return ran


def words(*args: str, **options: Any) -> str:
    """What is printed, however it is wrapped."""
    return " ".join(run(*args, **options).stdout.split())


def document(*args: str) -> dict[str, Any]:
    found = json.loads(run(*args, "--json").stdout)
    assert found["schema"] == "ropewalk.inspect/1"
    return found


def written(folder: Path, config: Any, name: str = "config.json") -> str:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return str(path)


# ---- text ------------------------------------------------------------------------------


def test_llama() -> None:
    text = words(LLAMA)
    assert "trained with 8,192 tokens; the configuration states 131,072 tokens; 32 heads, 8 for keys." in text
    assert "All 32 layers" in text
    assert "all 128 channels of a head, in pairs of layout half (x[i] with x[i + 64])" in text
    assert (
        "base 500,000 extension llama3: factor 8, original_length 8,192, low_freq_factor 1, high_freq_factor 4" in text
    )
    assert "29 kept (0–28), 6 blended (29–34), 29 divided by 8 (35–63)" in text
    assert "29 of 64 pairs within 8,192 tokens without the extension; 25 within 131,072 with it" in text
    assert re.search(r"cos and sin is 0\.009\d with angles in float32, 2\.0 in bfloat16 \(useless\)", text)
    assert "the score is 128.0 at distance 0, 125.2 at 1" in text
    assert re.search(r"31 +3,[0-9]{3} ", run(LLAMA, "--pairs").stdout)
    assert "29 2,402 3.41 2,900 blended ÷1.21" in text


def test_every_pair_on_demand() -> None:
    def pairs(*args: str) -> list[int]:
        table = run(LLAMA, *args).stdout.split("turns in")[1].split("Warnings")[0]
        return [int(n) for n in re.findall(r"^ +(\d+) +[\d.,]+ ", table, flags=re.M)]

    assert pairs("--pairs") == list(range(64))
    few = pairs()
    assert few[0] == 0
    assert few[-1] == 63
    assert {28, 29, 34, 35} < set(few)
    assert len(few) < 16


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "DeepSeek-V3",
            ["the last 64 of 192 channels", "softmax scale by 1.87385", "interleaved (x[2i] with x[2i + 1])"],
        ),
        ("Qwen2.5-72B long recipe", ["cos and sin by 1.13863 (attention_factor)", "24 divided by 4 (40–63)"]),
        ("Qwen3-VL (text)", ["axes 20×THW 4×T (T = time, H = height, W = width)", "extension none"]),
        ("Qwen2-VL", ["16×T 24×H 24×W"]),
        ("ERNIE-4.5-VL", ["22×HW 20×T"]),
        ("Gemma-3-12B (text)", ["(40 of 48): sliding_attention", "Layers 5, 11, …, 47 (8 of 48): full_attention"]),
        (
            "Llama-4-Scout-17B-16E (text)",
            ["multiplied by 1 + 0.1·ln(1 + ⌊(m + 1) / 8,192⌋)", "none: these layers have no positional encoding"],
        ),
        ("Ministral-3", ["1 + 0.1·ln(1 + ⌊m / 16,384⌋) at position m"]),
        ("SmolLM3-3B", ["Layers 3, 7, …, 35 (9 of 36)"]),
        (
            "InternLM3-8B",
            ["For a text of 32,768 tokens:", "For a text of 196,608 tokens:", "63 base raised, slower by 1.05"],
        ),
        ("BLOOM-560m", ["ALiBi: heads 16", "All 24 layers"]),
        ("T5-small", ["T5: heads 8, bidirectional true, buckets 32", ": decoder"]),
        ("GPT-J-6B", ["the first 64 of 256 channels"]),
    ],
)
def test_what_is_said_of_real_models(name: str, said: list[str], tmp_path: Path) -> None:
    text = words(written(tmp_path, CONFIGS[name]))
    for sentence in said:
        assert sentence in text, text


@pytest.mark.parametrize("name", CONFIGS)
def test_japanese_is_complete(name: str, tmp_path: Path) -> None:
    text = run(written(tmp_path, CONFIGS[name]), "--pairs", lang="ja").stdout
    assert JAPANESE.search(text)
    for line in text.splitlines()[1:]:
        assert not ENGLISH_SENTENCE.search(line), line


def test_lines_fit() -> None:
    for lang in ("en", "ja"):
        for line in run(LLAMA, lang=lang).stdout.splitlines():
            assert sum(2 if JAPANESE.match(c) or c in "（）、。：" else 1 for c in line) <= 100, line


def test_warnings_are_printed_whole() -> None:
    advice = read(LLAMA).warnings
    assert {a.code for a in advice} >= {"half-precision", "float32-reach"}
    for lang, space in (("en", " "), ("ja", "")):
        text = re.sub(r"\s+", space, run(LLAMA, lang=lang).stdout)
        for a in advice:
            assert re.sub(r"\s+", space, a.text(lang)) in text  # type: ignore[arg-type]
            assert f"[{a.code}]" in text
    assert words(QWEN).endswith("No warnings.")


def test_length() -> None:
    assert "at positions 999,488 to 999,999" in words(LLAMA, "--length", "1000000")
    assert "(for a text of" not in words(LLAMA, "--length", "5000")
    assert document(LLAMA, "--length", "5000")["measured_at"] == 5000


def test_tries_side_by_side() -> None:
    text = run(QWEN, "--try", "yarn:4", "--try", "llama3:8").stdout
    rows = {line.strip().split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["pairs kept"][-3:] == ["64", "24", "34"]
    assert rows["pairs divided"][-3:] == ["0", "24", "24"]
    assert rows["reaches"][-3:] == ["32,768", "131,072", "262,144"]
    assert rows["cos and sin times"][-3:] == ["1", "1.13863", "1"]
    assert rows["slowest pair"][-3:] == ["5,063,256", "20,253,023", "40,506,046"]
    assert re.search(r"39 +28,473 +1\.15 +96,807 +blended ÷3\.4 +168,479 +blended ÷5\.92", text)


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_no_number_is_cut_off_where_tables_are_wide(lang: str) -> None:
    tries = [part for name in ("yarn:8", "llama3:8", "ntk:8", "linear:8") for part in ("--try", name)]
    found = run(QWEN, *tries, lang=lang).stdout
    rows = [line for line in found.splitlines() if re.match(r" +\d+ +[\d.,]+ ", line)]
    assert len(rows) > 8
    assert not [row for row in rows if "…" in row]


def test_long_lists_are_shortened(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 1, "num_attention_heads": 1}
    path = written(tmp_path, {**config, **FREQUENCIES["longrope at 4096"]["config"]})
    assert "short_factor 1 … 1.47 (48 numbers), long_factor 1.05 … 29.72 (48 numbers)" in words(path)


def test_many_kinds_are_cut(tmp_path: Path) -> None:
    layers = tuple(LayerPlan("rope", "", 8, 8, layout="half", base=100.0 + i) for i in range(9))
    from ropewalk.cli.report import show

    runner = CliRunner()
    with runner.isolation() as (out, _, _):
        show(inspect(RotaryPlan("many", layers, original_length=64)))
        text = out.getvalue().decode()
    assert "… and 3 more kinds of layers; --json has all." in text


# ---- the terminal's picture ----------------------------------------------------------------


@pytest.mark.parametrize("pairs", [1, 3, 32, 64, 128, 300])
def test_the_ladder_has_a_dot_for_every_column(pairs: int) -> None:
    layer = LayerPlan("rope", "", 2 * pairs, 2 * pairs, layout="half", base=1e4, extension=Proportional(0.5, 4))
    lines = ladder(inspect(RotaryPlan("x", (layer,), original_length=4096)).kinds[0].views[0])
    wide = min(64, 2 * pairs)
    body = [line[6:] for line in lines[1:13]]
    columns = ["".join(line[x] for line in body if x < len(line)) for x in range(wide)]
    assert all(any(0x2800 < ord(c) < 0x2900 for c in column) for column in columns)
    strip = lines[13].strip()
    assert len(strip) == wide
    if pairs > 1:
        assert strip == "░" * (wide // 2) + "·" * (wide - wide // 2) or pairs == 3
    assert any(line.endswith(" 4,096") for line in lines)


def test_the_ladder_rises() -> None:
    lines = ladder(inspect(read(QWEN)).kinds[0].views[0])
    top, bottom = (
        [r for r, line in enumerate(lines[1:13]) if ord(line[6 + x : 7 + x] or " ") > 0x2800] for x in (63, 0)
    )
    assert max(top) < min(bottom)
    assert any(line.endswith("- 32,768") for line in lines)


# ---- JSON ------------------------------------------------------------------------------


def test_json() -> None:
    found = document(LLAMA, "--try", "yarn:4")
    (layer,) = found["layers"]
    assert next(iter(found)) == "schema"
    assert layer["layers"] == list(range(32))
    assert (layer["head_dim"], layer["rotary_dim"], layer["layout"], layer["base"]) == (128, 128, "half", 500_000)
    assert layer["extension"]["name"] == "llama3"
    assert layer["extension"]["factor"] == 8
    assert layer["inv_freq"] == pytest.approx([float(f) for f in FREQUENCIES["llama-3.1-8b"]["inv_freq"]], rel=1e-14)
    assert (layer["attention_factor"], layer["softmax_multiplier"], layer["bands"]) == (1, 1, None)
    assert {w["code"] for w in found["warnings"]} >= {"half-precision"}
    assert layer["never_turn"] == {"trained": 29, "extended": 25}
    assert [layer["fate"].count(f) for f in FATES] == [29, 6, 29, 0, 0]
    (tried,) = layer["tries"]
    assert (tried["try"], tried["extension"]["name"], tried["extended_length"]) == ("yarn:4", "yarn", 32768)
    assert len(tried["inv_freq"]) == 64


def test_json_of_layers_that_differ(tmp_path: Path) -> None:
    found = document(written(tmp_path, CONFIGS["Llama-4-Scout-17B-16E (text)"]))
    rotating, still = found["layers"]
    assert still["layers"] == list(range(3, 48, 4))
    assert (still["inv_freq"], still["extension"], still["kind"]) == ([], None, "none")
    assert len(rotating["layers"]) == 36
    assert document(written(tmp_path, CONFIGS["Qwen3-VL (text)"]))["layers"][0]["bands"] == "THW" * 20 + "TTTT"


def test_the_same_from_a_folder_and_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS["DeepSeek-V3"])
    assert document(path) == document(str(tmp_path))


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**BROKEN, "rope_theta": 0.5}, "rope_theta is a finite number above 1, got 0.5"),
        ({**BROKEN, "rope_tetha": 5e5}, "rope_tetha is not read by the reader of llama; did you mean rope_theta?"),
        ({**BROKEN, "max_position_embeddings": 99, "rope_scaling": {"type": "yarn"}}, "rope_scaling.factor is missing"),
        (
            {
                **BROKEN,
                "rope_scaling": {
                    "type": "longrope",
                    "factor": 4,
                    "short_factor": [1, 2],
                    "long_factor": [1, 2],
                    "original_max_position_embeddings": 4096,
                },
            },
            "there are 2 factors for 64 pairs",
        ),
        ("{", "is not JSON"),
        ("[1]", "a configuration is an object of keys"),
        ("", "the file is empty"),
        ({**BROKEN, "rope_\x1b[31m\nfoo": 3}, "rope_ [31m foo is not read"),
    ],
)
@pytest.mark.parametrize("lang", ["en", "ja"])
def test_a_broken_configuration_names_the_key(config: Any, message: str, lang: str, tmp_path: Path) -> None:
    ran = run(written(tmp_path, config), "--json", code=1, lang=lang)
    assert ran.stdout == ""
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ("この設定は読み取れません" in ran.stderr) == (lang == "ja")


def test_huge_numbers_are_one_line(tmp_path: Path) -> None:
    for kind, extra in (("dynamic", {}), ("linear", {}), ("yarn", {"original_max_position_embeddings": 4096})):
        scaling = {"rope_type": kind, "factor": 1e308, **extra}
        config = {**BROKEN, "max_position_embeddings": 8192, "rope_scaling": scaling}
        ran = CliRunner().invoke(main, ["inspect", written(tmp_path, config), "--json"])
        assert ran.exit_code in (0, 1)
        assert ran.exit_code == 0 or ran.stderr.count("\n") == 1
        assert ran.exception is None or isinstance(ran.exception, SystemExit)


def test_a_missing_file_and_an_empty_folder(tmp_path: Path) -> None:
    assert "there is no file or folder" in run(str(tmp_path / "none"), code=1).stderr
    assert "neither config.json nor params.json" in run(str(tmp_path), code=1).stderr


@pytest.mark.parametrize(
    ("args", "en", "ja"),
    [
        (["--try", "yarm:4"], "there is no extension 'yarm', did you mean 'yarn'?", "「yarn」ですか？"),
        (["--try", "longrope:4"], "there is no extension 'longrope'", "「longrope」という拡張はありません"),
        (["--try", "yarn:4,beta_fats=3"], "did you mean 'beta_fast'?", "この指定では計算できません"),
        (["--try", "yarn"], "yarn needs a factor", "この指定では計算できません"),
        (["--try", "ntk:1e308"], "nobody can mean", "この指定では計算できません"),
        (["--length", "0"], "'0' is not a whole number", "「0」は使えません"),
        (["--plot", "x.jpg"], "does not end with one of", "どれかで終わる名前にしてください"),
    ],
)
def test_wrong_options(args: list[str], en: str, ja: str) -> None:
    for lang, message in (("en", en), ("ja", ja)):
        ran = run(LLAMA, *args, code=2, lang=lang)
        assert message in ran.stderr
        assert ran.stdout == ""


def test_nothing_to_try_where_nothing_rotates() -> None:
    assert "no layer of this model rotates" in run(str(EXAMPLES / "t5-small.json"), "--try", "yarn:4", code=2).stderr


# ---- pictures ------------------------------------------------------------------------------


def figure(name: str, lang: str, **options: Any) -> Any:
    return plot.draw(inspect(read(CONFIGS[name]), name=name, **options), lang)  # type: ignore[arg-type]


@pytest.mark.parametrize("lang", ["en", "ja"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama-3.1-8B", {}),
        ("Qwen2.5-72B long recipe", {"tries": ["llama3:8", "ntk:4"]}),
        ("Gemma-3-12B (text)", {}),
        ("Llama-4-Scout-17B-16E (text)", {}),
        ("Qwen3-VL (text)", {"tries": ["yarn:4"]}),
        ("DeepSeek-V3", {}),
        ("InternLM3-8B", {}),
        ("T5-small", {}),
        ("BLOOM-560m", {}),
    ],
)
def test_pictures_have_every_letter(name: str, options: Any, lang: str, tmp_path: Path) -> None:
    """Warnings are errors here, and matplotlib warns of each letter that no font has."""
    made = figure(name, lang, **options)
    style.save(made, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    texts = [t.get_text() for t in made.findobj(Text) if t.get_visible()]
    assert any(JAPANESE.search(t) for t in texts) == (lang == "ja")
    if lang == "ja":
        assert not any(ENGLISH_SENTENCE.search(t) for t in texts)


def test_the_picture_draws_what_was_computed() -> None:
    found = inspect(read(CONFIGS["Llama-3.1-8B"]))
    view = found.kinds[0].views[0]
    left, right = plot.draw(found, "en").axes
    lines = [list(line.get_ydata()) for line in left.lines]
    assert [p.trained for p in view.pairs] in lines
    assert [p.wavelength for p in view.pairs] in lines
    for fate, members in view.fates().items():
        assert [view.pairs[i].wavelength for i in members] in lines, fate
    assert [8192, 8192] in lines
    assert [131072, 131072] in lines
    assert {t.get_text() for t in left.texts} == {"trained 8,192", "extended 131,072"}
    curves = [(list(line.get_xdata()), list(line.get_ydata())) for line in right.lines]
    assert (list(view.curve.distances[1:]), list(view.curve.scores[1:])) in curves


def test_fates_differ_in_marker_and_shade() -> None:
    assert len(set(plot.MARKERS.values())) == len(FATES)
    assert len(set(plot.SHADES.values())) == len(FATES)


def test_longrope_is_drawn_at_its_full_length() -> None:
    extension = LongRoPE([1.0] * 4, [8.0] * 4, 4096, factor=8)
    layer = LayerPlan("rope", "", 8, 8, layout="half", base=1e4, extension=extension, default_length=4096)
    left, _ = plot.draw(inspect(RotaryPlan("phi3", (layer,), max_length=32768, original_length=4096)), "en").axes
    drawn = [list(line.get_ydata()) for line in left.lines if len(line.get_ydata()) == 4]
    assert any(high[0] == pytest.approx(8 * low[0]) for high in drawn for low in drawn)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot_writes_a_file(suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"x.{suffix}"
    ran = run(LLAMA, "--plot", str(target))
    assert target.stat().st_size > 5000
    assert "Picture written" in ran.stderr


# ---- help ------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_help(lang: str) -> None:
    text = run("--help", lang=lang).stdout
    for name in ("--length", "--try", "--pairs", "--plot", "--json", "--lang"):
        assert name in text
    assert text.rstrip().endswith(main.commands["inspect"].examples[-1])
    assert bool(JAPANESE.search(text)) == (lang == "ja")


@pytest.mark.parametrize("example", main.commands["inspect"].examples)
def test_the_examples_of_the_help_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    program, command, *args = shlex.split(example)
    assert (program, command) == ("ropewalk", "inspect")
    assert len(run(*args).stdout.splitlines()) > 20


def test_every_example_configuration_is_read() -> None:
    files = sorted(EXAMPLES.glob("*.json"))
    assert len(files) >= 4
    for path in files:
        assert run(str(path)).stdout
