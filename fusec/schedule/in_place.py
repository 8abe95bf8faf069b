"""Which results of a kernel can take the memory of what it reads for the last time.

    b2[i] = exp(b1[i]), b1 dead afterwards   →   b2 lies where b1 lay

Legal where every element of the old buffer is read at the very point that writes the same element
of the new one, and not after the write: points of a kernel run in any order, at once.
"""

from __future__ import annotations

from fusec.ir import loop as lp
from fusec.ir.kernel import KernelLoop, Statement, linear


def in_place_pairs(loop: KernelLoop) -> tuple[tuple[int, int], ...]:
    """(written, read) buffers of one element type, each in one pair at most. Whether the buffer
    that is read is dead afterwards is for the memory plan to say."""
    if loop.scatters or loop.scans:
        return ()
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    stores = [s for s in loop.statements if s.fold is None]
    written = {s.buffer for s in stores}
    for store in stores:
        if store.across or sum(s.buffer == store.buffer for s in stores) > 1:
            continue
        for buffer in _read_straight(loop, store):
            if buffer in written or buffer in taken:
                continue
            if loop.buffers[buffer].dtype == loop.buffers[store.buffer].dtype:
                pairs.append((store.buffer, buffer))
                taken.add(buffer)
                break
    return tuple(pairs)


def _read_straight(loop: KernelLoop, store: Statement) -> list[int]:
    """Buffers that are read where this statement stores, only there and no later."""
    offset = linear(store.index, loop.buffers[store.buffer].stride)
    order = {id(s): (s.stage, s.inner, n) for n, s in enumerate(loop.statements)}
    straight: dict[int, bool] = {}
    for statement in loop.statements:
        for value in statement.scalars:
            for load in lp.loads(value):
                same = linear(load.index, loop.buffers[load.buffer].stride) is offset
                before = order[id(statement)] <= order[id(store)]
                fine = same and before and not load.indirect
                straight[load.buffer] = straight.get(load.buffer, True) and fine
    return [buffer for buffer, fine in straight.items() if fine]
