"""Training: that it learns, goes on as if nothing had happened, and loses nothing when things go wrong."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from ropewalk.cli import main
from ropewalk.lab import train as training
from ropewalk.lab.corpora import Corpus, load
from ropewalk.lab.saving import Checkpoint, Lines, write, write_json
from ropewalk.lab.settings import Settings
from ropewalk.lab.train import CHECKPOINT, METRICS, RESULT, SETTINGS, Stopped, begin, lines_of, settings_of, train
from ropewalk.lab.transformer import Transformer

pytest.importorskip("safetensors", reason="the lab extra is not installed")

SMALL = {"dim": 16, "heads": 2, "layers": 1, "length": 32, "batch": 4, "validation_tokens": 512, "threads": 1}


def run(folder: Path, **changed: Any) -> dict[str, Any]:
    begin(folder, Settings(**{**SMALL, "steps": 30, "checks": 3, "test_tokens": 2048, "lengths": (1, 2), **changed}))
    return train(folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Checkpoint.load(folder / CHECKPOINT).tensors


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Lines without what depends on the clock."""
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines_of(folder)]


def assert_same(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert metrics(one) == metrics(other)
    results = [json.loads((f / RESULT).read_text()) for f in (one, other)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupts."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder)
    return folder


def test_learning_happens(tmp_path: Path) -> None:
    """Better than knowing how often each byte occurs, which no model without context can beat."""
    settings = {"dim": 32, "length": 32, "batch": 16, "steps": 100, "learning_rate": 1e-2, "checks": 4}
    result = run(tmp_path / "run", **settings, test_tokens=16_384)
    corpus = load("pydoc")
    counts = Counter("".join(d.text for d in corpus.part("train")).encode())
    held = "".join(d.text for d in corpus.part("test")).encode()
    total = sum(counts.values())
    unigram = -sum(math.log2((counts[byte] + 1) / (total + 256)) for byte in held) / len(held)
    assert 4 < unigram < 5.5
    assert result["test"][0]["bits"] < unigram - 0.5
    checks = [value for _, value in result["validation"]]
    assert checks[-1] < checks[0]
    assert (result["steps"], result["tokens"]) == (100, 100 * 16 * 32)


def test_what_a_run_leaves(whole: Path) -> None:
    assert {p.name for p in whole.iterdir()} == {SETTINGS, METRICS, CHECKPOINT, RESULT}
    lines = lines_of(whole)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 31))
    assert [line["step"] for line in lines if "validation_bits" in line] == [10, 20, 30]
    assert settings_of(whole).steps == 30
    result = json.loads((whole / RESULT).read_text())
    assert result["schema"] == "ropewalk.train/1"
    assert [entry["length"] for entry in result["test"]] == [32, 64]
    assert train(whole) == result, "a finished run is not run again"


@pytest.mark.parametrize("moment", [1, 10, 17, 30])
def test_a_stopped_run_goes_on_bit_for_bit(moment: int, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, settings_of(whole))
    if moment < 30:
        with pytest.raises(Stopped, match=f"stopped after step {moment}"):
            train(folder, stop_at=moment)
        assert Checkpoint.load(folder / CHECKPOINT).about["step"] == moment
        assert not (folder / RESULT).exists()
    train(folder, stop_at=30)
    assert_same(folder, whole)


def test_the_mean_of_an_interval_survives_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "INTERVALS", 2)
    run(tmp_path / "whole", steps=12, test_tokens=0)
    begin(tmp_path / "stopped", settings_of(tmp_path / "whole"))
    with pytest.raises(Stopped):
        train(tmp_path / "stopped", stop_at=8)
    train(tmp_path / "stopped")
    assert [line["step"] for line in lines_of(tmp_path / "whole") if "loss" in line] == [6, 12]
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_a_step_is_adamw_with_warmup_clipping_and_decay_where_it_belongs() -> None:
    """Against the update written out, in float64."""
    settings = Settings(
        **{
            **SMALL,
            "encoding": "shaw",
            "steps": 20,
            "warmup": 4,
            "clip": 0.1,
            "weight_decay": 0.5,
            "learning_rate": 0.01,
        }
    )
    goal = settings.make_goal()
    model = Transformer(settings.shape(goal.vocabulary), seed=1)
    twin = Transformer(settings.shape(goal.vocabulary), seed=1).double()
    optimiser = training.optimiser_of(model, settings)
    m = {n: torch.zeros_like(p) for n, p in twin.named_parameters()}
    v = {n: torch.zeros_like(p) for n, p in twin.named_parameters()}
    for number in range(6):
        given = training.step(model, optimiser, goal, settings, number)
        batch = goal.draw(0, number, batch=4, length=32, form="decoder")
        loss = torch.nn.functional.cross_entropy(twin(batch.inputs).flatten(0, 1), batch.targets.flatten())
        twin.zero_grad()
        loss.backward()
        assert given == pytest.approx(float(loss.detach()), rel=1e-4)
        norm = sum(float(p.grad.square().sum()) for p in twin.parameters()) ** 0.5
        assert norm > 0.1, "there is something to clip"
        rate = 0.01 * (number + 1) / 4 if number < 4 else settings.rate(number)
        with torch.no_grad():
            for name, p in twin.named_parameters():
                g = p.grad * 0.1 / norm
                m[name] = 0.9 * m[name] + 0.1 * g
                v[name] = 0.95 * v[name] + 0.05 * g * g
                matrix = name.endswith(("query_key_value.weight", "out.weight", "widen.weight", "narrow.weight"))
                p -= rate * 0.5 * p * matrix
                scale = (v[name] / (1 - 0.95 ** (number + 1))).sqrt() + 1e-8
                p -= rate * m[name] / (1 - 0.9 ** (number + 1)) / scale
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.double(), q, rtol=0, atol=2e-3, msg=lambda text, n=name: f"{n}: {text}")


def test_a_run_killed_again_and_again_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    run(whole, steps=9, checks=3, test_tokens=256)
    begin(folder, settings_of(whole))
    script = Path(__file__).parent / "lab_kills.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8
    assert_same(folder, whole)
    assert {p.name for p in folder.iterdir()} == {p.name for p in whole.iterdir()}, "no half file is left"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_where_the_run_stands(number: int, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, settings_of(whole))

    def interrupt(line: dict[str, Any]) -> None:
        if line["step"] == 7:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(Stopped):
        train(folder, tell=interrupt)
    assert signal.getsignal(number) is before
    assert Checkpoint.load(folder / CHECKPOINT).about["step"] == 7
    train(folder)
    assert_same(folder, whole)


def test_an_interrupt_while_testing_loses_nothing(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    begin(folder, settings_of(whole))
    profile = training.profile

    def interrupted(*args: Any, **options: Any) -> Any:
        raise Stopped(30)

    monkeypatch.setattr(training, "profile", interrupted)
    with pytest.raises(Stopped):
        train(folder)
    monkeypatch.setattr(training, "profile", profile)
    train(folder)
    assert_same(folder, whole)


def test_a_full_disk_leaves_the_last_checkpoint(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    begin(folder, settings_of(whole))
    with pytest.raises(Stopped):
        train(folder, stop_at=12)
    kept = (folder / CHECKPOINT).read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("ropewalk.lab.saving.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            train(folder)
        result = CliRunner().invoke(main, ["train", "--resume", "--output", str(folder)], env={"LC_ALL": "C.UTF-8"})
        assert result.exit_code == 1
        assert "No space left on device; what was saved before is whole" in result.stderr
        assert "Traceback" not in result.stderr
    assert (folder / CHECKPOINT).read_bytes() == kept
    assert not list(folder.glob(".*"))
    train(folder)
    assert_same(folder, whole)


def test_the_test_part_is_read_at_the_end_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    part = Corpus.part

    def recorded(self: Corpus, name: Any) -> Any:
        read.append(name)
        return part(self, name)

    monkeypatch.setattr(Corpus, "part", recorded)
    folder = tmp_path / "run"
    begin(folder, Settings(**SMALL, steps=6, checks=2, test_tokens=2048, extensions=("linear:8",)))
    with pytest.raises(Stopped):
        train(folder, stop_at=5)
    assert set(read) == {"train", "validation"}
    train(folder)
    assert read.count("test") == 1
    assert read[-1] == "test"


@pytest.mark.parametrize("part", ["first bytes", "a weight", "the end", "the header", "everything", "another file"])
def test_a_damaged_checkpoint_is_refused(part: str, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, settings_of(whole))
    with pytest.raises(Stopped):
        train(folder, stop_at=3)
    path = folder / CHECKPOINT
    data = bytearray(path.read_bytes())
    if part == "first bytes":
        data[0] ^= 0x10
    elif part == "a weight":
        data[-100] ^= 1
    elif part == "the end":
        del data[-5:]
    elif part == "the header":
        data[data.index(b"step") + 9 + 1] ^= 1
    elif part == "everything":
        data.clear()
    else:
        from safetensors.torch import save

        data = bytearray(save({"x": torch.ones(2)}, metadata={"schema": "else", "about": "{}", "sha256": ""}))
    path.write_bytes(data)
    message = "another kind" if part == "another file" else "is damaged"
    with pytest.raises(ValueError, match=message):
        train(folder)
    result = CliRunner().invoke(main, ["train", "--resume", "--output", str(folder)], env={"LC_ALL": "C.UTF-8"})
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


def test_a_run_that_does_not_fit_its_checkpoint(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, settings_of(whole))
    with pytest.raises(Stopped):
        train(folder, stop_at=3)
    settings = settings_of(folder).json()
    write_json(folder / SETTINGS, {**settings, "steps": 60})
    with pytest.raises(ValueError, match=r"was made with other settings than settings\.json beside it has"):
        train(folder)
    write_json(folder / SETTINGS, settings)
    found = Checkpoint.load(folder / CHECKPOINT)
    Checkpoint(found.tensors, {**found.about, "data": "another text"}).save(folder / CHECKPOINT)
    with pytest.raises(ValueError, match="the text is not the one that"):
        train(folder)
    Checkpoint({"model.x": torch.ones(1)}, found.about).save(folder / CHECKPOINT)
    with pytest.raises(ValueError, match="holds other parameters than this model has"):
        train(folder)
    found.save(folder / CHECKPOINT)
    (folder / METRICS).write_bytes(b"")
    with pytest.raises(ValueError, match=r"metrics\.jsonl has lost lines: 0 bytes are there"):
        train(folder)
    (folder / SETTINGS).write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"settings\.json is damaged"):
        train(folder)
    (folder / SETTINGS).write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="it holds no document"):
        train(folder)


def test_what_cannot_be_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no run in"):
        settings_of(tmp_path)
    (tmp_path / "there").write_text("x", encoding="utf-8")
    for path in (tmp_path, tmp_path / "there"):
        with pytest.raises(ValueError, match="is there already: give --resume"):
            begin(path, Settings())
    with pytest.raises(ValueError, match=r"the training part of pydoc has \d+ tokens, too few for a window of 500000"):
        run(tmp_path / "long", length=500_000)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{n} " * 30 for n in range(100)), encoding="utf-8")
    with pytest.raises(ValueError, match="the validation part of this text is too short for a length of 3000"):
        run(tmp_path / "longer", corpus=str(text), length=3000, steps=1, batch=1, validation_tokens=10_000)


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the loss is nan at step \d+; take a lower learning rate"):
        run(tmp_path / "run", learning_rate=1e30, clip=1e30, warmup=0)


def test_lines_and_files(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "m")
    lines.add({"a": 1})
    size = lines.settle()
    lines.add({"a": 2})
    lines.close()
    lines = Lines(tmp_path / "m")
    lines.keep(size)
    lines.add({"a": 3})
    lines.close()
    assert (tmp_path / "m").read_text() == '{"a": 1}\n{"a": 3}\n'
    there = Lines(tmp_path / "m")
    there.keep(size)
    with pytest.raises(ValueError, match=r"another process is at work in .*; wait for it to end"):
        Lines(tmp_path / "m")
    assert there.settle() == size, "and it has taken nothing away"
    there.close()
    write(tmp_path / "f", b"one")
    with open(tmp_path / "f", "rb") as before:
        write(tmp_path / "f", b"another")
        assert before.read() == b"one", "a new file takes the place of the old, which is never written over"
    write(tmp_path / "f", b"one")
    with pytest.raises(TypeError):
        write(tmp_path / "f", "two")  # type: ignore[arg-type]
    assert (tmp_path / "f").read_bytes() == b"one"
    assert {p.name for p in tmp_path.iterdir()} == {"m", "f"}


@pytest.mark.parametrize(
    ("goal", "form", "encoding"),
    [
        ("masked", "encoder", "alibi"),
        ("previous", "decoder", "cope"),
        ("reverse", "encoder", "shaw"),
        ("translate", "encoder-decoder", "t5"),
        ("copy", "decoder", "learned"),
    ],
)
def test_every_goal_runs_and_resumes(goal: str, form: str, encoding: str, tmp_path: Path) -> None:
    options = {"goal": goal, "form": form, "encoding": encoding, "steps": 6, "checks": 2}
    result = run(tmp_path / "one", **options)
    begin(tmp_path / "two", settings_of(tmp_path / "one"))
    with pytest.raises(Stopped):
        train(tmp_path / "two", stop_at=4)
    train(tmp_path / "two")
    assert_same(tmp_path / "one", tmp_path / "two")
    if encoding == "learned":
        assert result["test"][1] == {"multiple": 2, "length": 64, "refused": "the encoding ends at 32 positions"}
    else:
        assert result["measure"] in result["test"][1] or "bits" in result["test"][1]


def test_classes_of_the_standard_library(tmp_path: Path) -> None:
    result = run(tmp_path / "run", goal="classify", corpus="pysource", steps=3, checks=1)
    assert 0 <= result["test"][0]["accuracy"] <= 1
    assert result["measure"] == "accuracy"
    with pytest.raises(ValueError, match="pydoc has fewer than two classes"):
        run(tmp_path / "other", goal="classify")


def test_half_precision_trains_too(tmp_path: Path) -> None:
    result = run(tmp_path / "run", precision="bfloat16", steps=10)
    assert math.isfinite(result["test"][0]["bits"])
    assert all(t.dtype == torch.float32 for t in weights(tmp_path / "run").values())


def test_metrics_go_to_tensorboard_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            written.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, step))

        def close(self) -> None:
            written.append(("closed",))

    there = type(sys)("torch.utils.tensorboard")
    there.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", there)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "tensorboard")
    begin(tmp_path / "run", Settings(**SMALL, steps=4, checks=2, test_tokens=0))
    with pytest.raises(Stopped):
        train(tmp_path / "run", stop_at=3)
    assert written[0] == (str(tmp_path / "run" / "tensorboard"), 0)
    assert [step for name, step in written[1:-1] if name == "loss"] == [1, 2, 3]
    assert ("validation_bits", 2) in written
    assert written[-1] == ("closed",)
    written.clear()
    train(tmp_path / "run")
    assert written[0][1] == 3


# ---- the command --------------------------------------------------------------------------

ARGUMENTS = [
    "train",
    "--dim",
    "16",
    "--heads",
    "2",
    "--layers",
    "1",
    "--length",
    "32",
    "--batch",
    "4",
    "--threads",
    "1",
]


def command(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, list(args), env={"LC_ALL": "en_US.UTF-8"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_the_command_trains_and_tells(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    more = ["--steps", "10", "--lengths", "1,2", "--test-tokens", "2048", "--output", folder]
    done = command(*ARGUMENTS, *more, "--extend", "linear:2", "--option", "base=500")
    assert "step 10/10" in done.stderr
    assert done.stderr.endswith("testing\n")
    assert "× 2 linear:2" in done.stdout
    assert settings_of(Path(folder)).options == {"base": 500}
    assert "is there already: give --resume" in command(*ARGUMENTS, *more, code=1).stderr
    again = json.loads(command("train", "--resume", "--output", folder, "--json").stdout)
    assert again["settings"]["steps"] == 10
    assert "a resumed run keeps its settings: leave out --steps" in (
        command("train", "--resume", "--output", folder, "--steps", "20", code=2).stderr
    )
    assert "give --output, the folder of the run" in command("train", "--resume", code=2).stderr


def test_the_command_in_japanese(tmp_path: Path) -> None:
    more = ["--steps", "4", "--test-tokens", "0", "--goal", "copy", "--output", str(tmp_path / "run"), "--lang", "ja"]
    done = command(*ARGUMENTS, *more)
    assert "ステップ 4/4" in done.stderr
    assert "パラメーター" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--encoding", "rop"], "no encoding is called 'rop', did you mean 'rope'"),
        (["--option", "base"], "'base' is not KEY=VALUE"),
        (["--option", "bse=3"], "RoPE has no option 'bse', did you mean 'base'"),
        (["--goal", "cop"], "there is no goal 'cop', did you mean"),
        (["--learning-rate", "-1"], "'-1' is not a number above 0"),
        (["--lengths", "1,x"], "'x' is not a whole number, 1 or more"),
        (["--heads", "3"], "3 heads do not share"),
        (["--text", "nowhere"], "there is no file, folder or corpus 'nowhere'"),
        (["--corpus", "pydocs"], "there is no file, folder or corpus 'pydocs'"),
        (["--tokenizer", "none.json"], "there is no tokenizer file none.json"),
        (["--extend", "yarn:0.5"], "factor"),
    ],
)
def test_wrong_usage(args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*ARGUMENTS, *args, code=2)
    assert message in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
