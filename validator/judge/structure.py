"""Judging what comes before values: contract, declared meanings, coverage, and where numbers are none."""

from collections.abc import Iterator

from validator.compare import Comparison
from validator.judge.findings import BackendEvidence, Check, Evidence, Finding, Status, not_measured


def judge_structure(evidence: Evidence, backend: BackendEvidence, main: Comparison) -> Iterator[Finding]:
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
    yield from judge_meanings(name, main)
    for output in main.unattributed:
        message = f"output {output} belongs to no single sample, and {name} cut the samples as the reference did not"
        yield not_measured(Check.COVERAGE, name, message, hint="give the row no batch_size of its own")
    yield judge_coverage(evidence, name, main, "compared")
    yield _judge_non_finite(name, main)


def judge_meanings(name: str, comparison: Comparison) -> Iterator[Finding]:
    """Find declared meanings that the outputs contradict."""
    for wrong in comparison.misdeclared:
        message = f"the declared meaning of output {wrong.output} does not hold: {wrong.what}"
        yield not_measured(Check.EVIDENCE, name, message, hint="correct the output's table in the golden dataset")


def judge_coverage(evidence: Evidence, name: str, comparison: Comparison, done: str) -> Finding:
    """Require that all samples of the golden dataset, and some elements, are in a comparison.

    Args:
        evidence: how many samples there are.
        name: of the backend.
        comparison: of its samples.
        done: what was done to them, for people.
    """
    complete = comparison.samples == evidence.samples and comparison.elements > 0
    return Finding(
        check=Check.COVERAGE,
        status=Status.WITHIN if complete else Status.NOT_MEASURED,
        message=f"{comparison.samples:,} of {evidence.samples:,} samples and {comparison.elements:,} elements {done}",
        backend=name,
        measured=comparison.samples,
        limit=evidence.samples,
    )


def _judge_non_finite(name: str, main: Comparison) -> Finding:
    mismatches = sum(o.nonfinite_mismatches for o in main.outputs.values())
    worst = max(main.outputs.values(), key=lambda o: o.nonfinite_mismatches, default=None)
    first = None
    if mismatches and worst is not None:
        first = int(worst.rows["sample"][worst.rows["nonfinite_mismatches"] > 0][0])
    return Finding(
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
