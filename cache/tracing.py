"""Spans that follow one slow start through client, service, farm and workers; off unless asked for.

A `Tracing` is an argument like a recorder. `OFF` does nothing and loads nothing;
`cache.open_tracing` gives one that exports by OpenTelemetry (`fusec[tracing]`). Between processes
the W3C header `traceparent` says which span a request belongs to. A server traces only requests
that bring one: whether a start is followed is the client's decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

HEADER: Final = "traceparent"
SETTING_HELP: Final = (
    "follow starts by OpenTelemetry: otlp (where to is in OTEL_EXPORTER_OTLP_ENDPOINT), or"
    " file:/path for lines of JSON; empty is off"
)

Attribute = str | int | float | bool


class Tracing(Protocol):
    """Makes spans. None of its methods raises for a fault of the exporter."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[object]:
        """A span around a block, below the one that is open around it or the root; none without.

        One that an exception ends has failed. The exception's text may hold what users sent, so
        its type alone is told.
        """
        ...

    def serving(self, name: str, traceparent: str) -> AbstractContextManager[object]:
        """A span below the one of another process that `traceparent` names; none without it."""
        ...

    def under(self, traceparent: str) -> AbstractContextManager[object]:
        """Spans of the block belong below a span that was left; nothing is open without one."""
        ...

    def past(
        self, name: str, start_ns: int, end_ns: int, **attributes: Attribute
    ) -> AbstractContextManager[object]:
        """A span of what is over already, below the open one; times are of the epoch. Spans of
        the block belong below it."""
        ...

    def failed(self, reason: str) -> None:
        """What the open span is about has failed; a word or two, nothing of what users sent."""
        ...

    def traceparent(self) -> str:
        """The span that is open, for another process; empty where there is none."""
        ...

    def close(self) -> None:
        """Export what is not exported yet."""
        ...


class _Off:
    """See `Tracing`: no span at all."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[object]:
        return nullcontext()

    def serving(self, name: str, traceparent: str) -> AbstractContextManager[object]:
        return nullcontext()

    def under(self, traceparent: str) -> AbstractContextManager[object]:
        return nullcontext()

    def past(
        self, name: str, start_ns: int, end_ns: int, **attributes: Attribute
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def failed(self, reason: str) -> None:
        return None

    def traceparent(self) -> str:
        return ""

    def close(self) -> None:
        return None


OFF: Final[Tracing] = _Off()


def headers_of(tracing: Tracing) -> Mapping[str, str]:
    """The header that goes with a request to another process."""
    traceparent = tracing.traceparent()
    return {HEADER: traceparent} if traceparent else {}
