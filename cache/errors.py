"""The error tree of the cache.

    CacheError
    ├── NotReachable     the store or the remote does not answer (or its breaker is open)
    ├── Refused          it answered no: token, permission, configuration
    │   ├── MissingBlobs     an entry names blobs that the store does not hold
    │   ├── Fenced           a writer's lease is over: somebody else does its work
    │   ├── NoSwap           the store cannot change a value under a condition
    │   └── NotBetter        what stands is good, and what was to replace it is no better
    ├── Corrupt          bytes are not what their digest or checksum promises
    ├── TooLarge         a size is over a limit of `cache.protocol`
    ├── ProtocolError    bytes that do not decode to what was agreed
    │   └── NewerVersion     they decode, but were written by a newer version
    ├── Untrusted        an entry that must not be used
    │   ├── Unsigned         nobody has signed it
    │   ├── UnknownSigner    its signer is none of the trusted keys
    │   ├── BadSignature     the signature is not over these bytes under this key
    │   └── Revoked          it is signed, and revoked since
    ├── StoreFull        no space left where the store keeps its bytes
    └── ConfigError      a setting is unknown or does not make sense

Every error carries a `hint`: what a person can do about it. Callers on a training job's path catch
`CacheError`, count it and go on without the cache.
"""

from __future__ import annotations

from typing import ClassVar


class CacheError(Exception):
    """Base of all errors of this package. `str(error)` is the message, followed by the hint."""

    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotReachable(CacheError):
    """The store or the remote gave no usable answer."""

    default_hint = "check the address, the network and that the cache service runs"


class Refused(CacheError):
    """The store or the remote answered, and the answer is no."""

    default_hint = "check the token and its role"


class MissingBlobs(Refused):
    """An entry was to be written that names blobs the store does not hold."""

    default_hint = "write the blobs first, then the entry"


class Fenced(Refused):
    """A writer showed a claim that is not of the lease which stands."""

    default_hint = "another has taken the work over and publishes it; nothing is lost"


class NoSwap(Refused):
    """What was asked for rests on compare and swap, which the store gets wrong."""

    default_hint = (
        "artifacts are kept there all the same; but none is replaced by a tuned one, and the farm "
        "may have one gateway only, without leases (FUSEC_FARM_LEASE_S=0)"
    )


class NotBetter(Refused):
    """An entry was to take the place of one that is as good."""

    default_hint = "only a better artifact takes the place of one that is good"


class Corrupt(CacheError):
    """Bytes do not match their digest."""

    default_hint = "the copy is ignored; it is rebuilt and written again"


class TooLarge(CacheError):
    """A size is over its limit."""

    default_hint = "the limits are in cache.protocol"


class ProtocolError(CacheError):
    """Bytes do not decode to what both sides agreed on."""

    default_hint = "both sides must speak the same version of the protocol"


class NewerVersion(ProtocolError):
    """Bytes were written by a newer version than this one reads."""

    default_hint = "upgrade fusec on this side to use it"


class Untrusted(CacheError):
    """An entry that must not be used, whatever it holds."""

    default_hint = "it counts as a miss; `fusec keys` shows and changes whom this side trusts"


class Unsigned(Untrusted):
    """Nobody has signed the entry."""


class UnknownSigner(Untrusted):
    """The entry's signer is none of the trusted keys."""


class BadSignature(Untrusted):
    """The entry's signature is not over these bytes under this key."""


class Revoked(Untrusted):
    """The entry was good once and is revoked."""


class StoreFull(CacheError):
    """No space is left in the store."""

    default_hint = "free some space or choose another directory; nothing is lost but the speed-up"


class ConfigError(CacheError):
    """A setting is unknown or does not make sense."""

    default_hint = "see `python -m cache serve --help`"
