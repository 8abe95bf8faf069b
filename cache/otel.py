"""`Tracing` by OpenTelemetry: the one module that imports it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cache.errors import ConfigError
from cache.tracing import HEADER, Attribute, Tracing

EXPORT_SECONDS: Final = 3.0
"""How long a collector may take; at its end a process waits for one that does not answer."""
_WIRE: Final = TraceContextTextMapPropagator()


class OpenTelemetry:
    """See `Tracing`. Which spans are kept is OpenTelemetry's own matter: OTEL_TRACES_SAMPLER."""

    def __init__(self, setting: str, service: str, *, parent: str = "", root: str = "") -> None:
        resource = Resource.create(
            {
                "service.name": service,
                "host.name": socket.gethostname(),
                "process.pid": os.getpid(),
            }
        )
        # Not the process's global provider: that is the user's.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=True)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(setting)))
        self._tracer = self._provider.get_tracer("fusec")
        self._root = _remote(parent)
        if root:
            # Ended at once: whoever looks at the trace must not wait for the end of a long process.
            first = self._tracer.start_span(root, self._root)
            first.end()
            self._root = trace.set_span_in_context(first, Context())

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[None]:
        """See `Tracing`."""
        around = self._around()
        if not _is_followed(around):
            yield
            return
        with self._open(self._tracer.start_span(name, around, attributes=attributes)):
            yield

    @contextmanager
    def serving(self, name: str, traceparent: str) -> Iterator[None]:
        """See `Tracing`."""
        caller = _remote(traceparent)
        if not _is_followed(caller):
            yield
            return
        with self._open(self._tracer.start_span(name, caller, kind=SpanKind.SERVER)):
            yield

    @contextmanager
    def under(self, traceparent: str) -> Iterator[None]:
        """See `Tracing`."""
        token = contexts.attach(_remote(traceparent))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def past(
        self, name: str, start_ns: int, end_ns: int, **attributes: Attribute
    ) -> Iterator[None]:
        """See `Tracing`."""
        around = self._around()
        if not _is_followed(around):
            yield
            return
        span = self._tracer.start_span(name, around, attributes=attributes, start_time=start_ns)
        try:
            with trace.use_span(span, end_on_exit=False):
                yield
        finally:
            span.end(end_ns)

    def failed(self, reason: str) -> None:
        """See `Tracing`."""
        trace.get_current_span().set_status(StatusCode.ERROR, reason)

    def traceparent(self) -> str:
        """See `Tracing`."""
        carrier: dict[str, str] = {}
        _WIRE.inject(carrier, self._around())
        return carrier.get(HEADER, "")

    def close(self) -> None:
        """See `Tracing`."""
        self._provider.shutdown()

    @contextmanager
    def _open(self, span: Span) -> Iterator[None]:
        with trace.use_span(span, True, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException as error:
                if isinstance(span, ReadableSpan) and span.status.is_unset:
                    span.set_status(StatusCode.ERROR, type(error).__name__)
                raise

    def _around(self) -> Context:
        """The open span's context, else that of the process's parent."""
        current = contexts.get_current()
        return current if _is_followed(current) else self._root


def _is_followed(context: Context) -> bool:
    return trace.get_current_span(context).get_span_context().is_valid


def _remote(traceparent: str) -> Context:
    """The context of a span of another process; an empty one for what is no traceparent."""
    return _WIRE.extract({HEADER: traceparent}, Context())


def _exporter(setting: str) -> SpanExporter:
    kind, _, path = setting.partition(":")
    if kind == "otlp":
        return OTLPSpanExporter(timeout=EXPORT_SECONDS)
    try:
        # Lines of several processes may go into one file: each is written at once, at its end.
        out = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - `shutdown` closes
    except OSError as error:
        raise ConfigError(f"tracing: cannot write {path}: {error.strerror}") from error
    return _Lines(out=out, formatter=_line)


class _Lines(ConsoleSpanExporter):
    def shutdown(self) -> None:
        self.out.close()


def _line(span: ReadableSpan) -> str:
    return f"{span.to_json(indent=None)}\n"


_CONTRACT: type[Tracing] = OpenTelemetry
