"""What every source of weights offers: tensors by the names that transformers gives them, one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor


class Weights(Protocol):
    """Tensors by name. Nothing is read before it is asked for."""

    shapes: dict[str, tuple[int, ...]]
    """Every tensor there is, by the name that transformers' Llama gives it (`model.layers.0.self_attn.q_proj.weight`);
    matrices are `(out, in)`."""

    def tensor(self, name: str) -> Tensor:
        """One of them, in memory of its own: in the file's own dtype, or float32 for a quantised one.

        Raises:
            ValueError: the file ends before it, or holds it in a way that is not read here.
        """


def digest(files: Iterable[Path]) -> str:
    """A fingerprint of the content of some files: of every byte, since results are kept under it.

    Raises:
        ValueError: one of them cannot be read.
    """
    whole = hashlib.sha256()
    for path in files:
        try:
            one = hashlib.sha256()
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    one.update(block)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
        whole.update(one.digest())
    return whole.hexdigest()
