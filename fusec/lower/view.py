"""Views: how the value of a graph node is found in a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir import expr as ex
from fusec.ir.expr import Expr, Sym
from fusec.ir.loop import BufferView
from fusec.ir.remember import remember


@dataclass(frozen=True, slots=True)
class View:
    """A tensor of ``shape`` whose element at ``axes`` lies at ``index`` of ``buffer``.

    ``index`` has one expression a dimension of the buffer, over ``axes`` alone.
    """

    buffer: int
    dtype: str
    shape: tuple[Expr, ...]
    axes: tuple[Sym, ...]
    index: tuple[Expr, ...]

    def at(self, coordinates: Sequence[Expr]) -> tuple[Expr, ...]:
        """The buffer index of the element at ``coordinates``."""
        return ex.substitute_all(self.index, tuple(zip(self.axes, coordinates, strict=True)))

    def remap(self, shape: tuple[Expr, ...], coordinates: Sequence[Expr]) -> View:
        """The view of ``shape`` whose element at its own axes is this view's at ``coordinates``."""
        return View(self.buffer, self.dtype, shape, view_axes(shape), self.at(coordinates))


def view_axes(shape: Sequence[Expr]) -> tuple[Sym, ...]:
    """The canonical axes of a view of that shape."""
    return _axes(tuple(shape), "v")


def loop_axes(shape: Sequence[Expr], prefix: str = "i") -> tuple[Sym, ...]:
    """Axes to iterate over that shape."""
    return _axes(tuple(shape), prefix)


@remember
def _axes(shape: tuple[Expr, ...], prefix: str) -> tuple[Sym, ...]:
    return tuple(_axis(f"{prefix}{i}", size) for i, size in enumerate(shape))


def _axis(name: str, size: Expr) -> Sym:
    made = ex.axis(name, size)
    assert isinstance(made, Sym)
    return made


def whole(buffer: int, dtype: str, shape: tuple[Expr, ...]) -> View:
    """The view of a whole buffer."""
    axes = view_axes(shape)
    return View(buffer, dtype, shape, axes, axes)


def contiguous_stride(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides in elements, as torch gives them (sizes below 1 count as 1)."""
    return ex.row_major(tuple(shape))


def overlaps(shape: Sequence[Expr], stride: Sequence[Expr]) -> bool:
    """Whether two places are known to lie on one another; False where sizes are not known."""
    dims = [(ex.as_int(s), ex.as_int(n)) for n, s in zip(shape, stride, strict=True)]
    known = sorted((s, n) for s, n in dims if s is not None and n is not None and n > 1)
    if any(n == 0 for _, n in dims) or len(known) < sum(n != 1 for _, n in dims):
        return False
    reach = 0
    for step, size in known:
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def coordinates_for_reshape(
    old: Sequence[Expr], new: Sequence[Expr], at: Sequence[Expr]
) -> tuple[Expr, ...]:
    """Coordinates in shape ``old`` of the element at coordinates ``at`` of shape ``new``.

    Both shapes are walked together and cut wherever their products agree, so that a dimension that
    a reshape leaves alone keeps its own coordinate, whatever symbols the sizes hold.
    """
    return _reshaped(tuple(old), tuple(new), tuple(at))


@remember
def _reshaped(
    old: tuple[Expr, ...], new: tuple[Expr, ...], at: tuple[Expr, ...]
) -> tuple[Expr, ...]:
    if ex.ZERO in old:  # nobody will ask for an element
        return (ex.ZERO,) * len(old)
    result: list[Expr] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        left: Expr = ex.ONE
        right: Expr = ex.ONE
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left is not right and (i < len(old) or j < len(new)):
            take_left = _smaller(left, right, i < len(old), j < len(new))
            if take_left:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        result.extend(delinearise(linearise(new[j0:j], at[j0:j]), old[i0:i]))
    return tuple(result)


def _smaller(left: Expr, right: Expr, can_left: bool, can_right: bool) -> bool:
    if not can_left or not can_right:
        return can_left
    a, b = ex.as_int(left), ex.as_int(right)
    if a is not None and b is not None:
        return a < b
    # One product divides the other where symbols are involved: grow the one that is contained.
    return ex.mod(right, left) is ex.ZERO if left is not ex.ZERO else True


def linearise(shape: Sequence[Expr], at: Sequence[Expr]) -> Expr:
    """The row-major position of coordinates ``at`` in a shape."""
    linear: Expr = ex.ZERO
    for size, coordinate in zip(shape, at, strict=True):
        linear = linear * size + coordinate
    return linear


def delinearise(linear: Expr, shape: Sequence[Expr]) -> list[Expr]:
    """The coordinates in a shape of a row-major position."""
    live = [k for k, size in enumerate(shape) if size is not ex.ONE]
    coordinates: list[Expr] = [ex.ZERO] * len(shape)
    step: Expr = ex.ONE
    for position in reversed(live):
        size = shape[position]
        part = linear if step is ex.ONE else ex.floordiv(linear, step)
        coordinates[position] = part if position == live[0] else _remainder(part, size)
        step = step * size
    return coordinates


def _remainder(value: Expr, size: Expr) -> Expr:
    return ex.ZERO if size is ex.ZERO else ex.mod(value, size)


def as_buffer_view(view: View, stride: Sequence[Expr]) -> BufferView | None:
    """The view in strided form over a buffer with these strides; None where it is not affine."""
    found = _affine(view.axes, view.index, tuple(stride))
    return None if found is None else BufferView(view.buffer, view.shape, *found)


@remember
def _affine(
    axes: tuple[Sym, ...], index: tuple[Expr, ...], stride: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], Expr] | None:
    """Strides along the axes and the offset of an index into memory of these strides."""
    linear: Expr = ex.ZERO
    for e, step in zip(index, stride, strict=True):
        linear = linear + e * step
    zeros: dict[Expr, Expr] = dict.fromkeys(axes, ex.ZERO)
    offset = ex.substitute(linear, zeros)
    strides: list[Expr] = []
    rebuilt = offset
    for axis in axes:
        step = ex.substitute(linear, {**zeros, axis: ex.ONE}) - offset
        strides.append(step)
        rebuilt = rebuilt + step * axis
    return (tuple(strides), offset) if rebuilt is linear else None
