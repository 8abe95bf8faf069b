"""What the servers bound before any of our routes sees a request."""

import contextlib
import socket

import pytest

from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.http_server import MAX_HEAD

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
        connection.sendall(START + b"x-long: " + b"a" * (MAX_HEAD + 1))
        got = answer(connection)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"head is too large" in got


def test_many_requests_of_one_connection_are_no_large_head(port):
    request = START + b"x-some: " + b"a" * 4096 + b"\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
        connection.makefile("rb") as stream,
    ):
        for _ in range(2 * MAX_HEAD // len(request)):
            connection.sendall(request[:100])
            connection.sendall(request[100:])
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length: "):
                    length = int(line.split()[1])
            stream.read(length)
