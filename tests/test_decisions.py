"""Answers that change: explained by rounding or not, how rare they are, and how right."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import SAMPLES, backend_evidence, evidence, frames, noisy, scores
from validator.backends.catalog import REFERENCE
from validator.golden.format import Stratum
from validator.judge import Check, Evidence, Finding, Status, Verdict, judge, margin_limits, measure_decisions
from validator.policy import BUILT_IN, DecisionLimits, Policy, Waiver

CPU = BUILT_IN["cpu"].model_copy(update={"batch_size": 8})
NOISE = 1e-6
BUDGET = 20 * NOISE * 5
"""More than the budget lets one element move: 20 times the baseline's largest error, which is below 5 sigma."""


def asking(**limits: float) -> Policy:
    return CPU.model_copy(update={"decisions": DecisionLimits(**limits)})


def with_margin(margin: float, samples: Sequence[int] = (3,)) -> np.ndarray:
    """Return scores in which the two best classes of some samples are so far apart."""
    y = scores()
    for sample in samples:
        order = y[sample].argsort()
        y[sample, order[-2]] = y[sample, order[-1]] - margin
    return y


def swapped(y: np.ndarray, samples: Sequence[int] = (3,)) -> np.ndarray:
    """Return scores in which the two best classes of some samples have changed places."""
    other = noisy(y, NOISE, seed=3)
    for sample in samples:
        best = y[sample].argsort()[-2:]
        other[sample, best] = y[sample, best[::-1]]
    return other


def between(reference: np.ndarray, candidate: np.ndarray, **changes: object) -> Evidence:
    y = frames({"output": reference})
    rows = (
        backend_evidence(REFERENCE, y, y),
        backend_evidence("eager-cpu", y, frames({"output": noisy(reference, NOISE, seed=2)})),
        backend_evidence("onnxruntime-cpu", y, frames({"output": candidate})),
    )
    return evidence(backends=rows, **changes)


def finding(policy: Policy, gathered: Evidence, check: Check) -> Finding:
    (found,) = [f for f in judge(policy, gathered).findings if f.check is check]
    return found


def test_a_flip_within_roundings_reach_is_told_and_is_no_fault() -> None:
    y = with_margin(5e-6)
    decision = judge(CPU, between(y, swapped(y)))
    assert decision.verdict is Verdict.PASS
    (flips,) = [f for f in decision.findings if f.check is Check.DECISIONS]
    assert (flips.status, flips.measured) == (Status.WITHIN, 0)
    assert flips.message.startswith("1 of 16 samples have another best class")
    assert "within twice the budget" in flips.message


def test_a_flip_that_no_rounding_explains_fails_and_names_the_sample() -> None:
    y = with_margin(0.1)
    flips = finding(CPU, between(y, swapped(y)), Check.DECISIONS)
    assert (flips.status, flips.measured, flips.sample) == (Status.EXCEEDED, 1, 3)


def test_another_set_of_the_five_best_is_a_change_as_well() -> None:
    y = scores()
    order = y[6].argsort()
    moved = noisy(y, NOISE, seed=3)
    moved[6, order[[-5, -6]]] = y[6, order[[-6, -5]]]
    flips = finding(CPU, between(y, moved), Check.DECISIONS)
    assert (flips.measured, flips.sample) == (1, 6)
    assert "0 of 16 samples have another best class, 1 another set of the 5 best" in flips.message


@given(st.integers(0, 2**32 - 1), st.floats(1e-9, 1e-4))
def test_what_stays_within_the_largest_error_flips_nothing_without_an_explanation(seed: int, noise: float) -> None:
    """So a flip that nothing explains is never the only thing that is wrong."""
    y = with_margin(1e-5, range(SAMPLES))
    gathered = between(y, noisy(y, noise, seed=seed))
    decision = judge(CPU, gathered)
    element = next(f for f in decision.findings if f.metric == "error ratio, worst element")
    flips = next(f for f in decision.findings if f.check is Check.DECISIONS)
    assert flips.status is Status.WITHIN or element.status is Status.EXCEEDED


def test_nan_explains_no_flip() -> None:
    y = with_margin(5e-6)
    y[3, 0] = -np.inf
    gathered = between(y, swapped(y))
    moved = gathered.backends[2].main
    assert moved is not None
    rows = moved.outputs["output"].rows.copy()
    rows["margin"][3] = np.nan
    output = replace(moved.outputs["output"], rows=rows)
    decisions = measure_decisions(CPU, gathered, gathered.backends[2].row, output)
    assert decisions is not None
    assert decisions.top1.unexplained == 1


def test_a_margin_that_is_exactly_twice_the_budget_explains_a_flip() -> None:
    gathered = between(with_margin(5e-6), swapped(with_margin(5e-6)))
    row, output = gathered.backends[2].row, main_output(gathered)
    limit = margin_limits(CPU, gathered, row, output)[3]
    baseline = gathered.backends[1].main
    assert baseline is not None
    assert limit == pytest.approx(2 * 20 * baseline.outputs["output"].summary.element_max)
    for margin, unexplained in ((limit, 0), (np.nextafter(limit, 1), 1)):
        rows = output.rows.copy()
        rows["margin"][3] = margin
        decisions = measure_decisions(CPU, gathered, row, replace(output, rows=rows))
        assert decisions is not None
        assert decisions.top1.unexplained == unexplained


def test_made_up_samples_are_not_asked_for_their_answer() -> None:
    y = with_margin(5e-6)
    strata = tuple(Stratum.SCALES if i == 3 else Stratum.REPRESENTATIVE for i in range(SAMPLES))
    gathered = between(y, swapped(y), strata=strata)
    decisions = measure_decisions(CPU, gathered, gathered.backends[2].row, main_output(gathered))
    assert decisions is not None
    assert (decisions.top1.flips, decisions.top1.samples, decisions.representative) == (0, 15, 15)


def test_the_larger_scores_of_added_samples_explain_no_flip_of_the_others() -> None:
    """Sixteen times the scores have sixteen times the noise floor."""
    y = with_margin(4 * BUDGET)
    y[8:] *= 16
    strata = tuple(Stratum.SCALES if i >= 8 else Stratum.REPRESENTATIVE for i in range(SAMPLES))
    rows = frames({"output": y})
    baseline = np.concatenate([noisy(y[:8], NOISE, seed=2), noisy(y[8:], 16 * NOISE, seed=4)])
    gathered = evidence(
        strata=strata,
        backends=(
            backend_evidence(REFERENCE, rows, rows),
            backend_evidence("eager-cpu", rows, frames({"output": baseline})),
            backend_evidence("onnxruntime-cpu", rows, frames({"output": swapped(y)})),
        ),
    )
    for known, unexplained in ((gathered, 1), (replace(gathered, strata=()), 0)):
        decisions = measure_decisions(CPU, known, known.backends[2].row, main_output(known))
        assert decisions is not None
        assert (decisions.top1.flips, decisions.top1.unexplained) == (1, unexplained)


def test_chosen_samples_answer_and_say_nothing_about_rates() -> None:
    y = with_margin(5e-6)
    strata = tuple(Stratum.LOW_MARGIN if i == 3 else Stratum.REPRESENTATIVE for i in range(SAMPLES))
    gathered = between(y, swapped(y), strata=strata)
    decisions = measure_decisions(CPU, gathered, gathered.backends[2].row, main_output(gathered))
    assert decisions is not None
    assert (decisions.top1.flips, decisions.representative, decisions.representative_flips) == (1, 15, 0)


def main_output(gathered: Evidence):
    main = gathered.backends[2].main
    assert main is not None
    return main.outputs["output"]


def test_a_rate_that_the_dataset_can_rule_out_is_within() -> None:
    assert finding(asking(flip_rate=0.2), evidence(), Check.FLIP_RATE).status is Status.WITHIN
    assert judge(asking(flip_rate=0.2), evidence()).verdict is Verdict.PASS


def test_a_rate_that_is_exactly_what_can_be_ruled_out_is_within() -> None:
    bound = finding(asking(flip_rate=0.2), evidence(), Check.FLIP_RATE).measured
    assert bound is not None
    assert finding(asking(flip_rate=bound), evidence(), Check.FLIP_RATE).status is Status.WITHIN
    below = float(np.nextafter(bound, 0))
    assert finding(asking(flip_rate=below), evidence(), Check.FLIP_RATE).status is Status.NOT_MEASURED


def test_a_rate_that_it_cannot_rule_out_is_inconclusive_and_says_how_many_samples_would() -> None:
    found = finding(asking(flip_rate=0.01), evidence(), Check.FLIP_RATE)
    assert found.status is Status.NOT_MEASURED
    assert found.hint is not None
    assert "299 representative samples" in found.hint
    assert judge(asking(flip_rate=0.01), evidence()).verdict is Verdict.INCONCLUSIVE


def test_more_flips_than_the_policy_allows_fail_explained_or_not() -> None:
    y = with_margin(5e-6, range(8))
    gathered = between(y, swapped(y, range(8)))
    assert judge(CPU, gathered).verdict is Verdict.PASS
    assert finding(asking(flip_rate=0.4), gathered, Check.FLIP_RATE).status is Status.EXCEEDED


def test_without_scores_no_rate_is_known() -> None:
    maps = np.random.default_rng(0).normal(size=(SAMPLES, 3, 4))
    gathered = between(maps, noisy(maps, NOISE, seed=3))
    assert judge(CPU, gathered).verdict is Verdict.PASS
    assert judge(asking(flip_rate=0.2), gathered).verdict is Verdict.INCONCLUSIVE


LABELS = tuple(int(label) for label in scores().argmax(axis=1))


def test_labels_tell_how_right_every_backend_is() -> None:
    y = with_margin(5e-6)
    gathered = between(y, swapped(y), labels=tuple(int(label) for label in y.argmax(axis=1)))
    right = finding(CPU, gathered, Check.ACCURACY)
    assert right.status is Status.WITHIN
    assert right.message == "93.75% of 16 labelled samples are answered rightly, the reference: 100.00%"
    assert right.measured == pytest.approx(1 / 16)
    assert finding(asking(accuracy_drop=0.05), gathered, Check.ACCURACY).status is Status.EXCEEDED
    assert finding(asking(accuracy_drop=0.1), gathered, Check.ACCURACY).status is Status.WITHIN


def test_a_policy_that_limits_the_drop_needs_labels() -> None:
    assert judge(asking(accuracy_drop=0.1), evidence()).verdict is Verdict.INCONCLUSIVE
    assert judge(asking(accuracy_drop=0.1), evidence(labels=LABELS)).verdict is Verdict.PASS


def test_a_label_beyond_the_last_class_is_no_label_of_this_model() -> None:
    decision = judge(CPU, evidence(labels=(*LABELS[:-1], 10)))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert any(
        "the label of golden sample 15 is 10, output output has 10 classes" in f.message for f in decision.findings
    )


def test_a_label_is_held_against_the_fewest_classes_of_any_sample_and_backend() -> None:
    gathered = evidence(labels=(0,) * (SAMPLES - 1) + (4,))
    main, output = gathered.backends[2].main, main_output(gathered)
    assert main is not None
    rows = output.rows.copy()
    rows["elements"][3] = 4
    fewer = replace(main, outputs={"output": replace(output, rows=rows)})
    backends = (*gathered.backends[:2], replace(gathered.backends[2], main=fewer))
    for known, count in ((gathered, 0), (replace(gathered, backends=backends), 1)):
        assert (
            len([f for f in judge(CPU, known).findings if "the label of golden sample 15 is 4" in f.message]) == count
        )


def test_a_made_up_sample_needs_no_label() -> None:
    strata = tuple(Stratum.SCALES if i == 15 else Stratum.REPRESENTATIVE for i in range(SAMPLES))
    assert judge(CPU, evidence(labels=(*LABELS[:-1], -1), strata=strata)).verdict is Verdict.PASS


def test_of_several_outputs_the_declared_one_is_labelled() -> None:
    y = {"output": scores(), "features": scores(seed=9)}
    rows = tuple(backend_evidence(name, frames(y), frames(y)) for name in (REFERENCE, "eager-cpu", "onnxruntime-cpu"))
    for labelled, answers in ((None, []), ("output", ["output"])):
        decision = judge(CPU, evidence(backends=rows, labels=LABELS, labelled=labelled))
        assert [f.output for f in decision.findings if f.check is Check.ACCURACY] == answers
    assert judge(CPU, evidence(backends=rows, labels=LABELS, labelled="boxes")).verdict is Verdict.INCONCLUSIVE


def test_an_unexplained_flip_can_be_waived_like_the_error_behind_it() -> None:
    import datetime as dt

    today = dt.date(2026, 1, 1)
    y = with_margin(0.1)
    waivers = tuple(
        Waiver(check=check, backend="onnxruntime-cpu", owner="a", reason="b", expires=today)
        for check in ("error-ratio", "decisions")
    )
    policy = CPU.model_copy(update={"waiver": waivers})
    assert judge(policy, between(y, swapped(y)), today).verdict is Verdict.PASS
    assert judge(CPU.model_copy(update={"waiver": waivers[:1]}), between(y, swapped(y)), today).verdict is Verdict.FAIL


def test_labels_of_other_classes_are_no_accuracy() -> None:
    shifted = tuple((label + 1) % 10 for label in LABELS)
    decision = judge(CPU, evidence(labels=shifted))
    assert decision.verdict is Verdict.PASS
    assert "labels" in {w.code for w in decision.warnings}
    assert "labels" not in {w.code for w in judge(CPU, evidence(labels=LABELS)).warnings}
    assert judge(asking(accuracy_drop=0.01), evidence(labels=shifted)).verdict is Verdict.INCONCLUSIVE


def test_a_drop_that_is_exactly_the_limit_is_within() -> None:
    y = with_margin(5e-6, (3, 4))
    gathered = between(y, swapped(y, (3, 4)), labels=tuple(int(label) for label in y.argmax(axis=1)))
    assert finding(asking(accuracy_drop=0.125), gathered, Check.ACCURACY).status is Status.WITHIN


def test_as_many_right_answers_as_by_chance_are_no_accuracy() -> None:
    y = scores(classes=8)
    right = y.argmax(axis=1)
    labels = tuple(int(label) if i < 2 else int(label + 1) % 8 for i, label in enumerate(right))
    gathered = between(y, noisy(y, NOISE, seed=3), labels=labels)
    assert finding(asking(accuracy_drop=0.5), gathered, Check.ACCURACY).status is Status.NOT_MEASURED
    assert "labels" in {w.code for w in judge(CPU, gathered).warnings}
    one_more = replace(gathered, labels=(*labels[:-1], int(right[-1])))
    assert finding(asking(accuracy_drop=0.5), one_more, Check.ACCURACY).status is Status.WITHIN


def test_one_representative_sample_has_an_accuracy_and_none_has_none() -> None:
    for count, known in ((0, False), (1, True)):
        strata = (*[Stratum.REPRESENTATIVE] * count, *[Stratum.SCALES] * (SAMPLES - count))
        gathered = evidence(labels=LABELS, strata=strata)
        decisions = measure_decisions(CPU, gathered, gathered.backends[2].row, main_output(gathered))
        assert decisions is not None
        assert (decisions.accuracy is not None) is known


def test_chance_is_among_the_fewest_classes_that_a_sample_has() -> None:
    gathered = evidence(labels=LABELS)
    output = main_output(gathered)
    rows = output.rows.copy()
    rows["elements"][4] = 4
    decisions = measure_decisions(CPU, gathered, gathered.backends[2].row, replace(output, rows=rows))
    assert decisions is not None
    assert decisions.accuracy is not None
    assert decisions.accuracy.chance == 0.25


def test_where_one_sample_has_too_few_classes_no_five_best_are_counted() -> None:
    gathered = evidence()
    output = main_output(gathered)
    rows = output.rows.copy()
    rows["topk_flip"][3] = -1
    for known, counted in ((output, True), (replace(output, rows=rows), False)):
        decisions = measure_decisions(CPU, gathered, gathered.backends[2].row, known)
        assert decisions is not None
        assert (decisions.topk is not None) is counted
