"""Run by test_lab_ranks in two processes of gloo: train, stop, resume, split in either way. Usage: FOLDER RANK PORT."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from ropewalk.lab.ranks import Ranks
from ropewalk.lab.settings import Settings
from ropewalk.lab.train import Stopped, begin, train

SMALL = {"dim": 16, "heads": 2, "layers": 2, "length": 16, "batch": 5, "validation_tokens": 256, "threads": 1}
RUNS = {
    "rope": {**SMALL, "steps": 6, "checks": 2, "test_tokens": 512, "extensions": ("yarn:2",), "lengths": (1, 2)},
    "t5": {**SMALL, "steps": 4, "checks": 1, "test_tokens": 512, "encoding": "t5", "goal": "translate"},
    "shaw": {**SMALL, "steps": 4, "checks": 1, "test_tokens": 512, "encoding": "shaw", "goal": "masked"},
}
"""A batch of five, which two ranks do not share evenly; shared tables, tables of each layer, both stacks."""


def settings(name: str) -> Settings:
    """Of a run."""
    return Settings(**{**RUNS[name], **({"form": "encoder-decoder"} if name == "t5" else {})})


def main(folder: Path, rank: int, port: str) -> None:
    """All runs, split in both ways; the first is stopped and goes on."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for split in ("ddp", "fsdp"):
        for name in RUNS:
            ranks, place = Ranks(split), folder / f"{name}-{split}"
            if ranks.first:
                begin(place, settings(name))
            ranks.wait()
            if name == "rope":
                with suppress(Stopped):
                    train(place, ranks=ranks, stop_at=4)
            train(place, ranks=ranks)
    # what two processes began, one goes on with, and the other way round
    ranks, place = Ranks("fsdp"), folder / "begun-alone"
    train(place, ranks=ranks)
    place = folder / "begun-together"
    if ranks.first:
        begin(place, settings("rope"))
    ranks.wait()
    with suppress(Stopped):
        train(place, ranks=Ranks("fsdp"), stop_at=3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
