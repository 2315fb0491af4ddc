"""From evidence to a verdict. Pure: no I/O, no clock, no library that measures.

Starts inconclusive. `decide` alone can return `pass`, and only when every finding that the plan asked for is there and
within. Conditions are written `not (x <= limit)`, so that NaN blocks; what is missing is never within.
"""

import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from typing import assert_never

from validator.backends.catalog import BASELINE, REFERENCE, UNIT_ROUNDOFF, Backend, expected_settings
from validator.backends.interface import ExportFacts, ModelFacts, RefusalKind
from validator.compare import Comparison, OutputComparison, OutputVariety
from validator.metrics import ErrorRatios, ErrorSummary, divide_by_floor, error_ratios, worst_channel, worst_own_sample
from validator.policy import (
    BATCH_DEPENDENCE_LIMIT,
    WAIVER_DAYS_MAX,
    WAIVER_DAYS_WARNED,
    Limits,
    Policy,
    Waiver,
    WaiverState,
)
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated

EXACT_KINDS = frozenset({"integer", "bool"})
"""Kinds of output that must be equal, element by element."""


class Verdict(StrEnum):
    """What the gate says."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    REFUSED = "refused"


class Status(StrEnum):
    """What one finding says. Three marks, never mixed, and a fourth for what must not be touched at all.

    `waived` is exceeded, and does not block because somebody answers for it until a date.
    """

    WITHIN = "within"
    WAIVED = "waived"
    EXCEEDED = "exceeded"
    NOT_MEASURED = "not measured"
    REFUSED = "refused"


class Check(StrEnum):
    """What was looked at. The words are an interface: stable, documented, the same in every report."""

    TRAINING_MODE = "training-mode"
    STATE = "state"
    EXPORT = "export"
    WORKER = "worker"
    IDENTITY = "identity"
    COVERAGE = "coverage"
    CONTRACT = "contract"
    NON_FINITE = "non-finite"
    EXACT = "exact"
    ERROR_RATIO = "error-ratio"
    REPEATABILITY = "repeatability"
    BATCH = "batch-invariance"
    EVIDENCE = "evidence"
    BUDGET = "budget"
    WAIVER = "waiver"
    POWER = "power"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at, and how it stands."""

    check: Check
    status: Status
    message: str
    """What and how much, for people; lower case, no full stop."""
    backend: str | None = None
    output: str | None = None
    metric: str | None = None
    measured: float | None = None
    limit: float | None = None
    sample: int | None = None
    """The worst sample, or the first one where it shows."""
    hint: str | None = None
    waiver: Waiver | None = None
    """Who answers for a finding, and until when; of one about a waiver, that waiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """Something that a reader should know and that changes no verdict."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEvidence:
    """What is known about one planned row."""

    row: Backend
    outcome: Outcome | None
    """None: never ran."""
    main: Comparison | None = None
    """Against the reference, over the whole golden dataset."""
    repeat: Comparison | None = None
    """Its first run against its second."""
    batches: tuple[tuple[int, Comparison], ...] = ()
    """Other batch sizes against its own main run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The negative control: an output moved to just over its budget, measured and judged like any other."""

    backend: str
    output: str
    planted: str
    """What was done to it, for people."""
    moved_to: float
    """Error ratio that was planted; 1, the smallest step, for outputs that must be equal."""
    limit: float
    caught: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a verdict rests on."""

    samples: int
    """Of the golden dataset."""
    golden_digest: str
    weights_digest: str
    facts: ModelFacts | None
    probe: Outcome | None
    export: Outcome | None = None
    """None: there was an ONNX file, none was needed, or the export was never tried."""
    onnx_required: bool
    has_onnx: bool
    backends: tuple[BackendEvidence, ...]
    variety: Mapping[str, OutputVariety] = field(default_factory=dict)
    control: Control | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict and what it rests on."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    warnings: tuple[Caution, ...] = ()


def judge(policy: Policy, evidence: Evidence, today: date | None = None) -> Decision:
    """Judge all evidence. Collects every finding before deciding anything.

    Args:
        policy: decides.
        evidence: all that is known.
        today: on which the policy's waivers count or not; None: no waiver counts.
    """
    findings = [
        *_judge_model(evidence),
        *_judge_calibration(policy, evidence),
        *_judge_evidence(policy, evidence),
    ]
    for backend in evidence.backends:
        findings += _judge_backend(policy, evidence, backend)
    findings.append(_judge_control(evidence.control))
    findings = _apply_waivers(policy.waiver, findings, today)
    required = frozenset(policy.required) | {b.row.name for b in evidence.backends}
    findings += _missing(findings, required)
    return Decision(
        verdict=decide(findings, required),
        findings=tuple(findings),
        warnings=tuple(_warnings(policy, evidence, findings, today)),
    )


REQUIRED_CHECKS = frozenset(
    {
        Check.WORKER,
        Check.IDENTITY,
        Check.COVERAGE,
        Check.CONTRACT,
        Check.NON_FINITE,
        Check.REPEATABILITY,
        Check.BATCH,
    }
)
"""What must be within for every candidate; besides, each of its outputs needs an error ratio or an exact comparison."""


def decide(findings: Sequence[Finding], required: frozenset[str]) -> Verdict:
    """Return the verdict: the strongest of refused, fail and inconclusive that is present, else perhaps pass.

    Args:
        findings: everything that was looked at.
        required: backends that must have been judged.
    """
    statuses = {f.status for f in findings}
    if Status.REFUSED in statuses:
        return Verdict.REFUSED
    if Status.EXCEEDED in statuses:
        return Verdict.FAIL
    if not statuses <= {Status.WITHIN, Status.WAIVED} or not _is_complete(findings, required):
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


def _missing(findings: Sequence[Finding], required: frozenset[str]) -> list[Finding]:
    """Say of every required check that left no finding that it was not measured: a verdict always has its reason."""
    seen = {(f.backend, f.check) for f in findings}
    lost = {f.backend for f in findings if f.check is Check.WORKER and f.status is not Status.WITHIN}
    return [
        _not_measured(check, name, f"{name} left nothing to judge {check} by")
        for name in sorted(required - {REFERENCE, BASELINE} - lost)
        for check in sorted(REQUIRED_CHECKS)
        if (name, check) not in seen
    ]


def _is_complete(findings: Sequence[Finding], required: frozenset[str]) -> bool:
    """Whether every required backend has every required finding, and the run proved that it could fail."""
    seen = {(f.backend, f.check) for f in findings}
    candidates = required - {REFERENCE, BASELINE}
    valued = all({(name, Check.ERROR_RATIO), (name, Check.EXACT)} & seen for name in candidates)
    checked = all((name, check) in seen for name in candidates for check in REQUIRED_CHECKS)
    return bool(candidates) and valued and checked and (None, Check.POWER) in seen


# --- The model, before anything runs --------------------------------------------------------------------------


def _judge_model(evidence: Evidence) -> Iterator[Finding]:
    """Judge what the probe read off the model files."""
    if evidence.facts is None:
        yield _judge_outcome(evidence.probe, backend=None, what="the probe of the model file")
        return
    training = evidence.facts.training
    yield Finding(
        check=Check.TRAINING_MODE,
        status=Status.EXCEEDED if training else Status.WITHIN,
        message=(
            f"the model was exported in training mode: {len(training)} operators are live, first {training[0]}"
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
            f"forward writes to {len(mutated)} buffers, first {mutated[0]}: what it answers depends on earlier calls"
            if mutated
            else "forward writes to no buffer"
        ),
        hint="an export has no state: pass it in and out as tensors, or take it out of the model" if mutated else None,
    )
    if evidence.onnx_required:
        yield _judge_export(evidence)


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
            return replace(_judge_outcome(outcome, backend=None, what="the ONNX export"), check=Check.EXPORT)
    return _not_measured(Check.EXPORT, None, f"no ONNX file: {reason}", hint=hint)


def _judge_calibration(policy: Policy, evidence: Evidence) -> Iterator[Finding]:
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
            yield _not_measured(Check.BUDGET, None, message, hint=f"the outputs are {', '.join(sorted(known))}")


def _judge_evidence(policy: Policy, evidence: Evidence) -> Iterator[Finding]:
    """Too few samples, or a reference that is the same for all of them, prove nothing."""
    enough = evidence.samples >= policy.samples_min
    yield Finding(
        check=Check.EVIDENCE,
        metric="samples",
        measured=evidence.samples,
        limit=policy.samples_min,
        status=Status.WITHIN if enough else Status.NOT_MEASURED,
        message=f"{evidence.samples} golden samples, at least {policy.samples_min} are asked for",
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


# --- One backend ----------------------------------------------------------------------------------------------


def _judge_backend(policy: Policy, evidence: Evidence, backend: BackendEvidence) -> list[Finding]:
    """Judge one row: did it run, was it the row that was asked for, and what did it compute."""
    name = backend.row.name
    findings = [_judge_outcome(backend.outcome, backend=name, what=name)]
    if not isinstance(backend.outcome, Completed):
        return findings
    findings.append(_judge_identity(backend.row, backend.outcome))
    findings.append(_judge_repeatability(backend))
    findings += _judge_batches(policy, evidence, backend)
    if name == REFERENCE:
        return findings
    if backend.main is None:
        return [*findings, _not_measured(Check.COVERAGE, name, "there is no reference to compare it with")]
    findings += _judge_structure(evidence, backend, backend.main)
    if name != BASELINE:
        wrong = {difference.output for difference in backend.main.misdeclared}
        for output in backend.main.outputs.values():
            if output.name not in wrong:
                findings += judge_values(policy, evidence, backend.row, output)
    return findings


def _not_measured(check: Check, backend: str | None, message: str, *, hint: str | None = None) -> Finding:
    return Finding(check=check, status=Status.NOT_MEASURED, message=message, backend=backend, hint=hint)


def _judge_outcome(outcome: Outcome | None, *, backend: str | None, what: str) -> Finding:
    """Say what became of a worker."""
    check = Check.WORKER
    match outcome:
        case Completed():
            return Finding(check=check, status=Status.WITHIN, message=f"{what} ran to its end", backend=backend)
        case Declined(refusal=refusal, first_failure=str(first)):
            # Twice on CUDA, in two processes: the device is as likely to blame as the model, so nothing is known.
            hint = "look at the GPU first, then check again"
            return _not_measured(check, backend, f"{what}: {refusal.message}; before that: {first}", hint=hint)
        case Declined(refusal=refusal):
            return _judge_refusal(refusal.kind, f"{what}: {refusal.message}", backend, refusal.stage)
        case Crashed(exit_status=status, samples=samples, log_tail=tail):
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status} and without proof"
            last = f"; its last words: {tail.splitlines()[-1]}" if tail.strip() else ""
            return _not_measured(
                check,
                backend,
                f"{what} {how}, {samples} samples had arrived, none of them is judged{last}",
                hint=_hint_for_exit(status),
            )
        case TimedOut(limit_s=limit_s, samples=samples):
            return _not_measured(
                check,
                backend,
                f"{what} was stopped after {limit_s:g} s, {samples} samples had arrived, none of them is judged",
                hint="raise worker.deadline_s in the policy, or use fewer golden samples",
            )
        case Violated(what=violation):
            return Finding(
                check=check,
                status=Status.REFUSED,
                message=f"{what} broke the protocol: {violation}",
                backend=backend,
                hint="do not trust this model: its worker sent what an honest worker never sends",
            )
        case None:
            return _not_measured(check, backend, f"{what} did not run")
        case _:
            assert_never(outcome)


def _hint_for_exit(status: int) -> str:
    """Say what to do about a worker that ended like this."""
    if status == -signal.SIGKILL:
        return "something killed it, usually for want of memory: use a smaller batch_size in the policy"
    if status < 0:
        return "native code crashed: look at the worker log, and try the backend alone on another machine"
    if status == 0:
        return "it left as if all were well: something in the model ends the process, do not trust it"
    return "look at the worker log; if it shows a fault of validator, report it"


def _judge_refusal(kind: RefusalKind, message: str, backend: str | None, stage: str) -> Finding:
    """Say whose fault it is that a worker declined."""
    match kind:
        case RefusalKind.UNAVAILABLE:
            hint = "run where it is available, or let the policy require only what this machine has"
            return _not_measured(Check.WORKER, backend, message, hint=hint)
        case RefusalKind.FORMAT:
            return Finding(check=Check.WORKER, status=Status.REFUSED, message=message, backend=backend)
        case RefusalKind.MODEL:
            measuring = backend in (None, REFERENCE, BASELINE)
            status = Status.NOT_MEASURED if measuring else Status.EXCEEDED
            where = f"{message} (while it should {stage})"
            return Finding(check=Check.WORKER, status=status, message=where, backend=backend)
        case _:
            assert_never(kind)


def _judge_identity(row: Backend, outcome: Completed) -> Finding:
    """Compare what the worker read back from the libraries with what the row asks for."""
    wanted, ran = expected_settings(row), outcome.environment.settings
    wrong = [f"{k} asked {v}, ran {ran.get(k, 'unread')}" for k, v in wanted.items() if ran.get(k) != v]
    if wrong:
        return _not_measured(
            Check.IDENTITY, row.name, f"{row.name} did not run as asked: " + "; ".join(wrong),
            hint="another backend ran than the one whose name is on the row; see the worker's environment",
        )  # fmt: skip
    message = f"{len(wanted)} of {len(wanted)} settings read back as asked"
    return Finding(check=Check.IDENTITY, status=Status.WITHIN, message=message, backend=row.name)


def _judge_repeatability(backend: BackendEvidence) -> Finding:
    """Hold a first run against a second, same shapes, same process: bitwise where the row promises it."""
    name, repeat = backend.row.name, backend.repeat
    if repeat is None or not (repeat.samples > 0):
        return _not_measured(Check.REPEATABILITY, name, f"{name} was not run twice")
    unequal = sum(o.unequal for o in repeat.outputs.values())
    bitwise = unequal == 0 and not repeat.structure
    if bitwise:
        message = f"bitwise the same twice over {repeat.samples} samples"
        return Finding(
            check=Check.REPEATABILITY, status=Status.WITHIN, message=message, backend=name, measured=0.0, limit=0.0
        )
    message = f"{name} gave other values the second time: {unequal:,} of {repeat.elements:,} elements differ"
    promised = backend.row.is_repeatable_by_contract
    return Finding(
        check=Check.REPEATABILITY,
        status=Status.EXCEEDED if promised else Status.WITHIN,
        message=message if promised else f"{message}; the row does not promise otherwise",
        backend=name,
        metric="unequal elements",
        measured=unequal,
        limit=0.0 if promised else None,
        hint="look for random operators, state that forward changes, or atomics" if promised else None,
    )


def _judge_batches(policy: Policy, evidence: Evidence, backend: BackendEvidence) -> Iterator[Finding]:
    """Other batch sizes of the same backend, against its own main run."""
    name = backend.row.name
    static = evidence.facts.static_batch if evidence.facts else None
    if static is not None:
        admitted = policy.checks.batch_invariance == "if-dynamic"
        yield Finding(
            check=Check.BATCH,
            status=Status.WITHIN if admitted else Status.NOT_MEASURED,
            message=f"the program accepts batch {static} only, so batch invariance is not measurable"
            + ("; the policy admits that" if admitted else ""),
            backend=name,
            hint=None
            if admitted
            else 'export with a dynamic batch, or set checks.batch_invariance = "if-dynamic" in the policy',
        )
        return
    planned = frozenset(policy.checks.batch_sizes) - {deployed_batch(policy, backend.row)}
    usual = largest_batch(backend)
    measured = {
        size
        for size, comparison in backend.batches
        if comparison.samples > 0 and comparison.largest_frame == size != usual
    }
    if missing := planned - measured:
        yield _not_measured(
            Check.BATCH,
            name,
            f"{name} was not run at batch {', '.join(map(str, sorted(missing)))} besides its main batch of {usual}",
            hint="use more golden samples of one shape, or other checks.batch_sizes in the policy",
        )
    for size, comparison in backend.batches:
        yield from _judge_batch(policy, evidence, backend, size, comparison)
    if not planned:
        message = f"the policy names no batch size besides {deployed_batch(policy, backend.row)}"
        yield Finding(check=Check.BATCH, status=Status.WITHIN, message=message, backend=name)


def largest_batch(backend: BackendEvidence) -> int | None:
    """Return the largest batch that the main run of a row really had; None where that is not known."""
    for comparison in (backend.main, backend.repeat):
        if comparison is not None:
            return comparison.largest_frame
    return None


def deployed_batch(policy: Policy, row: Backend) -> int:
    """Batch size of the main run of a row."""
    return row.batch_size or policy.batch_size


def _judge_batch(
    policy: Policy, evidence: Evidence, backend: BackendEvidence, size: int, comparison: Comparison
) -> Iterator[Finding]:
    """One other batch size. In fp64 any dependence is the model's own; elsewhere it must stay within the budget."""
    name = backend.row.name
    for difference in comparison.structure:
        what = f"batch {size}: output {difference.output} {difference.what}"
        yield Finding(check=Check.BATCH, status=Status.EXCEEDED, message=what, backend=name, sample=difference.sample)
    for lost in comparison.unattributed:
        what = f"output {lost} of {name} belongs to no single sample, so batch {size} is not comparable"
        yield _not_measured(Check.BATCH, name, what, hint="give the output a batch dimension, or leave it out")
    for output in comparison.outputs.values():
        findings = list(_judge_batch_output(policy, evidence, backend.row, size, output))
        # One line per output: what went wrong, else the pooled number.
        yield from [f for f in findings if f.status is not Status.WITHIN] or findings[:1]


def _judge_batch_output(
    policy: Policy, evidence: Evidence, row: Backend, size: int, output: OutputComparison
) -> Iterator[Finding]:
    """One output at another batch size: exactly, or by every number that the main run is judged by."""
    wrong = output.nonfinite_mismatches or (output.unequal if output.kind in EXACT_KINDS else 0)
    if wrong:
        what = "are NaN or infinite on one side only" if output.nonfinite_mismatches else "differ"
        yield Finding(
            check=Check.BATCH,
            status=Status.EXCEEDED,
            message=f"{wrong:,} of {output.elements:,} elements {what} at batch {size}",
            backend=row.name,
            output=output.name,
        )
    if output.kind in EXACT_KINDS or output.elements == 0:
        if not wrong:
            message = f"{output.elements:,} elements are equal at batch {size}"
            yield Finding(
                check=Check.BATCH, status=Status.WITHIN, message=message, backend=row.name, output=output.name
            )
        return
    summary = output.summary
    if row.name == REFERENCE:
        limit, hint = (
            BATCH_DEPENDENCE_LIMIT,
            "the model looks at its batch mates: normalisation, a mask or a baked shape",
        )
        numbers = [
            ("RMS difference over RMS", divide_by_floor(summary.rms, [summary.rms_reference]), limit),
            (
                "largest difference over largest value",
                divide_by_floor(summary.element_max, [summary.element_max_reference]),
                limit,
            ),
        ]
    else:
        floor = _own_summary(evidence, row.name, output.name) if row.name == BASELINE else None
        baseline = floor or baseline_summary(evidence, row, output.name)
        if noise_floors(evidence, row, output.name) is None:
            yield _not_measured(Check.BATCH, row.name, f"{row.name}: no noise floor for output {output.name}")
            return
        ratios = error_ratios(summary, baseline, unit_roundoff=UNIT_ROUNDOFF[row.precision])
        limits, hint = (
            policy.limits_for(row, output.name),
            "a kernel of this backend answers otherwise at this batch size",
        )
        numbers = [
            ("error ratio", ratios.pooled, limits.error_ratio),
            ("error ratio, worst sample", ratios.worst_sample, limits.error_ratio_max),
            ("error ratio, worst element", ratios.element, limits.error_ratio_element),
        ]
    for metric, measured, limit in numbers:
        within = measured <= limit
        yield Finding(
            check=Check.BATCH,
            status=Status.WITHIN if within else Status.EXCEEDED,
            message=f"batch {size} against {min(deployed_batch(policy, row), evidence.samples)}",
            backend=row.name,
            output=output.name,
            metric=f"{metric} at batch {size}",
            measured=measured,
            limit=limit,
            sample=summary.worst_sample,
            hint=None if within else hint,
        )


def noise_floors(evidence: Evidence, row: Backend, output: str) -> list[float] | None:
    """Return the floors that an RMS error of this row is divided by, or None where the baseline is missing."""
    own = _own_summary(evidence, row.name, output)
    # The baseline is the noise floor: its own batch sizes are held against its own error.
    baseline = own if row.name == BASELINE else baseline_summary(evidence, row, output)
    if own is None or (row.baseline is not None and baseline is None):
        return None
    return [UNIT_ROUNDOFF[row.precision] * own.rms_reference, *([baseline.rms] if baseline else [])]


def baseline_summary(evidence: Evidence, row: Backend, output: str) -> ErrorSummary | None:
    """Return the errors of a row's baseline for one output."""
    return _own_summary(evidence, row.baseline, output) if row.baseline else None


def _own_output(evidence: Evidence, name: str, output: str) -> OutputComparison | None:
    """Return a backend's comparison with the reference for one output."""
    for backend in evidence.backends:
        if backend.row.name == name and backend.main is not None:
            return backend.main.outputs.get(output)
    return None


def _own_summary(evidence: Evidence, name: str, output: str) -> ErrorSummary | None:
    """Return a backend's errors against the reference for one output."""
    found = _own_output(evidence, name, output)
    return None if found is None else found.summary


def _judge_structure(evidence: Evidence, backend: BackendEvidence, main: Comparison) -> Iterator[Finding]:
    """Contract, coverage and the positions of non-finite values."""
    name = backend.row.name
    for difference in main.structure:
        yield Finding(
            check=Check.CONTRACT,
            status=Status.EXCEEDED,
            message=f"output {difference.output or '(all)'}: {difference.what}",
            backend=name,
            output=difference.output or None,
            sample=difference.sample,
        )
    if not main.structure:
        message = f"{len(main.outputs)} outputs agree in name, dtype kind and shape"
        yield Finding(check=Check.CONTRACT, status=Status.WITHIN, message=message, backend=name)
    for wrong in main.misdeclared:
        message = f"the declared meaning of output {wrong.output} does not hold: {wrong.what}"
        yield _not_measured(Check.EVIDENCE, name, message, hint="correct the output's table in the golden dataset")
    for output in main.unattributed:
        message = f"output {output} belongs to no single sample, and {name} cut the samples as the reference did not"
        yield _not_measured(Check.COVERAGE, name, message, hint="give the row no batch_size of its own")
    complete = main.samples == evidence.samples and main.elements > 0
    yield Finding(
        check=Check.COVERAGE,
        status=Status.WITHIN if complete else Status.NOT_MEASURED,
        message=f"{main.samples:,} of {evidence.samples:,} samples and {main.elements:,} elements compared",
        backend=name,
        measured=main.samples,
        limit=evidence.samples,
    )
    mismatches = sum(o.nonfinite_mismatches for o in main.outputs.values())
    worst = max(main.outputs.values(), key=lambda o: o.nonfinite_mismatches, default=None)
    first = None
    if mismatches and worst is not None:
        first = int(worst.rows["sample"][worst.rows["nonfinite_mismatches"] > 0][0])
    yield Finding(
        check=Check.NON_FINITE,
        status=Status.WITHIN if mismatches == 0 else Status.EXCEEDED,
        message=(
            f"{mismatches:,} of {main.elements:,} elements are NaN or infinite on one side only"
            if mismatches
            else "NaN and infinities stand in the same places"
        ),
        backend=name,
        output=worst.name if mismatches and worst else None,
        sample=first,
        measured=mismatches,
        limit=0.0,
    )


def judge_values(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Iterator[Finding]:
    """Integers and booleans exactly; everything else by the four error ratios."""
    if output.kind in EXACT_KINDS:
        yield Finding(
            check=Check.EXACT,
            status=Status.WITHIN if output.unequal == 0 else Status.EXCEEDED,
            message=f"{output.unequal:,} of {output.elements:,} elements differ, {output.kind} outputs must be equal",
            backend=row.name,
            output=output.name,
            measured=output.unequal,
            limit=0.0,
        )
        return
    if output.elements == 0:
        message = "it holds no element on either side, and the shapes agree"
        yield Finding(check=Check.EXACT, status=Status.WITHIN, message=message, backend=row.name, output=output.name)
        return
    floors = noise_floors(evidence, row, output.name)
    if floors is None:
        yield _not_measured(Check.ERROR_RATIO, row.name, f"the baseline {row.baseline} gave no noise floor")
        return
    if output.summary.rms_reference > 0 and (
        policy.limits_for(row, output.name).error_ratio * max(floors) >= output.summary.rms_reference
    ):
        yield _not_measured(
            Check.EVIDENCE,
            row.name,
            f"the budget of output {output.name} is as large as the output itself: zeros would be within",
            hint="rounding decides what this model answers in fp32; no comparison can clear it",
        )
    summary = output.summary
    ratios = error_ratios(
        summary,
        baseline_summary(evidence, row, output.name),
        unit_roundoff=UNIT_ROUNDOFF[row.precision],
    )
    yield from judge_ratios(row, output.name, ratios, policy.limits_for(row, output.name), summary)
    yield _judge_own_samples(policy, evidence, row, output)
    if row.baseline is not None:
        yield _judge_channels(policy, evidence, row, output)


def _judge_own_samples(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Finding:
    """Hold every sample against its own noise floor: one on a large scale must not excuse the others."""
    baseline = _own_output(evidence, row.baseline, output.name) if row.baseline else None
    measured, sample = worst_own_sample(
        output.rows, baseline.rows if baseline else None, unit_roundoff=UNIT_ROUNDOFF[row.precision]
    )
    limit = policy.limits_for(row, output.name).error_ratio_own_sample
    return Finding(
        check=Check.ERROR_RATIO,
        status=Status.WITHIN if measured <= limit else Status.EXCEEDED,
        message=f"error ratio of {row.name} ({row.precision}) in the sample worst by its own floor",
        backend=row.name,
        output=output.name,
        metric="error ratio, sample by itself",
        measured=measured,
        limit=limit,
        sample=sample,
    )


def _judge_channels(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Finding:
    """Hold the worst channel against its own noise floor. Only a baseline knows what that is."""
    baseline = _own_output(evidence, row.baseline or "", output.name)
    floors = baseline.channels if baseline is not None else (None, None)
    ratios = [
        worst_channel(own, floor, unit_roundoff=UNIT_ROUNDOFF[row.precision])
        for own, floor in zip(output.channels, floors, strict=True)
    ]
    # NaN is never the largest of anything: put it first.
    measured, channel = max(ratios, key=lambda pair: (math.isnan(pair[0]), pair[0]))
    limit = policy.limits_for(row, output.name).error_ratio_channel
    within = measured <= limit
    where = "it has no channels" if channel is None else f"channel {channel}"
    return Finding(
        check=Check.ERROR_RATIO,
        status=Status.WITHIN if within else Status.EXCEEDED,
        message=f"error ratio of {row.name} ({row.precision}) in its worst channel: {where}",
        backend=row.name,
        output=output.name,
        metric="error ratio, worst channel",
        measured=measured,
        limit=limit,
    )


def judge_ratios(
    row: Backend, output: str, ratios: ErrorRatios, limits: Limits, summary: ErrorSummary
) -> Iterator[Finding]:
    """Hold the four error ratios of one output against its limits."""
    worst_element = summary.worst.sample if summary.worst else None
    for metric, measured, limit, sample in (
        ("error ratio", ratios.pooled, limits.error_ratio, summary.worst_sample),
        ("error ratio p99", ratios.p99, limits.error_ratio_p99, summary.worst_sample),
        ("error ratio, worst sample", ratios.worst_sample, limits.error_ratio_max, summary.worst_sample),
        ("error ratio, worst element", ratios.element, limits.error_ratio_element, worst_element),
    ):
        within = measured <= limit
        yield Finding(
            check=Check.ERROR_RATIO,
            status=Status.WITHIN if within else Status.EXCEEDED,
            message=f"{metric} of {row.name} ({row.precision})",
            backend=row.name,
            output=output,
            metric=metric,
            measured=measured,
            limit=limit,
            sample=sample,
        )


# --- The run as a whole ---------------------------------------------------------------------------------------


def _judge_control(control: Control | None) -> Finding:
    """Require that the run proved that it could fail."""
    if control is None:
        return _not_measured(Check.POWER, None, "no negative control could be run: there was nothing to perturb")
    noticed = "was caught, so this run was able to fail" if control.caught else "was not caught: this run cannot fail"
    return Finding(
        check=Check.POWER,
        status=Status.WITHIN if control.caught else Status.NOT_MEASURED,
        message=f"output {control.output} of {control.backend} {control.planted} {noticed}",
        measured=control.moved_to,
        limit=control.limit,
    )


def _warnings(policy: Policy, evidence: Evidence, findings: Sequence[Finding], today: date | None) -> Iterator[Caution]:
    """Say what a reader should know, whatever the verdict."""
    for name, variety in evidence.variety.items():
        if variety.weakness and not all(v.weakness for v in evidence.variety.values()):
            yield Caution(code="evidence", message=f"output {name} {variety.weakness}: it proves little")
    for finding in findings:
        if (
            finding.check is Check.ERROR_RATIO
            and finding.status is Status.WITHIN
            and finding.metric == "error ratio"
            and finding.measured is not None
            and finding.limit is not None
            and finding.measured > finding.limit / 2
        ):
            used = finding.measured / finding.limit
            yield Caution(
                code="headroom",
                message=f"{finding.backend}, {finding.output}: {used:.0%} of the budget is used",
            )
    for backend in evidence.backends:
        if backend.main is not None and backend.main.unattributed:
            names = ", ".join(backend.main.unattributed)
            yield Caution(code="batch", message=f"{backend.row.name}: outputs {names} belong to no single sample")
    yield from _warn_of_batch(policy, evidence)
    yield from _ill_conditioned(evidence)
    yield from _warn_of_waivers(policy.waiver, findings, today)
    if policy.formats.pickle:
        yield Caution(
            code="sandbox",
            message="the policy admits pickles and no sandbox holds the worker: a model's code can decide this verdict",
        )


def _warn_of_batch(policy: Policy, evidence: Evidence) -> Iterator[Caution]:
    """Say where the deployed batch size never ran, for want of golden samples of one shape."""
    if evidence.facts is not None and evidence.facts.static_batch is not None:
        return
    small = {
        deployed_batch(policy, b.row): b.main.largest_frame
        for b in evidence.backends
        if b.main is not None and 0 < b.main.largest_frame < deployed_batch(policy, b.row)
    }
    for size, largest in small.items():
        message = f"batch {size} is deployed and never ran: the golden dataset gives batches of at most {largest}"
        yield Caution(code="batch", message=message)


ILL_CONDITIONED = 1e-3
"""Baseline error over RMS from which rounding, and not an export, may decide what the model answers."""


def _ill_conditioned(evidence: Evidence) -> Iterator[Caution]:
    """Find outputs whose baseline is itself far from fp64: rounding is amplified, and no export is to blame."""
    for backend in evidence.backends:
        if backend.row.name != BASELINE or backend.main is None:
            continue
        for output in backend.main.outputs.values():
            summary = output.summary
            share = divide_by_floor(summary.rms, [summary.rms_reference])
            if output.kind not in EXACT_KINDS and not (share <= ILL_CONDITIONED):
                yield Caution(
                    code="ill-conditioned",
                    message=f"output {output.name}: eager fp32 itself is {share:.1%} of the RMS away from fp64",
                )


# --- Waivers --------------------------------------------------------------------------------------------------


def _apply_waivers(waivers: Sequence[Waiver], findings: Sequence[Finding], today: date | None) -> list[Finding]:
    """Mark exceeded findings that a valid waiver names; say of the others why they do not count.

    What is refused or not measured stays as it is, whatever a waiver says.
    """
    marked = list(findings)
    states = {waiver: None if today is None else waiver.state(today) for waiver in waivers}
    # Those that count first: one that has expired says nothing where another took its place.
    for waiver in sorted(waivers, key=lambda w: states[w] is not WaiverState.VALID):
        named = [i for i, finding in enumerate(marked) if _is_named(waiver, finding)]
        if states[waiver] is WaiverState.VALID:
            for i in named:
                marked[i] = replace(marked[i], status=Status.WAIVED, waiver=waiver)
        elif named:
            marked.append(_without_effect(waiver, states[waiver]))
    return marked


def _is_named(waiver: Waiver, finding: Finding) -> bool:
    """Whether a waiver is about an exceeded finding."""
    return (
        finding.status is Status.EXCEEDED
        and finding.check.value == waiver.check
        and finding.backend == waiver.backend
        and waiver.output in (None, finding.output)
    )


def _without_effect(waiver: Waiver, state: WaiverState | None) -> Finding:
    """Say why a waiver does not count: a finding of its own, beside the one that stays exceeded."""
    match state:
        case WaiverState.EXPIRED:
            why = f"expired on {waiver.expires}"
        case WaiverState.TOO_LONG:
            why = f"lasts until {waiver.expires}, more than {WAIVER_DAYS_MAX} days from now, and does not count"
        case WaiverState.VALID | None:
            why = "does not count: today's date is not known"
        case _:
            assert_never(state)
    return Finding(
        check=Check.WAIVER,
        status=Status.EXCEEDED,
        message=f"the waiver of {waiver.title} by {waiver.owner} {why}",
        backend=waiver.backend,
        output=waiver.output,
        hint="mend the backend, or have the waiver given anew where the policy is protected",
        waiver=waiver,
    )


def _warn_of_waivers(waivers: Sequence[Waiver], findings: Sequence[Finding], today: date | None) -> Iterator[Caution]:
    """Name every waiver that was used, with owner and end, and every one that nothing needed."""
    used = [f.waiver for f in findings if f.status is Status.WAIVED]
    without_effect = [f.waiver for f in findings if f.check is Check.WAIVER]
    for waiver in waivers:
        if waiver in used:
            left = (waiver.expires - today).days if today is not None else 0
            soon = f" ({left} days left)" if left <= WAIVER_DAYS_WARNED else ""
            count = used.count(waiver)
            yield Caution(
                code="waived",
                message=f"{waiver.title}: {count} {'finding' if count == 1 else 'findings'} waived by {waiver.owner}, "
                f"until {waiver.expires}{soon}: {waiver.reason}",
            )
        elif waiver not in without_effect:
            yield Caution(code="waiver", message=f"the waiver of {waiver.title} by {waiver.owner} waives nothing")
