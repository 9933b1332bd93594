"""Reading a list of swarms from hostile places: bounds, redirects, earlier lists, and what is kept."""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from node.home import Home
from node.swarms import list_files
from node.swarms.list_files import bytes_at, kept_lists, read_list
from protocol import limits
from protocol.errors import OversizedError, RefusedError, StarlingError, UnreachableError
from protocol.identity import NodeKey
from protocol.swarm_list import open_swarm_list, sign_swarm_list
from scripts.vectors.cluster_vectors import CLUSTER_MADE, PEER
from scripts.vectors.swarm_list_vectors import NOW_SECONDS, example_list

SOUND: Final = sign_swarm_list(PEER, example_list())
Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def served() -> Iterator[Callable[[Answer], str]]:
    """Starts a server on loopback that answers so, and returns its URL."""
    servers: list[ThreadingHTTPServer] = []

    def serve(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            do_GET = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/swarms.list"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def content(body: bytes, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        with contextlib.suppress(OSError):  # the reader has enough
            request.wfile.write(body)

    return answer


def redirect(where: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", where)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def test_a_file_a_file_url_and_the_web_give_the_same_list(home: Home, tmp_path: Path, served) -> None:
    path = tmp_path / "a list"
    path.write_bytes(SOUND)
    for source in (str(path), path.as_uri(), served(content(SOUND)), served(redirect(served(content(SOUND))))):
        read = read_list(home, source, NOW_SECONDS)
        assert (read.opened.document, read.source) == (SOUND, source)


def test_a_signer_is_new_once_and_its_list_is_kept(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_bytes(SOUND)
    assert kept_lists(home, NOW_SECONDS) == ([], [])
    assert [read_list(home, str(path), NOW_SECONDS).seen_before for _ in range(2)] == [False, True]
    (kept,), refused = kept_lists(home, NOW_SECONDS)
    assert (kept.opened.document, kept.seen_before, refused) == (SOUND, True, [])
    valid, refused = kept_lists(home, example_list().until_seconds)
    assert valid == [] and PEER.peer_id in refused[0]


def test_an_earlier_list_of_a_signer_is_refused_and_the_later_one_stays(home: Home, tmp_path: Path) -> None:
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    earlier.write_bytes(SOUND)
    later.write_bytes(sign_swarm_list(PEER, example_list(made_seconds=CLUSTER_MADE + 1)))
    read_list(home, str(later), NOW_SECONDS)
    with pytest.raises(RefusedError):
        read_list(home, str(earlier), NOW_SECONDS)
    assert kept_lists(home, NOW_SECONDS)[0][0].opened.document == later.read_bytes()


def test_the_signers_of_most_distant_reads_leave_first(home: Home, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(list_files, "MAX_KEPT", 3)
    keys = [NodeKey(bytes([number]) * 32) for number in range(5)]
    for number, key in enumerate(keys):
        path = tmp_path / "list"
        path.write_bytes(sign_swarm_list(key, example_list(signer=key.public_bytes)))
        read_list(home, str(path), NOW_SECONDS)
        age_seconds = 1_000_000_000 + number
        os.utime(home.swarm_lists / key.peer_id, (age_seconds, age_seconds))
    assert {each.opened.signer for each in kept_lists(home, NOW_SECONDS)[0]} == {key.peer_id for key in keys[2:]}


@pytest.mark.parametrize("raw", [b"", b"<html>", SOUND[:-1], SOUND + b"\0"], ids=["empty", "page", "cut", "longer"])
def test_what_is_no_list_is_refused_and_not_kept(home: Home, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "list").write_bytes(raw)
    with pytest.raises(RefusedError):
        read_list(home, str(tmp_path / "list"), NOW_SECONDS)
    assert not home.swarm_lists.exists()


def test_no_more_is_read_than_a_list_may_have(tmp_path: Path, served) -> None:
    for source in ("/dev/zero", served(content(bytes(4 * 1024 * 1024)))):
        raw = bytes_at(source)
        assert limits.SWARM_LIST_BYTES < len(raw) < 4 * 1024 * 1024
        with pytest.raises(OversizedError):
            open_swarm_list(raw, now_seconds=None)


def test_a_compressed_answer_is_not_opened(served) -> None:
    packed = gzip.compress(bytes(50_000_000))
    assert bytes_at(served(content(packed, Content_Encoding="gzip"))) == packed


@pytest.mark.parametrize(
    "there", ["file:///etc/passwd", "https://127.0.0.1:1/", "ftp://127.0.0.1/", "javascript:alert(1)", "http:"]
)
def test_a_redirect_to_another_scheme_or_to_nothing_is_not_followed(served, there: str) -> None:
    with pytest.raises(UnreachableError):
        bytes_at(served(redirect(there)))


def test_redirects_end(served) -> None:
    asked: list[str] = []

    def again(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        redirect(f"/{len(asked)}")(request)

    with pytest.raises(UnreachableError):
        bytes_at(served(again))
    assert len(asked) == list_files.MAX_REDIRECTS + 1


def test_a_silent_host_is_left_after_a_while(served, monkeypatch) -> None:
    monkeypatch.setattr(list_files, "FETCH_SECONDS", 0.2)
    ended = threading.Event()

    def silent(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        ended.wait(30)

    try:
        with pytest.raises(UnreachableError):
            bytes_at(served(silent))
    finally:
        ended.set()


def test_other_answers_and_other_places_are_refused(served, tmp_path: Path) -> None:
    def missing(request: BaseHTTPRequestHandler) -> None:
        request.send_error(404)

    for source in (
        served(missing), "http://127.0.0.1:1/", "http://", "https://[", "http://\x1b[2J/", "ftp://host/list", "data://x",
        "file://elsewhere/list", str(tmp_path / "missing"), str(tmp_path), "",
    ):  # fmt: skip
        with pytest.raises(UnreachableError) as refused:
            bytes_at(source)
        assert str(refused.value).isprintable()


def test_a_list_that_another_version_made_is_refused_with_what_to_do(home: Home, tmp_path: Path) -> None:
    payload, signature = msgspec.msgpack.decode(SOUND)
    (tmp_path / "list").write_bytes(msgspec.msgpack.encode((b"\x93\x02" + payload[2:], signature)))
    with pytest.raises(StarlingError) as refused:
        read_list(home, str(tmp_path / "list"), NOW_SECONDS)
    assert "upgraded" in str(refused.value)
