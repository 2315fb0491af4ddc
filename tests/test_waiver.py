"""A waiver admits what somebody answers for, until a date, and nothing else."""

import functools
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Situation, evidence_of, reference_outputs, stale_weights
from tests.frames import SAMPLES, completed, evidence, noisy, scores
from validator.backends.catalog import CATALOG
from validator.errors import PolicyError
from validator.judge import Check, Decision, Evidence, Status, Verdict, judge
from validator.policy import WAIVER_DAYS_MAX, Policy, Waiver, parse_policy

TODAY = date(2026, 11, 30)
REQUIRED = ("eager-cpu", "onnxruntime-cpu")
TOO_LOUD = noisy(scores(), 1e-4)


def waiver(**changes: object) -> Waiver:
    given = {
        "check": "error-ratio",
        "backend": "onnxruntime-cpu",
        "owner": "Ada",
        "reason": "known",
        "expires": TODAY + timedelta(days=30),
    }
    return Waiver.model_validate(given | changes)


def judged(*waivers: Waiver, tried: Evidence | None = None, today: date | None = TODAY) -> Decision:
    """Judge a candidate whose error ratios are exceeded in its only output, and whose batches are, too."""
    policy = Policy(required=REQUIRED, waiver=waivers)
    return judge(policy, evidence(TOO_LOUD) if tried is None else tried, today)


def codes(decision: Decision) -> list[str]:
    return [w.code for w in decision.warnings if w.code in ("waived", "waiver")]


def statuses(decision: Decision, check: Check = Check.ERROR_RATIO) -> set[Status]:
    return {f.status for f in decision.findings if f.check is check}


def test_a_waived_finding_does_not_block_and_says_who_answers_for_it() -> None:
    assert judged().verdict is Verdict.FAIL
    decision = judged(waiver(output="output"))
    assert decision.verdict is Verdict.PASS
    assert statuses(decision) == {Status.WAIVED}
    assert {f.waiver.owner for f in decision.findings if f.waiver} == {"Ada"}
    (caution,) = [w for w in decision.warnings if w.code == "waived"]
    assert caution.message.endswith("findings waived by Ada, until 2026-12-30: known")


def test_the_last_day_is_the_last_on_which_it_counts() -> None:
    last = waiver(expires=TODAY)
    assert judged(last).verdict is Verdict.PASS
    assert any("(0 days left)" in w.message for w in judged(last).warnings if w.code == "waived")
    late = judged(last, today=TODAY + timedelta(days=1))
    assert late.verdict is Verdict.FAIL
    assert statuses(late) == {Status.EXCEEDED}
    (extra,) = [f for f in late.findings if f.check is Check.WAIVER]
    assert "by Ada expired on 2026-11-30" in extra.message


def test_a_waiver_that_lasts_too_long_does_not_count() -> None:
    assert judged(waiver(expires=TODAY + timedelta(days=WAIVER_DAYS_MAX))).verdict is Verdict.PASS
    decision = judged(waiver(expires=TODAY + timedelta(days=WAIVER_DAYS_MAX + 1)))
    assert decision.verdict is Verdict.FAIL
    assert statuses(decision, Check.WAIVER) == {Status.EXCEEDED}


def test_without_a_date_no_waiver_counts() -> None:
    assert judged(waiver(), today=None).verdict is Verdict.FAIL


def test_one_that_has_expired_says_nothing_where_another_took_its_place() -> None:
    decision = judged(waiver(expires=TODAY - timedelta(days=9)), waiver(output="output"))
    assert decision.verdict is Verdict.PASS
    assert statuses(decision, Check.WAIVER) == set()


@pytest.mark.parametrize(
    "change", [{"check": "exact"}, {"output": "boxes"}, {"backend": "onnxruntime-gpu"}], ids=lambda c: next(iter(c))
)
def test_a_waiver_of_something_else_waives_nothing_and_is_warned_about(change: dict[str, str]) -> None:
    decision = judged(waiver(**change))
    assert decision.verdict is Verdict.FAIL
    assert codes(decision) == ["waiver"]


def test_an_expired_waiver_that_nothing_needs_does_not_block() -> None:
    decision = judged(waiver(expires=TODAY - timedelta(days=1)), tried=evidence())
    assert decision.verdict is Verdict.PASS
    assert codes(decision) == ["waiver"]


@settings(deadline=None)
@given(st.data())
def test_waivers_never_touch_what_is_not_measured_or_refused(data: st.DataObject) -> None:
    checks = ["error-ratio", "repeatability", "batch-invariance", "exact", "non-finite", "contract"]
    chosen = data.draw(st.lists(st.sampled_from(checks), unique=True))
    waivers = tuple(waiver(check=check) for check in chosen)
    broken = data.draw(st.sampled_from(list(_broken())))
    plain, waived = judged(tried=_broken()[broken]), judged(*waivers, tried=_broken()[broken])
    for kept in (Status.NOT_MEASURED, Status.REFUSED):
        assert [f for f in plain.findings if f.status is kept] == [f for f in waived.findings if f.status is kept]
    assert waived.verdict is not Verdict.PASS


@functools.cache
def _broken() -> dict[str, Evidence]:
    """Evidence that must not pass, whatever is waived."""
    healthy = evidence(TOO_LOUD)
    row = CATALOG["onnxruntime-cpu"]

    def changed(**changes: object) -> Evidence:
        backends = tuple(replace(b, **changes) if b.row == row else b for b in healthy.backends)  # type: ignore[arg-type]
        return replace(healthy, backends=backends)

    return {
        "never ran": changed(outcome=None, main=None, repeat=None, batches=()),
        "another provider": changed(outcome=completed(row, provider="CUDAExecutionProvider")),
        "no repetition": changed(repeat=None),
        "no batches": changed(batches=()),
        "no power": replace(healthy, control=None),
        "too few samples": replace(healthy, samples=3),
    }


def test_every_waivable_check_is_a_check() -> None:
    words = Waiver.model_fields["check"].annotation.__args__  # type: ignore[union-attr]
    assert set(words) <= {check.value for check in Check}


def test_non_finite_values_can_be_waived_by_name_only() -> None:
    candidate = noisy(scores(), 1e-6)
    candidate[3, 4] = np.nan
    assert judged(waiver(), tried=evidence(candidate)).verdict is Verdict.FAIL
    # Scores that are no numbers are another answer, too, and that is another thing to answer for.
    assert judged(waiver(check="non-finite"), tried=evidence(candidate)).verdict is Verdict.FAIL
    both = judged(waiver(check="non-finite"), waiver(check="decisions"), tried=evidence(candidate))
    assert both.verdict is Verdict.PASS
    assert SAMPLES > 3


WAIVER = 'required = ["eager-cpu", "onnxruntime-cpu"]\n[[waiver]]\n'
COMPLETE = {
    "check": '"error-ratio"',
    "backend": '"onnxruntime-cpu"',
    "owner": '"Ada"',
    "reason": '"known"',
    "expires": "2026-12-31",
}


def written(**changes: str | None) -> str:
    return WAIVER + "".join(f"{k} = {v}\n" for k, v in (COMPLETE | changes).items() if v is not None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"owner": None}, "waiver.0.owner: Field required"),
        ({"owner": '" "'}, "waiver.0.owner"),
        ({"reason": '""'}, "waiver.0.reason"),
        ({"expires": None}, "waiver.0.expires: Field required"),
        ({"expires": '"2026-12-31"'}, "waiver.0.expires"),
        ({"expires": "2026-12-31T12:00:00"}, "waiver.0.expires"),
        ({"check": '"power"'}, "waiver.0.check"),
        ({"check": '"worker"'}, "waiver.0.check"),
        ({"check": '"identity"'}, "waiver.0.check"),
        ({"check": '"coverage"'}, "waiver.0.check"),
        ({"check": '"evidence"'}, "waiver.0.check"),
        ({"check": '"budget"'}, "waiver.0.check"),
        ({"backend": '"eager-cpu"'}, "eager-cpu has no waiver"),
        ({"until": "2026-12-31"}, "unknown key waiver.0.until"),
    ],
)
def test_a_waiver_that_cannot_be_used_says_why(changes: dict[str, str | None], words: str) -> None:
    assert parse_policy(written(), origin="p").waiver == (waiver(expires=date(2026, 12, 31)),)
    with pytest.raises(PolicyError) as caught:
        parse_policy(written(**changes), origin="policy.toml")
    assert words in caught.value.message


def test_two_waivers_of_the_same_are_refused() -> None:
    with pytest.raises(PolicyError, match="two waivers of error-ratio of onnxruntime-cpu"):
        parse_policy(written() + written().removeprefix('required = ["eager-cpu", "onnxruntime-cpu"]'), origin="p")


def test_a_waiver_of_one_output_leaves_the_others_exceeded() -> None:
    y = reference_outputs()
    loud = {name: values * 1.001 for name, values in stale_weights(y).items()}
    tried = evidence_of(Situation(outputs={"onnxruntime-cpu": loud}))
    decision = judge(Policy(required=REQUIRED, waiver=(waiver(output="logits"),)), tried, TODAY)
    assert decision.verdict is Verdict.FAIL
    by_output = {f.output: f.status for f in decision.findings if f.check is Check.ERROR_RATIO}
    assert by_output == {"logits": Status.WAIVED, "probabilities": Status.EXCEEDED}
