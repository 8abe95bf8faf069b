"""Who may do what, and where: bearer tokens with roles, kept as SHA-256, compared in constant time.

A token is rotated with overlap: the service is given the new one's hash beside the old one's, the
holders change, the old hash is taken out.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cache.errors import ConfigError, ProtocolError
from cache.key import require_namespace

ROLES = ("read", "submit", "write", "admin")
"""From least to most; each may do what those before it may."""

EVERYWHERE = "*"
"""In the place of a namespace: all of them."""

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Grant:
    """A role in one namespace for whoever holds the token with this SHA-256 (64 hex characters).

    `namespace`: "" is the default one, EVERYWHERE is all.
    """

    role: str
    sha256: str
    namespace: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"role {self.role[:20]!r} is not one of {', '.join(ROLES)}")
        if _HASH.fullmatch(self.sha256) is None:
            raise ConfigError(
                f"the {self.role} token is not a SHA-256 in hex",
                hint="configure the hash of a token, not the token: `python -m cache token`",
            )
        if self.namespace != EVERYWHERE:
            try:
                require_namespace(self.namespace)
            except ProtocolError as error:
                raise ConfigError(error.message, hint=error.hint) from error

    @classmethod
    def parse(cls, text: str) -> Grant:
        """From `role:sha256` or `role:sha256:namespace`.

        Raises ConfigError without showing what might be a token.
        """
        role, colon, rest = text.strip().partition(":")
        if not colon:
            raise ConfigError("a token setting is not of the form role:sha256[:namespace]")
        hashed, _, namespace = rest.partition(":")
        return cls(role, hashed, namespace)

    def reaches(self, namespace: str) -> bool:
        """Whether it counts in a namespace."""
        return self.namespace in (namespace, EVERYWHERE)


def hash_token(token: str) -> str:
    """What the configuration holds for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_known(grants: Sequence[Grant], authorization: str) -> bool:
    """Whether an Authorization header holds a valid token, for whatever namespace."""
    return any(_matching(grants, authorization))


def role_of(grants: Sequence[Grant], authorization: str, namespace: str = "") -> str | None:
    """The highest role that an Authorization header gives in a namespace, or None."""
    matching = zip(grants, _matching(grants, authorization), strict=True)
    best = max(
        (ROLES.index(grant.role) for grant, same in matching if same and grant.reaches(namespace)),
        default=-1,
    )
    return ROLES[best] if best >= 0 else None


def bearer_of_basic(authorization: str) -> str | None:
    """The header that shows the password of a Basic one as a token, None where it is no such.

    For a browser, which asks its user for a name and a password; the name is not looked at.
    """
    scheme, _, coded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        _, _, password = base64.b64decode(coded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return f"Bearer {password}"


def _matching(grants: Sequence[Grant], authorization: str) -> list[bool]:
    """Which grants are this token's. Every one is compared, in constant time, whatever matches."""
    scheme, _, token = authorization.partition(" ")
    hashed = hash_token(token.strip())
    bearer = scheme.lower() == "bearer"
    return [hmac.compare_digest(grant.sha256, hashed) and bearer for grant in grants]


def allows(role: str, needed: str) -> bool:
    """Whether a holder of `role` may do what needs `needed`."""
    return ROLES.index(role) >= ROLES.index(needed)
