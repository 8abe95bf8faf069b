"""The routes for operators: what the farm does, and what it shall do. See
`fusec.remote.farm_status` for the bodies.

An admin of the default namespace looks after the whole farm. One of another namespace sees and
cancels the jobs of that one, has its graphs tuned, and cannot drain what others use.
"""

from __future__ import annotations

import re
from typing import Final

from cache.asgi import Request, Response
from cache.digest import is_digest
from cache.key import require_namespace
from cache.protocol import NAMESPACE_HEADER, Value, fields, pack
from farm.config import FarmConfig
from farm.coordinator import Coordinator
from farm.replies import Refused, authorise, has_role
from farm.restore import CannotTune, Why
from farm.status_page import render
from fusec.errors import WireError
from fusec.remote.farm_status import (
    CANCEL_PATH,
    DRAIN_PATH,
    MAX_CONTROL,
    PAGE_PATH,
    RETUNE_PATH,
    STATUS_PATH,
    UNDRAIN_PATH,
)
from fusec.remote.protocol import DRAINING, Refusal

_PAGES: Final = ("/", PAGE_PATH)
_ACTIONS: Final = (DRAIN_PATH, UNDRAIN_PATH, CANCEL_PATH, RETUNE_PATH)
_PREFIX: Final = re.compile(r"[0-9a-f]{8,64}")


async def answer(config: FarmConfig, farm: Coordinator, request: Request) -> Response | None:
    """Answer a request of an operator; None for a path that is none. Raises Refused."""
    reads = request.method == "GET" and request.path in (STATUS_PATH, *_PAGES)
    acts = request.method == "POST" and request.path in _ACTIONS
    if not reads and not acts:
        return None
    authorise(config, request)
    if not has_role(config, request, "admin"):
        raise Refused(403, Refusal("Refused", "the role admin is needed"))
    namespace = require_namespace(request.headers.get(NAMESPACE_HEADER, ""))
    if reads:
        status = farm.reporter.status(namespace or None, draining=farm.draining)
        if request.path == STATUS_PATH:
            return Response(200, pack(status.to_wire()))
        return render(request, status)
    # Read as msgpack, which a web page cannot send to another site unasked.
    body = await request.value(MAX_CONTROL)
    if request.path == CANCEL_PATH:
        return _cancel(farm, namespace, body)
    if request.path == RETUNE_PATH:
        return await _retune(farm, namespace, body)
    if namespace:
        text = "the farm is looked after by admins of the default namespace"
        raise Refused(403, Refusal("Refused", text, "leave FUSEC_NAMESPACE empty"))
    fields(body, "a drain", ())
    await farm.drain(on=request.path == DRAIN_PATH)
    return Response(200, pack({"draining": farm.draining}))


def _cancel(farm: Coordinator, namespace: str, body: Value) -> Response:
    prefix = fields(body, "a cancel", ("fingerprint",))["fingerprint"]
    if not isinstance(prefix, str) or _PREFIX.fullmatch(prefix) is None:
        raise WireError("a cancel names 8 to 64 hex digits of a graph's key")
    found = farm.in_flight(namespace, prefix)
    if not found:
        text = f"no job {prefix} waits or runs in this namespace"
        raise Refused(404, Refusal("UnknownJob", text, "`fusec farm status` lists them"))
    if len(found) > 1:
        text = f"{len(found)} jobs begin with {prefix}"
        raise Refused(409, Refusal("Ambiguous", text, "give more digits"))
    farm.cancel(found[0])
    return Response(200, pack({"cancelled": found[0].fingerprint}))


async def _retune(farm: Coordinator, namespace: str, body: Value) -> Response:
    asked = fields(body, "a retune", ("fingerprint",), ("force",))
    key = asked["fingerprint"]
    if not isinstance(key, str) or not is_digest(key):
        hint = "`fusec farm status --json` has whole keys"
        raise WireError("a retune names all 64 hex digits of a graph's key", hint=hint)
    if farm.draining:
        raise Refused(503, Refusal(DRAINING, "the farm is being drained: it begins nothing new"))
    try:
        made = await farm.retuning.begin(namespace, key, force=asked.get("force") is True)
    except CannotTune as error:
        status = 404 if error.why is Why.UNKNOWN else 409
        raise Refused(status, Refusal(error.why, str(error), error.hint)) from error
    return Response(200, pack(made.to_wire()))
