"""How good an artifact is known to be: whether its kernels were timed, and whether its results were
checked. Part of a graph manifest's metadata; never of a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import msgpack

from cache.manifest import FINAL_TIER, Manifest
from fusec.errors import WireError

_FIELD: Final = "quality"
_TEXT: Final = 400
_UNFINISHED: Final = 5


class Tier(StrEnum):
    """Who chose the variants of the kernels."""

    SINGLE = "single"  # there is one way to build each kernel
    UNTUNED = "untuned"  # the cost model: no GPU has timed them
    TUNED = "tuned"  # a GPU's clock


class Outcome(StrEnum):
    """What a verification came to."""

    PASSED = "passed"
    FAILED = "failed"  # the results are wrong, or running it is a fault
    INCONCLUSIVE = "inconclusive"  # there was nothing to compare with
    SKIPPED = "skipped"  # not tried: no such device, or too large


@dataclass(frozen=True, slots=True)
class Verification:
    """An artifact's results beside eager's and a float64 reference's, on random inputs.

    error, eager_error: the greatest, of a part of the largest value of their result; bound: what
    the first had to stay within, in words; compared: values compared; device: what ran it; seed: of
    the inputs; why: where it did not simply pass.
    """

    outcome: Outcome
    device: str = ""
    seed: int = 0
    compared: int = 0
    error: float = 0.0
    eager_error: float = 0.0
    bound: str = ""
    why: str = ""

    def to_wire(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome.value,
            "device": self.device[:_TEXT],
            "seed": self.seed,
            "compared": self.compared,
            "error": self.error,
            "eager_error": self.eager_error,
            "bound": self.bound[:_TEXT],
            "why": self.why[:_TEXT],
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Verification:
        """Raises WireError for anything that `to_wire` does not write."""
        try:
            made = cls(
                outcome=Outcome(data["outcome"]),
                device=str(data["device"])[:_TEXT],
                seed=int(data["seed"]),
                compared=int(data["compared"]),
                error=float(data["error"]),
                eager_error=float(data["eager_error"]),
                bound=str(data["bound"])[:_TEXT],
                why=str(data["why"])[:_TEXT],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"a verification does not decode: {error}") from error
        return made

    def text(self) -> str:
        """For a person, in a line."""
        if self.outcome is Outcome.PASSED:
            return (
                f"passed on {self.device}: error {self.error:.1e}, eager's {self.eager_error:.1e}, "
                f"{self.compared} values"
            )
        return f"{self.outcome}: {self.why}"


@dataclass(frozen=True, slots=True)
class Quality:
    """device: the class of GPU whose clock decided, empty where none did; tuned: kernels that it
    decided on; untuned: kernels with a choice of variants that stands on the cost model;
    unfinished: a better one follows all the same, from a descent."""

    tier: Tier
    device: str = ""
    tuned: int = 0
    untuned: int = 0
    verification: Verification | None = None
    unfinished: bool = False

    def to_wire(self) -> dict[str, Any]:
        checked = self.verification
        return {
            "tier": self.tier.value,
            "device": self.device[:_TEXT],
            "tuned": self.tuned,
            "untuned": self.untuned,
            "verification": None if checked is None else checked.to_wire(),
            "unfinished": self.unfinished,
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Quality:
        """Raises WireError for anything that `to_wire` does not write."""
        try:
            checked = data["verification"]
            return cls(
                tier=Tier(data["tier"]),
                device=str(data["device"])[:_TEXT],
                tuned=int(data["tuned"]),
                untuned=int(data["untuned"]),
                verification=None if checked is None else Verification.from_wire(checked),
                unfinished=data.get("unfinished") is True,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"an artifact's quality does not decode: {error}") from error


def quality_of(meta: bytes) -> Quality:
    """What a graph manifest's metadata says. Raises WireError for malformed bytes."""
    return Quality.from_wire(_body(meta).get(_FIELD) or {})


def with_quality(manifest: Manifest, quality: Quality) -> Manifest:
    """The manifest that says this of the same blobs. Raises WireError for malformed metadata."""
    body = {**_body(manifest.meta), _FIELD: quality.to_wire()}
    # What is tuned or has no choice is as good as it gets; the rest may be replaced by that.
    tier = 0 if quality.tier is Tier.UNTUNED else _UNFINISHED if quality.unfinished else FINAL_TIER
    return replace(manifest, meta=bytes(msgpack.packb(body, use_bin_type=True)), tier=tier)


def verified(manifest: Manifest, verification: Verification) -> Manifest:
    """The manifest with the record of a verification in it."""
    return with_quality(manifest, replace(quality_of(manifest.meta), verification=verification))


def unfinished(manifest: Manifest) -> Manifest:
    """The manifest with the word that a better artifact follows."""
    return with_quality(manifest, replace(quality_of(manifest.meta), unfinished=True))


def _body(meta: bytes) -> dict[str, Any]:
    try:
        body = msgpack.unpackb(meta, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"an artifact's metadata does not decode: {error}") from error
    if not isinstance(body, dict):
        raise WireError("an artifact's metadata is no map")
    return body
