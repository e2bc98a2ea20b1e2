"""On what a benchmark ran: without it, its numbers say nothing."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ropewalk.version import __version__

PACKAGES = ("torch", "transformers", "rotary-embedding-torch", "liger-kernel")


def machine() -> dict[str, Any]:
    """Processor, cores, instruction sets, memory pages, versions.

    `kernels` is the instruction set that ropewalk's kernels use, `torch_kernels` torch's own; `pages` the system's
    policy for huge pages, on which the cost of fresh memory depends.
    """
    from ropewalk.kernels import cpu

    return {
        "processor": processor(),
        "cores": cores(),
        "memory_gib": memory(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "pages": pages(),
        "kernels": cpu.KERNELS.isa,
        "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "ropewalk": __version__,
        **{name: version(name) for name in PACKAGES},
    }


def cores() -> int:
    """How many this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def processor() -> str:
    """The model's name, as far as the system tells it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def memory() -> int | None:
    """In GiB, rounded."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None


def free_memory(device: str = "cpu") -> int | None:
    """Bytes that could be had now without taking them from others; None: the system does not tell."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def pages() -> str | None:
    """Linux's policy for transparent huge pages: `always`, `madvise` or `never`."""
    found = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return found[1] if found else None


def version(package: str) -> str | None:
    """Of an installed package, else None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
