"""Triton kernels are compiled for every target with no GPU, the same bytes each time, in children
that may be lost."""

import functools
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fusec.child.process import Child
from fusec.codegen import triton_toolchain
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.codegen.gpu_usage import read_usage
from fusec.codegen.triton_toolchain import (
    ISAS,
    Compilers,
    compile_variant,
    compile_variants,
    compiler_version,
)
from fusec.errors import CompileError
from fusec.ir.expr_node import symbol

SILU = """\
def triton_poi_silu(p0, p1, n0, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(p0 + i, i < n0).to(tl.float32)
    tl.store(p1 + i, a * tl.sigmoid(a), i < n0)
"""
# Every element is needed at every step: it cannot fit into registers.
SPILL = """\
def triton_spill(p0, p1, n0, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(p0 + i)
    for k in range(n0):
        a = a * tl.load(p0 + k * BLOCK + i) + tl.sum(a)
    tl.store(p1 + i, a)
"""
# Millions of unrolled steps: the front end works on it for hours.
ENDLESS = """\
def triton_endless(p0, BLOCK: tl.constexpr):
    a = tl.load(p0)
    for k in tl.static_range(BLOCK):
        a = a * a + k
    tl.store(p0, a)
"""
GRID = (symbol("n0"),)
NVIDIA = [isa for isa in ISAS if isa.startswith("sm_")]


def silu(isa: str = "sm_90", **changes) -> GpuSource:
    variant = Variant(SILU, (("BLOCK", 1024),), 4, GRID)
    return GpuSource(
        "triton_poi_silu", isa, ("*bf16", "*bf16", "i32"), (replace(variant, **changes),)
    )


@pytest.mark.parametrize("isa", ISAS)
def test_every_target(isa: str) -> None:
    source = silu(isa)
    binary = compile_variant(source, 0, 60)
    assert binary.image[:4] == b"\x7fELF"
    assert binary.name == "triton_poi_silu"
    assert binary.name.encode() in binary.image
    assert binary.threads == (256 if isa.startswith("gfx") else 128)
    assert binary.grid == GRID
    assert binary.sizes == ("i32",)
    assert binary.scratch == 2  # the global and the profiler's, in all versions so far
    assert 8 <= binary.registers <= 128
    assert binary.spills == 0
    assert not binary.cooperative
    assert type(binary).from_bytes(binary.to_bytes()) == binary


@functools.cache
def _spilling(isa: str) -> GpuBinary:
    variant = Variant(SPILL, (("BLOCK", 16384),), 2, GRID, cooperative=True)
    source = GpuSource("triton_spill", isa, ("*fp32", "*fp32", "i32"), (variant,))
    return compile_variant(source, 0, 60)


def test_usage_is_what_the_vendors_tool_reads(tmp_path: Path) -> None:
    triton = importlib.util.find_spec("triton")
    assert triton is not None
    assert triton.origin is not None
    tool = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
    binaries = [_spilling("sm_80"), *(compile_variant(silu(isa), 0, 60) for isa in NVIDIA)]
    assert binaries[0].spills > 0
    for binary in binaries:
        path = tmp_path / "kernel.cubin"
        path.write_bytes(binary.image)
        text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True).stdout
        told = re.search(r"REG:(\d+) STACK:(\d+)", text)
        assert told is not None, text
        assert (binary.registers, binary.spills) == (int(told[1]), int(told[2]))


def test_spills_shared_memory_and_cooperation_are_told() -> None:
    nvidia, amd = _spilling("sm_80"), _spilling("gfx942")
    assert nvidia.spills > 0
    assert amd.registers > 200
    assert nvidia.shared >= 2 * 4  # the sum goes across two warps
    assert nvidia.cooperative


def test_loads_are_wide_where_sizes_are_declared_to_divide() -> None:
    """A row's start is aligned only if the row's length is a multiple of 16."""
    text = SILU.replace("+ tl.arange(0, BLOCK)", "* n0 + tl.arange(0, BLOCK)")
    variant = Variant(text, (("BLOCK", 1024),), 4, GRID)
    plain = GpuSource("triton_poi_silu", "sm_90", ("*bf16", "*bf16", "i32"), (variant,))
    divided = replace(plain, signature=("*bf16", "*bf16", "i32:16"))
    images = [compile_variant(s, 0, 60).image for s in (plain, divided)]
    assert len(images[1]) < len(images[0])


def test_the_same_source_gives_the_same_bytes_without_paths() -> None:
    images = []
    for _ in range(2):
        compilers = Compilers(1)  # another process, another folder
        body = {
            "text": SILU, "isa": "sm_90", "signature": ["*bf16", "*bf16", "i32"],
            "constants": {"BLOCK": 1024}, "warps": 4, "cooperative": False,
        }  # fmt: skip
        images.append(compilers.request(body, 60, "")["image"])
        compilers.children.close()
    assert images[0] == images[1] == compile_variant(silu(), 0, 60).image
    for path in (b"/tmp", b"fusec", str(Path.home()).encode()):
        assert path not in images[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SILU.replace("tl.sigmoid(a)", "tl.no_such(a)"), "no_such"),
        (SILU.replace("tl.sigmoid(a)", "undefined"), "undefined"),
        (SILU.replace("p0, p1", "p0"), "are not 3"),
        (SILU + "print('run')\n", "one function"),
        ("@decorated\n" + SILU, "one function"),
        (SILU.replace("tl.sigmoid(a)", "tl.__loader__"), "private name"),
        (SILU.replace("    a =", "    import os\n    a ="), "import"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_faults_of_the_text_are_told(text: str, message: str) -> None:
    with pytest.raises(CompileError, match="variant 0 of triton_poi_silu for sm_90") as caught:
        compile_variant(silu(source=text), 0, 60)
    assert message in caught.value.output


def test_the_text_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = SILU.replace("BLOCK: tl.constexpr", f"BLOCK=open({str(mark)!r}, 'w')")
    with pytest.raises(CompileError):
        compile_variant(silu(source=text), 0, 60)
    assert not mark.exists()


def test_a_hang_costs_its_variant_only() -> None:
    endless = Variant(ENDLESS, (("BLOCK", 10_000_000),), 4, GRID)
    source = GpuSource("triton_endless", "sm_90", ("*fp32",), (endless,))
    compile_variant(silu(), 0, 60)
    started = time.monotonic()
    with pytest.raises(CompileError, match="did not answer in time"):
        compile_variant(source, 0, 1.0)
    assert time.monotonic() - started < 20
    assert compile_variant(silu(), 0, 60).registers


def test_a_killed_child_costs_its_variant_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compilers = Compilers(1)
    monkeypatch.setattr(triton_toolchain, "_compilers", lambda process: compilers)
    compile_variant(silu(), 0, 60)
    (child,) = compilers.children._idle
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    assert compile_variant(silu(), 0, 60).registers
    assert compilers.children._idle != [child]
    compilers.children.close()


def test_a_forked_process_leaves_its_parents_children_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_variant(silu(), 0, 60)
    compilers = triton_toolchain._compilers(os.getpid())
    with monkeypatch.context() as patch:
        patch.setattr(compilers.children, "_process", os.getppid())  # as it looks from a fork
        compilers.children.close()
    assert compilers.children._idle
    assert all(child._process.poll() is None for child in compilers.children._idle)


def test_children_are_used_again() -> None:
    compile_variant(silu(), 0, 60)
    idle = list(triton_toolchain._compilers(os.getpid()).children._idle)
    compile_variant(silu(warps=8), 0, 60)
    assert triton_toolchain._compilers(os.getpid()).children._idle == idle
    assert all(isinstance(child, Child) for child in idle)


def test_many_at_once_with_a_fault_among_them() -> None:
    good = [(silu(warps=w), 0) for w in (1, 2, 4, 8)]
    bad = (silu(source=SILU.replace("tl.sigmoid(a)", "missing")), 0)
    done = dict(compile_variants([*good, bad], 60))
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert isinstance(done[4], CompileError)
    assert [done[i].threads for i in range(4)] == [32, 64, 128, 256]


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(CompileError, match="sm_12"):
        compile_variant(silu("sm_12"), 0, 60)


def test_images_that_are_none_are_refused() -> None:
    image = compile_variant(silu(), 0, 60).image
    for bad in (b"", b"text", image[:100], b"\x7fELF\x02\x01" + bytes(200)):
        with pytest.raises(CompileError, match="malformed"):
            read_usage(bad)


def test_a_missing_triton_is_told() -> None:
    code = (
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from fusec.codegen.triton_toolchain import compiler_version\n"
        "from fusec.errors import CompileError\n"
        "try:\n"
        "    compiler_version()\n"
        "except CompileError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fusec[gpu]" in done.stdout


def test_the_version_is_known_without_loading_triton() -> None:
    code = (
        "import sys\n"
        "from fusec.codegen.triton_toolchain import compiler_version\n"
        "print(compiler_version(), 'triton' in sys.modules, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{compiler_version()} False False"
