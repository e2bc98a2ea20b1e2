"""The explorer's mathematics, run in a browser, against Python and the golden files: one and the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from browsing import Watched, browser, serving
from helpers import golden
from ropewalk import (
    ENCODINGS,
    FIRE,
    KERPLE,
    T5,
    ALiBi,
    Bands,
    Positions,
    RoPE,
    Sinusoidal,
    geometric,
)
from ropewalk.extensions import EXTENSIONS
from ropewalk.inspection import inspect
from ropewalk.measure.compare import compare
from ropewalk.measure.decay import decay
from ropewalk.multimodal import Image
from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.plots.style import PALETTE
from ropewalk.readers import read

ARTICLE = golden("article.json")
NAMES = [cls.name for cls in ENCODINGS]


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with serving() as server, browser() as opened:
        page = Watched(opened, server.address)
        page.go("#turn")
        yield page
        page.close()


@pytest.fixture
def js(watched: Watched) -> Any:
    """Run an expression in the page, with a module of the mathematics as `m` and what is given as `x`."""

    def run(module: str, expression: str, x: Any = None) -> Any:
        # numbers travel as JSON: a page has no NaN or infinity to say there
        code = f"async (x) => {{ const m = await import('ropewalk/{module}.js'); return {expression}; }}"
        return watched.page.evaluate(code, x)

    return run


def test_golden_angles(js: Any) -> None:
    rows = golden("angles.json")["rows"]
    found = js(
        "math/spectra", "x.map(([b, d, p, i]) => [Math.cos, Math.sin].map((f) => f(p * m.geometric(d, b)[i])))", rows
    )
    assert len(found) == 225
    for (*_, cos, sin), pair in zip(rows, found, strict=True):
        assert pair == pytest.approx([cos, sin], abs=1e-6)


CASES = golden("frequencies.json")["cases"]


def extension_of(config: dict[str, Any]) -> dict[str, Any] | None:
    """The golden file's spelling (transformers') in ours."""
    scaling = config.get("rope_scaling")
    if scaling is None:
        return None
    names = {"rope_type": "name", "original_max_position_embeddings": "original_length"}
    given = {names.get(key, key): value for key, value in scaling.items()}
    if "max_position_embeddings" in config and given["name"] == "dynamic":
        given["original_length"] = config["max_position_embeddings"]
    if given["name"] == "longrope":
        given["original_length"] = config["original_max_position_embeddings"]
        given["factor"] = config["max_position_embeddings"] / config["original_max_position_embeddings"]
    if given["name"] == "proportional":
        given["proportion"] = config["partial_rotary_factor"]
    if "mscale_all_dim" in given:
        given["softmax_mscale"] = given["mscale_all_dim"]
    return given


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_golden_frequencies(js: Any, case: dict[str, Any]) -> None:
    config, extension = case["config"], extension_of(case["config"])
    width = config["head_dim"]
    if extension is None:
        width = int(width * config.get("partial_rotary_factor", 1))
    found = js(
        "math/spectra",
        "(({ inv_freq, ...rest }) => ({ ...rest, inv_freq: [...inv_freq] }))(m.spectrum(...x))",
        [width, config["rope_theta"], extension, case.get("length", 0)],
    )
    assert found["inv_freq"] == pytest.approx(case["inv_freq"], rel=1e-12, abs=1e-300)
    assert found["attention_factor"] == pytest.approx(case["attention_factor"], rel=1e-12)
    assert found["softmax_multiplier"] == pytest.approx(case["softmax_multiplier"], rel=1e-12)


MODELS = {m["name"]: m["config"] for m in golden("model-configs.json")["models"]}


def test_golden_configurations(js: Any) -> None:
    """Each real model, read by Python as for the page and computed by the page, against what Python computes itself."""
    asked, wanted = [], []
    for name, config in MODELS.items():
        plan = read(config)
        for layer in dict.fromkeys(plan.layers):
            if layer.kind != "rope" or (layer.bands is not None and layer.bands.widths is not None):
                continue  # a vision tower's ladders come with the plan: test_bands compares those
            told = layer.json()
            for length in (1, 5000, 2 * (plan.max_length or 10_000)):
                asked.append([told["rotary_dim"], told["base"], told["extension"], length])
                wanted.append((name, length, layer.spectrum(length=length)))
    found = js(
        "math/spectra",
        "x.map((given) => (({ inv_freq, ...rest }) => ({ ...rest, inv_freq: [...inv_freq] }))(m.spectrum(...given)))",
        asked,
    )
    seen = {name for name, *_ in wanted}
    assert len(seen) >= 20
    for (name, length, want), one in zip(wanted, found, strict=True):
        assert want is not None
        assert one["inv_freq"] == pytest.approx(list(want.radians), rel=1e-12, abs=1e-300), (name, length)
        assert one["attention_factor"] == pytest.approx(want.attention_factor, rel=1e-12), (name, length)
        assert one["softmax_multiplier"] == pytest.approx(want.softmax_multiplier, rel=1e-12), (name, length)


def test_golden_configurations_opened_in_the_page(watched: Watched, tmp_path: Path) -> None:
    """The whole way: a config.json is opened in Stretch, and what is drawn is what Python computes."""
    page = watched.go("#stretch?ext=own")
    watched.until("ropewalk.pictures.stretch")
    for name, config in MODELS.items():
        file = f"{name}.json"
        (tmp_path / file).write_text(json.dumps(config))
        page.set_input_files("#model-file", tmp_path / file)
        watched.until(f"document.querySelector('.reading').textContent.includes({json.dumps(file)})")
        plan = read(config)
        turning = [layer for layer in dict.fromkeys(plan.layers) if layer.kind == "rope"]
        if not turning:
            assert page.locator("figure.card:visible").count() == 0, name
            continue
        layer, shown = turning[0], page.evaluate("ropewalk.pictures.stretch")
        plain = geometric(layer.rotary_dim, layer.base).radians if layer.extension else layer.spectrum().radians
        assert shown["before"] == pytest.approx(list(plain), rel=1e-12), name
        assert len(shown["shown"]) == (layer.extension is not None), name
        for own in shown["shown"]:
            reach = max(plan.extended_length or 0, plan.max_length or 0, shown["trained"] or 0)
            want = layer.spectrum(length=reach if layer.extension.depends_on_length else None)
            assert own["inv_freq"] == pytest.approx(list(want.radians), rel=1e-12, abs=1e-300), name
            assert own["attention_factor"] == pytest.approx(want.attention_factor, rel=1e-12), name


def test_every_extension_of_python_is_known_and_no_other(js: Any) -> None:
    assert set(js("math/spectra", "m.extensions")) == {cls.name for cls in EXTENSIONS}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("yarn", {"factor": 4.0, "original_length": 4096, "ramp": "turns"}),
        ("ntk-by-parts", {"factor": 4.0, "original_length": 4096, "alpha": 2.0, "beta": 16.0}),
        ("dynamic-yarn", {"original_length": 4096}),
        ("per-pair", {"factors": [float(n) for n in range(1, 33)]}),
    ],
)
def test_extensions_that_the_golden_file_has_not(js: Any, name: str, options: dict[str, Any]) -> None:
    cls = next(cls for cls in EXTENSIONS if cls.name == name)
    want = cls(**options).spectrum(64, 1e4, length=10_000)
    found = js("math/spectra", "[...m.spectrum(64, 1e4, x, 10000).inv_freq]", {"name": name, **options})
    assert found == pytest.approx(list(want.radians), rel=1e-12)
    factor = js("math/spectra", "m.spectrum(64, 1e4, x, 10000).attention_factor", {"name": name, **options})
    assert factor == pytest.approx(want.attention_factor, rel=1e-12)


def test_two_extensions_at_once(js: Any) -> None:
    both = {"name": "product", "parts": [{"name": "ntk", "factor": 2}, {"name": "linear", "factor": 3}]}
    one = js("math/spectra", "[...m.spectrum(64, 1e4, { name: 'ntk', factor: 2 }).inv_freq]")
    assert js("math/spectra", "[...m.spectrum(64, 1e4, x).inv_freq]", both) == pytest.approx([f / 3 for f in one])


@pytest.mark.parametrize(
    "text", ["linear:4", "ntk:4", "dynamic:2", "ntk-by-parts:4", "yarn:4", "llama3:8", "dynamic-yarn"]
)
def test_fates_of_pairs(js: Any, text: str) -> None:
    plan = RotaryPlan("llama", (LayerPlan("rope", "", 128, 128, layout="half", base=5e5),), original_length=8192)
    view = inspect(plan, tries=[text]).kinds[0].tries[0][1]
    assert view.extension is not None
    found = js(
        "math/spectra",
        "m.fates(m.geometric(128, 5e5), m.spectrum(128, 5e5, x.extension, x.length).inv_freq, x.extension)",
        {"extension": view.extension.json(), "length": view.length or 0},
    )
    assert found == [pair.fate for pair in view.pairs]


def test_the_short_way_to_cosines_is_as_good_as_the_long_one(js: Any) -> None:
    off = js(
        "math/spectra",
        "[...m.geometric(64)].map((f) => { const [c, s] = m.turning(f, 1000, 4097);"
        " return Math.max(...c.map((v, n) => Math.abs(v - Math.cos((1000 + n) * f))),"
        " ...s.map((v, n) => Math.abs(v - Math.sin((1000 + n) * f)))); })",
    )
    assert max(off) < 1e-12


def scores(js: Any, name: str, *, dim: int, length: int, vectors: str, side: int = 1, pairs: int = 20) -> Any:
    return js(
        "math/panel",
        "(({ mean, std }) => ({ mean: [...mean], std: std && [...std] }))("
        "m.curve(x.name, m.draw({ dim: x.dim, length: x.length + 1, seed: 42 }),"
        " m.vectors(x.vectors, x.dim, { pairs: x.pairs, seed: 42 }), x.side > 0 ? 0 : x.length,"
        " Array.from({ length: x.length + 1 }, (_, n) => n), x.side))",
        {"name": name, "dim": dim, "length": length, "vectors": vectors, "side": side, "pairs": pairs},
    )


def test_the_articles_curve(js: Any) -> None:
    found = scores(js, "rope", dim=64, length=100, vectors="ones")
    assert found["mean"] == pytest.approx(ARTICLE["rope_decay_from_position_0"], abs=1e-6)


@pytest.mark.parametrize("seed", [42, 3])
def test_the_articles_scores_to_every_printed_digit(js: Any, seed: int) -> None:
    key = "seed_42_as_printed" if seed == 42 else f"seed_{seed}"
    for name, printed in (
        ("learned", ARTICLE["learned_absolute"][key]),
        ("relative_bias", ARTICLE["relative_bias"][key]),
        ("rope", ARTICLE["rope"]["as_printed"]),
    ):
        found = js(
            "math/panel",
            "[...m.curve(x[0], m.draw({ dim: 64, length: 21, seed: x[1] }), m.vectors('ones', 64), 2,"
            " [1, 3, 18]).mean]",
            [name, seed],
        )
        assert [round(s, 4) for s in found] == printed


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_command(js: Any, name: str) -> None:
    """Tables, vectors and all: the page draws the very numbers that torch draws."""
    for vectors in ("ones", "random"):
        [want] = decay(dim=32, length=100, vectors=vectors, pairs=20, encodings=[name]).curves
        found = scores(js, name, dim=32, length=100, vectors=vectors)
        assert found["mean"] == pytest.approx(list(want.scores), abs=2e-4)  # torch sums in float32
        if want.spread is not None:
            assert found["std"] == pytest.approx(list(want.spread), abs=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_keys_before_the_query(js: Any, name: str) -> None:
    found = scores(js, name, dim=32, length=40, vectors="random", side=-1, pairs=1)["mean"]
    keys = [40, 35, 20, 0]
    if name == "cope":  # counts the keys that it is given
        keys = list(range(40, -1, -1))
    want = compare(dim=32, query=40, keys=keys, vectors="random").table()[name]
    assert [found[40 - key] for key in keys] == pytest.approx(want, abs=2e-4)


def test_biases(js: Any) -> None:
    i, j = torch.arange(40)[:, None], torch.arange(40)
    for heads in (1, 8, 12):
        assert js("math/bias", "m.alibiSlopes(x)", heads) == pytest.approx(list(ALiBi(heads=heads).slopes), rel=1e-12)
    for both in (True, False):
        t5 = T5(heads=1, bidirectional=both, max_distance=200)
        found = js(
            "math/bias",
            "Array.from({ length: 601 }, (_, n) => m.bucket(n - 300, { bidirectional: x, maxDistance: 200 }))",
            both,
        )
        assert found == t5.bucket(torch.arange(-300, 301)).tolist()
        ratio = FIRE(heads=1, threshold=16.0, bidirectional=both).ratio(i, j).detach()
        found = js(
            "math/bias",
            "Array.from({ length: 40 }, (_, i) => Array.from({ length: 40 }, (_, j) =>"
            " m.fireRatio(i, j, { threshold: 16, bidirectional: x })))",
            both,
        )
        assert torch.allclose(torch.tensor(found), ratio, atol=1e-6)
    for kernel in ("log", "power"):
        kerple = KERPLE(heads=1, kernel=kernel).set(r1=0.7, r2=1.3)
        want = kerple.bias(torch.tensor(0), torch.tensor([[0]]), j)[0].tolist()
        found = js(
            "math/bias", "Array.from({ length: 40 }, (_, d) => m.kerple(d, { r1: 0.7, r2: 1.3, kernel: x }))", kernel
        )
        assert found == pytest.approx(want, rel=1e-6)


def test_the_sinusoidal_table_and_its_shift(js: Any) -> None:
    want = Sinusoidal(dim=16).table(torch.arange(50), dtype=torch.float64)
    found = js("math/panel", "Array.from({ length: 50 }, (_, p) => [...m.sinusoid(p, 16)])")
    assert torch.allclose(torch.tensor(found, dtype=torch.float64), want, atol=1e-12)
    moved = js("views/waves", "[...m.shifted(x, 7, 10000)]", want[20].tolist())
    assert moved == pytest.approx((Sinusoidal(dim=16).shift_matrix(7) @ want[20]).tolist(), abs=1e-12)


NUMBERS = [
    0.0,
    1.0,
    -1.0,
    0.1,
    1 / 3,
    3.14159265,
    257.0,
    258.5,
    1e-7,
    5.9e-8,
    6.1e-5,
    65504.0,
    65519.0,
    65521.0,
    1e5,
    3e38,
    -0.3,
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding(js: Any, dtype: str) -> None:
    numbers = [*NUMBERS, *torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tolist()]
    numbers = torch.tensor(numbers).double().tolist()  # as float32 has them: torch itself rounds in two steps
    want = torch.tensor(numbers, dtype=torch.float64).float().to(getattr(torch, dtype)).double()
    found = js("math/rounding", "x[1].map((v) => String(m.FORMATS[x[0]](v)))", [dtype, numbers])
    assert [float(v.replace("Infinity", "inf")) for v in found] == want.tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_errors_of_angles(js: Any, dtype: str) -> None:
    at, kind = torch.tensor([1, 255, 257, 4097, 60_001]), getattr(torch, dtype)
    f = geometric(64).inv_freq
    product = at.to(kind)[:, None] * f.float().to(kind)
    want = (product.double() - at.double()[:, None] * f).abs()
    found = js(
        "math/rounding",
        "x[1].map((p) => x[2].map((f) => m.angleError(m.FORMATS[x[0]], p, f)))",
        [dtype, at.tolist(), f.tolist()],
    )
    assert torch.allclose(torch.tensor(found, dtype=torch.float64), want, rtol=1e-6, atol=1e-9)


def test_bands(js: Any) -> None:
    schemes = js(
        "math/bands",
        "Object.fromEntries(Object.entries(m.SCHEMES).map(([n, s]) => [n, [s.axes, s.base, [...m.frequencies(s)]]]))",
    )
    want = {
        "chunked": Bands.chunked((16, 24, 24)),
        "interleaved": Bands.interleaved((24, 20, 20)),
        "ernie": Bands.ernie((22, 22, 20)),
        "axial": Bands.axial((36, 36)),
    }
    assert schemes.keys() == want.keys()
    for name, (axes, base, frequencies) in schemes.items():
        assert axes == want[name].string()
        assert frequencies == pytest.approx(list(want[name].spectrum(base).radians), rel=1e-12)


def test_positions_of_an_image_among_words(js: Any) -> None:
    want = Positions.interleave([6, Image(5, 9), 8]).ids[:, 0].tolist()
    found = js("views/axes", "m.positions(6, 5, 9, 8)")
    assert [[token[axis] for token in found] for axis in "THW"] == want


def test_the_score_of_patches(js: Any) -> None:
    """Two dimensions by the rotation itself: a query of ones at (2, 3), a key of ones at (5, 1)."""
    bands = Bands.axial((36, 36))
    rope = RoPE(72, base=1e4, bands=bands)
    ones = torch.ones(1, 1, 1, 72, dtype=torch.float64)
    q = rope.query(ones, Positions(torch.tensor([[[2]], [[3]]])))
    k = rope.key(ones, Positions(torch.tensor([[[5]], [[1]]])))
    found = js("math/bands", "m.score(m.SCHEMES.axial, m.frequencies(m.SCHEMES.axial), { H: 3, W: -2 })")
    assert found == pytest.approx(float((q * k).sum()), abs=1e-9)


def test_attention_sees_order_where_it_should(js: Any) -> None:
    def apart(one: str, other: str, encoding: str, **options: Any) -> float:
        code = "m.apart(m.attend(m.tokens(x[0]), x[2], x[3]).pooled, m.attend(m.tokens(x[1]), x[2], x[3]).pooled)"
        return float(js("math/attention", code, [one, other, encoding, options]))

    plain, mirror, other = "a b c d", "d c b a", "b a d c"
    assert apart(plain, other, "nope") < 1e-12
    assert apart(plain, mirror, "alibi") < 1e-12
    for encoding in ("sinusoidal", "alibi", "rope"):
        assert apart(plain, other, encoding) > 1e-3
    assert apart(plain, mirror, "rope") > 1e-3
    assert apart(plain, other, "nope", causal=True) > 1e-3
    weights = js("math/attention", "m.attend(['x', 'y', 'z'], 'rope', { causal: true }).weights")
    assert [sum(row) for row in weights] == pytest.approx([1, 1, 1])
    assert weights[0][1:] == [0, 0]
    assert js("math/attention", "[m.tokens('犬が人を噛む'), m.tokens(' two  words ')]") == [
        list("犬が人を噛む"),
        ["two", "words"],
    ]


def test_colours_are_those_of_the_plots(js: Any) -> None:
    looks = js("looks", "m.ENCODINGS")
    labels = {cls.name: cls.label for cls in ENCODINGS}
    assert list(looks) == NAMES
    for name, look in looks.items():
        dash = PALETTE[name].dash
        want = [] if isinstance(dash, str) else [2 * step for step in dash[1]]
        assert look == {"label": labels[name], "color": PALETTE[name].color, "dash": pytest.approx(want)}


def test_colour_map_is_that_of_the_plots(js: Any) -> None:
    import matplotlib

    found = js("looks", "Array.from({ length: 65 }, (_, n) => m.cividis(n / 64))")
    want = matplotlib.colormaps["cividis"]([n / 64 for n in range(65)])[:, :3] * 255
    assert all(abs(a - b) <= 9 for row, other in zip(found, want, strict=True) for a, b in zip(row, other, strict=True))
