"""Programs to and from msgpack: bounded, versioned, deterministic."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from fusec.errors import VerifyError, WireError
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.graph import SymbolRange
from fusec.ir.loop import BufferView, ExternArg, Output
from fusec.ir.program import Call, Constant, Launch, Program, ProgramStep, Slot
from fusec.ir.verify_program import verify_host_program
from fusec.ir.wire import arg_from_wire, arg_to_wire, expr_from_wire, expr_to_wire, exprs_to_wire

PROGRAM_VERSION: Final = 2
MAX_PROGRAM_BYTES: Final = 128 << 20
MAX_ARENA_BYTES: Final = 1 << 44
_SLOT_KINDS: Final = ("input", "arena", "fresh", "result", "alias")
_FIELDS: Final = frozenset(
    "v inputs slots constants steps outputs kernels symbols arena device".split()
)
DEVICES: Final = ("cpu", "cuda")


def _view_to_wire(view: BufferView) -> dict[str, object]:
    return {
        "v": [
            view.buffer,
            exprs_to_wire(view.shape),
            exprs_to_wire(view.stride),
            expr_to_wire(view.offset),
        ]
    }


def _extern_to_wire(arg: ExternArg) -> object:
    if isinstance(arg, BufferView):
        return _view_to_wire(arg)
    if isinstance(arg, tuple):
        return [_extern_to_wire(a) for a in arg]
    return arg_to_wire(arg)


def _output_to_wire(output: Output) -> object:
    if isinstance(output, BufferView):
        return _view_to_wire(output)
    if isinstance(output, Expr):
        return {"e": expr_to_wire(output)}
    return arg_to_wire(output)


def _input_to_wire(item: int | Expr | None) -> object:
    return item if item is None or isinstance(item, int) else {"e": expr_to_wire(item)}


def _step_to_wire(step: ProgramStep) -> list[object]:
    if isinstance(step, Launch):
        return ["launch", step.kernel, list(step.slots), exprs_to_wire(step.sizes), list(step.free)]
    return [
        "call",
        step.target,
        [_extern_to_wire(a) for a in step.args],
        [[k, _extern_to_wire(v)] for k, v in step.kwargs],
        list(step.outputs),
        step.multiple,
        step.into,
        step.reason,
        list(step.free),
    ]


def program_to_bytes(program: Program) -> bytes:
    """The canonical encoding."""
    body = {
        "v": PROGRAM_VERSION,
        "inputs": [_input_to_wire(i) for i in program.inputs],
        "slots": [
            [
                _SLOT_KINDS.index(s.kind),
                s.number,
                s.dtype,
                exprs_to_wire(s.shape),
                exprs_to_wire(s.stride),
            ]
            for s in program.slots
        ],
        "constants": [[c.slot, c.data] for c in program.constants],
        "steps": [_step_to_wire(s) for s in program.steps],
        "outputs": [_output_to_wire(o) for o in program.outputs],
        "kernels": [list(k) for k in program.kernels],
        "symbols": [[s.name, s.lower, s.upper] for s in program.symbols],
        "arena": program.arena_bytes,
        "device": program.device,
    }
    return bytes(msgpack.packb(body, use_bin_type=True))


def _slot_index(value: object, count: int) -> int:
    if not isinstance(value, int) or not 0 <= value < count:
        raise WireError(f"a program names slot {value!r:.20}, of {count}")
    return value


def _exprs_from(items: Any) -> tuple[Expr, ...]:
    return tuple(expr_from_wire(e) for e in items)


def _view_from(value: Any, count: int) -> BufferView:
    buffer, shape, stride, offset = value
    return BufferView(
        _slot_index(buffer, count), _exprs_from(shape), _exprs_from(stride), expr_from_wire(offset)
    )


def _extern_from(data: Any, count: int) -> ExternArg:
    if isinstance(data, dict) and set(data) == {"v"}:
        return _view_from(data["v"], count)
    if isinstance(data, list):
        return tuple(_extern_from(a, count) for a in data)
    return arg_from_wire(data)


def _output_from(data: Any, count: int) -> Output:
    if isinstance(data, dict) and set(data) == {"v"}:
        return _view_from(data["v"], count)
    if isinstance(data, dict) and set(data) == {"e"}:
        return expr_from_wire(data["e"])
    value = arg_from_wire(data)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise WireError(f"not an output: {data!r:.80}")


def _input_from(data: Any, count: int) -> int | Expr | None:
    if data is None:
        return None
    if isinstance(data, dict) and set(data) == {"e"}:
        return expr_from_wire(data["e"])
    return _slot_index(data, count)


def _slot_from(data: Any) -> Slot:
    kind, number, dtype, shape, stride = data
    if dtype not in DTYPES or not isinstance(number, int) or len(shape) != len(stride):
        raise WireError(f"not a slot: {data!r:.80}")
    return Slot(_SLOT_KINDS[kind], number, dtype, _exprs_from(shape), _exprs_from(stride))


def _step_from(data: Any, slots: int, kernels: int) -> ProgramStep:
    if data[0] == "launch":
        _, kernel, used, sizes, free = data
        return Launch(
            _slot_index(kernel, kernels),
            tuple(_slot_index(s, slots) for s in used),
            _exprs_from(sizes),
            tuple(_slot_index(s, slots) for s in free),
        )
    tag, target, args, kwargs, outputs, multiple, into, reason, free = data
    if tag != "call" or not isinstance(target, str):
        raise WireError(f"not a step: {data!r:.80}")
    return Call(
        target,
        tuple(_extern_from(a, slots) for a in args),
        tuple((str(k), _extern_from(v, slots)) for k, v in kwargs),
        tuple(None if o is None else _slot_index(o, slots) for o in outputs),
        bool(multiple),
        bool(into),
        str(reason),
        tuple(_slot_index(s, slots) for s in free),
    )


def _constant_from(data: Any, count: int) -> Constant:
    slot, content = data
    if not isinstance(content, bytes):
        raise WireError(f"a constant without its bytes: {content!r:.20}")
    return Constant(_slot_index(slot, count), content)


def _arena_from(data: object) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or not 0 <= data <= MAX_ARENA_BYTES:
        raise WireError(f"not the size of an arena: {data!r:.40}")
    return data


def program_from_bytes(data: bytes) -> Program:
    """Raises WireError for anything but a program of this version within the limits."""
    if len(data) > MAX_PROGRAM_BYTES:
        raise WireError(f"a program of {len(data)} bytes is over the limit of {MAX_PROGRAM_BYTES}")
    try:
        body = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"a program does not decode: {error}") from error
    if not isinstance(body, dict) or set(body) != _FIELDS:
        raise WireError("a program has missing or unknown fields")
    if body["v"] != PROGRAM_VERSION:
        raise WireError(
            f"program version {body['v']!r:.20} is not {PROGRAM_VERSION}",
            hint="the artifact was made by another release of fusec",
        )
    try:
        slots = tuple(_slot_from(s) for s in body["slots"])
        kernels = tuple((str(a), str(b)) for a, b in body["kernels"])
        count = len(slots)
        program = Program(
            tuple(_input_from(i, count) for i in body["inputs"]),
            slots,
            tuple(_constant_from(c, count) for c in body["constants"]),
            tuple(_step_from(s, count, len(kernels)) for s in body["steps"]),
            tuple(_output_from(o, count) for o in body["outputs"]),
            kernels,
            tuple(
                SymbolRange(str(n), int(lo), None if up is None else int(up))
                for n, lo, up in body["symbols"]
            ),
            _arena_from(body["arena"]),
            DEVICES[DEVICES.index(body["device"])],
        )
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise WireError(f"a program is malformed: {error}") from error
    try:
        verify_host_program(program)
    except VerifyError as error:
        raise WireError(f"a program breaks its rules: {error.message}") from error
    return program
