"""A collector for tests: takes spans by OTLP over HTTP as OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Span:
    """A span as it came. Identities are in hex; `failed` is the reason, empty where it has not."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str]
    failed: str

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass
class Collector:
    """Where it listens, what has come so far, and requests that were no OTLP."""

    url: str = ""
    refused: list[str] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spans(self, trace_id: str | None = None) -> list[Span]:
        """All spans, or those of a trace."""
        with self._lock:
            return [each for each in self._spans if trace_id in (None, each.trace_id)]

    def take(self, path: str, kind: str, coding: str, body: bytes) -> bool:
        """Keep the spans of a request; whether it was one."""
        try:
            assert (path, kind) == ("/v1/traces", "application/x-protobuf")
            data = gzip.decompress(body) if coding == "gzip" else body
            found = ExportTraceServiceRequest.FromString(data)
        except (AssertionError, DecodeError, OSError):
            self.refused.append(f"{path} {kind} {coding}")
            return False
        with self._lock:
            for part in found.resource_spans:
                (service,) = (
                    item.value.string_value
                    for item in part.resource.attributes
                    if item.key == "service.name"
                )
                for scope in part.scope_spans:
                    self._spans += [_span(service, span) for span in scope.spans]
        return True


def _span(service: str, span: trace_pb2.Span) -> Span:
    failed = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    return Span(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {item.key: _text(item) for item in span.attributes},
        (span.status.message or "unknown") if failed else "",
    )


def _text(item: KeyValue) -> str:
    kind = item.value.WhichOneof("value")
    return str(getattr(item.value, kind)) if kind else ""


@contextmanager
def collector() -> Iterator[Collector]:
    """One on a free port of this machine."""
    made = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kind, coding = (
                self.headers.get(name, "") for name in ("content-type", "content-encoding")
            )
            well = made.take(self.path, kind, coding, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if well else 400)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            server.shutdown()
