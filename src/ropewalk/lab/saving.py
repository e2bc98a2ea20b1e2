"""Files that are whole or not there: checkpoints in safetensors, JSON, and lines that a resumed run takes back.

A checkpoint is one file: parameters and the optimiser's state by name, and in its header the step, the settings and a
checksum over all of it. It is written beside its place, forced to the disk, then moved there, so that whoever is killed
at whatever moment leaves the last one or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCHEMA = "ropewalk.checkpoint/1"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]
    """Step, settings and what else is not a tensor."""

    def save(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
            ModuleNotFoundError: safetensors is not installed.
        """
        from safetensors.torch import save

        tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
        about = json.dumps(self.about, sort_keys=True, allow_nan=False)
        header = {"schema": SCHEMA, "about": about, "sha256": _checksum(tensors, about)}
        write(path, save(tensors, metadata=header))

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read and check it.

        Raises:
            ValueError: it is damaged, or no checkpoint of ropewalk.
            OSError: it cannot be read.
            ModuleNotFoundError: safetensors is not installed.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        data = path.read_bytes()
        try:
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
            schema, about, checksum = header["schema"], header["about"], header["sha256"]
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged, or no checkpoint of ropewalk: {error}") from error
        if schema != SCHEMA:
            raise ValueError(f"{path} is a checkpoint of another kind ({schema}); this version reads {SCHEMA}")
        if checksum != _checksum(tensors, about):
            raise ValueError(f"{path} is damaged: its checksum does not fit its contents")
        return cls(tensors, json.loads(about))


def _checksum(tensors: dict[str, Tensor], about: str) -> str:
    found = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        t = tensors[name]
        found.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        found.update(bytes(t.reshape(-1).view(torch.uint8).numpy()) if t.numel() else b"")
    return found.hexdigest()


def write(path: Path, data: bytes) -> None:
    """Write a file whole: beside its place, to the disk, then moved.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # some systems do not open folders; the file itself is on the disk already
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_fresh(folder: Path) -> bool:
    """Whether nothing is in that place, or nothing but what a writer left who was killed."""
    return not folder.exists() or (folder.is_dir() and all(p.match(".*.part") for p in folder.iterdir()))


def sweep(folder: Path) -> None:
    """Take away what writers left who were killed; for whoever has the folder for itself."""
    for part in folder.glob(".*.part"):
        part.unlink()


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write one JSON document whole."""
    write(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON document.

    Raises:
        ValueError: it is damaged, or not a document.
        OSError: it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no document")
    return found


class Busy(ValueError):  # noqa: N818  # as Stopped: it says what is so
    """Another process is at work in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another process is at work in {folder}; wait for it to end")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While inside, no other process has this file in the same way.

    Raises:
        Busy: another has it.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        if not _lock(file.fileno()):
            raise Busy(path.parent)
        yield


class Lines:
    """A file of JSON lines that grows, and can be taken back to where a checkpoint stood. One process has it at a time.

    Raises:
        Busy: another process has it.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115  # open as long as the run
        if not _lock(self._file.fileno()):
            self._file.close()
            raise Busy(path.parent)

    def keep(self, size: int) -> None:
        """Take back all but the first so many bytes.

        Raises:
            ValueError: lines that the checkpoint counts on are gone.
        """
        there = os.fstat(self._file.fileno()).st_size
        if there < size:
            raise ValueError(
                f"{self.path} has lost lines: {there} bytes are there, the checkpoint was made after {size}"
            )
        self._file.truncate(size)

    def add(self, line: dict[str, Any]) -> None:
        """One more, for others to see at once."""
        self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())
        self._file.flush()

    def settle(self) -> int:
        """Force everything to the disk, and give its size."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def _lock(handle: int) -> bool:
    """For as long as the file is open; True also where there are no such locks."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have none
        return True
    return True
