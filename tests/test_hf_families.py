"""Walks every family of the installed transformers that defines `apply_rotary_pos_emb`: ours equals theirs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk import hf
from ropewalk.hf.rebind import Patch, Rebinder, rebind
from ropewalk.hf.rotations import Rotations

transformers = pytest.importorskip("transformers", minversion="5.0", reason="walks its models")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

import hf_families  # noqa: E402

FEW = [
    "clvp",
    "cohere",
    "deepseek_v3",
    "deepseek_v4",
    "dinov3_vit",
    "ernie4_5",
    "gemma3",
    "gemma3n",
    "gemma4",
    "glm4",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "llama",
    "minimax_m2",
    "modernbert",
    "muse_glimmer_assistant",
    "nanochat",
    "nemotron",
    "olmo2",
    "phi3",
    "pixtral",
    "qwen2_vl",
    "qwen3_next",
]
"""One of each kind, for a quick run; all others are slow together."""

EXPLAINED = {
    **dict.fromkeys(
        ("jamba", "nemotron_asr_streaming", "nemotron_h", "parakeet"), "defines the function, calls it never"
    ),
    **dict.fromkeys(("pe_audio_video", "pe_video"), "wants the package timm"),
    "eomt_dinov3": "wants the package scipy",
    "esmfold2": "has no small form: its parts have to fit those of a published language model",
}
"""Families that are not built here, and why. Their functions are tried all the same."""

CANCELS = ("neucodec", "xcodec2")
"""Their tables run over heads, not over tokens: query and key of a head turn alike, and the product stays the same."""

ALSO = ("deepseek_v2", "llama4", "roformer")
"""Families with a rotation of another name: complex tables, and sines and cosines in one."""

WALKED = [f for f in (*hf_families.families(), *ALSO) if f not in EXPLAINED]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@lru_cache
def families() -> list[str]:
    return hf_families.families()


def test_the_lists_name_families_that_there_are() -> None:
    known = set(families())
    assert known >= {*FEW, *EXPLAINED, *CANCELS}
    assert {*hf_families.SPECIAL} <= {*known, *ALSO}
    assert len(EXPLAINED) <= 0.05 * len(known), "README says how many of how many"


@pytest.mark.parametrize("family", [f if f in FEW else pytest.param(f, marks=pytest.mark.slow) for f in WALKED])
def test_logits_are_stocks_and_come_back(family: str) -> None:
    model, inputs = hf_families.build(family)
    stock = hf_families.call(model, inputs)
    most = float(stock.abs().max())
    with hf.install(model) as installed:
        ours = hf_families.call(model, inputs)
    assert installed.replaced
    assert not installed.left
    assert torch.equal(hf_families.call(model, inputs), stock)
    slack = 1e-4 if family == "lightglue" else 1e-5  # which compares all points with all, sharply
    assert float((ours - stock).abs().max()) < slack * most
    rotations, patch = Rotations("auto", turns=False), Patch()
    rebind(model, Rebinder(rotations), rotations, patch)
    still = hf_families.call(model, inputs)
    patch.undo()
    turned = float((still - stock).abs().max())
    assert (turned > 1e-3 * most) != (family in CANCELS), "without the rotation the output is another"


@pytest.mark.parametrize("family", EXPLAINED)
def test_functions_of_families_not_built_are_known_all_the_same(family: str) -> None:
    path = next((Path(hf_families.PACKAGE) / family).glob("modeling_*.py"))
    module: Any = importlib.import_module(f"transformers.models.{family}.{path.stem}")
    assert hf.probe(module.apply_rotary_pos_emb).layout in ("half", "interleaved")


def test_a_family_that_is_no_rotation_is_refused_by_name() -> None:
    from transformers.models.vjepa2 import modeling_vjepa2

    config = transformers.VJEPA2Config(
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        crop_size=32,
        pred_hidden_size=64,
        pred_num_hidden_layers=1,
        pred_num_attention_heads=2,
    )
    model = modeling_vjepa2.VJEPA2Model(config)
    with pytest.raises(hf.NotServedError, match=r"VJEPA2Model \(model_type 'vjepa2'\)"):
        hf.install(model)
