"""The gate says what a good gate says to every case of the table."""

from pathlib import Path

import pytest

from tests.cases.case import Case, ask
from tests.cases.table import CASES


def parameter(case: Case) -> object:
    marks = [pytest.mark.xfail(strict=True, reason=f"the gate lacks {case.missing}")] if case.missing else []
    return pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", [parameter(case) for case in CASES])
def test_the_gate_says_what_a_good_gate_says(case: Case, tmp_path: Path) -> None:
    answer = ask(case, tmp_path)
    assert answer.satisfies(case), answer.text
