"""The shape of the package: what it exports, what it loads, which module may import which, what every file holds."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ropewalk
from ropewalk import ENCODINGS, PositionalEncoding, build

HOME = Path(ropewalk.__file__).parent
FILES = sorted(HOME.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
ANYTHING = None

MAY_IMPORT: dict[str, set[str] | None] = {
    # torch only, or not even that
    "version": set(),
    "language": set(),
    "spectra": set(),
    "sharding": set(),
    "multimodal": set(),
    "kernels": set(),
    "distances": set(),
    "rotation": {"kernels"},
    "positions": {"multimodal", "sharding"},
    "protocol": {"positions"},
    # built on those
    "permutation": {"rotation"},
    "extensions": {"spectra"},
    "bands": {"extensions", "spectra"},
    "angles": {"spectra", "positions", "kernels"},
    "temperature": {"positions", "protocol"},
    "encodings": {"protocol", "positions", "spectra", "angles", "rotation", "extensions", "bands", "distances"},
    "attention": {"protocol", "positions", "rotation"},  # never encodings: it knows hooks, not names
    "cache": {"attention", "positions", "protocol"},
    "static_cache": {"attention", "cache", "positions", "protocol"},
    # what describes and measures
    "measure": {"attention", "encodings", "positions", "protocol"},
    "cards": {"encodings", "protocol", "spectra"},
    "plans": {"bands", "encodings", "extensions", "protocol", "rotation", "spectra", "temperature"},
    "inspection": {"angles", "extensions", "plans", "spectra"},
    "readers": {"bands", "extensions", "plans", "rotation", "spectra", "temperature", "encodings", "protocol"},
    "hf": {
        "angles",
        "attention",
        "extensions",
        "plans",
        "positions",
        "protocol",
        "readers",
        "rotation",
        "spectra",
    },
    # what shows
    "plots": {
        "angles",
        "attention",
        "encodings",
        "extensions",
        "inspection",
        "measure",
        "plans",
        "positions",
        "protocol",
        "spectra",
    },
    "benchmark": {"angles", "attention", "encodings", "hf", "kernels", "positions", "protocol", "rotation", "spectra"},
    "page": {"plots"},
    "lab": {
        "attention",
        "benchmark",
        "cache",
        "encodings",
        "extensions",
        "inspection",
        "page",
        "permutation",
        "plans",
        "plots",
        "positions",
        "protocol",
        "readers",
        "rotation",
        "spectra",
    },
    "demo": {"encodings", "measure", "page", "plots", "positions", "protocol"},
    "explorer": {"lab", "readers"},
    "cli": ANYTHING,
    "__main__": {"cli"},
}
"""Which of our modules each may import besides itself; `language` and `version` are everybody's. None: all."""

MAY_BE_IMPORTED_BY = {
    "click": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"plots", "demo", "cli"},
    "fontTools": {"explorer", "page", "plots"},
    "gguf": {"lab"},
    "safetensors": {"lab"},
    "tokenizers": {"lab"},
    "numpy": {"measure", "plots", "demo", "cli"},
    "transformers": {"benchmark", "hf"},
    "tomli": {"lab"},
    "tensorboard": {"lab"},
    "rotary_embedding_torch": {"benchmark"},
}
"""Other packages that only these may import; torch may be imported by all but `language`, `version` and `__main__`."""


def part(path: Path) -> str:
    """`encodings/rope.py` belongs to `encodings`, `angles.py` is `angles`, and `__init__.py` the package itself."""
    return path.relative_to(HOME).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of all modules imported, wherever they stand in the file, but for those of the type checker only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "ropewalk":
                yield from (f"ropewalk.{alias.name}" for alias in node.names)
            else:
                yield node.module
        yield from imports(node)


# Exports


def test_exported_names_are_those_the_type_checker_sees() -> None:
    block = next(n for n in TREES[HOME / "__init__.py"].body if isinstance(n, ast.If))
    offered = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(ropewalk.__all__) == {*offered, "__version__"}
    for name, module in offered.items():
        assert getattr(importlib.import_module(module), name) is getattr(ropewalk, name)


def test_exported_names_are_sorted() -> None:
    def key(name: str) -> tuple[int, str]:
        """As ruff sorts them: constants, then classes, then functions, each by code point."""
        kind = 0 if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) else 1 if name[0].isupper() else 2
        return kind, name

    assert ropewalk.__all__ == sorted(ropewalk.__all__, key=key)
    assert len(set(ropewalk.__all__)) == len(ropewalk.__all__)
    assert dir(ropewalk) == sorted(ropewalk.__all__)


def test_every_encoding_is_exported() -> None:
    for cls in ENCODINGS:
        assert cls.__name__ in ropewalk.__all__
        assert getattr(ropewalk, cls.__name__) is cls
    assert ropewalk.NoPE is PositionalEncoding


def test_star_import_gives_exactly_these_names() -> None:
    found: dict[str, object] = {}
    exec("from ropewalk import *", found)
    assert set(found) - {"__builtins__"} == set(ropewalk.__all__)


# Imports


def test_every_module_has_said_what_it_may_import() -> None:
    parts = {part(path) for path in FILES} - {"__init__"}
    assert parts == set(MAY_IMPORT), "a new module needs a line in MAY_IMPORT, a removed one none"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HOME)))
def test_imports_are_allowed(path: Path) -> None:
    me = part(path)
    for name in imports(TREES[path]):
        top, _, rest = name.partition(".")
        if top != "ropewalk":
            owners = MAY_BE_IMPORTED_BY.get(top)
            assert owners is None or me in owners, f"{name} is for {owners} only"
            assert top != "torch" or me not in ("language", "version", "__main__", "__init__")
            continue
        other = rest.partition(".")[0]
        assert other != "", "import from the module that defines a name, not from the package"
        assert other != "cli" or me in ("cli", "__main__"), "nothing imports the command line"
        if me != "__init__" and other not in (me, "language", "version") and MAY_IMPORT[me] is not ANYTHING:
            assert other in MAY_IMPORT[me], f"{me} may not import {other}"


def test_the_allowed_imports_have_no_circle() -> None:
    left = {name: set(allowed or ()) for name, allowed in MAY_IMPORT.items()}
    left["cli"] = set(MAY_IMPORT) - {"cli", "__main__"}
    while left:
        free = {name for name, wanted in left.items() if not wanted & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {name: wanted for name, wanted in left.items() if name not in free}


def test_kernels_are_imported_when_they_are_called_and_import_nothing_of_ours() -> None:
    for path in FILES:
        if part(path) != "kernels" and part(path) != "cli":
            at_import = [n for n in TREES[path].body if isinstance(n, (ast.Import, ast.ImportFrom))]
            found = {m for node in at_import for m in imports(ast.Module([node], []))}
            assert not [m for m in found if m.startswith("ropewalk.kernels")], path.name


def test_encodings_do_not_import_one_another() -> None:
    for path in (HOME / "encodings").glob("*.py"):
        others = {n for n in imports(TREES[path]) if n.startswith("ropewalk.encodings.")}
        if path.stem == "__init__":
            assert others == {cls.__module__ for cls in ENCODINGS} - {"ropewalk.protocol"}
        else:
            assert others == ({"ropewalk.encodings.rope"} if path.stem == "xpos" else set())


def test_other_packages_are_declared() -> None:
    declared = (HOME.parents[1] / "pyproject.toml").read_text(encoding="utf-8").lower()
    for path in FILES:
        for name in imports(TREES[path]):
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "ropewalk":
                # fonttools comes with matplotlib
                assert f'"{top.lower()}' in declared or top == "fontTools", f"{path.name} imports {top}"


HEAVY = ["torch", "numpy", "matplotlib", "triton", "transformers", "click", "rich", "gguf", "onnx", "safetensors"]


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = fresh(f"import sys, ropewalk; dir(ropewalk); print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_using_it_loads_torch_and_neither_plots_nor_kernels_nor_the_command_line() -> None:
    loaded = fresh(
        "import sys, ropewalk; [getattr(ropewalk, n) for n in ropewalk.__all__]; ropewalk.RoPE(8).query("
        "__import__('torch').ones(2, 8), [0, 1]);"
        "print([m for m in sys.modules if m.split('.')[0] in ('matplotlib', 'triton', 'transformers', 'click', 'rich')"
        " or m.startswith(('ropewalk.cli', 'ropewalk.plots', 'ropewalk.demo'))])"
    )
    assert loaded.strip() == "[]"


def test_help_loads_no_torch() -> None:
    loaded = fresh(
        "import sys\nfrom ropewalk.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'triton', 'transformers') if m in sys.modules])"
    )
    assert loaded.splitlines()[-1] == "[]"


# What every file holds


def public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes of a module, and methods of its classes, that have no leading underscore."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HOME)))
def test_everything_public_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(TREES[path]), "a module begins by saying what it is"
    for node in public(TREES[path]):
        assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"


@pytest.mark.parametrize("cls", ENCODINGS, ids=lambda c: c.name)
def test_every_encoding_is_a_file_that_tells_the_whole_story(cls: type[PositionalEncoding]) -> None:
    text = inspect.getdoc(cls) or ""
    assert ">>>" in text, "an example that runs"
    assert len(cls.formula) > 8
    assert cls.paper.title
    assert cls.paper.authors
    assert cls.paper.year > 2000
    assert cls.idea["en"]
    assert re.search("[ぁ-ん]", cls.idea["ja"])
    if cls is PositionalEncoding:
        return
    for heading in ("Formula: ", "Source: ", "Args:\n", "Raises:\n    ValueError: "):
        assert heading in text, f"{cls.__name__} has no {heading.strip()}"
    if cls.paper.arxiv:
        assert cls.paper.arxiv in text
    tree = TREES[HOME / "encodings" / f"{cls.name}.py"]
    assert [n.name for n in tree.body if isinstance(n, ast.ClassDef)] == [cls.__name__]
    assert "paper" in vars(cls), "its own paper, not the base class's"
    documented = re.findall(r"^    (\w+): ", text.split("Args:\n")[1].split("\n\n")[0], re.M)
    assert documented == list(cls.parameters_of_constructor())


@pytest.mark.parametrize("cls", ENCODINGS, ids=lambda c: c.name)
def test_every_option_is_an_attribute_and_is_shown(cls: type[PositionalEncoding]) -> None:
    encoding = build(cls.name, dim=8, heads=2, head_dim=4)
    for name in cls.parameters_of_constructor():
        assert hasattr(encoding, name)
        assert f"{name}={getattr(encoding, name)!r}" in repr(encoding)
    keywords = [p for n, p in cls.parameters_of_constructor().items() if n not in ("dim", "heads", "head_dim")]
    assert all(p.kind is p.KEYWORD_ONLY for p in keywords)


def test_options_have_one_name_everywhere() -> None:
    known = {
        *("dim", "heads", "head_dim", "base", "layout", "rotary_dim", "place", "extension", "at_length", "precision"),
        "impl",
        *("length", "clip", "bidirectional", "std", "offset", "order", "ladder", "embedding_scale", "bands"),
        *("buckets", "max_distance", "kernel", "width", "threshold", "scale_base", "reference"),
    }
    used = {name for cls in ENCODINGS for name in cls.parameters_of_constructor()}
    assert used == known, "a new option is one that no existing word names"
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                assert "theta" not in node.arg or part(path) in ("readers", "cli"), f"{path.name}: say base or angle"


def test_encodings_hold_no_table() -> None:
    for cls in ENCODINGS:
        encoding = build(cls.name, dim=8, heads=2, head_dim=4)
        for module in encoding.modules():
            assert not module._buffers
            assert not [n for n, v in vars(module).items() if isinstance(v, torch.Tensor)]
