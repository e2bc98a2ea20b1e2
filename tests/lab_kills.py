"""Run by test_lab_train: kill a training run with SIGKILL at every kind of moment, resume, and say when it is done.

Children are forked, so that torch is imported once; each dies at the n-th of its calls that touch the disk, before or
after the call. Usage: lab_kills.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from ropewalk.lab import saving
from ropewalk.lab.corpora import load
from ropewalk.lab.train import RESULT, train


def child(folder: Path, deadly: int, before: bool) -> None:
    """Train, and die at the deadly call."""
    calls = [0]

    def lethal(function):
        def called(*args, **options):
            calls[0] += 1
            if calls[0] == deadly and before:
                os.kill(os.getpid(), signal.SIGKILL)
            made = function(*args, **options)
            if calls[0] == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return made

        return called

    saving.os.replace = lethal(os.replace)
    saving.os.fsync = lethal(os.fsync)
    saving.Lines.add = lethal(saving.Lines.add)
    train(folder, save_seconds=0.0)


def main(folder: Path) -> None:
    """Up to thirty deaths, then a life in peace."""
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # what this imports, children need not import again
    load("pydoc")
    killed = 0
    for n in range(1, 31):
        pid = os.fork()
        if pid == 0:
            child(folder, 1 + n % 13, bool(n % 2))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if (folder / RESULT).exists():
            break
    train(folder)
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
