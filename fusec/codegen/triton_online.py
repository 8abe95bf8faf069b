"""Two passes over a row as one: sums that wait for a maximum or a mean, computed beside it.

Before: stage k folds ``m = max(v)`` and stage k + 1 ``sum(exp(v - m))``; or stage k ``t = sum(v)``
and stage k + 1 the sums of ``v - t/n`` and of its square. After: one pass in which

- the sum belongs to the largest value so far, and is rescaled when that grows (M. Milakov and
  N. Gimelshein, "Online normalizer calculation for softmax", 2018): blocks first, then the row;
- each point of the tile has a mean and a sum of squared deviations of its own (B. P. Welford,
  1962), brought together at the end as T. F. Chan, G. H. Golub and R. J. LeVeque do (1979).

A row that a program does not hold is then read once less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusec.codegen.triton_body import Scope
from fusec.codegen.triton_folds import Folds
from fusec.codegen.triton_frame import Frame
from fusec.codegen.triton_ops import TYPES, typed
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.kernel import KernelLoop, Statement
from fusec.ir.loop import Const, Op, Reduced, Scalar


@dataclass(frozen=True, slots=True)
class Merged:
    """Folds of one stage that are computed together with a fold of the stage before.

    first: the maximum or the sum; scaled: sums of something times ``exponential``; deviations,
    squares: sums of ``v - t/n`` and of its square."""

    first: Statement
    exponential: Scalar | None = None
    scaled: tuple[Statement, ...] = ()
    deviations: tuple[Statement, ...] = ()
    squares: tuple[Statement, ...] = ()
    size: Const | None = None


def merged(loop: KernelLoop, stage: int) -> tuple[Merged, ...]:
    """How all that happens along the folded axes in the stage after this one can happen in this
    one; nothing where some of it cannot."""
    if loop.carried is not None or loop.scans:
        return ()
    now = {s.buffer: s for s in _inner(loop, stage) if s.fold is not None}
    found: dict[int, Merged] = {}
    for s in _inner(loop, stage + 1):
        joined = _joined(s, now, found)
        if joined is None:
            return ()
        found[joined.first.buffer] = joined
    return tuple(found.values())


def _inner(loop: KernelLoop, stage: int) -> list[Statement]:
    return [s for s in loop.statements if s.inner and s.stage == stage]


def _joined(s: Statement, now: dict[int, Statement], found: dict[int, Merged]) -> Merged | None:
    if s.fold != "sum":
        return None
    used = {n.buffer for n in lp.walk((s.value,)) if isinstance(n, Reduced) and n.buffer in now}
    if len(used) != 1:
        return None
    first = now[used.pop()]
    before = found.get(first.buffer, Merged(first))
    if first.fold == "max":
        return _rescaled(s, before)
    return _centred(s, before) if first.fold == "sum" else None


def _rescaled(s: Statement, before: Merged) -> Merged | None:
    """``sum(exp(v - m) · u)``, where ``u`` does not depend on ``m``."""
    first = before.first
    if DTYPES[s.value.dtype].size > 4:
        return None
    exponential = next(
        (
            n
            for n in lp.walk((s.value,))
            if isinstance(n, Op) and n.name == "exp" and _difference(n.args[0], first) is not None
        ),
        None,
    )
    if exponential is None or not _is_multiple(s.value, exponential, first):
        return None
    if before.exponential not in (None, exponential):
        return None
    return Merged(first, exponential, (*before.scaled, s))


def _difference(node: Scalar, first: Statement) -> Scalar | None:
    """For ``v - r`` with the value and the result of a fold: ``r``."""
    if isinstance(node, Op) and node.name == "sub" and node.args[0] is first.value:
        right = node.args[1]
        if isinstance(right, Reduced) and right.buffer == first.buffer:
            return right
    return None


def _is_multiple(node: Scalar, factor: Scalar, first: Statement) -> bool:
    if node is factor:
        return True
    if not isinstance(node, Op) or node.name != "mul":
        return False
    a, b = node.args
    return (_is_multiple(a, factor, first) and _is_free(b, first)) or (
        _is_multiple(b, factor, first) and _is_free(a, first)
    )


def _is_free(node: Scalar, first: Statement) -> bool:
    return not any(isinstance(n, Reduced) and n.buffer == first.buffer for n in lp.walk((node,)))


def _centred(s: Statement, before: Merged) -> Merged | None:
    """The sum of ``v - t/n`` or of its square."""
    value = s.value
    square = isinstance(value, Op) and value.name == "mul" and value.args[0] is value.args[1]
    deviation = value.args[0] if square and isinstance(value, Op) else value
    if not isinstance(deviation, Op) or deviation.name != "sub":
        return None
    left, mean = deviation.args
    if left is not before.first.value or not isinstance(mean, Op) or mean.name != "div":
        return None
    total, size = mean.args
    if not isinstance(total, Reduced) or total.buffer != before.first.buffer:
        return None
    if not isinstance(size, Const) or before.size not in (None, size) or not size.value:
        return None
    if square:
        return Merged(before.first, None, (), before.deviations, (*before.squares, s), size)
    return Merged(before.first, None, (), (*before.deviations, s), before.squares, size)


@dataclass(slots=True)
class Online:
    """Writes merged folds: before, in and after the loop over the blocks."""

    loop: KernelLoop
    frame: Frame
    folds: Folds
    group: Merged
    totals: dict[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.folds.numbers[self.group.first.buffer])

    @property
    def _type(self) -> str:
        return TYPES[self.folds.dtype(self.group.first)]

    def declare(self, scope: Scope) -> None:
        kind, shape = self._type, self.folds.result_shape()
        if self.group.exponential is not None:
            scope.emit(f'top{self.name} = tl.full({shape}, float("-inf"), {kind})')
            for s in self.group.scaled:
                total = self.totals[s.buffer] = f"total{self.folds.numbers[s.buffer]}"
                scope.emit(f"{total} = tl.full({shape}, 0.0, {kind})")
            return
        whole = self.frame.tile.shape(self.folds.whole)
        scope.emit(f"mean{self.name} = tl.full({whole}, 0.0, {kind})")
        scope.emit(f"spread{self.name} = tl.full({whole}, 0.0, {kind})")
        scope.emit(f"count{self.name} = tl.full([], 0.0, {kind})")

    def accumulate(self, scope: Scope) -> None:
        if self.group.exponential is not None:
            self._accumulate_scaled(scope, self.group.exponential)
        else:
            self._accumulate_moments(scope)

    def finish(self, scope: Scope) -> None:
        if self.group.exponential is not None:
            self._known(scope, self.group.first, f"top{self.name}")
            for s in self.group.scaled:
                # A row of nothing but -inf has no largest value to take off: NaN, as in two passes.
                total = self.totals[s.buffer]
                text = f'tl.where(top{self.name} == float("-inf"), float("nan"), {total})'
                scope.emit(f"fold{self.folds.numbers[s.buffer]} = {text}")
                self._known(scope, s, f"fold{self.folds.numbers[s.buffer]}")
        else:
            self._finish_moments(scope)

    def _known(self, scope: Scope, s: Statement, name: str) -> None:
        scope.known[lp.reduced(s.buffer, self.loop.results[s.buffer])] = name

    def _accumulate_scaled(self, scope: Scope, exponential: Scalar) -> None:
        n, folds = self.name, self.folds
        value = folds.inside(scope, self.group.first)
        block = folds.reduce("max", folds.dtype(self.group.first), value)
        scope.emit(f"next{n} = largest(top{n}, {block})")
        scope.emit(f'base{n} = tl.where(next{n} == float("-inf"), 0.0, next{n})')
        scope.emit(f"scale{n} = tl.exp(top{n} - base{n})")
        scope.emit(f"power{n} = tl.exp({value} - base{n})")
        scope.emit(f"top{n} = next{n}")
        scope.known[exponential] = f"power{n}"
        for s in self.group.scaled:
            total = self.totals[s.buffer]
            # Beyond the end of the row the power is 0 as it is.
            term = f"power{n}" if s.value is exponential else folds.inside(scope, s)
            added = folds.reduce("sum", folds.dtype(s), term)
            scope.emit(f"{total} = {total} * scale{n} + {added}")

    def _accumulate_moments(self, scope: Scope) -> None:
        n, dim = self.name, self.folds.dim
        assert dim is not None
        value = scope.whole(self.group.first.value, self.folds.whole)
        scope.emit(f"count{n} = count{n} + 1.0")
        scope.emit(f"off{n} = {value} - mean{n}")
        if not dim.masked:
            scope.emit(f"mean{n} = mean{n} + off{n} * (1.0 / count{n})")
            scope.emit(f"spread{n} = spread{n} + off{n} * ({value} - mean{n})")
            return
        mask = f"{dim.name}mask"
        scope.emit(f"mean{n} = tl.where({mask}, mean{n} + off{n} * (1.0 / count{n}), mean{n})")
        scope.emit(
            f"spread{n} = tl.where({mask}, spread{n} + off{n} * ({value} - mean{n}), spread{n})"
        )

    def _finish_moments(self, scope: Scope) -> None:
        n, group, folds, dim = self.name, self.group, self.folds, self.folds.dim
        assert dim is not None
        assert group.size is not None
        kind, weight = self._type, f"count{n}"
        if dim.masked:
            weight = f"held{n}"
            place = f"tl.arange(0, {dim.constant}){self.frame.tile.spread(dim)}"
            count = f"{self.frame.size_text(dim.count)} - {place}"
            scope.emit(f"{weight} = tl.cdiv({count}, {dim.constant}).to({kind})")
        dtype = folds.dtype(group.first)
        total = f"fold{n}"
        scope.emit(f"{total} = {folds.reduce('sum', dtype, f'mean{n} * {weight}')}")
        self._known(scope, group.first, total)
        scope.emit(f"off{n} = mean{n} - {total} / {typed(group.size)}")
        for s in group.deviations:
            # They add up to the mean's rounding alone; where there is no mean they are NaN too.
            scope.emit(f"fold{folds.numbers[s.buffer]} = {total} * 0.0")
            self._known(scope, s, f"fold{folds.numbers[s.buffer]}")
        for s in group.squares:
            text = folds.reduce("sum", dtype, f"spread{n} + off{n} * off{n} * {weight}")
            scope.emit(f"fold{folds.numbers[s.buffer]} = {text}")
            self._known(scope, s, f"fold{folds.numbers[s.buffer]}")
