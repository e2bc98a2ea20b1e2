"""Runs in a world that is not kind: hand-edited files, signals that come twice, other processes, missing things."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ropewalk.cli import main
from ropewalk.cli.train import _settings
from ropewalk.lab import corpora, fetching, rdata, worker
from ropewalk.lab import train as training
from ropewalk.lab.saving import Busy, Checkpoint, Lines, write_json
from ropewalk.lab.settings import Settings
from ropewalk.lab.train import CHECKPOINT, METRICS, RESULT, SETTINGS, Stopped, begin, lines_of, train

pytest.importorskip("safetensors", reason="the lab extra is not installed")

SIZES = "--dim 16 --heads 2 --layers 1 --length 32 --batch 4 --steps 2 --threads 1 --test-tokens 0"
SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "layers": 1, "length": 32, "batch": 4, "threads": 1, "test_tokens": 0}
ARGUMENTS = ["train", *SIZES.split()]


def command(*args: str, code: int = 0, language: str = "en_US.UTF-8") -> Any:
    result = CliRunner().invoke(main, list(args), env={"LC_ALL": language})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def begun(folder: Path, **changed: Any) -> Path:
    begin(folder, Settings(**{**SMALL, "steps": 30, "checks": 1, "validation_tokens": 256, **changed}))
    return folder


# ---- settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lengths", 5, "lengths is a list, got 5"),
        ("corpus", 5, "corpus is a list, got 5"),
        ("corpus", [1], "corpus is a list of words, got [1]"),
        ("corpus", [], "corpus names a corpus, or files and folders; it is empty"),
        ("extensions", [3], "extensions is a list of words, got [3]"),
        ("encoding", 5, "encoding is a name, got 5"),
        ("options", 5, "options are a table, got 5"),
        ("tokenizer", 5, "tokenizer is a file, got 5"),
    ],
)
def test_settings_of_other_types_are_refused_in_one_line(key: str, value: Any, message: str, tmp_path: Path) -> None:
    write_json(tmp_path / SETTINGS, {**SMALL, key: value})
    said = command("train", "--resume", "--output", str(tmp_path), code=1).stderr
    assert said.startswith(f"Error: {message}")
    assert len(said.splitlines()) == 1


def test_a_word_where_an_encoding_has_a_number() -> None:
    with pytest.raises(ValueError, match=r"learned cannot have options {'std': 'x'}: '>=' not supported"):
        Settings(encoding="learned", options={"std": "x"})


@pytest.mark.parametrize(("goal", "form"), [("masked", "encoder"), ("translate", "encoder-decoder")])
def test_what_looks_back_only_is_for_decoders(goal: str, form: Any) -> None:
    with pytest.raises(ValueError, match=r"CoPE with options .* looks back only, and an encoder looks both ways"):
        Settings(goal=goal, form=form, encoding="cope", options={"bidirectional": False})
    Settings(goal=goal, form=form, encoding="cope")


def test_a_check_is_of_one_text_at_least() -> None:
    given = {"texts": (), "corpus": "pydoc", "options": (), "length": 20_000}
    assert _settings(dict(given)).validation_tokens == 20_000
    assert _settings({**given, "length": 64}).validation_tokens == Settings.validation_tokens


# ---- before a run begins ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--device", "cuda"], "there is no GPU that this torch can use; give device cpu"),
        (["--length", "20000"], "the validation part of this text is too short for a length of 20000"),
        (["--length", "400000"], "too few for a window of 400000"),
    ],
)
def test_what_cannot_be_done_leaves_no_folder(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"paragraph {n} {'word ' * 40}\n\n" for n in range(300)), encoding="utf-8")
    said = command(*ARGUMENTS, "--text", str(text), *args, "--output", str(tmp_path / "run"), code=2).stderr
    assert message in said
    assert not (tmp_path / "run").exists()


def test_what_checkpoints_need_is_missed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    said = command(*ARGUMENTS, "--output", str(tmp_path / "run"), code=1).stderr
    assert said == "Error: this needs safetensors: pip install 'ropewalk[lab]'\n"
    assert not (tmp_path / "run").exists()


def test_sizes_that_no_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(training, "train", full)
    said = command(*ARGUMENTS, "--output", str(tmp_path / "run"), code=1).stderr
    assert said == "Error: not enough memory for such sizes\n"


def test_a_run_begins_where_a_beginning_was_killed(tmp_path: Path) -> None:
    (tmp_path / ".settings.json.77.part").write_text("{", encoding="utf-8")
    train(begun(tmp_path, steps=1))
    assert {p.name for p in tmp_path.iterdir()} == {SETTINGS, METRICS, CHECKPOINT, RESULT}


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    said = command(*ARGUMENTS, "--output", str(tmp_path / "file" / "run"), code=1).stderr
    assert said == f"Error: cannot read or write {tmp_path / 'file' / 'run'}: Not a directory\n"


# ---- signals ------------------------------------------------------------------------------


def interrupting(folder: Path, *numbers: int) -> None:
    """Train, and be sent these signals after the seventh step."""

    def tell(line: dict[str, Any]) -> None:
        if line["step"] == 7 and "loss" in line:
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.01)  # so that each is delivered by itself

    train(folder, tell=tell)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_at_once_is_one(second: int, tmp_path: Path) -> None:
    """A terminal tells every process of torchrun, which passes it on."""
    with pytest.raises(Stopped, match="stopped after step 7"):
        interrupting(begun(tmp_path), signal.SIGINT, second)
    assert Checkpoint.load(tmp_path / CHECKPOINT).about["step"] == 7


def test_a_later_interrupt_insists_and_a_signal_to_end_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAME_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        interrupting(begun(tmp_path / "one"), signal.SIGINT, signal.SIGINT)
    assert not (tmp_path / "one" / CHECKPOINT).exists()
    assert len(lines_of(tmp_path / "one")) == 7, "what was written is whole"
    with pytest.raises(Stopped):
        interrupting(begun(tmp_path / "other"), signal.SIGTERM, signal.SIGTERM)


def test_the_command_that_goes_on_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any, **options: Any) -> Any:
        raise Stopped(3)

    def full(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    for work, name, code in ((stopped, "a run", 130), (full, "b run", 1)):
        monkeypatch.setattr(training, "train", work)
        said = command(*ARGUMENTS, "--output", str(tmp_path / name), code=code).stderr
        assert f"ropewalk train --resume --output '{tmp_path / name}'" in said


# ---- another process ----------------------------------------------------------------------


def test_nothing_is_read_before_the_folder_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else a checkpoint could be read that the other process is about to replace."""
    with pytest.raises(Stopped):
        train(begun(tmp_path), stop_at=2)
    read: list[Path] = []
    load = Checkpoint.load

    def recorded(path: Path) -> Checkpoint:
        read.append(path)
        return load(path)

    monkeypatch.setattr(Checkpoint, "load", recorded)
    there = Lines(tmp_path / METRICS)
    size = there.settle()
    with pytest.raises(Busy, match="another process is at work in"):
        train(tmp_path)
    assert not read
    assert there.settle() == size, "and no line is taken away"
    there.close()


def test_a_worker_waits_for_one_whose_master_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Lines(begun(tmp_path, goal="copy", steps=2) / METRICS)
    monkeypatch.setattr(worker, "PATIENCE", 0.0)
    with pytest.raises(Busy):
        worker._train(tmp_path)
    monkeypatch.setattr(worker, "PATIENCE", 60.0)
    later = threading.Timer(0.5, there.close)
    later.start()
    worker._train(tmp_path)
    later.join()
    assert (tmp_path / RESULT).is_file()


# ---- in a run -----------------------------------------------------------------------------


def test_a_check_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    """The loss of the step before was still finite."""
    with pytest.raises(ValueError, match=r"the validation is nan at step 1; take a lower learning rate"):
        train(begun(tmp_path, steps=2, checks=2, learning_rate=1e30, clip=1e30, warmup=0))


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en_US.UTF-8", "At 64 tokens there is no number: --test-tokens is fewer than that."),
        ("ja_JP.UTF-8", "64 トークンの値はありません（--test-tokens がそれより少ないためです）"),
    ],
)
def test_too_few_tokens_are_not_too_short_a_text(language: str, words: str, tmp_path: Path) -> None:
    more = ["--test-tokens", "48", "--lengths", "1,2", "--output", str(tmp_path / "run")]
    said = command(*ARGUMENTS, *more, language=language).stdout
    assert words in " ".join(said.split())


def test_a_text_shorter_than_the_longest_stretch(tmp_path: Path) -> None:
    """It is measured at the lengths that it has, and has no stretch to be compared by."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"paragraph {n} {'word ' * 10}\n\n" for n in range(30)), encoding="utf-8")
    result = train(begun(tmp_path / "run", steps=1, length=96, corpus=str(text), test_tokens=4096))
    assert ["bits" in entry for entry in result["test"]] == [True, True, True, False]
    assert [entry.get("blocks") for entry in result["test"]] == [[], [], [], None]


# ---- other commands -----------------------------------------------------------------------


def test_speed_of_what_cannot_be_trained_is_wrong_usage() -> None:
    said = command("lab", "speed", "--encodings", "rope", "--length", "1000000", "--rounds", "1", code=2).stderr
    assert "too few for a window of 1000000" in said
    assert len(said.splitlines()) == 2


def test_a_fetched_corpus_is_told_whatever_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = tmp_path / "cache" / "austen"
    fetched.mkdir(parents=True)
    (fetched / "novel.txt").write_text("".join(f"{n} " * 90 + "\n\n" for n in range(90)), encoding="utf-8")
    (tmp_path / "austen").mkdir()  # a folder of that name where the user stands
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetching, "home", lambda: tmp_path / "cache")
    told = json.loads(command("corpus", "get", "austen", "--json").stdout)
    assert told["bytes"] == corpora.load(str(fetched)).size


def test_packages_of_another_kind_than_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(index: Path) -> Any:
        raise KeyError("variables")

    def downloaded(packages: Any, opened: Path) -> None:
        (opened / "data").mkdir()
        (opened / "data" / "Rdata.rdx").write_bytes(b"")

    monkeypatch.setattr(fetching, "home", lambda: tmp_path)
    monkeypatch.setattr(fetching, "_from_apt", downloaded)
    monkeypatch.setattr(rdata, "strings", other)
    said = command("corpus", "get", "austen", code=1).stderr
    assert "Error: r-cran-janeaustenr cannot be read: 'variables'" in said
    assert not list(tmp_path.iterdir()), "nothing half is kept"
