"""What the page asks of Python: models read from configurations and GGUF files, and results of the lab."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.explorer.models import KNOWN

if TYPE_CHECKING:
    from ropewalk.plans import RotaryPlan

MOST_BYTES = 16 << 20
"""Of a file that is handed in, or of a result that is shown."""


class RefusedError(Exception):
    """An answer that is none: a status of HTTP, and one line that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(" ".join(why.split())[:600])
        self.status = status


class Api:
    """Answers about the models that are known here, and about the files that were given; never about other paths.

    Args:
        given: configurations, folders or GGUF files of models, JSON files of results, and folders of studies, sorted
            out by what they hold.
    """

    def __init__(self, given: Sequence[Path] = ()) -> None:
        self.models = [path for path in given if not _is_result(path) and not _is_study(path)]
        self.results = [path for path in given if _is_result(path) or _is_study(path)]

    def get(self, name: str) -> Any:
        """`models` or `results`.

        Raises:
            RefusedError: another name, or a given file that can no longer be read.
        """
        if name == "models":
            return [*(self._given(path) for path in self.models), *known()]
        if name == "results":
            return [
                {"name": path.resolve().name, "result": _of_study(path) if _is_study(path) else _load(path)}
                for path in self.results
            ]
        raise RefusedError(404, "there is no such answer")

    def inspect(self, body: bytes, name: str, size: str = "") -> Any:
        """Read a configuration or the beginning of a GGUF file.

        Args:
            body: the file, or as much of it as was sent.
            name: what the user calls it; used in messages only.
            size: of the whole file in bytes, as text.

        Raises:
            RefusedError: it cannot be read.
        """
        from ropewalk.readers import read

        suffix = ".gguf" if body[:4] == b"GGUF" else ".json"
        with tempfile.TemporaryDirectory(prefix="ropewalk-") as folder:
            path = Path(folder) / f"file{suffix}"
            path.write_bytes(body)
            try:
                plan = read(path)
            except (ValueError, ArithmeticError) as error:
                why = str(error).replace(str(path), _printable(name) or "the file")
                if size.isdecimal() and int(size) > len(body) and "ends" in why:
                    why = (
                        f"{_printable(name)}: the first {len(body)} bytes, which the page sends, are not enough; "
                        "give the file to the command instead: ropewalk explore FILE"
                    )
                raise RefusedError(422, why) from error
        return _document(plan)

    def _given(self, path: Path) -> dict[str, Any]:
        from ropewalk.readers import read

        try:
            return {"name": path.name, "plan": _document(read(path))}
        except (ValueError, ArithmeticError) as error:
            raise RefusedError(422, str(error)) from error


def known() -> list[dict[str, Any]]:
    """The models that ropewalk brings along, read like any other."""
    from ropewalk.readers import read

    return [{"name": name, "plan": _document(read(config))} for name, config in KNOWN.items()]


def _document(plan: RotaryPlan) -> dict[str, Any]:
    """`ropewalk.inspect/1`, without what the page computes itself."""
    try:
        document = plan.json()
    except (ValueError, ArithmeticError) as error:
        raise RefusedError(422, str(error)) from error
    if not any(layer["inv_freq"] for layer in document["layers"]):
        document["layers"] = document["layers"][:1]
    return document


def _is_result(path: Path) -> bool:
    """A JSON file that ropewalk wrote, other than what `inspect` wrote."""
    if not path.is_file() or path.suffix.lower() != ".json" or path.stat().st_size > MOST_BYTES:
        return False
    try:
        schema = json.loads(path.read_text(encoding="utf-8")).get("schema", "")
    except (ValueError, AttributeError, OSError, RecursionError):
        return False
    return isinstance(schema, str) and schema.startswith("ropewalk.")


def _is_study(path: Path) -> bool:
    return (path / "study.json").is_file()


def _of_study(folder: Path) -> Any:
    """What its runs have found so far.

    Links that lead out of the folder are not followed: a study from somebody else, exported and handed on, must not
    carry files of this computer with it.
    """
    inside = folder.resolve()
    for path in (folder / "study.json", *folder.glob("runs/*/*.json")):
        if not path.resolve().is_relative_to(inside):
            raise RefusedError(422, f"{path} is a link that leads out of the study")
    try:
        from ropewalk.lab.conduct import study_in
        from ropewalk.lab.findings import document

        return document(folder, study_in(folder))
    except ModuleNotFoundError as error:
        raise RefusedError(422, f"a study needs {error.name}: pip install 'ropewalk[lab]'") from error
    except (OSError, ValueError) as error:
        raise RefusedError(422, str(error)) from error


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError as error:
        raise RefusedError(422, f"{path.name} cannot be read: it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise RefusedError(422, f"{path.name} cannot be read: {error}") from error


def _finite(text: str) -> float | None:
    """A browser's JSON has no infinity, by whichever spelling."""
    value = float(text)
    return value if math.isfinite(value) else None


def _printable(name: str) -> str:
    return "".join(c for c in name if c.isprintable())[:80]
