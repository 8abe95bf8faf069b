"""What the client asks for: a graph to compile, and what a front key leads to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cache.digest import is_digest
from cache.errors import CacheError
from cache.protocol import pack, unpack
from fusec.artifact.fingerprint import Fingerprint
from fusec.errors import WireError

if TYPE_CHECKING:
    from fusec.ir.graph import Graph
    from fusec.options import Target

FRONT_VERSION: Final = 1
MAX_RECIPE: Final = 2 << 20
MAX_RECORD: Final = MAX_RECIPE + (256 << 10)
MAX_PARTS: Final = 16
_ROLE: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_FIELDS: Final = frozenset({"v", "entries", "parts", "recipe"})


@dataclass(frozen=True, slots=True)
class GraphJob:
    """One graph that must become an artifact.

    ``graph_bytes`` is `graph_to_bytes(graph)`: what is sent to the farm and what the fingerprint
    has hashed. ``label`` is for a person (``forward 0``) and never leaves the process.
    """

    graph: Graph
    graph_bytes: bytes
    fingerprint: Fingerprint
    target: Target
    label: str = "graph"

    @property
    def key(self) -> str:
        """The artifact's key in every store: ``graph/<hex>``."""
        return self.fingerprint.key("graph")


@dataclass(frozen=True, slots=True)
class FrontRecord:
    """What a front key leads to: the artifacts of its graphs, and how capture puts them together.

    ``entries``: the named hashes of the front fingerprint, from which the key follows.
    ``parts``: role and graph fingerprint (64 hex characters), sorted by role, e.g. bw before fw.
    ``recipe``: bytes that only capture reads, at most MAX_RECIPE.
    """

    entries: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]
    recipe: bytes

    @property
    def key(self) -> str:
        """``front/<hex>``."""
        return Fingerprint(self.entries).key("front")

    def part_keys(self) -> dict[str, str]:
        """Role -> store key of the part's artifact."""
        return {role: f"graph/{part}" for role, part in self.parts}

    def encode(self) -> bytes:
        """The bytes kept in the manifest's ``meta``. Raises WireError when over the limits."""
        check_parts(self.parts)
        if len(self.recipe) > MAX_RECIPE:
            raise WireError(
                f"a front record with a recipe of {len(self.recipe)} bytes is too large",
                hint=f"the limit is {MAX_RECIPE} bytes",
            )
        return pack(
            {
                "v": FRONT_VERSION,
                "entries": Fingerprint(self.entries).to_wire(),
                "parts": [list(part) for part in self.parts],
                "recipe": self.recipe,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> FrontRecord:
        """Raises WireError for anything that `encode` does not write."""
        try:
            body = unpack(data, max_bytes=MAX_RECORD)
        except CacheError as error:
            raise WireError(f"a front record does not decode: {error}") from error
        if not isinstance(body, dict) or set(body) != _FIELDS:
            raise WireError("a front record has missing or unknown fields")
        if body["v"] != FRONT_VERSION:
            raise WireError(
                f"front record version {body['v']!r:.20} is not {FRONT_VERSION}",
                hint="another release of fusec wrote it: it is passed over",
            )
        recipe = body["recipe"]
        if not isinstance(recipe, bytes) or len(recipe) > MAX_RECIPE:
            raise WireError("a front record's recipe is no bytes or too long")
        record = cls(
            Fingerprint.from_wire(body["entries"]).entries,
            _parts(body["parts"]),
            recipe,
        )
        check_parts(record.parts)
        return record


def _parts(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise WireError(f"the parts of a front record are no list of at most {MAX_PARTS}")
    pairs = []
    for item in value:
        if (
            not isinstance(item, list)
            or len(item) != 2
            or not all(isinstance(t, str) for t in item)
        ):
            raise WireError(f"not a part of a front record: {item!r:.80}")
        pairs.append((item[0], item[1]))
    return tuple(pairs)


def check_parts(parts: tuple[tuple[str, str], ...]) -> None:
    """Roles are short names, each once and in order; parts are fingerprints. Raises WireError."""
    roles = [role for role, _ in parts]
    if not parts or len(parts) > MAX_PARTS or roles != sorted(set(roles)):
        raise WireError(f"the parts of a front record are not sorted roles, each once: {roles}")
    for role, part in parts:
        if not _ROLE.fullmatch(role) or not is_digest(part):
            raise WireError(f"not a part of a front record: {role!r:.40} -> {part!r:.80}")


def parts_of(keys: Mapping[str, str | None]) -> tuple[tuple[str, str], ...]:
    """Role -> fingerprint hex, None for an absent role, as the ``parts`` of a record."""
    return tuple(sorted((role, part) for role, part in keys.items() if part is not None))
