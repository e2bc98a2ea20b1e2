"""Builds the C++ kernels, which need a compiler and nothing else; without one the package installs all the same.

Everything else about the package stands in pyproject.toml.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

KERNELS = "src/ropewalk/kernels"


class FreshBuild(build):
    """Builds in a new folder each time, so that nothing left over in `build/` gets into a wheel."""

    def initialize_options(self) -> None:
        """As usual, but for the folder."""
        super().initialize_options()
        self.build_base = tempfile.mkdtemp(prefix="ropewalk-build-")
        atexit.register(shutil.rmtree, self.build_base, ignore_errors=True)


class PlainLibrary(build_ext):
    """The library is no Python module: one file serves every Python, and its name says so."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without the version of Python."""
        return f"{fullname.replace('.', '/')}.{'pyd' if sys.platform == 'win32' else 'so'}"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None: Python does not import it."""
        return []


class AnyPython(bdist_wheel):
    """The wheel depends on the platform, not on the version of Python."""

    def finalize_options(self) -> None:
        """As usual, and platform-dependent."""
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """Any Python, this platform."""
        return "py3", "none", super().get_tag()[2]


flags = ["-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
setup(
    ext_modules=[
        Extension(
            "ropewalk.kernels._rotate",
            [f"{KERNELS}/{name}.cpp" for name in ("rotate", "torch_ops", "short_calls")],
            depends=[f"{KERNELS}/{name}.h" for name in ("rotate", "vectors", "rows", "table", "tensors")],
            extra_compile_args=["/std:c++17", "/O2"] if sys.platform == "win32" else flags,
            extra_link_args=["-s"] if sys.platform == "linux" else [],
            libraries=["dl"] if sys.platform == "linux" else [],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build": FreshBuild, "build_ext": PlainLibrary, "bdist_wheel": AnyPython},
)
