"""The numbers of one compiled graph."""

from __future__ import annotations

from fusec.codegen.host import HostPlan
from fusec.ir.program import Call
from fusec.schedule.groups import Schedule


def report(schedule: Schedule, host: HostPlan) -> dict[str, int]:
    """Counts by the names that `fusec.trace.COUNTERS` explains, and the arena's bytes."""
    calls = [s for s in host.program.steps if isinstance(s, Call)]
    numbers = {
        "groups": len(host.launches),
        "kernels": host.started,
        "distinct_kernels": len(host.kernels),
        "external_calls": sum(c.reason in ("library", "random") for c in calls),
        "fallback_calls": sum(c.reason == "fallback" for c in calls),
        "arena_bytes": host.program.arena_bytes,
    }
    for call in calls:
        if call.reason == "fallback":
            name = f"fallback:{call.target}"
            numbers[name] = numbers.get(name, 0) + 1
    return numbers
