"""Judging one backend: did it run, does it repeat, and is what it returned what the reference returned."""

from collections.abc import Iterator

from validator.backends.catalog import BASELINE, REFERENCE
from validator.compare import Comparison
from validator.judge.batches import judge_batches
from validator.judge.decisions import judge_decisions
from validator.judge.findings import BackendEvidence, Check, Evidence, Finding, Reference, Status, not_measured
from validator.judge.outcomes import judge_identity, judge_outcome
from validator.judge.perturbation import judge_declined_reference, judge_floor, judge_perturbed
from validator.judge.structure import judge_structure
from validator.judge.values import judge_values
from validator.policy import Policy
from validator.worker.outcome import Completed, Declined


def judge_backend(policy: Policy, evidence: Evidence, backend: BackendEvidence) -> list[Finding]:
    """Judge one row: did it run, was it the row that was asked for, and what did it compute."""
    name = backend.row.name
    if name == REFERENCE and isinstance(backend.outcome, Declined):
        return [judge_declined_reference(policy, evidence, backend.outcome)]
    findings = [judge_outcome(backend.outcome, backend=name, what=name)]
    if name == BASELINE and backend.perturbed is not None:
        findings += judge_perturbed(backend.row, backend.perturbed)
    if not isinstance(backend.outcome, Completed):
        return findings
    findings.append(judge_identity(backend.row, backend.outcome))
    findings.append(_judge_repetition(backend, backend.repeat, "the second time"))
    if policy.checks.fresh_process and name != REFERENCE:
        findings += _judge_fresh(backend)
    findings += judge_batches(policy, evidence, backend)
    if name == REFERENCE:
        return findings
    if backend.main is None:
        return [*findings, not_measured(Check.COVERAGE, name, "there is no reference to compare it with")]
    if name == BASELINE and evidence.reference is Reference.PERTURBATION:
        return [*findings, *judge_floor(evidence, backend, backend.main)]
    findings += judge_structure(evidence, backend, backend.main)
    if name != BASELINE:
        wrong = {difference.output for difference in backend.main.misdeclared}
        for output in backend.main.outputs.values():
            if output.name not in wrong:
                findings += judge_values(policy, evidence, backend.row, output)
        findings += judge_decisions(policy, evidence, backend)
    return findings


def _judge_fresh(backend: BackendEvidence) -> Iterator[Finding]:
    """Judge what a fresh process made of the same samples: it has to run to its end as well, and as asked."""
    name, fresh = backend.row.name, backend.fresh
    if fresh is None:
        yield not_measured(Check.REPEATABILITY, name, f"{name} was not run in a fresh process")
        return
    if not isinstance(fresh.outcome, Completed):
        yield judge_outcome(fresh.outcome, backend=name, what=f"{name} in a fresh process")
        return
    identity = judge_identity(backend.row, fresh.outcome)
    if identity.status is not Status.WITHIN:
        yield identity
    yield _judge_repetition(backend, fresh.comparison, "in a fresh process")


def _judge_repetition(backend: BackendEvidence, repeat: Comparison | None, when: str) -> Finding:
    """Hold a first run against another with the same shapes: bitwise where the row promises it.

    Where it does not, the difference is told and does not count as noise: a floor that grows with the candidate's own
    noise would let a random candidate excuse itself.
    """
    name = backend.row.name
    if repeat is None or not (repeat.samples > 0):
        return not_measured(Check.REPEATABILITY, name, f"{name} was not run {when}")
    unequal = sum(o.unequal for o in repeat.outputs.values())
    bitwise = unequal == 0 and not repeat.structure
    if bitwise:
        message = f"bitwise the same {when} over {repeat.samples} samples"
        return Finding(
            check=Check.REPEATABILITY,
            status=Status.WITHIN,
            message=message,
            backend=name,
            metric=f"unequal elements {when}",
            measured=0.0,
            limit=0.0,
        )
    message = f"{name} gave other values {when}: {unequal:,} of {repeat.elements:,} elements differ"
    if repeat.structure:
        first = repeat.structure[0]
        message = f"{name} gave other outputs {when}: {first.output or 'all'}: {first.what}"
    promised = backend.row.is_repeatable_by_contract
    return Finding(
        check=Check.REPEATABILITY,
        status=Status.EXCEEDED if promised else Status.WITHIN,
        message=message if promised else f"{message}; the row does not promise otherwise",
        backend=name,
        metric=f"unequal elements {when}",
        measured=unequal,
        limit=0.0 if promised else None,
        hint="look for random operators, state that forward changes, or atomics" if promised else None,
    )
