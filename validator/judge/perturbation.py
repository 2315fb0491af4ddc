"""Judging where fp64 could not run: whether the baseline may stand in, and whether what moved it is a noise floor."""

from collections.abc import Iterator
from dataclasses import replace

from validator.backends.catalog import BASELINE, REFERENCE, Backend
from validator.backends.interface import RefusalKind
from validator.compare import Comparison
from validator.judge.findings import (
    EXACT_KINDS,
    BackendEvidence,
    Check,
    Evidence,
    Finding,
    Reference,
    Status,
    not_measured,
)
from validator.judge.noise import roundoff_of
from validator.judge.outcomes import judge_identity, judge_outcome
from validator.judge.structure import judge_coverage, judge_meanings
from validator.metrics import divide_by_floor
from validator.policy import Policy
from validator.worker.outcome import Completed, Declined, Outcome

FLOOR_LIMIT = 1e-4
"""Most of the RMS that one ulp may move an output by. Healthy fp32 networks stay below 1e-5; where it is more, a fault
of one percent in a channel could hide below the limits."""

FLOOR_LIMIT_ROUNDOFFS = 16
"""The same in unit roundoffs, for models whose own numbers are too coarse for that."""


def why_no_fp64(evidence: Evidence) -> str:
    """Return the reference's own words about why it did not run."""
    reference = evidence.find(REFERENCE)
    outcome = reference.outcome if reference is not None else None
    return outcome.refusal.message if isinstance(outcome, Declined) else "it left no reason"


def judge_declined_reference(policy: Policy, evidence: Evidence, outcome: Declined) -> Finding:
    """Say that fp64 could not run: within where the policy admits the perturbation floor and there is one."""
    finding = judge_outcome(outcome, backend=REFERENCE, what=REFERENCE)
    if outcome.refusal.kind is not RefusalKind.MODEL or outcome.first_failure is not None:
        return finding
    if policy.checks.reference == "fp64":
        hint = 'the policy asks for fp64: checks.reference = "fp64-or-perturbation" would admit another noise floor'
        return replace(finding, hint=hint)
    if evidence.reference is not Reference.PERTURBATION:
        hint = f"{BASELINE} could not stand in: it must run, in this check, as it is and perturbed"
        return replace(finding, hint=hint)
    return replace(
        finding,
        status=Status.WITHIN,
        message=f"{finding.message}; {BASELINE} stands in for it, over the perturbation floor, as the policy admits",
    )


def judge_perturbed(row: Backend, outcome: Outcome) -> Iterator[Finding]:
    """Say what became of the job that moved inputs and parameters, and whether it ran as the baseline should."""
    yield judge_outcome(outcome, backend=row.name, what=f"{row.name}, perturbed")
    if isinstance(outcome, Completed):
        yield judge_identity(row, outcome)


def judge_floor(evidence: Evidence, backend: BackendEvidence, floor: Comparison) -> Iterator[Finding]:
    """Require that one ulp moves values and nothing else, and moves them little: else it measures no noise."""
    name = backend.row.name
    yield judge_coverage(evidence, name, floor, "perturbed")
    for difference in floor.structure:
        message = f"one ulp changes output {difference.output or '(all)'}: {difference.what}"
        yield not_measured(Check.EVIDENCE, name, message, hint="no noise floor can be had; measure where fp64 runs")
    yield from judge_meanings(name, floor)
    for output in floor.outputs.values():
        if output.nonfinite_mismatches:
            message = f"one ulp makes {output.nonfinite_mismatches:,} elements of output {output.name} NaN or infinite"
            yield not_measured(Check.EVIDENCE, name, message, hint="use golden samples inside the model's domain")
        if output.kind in EXACT_KINDS or output.elements == 0:
            continue
        share = divide_by_floor(output.summary.rms, [output.summary.rms_reference])
        limit = max(FLOOR_LIMIT, FLOOR_LIMIT_ROUNDOFFS * roundoff_of(evidence, backend.row, output.name))
        small = share <= limit
        yield Finding(
            check=Check.EVIDENCE,
            status=Status.WITHIN if small else Status.NOT_MEASURED,
            message=f"one ulp in inputs and parameters moves output {output.name} by {share:.2g} of its RMS",
            backend=name,
            output=output.name,
            metric="perturbation over RMS",
            measured=share,
            limit=limit,
            hint=None if small else "rounding decides what this model answers: no comparison in fp32 can clear it",
        )
