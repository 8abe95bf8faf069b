"""What the servers bound before any of our routes sees a request."""

import contextlib
import secrets
import select
import socket
import time
from pathlib import Path

import httpx
import pytest

from cache import asgi, frames, http_server
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.http_server import MAX_HEAD
from cache.memory import MemoryStore

START = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def port():
    with serve_in_thread(ServiceConfig(port=0)) as running:
        yield running.port


def answer(connection):
    """What comes until the server closes, or until it waits for more."""
    got = b""
    with connection.makefile("rb") as stream:
        while line := stream.readline():
            got += line
    return got


@pytest.mark.parametrize(
    "endless", [b"x-long: " + b"a" * 16384, b"x-many: 1\r\n" * 1000], ids=["value", "count"]
)
def test_a_head_without_end_is_refused(port, endless):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(START)
        sent = 0
        with contextlib.suppress(OSError):  # the server has closed
            while sent < 100 * MAX_HEAD:
                connection.sendall(endless)
                sent += len(endless)
    assert sent < 100 * MAX_HEAD


def test_the_refusal_says_why(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(START)
        assert select.select([connection], [], [], 0.2)[0] == []  # so this is a piece by itself
        connection.sendall(b"x-long: " + b"a" * (MAX_HEAD + 1))
        got = answer(connection)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"head is too large" in got


@pytest.mark.parametrize("pipelined", [False, True], ids=["in turn", "pipelined"])
def test_many_requests_of_one_connection_are_no_large_head(port, pipelined):
    request = START + b"x-some: " + b"a" * 4096 + b"\r\n\r\n"
    count = 4 * MAX_HEAD // len(request)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
        connection.makefile("rb") as stream,
    ):
        if pipelined:
            connection.sendall(request * count)
        for _ in range(count):
            if not pipelined:
                connection.sendall(request[:100])
                connection.sendall(request[100:])
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length: "):
                    length = int(line.split()[1])
            stream.read(length)


def dribble(connection, text):
    """Byte by byte, for as long as the server takes them; whether it hung up before a minute."""
    give_up = time.monotonic() + 60
    with contextlib.suppress(OSError):
        while time.monotonic() < give_up:
            for byte in text:
                connection.sendall(bytes([byte]))
                if select.select([connection], [], [], 0.05)[0]:
                    return True
        return False
    return True


@pytest.mark.parametrize(
    "text", [b"", b"\r\n", START + b"x-long: " + b"a" * 4096], ids=["nothing", "lines", "a head"]
)
def test_a_head_that_does_not_come_in_time_is_not_waited_for(port, text, monkeypatch):
    monkeypatch.setattr(http_server, "HEAD_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        assert not text or dribble(connection, text)
        assert b"did not come in time" in answer(connection)


def test_a_connection_that_was_served_gets_no_more_time_for_a_head(port, monkeypatch):
    monkeypatch.setattr(http_server, "HEAD_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(START + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert dribble(connection, START)


def test_a_body_that_comes_too_slowly_is_not_waited_for(port, monkeypatch):
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.5)
    data = secrets.token_bytes(1 << 16)
    path = f"PUT /v1/blobs/{digest(data)} HTTP/1.1\r\nhost: localhost\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(path + b"content-length: %d\r\n\r\n" % len(data))
        assert dribble(connection, data)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def is_held(port, peer):
    """Whether the server's end of a connection is open: ours hears of its end behind the data."""
    ends = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        state == "01" and (int(ours[-4:], 16), int(theirs[-4:], 16)) == (port, peer)
        for ours, theirs, state in ends
    )


def test_a_peer_that_takes_no_answer_is_cut_off(monkeypatch):
    """And one that takes it slowly, but takes it, gets it whole."""
    monkeypatch.setattr(http_server, "ANSWER_S", 2.0)
    data = secrets.token_bytes(16 << 20)
    store = MemoryStore()
    store.put_blob(digest(data), data)
    path = f"/v1/blobs/{digest(data)}"
    with serve_in_thread(ServiceConfig(port=0), store=store) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            give_up = time.monotonic() + 60
            while is_held(running.port, connection.getsockname()[1]):
                assert time.monotonic() < give_up, "the server still waits"
                time.sleep(0.05)
        with httpx.stream("GET", running.url + path, timeout=60) as reply:
            got = b""
            for piece in reply.iter_raw(1 << 20):
                got += piece
                time.sleep(0.1)
    assert frames.decompress(got, digest(data)) == data
