"""Many kernels in one call of the C compiler: starting it costs more than a small kernel does.

The functions that kernels define are the generator's own text; only their names and the shared
vector library at their head change. The optimisation level is low: the generator is under test.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fusec.codegen.c_expr import FLOOR_HELPERS
from fusec.codegen.c_prelude import prelude, registry
from fusec.codegen.c_shape import Shape, typedefs
from fusec.codegen.c_toolchain import compiler, flags
from fusec.codegen.kernel_source import KernelSource
from fusec.codegen.runner import RUNNER_NAME, runner_source
from fusec.runtime.libraries import function_address

_WORD = re.compile(r"[A-Za-z_]\w*")
_LANES = (1, 2, 4, 8, 16, 32, 64)
_PER_FILE = 24


class Kernels:
    """Addresses of built kernels by digest; grows, builds nothing twice."""

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}

    def add(self, sources: Iterable[KernelSource]) -> None:
        """Build what is new. Raises AssertionError with the compiler's output."""
        new = {k.digest: k for k in sources if k.digest not in self.addresses}
        by_shape: dict[tuple[str, int], list[KernelSource]] = {}
        for kernel in new.values():
            if kernel.name == RUNNER_NAME:
                self.addresses[kernel.digest] = function_address(
                    _compile(kernel.source, kernel.isa), kernel.name
                )
            else:
                by_shape.setdefault((kernel.isa, _lanes(kernel)), []).append(kernel)
        jobs = [
            (isa, lanes, kernels[i : i + _PER_FILE])
            for (isa, lanes), kernels in sorted(by_shape.items())
            for i in range(0, len(kernels), _PER_FILE)
        ]
        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(lambda job: _together(*job), jobs):
                self.addresses.update(found)

    def runner(self, isa: str) -> int:
        """The address of the native runner."""
        source = runner_source(isa)
        self.add([source])
        return self.addresses[source.digest]


def _lanes(kernel: KernelSource) -> int:
    after_head = kernel.source.split("\n", 1)[1]
    return next(n for n in _LANES if after_head.startswith(typedefs(Shape(n, kernel.isa))))


def _together(isa: str, lanes: int, kernels: list[KernelSource]) -> dict[str, int]:
    known = registry(Shape(lanes, isa))
    needed: set[str] = set()
    bodies: list[str] = []
    names: dict[str, str] = {}
    for kernel in kernels:
        _, body = kernel.source.split(FLOOR_HELPERS)
        needed.update(w for w in _WORD.findall(body) if w in known)
        names[kernel.digest] = f"{kernel.name}_{kernel.digest[:12]}"
        bodies.append(body.replace(f"void {kernel.name}(", f"void {names[kernel.digest]}("))
    source = prelude(lanes, isa, needed) + FLOOR_HELPERS + "\n".join(bodies)
    binary = _compile(source, isa)
    return {digest: function_address(binary, name) for digest, name in names.items()}


def _compile(source: str, isa: str) -> bytes:
    options = ["-O1" if f == "-O3" else f for f in flags(isa)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.c")
        path.write_text(source)
        command = [compiler().path, *options, "-x", "c", "-o", "kernel.so", "kernel.c"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        return Path(folder, "kernel.so").read_bytes()
