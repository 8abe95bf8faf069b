"""Servers that misbehave in one way each, over real sockets."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def raw_server(answer: Callable[[socket.socket], None], port: int = 0) -> Iterator[str]:
    """Calls `answer` with each connection, in a thread of its own. Gives its address."""
    listener = socket.create_server(("127.0.0.1", port))
    ended = threading.Event()
    open_sockets: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection)

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def read_request(connection: socket.socket) -> bytes:
    """A request's head; whatever of the body came with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            raise OSError("closed")
        data += chunk
    return data


def head(status: str, length: int) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n".encode()


def silent(connection: socket.socket) -> None:
    """Takes everything, says nothing."""
    while connection.recv(65536):
        continue


def fixed(reply: bytes) -> Callable[[socket.socket], None]:
    """Gives the same bytes to every request, then closes."""

    def answer(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(reply)

    return answer


def dripping(body: bytes, per_second: int) -> Callable[[socket.socket], None]:
    """Sends a body slowly."""

    def answer(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head("200 OK", len(body)))
        step = max(per_second // 20, 1)
        for start in range(0, len(body), step):
            connection.sendall(body[start : start + step])
            time.sleep(0.05)

    return answer
