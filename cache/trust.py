"""Which entries may be used: the signers that are known, and what is revoked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cache.errors import BadSignature, Revoked, UnknownSigner, Unsigned
from cache.manifest import Manifest
from cache.revocation import NONE, Revocations
from cache.seal import Seal, split
from cache.signing import PublicKey


@dataclass(frozen=True)
class Trust:
    """What a reader believes. The default believes nobody, so that forgetting it is safe.

    `keys`: the signers that are known. `namespace`: the one that entries must be signed for.
    `unsigned`: entries without a seal are taken too: for a store that is the user's own.
    `any_signer`: seals are not looked at. `revoked`: what is refused whoever signed it.
    """

    keys: tuple[PublicKey, ...] = ()
    namespace: str = ""
    unsigned: bool = False
    any_signer: bool = False
    revoked: Revocations = NONE

    def open(self, key: str, entry: bytes) -> tuple[Seal | None, bytes]:
        """The seal and the manifest's bytes of an entry that may be used under `key`.

        Nothing is decoded before its signature is checked. Raises Untrusted (Unsigned,
        UnknownSigner, BadSignature, Revoked), NewerVersion, ProtocolError.
        """
        seal, manifest = split(entry)
        reason = self.revoked.reason(key, seal)
        if reason is not None:
            raise Revoked(f"entry {key[:24]}…: {reason}")
        if seal is None:
            if not self.unsigned:
                raise Unsigned(f"entry {key[:24]}… is not signed")
        elif not self.any_signer:
            signer = self._by_signer.get(seal.signer)
            if signer is None:
                raise UnknownSigner(f"entry {key[:24]}… is signed by {seal.signer[:16]}…")
            if not seal.holds(signer, self.namespace, key, manifest):
                raise BadSignature(f"entry {key[:24]}…: the signature does not hold")
        return seal, manifest

    def check(self, key: str, manifest: Manifest) -> None:
        """Raise Revoked for a manifest that names something revoked."""
        reason = self.revoked.reason_in(manifest)
        if reason is not None:
            raise Revoked(f"entry {key[:24]}…: {reason}")

    @cached_property
    def _by_signer(self) -> dict[str, PublicKey]:
        return {key.signer: key for key in self.keys}


NOBODY: Final = Trust()
"""Believes nothing."""
OWN_STORE: Final = Trust(unsigned=True, any_signer=True)
"""Believes a store that only this user can write to."""


def signed_by(keys: Sequence[PublicKey], namespace: str = "") -> Trust:
    """Believes what one of these has signed for the namespace."""
    return Trust(tuple(keys), namespace)
