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
from fusec.errors import OptionsError
from fusec.options import Options

# Samples of a /metrics page: (name, labels) -> value.
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
_METRICS_LIMIT = 4 << 20


def bearer_token(options: Options) -> str | None:
    """The token, from the option or its file. Raises OptionsError when the file is not readable."""
    if options.token is not None:
        return options.token
    if options.token_file is None:
        return None
    try:
        return options.token_file.read_text().strip()
    except OSError as error:
        raise OptionsError(
            f"the token file cannot be read: {error.strerror}",
            where=str(options.token_file),
            hint="check FUSEC_TOKEN_FILE",
        ) from error


class Service:
    """A cache service at `options.remote`; every method may raise httpx.HTTPError.

    seconds: how long one request may take.
    """

    def __init__(self, options: Options, seconds: float) -> None:
        token = bearer_token(options)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            base_url=options.remote or "", headers=headers, timeout=seconds, trust_env=False
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
