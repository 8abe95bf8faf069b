"""Questions to a service over HTTP, and its answers."""

import httpx

from cache.protocol import MSGPACK, Value, pack, unpack

FRAME = {"content-encoding": "zstd"}
PACKED = {"content-type": MSGPACK}


def post(http: httpx.Client, path: str, value: object) -> httpx.Response:
    return http.post(path, content=pack(value), headers=PACKED)


def value(response: httpx.Response) -> Value:
    return unpack(response.content, max_bytes=1 << 26)
