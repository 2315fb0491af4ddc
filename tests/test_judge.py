"""The truth table, and the laws that no evidence may break."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import SAMPLES, backend_evidence, completed, cut, evidence, facts, frames, noisy, run_job, scores
from validator.backends.catalog import CATALOG, REFERENCE, UNIT_ROUNDOFF, Precision, expected_settings
from validator.backends.interface import ExportFacts, RefusalKind
from validator.compare import Frame, compare, measure_variety
from validator.golden.format import Stratum
from validator.judge import (
    MODEL_CHECKS,
    REQUIRED_CHECKS,
    Check,
    Decision,
    Evidence,
    Finding,
    FreshRun,
    Status,
    Verdict,
    decide,
    judge,
    precision_of,
)
from validator.judge.batches import is_ruled_by_rounding
from validator.judge.outcomes import OTHER_DATASET_HINT, judge_identity, judge_outcome
from validator.judge.structure import judge_coverage
from validator.policy import BUILT_IN, Calibration, Checks, Policy
from validator.worker.outcome import Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.protocol import Refusal

CPU = BUILT_IN["cpu"].model_copy(update={"batch_size": 8})
ALONE = CPU.model_copy(update={"checks": Checks(batch_sizes=(1,))})
"""Holds batch 1 against the deployed one, and no other."""
ORT = CATALOG["onnxruntime-cpu"]


def findings_of(decision: Decision, check: Check, backend: str | None = "onnxruntime-cpu") -> list[Finding]:
    return [f for f in decision.findings if f.check is check and f.backend == backend]


def with_backend(name: str, **changes: object) -> Evidence:
    """Return healthy evidence in which one backend's evidence is changed."""
    healthy = evidence()
    return replace(
        healthy,
        backends=tuple(replace(b, **changes) if b.row.name == name else b for b in healthy.backends),  # type: ignore[arg-type]
    )


def test_healthy_evidence_passes() -> None:
    decision = judge(CPU, evidence())
    assert decision.verdict is Verdict.PASS
    assert {f.status for f in decision.findings} == {Status.WITHIN}
    assert decision.warnings == ()


def test_a_candidate_over_its_budget_fails_and_says_by_how_much() -> None:
    decision = judge(CPU, evidence(noisy(scores(), 1e-4)))
    assert decision.verdict is Verdict.FAIL
    pooled = next(f for f in findings_of(decision, Check.ERROR_RATIO) if f.metric == "error ratio")
    assert pooled.measured == pytest.approx(100, rel=0.2)
    assert pooled.limit == 10
    assert pooled.sample is not None


def test_one_bad_element_in_a_large_tensor_fails() -> None:
    """The pooled ratio dilutes it; the largest element does not."""
    y = scores(classes=100_000)
    baseline, candidate = noisy(y, 1e-6, seed=2), noisy(y, 1e-6, seed=3)
    candidate[5, 77] += 2e-4
    reference = frames({"output": y})
    rows = (
        backend_evidence(REFERENCE, reference, reference),
        backend_evidence("eager-cpu", reference, frames({"output": baseline})),
        backend_evidence("onnxruntime-cpu", reference, frames({"output": candidate})),
    )
    decision = judge(CPU, evidence(backends=rows))
    exceeded = [f.metric for f in decision.findings if f.status is Status.EXCEEDED]
    assert exceeded == ["error ratio, worst element", "error ratio, worst channel"]
    worst = next(f for f in decision.findings if f.status is Status.EXCEEDED)
    assert worst.sample == 5


def test_a_dead_channel_below_every_pooled_number_fails() -> None:
    scales = np.array([1e5] * 9 + [1e-6])
    y = scores() * scales
    baseline, candidate = (y * (1 + noisy(np.zeros_like(y), 1e-7, seed=s)) for s in (2, 3))
    candidate[:, 9] = 0.0
    reference = frames({"output": y})
    rows = (
        backend_evidence(REFERENCE, reference, reference),
        backend_evidence("eager-cpu", reference, frames({"output": baseline})),
        backend_evidence("onnxruntime-cpu", reference, frames({"output": candidate})),
    )
    decision = judge(CPU, evidence(backends=rows))
    (found,) = (f for f in decision.findings if f.status is Status.EXCEEDED)
    assert found.metric == "error ratio, worst channel"
    assert "channel 9" in found.message


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_in_the_candidate_fails(bad: float) -> None:
    candidate = noisy(scores(), 1e-6)
    candidate[3, 4] = bad
    decision = judge(CPU, evidence(candidate))
    assert decision.verdict is Verdict.FAIL
    assert findings_of(decision, Check.NON_FINITE)[0].sample == 3


def test_a_candidate_of_nan_only_fails() -> None:
    assert judge(CPU, evidence(np.full((SAMPLES, 10), np.nan))).verdict is Verdict.FAIL


def outcomes() -> dict[str, tuple[Outcome | None, Verdict]]:
    """Return every way in which a candidate's job can end, and the verdict that follows."""
    job = run_job(ORT)

    def refusal(kind: RefusalKind) -> Declined:
        record = Refusal(job_id=job.job_id, nonce=job.nonce, kind=kind, stage="load", message="no such thing")
        return Declined(job=job, refusal=record)

    return {
        "never ran": (None, Verdict.INCONCLUSIVE),
        "backend missing": (refusal(RefusalKind.UNAVAILABLE), Verdict.INCONCLUSIVE),
        "model does not run": (refusal(RefusalKind.MODEL), Verdict.FAIL),
        "the device failed twice": (
            replace(refusal(RefusalKind.MODEL), first_failure="CUDA error: an illegal memory access"),
            Verdict.INCONCLUSIVE,
        ),
        "unsafe file": (refusal(RefusalKind.FORMAT), Verdict.REFUSED),
        "killed": (Crashed(job=job, exit_status=-9, samples=8, log_tail="x"), Verdict.INCONCLUSIVE),
        "exit 0 without proof": (Crashed(job=job, exit_status=0, samples=16, log_tail=""), Verdict.INCONCLUSIVE),
        "timed out": (TimedOut(job=job, limit_s=3, samples=0, log_tail=""), Verdict.INCONCLUSIVE),
        "lied": (Violated(job=job, what="wrong nonce", log_tail=""), Verdict.REFUSED),
    }


@pytest.mark.parametrize(("outcome", "verdict"), outcomes().values(), ids=outcomes().keys())
def test_every_outcome_gives_its_verdict(outcome: Outcome | None, verdict: Verdict) -> None:
    tried = with_backend("onnxruntime-cpu", outcome=outcome, main=None, repeat=None, batches=())
    assert judge(CPU, tried).verdict is verdict


@pytest.mark.parametrize("name", [REFERENCE, "eager-cpu"])
def test_a_measure_that_cannot_run_is_inconclusive_whosever_fault_it_is(name: str) -> None:
    job = run_job(CATALOG[name])
    record = Refusal(job_id=name, nonce=job.nonce, kind=RefusalKind.MODEL, stage="fp64", message="no fp64 kernel")
    broken = with_backend(name, outcome=Declined(job=job, refusal=record), main=None, repeat=None, batches=())
    assert judge(CPU, broken).verdict is Verdict.INCONCLUSIVE


def test_a_module_that_takes_other_inputs_sends_to_the_dataset() -> None:
    job = run_job(CATALOG[REFERENCE])
    record = Refusal(job_id=REFERENCE, nonce=job.nonce, kind=RefusalKind.MODEL, stage="bind", message="2 inputs, not 1")
    finding = judge_outcome(Declined(job=job, refusal=record), backend=None, what="the probe")
    assert finding.hint == OTHER_DATASET_HINT


@pytest.mark.parametrize(
    "change",
    [
        {"main": None},
        {"repeat": None},
        {"batches": ()},
        {"main": compare(frames({"output": scores()}), frames({"output": scores()[:8]}))},
        {"main": compare(frames({"output": scores()}), [])},
        {"outcome": completed(ORT, nodes_elsewhere=3)},
        {"outcome": completed(ORT, provider="CUDAExecutionProvider")},
    ],
    ids=["no comparison", "no repetition", "no batches", "half", "nothing", "nodes elsewhere", "other provider"],
)
def test_what_was_not_measured_never_passes(change: dict[str, object]) -> None:
    assert judge(CPU, with_backend("onnxruntime-cpu", **change)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("setting", "ran", "hint"), [("dtype", "float64", "log it in float32"), ("device", "meta", "another backend")]
)
def test_a_model_that_is_float64_itself_is_told_what_to_do(setting: str, ran: str, hint: str) -> None:
    row = CATALOG["eager-cpu"]
    outcome = completed(row)
    environment = outcome.environment.model_copy(update={"settings": {**outcome.environment.settings, setting: ran}})
    found = judge_identity(row, replace(outcome, environment=environment))
    assert found.status is Status.NOT_MEASURED
    assert f"asked {expected_settings(row)[setting]}, ran {ran}" in found.message
    assert hint in (found.hint or "")


def test_a_setting_that_could_not_be_read_back_is_inconclusive() -> None:
    outcome = completed(ORT)
    settings = {k: v for k, v in outcome.environment.settings.items() if k != "graph_optimization"}
    unread = replace(outcome, environment=outcome.environment.model_copy(update={"settings": settings}))
    assert judge(CPU, with_backend("onnxruntime-cpu", outcome=unread)).verdict is Verdict.INCONCLUSIVE


@given(st.data())
def test_removing_a_backend_or_a_finding_never_improves_a_verdict(data: st.DataObject) -> None:
    full = judge(CPU, evidence())
    required = frozenset(CPU.required)
    kept = data.draw(st.lists(st.sampled_from(full.findings), unique_by=id))
    lost = {(f.check, f.backend) for f in full.findings} - {(f.check, f.backend) for f in kept}
    # Decisions are asked of scores only, so no candidate has to have any.
    lost -= {(Check.DECISIONS, "onnxruntime-cpu")}
    needed = {key for key in lost if key[1] == "onnxruntime-cpu" or key[0] in MODEL_CHECKS}
    verdict = decide(kept, required)
    assert verdict is (Verdict.INCONCLUSIVE if needed or not kept else Verdict.PASS)


@given(st.floats(1e-3, 100), st.floats(0.01, 1), st.floats(1e-7, 1e-3))
def test_tightening_a_budget_never_turns_a_fail_into_a_pass(limit: float, factor: float, noise: float) -> None:
    def verdict(error_ratio: float) -> Verdict:
        policy = Policy.model_validate(
            {"required": CPU.required, "budget": [{"backend": "onnxruntime-cpu", "error_ratio": error_ratio}]}
        )
        return judge(policy, tried).verdict

    tried = evidence(noisy(scores(), noise))
    loose, tight = verdict(limit), verdict(limit * factor)
    assert (loose, tight) != (Verdict.FAIL, Verdict.PASS)


@given(st.lists(st.sampled_from(list(Status)), min_size=1))
def test_the_strongest_status_decides_whatever_the_order(statuses: list[Status]) -> None:
    found = [Finding(check=Check.EXACT, status=s, message="") for s in statuses]
    verdict = decide(found, frozenset({"onnxruntime-cpu"}))
    if Status.REFUSED in statuses:
        assert verdict is Verdict.REFUSED
    elif Status.EXCEEDED in statuses:
        assert verdict is Verdict.FAIL
    else:
        assert verdict is Verdict.INCONCLUSIVE


def test_a_candidate_needs_every_required_check_and_an_error_ratio_or_an_exact_comparison() -> None:
    full, required = judge(CPU, evidence()).findings, frozenset(CPU.required)
    rest = [f for f in full if f.check is not Check.ERROR_RATIO]
    exact = Finding(check=Check.EXACT, status=Status.WITHIN, message="", backend=ORT.name)
    assert decide(rest, required) is Verdict.INCONCLUSIVE
    assert decide([*rest, exact], required) is Verdict.PASS
    other = [replace(f, backend="eager-cuda") for f in rest if f.backend == ORT.name]
    assert decide([*full, *other], required | {"eager-cuda"}) is Verdict.INCONCLUSIVE
    assert decide([*full, *other, replace(exact, backend="eager-cuda")], required | {"eager-cuda"}) is Verdict.PASS
    for check in REQUIRED_CHECKS:
        assert decide([f for f in full if (f.check, f.backend) != (check, ORT.name)], required) is Verdict.INCONCLUSIVE


def test_a_row_is_found_by_its_name() -> None:
    assert [(evidence().find(name) or evidence().backends[0]).row.name for name in CPU.required] == list(CPU.required)
    assert evidence().find("eager-cuda") is None


def test_no_findings_and_no_backends_are_inconclusive() -> None:
    assert decide([], frozenset()) is Verdict.INCONCLUSIVE
    assert decide([], frozenset({"onnxruntime-cpu"})) is Verdict.INCONCLUSIVE
    within = [Finding(check=Check.POWER, status=Status.WITHIN, message="")]
    assert decide(within, frozenset({"eager-cpu"})) is Verdict.INCONCLUSIVE


def test_a_required_backend_that_was_never_planned_is_inconclusive() -> None:
    policy = Policy(required=("eager-cpu", "onnxruntime-cpu", "eager-cuda"))
    assert judge(policy, evidence()).verdict is Verdict.INCONCLUSIVE


def test_training_mode_fails_before_anything_ran() -> None:
    healthy = evidence()
    idle = tuple(replace(b, outcome=None, main=None, repeat=None, batches=()) for b in healthy.backends)
    trained = replace(healthy, facts=facts(training=("aten.dropout: dropout_1",)), backends=idle, control=None)
    decision = judge(CPU, trained)
    assert decision.verdict is Verdict.FAIL
    message = findings_of(decision, Check.TRAINING_MODE, None)[0].message
    assert "1 operator is live, first aten.dropout: dropout_1" in message


def test_in_training_mode_no_export_is_judged_because_none_was_tried() -> None:
    trained = replace(evidence(), facts=facts(training=("aten.dropout: dropout_1", "x")), has_onnx=False)
    decision = judge(CPU, trained)
    assert findings_of(decision, Check.EXPORT, None) == []
    assert "2 operators are live" in findings_of(decision, Check.TRAINING_MODE, None)[0].message


def test_without_an_onnx_file_the_exporters_reason_is_given() -> None:
    told = ExportFacts(path=None, message="no ONNX function for aten.frobnicate")
    export = replace(completed(CATALOG["eager-cpu"]), export=told)
    decision = judge(CPU, replace(evidence(), export=export, has_onnx=False))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "aten.frobnicate" in findings_of(decision, Check.EXPORT, None)[0].message


def test_a_static_batch_is_not_measurable_unless_the_policy_admits_it() -> None:
    static = replace(evidence(), facts=facts(static_batch=1))
    assert judge(CPU, static).verdict is Verdict.INCONCLUSIVE
    admits = Policy.model_validate({"required": CPU.required, "checks": {"batch_invariance": "if-dynamic"}})
    assert judge(admits, static).verdict is Verdict.PASS


def test_a_model_that_depends_on_its_batch_mates_in_fp64_fails() -> None:
    y = scores()
    alone = compare(frames({"output": y}), frames({"output": noisy(y, 1e-5)}, 1))
    decision = judge(ALONE, with_backend(REFERENCE, batches=((1, alone),)))
    assert decision.verdict is Verdict.FAIL
    assert "batch mates" in (findings_of(decision, Check.BATCH, REFERENCE)[0].hint or "")


def test_batch_noise_within_the_budget_passes_and_beyond_it_fails() -> None:
    y = scores()
    near = compare(frames({"output": y}), frames({"output": noisy(y, 1e-6)}, 1))
    far = compare(frames({"output": y}), frames({"output": noisy(y, 1e-3)}, 1))
    assert judge(ALONE, with_backend("onnxruntime-cpu", batches=((1, near),))).verdict is Verdict.PASS
    assert judge(ALONE, with_backend("onnxruntime-cpu", batches=((1, far),))).verdict is Verdict.FAIL


def test_another_shape_at_another_batch_size_fails() -> None:
    y = scores()
    other = compare(frames({"output": y}), frames({"output": y[:, :5]}, 1))
    assert judge(ALONE, with_backend("onnxruntime-cpu", batches=((1, other),))).verdict is Verdict.FAIL


def test_a_row_that_promises_repeatability_fails_when_it_does_not_repeat() -> None:
    y = scores()
    again = compare(frames({"output": y}), frames({"output": noisy(y, 1e-9)}))
    assert judge(CPU, with_backend("eager-cpu", repeat=again)).verdict is Verdict.FAIL


def test_nan_that_repeats_is_repeatable() -> None:
    y = scores()
    y[2, 2] = np.nan
    again = compare(frames({"output": y}), frames({"output": y.copy()}))
    assert judge(CPU, with_backend("eager-cpu", repeat=again)).verdict is Verdict.PASS


def test_integers_must_be_equal_to_the_last_one() -> None:
    labels = np.arange(16)[:, None]
    other = labels.copy()
    other[9, 0] += 1
    reference, same, wrong = frames({"y": labels}), frames({"y": labels}), frames({"y": other})

    def verdict(candidate: list) -> Verdict:  # type: ignore[type-arg]
        rows = (
            backend_evidence(REFERENCE, reference, reference),
            backend_evidence("eager-cpu", reference, same),
            backend_evidence("onnxruntime-cpu", reference, candidate),
        )
        return judge(CPU, evidence(backends=rows, variety=measure_variety(reference))).verdict

    assert verdict(same) is Verdict.PASS
    assert verdict(wrong) is Verdict.FAIL


def test_a_missing_output_fails() -> None:
    y = scores()
    two, one = frames({"a": y, "b": y}), frames({"a": y})
    rows = (
        backend_evidence(REFERENCE, two, two),
        backend_evidence("eager-cpu", two, two),
        backend_evidence("onnxruntime-cpu", two, one),
    )
    assert judge(CPU, evidence(backends=rows, variety=measure_variety(two))).verdict is Verdict.FAIL


def test_too_few_samples_or_a_constant_reference_are_inconclusive() -> None:
    assert judge(CPU, replace(evidence(), samples=7)).verdict is Verdict.INCONCLUSIVE
    constant = measure_variety(frames({"output": np.ones((16, 3))}))
    assert judge(CPU, replace(evidence(), variety=constant)).verdict is Verdict.INCONCLUSIVE


def test_one_constant_output_beside_others_is_a_warning() -> None:
    varied = measure_variety(frames({"anchors": np.ones((16, 3)), "output": scores()}))
    decision = judge(CPU, replace(evidence(), variety=varied))
    assert decision.verdict is Verdict.PASS
    assert [w.code for w in decision.warnings] == ["evidence"]


def test_a_run_without_negative_control_or_with_one_that_was_missed_is_inconclusive() -> None:
    healthy = evidence()
    assert healthy.control is not None
    assert judge(CPU, replace(healthy, control=None)).verdict is Verdict.INCONCLUSIVE
    missed = replace(healthy, control=replace(healthy.control, caught=False))
    assert judge(CPU, missed).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "calibration",
    [
        {"weights": "sha256:other"},
        {"golden": "sha256:other"},
        {"environment": {"onnxruntime-cpu": {"torch": "2.11.0"}}},
        {"environment": {"onnxruntime-cpu": {"gpu": "NVIDIA H200"}}},
    ],
    ids=["weights", "golden", "library", "hardware"],
)
def test_budgets_measured_on_something_else_are_stale_and_block(calibration: dict[str, object]) -> None:
    policy = Policy.model_validate({"required": CPU.required, "calibration": calibration})
    decision = judge(policy, evidence())
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "stale" in findings_of(decision, Check.BUDGET, None)[0].message


def test_a_budget_for_an_output_that_does_not_exist_is_inconclusive() -> None:
    """A misspelt limit would be no limit."""
    budget = {"backend": "onnxruntime-cpu", "output": "outptu", "error_ratio": 1e9}
    decision = judge(Policy.model_validate({"required": CPU.required, "budget": [budget]}), evidence())
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "the outputs are output" in (findings_of(decision, Check.BUDGET, None)[0].hint or "")


def with_columns(size: int) -> list[Frame]:
    """Return frames with a second output whose batch dimension is the last one."""
    return [
        replace(f, outputs={**f.outputs, "t": f.outputs["output"].T}, dtypes={**f.dtypes, "t": "float64"})
        for f in frames({"output": scores()}, size)
    ]


def test_an_output_of_no_single_sample_is_never_left_unjudged() -> None:
    cut_differently = compare(with_columns(8), with_columns(4))
    decision = judge(CPU, with_backend("onnxruntime-cpu", main=cut_differently))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert any("belongs to no single sample" in f.message for f in findings_of(decision, Check.COVERAGE))
    decision = judge(ALONE, with_backend("onnxruntime-cpu", batches=((1, compare(with_columns(8), with_columns(1))),)))
    assert decision.verdict is Verdict.INCONCLUSIVE


def test_a_non_finite_value_at_another_batch_size_fails() -> None:
    """The error ratio is over finite elements: it would not notice."""
    y = scores()
    alone = y.copy()
    alone[4, 2] = np.nan
    other = compare(frames({"output": y}), frames({"output": alone}, 1))
    for name in (REFERENCE, "onnxruntime-cpu"):
        assert judge(ALONE, with_backend(name, batches=((1, other),))).verdict is Verdict.FAIL


def test_one_wrong_element_at_another_batch_size_fails() -> None:
    y = scores(classes=100_000)
    alone = noisy(y, 1e-7)
    alone[3, 7] += 1e-3
    rows = (
        backend_evidence(REFERENCE, frames({"output": y}), frames({"output": y})),
        backend_evidence("eager-cpu", frames({"output": y}), frames({"output": noisy(y, 1e-6, seed=2)})),
        backend_evidence(
            "onnxruntime-cpu",
            frames({"output": y}),
            frames({"output": noisy(y, 1e-6, seed=3)}),
            batches=((1, compare(frames({"output": y}), frames({"output": alone}, 1))),),
        ),
    )
    assert judge(ALONE, evidence(backends=rows)).verdict is Verdict.FAIL


def test_a_batch_size_that_never_really_ran_is_not_measured() -> None:
    y = frames({"output": scores()})
    batches = tuple((size, compare(y, cut(y, min(size, 2)))) for size in (1, 2, 7))
    decision = judge(CPU, with_backend("onnxruntime-cpu", batches=batches))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert any("was not run at batch 7" in f.message for f in findings_of(decision, Check.BATCH))


def test_ragged_samples_that_come_in_pairs_are_held_against_batches_that_copies_fill() -> None:
    pairs = frames({"output": scores()}, 2)
    healthy = evidence().backends[2]
    filled = tuple((size, compare(pairs, cut(pairs, size))) for size in (1, 7))
    assert [c.largest_batch for _, c in filled] == [1, 7]
    assert healthy.main is not None
    ragged = with_backend("onnxruntime-cpu", main=replace(healthy.main, largest_batch=2), batches=filled)
    assert judge(CPU, ragged).verdict is Verdict.PASS


def test_a_row_that_answers_otherwise_in_a_fresh_process_fails() -> None:
    y = frames({"output": scores()})
    other = compare(y, frames({"output": noisy(scores(), 1e-9)}))
    healthy = evidence().backends[2]
    assert healthy.fresh is not None
    decision = judge(CPU, with_backend("onnxruntime-cpu", fresh=replace(healthy.fresh, comparison=other)))
    assert decision.verdict is Verdict.FAIL
    (finding,) = [f for f in decision.findings if f.status is Status.EXCEEDED]
    assert (finding.check, finding.metric) == (Check.REPEATABILITY, "unequal elements in a fresh process")


def test_a_fresh_process_that_is_missing_dies_or_runs_something_else_blocks() -> None:
    row = CATALOG["onnxruntime-cpu"]
    dead = Crashed(job=run_job(row), exit_status=-11, samples=3, log_tail="")
    other = completed(row, graph_optimization="disable")
    healthy = evidence().backends[2]
    assert healthy.fresh is not None
    for fresh in (None, FreshRun(outcome=dead, comparison=None), replace(healthy.fresh, outcome=other)):
        decision = judge(CPU, with_backend("onnxruntime-cpu", fresh=fresh))
        assert decision.verdict is Verdict.INCONCLUSIVE
    policy = CPU.model_copy(update={"checks": Checks(fresh_process=False)})
    assert judge(policy, with_backend("onnxruntime-cpu", fresh=None)).verdict is Verdict.PASS


def test_a_large_sample_does_not_excuse_the_others() -> None:
    y = scores()
    y[5] *= 1e8
    baseline, candidate = (y + noisy(np.zeros_like(y), 1e-7, seed=s) * np.abs(y) for s in (2, 3))
    candidate[np.abs(y) < 100] = 0.0
    reference = frames({"output": y})
    rows = (
        backend_evidence(REFERENCE, reference, reference),
        backend_evidence("eager-cpu", reference, frames({"output": baseline})),
        backend_evidence("onnxruntime-cpu", reference, frames({"output": candidate})),
    )
    decision = judge(CPU, evidence(backends=rows))
    assert decision.verdict is Verdict.FAIL
    assert "error ratio, sample by itself" in {f.metric for f in decision.findings if f.status is Status.EXCEEDED}


def test_a_budget_as_large_as_the_output_clears_nothing() -> None:
    """Where rounding decides the answer in fp32, zeros would be within."""
    y = scores()
    reference = frames({"output": y})
    rows = (
        backend_evidence(REFERENCE, reference, reference),
        backend_evidence("eager-cpu", reference, frames({"output": noisy(y, 1.0, seed=2)})),
        backend_evidence("onnxruntime-cpu", reference, frames({"output": np.zeros_like(y)})),
    )
    decision = judge(CPU, evidence(backends=rows))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert any("zeros would be within" in f.message for f in decision.findings)


def test_state_that_forward_changes_fails() -> None:
    stateful = replace(evidence(), facts=facts(mutated_buffers=("n",)))
    assert judge(CPU, stateful).verdict is Verdict.FAIL


def test_an_output_without_elements_on_either_side_passes() -> None:
    y, none = scores(), np.zeros((16, 0, 4))
    both = frames({"boxes": none, "output": y})
    rows = tuple(backend_evidence(name, both, both) for name in (REFERENCE, "eager-cpu", "onnxruntime-cpu"))
    assert judge(CPU, evidence(backends=rows)).verdict is Verdict.PASS


def test_an_inconclusive_verdict_always_has_a_reason() -> None:
    decision = judge(CPU, with_backend("onnxruntime-cpu", batches=(), repeat=None, main=None))
    assert any(f.status is Status.NOT_MEASURED for f in decision.findings)


def test_the_baselines_batch_sizes_are_held_against_its_own_error() -> None:
    """It has no budget that anyone could raise, and deep networks make more rounding noise than one unit."""
    y = scores()
    reference = frames({"output": y})
    deep = noisy(y, 1e-5, seed=2)
    batches = ((1, compare(frames({"output": deep}), frames({"output": noisy(deep, 1e-5)}, 1))),)
    rows = (
        backend_evidence(REFERENCE, reference, reference),
        backend_evidence("eager-cpu", reference, frames({"output": deep}), batches=batches),
        backend_evidence("onnxruntime-cpu", reference, frames({"output": noisy(y, 1e-5, seed=3)})),
    )
    assert judge(ALONE, evidence(backends=rows)).verdict is Verdict.PASS


def test_budgets_measured_on_this_are_not_stale() -> None:
    fresh = Calibration(weights="sha256:" + "2" * 64, environment={"onnxruntime-cpu": {"torch": "2.14.1"}})
    assert judge(CPU.model_copy(update={"calibration": fresh}), evidence()).verdict is Verdict.PASS


def test_another_golden_dataset_than_the_policys_blocks() -> None:
    policy = CPU.model_copy(update={"golden_digest": "sha256:" + "9" * 64})
    assert judge(policy, evidence()).verdict is Verdict.INCONCLUSIVE


def test_more_than_half_of_a_budget_is_a_warning_and_no_block() -> None:
    decision = judge(CPU, evidence(noisy(scores(), 7e-6)))
    assert decision.verdict is Verdict.PASS
    assert "headroom" in {w.code for w in decision.warnings}


def test_a_baseline_far_from_fp64_is_a_warning_that_names_the_model() -> None:
    y = scores()
    reference = frames({"output": y})
    rows = (
        backend_evidence(REFERENCE, reference, reference),
        backend_evidence("eager-cpu", reference, frames({"output": noisy(y, 0.05, seed=2)})),
        backend_evidence("onnxruntime-cpu", reference, frames({"output": noisy(y, 0.05, seed=3)})),
    )
    decision = judge(CPU, evidence(backends=rows))
    assert decision.verdict is Verdict.PASS
    assert [w.code for w in decision.warnings] == ["ill-conditioned"]


def test_a_reference_of_nan_everywhere_is_no_evidence_and_blames_no_model() -> None:
    nan = frames({"output": np.full((16, 10), np.nan)})
    rows = tuple(backend_evidence(name, nan, nan) for name in (REFERENCE, "eager-cpu", "onnxruntime-cpu"))
    decision = judge(CPU, evidence(backends=rows, variety=measure_variety(nan), control=None))
    assert decision.verdict is Verdict.INCONCLUSIVE


def test_nan_on_both_sides_everywhere_is_never_within() -> None:
    """Nothing was compared: the error ratios are NaN, and NaN is no number that a limit admits."""
    nan = frames({"output": np.full((16, 10), np.nan)})
    decision = judge(CPU, with_backend("onnxruntime-cpu", main=compare(nan, nan)))
    assert decision.verdict is Verdict.FAIL
    ratios = [f for f in findings_of(decision, Check.ERROR_RATIO) if f.metric != "error ratio, worst channel"]
    assert len(ratios) == 5
    assert all(math.isnan(f.measured or 0) for f in ratios)


def test_where_rounding_rules_a_batch_that_moves_fp64_proves_nothing() -> None:
    """fp64 amplifies its own rounding as fp32 does: a chaotic model looks as if it minded its batch mates."""
    y = scores()
    moved = compare(frames({"output": y}), frames({"output": y * (1 + 1e-7)}, 1))
    for noise, verdict in ((1e-6, Verdict.FAIL), (0.2, Verdict.INCONCLUSIVE)):
        rows = (
            backend_evidence(REFERENCE, frames({"output": y}), frames({"output": y}), batches=((1, moved),)),
            backend_evidence("eager-cpu", frames({"output": y}), frames({"output": noisy(y, noise, seed=2)})),
            backend_evidence("onnxruntime-cpu", frames({"output": y}), frames({"output": noisy(y, noise, seed=3)})),
        )
        decision = judge(ALONE, evidence(backends=rows))
        assert decision.verdict is verdict


@pytest.mark.parametrize(("error", "objected"), [(1.0, True), (0.875, False)])
def test_a_budget_that_is_exactly_as_large_as_the_output_clears_nothing(error: float, *, objected: bool) -> None:
    y = np.full((SAMPLES, 4), 10.0)
    rows = tuple(
        backend_evidence(name, frames({"output": y}), frames({"output": y + moved}))
        for name, moved in ((REFERENCE, 0.0), ("eager-cpu", error), (ORT.name, error))
    )
    found = judge(CPU, evidence(backends=rows)).findings
    assert any("zeros would be within" in f.message for f in found) is objected


@pytest.mark.parametrize(("value", "error", "ruled"), [(10.0, 1.0, True), (10.0, 0.875, False), (0.0, 0.0, False)])
def test_rounding_rules_from_a_tenth_of_the_output_on(value: float, error: float, *, ruled: bool) -> None:
    y = np.full((SAMPLES, 4), value)
    row = backend_evidence("eager-cpu", frames({"output": y}), frames({"output": y + error}))
    assert is_ruled_by_rounding(evidence(backends=(row,)), "output") is ruled
    assert not is_ruled_by_rounding(evidence(backends=()), "output")


def test_copies_of_one_sample_are_no_batch_mates() -> None:
    alone = frames({"output": scores()}, 1)
    filled = tuple((size, compare(alone, [replace(f, filled=size - 1) for f in alone])) for size in (2, 7))
    ragged = replace(evidence().backends[2], batches=filled)
    assert ragged.main is not None
    decision = judge(
        CPU, with_backend("onnxruntime-cpu", main=replace(ragged.main, largest_batch=1), batches=ragged.batches)
    )
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert any("was not run at batch 2, 7" in f.message for f in findings_of(decision, Check.BATCH))


def test_a_few_parameters_in_half_precision_widen_no_budget() -> None:
    stored = facts(parameter_dtypes={"bfloat16": 3}, working_dtype="bfloat16")
    wrong = evidence(noisy(scores(), 1e-4), facts=stored)
    assert judge(CPU, wrong).verdict is Verdict.FAIL
    y = frames({"output": scores()})
    rows = (
        backend_evidence(REFERENCE, y, y),
        backend_evidence("eager-cpu", y, frames({"output": noisy(scores(), 1e-3, seed=2)})),
        backend_evidence("onnxruntime-cpu", y, frames({"output": noisy(scores(), 1e-3, seed=3)})),
    )
    assert judge(CPU, evidence(backends=rows, facts=stored)).verdict is Verdict.PASS


def test_samples_beyond_the_representative_ones_do_not_count_as_evidence() -> None:
    strata = (*[Stratum.REPRESENTATIVE] * 7, *[Stratum.ACTIVATION_EXTREMES] * 9)
    assert judge(CPU, evidence(strata=strata)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("usable", "is_enough"), [(1, False), (7, False), (8, True)])
@pytest.mark.parametrize("elements", [1, 10])
def test_a_reference_that_holds_numbers_in_few_samples_is_little_evidence(
    usable: int, elements: int, *, is_enough: bool
) -> None:
    y = scores(classes=elements)
    y[usable:] = np.nan
    both = frames({"output": y})
    rows = tuple(backend_evidence(name, both, both) for name in (REFERENCE, "eager-cpu", "onnxruntime-cpu"))
    decision = judge(CPU, evidence(backends=rows))
    assert any(f"in {usable} of 16 samples only" in f.message for f in decision.findings) is not is_enough
    assert is_enough or decision.verdict is Verdict.INCONCLUSIVE


def test_exactly_as_many_samples_as_are_asked_for_are_enough() -> None:
    strata = (*[Stratum.REPRESENTATIVE] * 8, *[Stratum.ACTIVATION_EXTREMES] * 8)
    counted = findings_of(judge(CPU, evidence(strata=strata)), Check.EVIDENCE, None)
    assert [(f.status, f.message) for f in counted] == [
        (Status.WITHIN, "8 representative golden samples, at least 8 are asked for")
    ]
    counted = findings_of(judge(CPU, evidence()), Check.EVIDENCE, None)
    assert [f.message for f in counted] == ["16 golden samples, at least 8 are asked for"]


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 2.0), ("float16", 2.0), ("float32", 10.0)])
def test_a_model_that_is_stored_in_half_precision_is_judged_in_its_class(dtype: str, limit: float) -> None:
    stored = facts(parameter_dtypes={dtype: 100}, working_dtype=dtype)
    y = frames({"output": scores()})
    rows = (
        backend_evidence(REFERENCE, y, y),
        backend_evidence("eager-cpu", y, frames({"output": noisy(scores(), 1e-3, seed=2)})),
        backend_evidence("onnxruntime-cpu", y, frames({"output": noisy(scores(), 1e-3, seed=3)})),
    )
    decision = judge(CPU, evidence(backends=rows, facts=stored))
    assert {f.limit for f in findings_of(decision, Check.ERROR_RATIO) if f.metric == "error ratio"} == {limit}


@pytest.mark.parametrize(
    ("status", "how", "hint"),
    [
        (-9, "was ended by signal 9", "for want of memory"),
        (-11, "was ended by signal 11", None),
        (0, "ended with status 0 and without proof", None),
        (1, "ended with status 1 and without proof", None),
    ],
)
def test_a_worker_that_died_says_how(status: int, how: str, hint: str | None) -> None:
    crashed = Crashed(job=run_job(ORT), exit_status=status, samples=0, log_tail="")
    (found,) = findings_of(judge(CPU, with_backend("onnxruntime-cpu", outcome=crashed)), Check.WORKER)
    assert how in found.message
    assert ("for want of memory" in (found.hint or "")) is (hint is not None)


@pytest.mark.parametrize(("count", "more"), [(1, None), (3, None), (4, " and 1 more"), (9, " and 6 more")])
def test_strange_files_are_named_and_those_left_out_are_counted(count: int, more: str | None) -> None:
    strange = tuple(f"file-{number}" for number in range(count))
    (caution,) = [w for w in judge(CPU, evidence(strange=strange)).warnings if w.code == "contents"]
    assert caution.message.endswith(more or f"file-{count - 1}")


RATIOS = {
    "error ratio": "error_ratio",
    "error ratio p99": "error_ratio_p99",
    "error ratio, worst sample": "error_ratio_max",
    "error ratio, worst element": "error_ratio_element",
    "error ratio, sample by itself": "error_ratio_own_sample",
    "error ratio, worst channel": "error_ratio_channel",
    "error ratio at batch 1": "error_ratio",
    "error ratio, worst sample at batch 1": "error_ratio_max",
    "error ratio, worst element at batch 1": "error_ratio_element",
}


@pytest.mark.parametrize("metric", RATIOS)
def test_a_ratio_that_is_exactly_its_limit_is_within_and_the_next_larger_one_is_not(metric: str) -> None:
    y = scores()
    alone = compare(frames({"output": y}), frames({"output": noisy(y, 1e-4, seed=5)}, 1))
    tried = replace(evidence(noisy(y, 1e-4)), variety={})
    rows = (*tried.backends[:2], replace(tried.backends[2], batches=((1, alone),)))
    tried = replace(tried, backends=rows)

    def judged(**limits: float) -> Finding | None:
        budget = {"backend": ORT.name, "error_ratio": 1e-3, "output": "output"} | limits
        policy = Policy.model_validate(
            {"required": CPU.required, "batch_size": 8, "checks": {"batch_sizes": (1,)}, "budget": [budget]}
        )
        found = judge(policy, tried).findings
        return next((f for f in found if (f.backend, f.metric, f.status) == (ORT.name, metric, Status.EXCEEDED)), None)

    exceeded = judged()
    assert exceeded is not None
    assert exceeded.measured is not None
    assert judged(**{RATIOS[metric]: exceeded.measured}) is None
    assert judged(**{RATIOS[metric]: float(np.nextafter(exceeded.measured, 0))}) is not None


def test_what_moves_the_reference_by_exactly_the_limit_is_within(monkeypatch: pytest.MonkeyPatch) -> None:
    y = scores()
    moved = compare(frames({"output": y}), frames({"output": noisy(y, 1e-5)}, 1))
    tried = with_backend(REFERENCE, batches=((1, moved),))
    found = {f.metric: f.measured for f in findings_of(judge(ALONE, tried), Check.BATCH, REFERENCE)}
    for limit, count in ((max(found.values()), 0), (min(found.values()), 1)):
        monkeypatch.setattr("validator.judge.batches.BATCH_DEPENDENCE_LIMIT", limit)
        exceeded = [f for f in findings_of(judge(ALONE, tried), Check.BATCH, REFERENCE) if f.status is Status.EXCEEDED]
        assert len(exceeded) == count


def test_an_output_is_of_the_class_in_which_the_reference_returns_it() -> None:
    y = frames({"output": scores()}, dtypes={"output": "float16"})
    tried = evidence(backends=(backend_evidence(ORT.name, y, y),))
    assert precision_of(tried, ORT, "output") is Precision.FP16
    assert precision_of(tried, ORT, "another") is Precision.IEEE


@pytest.mark.parametrize(("share", "precision"), [(1.0, Precision.FP16), (0.99, Precision.IEEE)])
def test_a_model_is_of_the_class_that_its_baselines_error_shows(share: float, precision: Precision) -> None:
    """From 1/64 of its unit roundoff on, a baseline computes in a class; without a baseline the model is believed."""
    fours = np.full((SAMPLES, 4), 4.0)
    baseline = frames({"output": fours * (1 + share * 2.0**-6 * UNIT_ROUNDOFF[Precision.FP16])})
    rows = (
        backend_evidence("eager-cpu", frames({"output": fours}), baseline),
        backend_evidence("onnxruntime-cpu", frames({"output": fours}), baseline),
    )
    tried = evidence(backends=rows, facts=facts(working_dtype="float16"))
    assert precision_of(tried, ORT, "output") is precision
    assert precision_of(replace(tried, backends=rows[1:]), ORT, "output") is Precision.FP16
    assert precision_of(replace(tried, facts=None), ORT, "output") is Precision.IEEE


def test_an_output_of_zeros_beside_another_is_judged_by_its_values() -> None:
    """Any budget is as large as an output of zeros: that it could be zeros is no objection."""
    y, zeros = scores(), np.zeros((SAMPLES, 3))
    rows = tuple(
        backend_evidence(name, frames({"output": y, "z": zeros}), frames({"output": c, "z": zeros}))
        for name, c in zip((REFERENCE, "eager-cpu", ORT.name), (y, noisy(y, 1e-6, seed=2), noisy(y, 1e-6)), strict=True)
    )
    varied = measure_variety(frames({"output": y, "z": zeros}))
    assert judge(CPU, evidence(backends=rows, variety=varied)).verdict is Verdict.PASS


def test_samples_without_an_element_are_no_samples_without_a_number() -> None:
    """A detector that finds nothing in most samples has answered them."""
    boxes = [np.ones((1, 3 if sample < 2 else 0)) * sample for sample in range(SAMPLES)]
    ragged = [
        Frame(
            start=sample,
            stop=sample + 1,
            outputs={"boxes": box, "output": scores()[sample : sample + 1]},
            dtypes={"boxes": "float64", "output": "float64"},
        )
        for sample, box in enumerate(boxes)
    ]
    rows = tuple(
        replace(backend_evidence(name, ragged, ragged), batches=()) for name in (REFERENCE, "eager-cpu", ORT.name)
    )
    policy = CPU.model_copy(update={"checks": Checks(batch_sizes=(8,))})
    decision = judge(policy, evidence(backends=rows, variety=measure_variety(ragged)))
    assert decision.verdict is Verdict.PASS, [f for f in decision.findings if f.status is not Status.WITHIN]


@pytest.mark.parametrize(("size", "status"), [(0, Status.NOT_MEASURED), (1, Status.WITHIN)])
def test_one_element_is_something_to_compare(size: int, status: Status) -> None:
    y = frames({"output": np.ones((1, size))})
    assert judge_coverage(replace(evidence(), samples=1), ORT.name, compare(y, y), "compared").status is status


def test_a_baseline_that_is_exactly_at_the_limit_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.full((SAMPLES, 4), 10.0)
    rows = tuple(
        backend_evidence(name, frames({"output": y}), frames({"output": y + moved}))
        for name, moved in ((REFERENCE, 0.0), ("eager-cpu", 0.5), (ORT.name, 0.5))
    )
    for limit, codes in ((0.05, []), (float(np.nextafter(0.05, 0)), ["ill-conditioned"])):
        monkeypatch.setattr("validator.judge.cautions.ILL_CONDITIONED", limit)
        assert [w.code for w in judge(CPU, evidence(backends=rows)).warnings] == codes
