"""The operations that random programs are made of: text with places for operands.

An operation is an expression in which ``{a}`` ``{b}`` ``{c}`` stand for earlier values, chosen by
kind (``f`` floating, ``i`` integer, ``n`` number, ``o`` bool, ``*`` anything), and the other fields
are filled from a table of small choices that depends on the operands. Dtypes are names, so that the
same text can be run in float64.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Choose = Callable[[random.Random, list[torch.Tensor]], dict[str, object]]


@dataclass(frozen=True)
class Operation:
    """``kinds``: one letter an operand; ``same``: operands after the first have its shape."""

    text: str
    kinds: str
    choose: Choose = lambda rng, tensors: {}
    weight: float = 1.0
    same: bool = False


def _dim(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    return {"dim": rng.randrange(-tensors[0].dim(), tensors[0].dim())}


def _fold(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    rank = tensors[0].dim()
    count = rng.choice((1, 1, 1, 2, rank))
    dims = rng.sample(range(rank), min(count, rank))
    return {"dim": dims[0], "dims": dims, "keep": rng.random() < 0.4}


def _two_dims(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    rank = tensors[0].dim()
    order = list(range(rank))
    rng.shuffle(order)
    return {"d": rng.randrange(rank), "e": rng.randrange(rank), "order": order}


def _slice(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    x = tensors[0]
    dim = rng.randrange(x.dim())
    size = max(x.shape[dim], 1)
    start = rng.randrange(size)
    length = rng.randrange(size - start) + 1
    step = rng.choice((1, 1, 1, 2, 3))
    parts = [":"] * dim + [f"{start}:{start + length}" + (f":{step}" if step > 1 else "")]
    return {
        "dim": dim,
        "start": start,
        "length": length,
        "index": ", ".join(parts),
        "at": rng.randrange(-size, size),
        "size": size,
    }


def _reshape(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    shape = list(tensors[0].shape)
    for _ in range(rng.choice((1, 1, 2))):
        if len(shape) > 1 and rng.random() < 0.6:
            at = rng.randrange(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif shape:
            at = rng.randrange(len(shape))
            factors = [k for k in (2, 3, 4, 5, 7, 8, 13) if shape[at] and shape[at] % k == 0]
            if factors:
                k = rng.choice(factors)
                shape[at : at + 1] = rng.choice([[k, shape[at] // k], [shape[at] // k, k]])
    return {"shape": shape}


def _expand(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    shape = [rng.choice((2, 3, 5)) if n == 1 else -1 for n in tensors[0].shape]
    return {"shape": ([rng.choice((1, 2, 3))] if rng.random() < 0.4 else []) + shape}


def _pad(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    count = rng.randrange(min(tensors[0].dim(), 2)) + 1
    pads = [rng.choice((0, 0, 1, 2, 3, -1)) for _ in range(2 * count)]
    return {"pads": pads, "fill": rng.choice((0, 1, -2))}


def _number(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    return {
        "s": rng.choice((2, 3, -1, 0.5, 1.5, -0.25, 7)),
        "k": rng.choice((1, 2, 3, -3, 5)),
        "low": rng.choice((-2, -1, 0)),
        "high": rng.choice((1, 2, 3)),
        "diagonal": rng.choice((-2, -1, 0, 1, 3)),
    }


def _dtype(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    return {
        "float": rng.choice(("f32", "f32", "f64", "bf16", "f16")),
        "int": rng.choice(("i64", "i32", "i16", "i8", "u8")),
    }


def _roll(rng: random.Random, tensors: list[torch.Tensor]) -> dict[str, object]:
    return {"dim": rng.randrange(tensors[0].dim()), "k": rng.choice((1, 2, -1, 3))}


_UNARY = "neg abs sin cos tanh sigmoid exp erf floor ceil round trunc sign square".split()
_GUARDED = (
    "torch.sqrt({a}.abs())",
    "torch.rsqrt({a}.abs() + 1)",
    "torch.log({a}.abs() + 0.5)",
    "torch.log1p({a}.abs())",
    "torch.reciprocal({a}.abs() + 1)",
    "{a}.abs() ** 0.5",
    "torch.exp2({a}.clamp(-8, 8))",
    "F.relu({a})",
    "F.gelu({a})",
    "F.silu({a})",
    "F.softplus({a})",
    "F.leaky_relu({a}, 0.1)",
    "torch.nan_to_num({a})",
    "torch.isnan({a})",
    "torch.isfinite({a})",
)
_COMPARE = "lt le gt ge eq ne".split()
_FOLDS = "sum mean amax amin".split()

OPERATIONS: tuple[Operation, ...] = (
    *(Operation(f"torch.{n}({{a}})", "f", weight=0.5) for n in _UNARY),
    *(Operation(text, "f", weight=0.4) for text in _GUARDED),
    Operation("-{a}", "n"),
    Operation("{a}.abs()", "n", weight=0.5),
    Operation("~{a}", "i", weight=0.5),
    Operation("torch.logical_not({a})", "*", weight=0.3),
    Operation("{a}.clone()", "*", weight=0.5),
    Operation("{a}.contiguous()", "*", weight=0.5),
    # two operands
    Operation("{a} + {b}", "nn", weight=4),
    Operation("{a} - {b}", "nn", weight=3),
    Operation("{a} * {b}", "nn", weight=4),
    Operation("torch.maximum({a}, {b})", "nn"),
    Operation("torch.minimum({a}, {b})", "nn"),
    Operation("{a} / ({b}.abs() + 1)", "nn"),
    # A divisor that half precision does not round: a remainder jumps, and inside one step nothing
    # says by how much rounding may have moved it.
    Operation("{a} % {b}.abs().clamp(min=1)", "ff", weight=0.4),
    Operation("torch.fmod({a}, {b}.abs().clamp(min=1))", "ff", weight=0.4),
    Operation("torch.atan2({a}, {b})", "ff", weight=0.4),
    Operation("torch.floor_divide({a}, {b}.abs().clamp(1, 9))", "ii", weight=0.5),
    Operation("torch.add({a}, {b}, alpha={k})", "nn", _number, 0.7),
    Operation("torch.addcmul({a}, {b}, {c})", "fff", weight=0.5),
    Operation("torch.lerp({a}, {b}, 0.3)", "ff", weight=0.4, same=True),
    *(Operation(f"torch.{n}({{a}}, {{b}})", "nn", weight=0.5) for n in _COMPARE),
    Operation("{a} & {b}", "oo"),
    Operation("{a} | {b}", "oo"),
    Operation("{a} ^ {b}", "oo"),
    Operation("{a} & {b}", "ii", weight=0.5),
    Operation("{a} ^ {b}", "ii", weight=0.5),
    Operation("torch.where({a}, {b}, {c})", "onn", weight=2),
    Operation("{a}.masked_fill({b}, {low})", "no", _number, 0.7),
    # numbers
    Operation("{a} + {s}", "n", _number),
    Operation("{s} - {a}", "n", _number),
    Operation("{a} * {s}", "n", _number),
    Operation("{a} > {low}", "n", _number),
    Operation("{a}.clamp({low}, {high})", "n", _number),
    Operation("{a} ** 2", "n", weight=0.7),
    # conversions
    Operation("{a}.to({float})", "*", _dtype, 2),
    Operation("{a}.clamp(-9, 9).to({int})", "f", _dtype),
    Operation("{a}.to({int})", "i", _dtype, 0.7),
    Operation("{a}.to({int})", "o", _dtype, 0.7),
    Operation("{a}.bool()", "*", weight=0.5),
    # views
    Operation("{a}.transpose({d}, {e})", "*", _two_dims, 2),
    Operation("{a}.permute({order})", "*", _two_dims, 2),
    Operation("{a}.unsqueeze({d})", "*", _two_dims),
    Operation("{a}.squeeze()", "*", weight=0.5),
    Operation("{a}[{index}]", "*", _slice, 3),
    Operation("{a}.select({dim}, {at})", "*", _slice),
    Operation("{a}.narrow({dim}, {start}, {length})", "*", _slice, 0.7),
    Operation("{a}.flip({dim})", "*", _slice, 0.8),
    Operation("{a}.roll({k}, {dim})", "*", _roll, 0.8),
    Operation("{a}.reshape({shape})", "*", _reshape, 3),
    Operation("{a}.expand({shape})", "*", _expand),
    Operation("{a}.flatten()", "*", weight=0.5),
    Operation("{a}.diagonal()", "*", weight=0.4),
    Operation("{a}.repeat_interleave(2, {dim})", "*", _slice, 0.3),
    Operation("{a}.unfold({dim}, 1 if {size} < 3 else 3, 1)", "*", _slice, 0.4),
    Operation("{a}.chunk(2, {dim})[-1]", "*", _slice, 0.6),
    Operation("{a}.unbind({dim})[0]", "*", _slice, 0.4),
    # folds
    *(Operation(f"{{a}}.{n}({{dims}}, keepdim={{keep}})", "f", _fold, 1.2) for n in _FOLDS),
    Operation("{a}.sum()", "n", weight=0.7),
    Operation("{a}.sum({dim}, keepdim={keep})", "n", _fold),
    Operation("{a}.amax({dims})", "i", _fold, 0.5),
    Operation("{a}.clamp(-2, 2).prod({dim})", "f", _fold, 0.4),
    Operation("{a}.any({dim})", "*", _fold, 0.5),
    Operation("{a}.all({dim}, keepdim={keep})", "*", _fold, 0.5),
    Operation("{a}.argmax({dim}, keepdim={keep})", "n", _fold, 0.5),
    Operation("{a}.argmin({dim})", "n", _fold, 0.5),
    Operation("{a}.max({dim}, keepdim={keep})[0]", "n", _fold, 0.5),
    Operation("{a}.min({dim})[1]", "n", _fold, 0.4),
    Operation("{a}.var({dims}, unbiased=False)", "f", _fold, 0.6),
    Operation("{a}.logsumexp({dim})", "f", _fold, 0.5),
    Operation("torch.softmax({a}, {dim})", "f", _dim),
    Operation("torch.log_softmax({a}, {dim})", "f", _dim, 0.7),
    Operation("F.layer_norm({a}, {a}.shape[-1:])", "f"),
    Operation("{a}.norm(dim={dim})", "f", _dim, 0.4),
    Operation("{a}.cumsum({dim})", "n", _dim),
    Operation("F.avg_pool1d({a}.reshape(1, -1, {a}.shape[-1]), 3, 1, 1)", "f", weight=0.4),
    Operation("F.max_pool1d({a}.reshape(1, -1, {a}.shape[-1]), 2, 1, 1)", "f", weight=0.4),
    # placing
    Operation("torch.cat([{a}, {b}], {dim})", "**", _dim, 1.5, same=True),
    Operation("torch.stack([{a}, {b}], {dim})", "**", _dim, 0.8, same=True),
    Operation("F.pad({a}, {pads}, value={fill})", "*", _pad, 1.2),
    Operation("torch.tril({a}, {diagonal})", "n", _number, 0.5),
    Operation("torch.triu({a}, {diagonal})", "n", _number, 0.5),
    Operation("torch.select_scatter({a}, {a}.select({dim}, {at}) * 2, {dim}, {at})", "n", _slice),
    Operation("{a}.slice_scatter({a}[{index}] + 1, {dim}, {start})", "n", _slice, 0.3),
    Operation(
        "{a}.index_add({dim}, {b}.flatten()[:1].long() % {size},"
        " {a}.select({dim}, 0).unsqueeze({dim}))",
        "fi",
        _slice,
        0.4,
    ),
    Operation("{a}.index_select({dim}, {b}.flatten()[:3].long() % {size})", "*i", _slice, 0.5),
    Operation("torch.gather({a}, {dim}, {b}.long() % {size})", "*i", _slice, 0.5, same=True),
    Operation("{a} + torch.arange({a}.shape[-1])", "n", weight=0.5),
    Operation("torch.full_like({a}, {high})", "n", _number, 0.3),
    Operation("{a} @ {a}.transpose(-1, -2)", "f", weight=0.5),
    # overwriting
    Operation("{a}.add_({b})", "nn", weight=0.7, same=True),
    Operation("{a}.mul_({s})", "f", _number, 0.5),
    Operation("{a}.copy_({b})", "**", weight=0.8, same=True),
    Operation("{a}[{index}].copy_({a}[{index}] * 2)", "f", _slice, 0.5),
    Operation("{a}[{index}].fill_({start})", "n", _slice, 0.5),
    Operation("{a}.select({dim}, {at}).add_(1)", "n", _slice, 0.4),
    Operation("{a}.masked_fill_({b}, 0)", "no", weight=0.3, same=True),
    Operation("{a}.transpose(0, -1).copy_({a}.clone())", "f", weight=0.3),
)  # fmt: skip

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "b1": torch.bool,
}  # fmt: skip


def kind_fits(kind: str, tensor: torch.Tensor) -> bool:
    """Whether a value can be an operand of that kind."""
    if kind == "*":
        return True
    if kind == "f":
        return tensor.is_floating_point()
    if kind == "o":
        return tensor.dtype is torch.bool
    if kind == "i":
        return tensor.dtype is not torch.bool and not tensor.is_floating_point()
    return tensor.dtype is not torch.bool


def namespace(*, wide: bool = False) -> dict[str, Any]:
    """The names that operations use; ``wide``: floating types are all float64."""
    found: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    for name, dtype in DTYPES.items():
        found[name] = torch.float64 if wide and dtype.is_floating_point else dtype
    return found
