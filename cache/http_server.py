"""How the HTTP servers of the service and of the farm are run: on uvicorn, with bounds."""

from __future__ import annotations

from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cache.asgi import App
from cache.tls import ServerTls

MAX_HEAD: Final = 64 << 10
"""Bytes of a request's line and headers together."""
KEEP_ALIVE_S: Final = 30
"""For how long a server keeps an idle connection. Clients give theirs up after 5 seconds: a server
that did so too would now and then close one just as a request comes."""


class BoundedHead(HttpToolsProtocol):
    """uvicorn's fast parser, which by itself takes a request's head of any size into memory."""

    _head = 0  # bytes of a head that is not complete, by whole pieces of what was received
    _within = False

    def on_message_begin(self) -> None:
        self._within, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._within = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._within or self.transport.is_closing():
            return
        self._head += len(data)
        if self._head > MAX_HEAD:
            self.send_400_response("The request's head is too large.")


def server_config(app: App, tls: ServerTls, *, drain_s: int, **more: Any) -> uvicorn.Config:
    """uvicorn's settings for an application; ``more`` of them by their own names.

    drain_s: how long requests in flight have when the server is told to stop.
    """
    return uvicorn.Config(
        app,
        http=BoundedHead,
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=drain_s,
        timeout_keep_alive=KEEP_ALIVE_S,
        **tls.uvicorn(),
        **more,
    )
