from dataclasses import replace

import numpy as np
import pytest

from tests.builders import (
    GPU,
    SAMPLES,
    Situation,
    completed,
    decide_on,
    document_of,
    evidence_of,
    facts,
    failing,
    frames,
    golden_dataset,
    inconclusive_crash,
    inconclusive_no_gpu,
    noisy,
    passing,
    reference_outputs,
    refused,
    stale_weights,
)
from validator.backends.catalog import CATALOG
from validator.compare import compare
from validator.judge import BackendEvidence, Check, Status, Verdict
from validator.policy import BUILT_IN
from validator.report import build
from validator.report.model import VerdictDocument


@pytest.mark.parametrize(
    ("document", "verdict", "kind"),
    [
        (passing(), Verdict.PASS, "completed"),
        (failing(), Verdict.FAIL, "completed"),
        (inconclusive_crash(), Verdict.INCONCLUSIVE, "crashed"),
        (inconclusive_no_gpu(), Verdict.INCONCLUSIVE, "completed"),
        (refused(), Verdict.REFUSED, "violated"),
    ],
    ids=["pass", "fail", "crash", "no gpu", "refused"],
)
def test_verdict_and_outcome_are_recorded(document: VerdictDocument, verdict: Verdict, kind: str) -> None:
    assert document.verdict is verdict
    assert document.backends[-1].outcome.kind == kind


def test_every_finding_is_recorded_with_an_id_of_its_own() -> None:
    _, _, decision = decide_on(GPU)
    records = passing().findings
    assert [(r.check, r.status, r.measured) for r in records] == [
        (f.check, f.status, f.measured) for f in decision.findings
    ]
    assert len({r.id for r in records}) == len(records)


def test_ids_of_findings_do_not_depend_on_numbers() -> None:
    """A link to a finding survives the next run."""
    honest, stale = passing(), failing()
    assert {f.id for f in honest.findings} == {f.id for f in stale.findings}


def test_several_structure_differences_of_one_output_have_ids_of_their_own() -> None:
    y = reference_outputs()
    renamed = {"scores": y["logits"], "probabilities": y["probabilities"][:, :5]}
    document = document_of(Situation(outputs={"onnxruntime-cpu": renamed}))
    assert document.verdict is Verdict.FAIL
    ids = [f.id for f in document.findings]
    assert len(set(ids)) == len(ids)


def test_recorded_ratios_and_limits_are_those_that_were_judged() -> None:
    document = failing()
    for finding in document.findings:
        if finding.metric != "error ratio":
            continue
        output = next(
            o for b in document.backends if b.name == finding.backend for o in b.outputs if o.name == finding.output
        )
        assert output.ratios is not None
        assert output.limits is not None
        assert (output.ratios.pooled, output.limits.pooled) == (finding.measured, finding.limit)


def test_the_first_of_the_worst_samples_shows_the_ratio_of_the_worst_sample() -> None:
    output = failing().backends[-1].outputs[0]
    assert output.ratios is not None
    assert output.worst_samples[0].error_ratio == output.ratios.worst_sample
    rms = [row.rms for row in output.worst_samples]
    assert rms == sorted(rms, reverse=True)
    assert len(output.worst_samples) == 10


def test_reference_has_no_outputs_and_baseline_no_budget() -> None:
    reference, baseline, *_ = passing().backends
    assert reference.outputs == ()
    assert baseline.outputs[0].ratios is None
    assert baseline.outputs[0].limits is None


def test_integer_outputs_have_no_ratio() -> None:
    y = {"classes": np.arange(SAMPLES * 3).reshape(SAMPLES, 3), **reference_outputs()}

    def honest(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**noisy({k: v for k, v in outputs.items() if k != "classes"}, seed=1), "classes": y["classes"]}

    row = CATALOG["onnxruntime-cpu"]
    main = compare(frames(y), frames(honest(y)))
    evidence = evidence_of(Situation())
    backend = BackendEvidence(row=row, outcome=completed(row), main=main)
    evidence = replace(evidence, backends=(*evidence.backends[:2], backend))
    record = build._output(BUILT_IN["cpu"], evidence, row, main.outputs["classes"], golden_dataset())
    assert record.kind == "integer"
    assert record.ratios is None


def test_environment_and_settings_are_recorded() -> None:
    cuda = next(b for b in passing().backends if b.name == "eager-cuda")
    assert cuda.settings.asked == cuda.settings.ran
    assert cuda.fingerprint["gpu"] == "NVIDIA H200"
    assert cuda.row["cudnn"] is True
    assert cuda.repeat is not None
    assert cuda.repeat.unequal == 0
    assert [b.size for b in cuda.batches] == [1, 2, 7]
    assert cuda.fresh is not None
    assert cuda.fresh.unequal == 0


PASSED = (
    "alexnet version 3: 136 of 136 findings within on 5 of 5 backends, "
    "closest onnxruntime-cpu error ratio 1.45 of 10.0 (38 s)"
)


@pytest.mark.parametrize(
    ("document", "headline"),
    [
        (
            passing(),
            PASSED,
        ),
        (inconclusive_no_gpu(), "alexnet version 3: 3 of 58 findings not measured, 0 exceeded (38 s)"),
    ],
    ids=["pass", "no gpu"],
)
def test_the_headline_counts_findings_and_names_the_number_that_decided(
    document: VerdictDocument, headline: str
) -> None:
    assert document.headline == headline


def test_the_headline_of_a_failure_without_numbers_says_what_it_is() -> None:
    y = reference_outputs()
    document = document_of(Situation(outputs={"onnxruntime-cpu": {"logits": noisy(y, seed=3)["logits"]}}))
    assert "findings exceeded: contract: output probabilities: missing" in document.headline


def test_training_mode_stands_in_the_document() -> None:
    document = document_of(Situation(facts=facts(training=("aten::dropout",))))
    assert document.facts is not None
    assert document.facts.training == ("aten::dropout",)
    assert any(f.check is Check.TRAINING_MODE and f.status is Status.EXCEEDED for f in document.findings)


def test_one_planted_row_is_seen_where_top1_and_cosine_see_nothing() -> None:
    y = reference_outputs()
    document = document_of(Situation(outputs={"onnxruntime-cpu": stale_weights(y)}))
    output = document.backends[-1].outputs[0]
    assert document.verdict is Verdict.FAIL
    assert output.flips == 0
    assert output.cosine > 0.9999999
