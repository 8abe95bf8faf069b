"""Compile functions of the C vector library and call them on numpy arrays.

Each function gets a wrapper that runs over whole arrays, padded here to whole vectors.
"""

import ctypes
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from fusec.codegen.c_prelude import prelude, registry
from fusec.codegen.c_shape import DTYPES, Shape, ctype
from fusec.codegen.c_toolchain import compile_shared, detect_isa

NUMPY = {
    "f64": np.float64, "f32": np.float32,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
    "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8,
    "mask": np.int32,
}  # fmt: skip
_HEAD = re.compile(r"(?:FN|static __attribute__\(\(noinline\)\)) (\w+) (\w+)\(([^)]*)\)")
_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


def runnable(isa: str) -> bool:
    """Whether this machine executes code for ``isa``; plain C (aarch64's) runs anywhere."""
    host = detect_isa()
    return isa == "aarch64" or (host in _LEVELS and _LEVELS.index(isa) <= _LEVELS.index(host))


def signature(source: str) -> tuple[list[str], str] | None:
    """The dtypes of a function's vector arguments and result; None where it has others."""
    match = _HEAD.match(source)
    assert match is not None, source
    returns, _, params = match.groups()
    kinds = [p.strip().rsplit(" ", 1)[0] for p in params.split(",")]
    found = [_dtype(kind) for kind in (*kinds, returns)]
    known = [kind for kind in found if kind is not None]
    return (known[:-1], known[-1]) if len(known) == len(found) else None


def _dtype(kind: str) -> str | None:
    if kind == "vmask":
        return "mask"
    return kind[1:] if kind[0] == "v" and kind[1:] in DTYPES else None


def load_library(binary: bytes, folder: Path) -> ctypes.CDLL:
    """Load a compiled kernel; libm and libgomp are in the process as they are beside torch."""
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    path = folder / "kernel.so"
    path.write_bytes(binary)
    return ctypes.CDLL(str(path))


class Functions:
    """Compiled functions of one shape, called by name on whole arrays."""

    def __init__(self, lanes: int, isa: str, names: Iterable[str], folder: Path) -> None:
        sources = registry(Shape(lanes, isa))
        self.lanes = lanes
        self.signatures: dict[str, tuple[list[str], str]] = {}
        needed: set[str] = set()
        code = ""
        for name in names:
            found = signature(sources[name])
            assert found is not None, name
            self.signatures[name] = found
            code += _wrapper(name, *found, lanes)
            stored = [_memory(kind) for kind in (*found[0], found[1])]
            needed |= {name, f"st_{stored[-1]}", *(f"ld_{kind}" for kind in stored[:-1])}
        # Plain C for another machine is compiled for this one.
        target = "x86-64-v2" if isa == "aarch64" else isa
        binary = compile_shared(prelude(lanes, isa, needed) + code, target, 120)
        folder.mkdir(parents=True, exist_ok=True)
        self.library = load_library(binary, folder)

    def __call__(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        kinds, returns = self.signatures[name]
        count = arrays[0].size
        inputs = [
            np.resize(a.astype(NUMPY[k]), -(-count // self.lanes) * self.lanes)
            for a, k in zip(arrays, kinds)
        ]
        result = np.empty(inputs[0].shape, NUMPY[returns])
        function = getattr(self.library, f"run_{name}")
        function(
            *(ctypes.c_void_p(a.ctypes.data) for a in (*inputs, result)),
            ctypes.c_long(result.size),
        )
        return result[:count]


def _memory(kind: str) -> str:
    return "i32" if kind == "mask" else kind


@cache
def _wrapper_type(kind: str) -> str:
    return ctype(_memory(kind))


def _wrapper(name: str, kinds: list[str], returns: str, lanes: int) -> str:
    params = ", ".join(f"const {_wrapper_type(k)} *a{i}" for i, k in enumerate(kinds))

    def step(count: str) -> str:
        loads = ", ".join(f"ld_{_memory(k)}(a{i} + o, {count})" for i, k in enumerate(kinds))
        return f"st_{_memory(returns)}(r + o, {name}({loads}), {count});"

    # The barrier keeps the compiler from vectorising loops over scalars, which takes it long.
    return (
        f"void run_{name}({params}, {_wrapper_type(returns)} *r, long n) {{ "
        f"for (long o = 0; o < n; o += {lanes}) "
        f'{{ __asm__("" : "+r"(o)); {step(str(lanes))} }} }}\n'
    )
