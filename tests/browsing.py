"""A real browser for the tests of the explorer: headless Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropewalk.explorer.server import Server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def require_browser() -> None:
    """Skip where there is no browser; in CI there has to be one."""
    if os.environ.get("CI") == "true":
        assert CHROMIUM, "in CI the explorer is tested in a browser: install chromium"
        return
    pytest.importorskip("playwright", reason="the test extra is not installed: pip install 'ropewalk[test]'")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")


@contextmanager
def browser() -> Iterator[Any]:
    """One browser; its pages are made by `Watched`."""
    require_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # as root, as in a container, Chromium has no sandbox
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def serving(given: Sequence[Path] = (), **options: Any) -> Iterator[Server]:
    """The explorer's server, on a free port, in a thread."""
    with Server(given, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def small_gguf(**more: bytes) -> bytes:
    """A small GGUF file by hand."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {
        "block_count": 2,
        "context_length": 4096,
        "embedding_length": 64,
        "attention.head_count": 4,
        "rope.dimension_count": 16,
    }
    entries = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    entries += [text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()]
    tensors = [text("rope_freqs.weight") + struct.pack("<IQIQ", 1, 8, 0, 0)] if more else []
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join([*entries, *tensors])
    return out + bytes(-len(out) % 32) + more.get("factors", b"")


class Watched:
    """A page of which everything is noted that should not be: errors, and requests to anywhere else."""

    def __init__(self, opened: Any, home: str, **options: Any) -> None:
        self.home, self.faults = home, []
        self.context = opened.new_context(**{"viewport": {"width": 1200, "height": 800}, "locale": "en-US", **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.faults.append(f"asked for {request.url}")

    def go(self, place: str) -> Any:
        """Open a place of the explorer, or go on to it, and wait until its picture is there."""
        if self.page.url.startswith(self.home) and self.page.evaluate("location.hash") != place:
            before = self.page.evaluate("ropewalk.updates")
            self.page.evaluate("(place) => { location.hash = place; }", place)
            self.until(f"ropewalk.updates > {before}")
        else:
            self.page.goto("about:blank")
            self.page.goto(self.home + place)
            self.until("globalThis.ropewalk?.updates > 0")
        self.until("!/…$/.test(document.querySelector('.reading').textContent)")
        return self.page

    def until(self, expression: str) -> None:
        """Wait for something to be true; asked from outside, since the page's policy lets nobody evaluate texts."""
        deadline = time.monotonic() + 15
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.02)

    def close(self) -> None:
        """No more, and nothing was wrong."""
        self.context.close()
        assert self.faults == []
