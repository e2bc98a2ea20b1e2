"""Two processes train what one does, to rounding, with whole models (DDP) and with shares of them (FSDP)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lab_ranks import RUNS, settings
from ropewalk.lab.ranks import Ranks, joined
from ropewalk.lab.saving import Checkpoint
from ropewalk.lab.settings import Settings
from ropewalk.lab.train import CHECKPOINT, RESULT, Stopped, begin, lines_of, train

pytest.importorskip("safetensors", reason="the lab extra is not installed")
pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run, by one process and by two."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in RUNS:
        begin(folder / f"{name}-alone", settings(name))
        train(folder / f"{name}-alone")
    begin(folder / "begun-alone", settings("rope"))
    with pytest.raises(Stopped):
        train(folder / "begun-alone", stop_at=3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = Path(__file__).parent / "lab_ranks.py"
    both = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=400)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)
    train(folder / "begun-together")
    return folder


def assert_close(one: Path, other: Path) -> None:
    first, second = (Checkpoint.load(p / CHECKPOINT).tensors for p in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        if name.startswith("model."):
            torch.testing.assert_close(
                first[name], second[name], rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
    losses = [[line["loss"] for line in lines_of(p) if "loss" in line] for p in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    results = [json.loads((p / RESULT).read_text()) for p in (one, other)]
    measure = results[0]["measure"]
    for a, b in zip(results[0]["test"], results[1]["test"], strict=True):
        assert a.get(measure) == pytest.approx(b.get(measure), abs=2e-3)
    assert results[0]["extensions"].keys() == results[1]["extensions"].keys()


@pytest.mark.parametrize("split", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", list(RUNS))
def test_two_processes_do_what_one_does(name: str, split: str, folder: Path) -> None:
    assert_close(folder / f"{name}-alone", folder / f"{name}-{split}")
    assert json.loads((folder / f"{name}-{split}" / RESULT).read_text())["processes"] == 2


@pytest.mark.parametrize("name", ["begun-alone", "begun-together"])
def test_a_checkpoint_fits_any_number_of_processes(name: str, folder: Path) -> None:
    assert_close(folder / "rope-alone", folder / name)


def test_what_cannot_be_split(tmp_path: Path) -> None:
    begin(tmp_path / "run", Settings(batch=1, steps=1))
    ranks = Ranks()
    ranks.world = 2
    with pytest.raises(ValueError, match="a batch of 1 texts cannot be split among 2 processes"):
        train(tmp_path / "run", ranks=ranks)


def test_alone_nothing_is_joined() -> None:
    with joined() as together:
        assert not together
    ranks = Ranks("fsdp")
    assert (ranks.rank, ranks.world, ranks.first, ranks.any(True), ranks.any(False)) == (0, 1, True, True, False)


@pytest.mark.slow
def test_torchrun_starts_the_command(tmp_path: Path) -> None:
    """The way users start it; rank 0 alone speaks and writes."""
    options = "--dim 16 --heads 2 --layers 1 --length 16 --batch 4 --steps 3 --test-tokens 0 --threads 1 --output run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"),
            *("--standalone", "-m", "ropewalk", "train", *options.split()),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The run is in run") == 1
    assert json.loads((tmp_path / "run" / RESULT).read_text())["processes"] == 2
