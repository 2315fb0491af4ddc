"""Judging one backend: did it run, does it repeat, and is what it returned what the reference returned."""

from collections.abc import Iterator

from validator.backends.catalog import BASELINE, REFERENCE
from validator.compare import Comparison
from validator.judge.batches import judge_batches
from validator.judge.decisions import judge_decisions
from validator.judge.findings import BackendEvidence, Check, Evidence, Finding, Reference, Status, not_measured
from validator.judge.outcomes import judge_identity, judge_outcome
from validator.judge.perturbation import judge_declined_reference, judge_floor, judge_perturbed
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
    findings += _judge_structure(evidence, backend, backend.main)
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
        yield not_measured(Check.EVIDENCE, name, message, hint="correct the output's table in the golden dataset")
    for output in main.unattributed:
        message = f"output {output} belongs to no single sample, and {name} cut the samples as the reference did not"
        yield not_measured(Check.COVERAGE, name, message, hint="give the row no batch_size of its own")
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
