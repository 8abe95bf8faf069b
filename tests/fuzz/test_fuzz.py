"""Random programs give eager's results; and a planted fault is found and made small."""

from __future__ import annotations

import pytest

from fusec.lower.lowering import RULES
from tests.fuzz.__main__ import options_for, target_for
from tests.fuzz.case import random_case
from tests.fuzz.check import check_cases, shrink
from tests.fuzz.dynamic import check_dynamic

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    options, target = options_for(part), target_for(part)
    cases = [random_case(seed) for seed in range(40 * part, 40 * part + 40)]
    wrong = check_cases(cases, options, target)
    if wrong:
        pytest.fail(str(shrink(*wrong[0], options, target)), pytrace=False)


def test_random_programs_of_dynamic_size() -> None:
    wrong = [why for why in map(check_dynamic, range(8)) if why]
    if wrong:
        pytest.fail(wrong[0], pytrace=False)


def test_a_planted_fault_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "aten.maximum", RULES["aten.minimum"])
    cases = [c for c in map(random_case, range(400)) if "maximum" in c.source()][:3]
    options, target = options_for(0), target_for(0)
    wrong = check_cases(cases, options, target)
    assert wrong
    failure = shrink(*wrong[0], options, target, tries=12)
    assert len(failure.case.steps) <= 3
    assert "torch.maximum" in str(failure)
    assert "compile_and_compare(f, " in str(failure)
