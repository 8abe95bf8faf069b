"""The C compiler is run with bounds, its output is deterministic and its errors are readable."""

import os
import sys
import time

import pytest

from fusec.codegen import c_toolchain
from fusec.codegen.c_prelude import closure, dependencies, externs, prelude, registry
from fusec.codegen.c_shape import ISAS, Shape
from fusec.errors import CodegenError, CompileError, CompilerLost, Loss

V3 = (
    "fpu sse sse2 ssse3 pni sse4_1 sse4_2 popcnt cx16 lahf_lm avx avx2 bmi1 bmi2 f16c fma abm "
    "movbe xsave"
)


def test_a_prelude_holds_only_what_is_needed() -> None:
    small = prelude(8, "x86-64-v3", ["add_f32"])
    assert "add_f32" in small
    assert "exp_f32" not in small
    assert prelude(8, "x86-64-v3", ["exp_f32", "add_f32"]) == prelude(
        8, "x86-64-v3", ("add_f32", "exp_f32", "exp_f32")
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_every_function_comes_after_all_it_calls(isa: str, lanes: int) -> None:
    shape = Shape(lanes, isa)
    order = closure(shape, registry(shape))
    place = {name: i for i, name in enumerate(order)}
    assert sorted(order) == sorted(registry(shape))
    for name, callees in dependencies(shape).items():
        assert all(place[c] < place[name] for c in callees), name


def test_other_machines_get_plain_c() -> None:
    text = prelude(4, "aarch64", list(registry(Shape(4, "aarch64"))))
    assert "ia32" not in text
    assert "%x" not in text


def test_unknown_names_are_refused() -> None:
    with pytest.raises(CodegenError, match="no function 'exp_f8'"):
        prelude(8, "x86-64-v3", ["exp_f8"])
    with pytest.raises(CodegenError, match="ISA"):
        prelude(8, "pentium", [])
    with pytest.raises(CodegenError, match="3 lanes"):
        prelude(3, "x86-64-v3", [])


def test_the_libm_symbols_of_a_function_are_known() -> None:
    assert externs(8, "x86-64-v3", ["sin_f32", "exp_f32"]) == {"sinf"}
    assert externs(4, "x86-64-v3", ["pow_f64"]) == {"pow"}
    assert externs(8, "x86-64-v3", ["tanh_f32"]) == set()


def test_the_isa_level_comes_from_the_flags() -> None:
    assert c_toolchain.level_of("model\nflags\t\t: fpu sse sse2\n") == "x86-64-v2"
    assert c_toolchain.level_of(f"flags\t\t: {V3}\n") == "x86-64-v3"
    wide = "avx512f avx512bw avx512cd avx512dq avx512vl"
    assert c_toolchain.level_of(f"flags\t\t: {V3} {wide}\n") == "x86-64-v4"
    assert c_toolchain.level_of(f"flags\t\t: {V3} avx512f\n") == "x86-64-v3"
    with pytest.raises(CompileError, match="sparc"):
        c_toolchain.flags("sparc")


def test_the_same_source_gives_the_same_bytes() -> None:
    isa = c_toolchain.detect_isa()
    source = prelude(4, isa, ["exp_f32", "ld_f32", "st_f32"]) + (
        "void k(const float *a, float *r, long n) {\n#pragma omp parallel for\n"
        "for (long i = 0; i < n; i += 4) st_f32(r + i, exp_f32(ld_f32(a + i, 4)), 4); }\n"
    )
    first = c_toolchain.compile_shared(source, isa, 60)
    assert first == c_toolchain.compile_shared(source, isa, 60)
    assert b"fusec-cc" not in first
    assert os.getcwd().encode() not in first


def test_a_fault_names_the_line_and_the_compilers_words() -> None:
    with pytest.raises(CompileError) as caught:
        c_toolchain.compile_shared("int one;\nint f(void) { return g(); }\n", "x86-64-v2", 60)
    assert caught.value.where == "line 2 of the generated C source: int f(void) { return g(); }"
    assert "implicit declaration" in caught.value.output


def test_a_compiler_that_hangs_is_killed_with_its_children(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "slowcc"
    script.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo slow 1;; *) '
        f"sleep 60 & echo $! > {tmp_path}/child; wait;; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    begin = time.monotonic()
    with pytest.raises(CompileError, match=r"longer than 0\.5 s"):
        c_toolchain.compile_shared("int x;", "x86-64-v2", 0.5)
    assert time.monotonic() - begin < 10
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if _state(child) == "Z":
            return
        time.sleep(0.02)
    pytest.fail("the compiler's child is still running")


def test_a_compiler_that_takes_too_much_memory_fails(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "hungrycc"
    script.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo hungry 1;; *) sleep 0.1; '
        f"exec {sys.executable} -S -c 'bytearray(8 << 30)';; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(CompileError) as caught:
        c_toolchain.compile_shared("int x;", "x86-64-v2", 30)
    assert "MemoryError" in caught.value.output


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompileError, match="no-such-compiler"):
        c_toolchain.compiler()


@pytest.mark.parametrize(
    ("does", "loss"),
    [
        ("kill -9 $$", Loss.MEMORY),
        ("echo 'gcc: fatal error: Killed signal terminated program cc1'; exit 1", Loss.MEMORY),
        ("echo 'cc1: out of memory allocating 65536 bytes'; exit 1", Loss.MEMORY),
        ("kill -11 $$", Loss.CRASH),
        ("echo 'cc: fatal error: Segmentation fault signal terminated program cc1'; exit 1",
         Loss.CRASH),
    ],
)  # fmt: skip
def test_a_compiler_that_is_killed_is_no_verdict_on_the_source(
    tmp_path, monkeypatch: pytest.MonkeyPatch, does: str, loss: Loss
) -> None:
    script = tmp_path / "lostcc"
    script.write_text(f'#!/bin/sh\ncase "$1" in --version) echo lost 1;; *) {does};; esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(CompilerLost) as caught:
        c_toolchain.compile_shared("int x;", "x86-64-v2", 30)
    assert caught.value.loss is loss
