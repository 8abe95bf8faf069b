"""Work in parts: every part once and in order, the result at the end, nothing left running."""

import pytest

from fusec.parts import Parts, each, finish, gathered


def counting(until: int, ended: list[str]) -> Parts[int, str]:
    try:
        yield from range(until)
    finally:
        ended.append("ended")
    return f"{until} in all"


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_parts_and_result_pass_through(count: int) -> None:
    heard: list[int] = []
    assert finish(each(counting(count, []), lambda n: 10 * n), heard.append) == f"{count} in all"
    assert heard == [10 * n for n in range(count)]
    together: list[list[int]] = []
    assert finish(gathered(counting(count, []), 2), together.append) == f"{count} in all"
    assert [len(part) for part in together] == [2] * (count // 2) + [1] * (count % 2)
    assert [n for part in together for n in part] == list(range(count))


def test_what_the_work_raises_reaches_its_caller_after_the_parts_before_it() -> None:
    def broken() -> Parts[int, str]:
        yield 1
        raise ValueError("no more")

    heard: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        finish(each(broken(), lambda n: n), heard.append)
    assert heard == [1]


def test_work_ends_with_its_caller() -> None:
    ended: list[str] = []
    parts = gathered(each(counting(9, ended), str), 2)
    assert next(parts) == ["0", "1"]
    parts.close()
    assert ended == ["ended"]
