"""The explorer's server, its API and the exported file, without a browser: who is answered, and who is not."""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from browsing import serving, small_gguf
from ropewalk.cli import main
from ropewalk.explorer import page
from ropewalk.explorer.api import MOST_BYTES, Api, RefusedError, known
from ropewalk.explorer.export import standalone, write
from ropewalk.explorer.models import KNOWN
from ropewalk.explorer.server import Server, names
from ropewalk.readers import read

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5}
EXTENDED = {"schema": "ropewalk.extend/1", "length": 8, "buckets": [[0, 4], [4, 8]], "tries": []}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


def ask(server: Server, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Any:
    """Status, headers and body of an answer; `Host` and others may be forged."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in named)
    if body is not None and "Content-Length" not in named:
        named["Content-Length"] = str(len(body))
    for name, value in named.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    return answer.status, answer.headers, found


def error(answer: Any) -> tuple[int, str]:
    status, _, body = answer
    return status, json.loads(body)["error"]


# Who is answered


def test_the_page_and_its_files(server: Server) -> None:
    status, headers, body = ask(server, "/")
    assert status == 200
    html = body.decode()
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert not re.search(r"https?://", html)
    wanted = re.findall(r'(?:src|href)="(static/[^"]+)"', html)
    assert len(wanted) == 3
    for path in [*(f"/{name}" for name in wanted), *server.files]:
        status, headers, body = ask(server, path)
        assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert int(headers["Content-Length"]) == len(body) > 0
    status, headers, body = ask(server, "/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) == len(html.encode())


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/api/models"), ("POST", "/api/inspect")])
def test_another_host_is_refused(server: Server, host: str, method: str, path: str) -> None:
    """A page elsewhere whose name leads here (DNS rebinding) gets nothing."""
    found = error(ask(server, path, method=method, body=b"{}" if method == "POST" else None, Host=host))
    assert found == (403, "this server answers under its own name only")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1:{port}",
        "null",
        "",
        "127.0.0.1:{port}",
        "http://localhost",
        "http://127.0.0.1:{port}0",
    ],
)
def test_another_origin_is_refused(server: Server, origin: str) -> None:
    origin = origin.format(port=server.server_address[1])
    for method, path in (("POST", "/api/inspect"), ("GET", "/api/results")):
        found = error(ask(server, path, method=method, body=b"{}" if method == "POST" else None, Origin=origin))
        assert found == (403, "this server answers its own page only")


def test_another_site_cannot_take_answers_but_may_link_to_the_page(server: Server) -> None:
    for site in ("cross-site", "same-site"):
        assert error(ask(server, "/api/models", Sec_Fetch_Site=site)) == (403, "this server answers its own page only")
        assert ask(server, "/", Sec_Fetch_Site=site)[0] == 200
    for site in ("same-origin", "none"):
        assert ask(server, "/api/results", Sec_Fetch_Site=site)[0] == 200


def test_the_own_names_are_answered(server: Server) -> None:
    port = server.server_address[1]
    for name in ("127.0.0.1", "localhost"):
        assert ask(server, "/api/results", Host=f"{name}:{port}", Origin=f"http://{name}:{port}")[0] == 200
    assert "Access-Control-Allow-Origin" not in ask(server, "/api/results")[1]


def test_a_browser_leaves_out_the_port_of_http_itself() -> None:
    assert names(8000) == {"127.0.0.1:8000", "localhost:8000"}
    assert names(80) == {"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80"}


def test_no_other_computer_can_reach_it(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../api.py",
        "/static/%2e%2e/api.py",
        "/../../etc/passwd",
        "/static//etc/passwd",
        "/static/index.html",
        "/static/",
        "/api/",
        "/api/../models",
        "/api/inspect",
        "/font.ttf/..",
        "//etc/passwd",
        "/favicon.ico",
    ],
)
def test_paths_outside_what_was_given_are_refused(server: Server, path: str) -> None:
    assert error(ask(server, path))[0] == 404
    assert error(ask(server, path + "x", method="POST", body=b""))[0] == 404


def test_only_what_belongs_to_the_page_can_be_asked_for(server: Server) -> None:
    for path in server.files.values():
        assert path.parent.name == "fonts" or page.STATIC in path.parents
        assert path.suffix in page.TYPES


# What is handed in


def test_a_configuration_is_read(server: Server) -> None:
    config = {**LLAMA, "max_position_embeddings": 4096}
    status, _, body = ask(server, "/api/inspect?name=config.json", method="POST", body=json.dumps(config).encode())
    assert status == 200
    assert json.loads(body) == json.loads(json.dumps({**read(config).json(), "source": "file.json"}))


def test_a_gguf_file_is_read_from_its_beginning(server: Server) -> None:
    factors = struct.pack("<8f", *[1.0] * 4, *[8.0] * 4)
    whole = small_gguf(factors=factors) + bytes(1000)
    answer = ask(server, f"/api/inspect?name=m.gguf&size={len(whole) + 10**9}", method="POST", body=whole)
    assert answer[0] == 200
    [layer] = json.loads(answer[2])["layers"]
    assert layer["extension"] == {"name": "per-pair", "factors": [1.0] * 4 + [8.0] * 4}
    beginning = whole[: whole.index(factors) + 8]
    status, why = error(ask(server, f"/api/inspect?name=m.gguf&size={len(whole)}", method="POST", body=beginning))
    assert status == 422
    assert why == (
        f"m.gguf: the first {len(beginning)} bytes, which the page sends, are not enough; "
        "give the file to the command instead: ropewalk explore FILE"
    )
    _, why = error(ask(server, f"/api/inspect?name=m.gguf&size={len(beginning)}", method="POST", body=beginning))
    ends = f"it ends at byte {len(beginning)}, in the middle of its header"
    assert why == f"m.gguf is not a whole GGUF file: {ends}"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "my.json is not JSON: the file is empty"),
        (b"[1]", "my.json holds list, a configuration is an object of keys"),
        (b"{", "my.json is not JSON: Expecting property name enclosed in double quotes, line 1"),
        (b"\xff", "my.json is not UTF-8 text (byte 0)"),
        (
            json.dumps({**LLAMA, "rope_tetha": 1}).encode(),
            "my.json: rope_tetha is not read by the reader of llama; did you mean rope_theta?",
        ),
        (b"GGUF", "my.json is not a GGUF file: it does not begin with GGUF"),
    ],
)
def test_what_cannot_be_read_gives_one_line_without_our_paths(server: Server, body: bytes, why: str) -> None:
    status, said = error(ask(server, "/api/inspect?name=my.json", method="POST", body=body))
    assert (status, said) == (422, why)
    for name in ("", "\x00\n../../x"):
        _, said = error(ask(server, f"/api/inspect?name={name!r}".replace(" ", ""), method="POST", body=body))
        assert "/tmp" not in said
        assert said.isprintable()


def test_bodies_over_the_limit_are_refused_unread(server: Server) -> None:
    status, why = error(ask(server, "/api/inspect", method="POST", Content_Length=str(MOST_BYTES + 1)))
    assert status == 413
    assert why == f"the file has {MOST_BYTES + 1} bytes; at most {MOST_BYTES} are read"
    for length in ("-1", "1e3", "", "٣"):
        assert error(post_as_is(server, f"Content-Length: {length}", b""))[0] == 411
    assert error(ask(server, "/api/inspect", method="POST"))[0] == 411


def test_a_body_in_chunks_or_one_that_breaks_off_is_refused(server: Server) -> None:
    chunked = "Transfer-Encoding: chunked\r\nContent-Length: 2"
    assert error(post_as_is(server, chunked, b"2\r\n{}\r\n0\r\n\r\n"))[0] == 411
    assert error(post_as_is(server, "Content-Length: 9", b"{}")) == (400, "the request ended after 2 of 9 bytes")


def post_as_is(server: Server, headers: str, body: bytes) -> Any:
    port = server.server_address[1]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(f"POST /api/inspect HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}\r\n\r\n".encode() + body)
        one.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(one)
        answer.begin()
        return answer.status, answer.headers, answer.read()


def test_nothing_of_what_was_handed_in_stays(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ask(server, "/api/inspect?name=x", method="POST", body=json.dumps(LLAMA).encode())[0] == 200
    assert error(ask(server, "/api/inspect?name=x", method="POST", body=b"{"))[0] == 422
    assert list(tmp_path.iterdir()) == []


# What was given on the command line


def test_known_models_are_read_like_any_other() -> None:
    found = known()
    assert [model["name"] for model in found] == list(KNOWN)
    for model, config in zip(found, KNOWN.values(), strict=True):
        assert model["plan"] == read(config).json()
        assert any(layer["kind"] == "rope" for layer in model["plan"]["layers"])


def test_given_files_are_sorted_by_what_they_hold(tmp_path: Path) -> None:
    model, folder, result = tmp_path / "own.json", tmp_path / "model", tmp_path / "extend.json"
    folder.mkdir()
    for path in (model, folder / "config.json"):
        path.write_text(json.dumps(LLAMA))
    result.write_text(json.dumps(EXTENDED))
    with serving([model, folder, result]) as server:
        models = json.loads(ask(server, "/api/models")[2])
        assert [m["name"] for m in models] == ["own.json", "model", *KNOWN]
        assert models[0]["plan"]["layers"] == read(LLAMA).json()["layers"]
        assert json.loads(ask(server, "/api/results")[2]) == [{"name": "extend.json", "result": EXTENDED}]
        result.write_text(
            json.dumps({**EXTENDED, "length": 16, "x": float("nan")})
        )  # a run goes on while it is watched
        [now] = json.loads(ask(server, "/api/results")[2])
        assert (now["result"]["length"], now["result"]["x"]) == (16, None)
        result.write_text("{")
        assert error(ask(server, "/api/results")) == (422, now_unreadable())
        model.unlink()
        assert error(ask(server, "/api/models"))[0] == 422


def test_a_folder_of_a_study_gives_what_its_runs_have_found(tmp_path: Path) -> None:
    from ropewalk.lab.conduct import prepare
    from ropewalk.lab.reading import of

    folder = tmp_path / "study"
    arms = [{"encoding": "rope"}, {"encoding": "alibi"}]
    study = of({"name": "one", "claim": "c", "source": "s", "arm": arms, "grid": {"seed": [0, 1]}})
    prepare(folder, study, ["ropewalk"])
    entry = {"multiple": 1, "bits": 2.5, "blocks": [], "by_position": [{"from": 0, "to": 256, "mean": 2.5}]}
    ended = study.runs({})[0]
    result = {
        "settings": ended.settings.json(),
        "measure": "bits",
        "validation": [[100, 3.0]],
        "test": [entry],
        "extensions": {},
        "parameters": 5,
        "encoding_parameters": 0,
        "seconds": {"training": 1.0, "testing": 0.5},
    }
    place = folder / "runs" / ended.folder
    place.mkdir(parents=True)
    (place / "result.json").write_text(json.dumps(result))
    api = Api([folder])
    (found,) = api.get("results")
    assert (found["name"], found["result"]["schema"]) == ("study", "ropewalk.findings/1")
    rope, alibi = found["result"]["arms"]
    assert (rope["seeds"], rope["test"][0]["bits"], rope["validation"]) == (
        [0],
        [2.5],
        {"steps": [100], "values": [[3.0]]},
    )
    assert (alibi["name"], alibi["seeds"]) == ("ALiBi", [])
    assert len(api.get("models")) == len(KNOWN)
    (folder / "study.json").write_text("{}")
    with pytest.raises(RefusedError) as refused:
        api.get("results")
    assert refused.value.status == 422


@pytest.mark.parametrize("link", ["runs/a/result.json", "runs/a", "study.json"])
def test_links_that_lead_out_of_a_study_are_not_followed(link: str, tmp_path: Path) -> None:
    study, elsewhere = tmp_path / "study", tmp_path / "elsewhere"
    for place in (study / "runs" / "a", elsewhere):
        place.mkdir(parents=True)
        (place / "result.json").write_text("{}")
    (study / "study.json").write_text("{}")
    (elsewhere / "study.json").write_text("{}")
    if link == "runs/a":
        (study / link / "result.json").unlink()
        (study / link).rmdir()
        (study / link).symlink_to(elsewhere)
    else:
        (study / link).unlink()
        (study / link).symlink_to(elsewhere / Path(link).name)
    with pytest.raises(RefusedError, match="is a link that leads out of the study"):
        Api([study]).get("results")


def test_results_that_a_browser_cannot_read_as_they_are(tmp_path: Path) -> None:
    """Infinity spelled as a number, half of a character, brackets without end."""
    odd, deep = tmp_path / "odd.json", tmp_path / "deep.json"
    odd.write_text('{"schema": "ropewalk.extend/1", "x": [1e999, -1e999, Infinity, 1.5], "name": "\\ud800"}')
    with serving([odd]) as server:
        [found] = json.loads(ask(server, "/api/results")[2])
    assert found["result"]["x"] == [None, None, None, 1.5]
    assert "1.5" in standalone("en", [odd]).encode().decode()
    deep.write_text('{"schema": "ropewalk.extend/1", "x": ' + "[" * 200_000)
    api = Api()
    api.results = [deep]
    with pytest.raises(RefusedError, match="nested too deeply"):
        api.get("results")
    assert Api([deep]).results == []


def now_unreadable() -> str:
    return "extend.json cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"


def test_a_model_without_rotation_and_a_broken_file(tmp_path: Path) -> None:
    body = json.dumps({"model_type": "bloom", "n_layer": 24, "n_head": 16, "hidden_size": 1024}).encode()
    plan = Api().inspect(body, "bloom.json")
    assert [layer["kind"] for layer in plan["layers"]] == ["encoding"]
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(RefusedError, match="is not JSON") as refused:
        Api([broken]).get("models")
    assert refused.value.status == 422
    with pytest.raises(RefusedError, match="no such answer"):
        Api().get("secrets")


# The page as one file


def test_the_exported_page_holds_everything(tmp_path: Path) -> None:
    result = tmp_path / "extend.json"
    result.write_text(json.dumps({**EXTENDED, "note": "</script><script>alert(1)</script>"}))
    html = standalone("ja", [result])
    assert '<html lang="ja">' in html
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", html)
    assert "url(" not in re.sub(r"url\(data:", "", html)
    assert not re.search(r"@import|fetch\(['\"]http", html)
    assert html.count("</script>") == 3  # settings, import map, main module
    told = json.loads(re.search(r'id="settings">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]
    assert told["data"]["results"][0]["result"]["note"] == "</script><script>alert(1)</script>"
    assert [m["name"] for m in told["data"]["models"]] == list(KNOWN)
    leads = json.loads(re.search(r'type="importmap">(.*?)</script>', html, re.DOTALL)[1])["imports"]  # type: ignore[index]
    assert set(leads) == set(page.modules()) - {"ropewalk/main.js"}
    assert len(html) < 2_000_000


def test_writing_leaves_a_whole_file_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    target.write_text("before")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(RefusedError):
        write(target, "en", [broken])
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write(target, "en")
    assert target.read_text() == "before"
    assert {p.name for p in tmp_path.iterdir()} == {"page.html", "broken.json"}


def test_every_module_is_imported_by_its_name_and_exists() -> None:
    for name, path in page.modules().items():
        text = path.read_text(encoding="utf-8")
        wanted = re.findall(r'^import .*?from "([^"]+)";', text, re.MULTILINE)
        assert set(wanted) <= set(page.modules()), name
        assert not re.search(r"""from ["']\.""", text)
        if "vendor" not in name:
            assert text.startswith("// "), f"{name} begins by saying what it is"


def test_both_languages_stand_beside_each_other() -> None:
    """Every `say` has Japanese in its second half, and none in its first."""
    japanese = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
    pairs = 0
    for name, path in page.modules().items():
        for en, ja in re.findall(
            r'say\(\s*"((?:[^"\\]|\\.)*)",\s*"((?:[^"\\]|\\.)*)"', path.read_text(encoding="utf-8")
        ):
            pairs += 1
            assert not japanese.search(en), (name, en)
            assert japanese.search(ja) or not re.search("[a-z]{4}", ja) or ja == en, (name, ja)
    assert pairs > 200


# The command


def run(*args: str, code: int = 0) -> Any:
    found = CliRunner().invoke(main, ["explore", *args], env={"LC_ALL": "en_US.UTF-8"})
    assert found.exit_code == code, (found.stdout, found.stderr, found.exception)
    return found


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The server ends at once, as if interrupted; the browser that is opened is noted."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(Server, "serve_forever", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    return opened


def test_the_command_says_where_the_page_is(quiet: list[str]) -> None:
    found = run()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", found.stdout)
    assert quiet == [found.stdout.strip()]
    assert "Ctrl-C" in found.stderr
    document = json.loads(run("--json", "--no-browser").stdout)
    assert document["schema"] == "ropewalk.explore/1"
    assert len(quiet) == 1


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    found = run("--export", str(target), "--lang", "ja")
    assert found.stdout.strip() == str(target)
    assert '<html lang="ja">' in target.read_text(encoding="utf-8")
    assert json.loads(run("--export", str(target), "--json").stdout) == {
        "schema": "ropewalk.explore/1",
        "path": str(target),
    }


def test_wrong_use_of_the_command(tmp_path: Path, quiet: list[str]) -> None:
    assert "there is no file or folder nowhere.json" in run("nowhere.json", code=2).stderr
    assert "a port is at most 65535" in run("--port", "70000", code=2).stderr
    assert "does not end with" in run("--export", str(tmp_path / "page.txt"), code=2).stderr
    assert "does not exist" in run("--export", str(tmp_path / "no" / "page.html"), code=1).stderr
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for more in (["--export", str(tmp_path / "page.html")], []):
        assert "cannot read a file" in run(str(broken), *more, code=1).stderr
    assert not (tmp_path / "page.html").exists()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"cannot serve at port {port}" in run("--port", port, code=1).stderr
    assert quiet == []
