"""Texts to train on: documents, their split into three parts, and tokens.

A corpus is a set of documents. Each falls into the training, validation or test part by the hash of its content, so the
same text is split alike on every machine and in any order of files, and two copies of one document are one document.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from ropewalk.lab import fetching

Part = Literal["train", "validation", "test"]

FEWEST = 20
"""With fewer documents than this, long ones are cut where a paragraph ends, so that all three parts get some."""

SHARE = 0.1
"""Of the bytes, for validation and for test."""


@dataclass(frozen=True)
class Document:
    """A text that stays whole: what one part has of it, the others have not."""

    name: str
    text: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """Documents, each once, split by content.

    >>> found = Corpus.of("notes", [Document(str(n), f"text {n:02} " * 90) for n in range(40)])
    >>> [len(found.part(part)) for part in ("train", "validation", "test")]
    [32, 4, 4]
    """

    name: str
    documents: tuple[Document, ...]
    """In the order of their hashes: as good as shuffled, and always the same."""

    @classmethod
    def of(cls, name: str, documents: Sequence[Document]) -> Corpus:
        """A corpus of these, without empty ones and copies.

        Raises:
            ValueError: there is too little text to make three parts.
        """
        if len({d.digest for d in documents if d.text.strip()}) < FEWEST:
            documents = [piece for document in documents for piece in _pieces(document, documents)]
        once = {d.digest: d for d in documents if d.text.strip()}
        if len(once) < 3:
            raise ValueError(
                f"{name} is too short, or has too few line breaks, where long texts are cut: of {len(once)} pieces "
                "training, validation and test cannot have one each; give more text"
            )
        return cls(name, tuple(once[digest] for digest in sorted(once)))

    @cached_property
    def size(self) -> int:
        """Bytes in UTF-8."""
        return sum(len(d.text.encode()) for d in self.documents)

    @cached_property
    def digest(self) -> str:
        """Names this very text, whatever its files are called."""
        return hashlib.sha256("".join(d.digest for d in self.documents).encode()).hexdigest()[:16]

    def part(self, part: Part) -> tuple[Document, ...]:
        """The documents of one part: a tenth of the bytes each for test and validation, at least one document.

        Raises:
            ValueError: there is no such part.
        """
        if part not in get_args(Part):
            raise ValueError(f"the parts are {', '.join(get_args(Part))}; got {part!r}")
        sizes = [len(d.text.encode()) for d in self.documents]
        bounds, at = [], 0
        for n in (1, 2):
            start = at
            while at < len(sizes) - 3 + n and (at == start or sum(sizes[:at]) < n * SHARE * self.size):
                at += 1
            bounds.append(at)
        test, validation = bounds
        cut = {"test": (0, test), "validation": (test, validation), "train": (validation, len(sizes))}[part]
        return self.documents[slice(*cut)]


def load(names: str | Sequence[str]) -> Corpus:
    """The corpus of that name, or of those text files and folders.

    Args:
        names: one of `names()`, or paths. Of a folder all files with a name ending in .txt or .md are taken, at any
            depth.

    >>> load("pydoc").size > 400_000
    True

    Raises:
        ValueError: neither a known name nor a path; a file that is not UTF-8; a corpus that has not been fetched.
    """
    given = (names,) if isinstance(names, str) else tuple(names)
    if len(given) == 1 and given[0] in BUILT_IN:
        return Corpus.of(given[0], BUILT_IN[given[0]]())
    if len(given) == 1 and given[0] in fetching.SOURCES and not Path(given[0]).exists():
        return Corpus.of(given[0], _files(fetching.folder(given[0])))
    documents: list[Document] = []
    for each in given:
        path = Path(each)
        if not path.exists():
            raise ValueError(f"there is no file, folder or corpus {each!r}; the corpora are {', '.join(known())}")
        documents += _files(path)
    return Corpus.of(", ".join(Path(each).name or each for each in given), documents)


def known() -> tuple[str, ...]:
    """Names of corpora: those in every Python, and those that `ropewalk corpus get` fetches."""
    return (*BUILT_IN, *fetching.SOURCES)


def _files(path: Path) -> list[Document]:
    if path.is_file():
        return [Document(path.name, _read(path))]
    found = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md") and p.is_file())
    if not found:
        raise ValueError(f"{path} has no .txt or .md file; name the files themselves")
    return [Document(str(p.relative_to(path)), _read(p)) for p in found]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); convert it first, with iconv say") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def _pieces(document: Document, among: Sequence[Document]) -> list[Document]:
    """A long document in pieces of about a fiftieth of all text, each ending with a paragraph, or at least a line."""
    most = max(sum(len(d.text) for d in among) // 50, 500)
    paragraphs = document.text.split("\n\n")
    if max(map(len, paragraphs)) > 2 * most:
        paragraphs, end = document.text.split("\n"), "\n"
    else:
        end = "\n\n"
    pieces, held = [], ""
    for paragraph in paragraphs:
        held += paragraph + end
        if len(held) >= most:
            pieces.append(held)
            held = ""
    pieces += [held] if held.strip() else []
    return [Document(f"{document.name}, part {n}", text) for n, text in enumerate(pieces, start=1)]


def _pydoc() -> list[Document]:
    """The reference manual, as `help()` shows it: a document each topic."""
    from pydoc_data.topics import topics

    return [Document(name, text) for name, text in topics.items()]


def standard_library() -> list[tuple[Path, str]]:
    """Every source file of the standard library that is UTF-8, with its path within."""
    home = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(home.rglob("*.py")):
        inside = path.relative_to(home)
        if {"site-packages", "dist-packages", "__pycache__", "pydoc_data"} & set(inside.parts):
            continue
        try:
            found.append((inside, path.read_bytes().decode()))
        except UnicodeDecodeError:  # samples of other encodings, for the tests of those
            continue
    return found


def _pysource() -> list[Document]:
    return [Document(str(path), text) for path, text in standard_library()]


BUILT_IN: dict[str, Callable[[], list[Document]]] = {"pydoc": _pydoc, "pysource": _pysource}
"""What every CPython brings: its reference manual, and its own source."""
