"""`ropewalk doctor`: what is installed, and what this machine can do."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata, resources
from typing import Any

import click

from ropewalk.cli.base import Command, language, say
from ropewalk.cli.options import json_option, lang_option
from ropewalk.cli.text import cells, pad
from ropewalk.version import __version__

REQUIRED = ("torch", "numpy", "click", "rich")
EXTRAS = {
    "matplotlib": "plot",
    "transformers": "hf",
    "gguf": "gguf",
    "onnxruntime": "onnx",
    "triton": "triton",
    "rotary-embedding-torch": "bench",
}
"""Packages that a feature needs, and the extra that brings each."""


@click.command(
    "doctor",
    cls=Command,
    text=(
        "What is installed, and what this machine can do.\n"
        "Versions, threads, devices, kernels, font and language: the first thing to look at when something is wrong, "
        "and to send with a bug report.",
        "インストール状況と、この計算機でできることを表示します。\n"
        "バージョン、スレッド、デバイス、カーネル、フォント、言語です。困ったときに最初に確かめ、"
        "不具合の報告に添えてください。",
    ),
    examples=("ropewalk doctor", "ropewalk doctor --json"),
)
@json_option
@lang_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Look around and report; exit 1 if something that every command needs is missing."""
    import json

    found = examine()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        lines = report(found)
        width = max(cells(heading) for heading, _ in lines) + 2
        for heading, text in lines:
            click.echo(pad(heading, width) + text)
    if found["missing"]:
        names = ", ".join(found["missing"])
        click.echo(say(f"Error: missing: {names}", f"エラー: 見つかりません: {names}"), err=True)
        ctx.exit(1)


def examine() -> dict[str, Any]:
    """All that is printed, as JSON has it."""
    packages = {name: _version(name) for name in (*REQUIRED, *EXTRAS)}
    font = next((f for f in (resources.files("ropewalk") / "fonts").iterdir() if f.name.endswith(".ttf")), None)
    missing = [name for name in REQUIRED if packages[name] is None]
    try:
        torch = _torch()
    except Exception as error:  # whatever a broken installation raises is the finding
        torch = {"error": f"{type(error).__name__}: {error}"}
        missing.append("torch") if "torch" not in missing else None
    return {
        "schema": "ropewalk.doctor/1",
        "ropewalk": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "torch": torch,
        **_kernels(),
        "font": None if font is None else str(font),
        "language": language(),
        "locale": {name: os.environ.get(name, "") for name in ("LC_ALL", "LC_MESSAGES", "LANG")},
        "encoding": sys.stdout.encoding,
        "missing": missing + ([] if font else ["fonts"]),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> dict[str, Any]:
    import torch

    devices = ["cpu"]
    devices += [f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "devices": devices}


def _kernels() -> dict[str, Any]:
    """Which kernels were found, and what the rotation therefore is; without any, why."""
    try:
        from ropewalk.kernels import cpu
    except Exception as error:  # without torch there is nothing to look for
        return {"kernels": [], "rotation": "eager", "built": None, "no_kernels": f"{type(error).__name__}: {error}"}
    reason = cpu.KERNELS.reason
    if cpu.KERNELS.library is None:
        return {"kernels": [], "rotation": "eager", "built": reason != cpu.NOT_BUILT, "no_kernels": reason}
    return {"kernels": [f"cpu {cpu.KERNELS.isa}"], "rotation": "native", "built": True, "no_kernels": None}


def report(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people."""
    absent = say("not installed", "インストールされていません")
    lines = [
        ("ropewalk", found["ropewalk"]),
        ("Python", f"{found['python']}, {found['system']}"),
    ]
    for name, version in found["packages"].items():
        hint = f": pip install 'ropewalk[{EXTRAS[name]}]'" if name in EXTRAS else f": pip install {name}"
        lines.append((name, version or absent + hint))
    torch = found["torch"]
    if "error" in torch:
        lines.append((say("devices", "デバイス"), torch["error"]))
    else:
        threads = say(
            f"{torch['threads']} (the machine has {torch['cores']} cores)",
            f"{torch['threads']}（コア数は {torch['cores']}）",
        )
        lines += [(say("threads", "スレッド"), threads), (say("devices", "デバイス"), ", ".join(torch["devices"]))]
    why = found["no_kernels"]
    why_ja = "ビルドされていません。インストール時に C++ コンパイラがありましたか？" if found["built"] is False else why
    kernels = ", ".join(found["kernels"]) or say(
        f"none; rotation runs as plain PyTorch (eager): {why}",
        f"なし。回転は通常の PyTorch の演算（eager）で行います: {why_ja}",
    )
    locale = " ".join(f"{name}={value}" for name, value in found["locale"].items() if value)
    lines += [
        (say("kernels", "カーネル"), kernels),
        (say("Japanese font", "日本語フォント"), found["font"] or absent),
        (say("language", "言語"), say("English", "日本語") + (f" ({locale})" if locale else "")),
        (say("output", "出力"), found["encoding"]),
    ]
    return lines
