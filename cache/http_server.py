"""How the HTTP servers of the service and of the farm are run: on uvicorn, with bounds."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cache.asgi import App
from cache.tls import ServerTls

MAX_HEAD: Final = 64 << 10
"""Bytes of a request's line and headers, beyond those that came together with its first one."""
HEAD_S: Final = 30.0
"""For how long a head may be under way, from the connection or its first byte on."""
ANSWER_S: Final = 60.0
"""For how long a peer may take nothing more of an answer. It is given at most `asgi.SEND_BYTES` at
once, so this is nine kilobytes a second."""
KEEP_ALIVE_S: Final = 30
"""For how long a server keeps an idle connection. Clients give theirs up after 5 seconds: a server
that did so too would now and then close one just as a request comes."""


class _Deadline:
    """What happens unless it is stopped in time."""

    def __init__(self, loop: AbstractEventLoop, late: Callable[[], None]) -> None:
        self._loop = loop
        self._late = late
        self._timer: TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """From now on, if it does not run already."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._late)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's fast protocol, which by itself takes heads of any size and waits for any peer.

    How slowly a body may come is `asgi.Request.body`'s to say.
    """

    _piece = 0  # bytes that are being parsed
    _in_head = False
    _head = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_ends = _Deadline(self.loop, self._give_up_head)
        self._answer_ends = _Deadline(self.loop, transport.abort)
        self._head_ends.start(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ends.stop()
        self._answer_ends.stop()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        # Of a piece with several requests nobody says where the last one began.
        self._in_head, self._head = True, -self._piece
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        self._piece = len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head += self._piece
            if self._head > MAX_HEAD:
                self.send_400_response("The request's head is too large.")
                return
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_ends.stop()  # it is the application's turn
        else:
            self._head_ends.start(HEAD_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_ends.start(ANSWER_S)

    def resume_writing(self) -> None:
        self._answer_ends.stop()
        super().resume_writing()

    def _give_up_head(self) -> None:
        if not self.transport.is_closing():
            self.send_400_response("The request's head did not come in time.")


def server_config(app: App, tls: ServerTls, *, drain_s: int, **more: Any) -> uvicorn.Config:
    """uvicorn's settings for an application; ``more`` of them by their own names.

    drain_s: how long requests in flight have when the server is told to stop.
    """
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=drain_s,
        timeout_keep_alive=KEEP_ALIVE_S,
        **tls.uvicorn(),
        **more,
    )
