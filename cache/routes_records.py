"""Records: small values that gateways of the farm change by compare and swap. Never in memory."""

from __future__ import annotations

from cache import protocol as wire
from cache.asgi import Request, Response, packed
from cache.conditions import Condition
from cache.errors import ProtocolError
from cache.service_state import Caller, ServiceState


async def record_get(state: ServiceState, caller: Caller, request: Request, name: str) -> Response:
    """A record: 200 with its bytes as they are at this moment, or 404."""
    data = await caller.space.reader.call(caller.space.store.get_record, name)
    return Response(404) if data is None else Response(200, data, wire.OCTETS)


async def record_swap(state: ServiceState, caller: Caller, request: Request, name: str) -> Response:
    """Create a record (If-None-Match: *) or change the one that was seen (If-Match): 200 or 412."""
    condition = Condition.of(request)
    if not condition.create and condition.expected is None:
        raise ProtocolError("a record is written under a condition only")
    data = await request.body(wire.MAX_RECORD)
    store = caller.space.store
    if await caller.space.reader.call(store.swap_record, name, condition.expected, data):
        return packed(200, {})
    message = "another value stands in this record"
    return packed(412, {"error": {"kind": "Conflict", "message": message}})
