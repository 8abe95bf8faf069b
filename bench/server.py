"""A server to be measured, as a process of its own."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator

_START_S = 120.0


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    """Run a server until the block ends; its process id, once something listens on the port.

    Raises RuntimeError if that takes more than two minutes or the server ends.
    """
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        give_up = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if child.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"{' '.join(command[:4])} did not start")
            time.sleep(0.05)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
