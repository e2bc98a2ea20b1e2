"""A checkpoint read into the library's own model, against transformers, and everything that can be wrong with one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from checkpoints import CONFIG
from ropewalk import NTK, permute
from ropewalk.inspection import try_extension
from ropewalk.lab.checkpoint import Llama, files, open_checkpoint

pytest.importorskip("tokenizers", reason="the checkpoint extra is not installed")
IDS = torch.arange(2, 42).reshape(1, 40) * 6 % 257


def config(**changed: Any) -> dict[str, Any]:
    return {**CONFIG, **changed}


def logits(model: Llama, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model(ids))


def stock(path: Path, ids: torch.Tensor = IDS) -> torch.Tensor:
    """What transformers makes of the same folder."""
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(ids).logits


KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with a matrix of its own": {"tie_word_embeddings": False},
    "llama with yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 7},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "smollm3": {
        "model_type": "smollm3",
        "architectures": ["SmolLM3ForCausalLM"],
        "no_rope_layers": [1, 0],
        "pad_token_id": 0,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_the_logits_of_transformers(kind: str, tmp_path: Path) -> None:
    path = checkpoints.folder(tmp_path / "model", config(**KINDS[kind]))
    ours = logits(open_checkpoint(path).model())
    assert torch.allclose(ours, stock(path), atol=2e-5, rtol=2e-5)


def test_a_window_that_is_not_stated_is_that_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="the hf extra is not installed")
    unsaid = config(model_type="mistral", architectures=["MistralForCausalLM"])
    found = open_checkpoint(checkpoints.folder(tmp_path / "model", unsaid))
    assert found.shape.window == transformers.MistralConfig.from_pretrained(found.path).sliding_window == 4096
    none = open_checkpoint(checkpoints.folder(tmp_path / "none", {**unsaid, "sliding_window": None}))
    assert none.shape.window is None


def test_dynamic_is_what_transformers_computes_for_the_whole_text_at_once(tmp_path: Path) -> None:
    made = config(max_position_embeddings=16, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    path = checkpoints.folder(tmp_path / "model", made)
    found = open_checkpoint(path)
    assert torch.allclose(logits(found.model(at_length=40)), stock(path), atol=2e-5, rtol=2e-5)
    assert not torch.allclose(logits(found.model(at_length=41)), stock(path), atol=1e-3)


@pytest.mark.parametrize("kind", ["llama", "llama with a matrix of its own", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_logits_of_the_folder(kind: str, tmp_path: Path) -> None:
    made = config(**KINDS[kind])
    path, file = checkpoints.folder(tmp_path / "model", made), checkpoints.gguf(tmp_path / "model.gguf", made)
    there, here = open_checkpoint(file), open_checkpoint(path)
    assert there.plan.layers[0].layout == ("interleaved" if made["model_type"] == "llama" else "half")
    assert here.plan.layers[0].layout == "half"
    assert torch.allclose(logits(there.model()), logits(here.model()), atol=2e-5)
    # six query heads and two key heads: each is permuted with its own number
    for name in ("q", "k"):
        name = f"model.layers.1.self_attn.{name}_proj.weight"
        heads = here.weights.shapes[name][0] // 8
        ours = there.weights.tensor(name)
        turned = permute(ours, there.plan.layers[0].layout, "half", heads=heads)
        assert torch.equal(turned, here.weights.tensor(name))


def test_the_wrong_pairing_is_another_model(tmp_path: Path) -> None:
    found = open_checkpoint(checkpoints.gguf(tmp_path / "model.gguf"))
    wrong = replace(found.plan, layers=tuple(replace(layer, layout="half") for layer in found.plan.layers))
    assert (logits(found.model()) - logits(found.model(plan=wrong))).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16", "BF16"])
def test_quantised_weights_are_what_the_package_says(kind: str, tmp_path: Path) -> None:
    package = pytest.importorskip("gguf", reason="the gguf extra is not installed")
    made = config(hidden_size=64, num_attention_heads=8)
    found = open_checkpoint(checkpoints.gguf(tmp_path / "model.gguf", made, quantise=kind))
    name = "model.layers.0.mlp.up_proj.weight"
    exact = checkpoints.weights(made)[name]
    as_kind = package.GGMLQuantizationType[kind]
    wanted = package.dequantize(package.quantize(exact.numpy(), as_kind), as_kind)
    assert torch.equal(found.weights.tensor(name), torch.from_numpy(wanted.copy()).float())
    assert not torch.equal(found.weights.tensor(name), exact)
    assert logits(found.model()).isfinite().all()


def test_transformers_reads_the_same_weights_and_tokens_from_a_gguf_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    pytest.importorskip("accelerate", reason="transformers reads GGUF through accelerate")
    file = checkpoints.gguf(tmp_path / "model.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    check_against(theirs, open_checkpoint(file))


def check_against(theirs: Any, found: Any) -> None:
    """Every weight equal bit for bit, queries and keys after the permutation; logits to rounding."""
    shape, state = found.shape, dict(theirs.state_dict())
    for name in found.weights.shapes:
        ours = found.weights.tensor(name)
        heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2])
        if heads:
            ours = permute(ours, "interleaved", "half", heads=heads)
        assert torch.equal(ours, state[name]), name
    with torch.no_grad():
        assert torch.allclose(logits(found.model()), theirs(IDS).logits, atol=1e-4, rtol=1e-4)


def test_chunks_through_the_cache_equal_the_whole(tmp_path: Path) -> None:
    model = open_checkpoint(checkpoints.gguf(tmp_path / "model.gguf")).model()
    caches = model.caches()
    with torch.no_grad():
        parts = [model(IDS[:, at : at + 7], caches=caches) for at in range(0, 40, 7)]
        whole = model(IDS)
        shifted = model(IDS, torch.arange(40) + 1000)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    assert torch.allclose(shifted, whole, atol=1e-3)  # a rotation knows distances only
    assert [len(cache) for cache in caches] == [40, 40]


def test_a_model_goes_over_to_another_plan(tmp_path: Path) -> None:
    found = open_checkpoint(checkpoints.folder(tmp_path / "model"))
    model = found.model()
    plain = logits(model)
    extension, plan = try_extension("dynamic:2", found.plan)
    model.turn_by(plan, at_length=128)
    assert model.encodings[0].spectrum == extension.spectrum(8, 1e4, length=128) != NTK(2).spectrum(8, 1e4)
    stretched = logits(model)
    assert (plain - stretched).abs().max() > 1e-3
    assert torch.equal(stretched, logits(found.model(plan=plan, at_length=128)))
    model.turn_by(plan, at_length=64)  # within the trained length it does nothing
    assert torch.equal(logits(model), plain)


def test_bfloat16_is_near(tmp_path: Path) -> None:
    found = open_checkpoint(checkpoints.folder(tmp_path / "model"))
    half = found.model(dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    exact, near = logits(found.model()), logits(half).float()
    assert 0 < (exact - near).abs().max() < 0.1 * exact.abs().max()


def test_shards_are_one_model_and_a_fingerprint_is_of_every_byte(tmp_path: Path) -> None:
    one, two = checkpoints.folder(tmp_path / "one"), checkpoints.folder(tmp_path / "two", shards=3)
    first, second = open_checkpoint(one), open_checkpoint(two / "config.json")
    assert torch.equal(logits(first.model()), logits(second.model()))
    assert len(second.files) == 4
    assert first.fingerprint == open_checkpoint(one).fingerprint != second.fingerprint
    file = one / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert open_checkpoint(one).fingerprint != first.fingerprint


def test_weights_under_another_types_name_are_refused(tmp_path: Path) -> None:
    """The names and shapes fit, but the layout would be another."""
    made = checkpoints.gguf
    three = {name: made(tmp_path / f"{name}.gguf", config(model_type=name)) for name in checkpoints.GGUF_TYPES}
    for says, held in (("qwen2", "llama"), ("qwen3", "llama"), ("llama", "qwen3"), ("qwen3", "qwen2")):
        data = three[held].read_bytes()
        three[held].with_name("renamed.gguf").write_bytes(data.replace(held.encode(), says.encode()))
        with pytest.raises(ValueError, match=f"it says that it is of type {says}, but has"):
            open_checkpoint(tmp_path / "renamed.gguf").model()


# Tokens


TEXT = "Writing 1234 words and the number 12, <|end|> then\n\n  more: 犬が噛む"


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_text_comes_back_from_its_tokens(pre: str, tmp_path: Path) -> None:
    tokens = open_checkpoint(checkpoints.gguf(tmp_path / "model.gguf", pre=pre)).tokens()
    ids = tokens.encode(TEXT)
    assert tokens.tokenizer.decode(ids, skip_special_tokens=False) == TEXT
    assert 0 in ids  # the special token is one
    pieces = [tokens.tokenizer.id_to_token(i) for i in ids]
    assert ("12" in pieces) == (pre in ("gpt-2", "llama-bpe"))  # the others take every digit apart
    assert tokens.start == ((0,) if pre == "llama-bpe" else ())


def test_a_tokenizer_file_is_read_and_can_be_given(tmp_path: Path) -> None:
    path = checkpoints.folder(tmp_path / "model")
    checkpoints.tokenizer_json(path / "tokenizer.json", begins=True)
    tokens = open_checkpoint(path).tokens()
    assert tokens.start == (0,)
    file = checkpoints.gguf(tmp_path / "model.gguf", pre="gpt-2")
    found = open_checkpoint(file)
    assert tokens.encode(TEXT) == found.tokens().encode(TEXT) == found.tokens(path / "tokenizer.json").encode(TEXT)


# What can be wrong


def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    good = checkpoints.folder(tmp_path / "good")

    def changed(name: str, **changes: Any) -> Path:
        shutil.copytree(good, tmp_path / name)
        (tmp_path / name / "config.json").write_text(json.dumps(config(**changes)), encoding="utf-8")
        return tmp_path / name

    bare = changed("bare")
    (bare / "model.safetensors").unlink()
    cut = changed("cut")
    data = (good / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(data[: len(data) // 2])
    mislabelled = changed("mislabelled")
    (mislabelled / "model.safetensors").write_bytes(b"GGUF" + data)
    file = checkpoints.gguf(tmp_path / "good.gguf")
    whole = file.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    (tmp_path / "head.gguf").write_bytes(whole[:300])
    (tmp_path / "wrong.gguf").write_bytes(data)
    gemma = {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}
    gpt2 = {"model_type": "gpt2", "n_positions": 64, "n_embd": 48, "n_head": 6, "n_layer": 2, "vocab_size": 270}
    other = changed("gpt2")
    (other / "config.json").write_text(json.dumps(gpt2), encoding="utf-8")
    cases = [
        (tmp_path / "nowhere", "there is no file or folder"),
        (bare, "neither model.safetensors nor model.safetensors.index.json"),
        (cut, "is not a whole safetensors file"),
        (mislabelled, "is not a whole safetensors file"),
        (tmp_path / "cut.gguf", "is not a whole GGUF file"),
        (tmp_path / "head.gguf", "is not a whole GGUF file"),
        (tmp_path / "wrong.gguf", "is not a GGUF file"),
        (changed("gemma", **gemma), "models of type 'gemma' are not run here; llama, mistral"),
        (other, r"no layer of this model rotates \(gpt2: learned\)"),
        (changed("gelu", hidden_act="gelu"), "llama with hidden_act = 'gelu' is not run here, only with 'silu'"),
        (changed("layers", num_hidden_layers=3), r"the weight model\.layers\.2\.\S+ is missing"),
        (changed("fewer", num_hidden_layers=1), r"there is a weight 'model\.layers\.1\.\S+', for which this model has"),
        (changed("hidden", intermediate_size=65), r"mlp\.\S+ has the shape \(64, 48\), its header asks for \(65, 48\)"),
        (changed("none", intermediate_size=None), "intermediate_size is missing"),
        (changed("zero", intermediate_size=0), "hidden is a positive whole number, got 0"),
        (changed("eps", rms_norm_eps=2), "the epsilon of the norms is a small positive number, got 2"),
        (changed("heads", num_key_value_heads=4), "6 query heads cannot share 4 key heads evenly"),
    ]
    for path, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            open_checkpoint(path).model()
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def everything(path: Path) -> None:
    found = open_checkpoint(path)
    found.model()
    found.tokens()


def test_what_a_gguf_file_may_hold_besides_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, **options: Any) -> Path:
        return checkpoints.gguf(tmp_path / f"{name}.gguf", **options)

    cases = [
        (made("experts", entries={"llama.expert_count": 8}), r"with llama\.expert_count = 8 is not run here"),
        (made("window", entries={"llama.attention.sliding_window": 8}), r"llama\.attention\.sliding_window = 8"),
        (made("other", config=config(model_type="falcon")), "architecture 'falcon' are not run here; llama, qwen2"),
        (made("tensor", more={"blk.0.ffn_gate_inp.weight": torch.ones(2)}), r"a tensor 'blk\.0\.ffn_gate_inp\.weight'"),
        (made("bias", more={"blk.1.attn_q.bias": torch.ones(2)}), r"weight model\.layers\.0\.\S+bias is missing"),
        (made("spm", tokens="llama"), "a tokenizer of kind 'llama', only gpt2 .*give a tokenizer.json"),
        (made("cut", pre="tekken"), "cuts text by the rule 'tekken'; known are gpt-2, smollm, llama-bpe, qwen2"),
        (made("merges", tokens=""), "has no tokens or no merges"),
    ]
    for path, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            everything(path)
        assert str(path) in str(caught.value)
    import gguf as package

    def unknown(*args: Any) -> Any:
        raise NotImplementedError

    found = open_checkpoint(made("kind"))
    monkeypatch.setattr(package, "dequantize", unknown)
    with pytest.raises(
        ValueError, match=r"model\.norm\.weight is quantised as F32, which the gguf package does not read"
    ):
        found.weights.tensor("model.norm.weight")


def test_what_a_folder_may_hold_besides_is_refused_by_name(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch", reason="the hf extra is not installed").save_file
    for name, listed, message in (
        ("none", {}, "has no weight_map"),
        ("outside", {"weight_map": {"a": "../model.safetensors"}}, "is not a file beside it"),
        ("missing", {"weight_map": {"a": "x.safetensors"}}, r"names x\.safetensors, which is not there"),
    ):
        path = checkpoints.folder(tmp_path / name, shards=2)
        (path / "model.safetensors.index.json").write_text(json.dumps(listed), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            open_checkpoint(path)
    path = checkpoints.folder(tmp_path / "twice", shards=2)
    extra = {"model.norm.weight": torch.ones(48)}
    index = json.loads((path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    index["weight_map"]["again"] = "zz.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    save_file(extra, path / "zz.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight is in model-\d\.safetensors and in zz\.safetensors"):
        open_checkpoint(path)
    path = checkpoints.folder(tmp_path / "whole")
    tensors = checkpoints.weights()
    save_file({**tensors, "model.norm.weight": torch.ones(48, dtype=torch.int32)}, path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight is of kind I32; F64, F32, F16, BF16 are read"):
        open_checkpoint(path)
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, path / "model.safetensors")
    assert logits(open_checkpoint(path).model()).isfinite().all()  # old files carry what the plan computes
    meta = tmp_path / "meta"
    meta.mkdir()
    (meta / "params.json").write_text(
        json.dumps({"dim": 48, "n_heads": 6, "n_layers": 2, "norm_eps": 1e-5, "vocab_size": 9})
    )
    with pytest.raises(ValueError, match="weights in Meta's own format are not read"):
        open_checkpoint(meta)
    found = open_checkpoint(checkpoints.folder(tmp_path / "good"))
    with pytest.raises(ValueError, match="the model has 2 layers, the plan 1"):
        found.model(plan=replace(found.plan, layers=found.plan.layers[:1]))
    wide = replace(found.plan, layers=(found.plan.layers[0], replace(found.plan.layers[1], head_dim=16)))
    with pytest.raises(ValueError, match=r"its heads have 2 widths, \[8, 16\]; models with one are run here"):
        files._head_dim(wide)
