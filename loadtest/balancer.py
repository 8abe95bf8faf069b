"""A TCP balancer that can change its backend, and fall silent: what stands before replicas."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = 1 << 16


class Balancer:
    """Passes connections on to `port`. None refuses new ones and cuts those that are open."""

    def __init__(self, port: int) -> None:
        self.port: int | None = port
        self.url = ""
        self._open: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def direct(self, port: int | None) -> None:
        """New connections go there from now on; open ones stay, unless `port` is None."""
        self.port = port
        if port is None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cut)

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        """Run until `stop`; `url` is set when `started` is."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        async with server:
            await stop.wait()
            self._cut()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.port is None:
                writer.close()
                return
            behind, to_behind = await asyncio.open_connection("127.0.0.1", self.port)
            self._open |= {writer, to_behind}
            try:
                await asyncio.gather(_pump(reader, to_behind), _pump(behind, writer))
            finally:
                self._open -= {writer, to_behind}

    def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@contextmanager
def balancer(port: int) -> Iterator[Balancer]:
    """A balancer in a thread of this process, until the block ends."""
    made = Balancer(port)
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(made.serve(started, stop)), daemon=True
    )
    thread.start()
    started.wait()
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
