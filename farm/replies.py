"""What the gateway's routes share: who may call, and how a refusal is told."""

from __future__ import annotations

import math

from cache.asgi import Request, Response
from cache.auth import ROLES, allows, role_of
from cache.protocol import MSGPACK, ROLE_HEADER, Value, pack
from farm.config import FarmConfig
from fusec.remote.protocol import Refusal


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.status = status
        self.refusal = refusal


def authorise(config: FarmConfig, request: Request) -> None:
    """The caller is the cache service. Raises Refused."""
    if config.token and role_of(config.grants(), request.headers.get("authorization", "")) is None:
        raise Refused(401, Refusal("Refused", "the cache service's token for the farm is needed"))


def has_role(config: FarmConfig, request: Request, needed: str) -> bool:
    """Whether the cache service says that its caller has a role, or one above it."""
    # An open gateway is called by its own machine alone, which may do everything there.
    role = request.headers.get(ROLE_HEADER, "read" if config.token else ROLES[-1])
    return role in ROLES and allows(role, needed)


def refusal_response(status: int, refusal: Refusal) -> Response:
    """A refusal as an answer, with Retry-After where it says when to come again."""
    body: dict[str, Value] = refusal.to_wire()
    headers: tuple[tuple[str, str], ...] = ()
    if refusal.retry_after_s is not None:
        headers = (("retry-after", str(math.ceil(refusal.retry_after_s))),)
    return Response(status, pack(body), MSGPACK, headers)
