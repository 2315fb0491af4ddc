"""Judging one output of one candidate: exactly, or by its error over the noise floor."""

import math
from collections.abc import Iterator

from validator.backends.catalog import Backend, Precision
from validator.compare import OutputComparison
from validator.judge.findings import EXACT_KINDS, Check, Evidence, Finding, Status, not_measured
from validator.judge.noise import limits_of, noise_floors, own_output, precision_of, roundoff_of
from validator.judge.pooling import ratios_of
from validator.metrics import ErrorRatios, ErrorSummary, worst_channel, worst_own_sample
from validator.policy import Limits, Policy


def judge_values(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Iterator[Finding]:
    """Integers and booleans exactly; everything else by the six error ratios."""
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
    if (variety := evidence.variety.get(output.name)) is not None and variety.finite == 0:
        message = f"the reference holds no finite number in output {output.name}: there is nothing to measure against"
        yield not_measured(Check.ERROR_RATIO, row.name, message)
        return
    counted = int((output.rows["compared"] > 0).sum())
    hollow = int(((output.rows["elements"] > 0) & (output.rows["compared"] == 0)).sum())
    if hollow and len(output.rows) == evidence.samples and counted < policy.samples_min:
        yield not_measured(
            Check.EVIDENCE,
            row.name,
            f"output {output.name} holds something to compare in {counted} of {evidence.samples} samples only",
            hint="use golden samples on which the model answers with numbers",
        )
    floors = noise_floors(evidence, row, output.name)
    if floors is None:
        yield not_measured(Check.ERROR_RATIO, row.name, f"the baseline {row.baseline} gave no noise floor")
        return
    if output.summary.rms_reference > 0 and (
        limits_of(policy, evidence, row, output.name).error_ratio * max(floors) >= output.summary.rms_reference
    ):
        yield not_measured(
            Check.EVIDENCE,
            row.name,
            f"the budget of output {output.name} is as large as the output itself: zeros would be within",
            hint="rounding decides what this model answers in fp32; no comparison can clear it",
        )
    ratios, summary = ratios_of(evidence, row, output)
    yield from judge_ratios(
        row,
        output.name,
        ratios,
        limits_of(policy, evidence, row, output.name),
        summary,
        precision=precision_of(evidence, row, output.name),
    )
    yield _judge_own_samples(policy, evidence, row, output)
    if row.baseline is not None:
        yield _judge_channels(policy, evidence, row, output)


def _judge_own_samples(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Finding:
    """Hold every sample against its own noise floor: one on a large scale must not excuse the others."""
    baseline = own_output(evidence, row.baseline, output.name)
    measured, sample = worst_own_sample(
        output.rows, baseline.rows if baseline else None, unit_roundoff=roundoff_of(evidence, row, output.name)
    )
    limit = limits_of(policy, evidence, row, output.name).error_ratio_own_sample
    precision = precision_of(evidence, row, output.name)
    return Finding(
        check=Check.ERROR_RATIO,
        status=Status.WITHIN if measured <= limit else Status.EXCEEDED,
        message=f"error ratio of {row.name} ({precision}) in the sample worst by its own floor",
        backend=row.name,
        output=output.name,
        metric="error ratio, sample by itself",
        measured=measured,
        limit=limit,
        sample=sample,
    )


def _judge_channels(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Finding:
    """Hold the worst channel against its own noise floor. Only a baseline knows what that is."""
    baseline = own_output(evidence, row.baseline, output.name)
    floors = baseline.channels if baseline is not None else (None, None)
    ratios = [
        worst_channel(own, floor, unit_roundoff=roundoff_of(evidence, row, output.name))
        for own, floor in zip(output.channels, floors, strict=True)
    ]
    # NaN is never the largest of anything: put it first.
    measured, channel = max(ratios, key=lambda pair: (math.isnan(pair[0]), pair[0]))
    limit = limits_of(policy, evidence, row, output.name).error_ratio_channel
    within = measured <= limit
    precision = precision_of(evidence, row, output.name)
    where = "it has no channels" if channel is None else f"channel {channel}"
    return Finding(
        check=Check.ERROR_RATIO,
        status=Status.WITHIN if within else Status.EXCEEDED,
        message=f"error ratio of {row.name} ({precision}) in its worst channel: {where}",
        backend=row.name,
        output=output.name,
        metric="error ratio, worst channel",
        measured=measured,
        limit=limit,
    )


def judge_ratios(
    row: Backend, output: str, ratios: ErrorRatios, limits: Limits, summary: ErrorSummary, *, precision: Precision
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
            message=f"{metric} of {row.name} ({precision})",
            backend=row.name,
            output=output,
            metric=metric,
            measured=measured,
            limit=limit,
            sample=sample,
        )
