"""How much memory a call needs beyond its inputs and results, measured in a process that does nothing else.

There the C library is told to give large blocks back as soon as they are free, so that what is resident is what is in
use. Linux keeps the highest amount, and forgets it when asked: what the call adds to the amount before it is its own,
buffers of kernels and libraries included. Of that the results are subtracted, since everybody has those.

The process also bears what a contender may do to it: run out of memory, fail, or never end.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.benchmark.attention.cell import Cell, Work
from ropewalk.benchmark.attention.ways import call, ways
from ropewalk.benchmark.machine import free_memory

LIMIT = 60.0
"""Seconds that others may take for one call, compiling included; ours and plain attention are always measured."""

SMALL = 512
"""Tokens with which libraries are loaded and the needs of a matrix are foretold."""

Verdict = dict[str, Any]
"""`extra_bytes`, None where the system does not tell; or `skipped`, the reason, with numbers."""


class Trial:
    """Another process that tries contenders. It starts with the first and ends with the `with`."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Trial:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with suppress(OSError):
                self._pipe.send(None)
            self._process.join(5)
        self._end()

    def __call__(self, cell: Cell, name: str) -> Verdict:
        """Try one contender."""
        fresh = self._process is None
        if fresh:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            if fresh:
                self._pipe.recv()  # now it has loaded all
            self._pipe.send((cell, name))
            if not self._pipe.poll(None if name in ("plain", "attend") else LIMIT):
                self._end()
                return {"skipped": "time", "limit_seconds": LIMIT}
            verdict: Verdict = self._pipe.recv()
        except (EOFError, OSError):
            self._end()
            return {"skipped": "failed", "why": "the process was ended, which systems do where memory runs out"}
        return verdict

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = None


def serve(pipe: Connection) -> None:
    """Of the other process: answer until nobody asks."""
    with suppress(AttributeError, OSError):  # not in every C library
        ctypes.CDLL(None).mallopt(-3, 2**17)  # M_MMAP_THRESHOLD: from here on blocks are the system's, and go back
    pipe.send("ready")
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            if (asked := pipe.recv()) is None:
                return
            cell, name = asked
            torch.set_num_threads(cell.threads)
            try:
                verdict = tried(cell, name)
            except Exception as error:
                said = next(iter(str(error).strip().splitlines()), "")
                verdict = {"skipped": "failed", "why": f"{type(error).__name__}: {said}"}
            pipe.send(verdict)


def tried(cell: Cell, name: str) -> Verdict:
    """Run one contender, small before large, unless its matrix would not fit."""
    if name == "flex":
        return {"extra_bytes": _extra(cell, name, calls=2)}  # the first call compiles
    small = replace(cell, length=min(cell.length, SMALL))
    _extra(small, name)  # loads libraries
    if name == "materialised":
        start = time.perf_counter()
        needs = _extra(small, name)
        times = (cell.length / small.length) ** 2
        seconds, free = (time.perf_counter() - start) * times, free_memory(cell.device)
        if needs is not None and free is not None and needs * times > free:
            return {"skipped": "memory", "needs_bytes": int(needs * times), "free_bytes": free}
        if seconds > LIMIT:
            return {"skipped": "time", "limit_seconds": LIMIT}
    return {"extra_bytes": _extra(cell, name)}


def _extra(cell: Cell, name: str, calls: int = 1) -> int | None:
    """Of the last of some calls."""
    work = Work.of(cell)
    measured = call(cell, work, ways(cell, work)[name])
    for _ in range(calls - 1):
        measured()
    return extra(measured, cell.device)


def extra(measured: Callable[[], tuple[Tensor, ...]], device: str = "cpu") -> int | None:
    """The highest number of bytes during one call, less those before it and those of its results; None: unknown."""
    before = _reset(device)
    results = measured()
    highest = _highest(device)
    if before is None or highest is None:
        return None
    return max(0, highest - before - sum(t.numel() * t.element_size() for t in results))


def _reset(device: str) -> int | None:
    """Forget the highest amount; gives the present one."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _status("VmRSS")


def _highest(device: str) -> int | None:
    return int(torch.cuda.max_memory_allocated()) if device == "cuda" else _status("VmHWM")


def _status(field: str) -> int | None:
    try:
        found = re.search(
            rf"^{field}:\s*(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE
        )
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
