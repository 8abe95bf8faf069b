"""The farm's front: a plain ASGI application over the coordinator.

    POST   /v1/compile/{fingerprint}   join a graph's job, or be told to submit it: ?wait=SECONDS
    POST   /v1/compile/submit          take a graph in, or publish a front record
    GET    /v1/compile/{fingerprint}   long-poll: ?wait=SECONDS&after=SEQ&waiter=ID
    DELETE /v1/compile/{fingerprint}   ?waiter=ID waits no more
    /v1/farm/…  /farm  /               for operators, see `farm.routes_admin`
    GET    /healthz /readyz /metrics

It stands behind the cache service, which knows the users' tokens; its own token is the service's.
The service says for which namespace a request is, which is the tenant, and which role its caller
has. A tenant has a store and signatures of its own, and its share of the one queue.

A front record is the word of whoever submits it: that a Dynamo graph, which only the submitter has,
leads to these artifacts by this recipe. The farm cannot derive it again, so it signs the records of
callers with the role `front_role` (by default those who may write anyway) and refuses the others.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final

from cache.asgi import App, Receive, Request, Response, Scope, Send
from cache.errors import CacheError, TooLarge
from cache.protocol import MAX_SUBMIT, NAMESPACE_HEADER, PATH_COMPILE, pack
from cache.tracing import HEADER
from farm import routes_admin
from farm.config import FarmConfig
from farm.coordinator import Coordinator
from farm.job import JobId
from farm.peers import PEER
from farm.pool import TaskFailed
from farm.quota import QueueFull
from farm.replies import Refused, authorise, has_role, refusal_response
from farm.spaces import Space, UnknownNamespace
from fusec.artifact.fingerprint import Fingerprint, diff
from fusec.errors import WireError
from fusec.remote.jobs import FrontRecord
from fusec.remote.protocol import (
    DRAINING,
    FRONT_REFUSED,
    MAX_JOIN,
    MAX_WAIT_S,
    SUBMIT_PATH,
    FarmJob,
    JobState,
    JobStatus,
    Join,
    Refusal,
    decode_submit,
    is_waiter,
)

log = logging.getLogger("fusec.farm")
_JOB: Final = re.compile(re.escape(PATH_COMPILE) + "/([0-9a-f]{64})")
DRAIN_RETRY_S: Final = 10.0
FRESH_S: Final = 1.0
"""What has ended no longer ago is taken as it is: a crowd that waited for it need not all look."""
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


def create_app(config: FarmConfig, open_coordinator: Callable[[], Coordinator]) -> App:
    """The application; the coordinator is made in the server's event loop."""
    running: list[Coordinator] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            running.append(open_coordinator())
            await running[0].open()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await running.pop().close()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            response = await _traced(config, running[0], Request.of(scope, receive))
            await response.send(send)

    return app


async def _traced(config: FarmConfig, farm: Coordinator, request: Request) -> Response:
    name = "submit" if request.method == "POST" else "poll" if request.method == "GET" else "cancel"
    with farm.tracing.gateway.serving(name, request.headers.get(HEADER, "")):
        return await _answer(config, farm, request)


async def _answer(config: FarmConfig, farm: Coordinator, request: Request) -> Response:
    try:
        return await _route(config, farm, request)
    except Refused as error:
        return refusal_response(error.status, error.refusal)
    except QueueFull as error:
        farm.metrics.submits.labels("full").inc()
        farm.metrics.refused.labels(error.limit.value).inc()
        hint = "wait and submit again; an operator may raise the limit (docs/farm.md)"
        refusal = Refusal("QueueFull", str(error), hint, farm.retry_after_s())
        return refusal_response(429, refusal)
    except UnknownNamespace as error:
        return refusal_response(404, Refusal("UnknownNamespace", str(error)))
    except TooLarge as error:
        return refusal_response(413, Refusal("TooLarge", error.message))
    except (WireError, CacheError) as error:
        farm.metrics.submits.labels("refused").inc()
        return refusal_response(400, Refusal(type(error).__name__, error.message, error.hint or ""))
    except TaskFailed as error:
        return refusal_response(503, Refusal(error.kind.value, error.message))


async def _route(config: FarmConfig, farm: Coordinator, request: Request) -> Response:
    if request.path.startswith(PATH_COMPILE):
        authorise(config, request)
        tenant = request.headers.get(NAMESPACE_HEADER, "")
        space = farm.spaces.of(tenant)
        if request.path == SUBMIT_PATH and request.method == "POST":
            return await _submit(config, farm, space, tenant, request)
        match = _JOB.fullmatch(request.path)
        name = JobId(tenant, match.group(1) if match is not None else "")
        if match is not None and request.method == "POST":
            return await _join(farm, space, request, name)
        if match is not None and request.method == "GET":
            return await _poll(farm, request, name)
        if match is not None and request.method == "DELETE":
            return _cancel(farm, request, name)
    elif request.method == "GET":
        if request.path == "/healthz":
            return Response(200, b"ok\n", _TEXT)
        if request.path == "/readyz":
            ready = await farm.spaces.default.shelf.ready()
            return Response(200 if ready else 503, b"ready\n" if ready else b"no store\n", _TEXT)
        if request.path == "/metrics":
            farm.reporter.measure(draining=farm.draining)
            return Response(200, farm.metrics.render(), _TEXT)
    operated = await routes_admin.answer(config, farm, request)
    if operated is not None:
        return operated
    raise Refused(404, Refusal("NotFound", f"no {request.method} {request.path[:100]} here"))


async def _submit(
    config: FarmConfig, farm: Coordinator, space: Space, tenant: str, request: Request
) -> Response:
    body = await request.body(MAX_SUBMIT)
    submitted = await asyncio.to_thread(decode_submit, body)
    if isinstance(submitted, FrontRecord):
        _check_vouches(config, farm, request)
        return await _publish_front(farm, space, submitted)
    farm.metrics.received.inc()
    name = JobId(tenant, submitted.fingerprint)
    await _check_fingerprint(farm, name, submitted)
    job = farm.find(name)
    # Not in flight: after a restart of the gateway, or long ago, it may have been published.
    if (job is None or job.state.final) and await _stands(farm, space, name):
        farm.found(tenant, submitted)
        return _done(farm, name)
    _check_draining(farm, name)
    return _status(202, farm.status(farm.submit(tenant, submitted)))


async def _join(farm: Coordinator, space: Space, request: Request, name: JobId) -> Response:
    """Wait for a graph's job without sending the graph, as most ranks of a training job can. 404
    tells the client to submit it: nobody else has, or is about to."""
    wish = Join.from_wire(await request.value(MAX_JOIN))
    until = farm.now() + min(_number(request.params(), "wait"), MAX_WAIT_S)
    while True:
        job = farm.find(name)
        ended_at = None if job is None else job.ended_at
        old = ended_at is not None and farm.now() - ended_at > FRESH_S
        if (old or (job is None and farm.draining)) and await _stands(farm, space, name):
            return _done(farm, name)
        _check_draining(farm, name)
        if farm.join(name, wish.waiter, wish.priority):
            job = await farm.changes.watch(name, wish.waiter, 0, until - farm.now())
            if job is not None:
                return _status(200, farm.status(job))
        if farm.arrivals.claim(name) or farm.now() >= until:
            raise Refused(404, Refusal("UnknownJob", "this graph is not here: submit it"))
        await farm.arrivals.wait(name, until)


async def _stands(farm: Coordinator, space: Space, name: JobId) -> bool:
    """Whether the artifact of a graph that is not in flight is in the store. A job that says so
    wrongly is forgotten."""
    if await space.shelf.has(f"graph/{name.fingerprint}"):
        return True
    job = farm.find(name)
    if job is not None and job.state is JobState.DONE:
        farm.drop(name)
    return False


def _done(farm: Coordinator, name: JobId) -> Response:
    farm.metrics.submits.labels("stored").inc()
    return _status(200, JobStatus(name.fingerprint, JobState.DONE, seq=1))


def _check_draining(farm: Coordinator, name: JobId) -> None:
    """Nobody waits for a farm that begins nothing; what is in work already is waited for."""
    if farm.refuses(name):
        text = "the farm is being drained: it ends what it has begun and begins nothing new"
        raise Refused(503, Refusal(DRAINING, text, "", DRAIN_RETRY_S))


async def _check_fingerprint(farm: Coordinator, name: JobId, job: FarmJob) -> None:
    """Nobody may have one graph compiled under another's key."""
    entries = await asyncio.to_thread(farm.stages.fingerprint, job.graph, job.target, job.options)
    here = Fingerprint(entries)
    if here.hex == job.fingerprint:
        return
    farm.arrivals.refused(name)
    farm.metrics.submits.labels("refused").inc()
    names = ", ".join(diff(here, Fingerprint(job.entries))) or "the fingerprint itself"
    hint = "run the same fusec and torch on both sides, and restart the farm after a change"
    text = f"the farm computes another fingerprint for this graph; what differs: {names}"
    raise Refused(422, Refusal("FingerprintMismatch", text, hint))


def _check_vouches(config: FarmConfig, farm: Coordinator, request: Request) -> None:
    """Whether the caller's word is good for a front record."""
    if has_role(config, request, config.front_role):
        return
    farm.metrics.submits.labels("refused").inc()
    text = f"front records are taken from callers with the role {config.front_role}"
    hint = "let a job with such a token run the model once, or set FUSEC_FARM_FRONT_ROLE"
    raise Refused(403, Refusal(FRONT_REFUSED, text, hint))


async def _publish_front(farm: Coordinator, space: Space, record: FrontRecord) -> Response:
    farm.metrics.submits.labels("front").inc()
    if not await space.shelf.publish_front(record):
        text = "an artifact that this front record leads to is not in the store"
        raise Refused(409, Refusal("MissingPart", text))
    return Response(200, pack({"published": True}))


async def _poll(farm: Coordinator, request: Request, name: JobId) -> Response:
    params = request.params()
    waiter = params.get("waiter", "")
    if waiter and not is_waiter(waiter):
        raise WireError("the waiter's name is not 1 to 64 letters, digits, - or _")
    wait_s = min(_number(params, "wait"), MAX_WAIT_S)
    after = int(_number(params, "after"))
    job = await farm.changes.watch(name, waiter, after, wait_s)
    if job is not None:
        _check_draining(farm, name)
        return _status(200, farm.status(job))
    if PEER not in params:
        status = await farm.elsewhere(name, waiter, after, wait_s)
        if status is not None:
            return _status(200, status)
    raise Refused(404, Refusal("UnknownJob", "no such job here: submit it again"))


def _cancel(farm: Coordinator, request: Request, name: JobId) -> Response:
    waiter = request.params().get("waiter", "")
    if not is_waiter(waiter):
        raise WireError("a cancel must name its waiter: ?waiter=ID")
    farm.leave(name, waiter)
    return Response(200, pack({}))


def _number(params: dict[str, str], name: str) -> float:
    try:
        value = float(params.get(name, "0"))
    except ValueError as error:
        raise WireError(f"{name} is no number") from error
    if not 0 <= value < 2**31:  # also refuses a NaN
        raise WireError(f"{name} is out of range")
    return value


def _status(status: int, job: JobStatus) -> Response:
    return Response(status, pack(job.to_wire()))
