"""`mode="reduce-overhead"`: a program recorded as a CUDA graph, and replayed in one call.

**Signature.** There is a recording for each combination of sizes, GPU, stream, inference mode and
addresses of parameters. The first calls of a signature run as always and show which inputs stay
where they are; the next one is recorded.

**Inputs.** A recording reads parameters, outputs of other recordings and whatever did not move
during the first calls where they lie; a call in which one of these lies elsewhere runs without the
recording, and what goes on moving is copied into a buffer from then on. Inputs that the program
overwrites are overwritten: in place, or by a copy back from the buffer.

**Outputs** lie in memory that the next replay writes again. A replay that would overwrite an output
which anybody still holds does not happen: that call runs without the recording, into new memory,
and such outputs are handed out as copies from then on (`fusec.runtime.graph_pool`). Nothing is
overwritten silently, so there is no error to raise. Not seen is memory that somebody reads by its
bare address, or on another stream without waiting for it.

**Programs that wait for the GPU** (their sizes or control depend on data), move data to the CPU or
call a collective run as always, and so does one whose recording fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import torch

from fusec.errors import LoadError
from fusec.ir.expr import Expr
from fusec.ir.loop import BufferView, Output
from fusec.runtime.frame import ViewOf, memory_of
from fusec.runtime.gpu_place import GpuPlace, copy_into, copy_to, flat
from fusec.runtime.graph_pool import GraphPool, GraphPools, Recording
from fusec.runtime.graph_signature import Signature, Where
from fusec.runtime.inputs import TensorInputs, addresses, taking
from fusec.runtime.program import ProgramRunner
from fusec.runtime.recordable import refusal
from fusec.runtime.sizes import Sizes
from fusec.trace import Recorder

log = logging.getLogger("fusec")

_WARM_UP: Final = 2  # calls that show what moves; they also load what a recording must not
_PATIENCE: Final = 3  # calls in a row that a recording did not fit before something is done
_MAX_SIGNATURES: Final = 64
_MAX_COPIED: Final = 256 << 20  # bytes of inputs: beyond it copying costs more than launching

_Finish = Callable[[list[Any], Sizes, "torch.Tensor | None"], Any]
"""An output from the inputs, the sizes and what the recording made."""


class GraphRunner:
    """The callable of a program, as `ProgramRunner`, that records and replays."""

    _boxed_call = True

    def __init__(
        self, run: ProgramRunner, place: GpuPlace, pools: GraphPools, recorder: Recorder
    ) -> None:
        """place: the one that ``run`` runs at; pools: of all graphs that may feed one another."""
        self.program = program = run.program
        self._run = run
        self._place = place
        self._gpus = place.gpus
        self._pools = pools
        self._recorder = recorder
        tensors = TensorInputs(program)
        self._positions, self._tensors = tensors.positions, tensors.of
        self._overwritten = {
            program.slots[memory_of(program, i)].number
            for i, slot in enumerate(program.slots)
            if slot.kind == "alias"
        }
        self._finish = [self._finisher(o) for o in program.outputs]
        self._signatures: dict[tuple[object, ...], Signature] = {}
        self._parameters: tuple[int, ...] | None = None
        self._last: Signature | None = None
        self._refused: str | None = None
        reason = refusal(program)
        if reason is not None:
            self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        self._signatures.clear()
        self._last = None
        self._recorder.count("graphs_refused")
        log.debug("a program is not recorded: %s", reason)

    def _finisher(self, output: Output) -> _Finish | None:
        """How an output is made that is no result of the recording; None for one that is."""
        if isinstance(output, BufferView):
            view = ViewOf(self.program, output)
            if view.kind != "input":
                return None
            position = self.program.slots[view.slot].number
            return lambda inputs, sizes, _: view.over(inputs[position], sizes)
        if isinstance(output, Expr):
            return lambda inputs, sizes, _: sizes.value(output)
        return lambda inputs, sizes, _: output

    # -- a call -----------------------------------------------------------------------------

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self._refused is not None:
            return self._run(inputs)
        gpus = self._gpus
        current = gpus.current()
        ordinal = self._place.ordinal(inputs, current)
        if ordinal != current:
            gpus.select(ordinal)
        try:
            if not torch.is_grad_enabled():
                return self._choose(inputs, ordinal)
            with torch.no_grad():
                return self._choose(inputs, ordinal)
        finally:
            if ordinal != current:
                gpus.select(current)

    def _choose(self, inputs: list[Any], ordinal: int) -> list[Any]:
        gpus = self._gpus
        if gpus.capturing():
            return self._run(inputs)
        stream = gpus.stream(ordinal)
        pool = self._pools.of(gpus, ordinal, stream)
        if not pool.lock.acquire(blocking=False):  # another thread, or a program inside a program
            return self._run(inputs)
        try:
            sizes = self._run.sizes(inputs)
            at = addresses(self._tensors(inputs))
            where = (ordinal, stream, torch.is_inference_mode_enabled())
            found = self._last
            if found is None or not found.fits(where, sizes, at):
                found = self._last = self._signature(inputs, at, where, sizes)
            if found is None or not self._ready(found, pool, inputs, at, ordinal):
                if found is not None and found.blocked >= _PATIENCE:
                    found.blocked = 0
                    self._pools.retire(ordinal, stream)
                self._recorder.count("graph_skips")
                return self._run(inputs)
            return self._replay(found, pool, inputs, sizes)
        finally:
            pool.lock.release()

    def _signature(
        self, inputs: list[Any], at: list[int], where: Where, sizes: Sizes
    ) -> Signature | None:
        if self._parameters is None:
            tensors = enumerate(self._tensors(inputs))
            self._parameters = tuple(i for i, t in tensors if isinstance(t, torch.nn.Parameter))
        given = tuple([at[i] for i in self._parameters])
        key = (where, *sizes.values(), given)
        found = self._signatures.get(key)
        if found is None and len(self._signatures) < _MAX_SIGNATURES:
            found = self._signatures[key] = Signature(self._parameters, where, sizes, given)
        return found

    def _ready(
        self,
        s: Signature,
        pool: GraphPool,
        inputs: list[Any],
        at: list[int],
        ordinal: int,
    ) -> bool:
        """Whether this call can be a replay; records where it is time to."""
        s.calls += 1
        if s.calls <= _WARM_UP:
            if s.seen is not None:
                pairs = enumerate(zip(s.seen, at, strict=True))
                s.moving.update(i for i, (a, b) in pairs if a != b)
            s.seen = at
            return False
        if s.recording is not None and s.pool is not pool:
            s.recording = None
        if s.recording is None and not self._record(s, pool, inputs, at, ordinal):
            return False
        assert s.recording is not None
        if s.read(at) != s.read_at:
            elsewhere = [i for i, address in s.fixed if at[i] != address]
            s.misfits += 1
            if s.misfits >= _PATIENCE:
                s.moving.update(elsewhere)
                s.misfits = 0
                pool.drop(s.recording)
                s.recording = None
            return False
        s.misfits = 0
        if not pool.free_for(s.recording.number):
            s.blocked += 1
            return False
        s.blocked = 0
        return True

    def _replay(self, s: Signature, pool: GraphPool, inputs: list[Any], sizes: Sizes) -> list[Any]:
        recording = s.recording
        assert recording is not None
        for position, buffer in s.buffers:
            copy_into(buffer, flat(inputs[position]))
        recording.graph.replay()
        for position, tensor in s.returned:
            inputs[position].data.copy_(tensor)
        pool.handed_out(recording)
        results = [
            made if finish is None else finish(inputs, sizes, made)
            for finish, made in zip(self._finish, recording.outputs(), strict=True)
        ]
        inputs.clear()
        return results

    # -- recording --------------------------------------------------------------------------

    def _record(
        self,
        s: Signature,
        pool: GraphPool,
        inputs: list[Any],
        at: list[int],
        ordinal: int,
    ) -> bool:
        """Record a call without doing it. False where that cannot be."""
        given = list(inputs)
        s.fixed, s.buffers, s.returned = [], [], []
        size = 0
        for i, position in enumerate(self._positions):
            tensor = inputs[position]
            here = self._gpus.ordinal(tensor) == ordinal
            stays = i in s.parameters or i not in s.moving or pool.owns(at[i])
            if here and stays:
                s.fixed.append((i, at[i]))
                continue
            if not here and position in self._overwritten:
                self._refuse("it overwrites an input on the CPU")
                return False
            size += flat(tensor).nbytes
            if size > _MAX_COPIED:
                self._refuse("too many bytes of inputs come from another place at each call")
                return False
            buffer = copy_to(tensor, self._gpus.device(ordinal))
            given[position] = buffer
            s.buffers.append((position, flat(buffer)))
            if position in self._overwritten:
                s.returned.append((position, buffer))
        owned = {t.untyped_storage().data_ptr() for t in given if isinstance(t, torch.Tensor)}
        try:
            graph, made = self._gpus.record(pool.side, pool.memory, lambda: self._run(given))
        except (RuntimeError, LoadError) as error:
            self._refuse(f"recording it failed: {error}")
            return False
        held = [t if f is None else None for t, f in zip(made, self._finish, strict=True)]
        if any(t is not None and t.untyped_storage().data_ptr() in owned - {0} for t in held):
            self._refuse("a call returns a view of an input")
            return False
        s.read = taking([i for i, _ in s.fixed])
        s.read_at = tuple([address for _, address in s.fixed])
        s.recording = Recording(pool.next_number(), graph, held, s.kept)
        s.pool = pool
        pool.add(s.recording)
        self._recorder.count("graph_records")
        return True
