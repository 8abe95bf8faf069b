"""Results of many columns in C arrays: one element a column, padded to whole vectors.

A place is C text of the address of a vector's first element. Masks are kept as the vectors they
are, 32 bits a lane.
"""

from __future__ import annotations

from fusec.codegen.c_body import STORAGE, Frame, Scope, vector_type
from fusec.codegen.c_folds import combine, identity, splat
from fusec.ir import loop as lp
from fusec.ir.loop import Scalar


def storage(dtype: str) -> str:
    """The C type of an array's elements."""
    return STORAGE[_register(dtype)]


def clear(frame: Frame, fold: str, dtype: str, place: str) -> str:
    """A vector of neutral elements into the array."""
    return _store(frame, place, frame.call(splat(dtype), identity(fold, dtype)), dtype)


def add_up(frame: Frame, fold: str, dtype: str, total: str, partial: str) -> str:
    """A vector of partial results into the totals."""
    sides = [_load(frame, place, dtype) for place in (total, partial)]
    return _store(frame, total, frame.call(combine(fold, dtype), *sides), dtype)


def fold_into(scope: Scope, fold: str, dtype: str, value: Scalar, place: str) -> None:
    """Fold the values of one vector of columns in; of the valid lanes only: where a row ends, the
    next one's columns may follow."""
    frame = scope.frame
    before = take(scope, dtype, place)
    after = frame.call(combine(fold, dtype), before, scope.value(lp.cast(value, dtype)))
    scope.emit(frame.call(f"st_{_register(dtype)}", place, after, scope.count) + ";")


def take(scope: Scope, dtype: str, place: str) -> str:
    """The name of a vector of results."""
    name = scope.frame.fresh()
    scope.emit(f"{vector_type(dtype)} {name} = {_load(scope.frame, place, dtype)};")
    return name


def _load(frame: Frame, place: str, dtype: str) -> str:
    return frame.call(f"ld_{_register(dtype)}", place, str(frame.lanes))


def _store(frame: Frame, place: str, value: str, dtype: str) -> str:
    return frame.call(f"st_{_register(dtype)}", place, value, str(frame.lanes)) + ";"


def _register(dtype: str) -> str:
    return "i32" if dtype == "bool" else dtype
