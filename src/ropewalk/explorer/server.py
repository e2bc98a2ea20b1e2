"""The local server: this computer only, one page, a handful of files, a small JSON API."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ropewalk.explorer import page
from ropewalk.explorer.api import MOST_BYTES, Api, RefusedError
from ropewalk.language import Language

HOST = "127.0.0.1"
_LOG = logging.getLogger("ropewalk.explorer")


def names(port: int) -> set[str]:
    """What a browser may call this server: the port is left out where it is HTTP's own."""
    return {f"{name}{end}" for name in (HOST, "localhost") for end in (f":{port}", *([""] if port == 80 else []))}


class Server(ThreadingHTTPServer):
    """Serves the explorer until it is shut down.

    Only requests that name this server as their host, and that come from its own page where they say where they come
    from, are answered: a page of somebody else's that is open in the same browser can neither read models nor hand in
    files, also not under a name of its own that it lets point here.

    Args:
        given: configurations, GGUF files and results that the page may show.
        language: of the page, until the reader chooses another.
        port: 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, given: Sequence[Path] = (), *, language: Language = "en", port: int = 0) -> None:
        self.api, self.language, self.files = Api(given), language, page.files()
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves early is no error worth a word."""
        _LOG.debug("a request ended early", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "ropewalk", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        if not self._from_here():
            return
        path = urlsplit(self.path).path
        if path == "/":
            self._page()
        elif path.startswith("/api/"):
            self._answer(lambda: self.server.api.get(path.removeprefix("/api/")))
        elif path in self.server.files:
            file = self.server.files[path]
            kind = page.TYPES[file.suffix]
            self._send(200, file.read_bytes(), kind if kind.startswith("font") else f"{kind}; charset=utf-8")
        else:
            self._refuse(404, "there is no such page")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        if not self._from_here():
            return
        parts = urlsplit(self.path)
        if parts.path != "/api/inspect":
            self._refuse(404, "there is no such page")
            return
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,19}", length) or "Transfer-Encoding" in self.headers:
            self._refuse(411, "the request does not say how long it is")
        elif int(length) > MOST_BYTES:
            self._refuse(413, f"the file has {length} bytes; at most {MOST_BYTES} are read")
        else:
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                self._refuse(400, f"the request ended after {len(body)} of {length} bytes")
                return
            self._answer(lambda: self.server.api.inspect(body, asked.get("name", ""), asked.get("size", "")))

    def _from_here(self) -> bool:
        own = names(self.server.server_address[1])
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        foreign = origin is not None and origin not in {f"http://{name}" for name in own}
        # another site may link to the page, but not take answers
        taken = self.path.startswith("/api/") and site not in ("same-origin", "none")
        if self.headers.get("Host") not in own:
            self._refuse(403, "this server answers under its own name only")
        elif foreign or taken:
            self._refuse(403, "this server answers its own page only")
        else:
            return True
        return False

    def _page(self) -> None:
        html = page.served(self.server.language)
        self._send(200, html.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": page.policy(html)})

    def _answer(self, work: Any) -> None:
        try:
            found = work()
        except RefusedError as error:
            self._refuse(error.status, str(error))
            return
        self._json(200, found)

    def _refuse(self, status: int, why: str) -> None:
        self.close_connection = True  # what else the request holds is not read
        self._json(status, {"error": why})

    def _json(self, status: int, document: Any) -> None:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        self._send(status, text.encode("utf-8", "replace"), "application/json; charset=utf-8")

    def _send(self, status: int, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        always = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        if self.close_connection:
            always["Connection"] = "close"
        for name, value in {**always, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _LOG.debug(format, *args)
