"""The order of waiting jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.queue import JobQueue, QueueFull


def _drain(queue: JobQueue) -> list[str]:
    names = []
    while (name := queue.pop()) is not None:
        names.append(name)
    return names


def test_priority_then_first_come() -> None:
    queue = JobQueue(10)
    for name, priority in (("a", 1), ("b", 5), ("c", 5), ("d", 1)):
        assert queue.push(name, priority)
    assert [queue.position(name) for name in "abcd"] == [2, 0, 1, 3]
    assert _drain(queue) == ["b", "c", "a", "d"]


def test_a_name_waits_once_at_its_highest_priority() -> None:
    queue = JobQueue(2)
    queue.push("a", 1)
    queue.push("b", 3)
    assert not queue.push("a", 5), "it is in the queue: no second place, and no QueueFull"
    assert not queue.push("a", 0)
    assert _drain(queue) == ["a", "b"]


def test_bounded() -> None:
    queue = JobQueue(1)
    queue.push("a", 1)
    with pytest.raises(QueueFull):
        queue.push("b", 9)
    assert _drain(queue) == ["a"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 5), st.integers(0, 9))
    )
)
def test_like_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    queue = JobQueue(4)
    model: list[tuple[int, int, str]] = []
    for number, (what, which, priority) in enumerate(steps):
        name = f"job{which}"
        known = [item for item in model if item[2] == name]
        if what == "pop":
            assert queue.pop() == (model.pop(0)[2] if model else None)
        elif what == "remove":
            assert queue.remove(name) == bool(known)
            model = [item for item in model if item[2] != name]
        elif known:
            assert not queue.push(name, priority)
            best = min(known[0][0], -priority)
            model.remove(known[0])
            model.append((best, known[0][1], name))
        elif len(model) < 4:
            assert queue.push(name, priority)
            model.append((-priority, number, name))
        else:
            with pytest.raises(QueueFull):
                queue.push(name, priority)
        model.sort()
        assert [queue.position(item[2]) for item in model] == list(range(len(model)))
        assert len(queue) == len(model)
