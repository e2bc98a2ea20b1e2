"""What every test starts from: one seed, one thread, and the same examples on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the programs that tests start, too: every core has a test to run
os.environ.setdefault("PYTHONHASHSEED", "0")  # so that processes which share the tests find them in the same order

import pytest
import torch
from hypothesis import HealthCheck, settings

from ropewalk.kernels import cpu

settings.register_profile(
    "stable",
    derandomize=True,  # the same examples in every run, so that a red test is a change of the code
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("stable")

MOST_PROCESSES = 8
"""Each imports torch and transformers, which takes memory."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for every core; but none where only files are named, since starting one takes seconds."""
    if not any(Path(argument.split("::")[0]).is_dir() for argument in config.args):
        return 0
    try:
        return min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on macOS and Windows
        return min(MOST_PROCESSES, os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill memory that nobody has written with NaN (and the largest integer), so that reading it shows."""
    torch.use_deterministic_algorithms(True)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=cpu.INSTRUCTION_SETS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this machine has; none where there are no kernels."""
    wanted = cpu.INSTRUCTION_SETS.index(request.param)
    library = cpu.KERNELS.library
    if library is None or library.ropewalk_isa_found() < wanted:
        pytest.skip(f"there are no kernels for {request.param} here")
    assert library.ropewalk_use_isa(wanted) == wanted
    yield request.param
    library.ropewalk_use_isa(-1)
