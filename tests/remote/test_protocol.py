"""Bodies of the compile routes: what is written is read, anything else is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.protocol import pack, unpack
from fusec.errors import WireError
from fusec.options import Options
from fusec.remote.jobs import MAX_RECIPE, FrontRecord, parts_of
from fusec.remote.protocol import (
    MAX_GRAPH,
    MAX_JOIN,
    FarmJob,
    JobError,
    JobState,
    JobStatus,
    Join,
    Priority,
    Refusal,
    decode_submit,
    front_to_wire,
)
from tests.farm.tiny_stages import farm_job, graph_job

HEX = "a" * 64
RECORD = FrontRecord(graph_job("t.a").fingerprint.entries, (("bw", HEX), ("fw", HEX)), b"recipe")
STATUS = JobStatus(HEX, JobState.FAILED, 7, 3, 9, 1, JobError("compile_error", "no"))


def test_a_job_survives_the_wire() -> None:
    job = replace(
        farm_job("t.a", priority=Priority.PREWARM, training_job="run/7"),
        options=Options(fusion=False, mode="max-autotune"),
    )
    read = decode_submit(job.encode())
    assert isinstance(read, FarmJob)
    assert read.options.key_entries() == job.options.key_entries()
    assert replace(read, options=job.options) == job


def test_only_options_of_the_key_are_sent() -> None:
    secret = replace(farm_job("t.a"), options=Options(token="hush", remote="http://elsewhere"))
    assert b"hush" not in secret.encode()
    assert b"elsewhere" not in secret.encode()


def test_a_front_record_survives_the_wire() -> None:
    assert decode_submit(pack(front_to_wire(RECORD))) == RECORD
    assert FrontRecord.decode(RECORD.encode()) == RECORD
    assert RECORD.part_keys() == {"fw": f"graph/{HEX}", "bw": f"graph/{HEX}"}


def test_a_status_survives_the_wire() -> None:
    assert JobStatus.from_wire(STATUS.to_wire()) == STATUS
    timed = replace(STATUS, left_s=12.5)
    assert JobStatus.from_wire(timed.to_wire()) == timed
    for wrong in (float("nan"), -1.0, 1e9, True, "soon"):
        with pytest.raises(WireError, match="left_s"):
            JobStatus.from_wire({**STATUS.to_wire(), "left_s": wrong})
    long = replace(STATUS, error=JobError("k" * 999, "m" * 99_999))
    assert len(pack(long.to_wire())) < 8192


def test_a_join_survives_the_wire() -> None:
    join = Join("a-waiter", Priority.PREWARM)
    assert Join.from_wire(unpack(pack(join.to_wire()), max_bytes=MAX_JOIN)) == join
    assert len(pack(Join("w" * 64).to_wire())) < MAX_JOIN
    for wrong in ({"v": 1}, {"waiter": "a b"}, {"waiter": 1}, {"priority": 3}, {"more": 1}):
        with pytest.raises(WireError):
            Join.from_wire({**join.to_wire(), **wrong})


def test_limits_come_before_the_work() -> None:
    with pytest.raises(WireError, match="too large"):
        replace(farm_job("t.a"), graph=bytes(MAX_GRAPH + 1)).encode()
    with pytest.raises(WireError, match="too large"):
        replace(RECORD, recipe=bytes(MAX_RECIPE + 1)).encode()


@pytest.mark.parametrize(
    "parts",
    [(), (("fw", "short"),), (("Fw", HEX),), (("fw", HEX), ("bw", HEX)), (("fw", HEX),) * 2],
)
def test_parts_are_checked(parts: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(WireError):
        replace(RECORD, parts=parts).encode()


def test_absent_parts_are_left_out() -> None:
    assert parts_of({"fw": HEX, "bw": None}) == (("fw", HEX),)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("v",), 1),
        (("kind",), "pickle"),
        (("extra",), 1),
        (("body", "extra"), 1),
        (("body", "graph"), "text"),
        (("body", "fingerprint"), "A" * 64),
        (("body", "priority"), 3),
        (("body", "priority"), True),
        (("body", "training_job"), "a b"),
        (("body", "training_job"), "a" * 65),
        (("body", "waiter"), ""),
        (("body", "target"), {"device": "cpu"}),
        (("body", "options"), {}),
        (("body", "options", "fusion"), "yes"),
        (("body", "options", "mode"), "reckless"),
        (("body", "fingerprint_entries"), []),
        (("body", "fingerprint_entries"), [["graph", "no hex"]]),
    ],
)
def test_wrong_fields_are_refused(where: tuple[str, ...], value: object) -> None:
    body = unpack(farm_job("t.a").encode(), max_bytes=1 << 20)
    inner = body
    for name in where[:-1]:
        assert isinstance(inner, dict)
        inner = inner[name]
    assert isinstance(inner, dict)
    inner[where[-1]] = value  # type: ignore[assignment]
    with pytest.raises(WireError):
        decode_submit(pack(body))


@given(st.data())
def test_damaged_bodies_never_do_worse_than_wire_error(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from([farm_job("t.a").encode(), pack(front_to_wire(RECORD))]))
    at = data.draw(st.integers(0, len(original) - 1))
    byte = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(original)))
    damaged = (original[:at] + bytes([byte]) + original[at + 1 :])[:cut]
    try:
        decode_submit(damaged)
    except WireError:
        return


@settings(max_examples=30)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.text(max_size=9)
        | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["v", "fingerprint", "state", "seq", "error"]), inner)
        ),
        max_leaves=9,
    )
)
def test_no_status_does_worse_than_wire_error(value: object) -> None:
    with pytest.raises(WireError):
        JobStatus.from_wire(value)


def test_a_refusal_of_somebody_else_is_read_as_far_as_it_goes() -> None:
    own = Refusal("QueueFull", "full", "wait", 2.0)
    assert Refusal.from_wire(own.to_wire()) == own
    assert Refusal.from_wire({"error": "text"}).message == "text"
    assert Refusal.from_wire(None).message == ""
    assert Refusal.from_wire([1]).retry_after_s is None
    for never in (math.nan, math.inf, -1.0, "soon"):
        assert Refusal.from_wire({"error": {"retry_after_s": never}}).retry_after_s is None
