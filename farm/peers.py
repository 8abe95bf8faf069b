"""Other gateways: asked how far a job is that is theirs.

Their addresses are read from leases, so from a store that others may write to. The token that
gateways share goes only to an address that was written by one who knows it: the proof of a lease is
an HMAC of the address under that token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from ssl import SSLContext
from typing import Final

import httpx

from cache.errors import CacheError
from cache.lease import Lease
from cache.protocol import NAMESPACE_HEADER, PATH_COMPILE, unpack
from farm.job import JobId
from farm.lease import Member
from fusec.errors import WireError
from fusec.remote.protocol import MAX_STATUS, JobStatus

log = logging.getLogger("fusec.farm")

PEER: Final = "peer"
"""A parameter of a gateway's question: it is not to be passed on again."""
CONNECT_S: Final = 1.0
ANSWER_S: Final = 2.0


def new_member(address: str, token: str, term_s: float) -> Member:
    """This gateway, under a new name, as others will see it."""
    owner = secrets.token_hex(16)
    return Member(owner, address, address_proof(token, owner, address), term_s)


def address_proof(token: str, owner: str, address: str) -> str:
    """What shows that one who knows the token has named this address."""
    text = f"fusec gateway {owner} {address}"
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


class Peers:
    """Asks other gateways; ``me`` waits for their jobs under its own name.

    verify: certificates to trust where they serve https. name: what these must name, by default
    the address that is asked. transport: another way to them than the network. Lives in one event
    loop.
    """

    def __init__(
        self,
        me: Member,
        token: str,
        verify: SSLContext | bool = True,
        *,
        name: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._me = me
        self._token = token
        self._verify = verify
        self._extensions = {"sni_hostname": name} if name else {}
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    async def ask(
        self, lease: Lease, job: JobId, after: int, wait_s: float, waiter: str = ""
    ) -> JobStatus | None:
        """How a job stands with its owner, once that is newer than `after`; None when there is no
        telling. waiter: who waits, if it is not this gateway."""
        params = {"wait": f"{wait_s:.3f}", "after": str(after), "waiter": waiter or self._me.owner}
        reply = await self._request("GET", lease, job, params, wait_s)
        if reply is None or reply.status_code != 200 or len(reply.content) > MAX_STATUS:
            return None
        try:
            status = JobStatus.from_wire(unpack(reply.content, max_bytes=MAX_STATUS))
        except (CacheError, WireError) as error:
            log.warning("%s makes no sense: %s", lease.address, error, extra={"action": "follow"})
            return None
        return status if status.fingerprint == job.fingerprint else None

    async def leave(self, lease: Lease, job: JobId) -> None:
        """Nobody here waits for the job any more."""
        await self._request("DELETE", lease, job, {"waiter": self._me.owner}, 0.0)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()

    async def _request(
        self, method: str, lease: Lease, job: JobId, params: Mapping[str, str], wait_s: float
    ) -> httpx.Response | None:
        proof = address_proof(self._token, lease.owner, lease.address)
        if not hmac.compare_digest(proof, lease.proof):
            return None  # of a farm with another token, or of nobody we know
        if lease.address == self._me.address:
            return None  # this gateway's, before it was started again: it knows no more
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        if job.tenant:
            headers[NAMESPACE_HEADER] = job.tenant
        if self._http is None:
            self._http = httpx.AsyncClient(
                trust_env=False, verify=self._verify, transport=self._transport
            )
        try:
            return await self._http.request(
                method,
                f"{lease.address}{PATH_COMPILE}/{job.fingerprint}",
                params={**params, PEER: "1"},
                headers=headers,
                timeout=httpx.Timeout(wait_s + ANSWER_S, connect=CONNECT_S),
                extensions=self._extensions,
            )
        except httpx.HTTPError:
            return None  # it may be dead: its lease will tell
