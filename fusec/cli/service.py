"""What the command line asks a cache service: alive, ready, allowed, its metrics.

The compiler's own client spends a delay budget and never raises for long; a person at a terminal
wants the plain answer instead.
"""

from collections import defaultdict
from types import TracebackType

import httpx

from cache.protocol import (
    MSGPACK,
    PATH_HEALTH,
    PATH_LOOKUP,
    PATH_METRICS,
    PATH_READY,
    pack,
)
from fusec.options import Options
from fusec.remote.resolve import tls_of, token_of

# Samples of a /metrics page: (name, labels) -> value.
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
_METRICS_LIMIT = 4 << 20


class Service:
    """A cache service at `options.remote`; every method may raise httpx.HTTPError.

    seconds: how long one request may take. Raises OptionsError, ConfigError for files of tokens and
    certificates that are none.
    """

    def __init__(self, options: Options, seconds: float) -> None:
        url, token = options.remote or "", token_of(options)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        verify = tls_of(options).context() if url.startswith("https:") else False
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=seconds, trust_env=False, verify=verify
        )

    def __enter__(self) -> "Service":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def alive(self) -> bool:
        """Whether the process answers."""
        return self._client.get(PATH_HEALTH).status_code == 200

    def ready(self) -> bool:
        """Whether it reaches its store."""
        return self._client.get(PATH_READY).status_code == 200

    def lookup_status(self) -> int:
        """The status of a lookup of nothing: 200 when our token may read."""
        headers = {"content-type": MSGPACK}
        return self._client.post(
            PATH_LOOKUP, content=pack({"keys": []}), headers=headers
        ).status_code

    def metrics(self) -> Samples:
        """Its counters. Raises httpx.HTTPStatusError for an answer that is not 200."""
        reply = self._client.get(PATH_METRICS).raise_for_status()
        return parse_metrics(reply.text[:_METRICS_LIMIT])


def parse_metrics(text: str) -> Samples:
    """Samples of Prometheus's text format; lines that are none are passed over."""
    samples: Samples = {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        labels, _, value = rest.rpartition("}") if "{" in line else ("", "", rest)
        try:
            number = float(value.split()[0])
        except (ValueError, IndexError):
            continue
        pairs = [pair.partition("=") for pair in labels.split(",") if "=" in pair]
        key = tuple(sorted((k.strip(), v.strip().strip('"')) for k, _, v in pairs))
        samples[name.strip(), key] = number
    return samples


def total(samples: Samples, name: str, by: str) -> dict[str, float]:
    """A metric added up by one of its labels."""
    sums: defaultdict[str, float] = defaultdict(float)
    for (metric, labels), value in samples.items():
        if metric == name:
            sums[dict(labels).get(by, "")] += value
    return dict(sums)
