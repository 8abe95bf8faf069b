"""A small S3 in memory whose answers a test decides: for faults that real servers do not have."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5

from cache.embedded import serve_app_in_thread


@dataclass
class MiniS3:
    """Objects by path. `fault` is asked about each request: None, or (status, code) to answer.

    `valid` holds the access keys that are good; None takes every one. `matches` False is a server
    that does not look at If-Match.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    fault: object = None
    valid: set[str] | None = None
    matches: bool = True
    requests: int = 0
    keys_seen: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, method, path, headers, body):
        self.requests += 1
        shown = headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        self.keys_seen.append(shown)
        if self.valid is not None and shown not in self.valid:
            return _error(403, "ExpiredToken")
        fault = self.fault(method, path) if self.fault is not None else None
        if fault is not None:
            return _error(*fault)
        if method == "PUT":
            if headers.get("if-none-match") == "*" and path in self.objects:
                return _error(412, "PreconditionFailed")
            if self.matches and "if-match" in headers:
                if path not in self.objects:
                    return _error(404, "NoSuchKey")
                if headers["if-match"] != _etag(self.objects[path]):
                    return _error(412, "PreconditionFailed")
            self.objects[path] = body
            return 200, {"etag": _etag(body)}, b""
        if method == "DELETE":
            self.objects.pop(path, None)
            return 204, {}, b""
        data = self.objects.get(path)
        if data is None:
            return _error(404, "NoSuchKey")
        kept = {"etag": _etag(data), "last-modified": formatdate(usegmt=True)}
        return 200, kept, data


@contextmanager
def mini_s3() -> Iterator[MiniS3]:
    """Run one until the block ends."""
    made = MiniS3()

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, more, reply = made.answer(scope["method"], scope["path"], headers, body)
        if scope["method"] == "HEAD":
            more = {**more, "content-length": str(len(reply))}
            reply = b""
        else:
            more = {**more, "content-length": str(len(reply))}
        pairs = [(name.encode(), value.encode()) for name, value in more.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": reply})

    with serve_app_in_thread(app) as running:
        made.url = running.url
        yield made


def _etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


def _error(status: int, code: str):
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    return status, {"content-type": "application/xml"}, body
