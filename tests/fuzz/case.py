"""A random program: inputs, steps as text, outputs. Made from a seed, run, shrunk, pasted."""

from __future__ import annotations

import functools
import math
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from tests.fuzz.operations import DTYPES, OPERATIONS, Operation, kind_fits, namespace

_NAME = re.compile(r"\b[xv]\d+\b")
_SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33, 64, 65, 100, 130, 257)
_DTYPE_WEIGHTS = {
    "f32": 10, "bf16": 3, "f16": 2, "f64": 2, "i64": 2, "i32": 1, "i16": 0.5, "i8": 0.7,
    "u8": 1, "b1": 1.2,
}  # fmt: skip
_LARGE_SIZES = (1, 2, 7, 64, 100, 257, 300, 512, 1025, 4096, 8192, 70_000)
_MAX_ELEMENTS = 30_000
_MAX_LARGE = 300_000
# What eager says about operands that do not fit: such a step is not taken.
_REFUSALS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class Case:
    """``inputs`` by name with their values; ``steps``: (name, expression); ``outputs``: names."""

    seed: int
    inputs: tuple[tuple[str, torch.Tensor], ...]
    steps: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]

    def source(self, name: str = "f") -> str:
        """The program as a Python function."""
        head = f"def {name}({', '.join(n for n, _ in self.inputs)}):"
        body = [f"    {n} = {text}" for n, text in self.steps]
        return "\n".join([head, *body, f"    return [{', '.join(self.outputs)}]"]) + "\n"

    def function(self, *, wide: bool = False) -> Callable[..., list[torch.Tensor]]:
        """The program as a callable; ``wide``: floating types are all float64."""
        names = namespace(wide=wide)
        exec(self.source(), names)  # noqa: S102 - text that this module wrote
        made: Callable[..., list[torch.Tensor]] = names["f"]
        return made

    def fresh(self) -> list[torch.Tensor]:
        """Copies of the inputs with their layouts."""
        return [copy_of(t) for _, t in self.inputs]

    def pasteable(self, why: str) -> str:
        """A test that fails as this case does."""
        lines = [
            f"# seed {self.seed}: {why.splitlines()[0][:150]}" if why else f"# seed {self.seed}",
            f"def test_fuzz_{self.seed}() -> None:",
        ]
        lines += ["    " + line for line in self.source().splitlines()]
        lines += [f"    {n} = {literal(t)}" for n, t in self.inputs]
        lines.append(f"    compile_and_compare(f, {', '.join(n for n, _ in self.inputs)})")
        used = {n for _, text in self.steps for n in re.findall(r"\w+", text)}
        heads = [f"{n} = {d}" for n, d in DTYPES.items() if n in used]
        return "\n".join(heads + lines)


Values: TypeAlias = dict[str, torch.Tensor]
Take: TypeAlias = Callable[[str, Callable[[Values], torch.Tensor], Values], torch.Tensor]


def run_steps(case: Case, inputs: list[torch.Tensor], take: Take | None = None) -> Values:
    """Every value of a run. ``take``, given a step's text, what evaluates it and the values so far,
    says what its value is."""
    names = namespace()
    values = {n: t for (n, _), t in zip(case.inputs, inputs, strict=True)}
    for name, text in case.steps:
        evaluate = functools.partial(_compiled(text), names)
        values[name] = evaluate(values) if take is None else take(text, evaluate, values)
    return values


def names_in(text: str) -> set[str]:
    """The values that a step is made of."""
    return set(_NAME.findall(text))


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> Callable[[dict[str, Any], dict[str, Any]], torch.Tensor]:
    code = compile(text, "<fuzz>", "eval")
    return lambda names, values: eval(code, names, values)  # noqa: S307 - our own text


def copy_of(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset."""
    size = x.untyped_storage().nbytes() // x.element_size()
    memory = x.as_strided((size,), (1,), 0).clone()
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


def literal(x: torch.Tensor) -> str:
    """An expression for a tensor: its values where they are few, else random ones like them."""
    dtype = str(x.dtype)
    if x.numel() <= 64:
        made = f"torch.tensor({x.tolist()!r}, dtype={dtype}).reshape({list(x.shape)})"
        made = made.replace("nan", "math.nan").replace("inf", "math.inf")
    else:
        made = f"values({tuple(x.shape)}, {dtype}, {zlib.crc32(str(x.stride()).encode()) % 97})"
    if x.numel() and not x.is_contiguous():
        offset = x.storage_offset()
        size = x.untyped_storage().nbytes() // x.element_size()
        made = f"values(({size},), {dtype}).as_strided({tuple(x.shape)}, {x.stride()}, {offset})"
    return made


def random_case(seed: int, steps: int = 8) -> Case:
    """A program that eager runs."""
    return _Generator(random.Random(seed), seed).case(steps)


class _Generator:
    def __init__(self, rng: random.Random, seed: int) -> None:
        self.rng = rng
        self.seed = seed
        self.torch_rng = torch.Generator().manual_seed(seed)
        self.values: dict[str, torch.Tensor] = {}
        self.used: set[str] = set()
        self.large = rng.random() < 0.06
        self.limit = _MAX_LARGE if self.large else _MAX_ELEMENTS
        self.overlapping = False  # torch refuses to overwrite what is expanded

    def case(self, steps: int) -> Case:
        rng = self.rng
        shape = self.shape()
        inputs = [(f"x{i}", self.input(shape, i)) for i in range(rng.choice((1, 2, 2, 3, 4)))]
        self.values = {name: copy_of(t) for name, t in inputs}
        made: list[tuple[str, str]] = []
        weights = [op.weight for op in OPERATIONS]
        wanted = rng.randrange(1, 2 * steps)
        for _ in range(4 * wanted):
            if len(made) == wanted:
                break
            text = self.step(rng.choices(OPERATIONS, weights)[0])
            if text is not None:
                made.append((f"v{len(made)}", text[0]))
                self.values[made[-1][0]] = text[1]
        names = [n for n, _ in made]
        outputs = [n for n in names if n not in self.used]
        outputs += [n for n in rng.sample(names, min(2, len(names))) if n not in outputs]
        if rng.random() < 0.1:
            outputs.append(inputs[0][0])
        return Case(self.seed, tuple(inputs), tuple(made), tuple(outputs))

    def shape(self) -> list[int]:
        rng = self.rng
        while True:
            sizes = _LARGE_SIZES if self.large else _SIZES
            shape = [rng.choice(sizes) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]
            if rng.random() < 0.03:
                shape[rng.randrange(len(shape))] = 0
            count = 1
            for n in shape:
                count *= n
            if count <= self.limit and (not self.large or count > _MAX_ELEMENTS):
                return shape

    def input(self, base: list[int], number: int) -> torch.Tensor:
        rng = self.rng
        shape = list(base)
        if number and rng.random() < 0.5:
            shape = [n if rng.random() < 0.7 else 1 for n in shape][rng.choice((0, 0, 0, 1)) :]
        name = rng.choices(list(_DTYPE_WEIGHTS), list(_DTYPE_WEIGHTS.values()))[0]
        layout = rng.random()
        if layout < 0.15 and len(shape) > 1:
            d, e = rng.randrange(len(shape)), rng.randrange(len(shape))
            shape[d], shape[e] = shape[e], shape[d]
            return self.fill(shape, DTYPES[name]).transpose(d, e)
        if layout < 0.3 and shape:
            d, lead = rng.randrange(len(shape)), rng.randrange(3)
            wide = list(shape)
            wide[d] = 2 * shape[d] + lead
            index = [slice(None)] * d + [slice(lead, lead + 2 * shape[d], 2)]
            return self.fill(wide, DTYPES[name])[tuple(index)]
        if layout < 0.36 and shape:
            d = rng.randrange(len(shape))
            full, shape[d] = shape[d], 1
            self.overlapping = True
            return self.fill(shape, DTYPES[name]).expand(*shape[:d], full, *shape[d + 1 :])
        return self.fill(shape, DTYPES[name])

    def fill(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        g = self.torch_rng
        if dtype is torch.bool:
            return torch.rand(shape, generator=g) > 0.5
        if dtype.is_floating_point:
            return (torch.randn(shape, generator=g) * 1.5).to(dtype)
        low = 0 if dtype is torch.uint8 else -9
        return torch.randint(low, 10, shape, generator=g).to(dtype)

    def step(self, op: Operation) -> tuple[str, torch.Tensor] | None:
        if self.overlapping and "_(" in op.text:
            return None
        operands: list[str] = []
        for kind in op.kinds:
            fits = [n for n, t in self.values.items() if kind_fits(kind, t)]
            if op.same and operands:
                first = self.values[operands[0]]
                fits = [n for n in fits if self.values[n].shape == first.shape]
            if not fits:
                return None
            if "_(" in op.text:
                fits = [n for n in fits if n not in operands]
            if not fits:
                return None
            latest = fits[-4:] if self.rng.random() < 0.7 else fits
            operands.append(self.rng.choice(latest))
        tensors = [self.values[n] for n in operands]
        if not tensors[0].dim() and ("dim" in op.text or "index" in op.text or "{d}" in op.text):
            return None
        try:
            fields = op.choose(self.rng, tensors)
        except ValueError:  # a choice among nothing: a tensor of rank zero
            return None
        if not _moderate(op, tensors, self.limit):
            return None
        text = op.text.format(**dict(zip("abc", operands, strict=False)), **fields)
        made = self._try(text)
        if made is None:
            return None
        self.used.update(operands)
        self.overlapping |= ".expand(" in text or ".unfold(" in text
        return text, made

    def _try(self, text: str) -> torch.Tensor | None:
        """The value, unless eager refuses or it is too large or mostly not finite."""
        backup = {n: copy_of(t) for n, t in self.values.items()} if "_(" in text else None
        try:
            with torch.no_grad():
                made = _compiled(text)(namespace(), self.values)
        except _REFUSALS:
            if backup is not None:
                self.values.update(backup)
            return None
        if made.numel() > self.limit or made.dim() > 6:
            return None
        if made.is_floating_point() and made.numel():
            wild = ~made.isfinite() | (made.abs() > 1e4)
            if wild.float().mean() > 0.05:
                return None
        return made


def _moderate(op: Operation, tensors: list[torch.Tensor], limit: int) -> bool:
    """Whether the result cannot be far larger than ``limit``: looked at before it is made."""
    if "@" in op.text:
        return tensors[0].dim() < 2 or tensors[0].numel() * tensors[0].shape[-2] <= 8 * limit
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    except RuntimeError:
        return True
    return math.prod(shape) <= limit


def without_dead(case: Case) -> Case:
    """Only the steps and inputs that outputs or overwritten values need."""
    needed = set(case.outputs)
    kept: list[tuple[str, str]] = []
    for name, text in reversed(case.steps):
        if name in needed or "_(" in text:
            kept.append((name, text))
            needed.update(_NAME.findall(text))
    inputs = tuple((n, t) for n, t in case.inputs if n in needed)
    return replace(case, inputs=inputs, steps=tuple(reversed(kept)))


def runs(case: Case) -> bool:
    """Whether eager runs it."""
    try:
        with torch.no_grad():
            case.function()(*case.fresh())
    except _REFUSALS:
        return False
    return True


def smaller(case: Case) -> list[Case]:
    """Simpler programs that may fail in the same way: fewer outputs, steps turned to inputs."""
    found: list[Case] = []
    if len(case.outputs) > 1:
        found += [without_dead(replace(case, outputs=(o,))) for o in case.outputs]
        found += [
            without_dead(replace(case, outputs=tuple(o for o in case.outputs if o != drop)))
            for drop in case.outputs
        ]
    try:
        with torch.no_grad():
            values = run_steps(case, case.fresh())
    except _REFUSALS:
        return found
    for number, (name, text) in enumerate(case.steps):
        rest = case.steps[:number] + case.steps[number + 1 :]
        if name not in {n for _, t in rest for n in _NAME.findall(t)} | set(case.outputs):
            found.append(without_dead(replace(case, steps=rest)))
            continue
        if name in case.outputs:  # what it is made of in its place among the outputs
            operands = tuple(dict.fromkeys(_NAME.findall(text)))
            others = tuple(o for o in case.outputs if o != name and o not in operands)
            found.append(without_dead(replace(case, outputs=(*operands, *others))))
        for other in dict.fromkeys(_NAME.findall(text)):  # an operand in its place
            same = values[other].shape == values[name].shape
            if same and values[other].dtype == values[name].dtype:
                found.append(without_dead(_renamed(case, rest, name, other)))
        fresh = _unused(case)
        made = _renamed(case, rest, name, fresh)
        inputs = (*case.inputs, (fresh, values[name].clone()))
        found.append(without_dead(replace(made, inputs=inputs)))
    return found


def _unused(case: Case) -> str:
    taken = {n for n, _ in case.inputs}
    return next(f"x{i}" for i in range(len(taken) + 1) if f"x{i}" not in taken)


def _renamed(case: Case, steps: tuple[tuple[str, str], ...], old: str, new: str) -> Case:
    pattern = re.compile(rf"\b{old}\b")
    return replace(
        case,
        steps=tuple((n, pattern.sub(new, t)) for n, t in steps),
        outputs=tuple(new if o == old else o for o in case.outputs),
    )
