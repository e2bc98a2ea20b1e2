"""`ropewalk export`: the weights are right in the other layout, and a file is there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor

pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from safetensors import safe_open
from safetensors.torch import load_file

import checkpoints
from ropewalk.cli import main
from ropewalk.lab.checkpoint import export as exporting
from ropewalk.lab.checkpoint import open_checkpoint
from ropewalk.lab.checkpoint.writer import whole_or_not_at_all, write
from ropewalk.version import __version__

JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def command(*args: object, code: int = 0, lang: str = "en") -> Result:
    env = {"LC_ALL": "en_US.UTF-8", "COLUMNS": "80"}
    result = CliRunner().invoke(main, ["export", *map(str, args), "--lang", lang], env=env)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Llama's shape, layout half."""
    return checkpoints.folder(tmp_path / "model")


def neighbours(weight: Tensor, heads: int) -> Tensor:
    """Layout half → interleaved as llama.cpp's converter does it: a head as two rows of channels, transposed."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# The weights.


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_query_and_key_weights_change_their_order_and_nothing_else_changes(
    kind: str, shards: int, tmp_path: Path
) -> None:
    config = {**checkpoints.CONFIG, "model_type": kind, "tie_word_embeddings": kind == "llama"}
    model = checkpoints.folder(tmp_path / "model", config, shards=shards, dtype=torch.bfloat16)
    command(model, tmp_path / "out.safetensors", "--to", "interleaved")
    found, before = load_file(tmp_path / "out.safetensors"), checkpoints.weights(config)
    assert set(found) == set(before)
    changed = set()
    for name, weight in before.items():
        heads = {"q_proj": 6, "k_proj": 2, "q_norm": 1, "k_norm": 1}.get(name.split(".")[-2])
        wanted = weight.bfloat16() if heads is None else neighbours(weight.bfloat16(), heads)
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], wanted), name
        if not torch.equal(wanted, weight.bfloat16()):
            changed.add(".".join(name.split(".")[-2:]))
    assert (
        changed
        == {
            "llama": {"q_proj.weight", "k_proj.weight"},
            "qwen2": {"q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"},
            "qwen3": {"q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight"},
        }[kind]
    )


@pytest.mark.parametrize("quantise", ["F32", "Q8_0"])
def test_what_comes_out_of_a_gguf_file_is_what_went_in(quantise: str, tmp_path: Path) -> None:
    """Its layout is interleaved; in layout half it is the model that transformers had."""
    config = {**checkpoints.CONFIG, "hidden_size": 64, "tie_word_embeddings": False}
    source = checkpoints.gguf(tmp_path / "model.gguf", config, quantise=quantise)
    command(source, tmp_path / "half.safetensors", "--to", "half")
    found = load_file(tmp_path / "half.safetensors")
    for name, weight in checkpoints.weights(config).items():
        assert found[name].dtype == torch.float32
        off = float((found[name] - weight).abs().max() / weight.abs().max())
        assert off == 0 if quantise == "F32" else off < 0.01
    rounded = tmp_path / "rounded.safetensors"
    command(source, rounded, "--to", "half", "--dtype", "bfloat16")
    for name, weight in load_file(rounded).items():
        assert torch.equal(weight, found[name].bfloat16())


def test_transformers_reads_it_and_computes_what_it_did_before(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = {**checkpoints.CONFIG, "tie_word_embeddings": False}
    model = checkpoints.folder(tmp_path / "model", config)
    back = tmp_path / "back"
    back.mkdir()
    shutil.copy(model / "config.json", back)
    command(checkpoints.gguf(tmp_path / "model.gguf", config), back / "model.safetensors", "--to", "half")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        one, other = (transformers.AutoModelForCausalLM.from_pretrained(path)(ids).logits for path in (model, back))
    assert torch.equal(one, other)


def test_the_header_says_what_it_is(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    command(model, out, "--to", "interleaved")
    with safe_open(out, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    told = {name.removeprefix("ropewalk."): text for name, text in metadata.items() if name.startswith("ropewalk.")}
    assert told == {
        "layout": "interleaved",
        "source": "model",
        "source_kind": "safetensors",
        "model_type": "llama",
        "version": __version__,
    }


def test_what_was_exported_is_read_in_its_layout(model: Path, tmp_path: Path) -> None:
    """The type of the model says half; the file's header says what it is."""
    there = tmp_path / "interleaved"
    there.mkdir()
    shutil.copy(model / "config.json", there)
    command(model, there / "model.safetensors", "--to", "interleaved")
    again = open_checkpoint(there)
    assert exporting.layout_of(again.plan) == "interleaved"
    ids = torch.arange(20)[None]
    one, other = (m.logits(m(ids)) for m in (open_checkpoint(model).model(), again.model()))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * float(one.abs().max()))
    assert "already" in command(there, tmp_path / "out.safetensors", "--to", "interleaved", code=2).stderr
    command(there, tmp_path / "half.safetensors", "--to", "half")
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "half.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_shards_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = checkpoints.folder(tmp_path / "model", shards=2)
    for n, layout in ((1, "half"), (2, "interleaved")):
        path = model / f"model-{n}.safetensors"
        save_file(load_file(path), path, metadata={"ropewalk.layout": layout})
    result = command(model, tmp_path / "out.safetensors", "--to", "half", code=1)
    assert "says that its layout is 'interleaved'; another file says half" in result.stderr


def test_layers_that_do_not_turn_stay(tmp_path: Path) -> None:
    config = {**checkpoints.CONFIG, "model_type": "smollm3", "no_rope_layers": [1, 0]}
    model = checkpoints.folder(tmp_path / "model", config)
    assert [layer.kind for layer in open_checkpoint(model).plan.layers] == ["rope", "none"]
    result = json.loads(command(model, tmp_path / "out.safetensors", "--to", "interleaved", "--json").stdout)
    assert result["permuted"] == 2
    found, before = load_file(tmp_path / "out.safetensors"), checkpoints.weights(config)
    for layer, same in ((0, False), (1, True)):
        for name in "qk":
            weight = f"model.layers.{layer}.self_attn.{name}_proj.weight"
            assert torch.equal(found[weight], before[weight]) == same


def test_tensors_of_several_dtypes_keep_theirs(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = checkpoints.folder(tmp_path / "model")
    mixed = {
        name: t.half() if "mlp" in name else t.bfloat16() if "norm" not in name else t
        for name, t in load_file(model / "model.safetensors").items()
    }
    mixed["model.norm.weight"] = mixed["model.norm.weight"][:].half()
    save_file(mixed, model / "model.safetensors")
    command(model, tmp_path / "out.safetensors", "--to", "interleaved")
    assert {n: t.dtype for n, t in load_file(tmp_path / "out.safetensors").items()} == {
        n: t.dtype for n, t in mixed.items()
    }


# The proof.


@pytest.mark.parametrize("wrong", ["heads", "values too", "keys not", "nothing", "one number"])
def test_wrong_weights_are_not_written(
    wrong: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = exporting.InLayout.tensor

    def tensor(self: exporting.InLayout, name: str) -> Tensor:
        weight = self.weights.tensor(name)
        if wrong == "heads" and "k_proj" in name:
            return neighbours(weight, 1)
        if wrong == "values too" and name == "model.layers.1.self_attn.v_proj.weight":
            return neighbours(weight, 2)
        if wrong == "nothing" or (wrong == "keys not" and "k_proj" in name):
            return weight
        made = right(self, name)
        if wrong == "one number" and name == "model.layers.0.self_attn.k_proj.weight":
            made[3, 5] += 0.05
        return made

    monkeypatch.setattr(exporting.InLayout, "tensor", tensor)
    result = command(model, tmp_path / "out.safetensors", "--to", "interleaved", code=1)
    assert "the logits of the exported weights are off by" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert left(tmp_path) == ["model"]


def test_what_was_written_is_read_back(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(path: Path, *args: Any) -> None:
        write(path, *args)
        content = bytearray(path.read_bytes())
        content[-30] ^= 0x40
        path.write_bytes(content)

    monkeypatch.setattr(exporting, "write", spoilt)
    result = command(model, tmp_path / "out.safetensors", "--to", "interleaved", code=1)
    assert "off by" in result.stderr
    assert left(tmp_path) == ["model"]


def test_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = checkpoints.folder(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][3] = 1e6
    save_file(tensors, model / "model.safetensors")
    result = command(model, tmp_path / "out.safetensors", "--to", "interleaved", "--dtype", "float16", code=1)
    assert "a number of model.norm.weight is beyond float16" in result.stderr
    command(model, tmp_path / "out.safetensors", "--to", "interleaved", "--dtype", "bfloat16")
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, model / "model.safetensors")
    result = command(model, tmp_path / "other.safetensors", "--to", "interleaved", code=1)
    assert "a number of model.norm.weight is not finite" in result.stderr
    assert left(tmp_path) == ["model", "out.safetensors"]


# Whole or not at all.


def test_a_file_that_exists_is_kept_without_force(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    out.write_text("precious")
    result = command(model, out, "--to", "interleaved", code=2)
    assert "exists; --force would replace it" in result.stderr
    assert out.read_text() == "precious"
    command(model, out, "--to", "interleaved", "--force")
    assert "model.norm.weight" in load_file(out)
    nowhere = tmp_path / "link.safetensors"
    nowhere.symlink_to(tmp_path / "nothing")
    command(model, nowhere, "--to", "interleaved", code=2)


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(
    links: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:  # a file system without them

        def link(*_: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", link)
    out = tmp_path / "out.safetensors"
    command(model, tmp_path / "first.safetensors", "--to", "interleaved")

    def meanwhile(*args: Any) -> None:
        write(*args)
        out.write_text("precious")

    monkeypatch.setattr(exporting, "write", meanwhile)
    result = command(model, out, "--to", "interleaved", code=2)
    assert "exists" in result.stderr
    assert out.read_text() == "precious"
    assert left(tmp_path) == ["first.safetensors", "model", "out.safetensors"]


def test_the_source_is_never_overwritten(model: Path) -> None:
    before = (model / "model.safetensors").read_bytes()
    result = command(model, model / "model.safetensors", "--to", "interleaved", "--force", code=2)
    assert "is part of the model itself" in result.stderr
    assert (model / "model.safetensors").read_bytes() == before


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """The system refuses to write files longer than that, as it does on a disk that is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.safetensors"
    with room_for(20_000):
        result = command(model, out, "--to", "interleaved", code=1)
    assert re.fullmatch(r"Error: cannot write .*out\.safetensors: File too large\n", result.stderr)
    assert left(tmp_path) == ["model"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 10**4, 10**4))
    result = command(model, out, "--to", "interleaved", code=1)
    assert "1 MB are needed, 0 are free" in result.stderr
    assert left(tmp_path) == ["model"]


def test_an_interrupt_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, asked = exporting.InLayout.tensor, []

    def tensor(self: exporting.InLayout, name: str) -> Tensor:
        asked.append(name)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return right(self, name)

    monkeypatch.setattr(exporting.InLayout, "tensor", tensor)
    for lang, words in (
        ("en", "Stopped; nothing was written.\n"),
        ("ja", "中断しました。ファイルは書いていません。\n"),
    ):
        asked.clear()
        result = command(model, tmp_path / "out.safetensors", "--to", "interleaved", code=130, lang=lang)
        assert result.stderr == words
        assert left(tmp_path) == ["model"]


def test_a_replaced_file_stays_if_anything_fails(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    out.write_text("precious")

    def fail() -> None:
        with whole_or_not_at_all(out, force=True) as part:
            part.write_text("half of")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert left(tmp_path) == ["out.safetensors"]
    assert out.read_text() == "precious"
    with whole_or_not_at_all(out, force=True) as part:
        part.write_text("better")
    assert (left(tmp_path), out.read_text()) == (["out.safetensors"], "better")


def test_a_tensor_of_another_shape_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x has the shape \(3,\), its header says \(2,\)"):
        write(tmp_path / "x", {"x": (2,)}, {"x": torch.float32}, lambda name: torch.ones(3), {})
    with pytest.raises(FileExistsError):
        write(tmp_path / "x", {"x": (2,)}, {"x": torch.float32}, lambda name: torch.ones(2), {})


def test_every_tensor_begins_at_a_multiple_of_its_items(tmp_path: Path) -> None:
    """As readers want it that map the file into memory."""
    made = {"a": torch.ones(3).half(), "b": torch.arange(2.0), "c": torch.ones(()).bfloat16(), "d": torch.ones(1, 0)}
    dtypes = {name: t.dtype for name, t in made.items()}
    path = tmp_path / "x.safetensors"
    write(path, {name: tuple(t.shape) for name, t in made.items()}, dtypes, made.__getitem__, {"é": "ü"})
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert size % 8 == 0
    assert header["__metadata__"] == {"é": "ü"}
    assert all(header[name]["data_offsets"][0] % dtypes[name].itemsize == 0 for name in made)
    found = load_file(path)
    assert all(torch.equal(found[name], t) and found[name].dtype == t.dtype for name, t in made.items())


# What is refused, and what is said.


def test_what_it_says(model: Path, tmp_path: Path) -> None:
    for lang in ("en", "ja"):
        result = command(model, tmp_path / f"{lang}.safetensors", "--to", "interleaved", lang=lang)
        assert "half → interleaved" in result.stdout
        assert bool(JAPANESE.search(result.stdout)) == (lang == "ja")
        assert result.stderr == ""
    found = json.loads(command(model, tmp_path / "out.safetensors", "--to", "interleaved", "--json").stdout)
    assert list(found) == ["schema", "file", "from", "to", "tensors", "permuted", "bytes", "proof"]
    assert (found["schema"], found["from"], found["to"]) == ("ropewalk.export/1", "half", "interleaved")
    assert (found["tensors"], found["permuted"]) == (20, 4)
    assert found["bytes"] == (tmp_path / "out.safetensors").stat().st_size
    proof = found["proof"]
    assert 0 <= proof["largest_difference"] < proof["allowed"] < proof["largest_logit"]


def test_the_layout_that_it_has_already(model: Path, tmp_path: Path) -> None:
    result = command(model, tmp_path / "out.safetensors", "--to", "half", code=2)
    assert "has the layout half already, so there is nothing to convert (--to interleaved would)" in result.stderr
    source = checkpoints.gguf(tmp_path / "model.gguf")
    assert (
        "すでに interleaved"
        in command(source, tmp_path / "o.safetensors", "--to", "interleaved", code=2, lang="ja").stderr
    )
    with pytest.raises(ValueError, match="has the layout half already"):
        exporting.export(open_checkpoint(model), "half", tmp_path / "out.safetensors")
    with pytest.raises(ValueError, match="layout is 'half' or 'interleaved', got 'neox'"):
        exporting.export(open_checkpoint(model), "neox", tmp_path / "out.safetensors")  # type: ignore[arg-type]
    assert left(tmp_path) == ["model", "model.gguf"]


def test_layers_of_two_layouts_are_refused(model: Path) -> None:
    from dataclasses import replace

    plan = open_checkpoint(model).plan
    mixed = replace(plan, layers=(plan.layers[0], replace(plan.layers[1], layout="interleaved")))
    with pytest.raises(ValueError, match="its layers have 2 layouts"):
        exporting.layout_of(mixed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "models of type 'gemma2' are not"),
        ({"num_key_value_heads": 3}, "k_proj"),
        ({"num_hidden_layers": 3}, "the weight model.layers.2"),
        ({"model_type": "bert", "rope_theta": None}, "no layer of this model rotates (bert"),
    ],
)
def test_models_that_are_not_read_are_refused_by_name(
    change: dict[str, Any], message: str, model: Path, tmp_path: Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    changed = {key: value for key, value in (config | change).items() if value is not None}
    (model / "config.json").write_text(json.dumps(changed))
    for lang in ("en", "ja"):
        result = command(model, tmp_path / "out.safetensors", "--to", "interleaved", code=1, lang=lang)
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert left(tmp_path) == ["model"]


@pytest.mark.parametrize("name", ["nothing.gguf", "nowhere"])
def test_what_is_not_there(name: str, tmp_path: Path) -> None:
    result = command(tmp_path / name, tmp_path / "out.safetensors", "--to", "half", code=1)
    assert name in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_damaged_files(model: Path, tmp_path: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    result = command(model, tmp_path / "out.safetensors", "--to", "interleaved", code=1)
    assert "is not a whole safetensors file" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert left(tmp_path) == ["model"]


@pytest.mark.parametrize(
    ("args", "en"),
    [
        (("m", "out.bin", "--to", "half"), "'out.bin' does not end with one of .safetensors"),
        (("m", "out.safetensors", "--to", "neox"), "'neox' is not one of interleaved, half"),
        (("m", "out.safetensors"), "--to"),
        (("m", "out.safetensors", "--to", "half", "--dtype", "int8"), "'int8' is not one of float32"),
        (("m",), "OUT"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], en: str) -> None:
    assert en in command(*args, code=2).stderr
    assert JAPANESE.search(command(*args, code=2, lang="ja").stderr)


def test_a_folder_that_does_not_exist(model: Path, tmp_path: Path) -> None:
    assert "does not exist" in command(model, tmp_path / "no" / "o.safetensors", "--to", "interleaved", code=1).stderr


def test_packages_that_are_missing_are_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = command(model, tmp_path / "out.safetensors", "--to", "interleaved", code=1)
    assert "pip install 'ropewalk[checkpoint]'" in result.stderr


def test_the_examples_do_what_they_say(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stand_ins = {"smollm2": str(checkpoints.gguf(tmp_path / "model.gguf")), "path/to/llama": str(model)}
    for example in main.commands["export"].examples:  # type: ignore[attr-defined]
        program, name, *args = shlex.split(example)
        assert (program, name) == ("ropewalk", "export")
        command(*(stand_ins.get(word, word) for word in args))
        (out,) = [word for word in args if word.endswith(".safetensors")]
        assert load_file(tmp_path / out)["model.norm.weight"].dtype == (
            torch.bfloat16 if "bfloat16" in args else torch.float32
        )


@pytest.mark.slow
def test_smollm2(tmp_path: Path) -> None:
    """A real model, 9 query heads and 3 key heads; wrong pairs would move its logits by several."""
    try:
        checkpoint = open_checkpoint("smollm2")
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    found = exporting.export(checkpoint, "half", tmp_path / "half.safetensors", dtype=torch.bfloat16)
    assert found.permuted == 60
    assert found.difference < 1e-3 < 10 < found.largest
