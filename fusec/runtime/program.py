"""Program → callable: what can be done once is done once, the rest a call.

The address table holds the memory of every slot. Runs of kernel launches between library calls go
through the native runner in one call each. Where memory comes from and how kernels start is the
matter of a `fusec.runtime.frame.Place`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.graph import Attr, Symbolic
from fusec.ir.loop import BufferView, ExternArg
from fusec.ir.program import Call, Launch, Program
from fusec.runtime.bindings import bindings, done_after, fresh_before, runs_of
from fusec.runtime.calls import Argument, Fixed, Read, call_of, listed
from fusec.runtime.frame import Frame, Place, Step, ViewOf, numbers, numbers_at
from fusec.runtime.operators import TORCH_DTYPES, attribute, entry, operator, returns_view
from fusec.runtime.sizes import SizeReader


class ProgramRunner:
    """The callable of a program: takes a list of inputs (which it clears), returns a list."""

    _boxed_call = True

    def __init__(self, program: Program, place: Place) -> None:
        """place: where it runs, made for this program.

        Raises LoadError where this torch lacks an operator or the program makes no sense.
        """
        self.program = program
        self._place = place
        self.sizes = SizeReader(bindings(program))
        self._fresh_before = fresh_before(program)
        self._done_after = done_after(program)
        self._views: dict[BufferView, ViewOf] = {}
        self._steps = self._make_steps()
        self._outputs = [self._make_output(o) for o in program.outputs]

    # -- preparation ------------------------------------------------------------------------

    def _make_steps(self) -> list[Step]:
        """Runs of launches become one step each."""
        made: list[Step] = []
        launches = 0
        steps = self.program.steps
        numbers = range(len(steps))
        for is_launch, group in itertools.groupby(numbers, lambda i: isinstance(steps[i], Launch)):
            together = list(group)
            if is_launch:
                launched = range(together[0], together[-1] + 1)
                for run in runs_of(self.program, launched, self._fresh_before, self._done_after):
                    made.append(self._launch_run(launches, run))
                    launches += len(run)
            else:
                for number in together:
                    step = steps[number]
                    assert isinstance(step, Call)
                    made.append(self._call(number, step))
        return made

    def _launch_run(self, first: int, steps: range) -> Step:
        """first: the number of the first among all launches."""
        make = [self._place.fresh(slot) for n in steps for slot in self._fresh_before[n]]
        free = [slot for n in steps for slot in self._done_after[n]]
        start = self._place.launches(first, first + len(steps))
        if not make and not free:
            return start

        def launch(frame: Frame) -> None:
            for allocate in make:
                allocate(frame)
            start(frame)
            for slot in free:
                frame.tensors[slot] = None

        return launch

    def _call(self, number: int, step: Call) -> Step:
        op = operator(step.target)
        views = not step.into and returns_view(op)
        args = [self._argument(a, views) for a in step.args]
        kwargs = {k: self._argument(v, views) for k, v in step.kwargs}
        free = self._done_after[number]
        if step.into:
            (into,) = (o for o in step.outputs if o is not None)
            kwargs["out"] = self._view(self._whole(into)).tensor()
            return self._call_into(number, into, call_of(entry(step.target), args, kwargs))
        copies = views and self._reads_scratch(step)
        takes = [(i, o, self._adopt(o)) for i, o in enumerate(step.outputs) if o is not None]
        run = call_of(entry(step.target), args, kwargs)

        def call(frame: Frame) -> None:
            result = run(frame)
            results = result if step.multiple else (result,)
            for position, slot, adopt in takes:
                tensor = results[position]
                if copies:
                    tensor = tensor.clone()
                elif views and tensor.is_neg():
                    tensor = tensor.resolve_neg()  # kernels read memory as it is
                adopt(frame, slot, tensor)
            for slot in free:
                frame.tensors[slot] = None

        return call

    def _call_into(self, number: int, into: int, run: Read) -> Step:
        make = [self._place.fresh(slot) for slot in self._fresh_before[number]]
        free = self._done_after[number]
        written = self._place.written(into)
        if not make and not free and written is None:
            return run

        def call_into(frame: Frame) -> None:
            for allocate in make:
                allocate(frame)
            run(frame)
            if written is not None:
                written(frame)
            for slot in free:
                frame.tensors[slot] = None

        return call_into

    def _view(self, view: BufferView) -> ViewOf:
        found = self._views.get(view)
        if found is None:
            found = self._views[view] = ViewOf(self.program, view, len(self._views))
        return found

    def _whole(self, slot: int) -> BufferView:
        found = self.program.slots[slot]
        return BufferView(slot, found.shape, found.stride, ex.ZERO)

    def _reads_scratch(self, step: Call) -> bool:
        """Whether a view that the call returns could outlive the memory under it."""
        stack: list[ExternArg] = [*step.args, *(v for _, v in step.kwargs)]
        while stack:
            arg = stack.pop()
            if isinstance(arg, BufferView) and self.program.slots[arg.buffer].kind != "input":
                return True
            if isinstance(arg, tuple):
                stack.extend(arg)
        return False

    def _adopt(self, number: int) -> Callable[[Frame, int, torch.Tensor], None]:
        """Take a call's result into its slot, with the strides that its readers were promised."""
        slot = self.program.slots[number]
        fixed = numbers(slot)
        dtype = TORCH_DTYPES[slot.dtype]
        taken = self._place.taken(number)

        def adopt(frame: Frame, number: int, tensor: torch.Tensor) -> None:
            shape, stride = fixed or numbers_at(slot, frame.sizes)
            if tensor.stride() != stride and not _same_layout(shape, tensor.stride(), stride):
                moved = torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device)
                tensor = moved.copy_(tensor)
            frame.tensors[number] = tensor
            frame.table[number] = tensor.data_ptr()
            if taken is not None:
                taken(frame)

        return adopt

    def _argument(self, arg: ExternArg, as_view: bool) -> Argument:
        """as_view: the call's result is a view of its arguments."""
        if isinstance(arg, BufferView):
            view = self._view(arg)
            return view.output() if as_view else view.tensor()
        if isinstance(arg, tuple):
            return listed([self._argument(a, as_view) for a in arg])
        if isinstance(arg, Symbolic):
            value = arg.value
            return lambda frame: frame.sizes.value(value)
        return Fixed(attribute(arg) if isinstance(arg, Attr) else arg)

    def _make_output(self, output: object) -> Read:
        if isinstance(output, BufferView):
            return self._view(output).output()
        if isinstance(output, Expr):
            return lambda frame: frame.sizes.value(output)
        return lambda frame: output

    # -- a call -----------------------------------------------------------------------------

    def __call__(self, inputs: list[Any]) -> list[Any]:
        frame = self._place.begin(inputs, self.sizes(inputs))
        try:
            if not torch.is_grad_enabled():  # as in every forward and backward of AOTAutograd
                return self._run(frame)
            with torch.no_grad():
                return self._run(frame)
        finally:
            self._place.end(frame)

    def _run(self, frame: Frame) -> list[Any]:
        for step in self._steps:
            step(frame)
        return [output(frame) for output in self._outputs]


def _same_layout(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two strides address the same elements: sizes of 0 and 1 do not matter."""
    return 0 in shape or all(n == 1 or x == y for n, x, y in zip(shape, a, b, strict=True))
