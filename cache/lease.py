"""Leases: who works on a graph, as the store keeps it, and the check of a writer's claim.

A lease is a small record beside the entries, changed by compare and swap alone. Its epoch grows
with every owner: it is the fencing token of a claim, which a writer shows with an entry. A writer
whose epoch is over may be slow, stopped or cut off, and need not know: its entry is refused.
(Gray and Cheriton, Leases, 1989; fencing as in Burrows, The Chubby lock service, 2006.)
When a lease may be taken is not decided here but in `farm.lease`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cache import key as keys
from cache import protocol as wire
from cache.errors import Fenced, NewerVersion, ProtocolError
from cache.protocol import Value
from cache.store import SwapStore

VERSION: Final = 1
MAX_TERM_S: Final = 3600.0
_OWNER: Final = re.compile(r"[0-9a-f]{16,64}")
_PROOF: Final = re.compile(r"[0-9a-f]{64}")
_ADDRESS: Final = re.compile(r"https?://[!-~]{1,250}")
_CLAIM: Final = re.compile(r"([0-9a-f]{16,64}):([0-9]{1,19})")
_FIELDS: Final = ("version", "owner", "address", "proof", "epoch", "beat", "term_s", "released")


@dataclass(frozen=True, slots=True)
class Lease:
    """``owner`` works on what the record is named after.

    owner: a random name of the process, in hex. address: where it answers questions about the work.
    proof: shows that the address is of one of us (`farm.peers`). epoch: grows with each owner.
    beat: grows with each renewal, so that no two values of a record are equal. term_s: who has seen
    the record unchanged for so many seconds may take it. released: anybody may.
    """

    owner: str
    address: str
    proof: str
    epoch: int
    beat: int
    term_s: float
    released: bool = False

    def __post_init__(self) -> None:
        named = (_OWNER, self.owner), (_PROOF, self.proof), (_ADDRESS, self.address)
        if not all(pattern.fullmatch(text) for pattern, text in named):
            raise ProtocolError("a lease's owner, proof or address is malformed")
        if not 0 < self.epoch < 2**60 or not 0 <= self.beat < 2**60:
            raise ProtocolError("a lease's epoch or beat is out of range")
        if not 0 < self.term_s <= MAX_TERM_S:
            raise ProtocolError(f"a lease's term is not within 0 and {MAX_TERM_S:g} s")

    @property
    def claim(self) -> Claim:
        """What the owner shows with an entry."""
        return Claim(self.owner, self.epoch)

    def encode(self) -> bytes:
        """The record's bytes."""
        body: dict[str, Value] = {"version": VERSION}
        body.update({name: getattr(self, name) for name in _FIELDS[1:]})
        return wire.pack(body)

    @classmethod
    def decode(cls, data: bytes) -> Lease:
        """Raises NewerVersion, TooLarge, ProtocolError."""
        value = wire.unpack(data, max_bytes=wire.MAX_RECORD, max_depth=2)
        version = value.get("version") if isinstance(value, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise NewerVersion(f"a lease of version {version}; this side reads {VERSION}")
        body = wire.fields(value, "lease", _FIELDS)
        texts = [body[name] for name in ("owner", "address", "proof")]
        counts = [body[name] for name in ("epoch", "beat")]
        term_s, released = body["term_s"], body["released"]
        owner, address, proof = (item if isinstance(item, str) else "" for item in texts)
        epoch, beat = (item if type(item) is int else -1 for item in counts)
        if version != VERSION or not isinstance(term_s, float) or not isinstance(released, bool):
            raise ProtocolError("a lease's version, term or release is malformed")
        return cls(owner, address, proof, epoch, beat, term_s, released)


@dataclass(frozen=True, slots=True)
class Claim:
    """A writer's word that an entry is its to write, which the lease must bear out."""

    owner: str
    epoch: int

    def header(self) -> str:
        """As it travels beside an entry."""
        return f"{self.owner}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Raises ProtocolError."""
        match = _CLAIM.fullmatch(text)
        if match is None:
            raise ProtocolError(f"not a claim: {text[:90]!r}")
        return cls(match.group(1), int(match.group(2)))


def lease_of(key: str) -> str:
    """The name of the record that says who may write the entry under a key."""
    return f"{keys.LEASE}/{keys.parse(key)[1]}"


def check_claim(store: SwapStore, key: str, claim: Claim) -> None:
    """Raise Fenced unless the claim is of the lease that stands. Or what the store raises.

    A lease that nobody has renewed still bears out its owner's claim, until somebody takes it.
    """
    data = store.get_record(lease_of(key))
    lease = None if data is None else Lease.decode(data)
    if lease is None or lease.released or lease.claim != claim:
        now = "nobody's" if lease is None or lease.released else f"of epoch {lease.epoch}"
        raise Fenced(f"epoch {claim.epoch} may not write {key[:24]}…: its lease is {now}")
