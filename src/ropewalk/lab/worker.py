"""A process that carries out runs one after the other: folders come on stdin, a line of JSON goes out for each.

One thread: two such processes get more done than one with two threads. Started by `conduct`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import torch

from ropewalk.lab.goals import Goal
from ropewalk.lab.saving import Busy
from ropewalk.lab.settings import Settings
from ropewalk.lab.train import Stopped, settings_of, train

PATIENCE = 60.0
"""Seconds to wait for another process that is at work in the folder of a run."""


def main() -> None:
    """Until stdin ends, which is when whoever gave the work is gone: then what runs is saved, and this ends too."""
    torch.set_num_threads(1)
    folders: SimpleQueue[str | None] = SimpleQueue()
    Thread(target=_listen, args=(folders,), daemon=True).start()
    while (line := folders.get()) is not None:
        folder = Path(json.loads(line))
        try:
            _train(folder)
            answer: dict[str, str | None] = {"error": None}
        except Stopped:
            return
        except (ValueError, OSError) as error:
            answer = {"error": f"{folder.name}: {error}"}
        print(json.dumps(answer), flush=True)


def _train(folder: Path) -> None:
    """Carry out a run; a worker of a conductor that was killed may have it for a moment, until it has saved."""
    goal, until = _goal(settings_of(folder)), time.monotonic() + PATIENCE
    while True:
        try:
            train(folder, goal=goal)
            return
        except Busy:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def _listen(folders: SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        folders.put(line)
    folders.put(None)
    os.kill(os.getpid(), signal.SIGTERM)


_MADE: dict[tuple[object, ...], Goal] = {}
"""The text of the last run: it is read once, whatever is trained on it."""


def _goal(settings: Settings) -> Goal:
    data = (settings.goal, settings.corpus, settings.tokenizer, settings.length, settings.lengths)
    if data not in _MADE:
        _MADE.clear()
        _MADE[data] = settings.make_goal()
    return _MADE[data]


if __name__ == "__main__":
    main()
