"""The service's status page: what was read, from where, and what to do when nothing was yet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

from cache.asgi import Request, Response
from cache.metrics import ServiceMetrics
from cache.page import document, figures, table
from cache.protocol import PATH_METRICS, PATH_READY, Value
from cache.quantities import duration, percent, size
from cache.service_state import ServiceState

_READS: Final = ("kind", "from memory", "from the store", "not there", "answered")


def render(state: ServiceState, request: Request, store: Mapping[str, Value] | str) -> Response:
    """The page. store: what the store says of itself, or why it does not."""
    reads = _Reads(state.metrics)
    links = [(PATH_METRICS, "metrics"), (PATH_READY, "readiness")]
    if state.gateways.urls:
        links.append(("/farm", "compile farm (role admin, the token as the password)"))
    body = figures(
        (
            ("up for", duration(time.time() - state.started)),
            ("reads answered", percent(reads.answered())),
            ("of these from memory", percent(reads.from_memory())),
            ("kept in memory", size(state.memory_used)),
            ("bytes sent", size(_total(state.metrics, "fusec_cache_bytes", direction="out"))),
            ("errors", f"{_total(state.metrics, 'fusec_cache_errors'):.0f}"),
        )
    )
    if isinstance(store, str):
        body += (
            f'<p class="bad">The store is not reachable: {escape(store)}. What is in memory is '
            "still answered.</p>"
        )
    body += reads.table() if reads.kinds() else _first_steps(state, request)
    body += table("Set-up", ("what", "value"), _setup(state, store))
    return document(request, "fusec cache", body, links)


class _Reads:
    """Reads since the start, by kind of what was asked for."""

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._tiers: dict[str, Counter[str]] = {"memory": Counter(), "store": Counter()}
        self._misses: Counter[str] = Counter()
        for labels, value in _samples(metrics, "fusec_cache_hits"):
            self._tiers[labels["tier"]][labels["kind"]] += int(value)
        for labels, value in _samples(metrics, "fusec_cache_misses"):
            self._misses[labels["kind"]] += int(value)

    def kinds(self) -> list[str]:
        counted = (*self._tiers.values(), self._misses)
        return sorted({kind for counts in counted for kind, count in counts.items() if count})

    def answered(self) -> float | None:
        hits = sum(counts.total() for counts in self._tiers.values())
        return _share(hits, hits + self._misses.total())

    def from_memory(self) -> float | None:
        hits = sum(counts.total() for counts in self._tiers.values())
        return _share(self._tiers["memory"].total(), hits)

    def table(self) -> str:
        rows = []
        for kind in self.kinds():
            memory, store = self._tiers["memory"][kind], self._tiers["store"][kind]
            hits, misses = memory + store, self._misses[kind]
            share = percent(_share(hits, hits + misses))
            rows.append((kind, f"{memory:,}", f"{store:,}", f"{misses:,}", share))
        return table("Reads since the start", _READS, rows, numbers=_READS[1:])


def _first_steps(state: ServiceState, request: Request) -> str:
    """What there is to see comes from a job: how to start one."""
    address = f"{state.config.tls().scheme}://{request.headers.get('host', 'this-host')}"
    lines = [f"export FUSEC_REMOTE={address}"]
    if state.config.tokens:
        lines += ["# a token with the role submit", "export FUSEC_TOKEN_FILE=~/.fusec-token"]
    lines += [
        "# the public key of the farm",
        "export FUSEC_TRUSTED_KEYS=~/trusted.keys",
        "# is all of it right?",
        "fusec doctor",
        "# a program with torch.compile(model, backend='fusec')",
        "python train.py",
    ]
    return (
        "<h2>Nothing has been read yet</h2><p>Let a training job use this service, and start it "
        f"twice: the second start compiles nothing.</p><pre>{escape(chr(10).join(lines))}</pre>"
    )


def _setup(state: ServiceState, store: Mapping[str, Value] | str) -> Iterator[tuple[str, str]]:
    urls = state.gateways.urls
    silent = f" ({state.gateways.down} silent)" if state.gateways.down else ""
    yield "compile farm", ", ".join(urls) + silent if urls else "none: jobs compile what they miss"
    yield "access", "by token" if state.config.tokens else "open to this machine, without tokens"
    if state.config.insecure and not state.config.tokens:
        yield "beware", "anybody who reaches this address may read and write"
    if not isinstance(store, str):
        for name, value in store.items():
            yield from _described(f"store: {name}", value)


def _described(name: str, value: Value) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _described(f"{name}: {part}", inner)
    elif name.endswith(": bytes") and isinstance(value, int):
        yield name, size(value)
    else:
        yield name, f"{value:,}" if type(value) is int else str(value)


def _samples(metrics: ServiceMetrics, family: str) -> Iterator[tuple[dict[str, str], float]]:
    for found in metrics.registry.collect():
        if found.name == family:
            for sample in found.samples:
                if sample.name.endswith("_total"):
                    yield sample.labels, sample.value


def _total(metrics: ServiceMetrics, family: str, **wanted: str) -> float:
    return sum(
        value for labels, value in _samples(metrics, family) if wanted.items() <= labels.items()
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
