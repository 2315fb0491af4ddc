"""The gate says what a good gate says to every case of the table."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases.case import Case, Want, ask
from tests.cases.table import CASES


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_the_gate_says_what_a_good_gate_says(case: Case, tmp_path: Path) -> None:
    answer = ask(case, tmp_path)
    assert answer.satisfies(case), answer.text


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES if case.planted])
def test_without_what_was_planted_the_same_case_passes(case: Case, tmp_path: Path) -> None:
    answer = ask(replace(case, onnx=None), tmp_path)
    assert answer.satisfies(replace(case, want=Want.PASS)), answer.text


def test_every_kind_of_verdict_and_every_reason_occurs() -> None:
    assert {case.want for case in CASES} == set(Want)
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(case.by or case.want is not Want.BLOCK for case in CASES)
