"""Carry out a study: its runs on several cores, within a time budget, resumable at any moment.

The folder of a study:

    study.json      the study as it was read, the command and the machine
    runs/…          a folder for each run, as `train` keeps it
    report.html     written by `report`
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

from ropewalk.benchmark.machine import machine
from ropewalk.lab.reading import of
from ropewalk.lab.saving import alone, is_fresh, read_json, sweep, write_json
from ropewalk.lab.study import Run, Study
from ropewalk.lab.train import RESULT, begin

STUDY = "study.json"

Tell = Callable[[int, int, str], None]
"""Is told how many runs are done, of how many, and what happens now."""


@dataclass
class Outcome:
    """How far a study came."""

    done: int
    total: int
    reason: str | None = None
    """Why it ended before its end: time, interrupt; or None."""


def prepare(folder: Path, study: Study, command: Sequence[str]) -> None:
    """Make the folder of a study, or see that it holds this one.

    Raises:
        ValueError: it holds another study, or something else.
        OSError: it cannot be written.
    """
    path = folder / STUDY
    if path.is_file():
        there = read_json(path)
        if there.get("digest") != study.digest:
            raise ValueError(f"{folder} holds another study, or an earlier form of this one; name another folder")
        return
    if not is_fresh(folder):
        raise ValueError(f"{folder} is there already, and holds no study; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "schema": "ropewalk.study/1",
            "digest": study.digest,
            "quick": study.quick,
            "command": list(command),
            "machine": machine(),
            "study": study.document,
        },
    )


def study_in(folder: Path) -> Study:
    """The study that a folder holds.

    Raises:
        ValueError: none, or a damaged one.
    """
    path = folder / STUDY
    if not path.is_file():
        raise ValueError(f"there is no study in {folder}: it has no {STUDY}")
    found = read_json(path)
    for key in ("digest", "study", "command", "machine"):
        if key not in found:
            raise ValueError(f"{path} is damaged: it has no {key}")
    study = of(found["study"], quick=False)
    if study.digest != found["digest"]:
        raise ValueError(f"{path} was changed after the study began: what is expected is said before")
    return Study(**{**vars(study), "quick": bool(found.get("quick"))})


def result_of(folder: Path, run: Run) -> dict[str, Any] | None:
    """What a run found, if it has ended."""
    path = folder / "runs" / run.folder / RESULT
    return read_json(path) if path.is_file() else None


def rates(folder: Path, study: Study) -> dict[str, float]:
    """The learning rate of each arm whose tuning has ended: the best of its last checks on the validation part."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run in study.tuning():
        result = result_of(folder, run)
        if result is not None:
            value = result["validation"][-1][1]
            bad = value if result["measure"] == "bits" else -value
            found.setdefault(run.arm.label, []).append((bad, run.settings.learning_rate))
    wanted = len(study.tune.get("learning_rate", ()))
    return {label: min(tried)[1] for label, tried in found.items() if len(tried) == wanted}


def conduct(
    folder: Path,
    study: Study,
    *,
    workers: int = 1,
    minutes: float | None = None,
    tell: Tell = lambda done, total, what: None,
) -> Outcome:
    """Carry out what is left of a study.

    Args:
        folder: of `prepare`.
        study: the study.
        workers: processes, each with one thread.
        minutes: to stop after; None for the study's own. What runs then is saved, and goes on the next time.
        tell: is told of progress.

    Raises:
        Busy: another process carries it out.
        ValueError: a run could not be carried out, with its own words.
        ModuleNotFoundError: safetensors is not installed.
        RuntimeError: a worker died; what it did is saved up to a minute before.
    """
    importlib.import_module("safetensors")
    until = time.monotonic() + 60 * (study.minutes if minutes is None else minutes)
    with alone(folder / STUDY):
        sweep(folder)
        return _conduct(folder, study, workers, until, tell)


def _conduct(folder: Path, study: Study, workers: int, until: float, tell: Tell) -> Outcome:
    tuning = study.tuning()
    total = len(tuning) + len(study.arms) * len(study.seeds)
    crew = _Crew(workers)
    try:
        for phase in ("tuning", "comparing"):
            runs = tuning if phase == "tuning" else study.runs(rates(folder, study))
            left = [run for run in runs if result_of(folder, run) is None]
            before = 0 if phase == "tuning" else len(tuning)
            outcome = crew.work(folder, left, until, before + len(runs) - len(left), total, tell)
            if outcome.reason is not None:
                return outcome
        return Outcome(total, total)
    finally:
        crew.end()


@dataclass
class _Crew:
    """Workers, the runs that they have, and what they answer."""

    size: int
    answers: SimpleQueue[tuple[int, str | None]] = field(default_factory=SimpleQueue)
    hands: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def work(self, folder: Path, left: list[Run], until: float, done: int, total: int, tell: Tell) -> Outcome:
        waiting, busy = list(left), dict[int, Run]()
        tell(done, total, "")
        try:
            while waiting or busy:
                if time.monotonic() > until:
                    return Outcome(done, total, "time")
                for number in range(self.size):
                    if waiting and number not in busy:
                        busy[number] = waiting.pop(0)
                        self._give(number, folder, busy[number])
                try:
                    number, line = self.answers.get(timeout=0.2)
                except Empty:
                    continue
                run = busy.pop(number)
                if line is None:
                    code = self.hands[number].wait()
                    why = f"signal {-code}" if code < 0 else f"exit code {code}"
                    raise RuntimeError(f"a worker died ({why}) in {run.folder}; the same command goes on from there")
                error = json.loads(line)["error"]
                if error is not None:
                    raise ValueError(error)
                done += 1
                tell(done, total, run.arm.label)
        except KeyboardInterrupt:
            return Outcome(done, total, "interrupt")
        return Outcome(done, total)

    def _give(self, number: int, folder: Path, run: Run) -> None:
        place = folder / "runs" / run.folder
        if is_fresh(place):
            begin(place, run.settings)
        if number not in self.hands:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            made = subprocess.Popen(
                [sys.executable, "-m", "ropewalk.lab.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us: we ask the workers to stop, and they save
            )
            assert made.stdout is not None
            self.hands[number] = made
            Thread(target=self._listen, args=(number, made.stdout), daemon=True).start()
        stdin = self.hands[number].stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # of a worker that has just died, which its end of the other pipe will tell
            stdin.write(json.dumps(str(place)) + "\n")
            stdin.flush()

    def _listen(self, number: int, stdout: IO[str]) -> None:
        for line in stdout:
            self.answers.put((number, line))
        self.answers.put((number, None))

    def end(self) -> None:
        """Ask all to stop, which they do when they have saved."""
        for hand in self.hands.values():
            with suppress(OSError):
                hand.send_signal(signal.SIGTERM)
        for hand in self.hands.values():
            try:
                hand.wait(timeout=60)
            except subprocess.TimeoutExpired:
                hand.kill()
                hand.wait()
            for pipe in (hand.stdin, hand.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
