"""From a model's configuration to what its positions do: the only place that knows other libraries' keys."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.plans import RotaryPlan

NAMES = ("config.json", "params.json")
"""What is looked for in a folder, in this order; then a single GGUF file."""


def from_config(source: str | PathLike[str] | Mapping[str, Any], *, model_type: str | None = None) -> RotaryPlan:
    """Read what a model does about positions, layer by layer, and get the encoding to use.

    Every key that concerns positions is either used or refused by name; nothing is guessed in silence: what had to be
    assumed, and where other programs are known to read the same configuration differently, is among the plan's
    `warnings`.

    Args:
        source: a folder, a config.json of transformers (spellings of versions 4 and 5), a params.json of Meta's, a GGUF
            file, or the content of one of the first two as a dict, which is not changed.
        model_type: read it as this family, whatever it says: for a model that is built like another.

    >>> plan = from_config({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5,
    ...                     "num_hidden_layers": 2, "max_position_embeddings": 8192})
    >>> plan.layer(0)
    RoPE(head_dim=16, base=500000.0, layout='half', ...)
    >>> from_config({"model_type": "llama", "head_dim": 16, "rope_tetha": 5e5})
    Traceback (most recent call last):
        ...
    ValueError: rope_tetha is not read by the reader of llama; did you mean rope_theta?

    Raises:
        ValueError: one line that names the key, or says what is wrong with the file.
    """
    if model_type is not None and not isinstance(model_type, str):
        raise ValueError(f"model_type is a string, got {type(model_type).__name__}")
    if isinstance(source, Mapping):
        return _read(source, model_type, "dict")
    if not isinstance(source, (str, PathLike)):
        raise ValueError(f"give a path or a dict, got {type(source).__name__}")
    path = _file(Path(source))
    if path.suffix.lower() == ".gguf" or _begins_with_gguf(path):
        from ropewalk.readers.gguf import read_gguf

        if model_type is not None:
            raise ValueError("a GGUF file says its own architecture; model_type is for config.json")
        return read_gguf(path)
    from ropewalk.readers.files import load_json

    config = load_json(path)
    try:
        return _read(config, model_type, path.name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(config: Mapping[str, Any], model_type: str | None, source: str) -> RotaryPlan:
    from ropewalk.readers.hf import read_config
    from ropewalk.readers.meta import looks_like, read_params

    try:
        if model_type is None and looks_like(config):
            return read_params(config, source=source)
        return read_config(config, model_type=model_type, source=source)
    except RecursionError:
        raise ValueError("a value of this configuration is nested too deeply") from None


def _file(path: Path) -> Path:
    """The file that a path means."""
    try:
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}")
        if path.is_file():
            return path
        if not path.is_dir():
            raise ValueError(f"{path} is neither a file nor a folder")
        found = next((path / name for name in NAMES if (path / name).is_file()), None)
        if found is not None:
            return found
        ggufs = sorted(path.glob("*.gguf"))
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise ValueError(f"{str(path)[:200]!r} cannot be read: {error}") from None
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise ValueError(f"{path} has {len(ggufs)} GGUF files; name one of them, such as {ggufs[0].name}")
    raise ValueError(f"{path} has neither {' nor '.join(NAMES)} nor a GGUF file")


def _begins_with_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


read = from_config
