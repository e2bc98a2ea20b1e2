"""Weights of a folder of transformers: `model.safetensors`, or several of them with an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ropewalk.readers.files import load_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ropewalk.rotation import Layout

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
LAYOUT = "ropewalk.layout"
"""The entry of a file's header by which `ropewalk export` says in which layout the weights lie."""
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OF_POSITIONS = "rotary_emb.inv_freq"
"""Ends of names of tensors that old files carry, and that the plan computes."""


class SafetensorsWeights:
    """See [`Weights`][ropewalk.lab.checkpoint.weights.Weights].

    Args:
        folder: where they lie.
        names: the files to read; by default those that transformers would.

    Raises:
        ValueError: no such file, one that is damaged, a tensor in two files, or numbers of a kind not read here.
    """

    def __init__(self, folder: Path, names: Iterable[str] | None = None) -> None:
        self.files = tuple(folder / name for name in (names or files_of(folder)))
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.layout: Layout | None = None  # stated by the files, whatever the model's is
        self._where: dict[str, Path] = {}
        for path in self.files:
            self._look(path)

    def tensor(self, name: str) -> Tensor:
        """In the file's own dtype."""
        from safetensors import SafetensorError, safe_open

        path = self._where[name]
        try:
            with safe_open(path, framework="pt") as file:
                found: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise _broken(path, error) from None
        return found

    def _look(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                self._take_layout(path, (file.metadata() or {}).get(LAYOUT))
                for name in file.keys():  # noqa: SIM118  # it is no dict
                    if name.endswith(_OF_POSITIONS):
                        continue
                    view = file.get_slice(name)
                    if name in self._where:
                        raise ValueError(f"{name} is in {self._where[name].name} and in {path.name}")
                    if view.get_dtype() not in _DTYPES:
                        raise ValueError(f"{path}: {name} is of kind {view.get_dtype()}; {', '.join(_DTYPES)} are read")
                    self.shapes[name] = tuple(view.get_shape())
                    self.dtypes[name] = _DTYPES[view.get_dtype()]
                    self._where[name] = path
        except (OSError, SafetensorError) as error:
            raise _broken(path, error) from None

    def _take_layout(self, path: Path, stated: str | None) -> None:
        if stated is None:
            return
        if stated not in ("half", "interleaved") or self.layout not in (None, stated):
            other = f"; another file says {self.layout}" if self.layout else ""
            raise ValueError(f"{path} says that its layout is {stated[:20]!r}{other}")
        self.layout = "half" if stated == "half" else "interleaved"


def files_of(folder: Path) -> list[str]:
    """The names of the files with the weights: one, or those that an index lists.

    Raises:
        ValueError: there are none, or the index is none.
    """
    if (folder / ONE).is_file():
        return [ONE]
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder} has neither {ONE} nor {INDEX}")
    listed = load_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise ValueError(f"{folder / INDEX} has no weight_map from tensors to files")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{folder / INDEX} names {name[:60]!r}, which is not a file beside it")
        if not (folder / name).is_file():
            raise ValueError(f"{folder / INDEX} names {name[:60]}, which is not there")
    return names


def _broken(path: Path, error: Exception) -> ValueError:
    why = getattr(error, "strerror", None) or " ".join(str(error).split())[:100]
    return ValueError(f"{path} is not a whole safetensors file: {why}")
