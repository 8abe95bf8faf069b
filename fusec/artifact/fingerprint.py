"""Keys as lists of named entries, each hashed, then hashed together.

Why an entry list: "why did this miss?" has an answer, the name of the entry that differs. What is
never in a key: rank, world size, device ordinal, paths, host and user names, PYTHONHASHSEED, names
and line numbers of user code. This module needs no torch: the farm's gateway computes keys too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgpack

from cache.digest import is_digest
from fusec.errors import WireError
from fusec.options import Options, Target

KINDS: Final = ("front", "graph", "kernel", "tuning")
MAX_ENTRIES: Final = 64

# The stages whose code decides what an artifact is: a change anywhere else keeps a fleet warm.
# Paths below the package; a folder stands for all Python files in it.
TOOLCHAIN_SOURCES: Final = (
    "attention/operators.py",  # graphs call them by name
    "codegen",
    "ir",
    "lower",
    "pipeline.py",
    "runtime/format.py",
    "schedule",
)
# What decides which graphs a model becomes and how they are called: in front keys alone. A graph
# speaks for itself, so a change here makes AOTAutograd run again, and no graph compile again.
CAPTURE_SOURCES: Final = ("attention/attend.py", "capture")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A key. entries: (name, 64 hex characters) in a fixed order, names unique."""

    entries: tuple[tuple[str, str], ...]

    @property
    def hex(self) -> str:
        """The digest over all entries: 64 hex characters."""
        return digest_of([list(entry) for entry in self.entries])

    def key(self, kind: str) -> str:
        """The store's name for it, `graph/<hex>`. Raises ValueError for a kind not in KINDS."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of key: {KINDS}")
        return f"{kind}/{self.hex}"

    def to_wire(self) -> list[list[str]]:
        return [list(entry) for entry in self.entries]

    @classmethod
    def from_wire(cls, data: object) -> Fingerprint:
        """Raises WireError for anything but a short list of (name, hex) pairs."""
        if not isinstance(data, (list, tuple)) or not 0 < len(data) <= MAX_ENTRIES:
            raise WireError("a fingerprint needs between 1 and 64 entries")
        entries = []
        for item in data:
            if not (
                isinstance(item, (list, tuple))
                and len(item) == 2
                and all(isinstance(text, str) for text in item)
                and item[0].isidentifier()
                and len(item[0]) <= 64
                and is_digest(item[1])
            ):
                raise WireError(f"not an entry of a fingerprint: {item!r:.80}")
            entries.append((item[0], item[1]))
        if len({name for name, _ in entries}) != len(entries):
            raise WireError("a fingerprint names an entry twice")
        return cls(tuple(entries))


def digest_of(value: object) -> str:
    """SHA-256 over the msgpack encoding of plain values: 64 hex characters.

    Maps must be given sorted, or as lists of pairs: their order is hashed.
    """
    return hashlib.sha256(msgpack.packb(value, use_bin_type=True)).hexdigest()


def fingerprint(entries: Mapping[str, object] | Iterable[tuple[str, object]]) -> Fingerprint:
    """Hash named plain values, in the order given."""
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    return Fingerprint(tuple((name, digest_of(value)) for name, value in pairs))


def diff(a: Fingerprint, b: Fingerprint) -> tuple[str, ...]:
    """Names of the entries that differ, sorted; an entry that only one has differs."""
    left, right = dict(a.entries), dict(b.entries)
    return tuple(sorted(n for n in left.keys() | right.keys() if left.get(n) != right.get(n)))


def graph_fingerprint(
    graph_bytes: bytes, target: Target, options: Options, toolchain_digest: str
) -> Fingerprint:
    """The key of a compiled graph.

    graph_bytes: `fusec.ir.wire.graph_to_bytes`; types, guards' ranges and constants are in it.
    toolchain_digest: `toolchain()` of the compiling side.
    """
    return fingerprint(
        {
            "graph": graph_bytes,
            "target": sorted(target.to_wire().items()),
            "options": sorted((k, repr(v)) for k, v in options.key_entries().items()),
            "toolchain": toolchain_digest,
        }
    )


class HasDigest(Protocol):
    """A kernel's source (`fusec.pipeline.KernelSource`): its digest is its identity."""

    @property
    def digest(self) -> str: ...


def kernel_key(kernel: HasDigest, target: Target, compiler: str = "") -> str:
    """The store's key of one kernel's binary, `kernel/<hex>`.

    compiler: what made the binary, name and
    version, where binaries of different compilers must not stand for each other.
    """
    entries = {
        "kernel": kernel.digest,
        "target": sorted(target.to_wire().items()),
        "compiler": compiler,
    }
    return fingerprint(entries).key("kernel")


def torch_version() -> str:
    """The release of torch without its build (`+cpu`, `+cu128`): both make the same graphs."""
    return importlib.metadata.version("torch").split("+", 1)[0]


@functools.cache
def toolchain() -> str:
    """Digest of the stages that decide what an artifact is, and of the release of torch."""
    return sources_digest(Path(__file__).parents[1], TOOLCHAIN_SOURCES, torch_version())


@functools.cache
def capture_digest() -> str:
    """Digest of the sources that turn a model into graphs, and of the release of torch."""
    return sources_digest(Path(__file__).parents[1], CAPTURE_SOURCES, torch_version())


def sources_digest(package: Path, names: Iterable[str], torch_release: str) -> str:
    """Digest of the files under `package` that `names` say, a folder standing for all in it.

    A file that is not there is left out.
    """
    files: list[Path] = []
    for name in names:
        path = package / name
        files.extend(path.rglob("*.py") if path.is_dir() else [path] if path.is_file() else [])
    rows = sorted(
        (path.relative_to(package).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    )
    return digest_of([torch_release, rows])
