"""The little of ASGI that the service needs: a request with a bounded body, a reply of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from cache import protocol as wire
from cache.errors import ProtocolError, TooLarge
from cache.protocol import Value

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


MAX_PARAMS: Final = 16
SEND_BYTES: Final = 512 << 10
"""A body goes out in pieces of at most so many bytes. Between two the server waits for a peer that
is slow; what it was given and could not send it copies."""
PATIENCE_S: Final = 30.0
MIN_RATE: Final = 16 << 10
"""Bytes a second, beyond PATIENCE_S, at which a body must come."""


@dataclass(frozen=True)
class Response:
    """A whole reply. Its body is `body`, followed by `parts`, which other replies may share."""

    status: int
    body: bytes = b""
    content_type: str = wire.MSGPACK
    headers: tuple[tuple[str, str], ...] = ()
    parts: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body) + sum(map(len, self.parts))

    async def send(self, send: Send) -> None:
        """Send it."""
        left = self.size
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-length", str(left).encode()),
        ]
        headers += [(name.encode(), value.encode()) for name, value in self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if not self.parts and left <= SEND_BYTES:
            await send({"type": "http.response.body", "body": self.body})
            return
        for piece in _pieces((self.body, *self.parts)):
            left -= len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": left > 0})


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """A body in pieces of at most SEND_BYTES."""
    held: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        view = memoryview(part)
        while view:
            taken = view[: SEND_BYTES - size]
            view = view[len(taken) :]
            held.append(taken)
            size += len(taken)
            if size == SEND_BYTES:
                yield _joined(held)
                held, size = [], 0
    if held:
        yield _joined(held)


def _joined(held: list[bytes | memoryview]) -> bytes | memoryview:
    return held[0] if len(held) == 1 else b"".join(held)


def packed(status: int, value: object) -> Response:
    """A msgpack reply."""
    return Response(status, wire.pack(value))


@dataclass
class Request:
    """A request; its body is read on demand and at most once."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    receive: Receive = field(repr=False)

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> Request:
        """The request of an ASGI scope. Of repeated headers the last one counts."""
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        query = scope.get("query_string", b"").decode("latin-1")
        return cls(scope["method"], scope["path"], query, headers, receive)

    def params(self) -> dict[str, str]:
        """The query's parameters. Raises ProtocolError for too many."""
        try:
            return dict(parse_qsl(self.query, max_num_fields=MAX_PARAMS))
        except ValueError as error:
            raise ProtocolError(f"more than {MAX_PARAMS} parameters") from error

    async def body(self, limit: int) -> bytes:
        """The body, of at most `limit` bytes. Raises TooLarge before reading more, and
        ProtocolError if the peer goes away in the middle or is slower than MIN_RATE."""
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise TooLarge(f"a body of {declared[:20]} bytes, limit {limit}")
        try:
            async with asyncio.timeout(PATIENCE_S) as ends:
                return await self._read(limit, ends)
        except TimeoutError as error:
            raise ProtocolError(f"the body came at less than {MIN_RATE} bytes a second") from error

    async def _read(self, limit: int, ends: asyncio.Timeout) -> bytes:
        """The body; each byte of it moves the end of our patience."""
        chunks: list[bytes] = []
        size, begun = 0, asyncio.get_running_loop().time()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ProtocolError("the peer went away in the middle of the body")
            chunk: bytes = message.get("body", b"")
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise TooLarge(f"a body of more than {limit} bytes")
            if not message.get("more_body", False):
                return b"".join(chunks) if len(chunks) > 1 else chunk
            ends.reschedule(begun + PATIENCE_S + size / MIN_RATE)

    async def value(self, limit: int) -> Value:
        """The body as msgpack. Raises ProtocolError unless it says that it is msgpack.

        The type is asked for because a web page cannot send it to another site unasked.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != wire.MSGPACK:
            raise ProtocolError(f"the body must be {wire.MSGPACK}, not {kind[:60]!r}")
        return wire.unpack(await self.body(limit), max_bytes=limit)
