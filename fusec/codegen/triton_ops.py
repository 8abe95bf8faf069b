"""The scalar instruction set as Triton text: operations, constants, conversions.

Each function gives an expression over names. ``precise`` says that the result has to be as good as
its type: then functions are libdevice's, and division and square root round correctly, as in
eager; else, where only a half precision number comes of it, the GPU's own approximations serve.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from fusec.errors import CodegenError
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.loop import Const, Scalar

TYPES: Final = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "f8e4m3fn": "tl.float8e4nv", "f8e5m2": "tl.float8e5",
    "i64": "tl.int64", "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8",
    "u64": "tl.uint64", "u32": "tl.uint32", "u16": "tl.uint16", "u8": "tl.uint8",
    "bool": "tl.int1",
}  # fmt: skip
POINTERS: Final = {
    **{d: f"*{'fp' if d[0] == 'f' else ''}{d[1:] if d[0] == 'f' else d}" for d in TYPES},
    "bf16": "*bf16", "f8e4m3fn": "*fp8e4nv", "f8e5m2": "*fp8e5", "bool": "*i1",
}  # fmt: skip

_INFIX: Final = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_ORDER: Final = frozenset(("lt", "le", "gt", "ge"))
# Functions that libdevice has by the same name on every vendor's machines.
_LIBRARY: Final = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh "
    "atanh erf erfc lgamma pow atan2 copysign fmod rint trunc".split()
)
_FAST: Final = frozenset(("exp", "exp2", "log", "log2"))
# Operations that are functions of our library: their arguments are values with a type.
TYPED: Final = frozenset(("shl", "shr", "divf", "rem"))
_REALS: Final = ("f32", "f64")
_SMALLEST_NORMAL: Final = 2.0**-126


def constant(node: Const, operation: str) -> str:
    """A constant that stands beside a value of its type, as an argument of an operation."""
    value, dtype = node.value, node.dtype
    if dtype == "bool":
        return typed(node)
    if dtype == "i32" or (operation in _INFIX and dtype not in _REALS):
        return str(_wrapped(int(value), dtype))
    if dtype == "f32":
        number = _single(float(value))
        if number == 0 or not math.isfinite(number) or abs(number) >= _SMALLEST_NORMAL:
            return _float(number)
    return typed(node)


def typed(node: Const) -> str:
    """A constant as a value of its own type."""
    value, dtype = node.value, node.dtype
    if dtype in _REALS:
        text = _float(_single(float(value)) if dtype == "f32" else float(value))
    else:
        text = str(bool(value)) if dtype == "bool" else str(_wrapped(int(value), dtype))
    return f"tl.full([], {text}, {TYPES[dtype]})"


def operation(
    name: str, dtype: str, operand: str, args: list[str], isa: str, *, precise: bool
) -> str:
    """``operand``: the type of the arguments. Raises CodegenError for an unknown operation."""
    if name in _ORDER and operand == "bool":
        args = [f"{a}.to(tl.int32)" for a in args]
    if name in _INFIX:
        return f"{args[0]} {_INFIX[name]} {args[1]}"
    if name == "where":
        return f"tl.where({', '.join(args)})"
    if name.startswith("round_"):
        return f"{args[0]}.to({TYPES[name.removeprefix('round_')]}).to({TYPES[dtype]})"
    found = _real(name, operand, args, isa, precise) if operand in _REALS else None
    if found is None and operand not in _REALS:
        found = _integer(name, operand, args)
    if found is None:
        raise CodegenError(f"no Triton for the operation {name} on {operand}")
    return found


def reciprocal(node: Scalar) -> Const | None:
    """For a power of two: the number that to multiply by is to divide by it, exactly."""
    if not isinstance(node, Const) or node.dtype not in _REALS:
        return None
    mantissa, exponent = math.frexp(float(node.value))
    if abs(mantissa) != 0.5 or abs(exponent) > 100:
        return None
    found = lp.const(1.0 / float(node.value), node.dtype)
    assert isinstance(found, Const)
    return found


def conversion(value: str, source: str, target: str) -> str:
    """To another compute type, as eager's device code does it."""
    if source == target:
        return value
    if target == "bool":
        return f"{value} != 0"
    if source in _REALS and target not in _REALS:
        # Through a wider integer, whose low bits are kept.
        if target in ("i8", "i16"):
            return f"{value}.to(tl.int32).to({TYPES[target]})"
        if target in ("u8", "u16", "u32"):
            return f"{value}.to(tl.int64).to({TYPES[target]})"
    return f"{value}.to({TYPES[target]})"


def divide(a: str, b: str, dtype: str, *, precise: bool) -> str:
    """The quotient of floats. Triton's own division of f32 is two places off."""
    return (
        f"tl.div_rn({a}, {b})"
        if precise and dtype == "f32"
        else f"{a} / {b if ' ' not in b else f'({b})'}"
    )


def _real(name: str, dtype: str, args: list[str], isa: str, precise: bool) -> str | None:
    precise = precise or dtype == "f64"
    a, b = args[0], args[-1]
    bits = f"tl.int{8 * DTYPES[dtype].size}"
    if name in _FAST and not precise:
        return f"tl.{name}({a})"
    if name == "log" and isa.startswith("gfx"):
        return f"tl.log({a})"  # compiled to the vendor's own function
    if name in _LIBRARY:
        return f"libdevice.{name}({', '.join(args)})"
    if name in ("min", "max"):
        return f"tl.{name}imum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"
    exponential = f"libdevice.exp(-1.0 * {a})" if precise else f"tl.exp(-1.0 * {a})"
    one = "1.0"
    found = {
        "neg": f"-1.0 * {a}",
        "abs": f"tl.abs({a})",
        "floor": f"tl.floor({a})",
        "ceil": f"tl.ceil({a})",
        "sign": f"({a} > 0).to({TYPES[dtype]}) - ({a} < 0).to({TYPES[dtype]})",
        "isnan": f"{a} != {a}",
        "isinf": f'tl.abs({a}) == float("inf")',
        "isfinite": f'tl.abs({a}) < float("inf")',
        "signbit": f"{a}.to({bits}, bitcast=True) < 0",
        "sqrt": f"tl.sqrt_rn({a})" if precise and dtype == "f32" else f"tl.sqrt({a})",
        "rsqrt": f"libdevice.rsqrt({a})",
        "reciprocal": divide(one, a, dtype, precise=precise),
        "sigmoid": divide(one, f"1.0 + {exponential}", dtype, precise=precise),
        "rem": f"float_remainder({a}, {b}, libdevice.fmod({a}, {b}))",
        "div": divide(a, b, dtype, precise=precise),
        "divt": f"libdevice.trunc({divide(a, b, dtype, precise=True)})",
        "divf": f"float_floor_divide({a}, {b}, libdevice.fmod({a}, {b}), "
        f"{divide(a, b, dtype, precise=True)})",
    }
    return found.get(name)


def _integer(name: str, dtype: str, args: list[str]) -> str | None:
    a, b = args[0], args[-1]
    unsigned = dtype.startswith("u")
    kind = TYPES[dtype]
    if dtype == "bool":
        return {"not": f"~{a}", "min": f"{a} & {b}", "max": f"{a} | {b}"}.get(name)
    bits = 8 * DTYPES[dtype].size
    sign = f"({a} > 0).to({kind})" + ("" if unsigned else f" - ({a} < 0).to({kind})")
    found = {
        "not": f"~{a}",
        "neg": f"-{a}",
        "abs": a if unsigned else f"tl.abs({a})",
        "sign": sign,
        "min": f"tl.minimum({a}, {b})",
        "max": f"tl.maximum({a}, {b})",
        "divt": f"{a} // {b}",
        "fmod": f"{a} % {b}",
        "divf": f"{a} // {b}" if unsigned else f"floor_divide({a}, {b})",
        "rem": f"{a} % {b}" if unsigned else f"floor_modulo({a}, {b})",
        "shl": f"shift_left({a}, {b}, {bits})",
        "shr": f"shift_right({a}, {b}, {bits})",
    }
    return found.get(name)


def _wrapped(value: int, dtype: str) -> int:
    """The integer of that type with the same low bits."""
    bits = 8 * DTYPES[dtype].size
    low = value & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.startswith("i") and low >> (bits - 1) else low


def _single(value: float) -> float:
    """Rounded to f32."""
    if not math.isfinite(value):
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _float(value: float) -> str:
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)
