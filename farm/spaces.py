"""What each namespace has of its own at the farm: its store with its signatures, its builds, its
leases.

Nothing of one namespace is seen in another. What they share is the pool and the order in which
they get it, see `farm.book` and `farm.queue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cache.key import require_namespace
from farm.kernels import KernelBuilds
from farm.ownership import Ownership
from farm.shelf import Shelf

MAX_NAMESPACES: Final = 256


class UnknownNamespace(Exception):
    """This farm does not serve a namespace."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"this farm does not serve the namespace {namespace!r}")


@dataclass(frozen=True, slots=True)
class Space:
    """One namespace. claims: the leases that a writer shows where it replaces what is final; those
    of ``ownership`` too, where there is more than one gateway."""

    shelf: Shelf
    builds: KernelBuilds
    claims: Ownership
    ownership: Ownership = field(default_factory=Ownership)


class Spaces:
    """The namespaces by name, each opened on its first use; the default one from the start.

    named: whether there are others than the default one.
    """

    def __init__(self, open_space: Callable[[str], Space], *, named: bool) -> None:
        self._open = open_space
        self._named = named
        self._made = {"": open_space("")}

    def __iter__(self) -> Iterator[Space]:
        return iter(self._made.values())

    def items(self) -> list[tuple[str, Space]]:
        """Those that are open, by name."""
        return list(self._made.items())

    @property
    def default(self) -> Space:
        return self._made[""]

    def of(self, namespace: str) -> Space:
        """A namespace. Raises UnknownNamespace, ProtocolError for what is no name of one."""
        found = self._made.get(require_namespace(namespace))
        if found is None:
            if not self._named or len(self._made) >= MAX_NAMESPACES:
                raise UnknownNamespace(namespace)
            found = self._made[namespace] = self._open(namespace)
        return found
