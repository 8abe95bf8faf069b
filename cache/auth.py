"""Who may do what: bearer tokens with roles, kept as SHA-256, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cache.errors import ConfigError

ROLES = ("read", "submit", "write", "admin")
"""From least to most; each may do what those before it may."""

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Grant:
    """A role for whoever holds the token with this SHA-256 (64 hex characters)."""

    role: str
    sha256: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"role {self.role[:20]!r} is not one of {', '.join(ROLES)}")
        if _HASH.fullmatch(self.sha256) is None:
            raise ConfigError(
                f"the {self.role} token is not a SHA-256 in hex",
                hint="configure the hash of a token, not the token: `python -m cache token`",
            )

    @classmethod
    def parse(cls, text: str) -> Grant:
        """From `role:sha256`. Raises ConfigError without showing what might be a token."""
        role, colon, hashed = text.strip().partition(":")
        if not colon:
            raise ConfigError("a token setting is not of the form role:sha256")
        return cls(role, hashed)


def hash_token(token: str) -> str:
    """What the configuration holds for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def role_of(grants: Sequence[Grant], authorization: str) -> str | None:
    """The highest role that an Authorization header gives, or None.

    Every grant is compared, in constant time, whatever matches.
    """
    scheme, _, token = authorization.partition(" ")
    hashed = hash_token(token.strip())
    best = -1
    for grant in grants:
        same = hmac.compare_digest(grant.sha256, hashed)
        best = max(best, ROLES.index(grant.role) if same else -1)
    return ROLES[best] if best >= 0 and scheme.lower() == "bearer" else None


def allows(role: str, needed: str) -> bool:
    """Whether a holder of `role` may do what needs `needed`."""
    return ROLES.index(role) >= ROLES.index(needed)
