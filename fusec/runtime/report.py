"""The numbers that an artifact carries about itself."""

from __future__ import annotations

import msgpack

from fusec.errors import LoadError
from fusec.runtime.format import ARTIFACT_FORMAT


def report_of(meta: bytes) -> dict[str, int]:
    """Counts by name from a graph manifest's metadata. Raises LoadError for malformed bytes."""
    try:
        body = msgpack.unpackb(meta, raw=False)
        if body["v"] != ARTIFACT_FORMAT:
            raise LoadError(f"artifact format {body['v']!r:.20} is not {ARTIFACT_FORMAT}")
        return {str(k): int(v) for k, v in body["report"]}
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise LoadError(f"an artifact's metadata does not decode: {error}") from error
