"""From evidence to a verdict. Pure: no I/O, no clock, no library that measures.

Starts inconclusive. `decide` alone can return `pass`, and only when every finding that the plan asked for is there and
within. Conditions are written `not (x <= limit)`, so that NaN blocks; what is missing is never within.
"""

from collections.abc import Sequence
from datetime import date

from validator.backends.catalog import BASELINE, REFERENCE
from validator.judge.backends import judge_backend
from validator.judge.cautions import list_cautions
from validator.judge.decisions import judge_labels
from validator.judge.findings import Check, Control, Decision, Evidence, Finding, Status, Verdict, not_measured
from validator.judge.model import judge_calibration, judge_evidence, judge_model
from validator.judge.waivers import apply_waivers
from validator.policy import (
    Policy,
)


def judge(policy: Policy, evidence: Evidence, today: date | None = None) -> Decision:
    """Judge all evidence. Collects every finding before deciding anything.

    Args:
        policy: decides.
        evidence: all that is known.
        today: on which the policy's waivers count or not; None: no waiver counts.
    """
    findings = [
        *judge_model(evidence),
        *judge_calibration(policy, evidence),
        *judge_evidence(policy, evidence),
        *judge_labels(evidence),
    ]
    for backend in evidence.backends:
        findings += judge_backend(policy, evidence, backend)
    findings.append(_judge_control(evidence.control))
    findings = apply_waivers(policy.waiver, findings, today)
    required = frozenset(policy.required) | {b.row.name for b in evidence.backends}
    findings += _missing(findings, required)
    return Decision(
        verdict=decide(findings, required),
        findings=tuple(findings),
        warnings=tuple(list_cautions(policy, evidence, findings, today)),
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

MODEL_CHECKS = frozenset({Check.TRAINING_MODE, Check.STATE, Check.EVIDENCE, Check.POWER})
"""What must be within once, of the model, the golden dataset and the run itself."""


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
        not_measured(check, name, f"{name} left nothing to judge {check} by")
        for name in sorted(required - {REFERENCE, BASELINE} - lost)
        for check in sorted(REQUIRED_CHECKS)
        if (name, check) not in seen
    ]


def _is_complete(findings: Sequence[Finding], required: frozenset[str]) -> bool:
    """Whether the model, the run and every required backend have every finding that they need."""
    seen = {(f.backend, f.check) for f in findings}
    candidates = required - {REFERENCE, BASELINE}
    valued = all({(name, Check.ERROR_RATIO), (name, Check.EXACT)} & seen for name in candidates)
    checked = all((name, check) in seen for name in candidates for check in REQUIRED_CHECKS)
    return bool(candidates) and valued and checked and all((None, check) in seen for check in MODEL_CHECKS)


def _judge_control(control: Control | None) -> Finding:
    """Require that the run proved that it could fail."""
    if control is None:
        return not_measured(
            Check.POWER, None, "no negative control could be run: there was nothing to perturb",
            hint="follows from the other findings: a fault is planted into what could be compared",
        )  # fmt: skip
    noticed = "was caught, so this run was able to fail" if control.caught else "was not caught: this run cannot fail"
    return Finding(
        check=Check.POWER,
        status=Status.WITHIN if control.caught else Status.NOT_MEASURED,
        message=f"output {control.output} of {control.backend} {control.planted} {noticed}",
        measured=control.moved_to,
        limit=control.limit,
    )
