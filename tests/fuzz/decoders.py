"""A coverage-guided fuzzer of every decoder of what comes over the wire or out of a store.

    pip install atheris
    python -m tests.fuzz.decoders --help

A decoder may refuse bytes by the errors it documents and by nothing else; whatever else it raises,
a hang or a crash of the interpreter ends the run with the bytes in a file. What must be is checked
too: what decodes encodes to something that decodes to the same.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["cache", "fusec", "farm", "msgpack"]):
    from cache import frames, protocol
    from cache import seal as seals
    from cache.digest import digest
    from cache.doomed import Doomed
    from cache.errors import CacheError
    from cache.manifest import VERSION, Manifest
    from cache.revocation import Revocations
    from cache.signing import SigningKey
    from fusec.codegen.gpu_binary import GpuBinary
    from fusec.codegen.gpu_source import GpuSource
    from fusec.codegen.targets import source_from_bytes
    from fusec.errors import FusecError
    from fusec.ir.expr import integer
    from fusec.ir.graph import Graph, TensorType
    from fusec.ir.program_wire import program_from_bytes
    from fusec.ir.wire import graph_from_bytes, graph_to_bytes
    from fusec.options import Options, Target
    from fusec.pipeline import Plan, plan, source_to_bytes
    from fusec.remote.jobs import FrontRecord, GraphJob
    from fusec.remote.protocol import FarmJob, JobStatus, decode_submit
    from fusec.trace import Recorder
    from fusec.tune.record import Record
    from loadtest.models import model


@dataclass(frozen=True)
class Decoder:
    """``decode`` on bytes; ``seeds``: what it does take, to begin with."""

    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def decoders() -> dict[str, Decoder]:
    """All of them by name."""
    (job, *_) = model(1, kernels=2).jobs
    made = plan(job.graph, job.target, Options(), recorder=Recorder())
    manifest = Manifest.of("graph", {"a": b"x", "b/c": b"y"}, b"meta")
    key = f"graph/{1:064x}"
    sealed = seals.Signer(SigningKey(b"k" * 32), "fusec-1").seal(key, manifest.encode())
    binary = GpuBinary("kernel", b"image", (integer(4),), 128, 0, 2)
    front = FrontRecord((("a", "0" * 64),), (("fw", "1" * 64),), b"recipe")
    return {
        "value": Decoder(_value, (protocol.pack({"a": [1, None, b"x", 2.5, "t", True]}),)),
        "manifest": Decoder(_manifest, (protocol.pack(_inner(manifest)),)),
        "envelope": Decoder(Manifest.decode, (manifest.encode(),)),
        "seal": Decoder(seals.split, (sealed.wrap(manifest.encode()),)),
        "frame": Decoder(
            lambda data: frames.decompress(data, digest(b"blob"), max_bytes=1 << 20),
            (frames.compress(b"blob"),),
        ),
        "revocations": Decoder(
            Revocations.decode,
            (Revocations(frozenset({key}), frozenset({"2" * 64})).encode(), b""),
        ),
        "doomed": Decoder(Doomed.decode, (protocol.pack({}),)),
        "submit": Decoder(decode_submit, (_submit(job),)),
        "status": Decoder(
            lambda data: JobStatus.from_wire(protocol.unpack(data, max_bytes=1 << 16)),
            (protocol.pack({"v": 1, "fingerprint": "0" * 64, "state": "queued"}),),
        ),
        "front": Decoder(FrontRecord.decode, (front.encode(),)),
        "graph": Decoder(_graph, (job.graph_bytes,)),
        "program": Decoder(program_from_bytes, (made.program,)),
        "plan": Decoder(Plan.from_bytes, (made.to_bytes(),)),
        "source": Decoder(source_from_bytes, tuple(source_to_bytes(k) for k in made.kernels)),
        "gpu source": Decoder(GpuSource.from_bytes, _gpu_sources(job.graph)),
        "gpu binary": Decoder(GpuBinary.from_bytes, (binary.to_bytes(),)),
        "tuning": Decoder(
            Record.from_bytes,
            (Record(0, 4, (("XBLOCK", 64),), {0: (1.0, 1.1)}, 0.1, {1: "spills"}).to_bytes(),),
        ),
    }


def _gpu_sources(graph: Graph) -> tuple[bytes, ...]:
    """The same graph's kernels for a GPU."""
    nodes = tuple(
        replace(node, type=replace(node.type, device="cuda"))
        for node in graph.nodes
        if isinstance(node.type, TensorType)
    )
    moved = replace(graph, nodes=nodes)
    made = plan(moved, Target("cuda", "sm_90"), Options(), recorder=Recorder())
    return tuple(k.to_bytes() for k in made.kernels if isinstance(k, GpuSource))


def _value(data: bytes) -> None:
    value = protocol.unpack(data, max_bytes=1 << 16)
    assert protocol.unpack(protocol.pack(value), max_bytes=1 << 17) == value or value != value


def _inner(manifest: Manifest) -> protocol.Value:
    blobs: protocol.Value = [[name, digest, size] for name, digest, size in manifest.blobs]
    return {"kind": manifest.kind, "blobs": blobs, "meta": manifest.meta}


def _manifest(body: bytes) -> None:
    """The part behind the checksum, which a fuzzer would never get right."""
    envelope = {"version": VERSION, "sha256": hashlib.sha256(body).digest(), "body": body}
    made = Manifest.decode(protocol.pack(envelope))
    assert Manifest.decode(made.encode()) == made


def _graph(data: bytes) -> None:
    graph = graph_from_bytes(data)
    assert graph_from_bytes(graph_to_bytes(graph)) == graph


def _submit(job: GraphJob) -> bytes:
    made = job.fingerprint
    return FarmJob(made.hex, made.entries, job.graph_bytes, job.target, Options(), "w").encode()


def _fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Does not return: libFuzzer ends the process."""
    decoder = decoders()[name]
    for number, seed in enumerate(decoder.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def once(data: bytes) -> None:
        with suppress(CacheError, FusecError):
            decoder.decode(data)

    flags = [
        f"-max_total_time={seconds}",
        "-timeout=20",
        "-rss_limit_mb=3000",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], once)
    atheris.Fuzz()


def main(argv: list[str] | None = None) -> int:
    """0 when no decoder did what it must not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.decoders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("decoder", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder; default 60")
    parser.add_argument("--here", metavar="CORPUS", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    known = decoders()
    for name in arguments.decoder:
        if name not in known:
            parser.error(f"no decoder {name!r}; there are {', '.join(known)}")
    if arguments.here is not None:
        _fuzz(arguments.decoder[0], arguments.seconds, arguments.here)
    failed = 0
    for name in arguments.decoder or known:
        with tempfile.TemporaryDirectory(prefix="fusec-fuzz-") as folder:
            command = [sys.executable, "-m", "tests.fuzz.decoders", name]
            done: subprocess.CompletedProcess[Any] = subprocess.run(
                [*command, "--seconds", str(arguments.seconds), "--here", folder],
                capture_output=True,
                text=True,
            )
        runs = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        sys.stdout.write(f"{name}: {runs[0].split()[-1] if runs else '?'} inputs, ")
        sys.stdout.write("ok\n" if done.returncode == 0 else f"FAILED\n{done.stderr[-4000:]}\n")
        sys.stdout.flush()
        failed += done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
