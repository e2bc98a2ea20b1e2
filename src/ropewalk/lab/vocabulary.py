"""Text to token numbers: bytes, or any tokenizer file of the `tokenizers` package."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.lab.corpora import Document


class Vocabulary:
    """UTF-8 bytes as tokens 0 … 255; then `separator`, which stands before every document, and `mask`.

    >>> Vocabulary().stream([Document("a", "Hé"), Document("b", "!")])[0].tolist()
    [256, 72, 195, 169, 256, 33]
    """

    name = "bytes"

    def __init__(self) -> None:
        self.words = 256

    @property
    def separator(self) -> int:
        """The token between documents."""
        return self.words

    @property
    def mask(self) -> int:
        """What a masked language model is shown in place of what it is to guess."""
        return self.words + 1

    @property
    def size(self) -> int:
        """How many tokens there are, those two included."""
        return self.words + 2

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text."""
        return text.encode()

    def stream(self, documents: Sequence[Document]) -> tuple[Tensor, int]:
        """Documents one after the other, int32, and how many bytes of text they are."""
        pieces = []
        for document in documents:
            encoded = self.encode(document.text)
            raw = isinstance(encoded, bytes) and encoded  # else a list, or nothing, which frombuffer refuses
            made = torch.frombuffer(bytearray(encoded), dtype=torch.uint8) if raw else torch.tensor(list(encoded))
            pieces += [torch.tensor([self.separator], dtype=torch.int32), made.to(torch.int32)]
        joined = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int32)
        return joined, sum(len(d.text.encode()) for d in documents)


class FromFile(Vocabulary):
    """The tokens of a `tokenizer.json`. Bits are still counted per byte of text, so that results compare with bytes.

    Raises:
        ValueError: the file is not there, or is no tokenizer.
        ModuleNotFoundError: the `tokenizers` package is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        from tokenizers import Tokenizer

        path = Path(path)
        if not path.is_file():
            raise ValueError(f"there is no tokenizer file {path}")
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # whatever the package raises, the file is what is wrong
            raise ValueError(f"{path} is no file of the tokenizers package: {error}") from error
        self.words = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.name = f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text, without the tokenizer's own marks of beginning and end."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens
