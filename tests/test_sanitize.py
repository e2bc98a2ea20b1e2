"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, by a small program of their own, without torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk

pytestmark = pytest.mark.slow

KERNELS = Path(ropewalk.__file__).parent / "kernels"
DRIVER = Path(__file__).parent / "sanitize" / "driver.cpp"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c++17", "-O1", "-g1", "-w", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
"""Without the search for leaks, which needs rights that a container may not give; the kernels allocate nothing."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, where there is a C++ compiler with both sanitizers whose programs run."""
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None or sys.platform == "win32":
        pytest.skip("there is no C++ compiler here")
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "nothing.cpp").write_text("int main() {}\n")
    if subprocess.run(
        [compiler, *SANITIZERS, "nothing.cpp", "-o", "nothing"], cwd=folder, capture_output=True
    ).returncode:
        pytest.skip(f"{compiler} has no sanitizers")
    if subprocess.run([folder / "nothing"], capture_output=True, env=ENVIRONMENT).returncode:
        pytest.skip("programs with sanitizers do not run here")
    sources = [f"-I{KERNELS}", DRIVER, KERNELS / "rotate.cpp"]
    built = subprocess.run(
        [compiler, *FLAGS, *SANITIZERS, *sources, "-o", folder / "driver"], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder / "driver"


def test_no_kernel_reads_or_writes_outside_of_its_rows(driver: Path) -> None:
    ran = subprocess.run([driver], capture_output=True, text=True, env=ENVIRONMENT)
    assert ran.returncode == 0, ran.stderr
    assert "cases on" in ran.stdout


def test_a_token_too_many_is_seen(driver: Path) -> None:
    ran = subprocess.run([driver, "too many"], capture_output=True, text=True, env=ENVIRONMENT)
    assert ran.returncode != 0
    assert "heap-buffer-overflow" in ran.stderr
