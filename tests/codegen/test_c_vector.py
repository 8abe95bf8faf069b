"""Loads, stores, conversions, arithmetic and reductions of generated kernels, against numpy and
torch, for every type and every lane count a kernel uses."""

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from fusec.codegen.c_prelude import prelude, registry
from fusec.codegen.c_shape import DTYPES, FLOATS, INTS, Shape, ctype
from fusec.codegen.c_toolchain import compile_shared
from tests.codegen.native import NUMPY, Functions, load_library, runnable, signature

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHAPES = [
    (isa, lanes)
    for isa, lanes in (
        ("x86-64-v4", 16),
        ("x86-64-v4", 8),
        ("x86-64-v3", 8),
        ("x86-64-v3", 4),
        ("x86-64-v3", 1),
        ("aarch64", 4),
    )
    if runnable(isa)
]
GROUPS = (
    "lt le gt ge eq ne sel add sub mul div neg abs min max divt divf rem fmod and or xor not "
    "shl shr floor ceil trunc rint sign copysign isnan isinf isfinite signbit fma cvt to from"
).split()
COMPARE = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
ARITHMETIC = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "divf": np.floor_divide, "rem": np.remainder, "fmod": np.fmod,
    "min": np.minimum, "max": np.maximum, "copysign": np.copysign,
}  # fmt: skip
PLAIN = {
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "sign": np.sign, "not": np.invert,
}  # fmt: skip
TESTS = {
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit,
}  # fmt: skip


def samples(kind: str, rng: np.random.Generator, n: int = 333) -> np.ndarray:
    if kind == "mask":
        return -rng.integers(0, 2, 2 * n).astype(np.int32)
    dtype = NUMPY[kind]
    if kind in FLOATS:
        edge = [0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e30, 3, -7]
        edge += [255.9, 256, 65504, 65520, 6e-8, -129, 32768, 2147483648.0, -2147483649.0, 9.2e18]
        found = np.concatenate([edge, rng.standard_normal(n) * 10, rng.standard_normal(n) * 1000])
    else:
        info = np.iinfo(dtype)
        low = max(int(info.min), -20)
        found = np.concatenate(
            [
                rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True),
                rng.integers(low, 20, n).astype(dtype),
                np.array([0, 1, 2, 7, info.max, info.min], dtype=dtype),
            ]
        )
    found = found.astype(dtype)
    rng.shuffle(found)
    return found


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    isa, lanes = request.param
    shape = Shape(lanes, isa)
    wide = lanes * 8 > shape.register_bytes  # such a kernel has no 64-bit types
    names = [
        name
        for name, source in registry(shape).items()
        if name.split("_")[0] in GROUPS
        and signature(source) is not None
        and not (wide and "64" in name)
    ]
    return Functions(lanes, isa, names, tmp_path_factory.mktemp("vector"))


def names(functions: Functions, *ops: str) -> list[str]:
    return [n for n in functions.signatures if n.split("_")[0] in ops]


def same(got: np.ndarray, want: np.ndarray, where: np.ndarray | None = None) -> bool:
    equal = (got == want) | ((got != got) & (want != want))
    if got.dtype.kind == "f":
        equal &= (np.signbit(got) == np.signbit(want)) | np.isnan(got)
    if where is not None:
        equal |= ~where
    return bool(equal.all())


def test_conversions_match_eager(functions: Functions) -> None:
    rng = np.random.default_rng(1)
    wrong = []
    for name in names(functions, "cvt"):
        _, source, target = name.split("_")
        x = samples(source, rng)
        got = functions(name, x)
        where = None
        if source == "mask":
            x = x != 0
        if target == "mask":
            want = -(x != 0).astype(np.int32)
        elif source in FLOATS and target in INTS:
            low, high = -(2.0**31), 2.0**31
            if target in ("i64", "u32"):
                low, high = -(2.0**63), 2.0**63
            elif target == "u64":
                low, high = 0, 2.0**64
            where = (x >= low) & (x < high)
            whole = np.trunc(np.where(where, x, 0))
            want = whole.astype(np.uint64 if target == "u64" else np.int64).astype(NUMPY[target])
        else:
            want = x.astype(NUMPY[target])
        if not same(got, want, where):
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_convert_every_value_as_torch_does(functions: Functions, kind: str) -> None:
    narrow = getattr(torch, kind)
    name = {"bfloat16": "bf16", "float16": "f16"}.get(kind, kind.replace("float8_", "f8"))
    unsigned = np.uint16 if narrow.itemsize == 2 else np.uint8
    signed = np.int16 if narrow.itemsize == 2 else np.int8

    def widen(bits: np.ndarray) -> np.ndarray:
        return torch.from_numpy(bits.view(signed)).view(narrow).float().numpy()

    every = np.arange(np.iinfo(unsigned).max + 1).astype(unsigned)
    exact = widen(every)
    assert same(functions(f"from_{name}", every), exact)
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2**32, 40000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    tiny = np.arange(0x33000000, 0x38900000, 2999, dtype=np.uint32).view(np.float32)
    ordered = np.unique(exact[np.isfinite(exact)])
    middle = (ordered[1:] + ordered[:-1]) / 2  # the ties
    near = [np.nextafter(middle, np.float32(end)) for end in (np.inf, -np.inf)]
    x = np.concatenate([bits, tiny, exact, middle, *near, samples("f32", rng)])
    want = torch.from_numpy(x).to(narrow).float().numpy()
    assert same(widen(functions(f"to_{name}", x)), want)


def test_comparisons_and_selection(functions: Functions) -> None:
    rng = np.random.default_rng(3)
    wrong = []
    for name in names(functions, "sel", *COMPARE):
        op, kind = name.split("_")
        a, b = samples(kind, rng), samples(kind, rng)
        if op == "sel":
            mask = -rng.integers(0, 2, a.size).astype(np.int32)
            ok = same(functions(name, mask, a, b), np.where(mask != 0, a, b))
        else:
            left, right = (a != 0, b != 0) if kind == "mask" else (a, b)
            ok = same(functions(name, a, b), -COMPARE[op](left, right).astype(np.int32))
        if not ok:
            wrong.append(name)
    assert not wrong


def test_arithmetic_matches_numpy_and_torch(functions: Functions) -> None:
    rng = np.random.default_rng(4)
    wrong = []
    for name in names(functions, *ARITHMETIC):
        op, kind = name.split("_")
        a, b = samples(kind, rng), samples(kind, rng)
        if op in ("divf", "rem", "fmod") and kind in INTS:
            b[b == 0] = 3
            lowest = np.iinfo(b.dtype).min
            b[(b == NUMPY[kind](-1 if lowest else 1)) & (a == lowest)] = 3
        got = functions(name, a, b)
        if kind in FLOATS and op in ("divf", "rem", "fmod"):
            eager = {"divf": torch.floor_divide, "rem": torch.remainder, "fmod": torch.fmod}[op]
            want = eager(torch.from_numpy(a), torch.from_numpy(b)).numpy()
        else:
            want = ARITHMETIC[op](a, b)
        if op in ("min", "max") and kind in FLOATS:
            got, want = got + NUMPY[kind](0), want + NUMPY[kind](0)  # either zero will do
        if not same(got, want):
            wrong.append(name)
    assert not wrong


def test_unary_operations(functions: Functions) -> None:
    rng = np.random.default_rng(5)
    wrong = []
    for name in names(functions, *PLAIN, *TESTS):
        op, kind = name.split("_")
        x = samples(kind, rng)
        if op in TESTS:
            want = -TESTS[op](x).astype(np.int32)
        elif op == "sign" and kind in FLOATS:
            want = torch.sign(torch.from_numpy(x)).numpy() + 0
        else:
            want = PLAIN[op](x)
        if not same(functions(name, x), want):
            wrong.append(name)
    assert not wrong


def test_shifts_out_of_range_act_as_in_eager(functions: Functions) -> None:
    rng = np.random.default_rng(6)
    for name in names(functions, "shl", "shr"):
        op, kind = name.split("_")
        a = samples(kind, rng)
        b = rng.integers(-2 if kind[0] == "i" else 0, 70, a.size).astype(NUMPY[kind])
        bits = 8 * a.itemsize
        want = []
        for x, y in zip(a.tolist(), b.tolist()):
            inside = 0 <= y < bits
            if op == "shl":
                want.append((x << y) % 2**bits if inside else 0)
            elif kind[0] == "i":
                want.append((x >> (y if inside else bits - 1)) % 2**bits)
            else:
                want.append(x >> y if inside else 0)
        unsigned = np.array(want, dtype=NUMPY[f"u{bits}"])
        assert same(functions(name, a, b), unsigned.view(NUMPY[kind])), name


def test_integer_division_by_zero_or_overflowing_does_not_trap(functions: Functions) -> None:
    for name in names(functions, "divt", "divf", "rem", "fmod"):
        kind = name.split("_")[1]
        if kind in INTS:
            info = np.iinfo(NUMPY[kind])
            a = np.full(33, info.min, NUMPY[kind])
            functions(name, a, np.zeros_like(a))
            if info.min:
                minus = np.full_like(a, -1)
                got = functions(name, a, minus)
                assert (got == (0 if name[:3] in ("rem", "fmo") else info.min)).all(), name


@pytest.mark.parametrize(("isa", "lanes"), SHAPES, ids=str)
def test_a_tail_touches_only_its_elements(isa: str, lanes: int, tmp_path: Path) -> None:
    """Each count from 1 to all lanes, with the data against the end of the readable memory."""
    wide = lanes * 8 > Shape(lanes, isa).register_bytes
    kinds = [d for d in DTYPES if not (wide and d.endswith("64"))]
    code = "".join(
        f"void copy_{d}(const {ctype(d)} *a, {ctype(d)} *r, {ctype(d)} *whole, int n) {{ "
        f"v{d} v = ld_{d}(a, n); st_{d}(r, v, n); st_{d}(whole, v, {lanes}); "
        f"if (n == 1) st_{d}(r, v, 1); }}\n"
        for d in kinds
    )
    needed = {f"{op}_{d}" for d in kinds for op in ("ld", "st")}
    target = "x86-64-v2" if isa == "aarch64" else isa
    library = load_library(compile_shared(prelude(lanes, isa, needed) + code, target, 60), tmp_path)
    page = mmap.PAGESIZE
    region = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
    for kind in kinds:
        dtype = np.dtype(NUMPY[kind])
        for n in range(1, lanes + 1):
            region[page - n * dtype.itemsize : page] = np.arange(1, n + 1, dtype=dtype).tobytes()
            source = start + page - n * dtype.itemsize
            result, whole = np.full(lanes + 2, 77, dtype), np.zeros(lanes, dtype)
            getattr(library, f"copy_{kind}")(
                ctypes.c_void_p(source),
                ctypes.c_void_p(result.ctypes.data),
                ctypes.c_void_p(whole.ctypes.data),
                ctypes.c_int(n),
            )
            counted = np.arange(1, n + 1, dtype=dtype)
            assert np.array_equal(result[:n], counted), (kind, n)
            assert (result[n:] == 77).all(), (kind, n)
            assert np.array_equal(whole[:n], counted), (kind, n)
            assert not whole[n:].any(), (kind, n)


@pytest.mark.parametrize(("isa", "lanes"), SHAPES, ids=str)
def test_horizontal_reductions(isa: str, lanes: int, tmp_path: Path) -> None:
    wide = lanes * 8 > Shape(lanes, isa).register_bytes
    kinds = [d for d in ("f32", "i32", "f64", "i64") if not (wide and d.endswith("64"))]
    ops = {"hsum": np.sum, "hprod": np.prod, "hmin": np.min, "hmax": np.max}
    code = "".join(
        f"void {op}_of_{d}(const {ctype(d)} *a, {ctype(d)} *r) "
        f"{{ *r = {op}_{d}(ld_{d}(a, {lanes})); }}\n"
        for d in kinds
        for op in ops
    ) + "".join(
        f"int {op}_of(const int *a) {{ return {op}(ld_i32(a, {lanes})); }}\n"
        for op in ("hany", "hall")
    )
    needed = {f"{op}_{d}" for d in kinds for op in (*ops, "ld")} | {"hany", "hall"}
    target = "x86-64-v2" if isa == "aarch64" else isa
    library = load_library(compile_shared(prelude(lanes, isa, needed) + code, target, 60), tmp_path)
    rng = np.random.default_rng(8)
    for kind in kinds:
        for op, expected in ops.items():
            a = rng.integers(1, 5, lanes).astype(NUMPY[kind])
            result = np.zeros(1, a.dtype)
            run = getattr(library, f"{op}_of_{kind}")
            run(ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(result.ctypes.data))
            assert result[0] == expected(a).astype(a.dtype), (op, kind)
            if kind in FLOATS and op in ("hmin", "hmax"):
                a[lanes // 2] = np.nan
                run(ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(result.ctypes.data))
                assert np.isnan(result[0]), (op, kind)
    for set_lanes in range(lanes + 1):
        mask = np.zeros(lanes, np.int32)
        mask[:set_lanes] = -1
        rng.shuffle(mask)
        address = ctypes.c_void_p(mask.ctypes.data)
        assert bool(library.hany_of(address)) == bool(set_lanes)
        assert bool(library.hall_of(address)) == (set_lanes == lanes)


@pytest.mark.parametrize(("isa", "lanes"), [s for s in SHAPES if s[1] > 1], ids=str)
def test_squares_are_transposed(isa: str, lanes: int, tmp_path: Path) -> None:
    wide = lanes * 8 > Shape(lanes, isa).register_bytes
    kinds = [d for d in DTYPES if not (wide and d.endswith("64"))]
    code = "".join(
        f"void turn_{d}(const {ctype(d)} *a, {ctype(d)} *r) {{ v{d} m[{lanes}]; "
        f"for (int i = 0; i < {lanes}; i++) m[i] = ld_{d}(a + {lanes} * i, {lanes}); "
        f"transpose_{d}(m); "
        f"for (int i = 0; i < {lanes}; i++) st_{d}(r + {lanes} * i, m[i], {lanes}); }}\n"
        for d in kinds
    )
    needed = {f"{op}_{d}" for d in kinds for op in ("ld", "st", "transpose")}
    target = "x86-64-v2" if isa == "aarch64" else isa
    library = load_library(compile_shared(prelude(lanes, isa, needed) + code, target, 60), tmp_path)
    for kind in kinds:
        a = np.arange(lanes * lanes).astype(NUMPY[kind]).reshape(lanes, lanes)
        turned = np.zeros_like(a)
        run = getattr(library, f"turn_{kind}")
        run(ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(turned.ctypes.data))
        assert np.array_equal(turned, a.T), kind
