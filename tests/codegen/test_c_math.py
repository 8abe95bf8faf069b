"""The elementary functions of generated kernels: accuracy in last places, and the special cases."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.codegen.native import Functions, runnable

# Largest error allowed, in units of the last place, against extended precision.
BOUNDS_F32 = {
    "exp": 1.1, "exp2": 1.2, "expm1": 1.7, "log": 1.0, "log2": 1.8, "log10": 1.7, "log1p": 1.6,
    "sin": 1.6, "cos": 1.6, "tan": 0.6, "tanh": 2.0, "sinh": 1.7, "cosh": 1.5, "asin": 1.5,
    "acos": 1.3, "atan": 1.5, "asinh": 0.6, "acosh": 0.6, "atanh": 0.6, "erf": 1.2, "erfc": 0.6,
    "sqrt": 0.5, "rsqrt": 1.5, "reciprocal": 0.5, "sigmoid": 1.9,
}  # fmt: skip
BOUNDS_F64 = {
    "exp": 1.1, "exp2": 1.2, "expm1": 2.0, "log": 1.0, "log2": 1.0, "log10": 1.0, "log1p": 1.6,
    "sin": 2.2, "cos": 2.2, "tanh": 2.4, "erf": 2.0, "sqrt": 0.5, "rsqrt": 1.5,
    "reciprocal": 0.5, "sigmoid": 2.0, "tan": 1.0, "atan": 1.0, "sinh": 2.0, "asinh": 2.0,
}  # fmt: skip
NUMPY_NAMES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan",
    "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
}  # fmt: skip
SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 1e-45, -1e-40, 1.1754944e-38,
    3.4e38, -3.4e38, 88.7, 88.72283, 88.73, -87.3, -103.9, -104, -150, 127.9999, 128, -149,
    -149.9, -150.1, 1e-8, 1e-4, -1e-4, 9, 10, 100, 1e4, 1e5, 1e6, 1e10, 1e30, 0.9999999, 1.0000001,
]  # fmt: skip
SPECIAL_F64 = [
    709.7, 709.79, -708, -745, -745.2, -746, 5e-324, 1e-310, 2.2250738585072014e-308, 1e308,
    1023.999, 1024, -1022, -1074, -1074.9, -1075.1, 1e300,
]  # fmt: skip
SHAPES = [
    (isa, single, double)
    for isa, single, double in (
        ("x86-64-v4", 16, 8),
        ("x86-64-v4", 1, 1),
        ("x86-64-v3", 8, 4),
        ("x86-64-v3", 1, 1),
        ("x86-64-v2", 4, 2),
        ("aarch64", 4, 2),
    )
    if runnable(isa)
]


def points(dtype: type, seed: int = 0, n: int = 4000) -> np.ndarray:
    """Every binade, the usual range, multiples of pi/2, special values; the count is odd."""
    rng = np.random.default_rng(seed)
    single = dtype is np.float32
    if single:
        bits = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        bits = rng.integers(0, 2**64, n, dtype=np.uint64, endpoint=False).view(np.float64)
    widest = 1e5 if single else 1e6
    near = np.arange(1, n) * (np.pi / 2)
    parts = [
        bits,
        rng.standard_normal(n),
        rng.standard_normal(n) * 30,
        rng.uniform(-1, 1, n),
        rng.uniform(-110, 110, n) if single else rng.uniform(-750, 750, n),
        1 + rng.standard_normal(n) * 0.1,
        10 ** rng.uniform(-12 if single else -30, 5, n) * rng.choice([-1, 1], n),
        rng.uniform(-widest, widest, n),
        near,
        np.array(SPECIAL),
        np.array([] if single else SPECIAL_F64),
    ]
    with np.errstate(all="ignore"):
        found = np.concatenate([np.asarray(p).astype(dtype) for p in parts])
    return found[: len(found) - 1 + len(found) % 2]


def reference(name: str, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.longdouble)
    if name in ("erf", "erfc"):
        exact = getattr(torch, name)(torch.from_numpy(x.astype(np.float64))).numpy()
        return exact.astype(np.longdouble)
    if name == "rsqrt":
        return 1 / np.sqrt(wide)
    if name == "reciprocal":
        return 1 / wide
    if name == "sigmoid":
        return 1 / (1 + np.exp(-wide))
    return getattr(np, NUMPY_NAMES.get(name, name))(wide)


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The error of each element in last places; infinite where NaN or infinity is wrong."""
    info = np.finfo(got.dtype)
    rounded = exact.astype(got.dtype)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    exponent = np.floor(np.log2(np.abs(exact)))
    exponent = np.where(np.isfinite(exponent), exponent, info.minexp)
    place = np.exp2(np.maximum(exponent, info.minexp) - info.nmant)
    error = np.abs(got.astype(np.longdouble) - exact) / place
    return np.where(same, 0, np.where(np.isfinite(error), error, np.inf))


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    isa, single, double = request.param
    folder = tmp_path_factory.mktemp("math")
    return (
        Functions(single, isa, [f"{n}_f32" for n in (*BOUNDS_F32, "pow", "atan2")], folder / "s"),
        Functions(double, isa, [f"{n}_f64" for n in (*BOUNDS_F64, "pow", "atan2")], folder / "d"),
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bits", [32, 64])
def test_errors_stay_below_their_bounds(functions, bits: int) -> None:
    single, double = functions
    library, bounds, dtype = (
        (single, BOUNDS_F32, np.float32) if bits == 32 else (double, BOUNDS_F64, np.float64)
    )
    x = points(dtype)
    worst = {}
    for name, bound in bounds.items():
        error = errors(library(f"{name}_f{bits}", x), reference(name, x))
        at = int(np.argmax(error))
        if error[at] > bound:
            worst[name] = (float(error[at]), float(x[at]))
    assert not worst


@pytest.mark.parametrize("bits", [32, 64])
def test_zero_keeps_its_sign_in_odd_functions(functions, bits: int) -> None:
    zeros = np.array([0.0, -0.0])
    odd = ("sin", "tanh", "erf", "expm1", "log1p", "sinh", "asinh", "atan", "tan")
    for name in odd:
        got = functions[bits == 64](f"{name}_f{bits}", zeros)
        assert np.signbit(got).tolist() == [False, True], name
        assert not got.any(), name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bits", [32, 64])
def test_pow_and_atan2_follow_eager_in_every_special_case(functions, bits: int) -> None:
    dtype = np.float32 if bits == 32 else np.float64
    values = np.array(
        [0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.5, np.inf, -np.inf, np.nan, 1e30, -1e30,
         16777217, 1e-30, 1e-38, -1e-38],
        dtype,
    )  # fmt: skip
    a, b = (m.ravel() for m in np.meshgrid(values, values))
    library = functions[bits == 64]
    for name, exact in (
        ("pow", np.power(a.astype(np.longdouble), b.astype(np.longdouble))),
        ("atan2", np.arctan2(a.astype(np.longdouble), b.astype(np.longdouble))),
    ):
        got = library(f"{name}_f{bits}", a, b)
        bad = errors(got, exact) > 2
        bad |= (np.signbit(got) != np.signbit(exact)) & ~np.isnan(exact)
        assert not bad.any(), (name, a[bad], b[bad], got[bad], exact[bad])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pow_and_atan2_are_accurate(functions) -> None:
    rng = np.random.default_rng(3)
    a = np.exp(rng.uniform(-20, 20, 4001)).astype(np.float32)
    b = rng.uniform(-8, 8, 4001).astype(np.float32)
    library = functions[0]
    power = np.power(a.astype(np.longdouble), b.astype(np.longdouble))
    assert errors(library("pow_f32", a, b), power).max() < 0.6
    signed = a * rng.choice([-1, 1], a.size).astype(np.float32)
    angle = np.arctan2(signed.astype(np.longdouble), b.astype(np.longdouble))
    assert errors(library("atan2_f32", signed, b), angle).max() < 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_vectors_and_scalars_agree(tmp_path: Path) -> None:
    """A kernel's remainder loop may be scalar: its elements must not differ from their row."""
    isa, lanes = SHAPES[0][:2]
    names = [f"{n}_f32" for n in ("exp", "log", "tanh", "erf", "sin", "sigmoid", "rsqrt")]
    wide, narrow = (Functions(n, isa, names, tmp_path / str(n)) for n in (lanes, 1))
    x = points(np.float32, seed=7)
    for name in names:
        assert np.array_equal(wide(name, x), narrow(name, x), equal_nan=True), name
