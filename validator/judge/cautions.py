"""What a reader should know, whatever the verdict."""

from collections.abc import Iterator, Sequence
from datetime import date

from validator.backends.catalog import BASELINE, Precision
from validator.judge.decisions import measure_decisions
from validator.judge.findings import EXACT_KINDS, Caution, Check, Evidence, Finding, Reference, Status
from validator.judge.noise import deployed_batch, precision_of, roundoff_of
from validator.judge.perturbation import why_no_fp64
from validator.judge.waivers import warn_of_waivers
from validator.judge.weights import warn_of_weights
from validator.metrics import divide_by_floor
from validator.policy import Policy

NAMES_SHOWN = 3


def list_cautions(
    policy: Policy, evidence: Evidence, findings: Sequence[Finding], today: date | None
) -> Iterator[Caution]:
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
    if evidence.reference is Reference.PERTURBATION:
        reason = why_no_fp64(evidence)
        yield Caution(
            code="perturbation-floor",
            message=f"fp64 could not run ({reason}): errors are measured against {BASELINE} itself, "
            "over how far it moves when inputs and parameters are moved by one unit in the last place",
        )
    yield from _warn_of_batch(policy, evidence)
    yield from _warn_of_labels(policy, evidence)
    yield from _ill_conditioned(evidence)
    yield from warn_of_weights(evidence)
    yield from warn_of_waivers(policy.waiver, findings, today)
    if evidence.strange:
        rest = len(evidence.strange) - NAMES_SHOWN
        names = ", ".join(evidence.strange[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        yield Caution(
            code="contents",
            message=f"nobody can say what these files of the model are: {names}",
        )
    if policy.formats.pickle:
        yield Caution(
            code="sandbox",
            message="the policy admits pickles: such a model's code runs, held by the sandbox, and may answer there "
            "otherwise than where it is served",
        )


def _warn_of_batch(policy: Policy, evidence: Evidence) -> Iterator[Caution]:
    """Say where the deployed batch size never ran, for want of golden samples of one shape."""
    if evidence.facts is not None and evidence.facts.static_batch is not None:
        return
    small = {
        deployed_batch(policy, b.row): b.main.largest_batch
        for b in evidence.backends
        if b.main is not None and 0 < b.main.largest_batch < deployed_batch(policy, b.row)
    }
    for size, largest in small.items():
        message = f"batch {size} is deployed and never ran: the golden dataset gives batches of at most {largest}"
        yield Caution(code="batch", message=message)


def _warn_of_labels(policy: Policy, evidence: Evidence) -> Iterator[Caution]:
    """Say where labels fit no better than any drawn at random: then they are most likely of other classes."""
    if evidence.labels is None:
        return
    measured = (
        decisions.accuracy
        for backend in evidence.backends
        if backend.main is not None
        for output in backend.main.outputs.values()
        if (decisions := measure_decisions(policy, evidence, backend.row, output)) is not None
    )
    accuracy = next((a for a in measured if a is not None), None)
    if accuracy is not None and accuracy.reference <= accuracy.chance:
        message = f"the reference answers {accuracy.reference:.2%} of the labelled samples rightly, no more than chance"
        yield Caution(code="labels", message=message)


ILL_CONDITIONED = 1e-3
"""Baseline error over RMS from which rounding, and not an export, may decide what the model answers."""

ILL_CONDITIONED_ROUNDOFFS = 16
"""The same in unit roundoffs, for models whose own numbers are too coarse for that."""


def _ill_conditioned(evidence: Evidence) -> Iterator[Caution]:
    """Find outputs whose baseline is itself far from fp64: rounding is amplified, and no export is to blame."""
    if evidence.reference is not Reference.FP64:
        return
    for backend in evidence.backends:
        if backend.row.name != BASELINE or backend.main is None:
            continue
        for output in backend.main.outputs.values():
            summary = output.summary
            share = divide_by_floor(summary.rms, [summary.rms_reference])
            coarse = ILL_CONDITIONED_ROUNDOFFS * roundoff_of(evidence, backend.row, output.name)
            # NaN is no warning: nothing was compared, and that is a finding of its own.
            if output.kind not in EXACT_KINDS and share > max(ILL_CONDITIONED, coarse):
                precision = precision_of(evidence, backend.row, output.name)
                eager = f"eager {'fp32' if precision is Precision.IEEE else precision}"
                yield Caution(
                    code="ill-conditioned",
                    message=f"output {output.name}: {eager} itself is {share:.1%} of the RMS away from fp64",
                )
