"""The check `weights`: what an ONNX file's initialisers have to be, and what is only worth a warning."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frames import completed, evidence, weighed
from validator.backends.catalog import CATALOG, REFERENCE
from validator.backends.interface import DifferenceKind, RefusalKind, TensorDifference
from validator.judge import Check, Decision, Finding, Status, Verdict, judge
from validator.policy import BUILT_IN
from validator.worker.outcome import Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.protocol import Refusal, WeightsJob

CPU = BUILT_IN["cpu"].model_copy(update={"batch_size": 8})
JOB = WeightsJob(
    job_id="weights", nonce="0" * 32, model_path="m.pt2", model_format="torch.export", onnx_path="m.onnx", threads=1
)


def difference(**changes: object) -> TensorDifference:
    fields: dict[str, object] = {
        "name": "head.weight",
        "stands_for": "head.weight",
        "elements": 1_280,
        "unequal": 128,
        "largest_absolute": 0.0125,
        "largest_relative": 0.01,
        "kind": DifferenceKind.OTHER,
    }
    return TensorDifference(**(fields | changes))  # type: ignore[arg-type]


def judged(outcome: Outcome | None) -> tuple[Decision, Finding]:
    decision = judge(CPU, evidence(weights=outcome))
    (finding,) = (f for f in decision.findings if f.check is Check.WEIGHTS)
    return decision, finding


def test_initialisers_that_are_the_models_are_within_and_counted() -> None:
    decision, finding = judged(weighed())
    assert decision.verdict is Verdict.PASS
    assert finding.message == "26 of 26 initialisers are the model's: 24 equal, 2 folded"
    assert decision.warnings == ()


def test_one_that_differs_fails_whatever_the_outputs_say() -> None:
    decision, finding = judged(weighed(differing=1, differences=(difference(),)))
    assert decision.verdict is Verdict.FAIL
    assert finding.status is Status.EXCEEDED
    assert finding.message == (
        "initialiser head.weight differs in 128 of 1,280 elements, "
        "at most by 0.0125 and 0.01 times its value: other values"
    )


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_count_of_good_ones_excuses_a_bad_one(differing: int, equal: int, unexplained: int) -> None:
    facts = weighed(differing=differing, differences=(difference(),), equal=equal, unexplained=unexplained)
    assert judged(facts)[1].status is Status.EXCEEDED


def test_many_are_counted_and_a_few_described() -> None:
    named = tuple(difference(name=f"layer.{i}.weight", stands_for=f"layer.{i}.weight") for i in range(20))
    _, finding = judged(weighed(differing=24, differences=named))
    assert finding.message.count("initialiser ") == 3
    assert finding.message.endswith("and 21 more")
    assert (finding.measured, finding.limit) == (24, 0)


def test_what_a_fold_stands_for_is_said_and_a_size_that_is_not_finite_is_left_out() -> None:
    odd = difference(stands_for="head.weight with norm folded in", largest_absolute=None, largest_relative=None)
    _, finding = judged(weighed(differing=1, differences=(odd,)))
    assert finding.message == (
        "initialiser head.weight (head.weight with norm folded in) differs in 128 of 1,280 elements: other values"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unexplained": 2, "unexplained_names": ("val_3", "val_4")}, "2 of 28 initialisers stand for nothing in the"),
        (
            {"missing": 1, "missing_names": ("norm.bias",)},
            "1 of 34 tensors of the model are not in the ONNX file",
        ),
        ({"converted": 3}, "3 of 29 initialisers hold the model's values in another element type"),
        (
            {"equal": 0, "folded": 0, "unexplained": 9, "unexplained_names": ("w_quantised",)},
            "9 of 9 initialisers stand for nothing in the model, first w_quantised",
        ),
    ],
    ids=["unexplained", "missing", "converted", "nothing accounted for"],
)
def test_what_cannot_be_traced_is_a_warning(changes: dict[str, object], words: str) -> None:
    decision, finding = judged(weighed(**changes))
    assert decision.verdict is Verdict.PASS
    assert finding.status is Status.WITHIN
    (caution,) = decision.warnings
    assert caution.code == "weights"
    assert words in caution.message


def refusal(kind: RefusalKind) -> Declined:
    record = Refusal(job_id="weights", nonce="0" * 32, kind=kind, stage="load", message="no such thing")
    return Declined(job=JOB, refusal=record)


ENDS: dict[str, tuple[Outcome | None, Verdict]] = {
    "never compared": (None, Verdict.INCONCLUSIVE),
    "completed and said nothing": (completed(CATALOG[REFERENCE]), Verdict.INCONCLUSIVE),
    "did not load": (refusal(RefusalKind.MODEL), Verdict.INCONCLUSIVE),
    "unsafe file": (refusal(RefusalKind.FORMAT), Verdict.REFUSED),
    "killed": (Crashed(job=JOB, exit_status=-9, samples=0, log_tail=""), Verdict.INCONCLUSIVE),
    "timed out": (TimedOut(job=JOB, limit_s=3, samples=0, log_tail=""), Verdict.INCONCLUSIVE),
    "lied": (Violated(job=JOB, what="wrong nonce", log_tail=""), Verdict.REFUSED),
}


@pytest.mark.parametrize(("outcome", "verdict"), ENDS.values(), ids=ENDS.keys())
def test_a_comparison_that_was_not_made_never_passes(outcome: Outcome | None, verdict: Verdict) -> None:
    assert judged(outcome)[0].verdict is verdict


def test_without_an_onnx_file_nothing_is_said() -> None:
    for absent in (
        evidence(onnx_required=False, has_onnx=False, weights=None),
        replace(evidence(weights=None), has_onnx=False),
    ):
        assert not [f for f in judge(CPU, absent).findings if f.check is Check.WEIGHTS]
