"""From the objects of one check to its document. Copies and counts; decides nothing."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

import validator
from validator.backends.catalog import BASELINE, REFERENCE, Backend, expected_settings
from validator.backends.interface import Environment
from validator.compare import Comparison, OutputComparison
from validator.golden.dataset import GoldenDataset
from validator.judge import (
    EXACT_KINDS,
    BackendEvidence,
    Caution,
    Control,
    Decision,
    Decisions,
    Evidence,
    Finding,
    Flips,
    floors_of,
    limits_of,
    measure_decisions,
    noise_floors,
    ratios_of,
)
from validator.metrics import Counts, ErrorSummary, Floats, cosine, divide_by_floor, histogram_quantile
from validator.policy import Limits, Policy, Waiver
from validator.report import model as m
from validator.report.headline import write_headline
from validator.sandbox.choice import Sandbox
from validator.sandbox.confinement import Confinement
from validator.sandbox.level import Level
from validator.subject import OnnxFile, Program, StagedModel
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated

WORST_SAMPLES = 10
"""Rows per output: enough to see a pattern; every sample's number is in MLflow's step metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What the run knows about itself."""

    check_id: str
    created_utc: str
    """ISO 8601, ends in Z."""
    duration_s: float
    command: tuple[str, ...]
    policy_origin: str
    """A path, or the name of a built-in policy."""
    sandbox: m.SandboxRecord
    retries: tuple[str, ...] = ()
    cautions: tuple[Caution, ...] = ()
    """What else a reader should know, besides what follows from the evidence."""


def build_document(
    *,
    run: RunInfo,
    staged: StagedModel,
    program: Program | None,
    onnx: OnnxFile | None,
    golden: GoldenDataset,
    golden_uri: str,
    policy: Policy,
    evidence: Evidence,
    decision: Decision,
) -> m.VerdictDocument:
    """Record a check. The same arguments give the same bytes."""
    document = m.VerdictDocument(
        tool=m.ToolRecord(name="validator", version=validator.__version__),
        check_id=run.check_id,
        created_utc=run.created_utc,
        duration_s=run.duration_s,
        command=run.command,
        verdict=decision.verdict,
        headline="",
        subject=_subject(staged, program),
        onnx=_onnx(onnx, evidence.export),
        golden=m.GoldenRecord(
            name=golden.manifest.name,
            digest=golden.digest,
            samples=golden.samples,
            source=golden.manifest.source,
            uri=golden_uri,
        ),
        policy=m.PolicyRecord(
            origin=run.policy_origin,
            digest=policy.digest,
            required=policy.required,
            batch_size=policy.batch_size,
            document=policy.model_dump(mode="json"),
        ),
        sandbox=run.sandbox,
        facts=evidence.facts,
        probe=_outcome(evidence.probe),
        reference=_reference(evidence),
        export=evidence.export.export if isinstance(evidence.export, Completed) else None,
        weights=evidence.weights.weights if isinstance(evidence.weights, Completed) else None,
        backends=tuple(_backend(policy, evidence, backend, golden) for backend in evidence.backends),
        findings=_findings(decision.findings, golden),
        warnings=tuple(m.WarningRecord(code=w.code, message=w.message) for w in (*decision.warnings, *run.cautions)),
        control=_control(evidence.control),
        retries=run.retries,
    )
    return document.model_copy(update={"headline": write_headline(document)})


def describe_sandbox(sandbox: Sandbox, policy: Policy, confined: Mapping[str, Confinement]) -> m.SandboxRecord:
    """Record what held the workers of a check: its level is that of the weakest of them.

    Args:
        sandbox: as it was proven.
        policy: says what is asked for.
        confined: job id -> what held its worker.
    """
    return m.SandboxRecord(
        level=min((held.level for held in confined.values()), key=lambda level: level.rank, default=sandbox.weakest),
        requested=sandbox.requested,
        minimum=Level(policy.sandbox.minimum),
        bubblewrap=sandbox.machine.bubblewrap_version,
        landlock_abi=sandbox.machine.landlock_abi,
        weaker_because=tuple(
            f"{profile.title} workers, {reason}"
            for profile, found in sorted(sandbox.reached.items())
            for reason in found.weaker_because
        ),
        workers=tuple(
            m.ConfinementRecord(job=job, level=held.level, profile=held.profile.title, mechanisms=held.mechanisms)
            for job, held in sorted(confined.items())
        ),
    )


def _subject(staged: StagedModel, program: Program | None) -> m.SubjectRecord:
    subject = staged.subject
    return m.SubjectRecord(
        title=subject.title,
        requested_uri=subject.requested_uri,
        pinned_uri=subject.pinned_uri,
        registry_uri=subject.registry_uri,
        name=subject.name,
        version=subject.version,
        creation_timestamp_ms=subject.creation_timestamp_ms,
        source=subject.source,
        download_uri=subject.download_uri,
        model_id=subject.model_id,
        run_id=subject.run_id,
        digest=staged.manifest.digest,
        weights_digest=staged.weights_digest,
        size_bytes=staged.manifest.size_bytes,
        files=len(staged.manifest.entries),
        format=program.format.value if program else None,
    )


def _reused(outcome: Outcome | None) -> m.ReusedRecord | None:
    if not isinstance(outcome, Completed) or outcome.reused is None:
        return None
    return m.ReusedRecord(check_id=outcome.reused.check_id, created_utc=outcome.reused.created_utc)


def _onnx(onnx: OnnxFile | None, export: Outcome | None) -> m.OnnxRecord | None:
    if onnx is None:
        return None
    return m.OnnxRecord(
        origin=onnx.origin.value,
        source=onnx.source,
        digest=onnx.manifest.digest,
        size_bytes=onnx.manifest.size_bytes,
        reused=_reused(export),
    )


def _control(control: Control | None) -> m.ControlRecord | None:
    if control is None:
        return None
    return m.ControlRecord(
        backend=control.backend,
        output=control.output,
        planted=control.planted,
        moved_to=control.moved_to,
        limit=control.limit,
        caught=control.caught,
    )


def _reference(evidence: Evidence) -> m.ReferenceRecord:
    reference, baseline = evidence.find(REFERENCE), evidence.find(BASELINE)
    declined = reference.outcome if reference is not None else None
    perturbed = baseline.perturbed if baseline is not None else None
    return m.ReferenceRecord(
        kind=evidence.reference,
        reason=declined.refusal.message if isinstance(declined, Declined) else None,
        perturbed=None if perturbed is None else _outcome(perturbed),
    )


def _outcome(outcome: Outcome | None) -> m.OutcomeRecord:
    match outcome:
        case Completed():
            return m.CompletedRecord()
        case Declined(refusal=refusal):
            return m.DeclinedRecord(refusal=refusal.kind.value, stage=refusal.stage, message=refusal.message)
        case Crashed(exit_status=status, samples=samples, log_tail=tail):
            return m.CrashedRecord(exit_status=status, samples=samples, log_tail=tail)
        case TimedOut(limit_s=limit_s, samples=samples, log_tail=tail):
            return m.TimedOutRecord(limit_s=limit_s, samples=samples, log_tail=tail)
        case Violated(what=what, log_tail=tail):
            return m.ViolatedRecord(what=what, log_tail=tail)
        case None:
            return m.NeverRanRecord()
        case _:
            assert_never(outcome)


# --- Findings -----------------------------------------------------------------------------------------------------


def _findings(findings: tuple[Finding, ...], golden: GoldenDataset) -> tuple[m.FindingRecord, ...]:
    seen: Counter[str] = Counter()
    records: list[m.FindingRecord] = []
    for finding in findings:
        key = json.dumps([finding.check, finding.backend, finding.output, finding.metric])
        # Several ways in which one output breaks the contract share a key: the order tells them apart.
        name = hashlib.sha256(f"{key}{seen[key] or ''}".encode()).hexdigest()[:16]
        seen[key] += 1
        records.append(
            m.FindingRecord(
                id=name,
                check=finding.check,
                status=finding.status,
                backend=finding.backend,
                output=finding.output,
                metric=finding.metric,
                measured=finding.measured,
                limit=finding.limit,
                sample=finding.sample,
                sample_id=_sample_id(golden, finding.sample),
                message=finding.message,
                hint=finding.hint,
                waiver=_waiver(finding.waiver),
            )
        )
    return tuple(records)


def _waiver(waiver: Waiver | None) -> m.WaiverRecord | None:
    if waiver is None:
        return None
    return m.WaiverRecord(
        owner=waiver.owner, reason=waiver.reason, ticket=waiver.ticket, expires=waiver.expires.isoformat()
    )


def _sample_id(golden: GoldenDataset, sample: int | None) -> str | None:
    return None if sample is None else golden.sample_id(sample)


# --- Backends -----------------------------------------------------------------------------------------------------


def _backend(policy: Policy, evidence: Evidence, backend: BackendEvidence, golden: GoldenDataset) -> m.BackendRecord:
    row, outcome = backend.row, backend.outcome
    completed = outcome if isinstance(outcome, Completed) else None
    environment = completed.environment if completed else Environment(settings={}, fingerprint={})
    fingerprint = outcome.refusal.fingerprint if isinstance(outcome, Declined) else environment.fingerprint
    outputs = backend.main.outputs.values() if backend.main else ()
    return m.BackendRecord(
        name=row.name,
        summary=row.summary,
        runtime=row.runtime.value,
        device=row.device,
        precision=row.precision.value,
        baseline=row.baseline,
        row=row.model_dump(mode="json"),
        outcome=_outcome(outcome),
        settings=m.SettingsRecord(asked=expected_settings(row), ran=environment.settings),
        fingerprint=fingerprint,
        notes=environment.notes,
        seconds=_seconds(backend),
        peak_memory_bytes=completed.peak_memory_bytes if completed else 0,
        outputs=tuple(_output(policy, evidence, row, output, golden) for output in outputs),
        repeat=_repeat(backend.repeat),
        fresh=_repeat(backend.fresh.comparison) if backend.fresh is not None else None,
        batches=tuple(_batch(evidence, row, size, comparison) for size, comparison in backend.batches),
        reused=_reused(outcome),
    )


def _seconds(backend: BackendEvidence) -> dict[str, float]:
    """Return the wall time of every stage and pass of a row, that of the fresh process among them."""
    seconds = backend.outcome.seconds if isinstance(backend.outcome, Completed) else {}
    fresh = backend.fresh.outcome if backend.fresh is not None else None
    again = {"fresh": fresh.seconds["fresh"]} if isinstance(fresh, Completed) and "fresh" in fresh.seconds else {}
    return {**seconds, **again}


def _output(
    policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison, golden: GoldenDataset
) -> m.OutputRecord:
    summary = output.summary
    budgeted = is_budgeted(evidence, row, output)
    is_candidate = row.name not in (REFERENCE, BASELINE)
    ratios = _ratios(evidence, row, output) if budgeted else None
    # The floors of the ratio `worst_sample`, so that the worst samples show that very ratio.
    floors = floors_of(evidence, row, output, "sample_max") if budgeted else None
    return m.OutputRecord(
        name=output.name,
        kind=output.kind,
        samples=len(output.rows),
        elements=output.elements,
        rms=summary.rms,
        rms_reference=summary.rms_reference,
        sample_p99=summary.sample_p99,
        sample_max=summary.sample_max,
        element_max=summary.element_max,
        element_max_reference=summary.element_max_reference,
        ratios=ratios,
        limits=_limits(limits_of(policy, evidence, row, output.name)) if budgeted else None,
        quantiles=m.QuantilesRecord(
            p50=histogram_quantile(output.histogram, 0.5),
            p99=histogram_quantile(output.histogram, 0.99),
            p999=histogram_quantile(output.histogram, 0.999),
        ),
        distribution=_distribution(output.histogram),
        element_limit=_element_limit(policy, evidence, row, output) if budgeted else None,
        cosine=cosine(output.rows),
        flips=output.flips,
        decisions=_decisions(measure_decisions(policy, evidence, row, output)) if is_candidate else None,
        nonfinite_mismatches=output.nonfinite_mismatches,
        unequal=output.unequal,
        worst=_worst(summary, golden),
        worst_samples=_worst_samples(output, floors, golden),
    )


def is_budgeted(evidence: Evidence, row: Backend, output: OutputComparison) -> bool:
    """Whether `judge` holds this output against error ratios."""
    is_candidate = row.name not in (REFERENCE, BASELINE)
    return is_candidate and output.kind not in EXACT_KINDS and noise_floors(evidence, row, output.name) is not None


def _ratios(evidence: Evidence, row: Backend, output: OutputComparison) -> m.RatiosRecord:
    ratios, _ = ratios_of(evidence, row, output)
    return m.RatiosRecord(
        pooled=ratios.pooled, p99=ratios.p99, worst_sample=ratios.worst_sample, element=ratios.element
    )


_BIN_SHIFT = 6
"""From buckets of 2^-7 of an octave to halves of one: both are leading bits of a float32."""
_ZERO_BINS = 2
"""Those of the denormal numbers, which have no octaves."""
_ONE = 127 * _ZERO_BINS
"""The bin that begins at 1."""


def _distribution(histogram: Counts) -> m.DistributionRecord:
    """Pool the exact histogram into half octaves, without the empty ones at both ends."""
    bins = histogram.reshape(-1, 1 << _BIN_SHIFT).sum(axis=1)
    (filled,) = np.nonzero(bins[_ZERO_BINS:])
    start, stop = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    return m.DistributionRecord(
        zeros=int(bins[:_ZERO_BINS].sum()),
        first=start + _ZERO_BINS - _ONE if stop else 0,
        counts=tuple(bins[_ZERO_BINS:][start:stop].tolist()),
    )


def _element_limit(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> float:
    """Return the error of an element at which its ratio would be the limit, in the part with the larger floor."""
    floors = floors_of(evidence, row, output, "element_max")
    return limits_of(policy, evidence, row, output.name).error_ratio_element * float(floors.max(initial=0.0))


def _limits(limits: Limits) -> m.RatiosRecord:
    return m.RatiosRecord(
        pooled=limits.error_ratio,
        p99=limits.error_ratio_p99,
        worst_sample=limits.error_ratio_max,
        element=limits.error_ratio_element,
    )


def _decisions(decisions: Decisions | None) -> m.DecisionsRecord | None:
    if decisions is None:
        return None
    accuracy = decisions.accuracy
    return m.DecisionsRecord(
        top1=_flips(decisions.top1),
        top5=None if decisions.topk is None else _flips(decisions.topk),
        representative=decisions.representative,
        rate_bound=decisions.rate_bound,
        accuracy=None
        if accuracy is None
        else m.AccuracyRecord(samples=accuracy.samples, reference=accuracy.reference, candidate=accuracy.candidate),
    )


def _flips(flips: Flips) -> m.FlipsRecord:
    return m.FlipsRecord(samples=flips.samples, flips=flips.flips, unexplained=flips.unexplained)


def _worst(summary: ErrorSummary, golden: GoldenDataset) -> m.ElementRecord | None:
    worst = summary.worst
    if worst is None:
        return None
    return m.ElementRecord(
        sample=worst.sample,
        sample_id=golden.sample_id(worst.sample),
        index=worst.index,
        reference=worst.reference,
        candidate=worst.candidate,
    )


def _worst_samples(
    output: OutputComparison, floors: Floats | None, golden: GoldenDataset
) -> tuple[m.SampleRecord, ...]:
    """Return the samples with the largest RMS error, worst first; equal ones in the order of the dataset."""
    compared = output.rows["compared"] > 0
    rows = output.rows[compared]
    floors = None if floors is None else floors[compared]
    rms = np.sqrt(rows["sum_sq_error"] / rows["compared"])
    return tuple(
        m.SampleRecord(
            sample=int(rows["sample"][at]),
            sample_id=golden.sample_id(int(rows["sample"][at])),
            rms=float(rms[at]),
            error_ratio=None if floors is None else divide_by_floor(float(rms[at]), [float(floors[at])]),
        )
        for at in np.argsort(-rms, kind="stable")[:WORST_SAMPLES]
    )


def _repeat(repeat: Comparison | None) -> m.RepeatRecord | None:
    if repeat is None:
        return None
    return m.RepeatRecord(
        samples=repeat.samples,
        elements=repeat.elements,
        unequal=sum(output.unequal for output in repeat.outputs.values()),
    )


def _batch(evidence: Evidence, row: Backend, size: int, comparison: Comparison) -> m.BatchRecord:
    return m.BatchRecord(
        size=size,
        samples=comparison.samples,
        outputs=tuple(_batch_output(evidence, row, output) for output in comparison.outputs.values()),
    )


def _batch_output(evidence: Evidence, row: Backend, output: OutputComparison) -> m.BatchOutputRecord:
    summary = output.summary
    # As in judge: what fp64 itself makes of another batch size is measured against the output, not against a floor.
    is_reference = row.name == REFERENCE
    floors = [summary.rms_reference] if is_reference else noise_floors(evidence, row, output.name)
    return m.BatchOutputRecord(
        name=output.name,
        rms=summary.rms,
        ratio=None if floors is None or output.kind in EXACT_KINDS else divide_by_floor(summary.rms, floors),
        unequal=output.unequal,
    )
