"""A service in a thread of this process, on a free loopback port: for tests, the demo and dev."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from cache.asgi import App
from cache.config import ServiceConfig
from cache.errors import ConfigError, NotReachable
from cache.http_server import server_config
from cache.service import create_app
from cache.store import SwapStore
from cache.tls import ServerTls

_START_SECONDS = 30.0


@dataclass(frozen=True)
class RunningService:
    """A service that answers at `url`."""

    url: str
    port: int


@contextmanager
def serve_in_thread(
    config: ServiceConfig, *, store: SwapStore | None = None
) -> Iterator[RunningService]:
    """Run a cache service until the block ends. `config.port` 0 takes a free port.

    `store` replaces the one that `config` names. Raises ConfigError if the port is taken.
    """
    with serve_app_in_thread(
        create_app(config, store=store), host=config.host, port=config.port, tls=config.tls()
    ) as running:
        yield running


@contextmanager
def serve_app_in_thread(
    app: App, *, host: str = "127.0.0.1", port: int = 0, tls: ServerTls | None = None
) -> Iterator[RunningService]:
    """Run any ASGI application until the block ends."""
    shown = tls or ServerTls()
    with listen(host, port) as listener:
        server = uvicorn.Server(
            server_config(app, shown, drain_s=5, lifespan="on", log_config=None)
        )
        thread = threading.Thread(
            target=server.run,
            kwargs={"sockets": [listener]},
            name="fusec-cache-service",
            daemon=True,
        )
        thread.start()
        try:
            _wait_started(server, thread)
            address = address_of(host, listener, shown.scheme)
            yield RunningService(address, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(_START_SECONDS)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket for a server; port 0 takes a free one. Raises ConfigError if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol spelt out asyncio sets TCP_NODELAY; without, each answer waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # From now on clients queue; they need not wait until the application has started.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another port"
        ) from error
    return listener


def address_of(host: str, listener: socket.socket, scheme: str = "http") -> str:
    """The address under which a server on this socket is reached."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


def _wait_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise NotReachable("the embedded service did not start", hint="see its log")
        time.sleep(0.005)
