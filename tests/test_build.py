"""What is shipped: a source archive with all that the kernels are built from, and a wheel from it that holds them."""

import ctypes
import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
KERNELS = "src/ropewalk/kernels"


def has_setuptools() -> bool:
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not (HOME / "setup.py").exists() or not has_setuptools(), reason="building needs the repository and setuptools 77"
)


def build(what: str, folder: Path, out: Path) -> Path:
    """An archive, by the same call that pip makes."""
    program = f"from setuptools import build_meta; build_meta.build_{what}({str(out)!r})"
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (archive,) = out.iterdir()
    return archive


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, packed from a copy of the repository and unpacked again."""
    folder = tmp_path_factory.mktemp("build")
    built = shutil.ignore_patterns("__pycache__", "*.egg-info", "_rotate*")
    shutil.copytree(HOME / "src", folder / "copy" / "src", ignore=built)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HOME / name, folder / "copy")
    archive = build("sdist", folder / "copy", folder / "sdist")
    with tarfile.open(archive) as tar:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, **safe)
    return folder / archive.name.removesuffix(".tar.gz")


def test_the_source_archive_holds_every_file_of_the_kernels(unpacked):
    files = {p.name for p in (HOME / KERNELS).iterdir() if p.suffix in (".py", ".cpp", ".h")}
    assert len(files) > 9
    assert files == {p.name for p in (unpacked / KERNELS).iterdir()}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("c++") and not shutil.which("g++"), reason="there is no C++ compiler here")
def test_a_wheel_from_it_holds_the_kernels_and_nothing_left_over(unpacked, tmp_path):
    for name in ("lib", f"lib.{sys.platform}-x86_64-cpython-311"):
        stale = unpacked / "build" / name / "ropewalk"
        stale.mkdir(parents=True)
        (stale / "stale.py").write_text("1 / 0\n")
    wheel = build("wheel", unpacked, tmp_path / "wheel")
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (library,) = [name for name in names if name.startswith("ropewalk/kernels/_rotate")]
        archive.extract(library, tmp_path)
    assert not [name for name in names if "stale" in name or name.startswith("tests")]
    assert {"ropewalk/py.typed", "ropewalk/kernels/cpu.py"} <= set(names)
    assert ctypes.CDLL(str(tmp_path / library)).ropewalk_isa_found() >= 0
