"""Judging what is known before any backend ran: the program, the budgets, the golden dataset."""

from collections.abc import Iterator
from dataclasses import replace

from validator.backends.interface import ExportFacts
from validator.golden.format import Stratum
from validator.judge.findings import Check, Evidence, Finding, Status, not_measured
from validator.judge.outcomes import judge_outcome
from validator.judge.weights import judge_weights
from validator.policy import (
    Policy,
)
from validator.worker.outcome import Completed


def judge_model(evidence: Evidence) -> Iterator[Finding]:
    """Judge what the probe read off the model files."""
    if evidence.facts is None:
        yield judge_outcome(evidence.probe, backend=None, what="the probe of the model file")
        return
    training = evidence.facts.training
    yield Finding(
        check=Check.TRAINING_MODE,
        status=Status.EXCEEDED if training else Status.WITHIN,
        message=(
            f"the model was exported in training mode: {_count_live(training)}, first {training[0]}"
            if training
            else "no dropout or batch statistics are live"
        ),
        hint="call model.eval() before torch.export.export or mlflow.pytorch.log_model" if training else None,
    )
    mutated = evidence.facts.mutated_buffers
    yield Finding(
        check=Check.STATE,
        status=Status.EXCEEDED if mutated else Status.WITHIN,
        message=(
            f"forward writes to {len(mutated)} {'buffer' if len(mutated) == 1 else 'buffers'}, first {mutated[0]}: "
            "what it answers depends on earlier calls"
            if mutated
            else "forward writes to no buffer"
        ),
        hint="an export has no state: pass it in and out as tensors, or take it out of the model" if mutated else None,
    )
    # In training mode nothing ran, the export neither: that there is no file says nothing about the exporter.
    if evidence.onnx_required and not training:
        yield _judge_export(evidence)
        if evidence.has_onnx:
            yield judge_weights(evidence)


def _count_live(training: tuple[str, ...]) -> str:
    return "1 operator is live" if len(training) == 1 else f"{len(training)} operators are live"


def _judge_export(evidence: Evidence) -> Finding:
    """Require an ONNX file; without one, say what became of the export."""
    hint = "name an ONNX file with --onnx, or make the model exportable"
    if evidence.has_onnx:
        return Finding(check=Check.EXPORT, status=Status.WITHIN, message="there is an ONNX file to validate")
    match evidence.export:
        case None:
            reason = "no ONNX file was found and none was made"
        case Completed(export=ExportFacts(message=reason)):
            pass
        case outcome:
            return replace(judge_outcome(outcome, backend=None, what="the ONNX export"), check=Check.EXPORT)
    return not_measured(Check.EXPORT, None, f"no ONNX file: {reason}", hint=hint)


def judge_calibration(policy: Policy, evidence: Evidence) -> Iterator[Finding]:
    """Budgets measured on something else are stale, and a stale budget blocks."""
    if policy.golden_digest is not None and policy.golden_digest != evidence.golden_digest:
        yield Finding(
            check=Check.BUDGET,
            status=Status.NOT_MEASURED,
            message=f"the policy wants golden {policy.golden_digest[:15]}, this is {evidence.golden_digest[:15]}",
            hint="name the right golden dataset with --golden, or change the policy where it is protected",
        )
    yield from _judge_budget_names(policy, evidence)
    calibration = policy.calibration
    if calibration is None:
        return
    stale = [
        f"{what}: measured for {wanted}, this is {found}"
        for what, wanted, found in (
            ("weights", calibration.weights, evidence.weights_digest),
            ("golden dataset", calibration.golden, evidence.golden_digest),
            ("reference", calibration.reference, evidence.reference.value),
        )
        if wanted is not None and wanted != found
    ]
    for backend in evidence.backends:
        wanted = calibration.environment.get(backend.row.name, {})
        found = backend.outcome.environment.fingerprint if isinstance(backend.outcome, Completed) else {}
        stale += [
            f"{backend.row.name} {key}: measured on {value}, this is {found.get(key, 'unknown')}"
            for key, value in wanted.items()
            if found.get(key) != value
        ]
    yield Finding(
        check=Check.BUDGET,
        status=Status.NOT_MEASURED if stale else Status.WITHIN,
        message="the budgets are stale: " + "; ".join(stale) if stale else "the budgets were measured on this",
        hint="measure the budgets again on this model, dataset and machine" if stale else None,
    )


def _judge_budget_names(policy: Policy, evidence: Evidence) -> Iterator[Finding]:
    """Find budgets for outputs that do not exist: a misspelt limit would be no limit."""
    known = set(evidence.variety)
    for budget in policy.budget:
        if known and budget.output is not None and budget.output not in known:
            message = f"the policy has a budget for output {budget.output} of {budget.backend}, which does not exist"
            yield not_measured(Check.BUDGET, None, message, hint=f"the outputs are {', '.join(sorted(known))}")


def judge_evidence(policy: Policy, evidence: Evidence) -> Iterator[Finding]:
    """Too few samples, or a reference that is the same for all of them, prove nothing."""
    # Chosen and made-up samples come on top: without enough others nothing holds their errors apart.
    counted = sum(s is Stratum.REPRESENTATIVE for s in evidence.strata) if evidence.strata else evidence.samples
    enough = counted >= policy.samples_min
    what = "golden samples" if counted == evidence.samples else "representative golden samples"
    yield Finding(
        check=Check.EVIDENCE,
        metric="samples",
        measured=counted,
        limit=policy.samples_min,
        status=Status.WITHIN if enough else Status.NOT_MEASURED,
        message=f"{counted} {what}, at least {policy.samples_min} are asked for",
        hint=None if enough else "make a golden dataset with more samples: validator golden create",
    )
    weak = {name: v.weakness for name, v in evidence.variety.items() if v.weakness}
    if evidence.variety and len(weak) == len(evidence.variety):
        yield Finding(
            check=Check.EVIDENCE,
            status=Status.NOT_MEASURED,
            message="the reference gives no evidence: " + "; ".join(f"output {n} {why}" for n, why in weak.items()),
            hint="use golden samples on which the model's answers differ",
        )
