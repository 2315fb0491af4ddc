"""Judging other batch sizes of a backend against its own main run."""

from collections.abc import Iterator

from validator.backends.catalog import BASELINE, REFERENCE, Backend
from validator.compare import Comparison, OutputComparison
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
from validator.judge.noise import (
    deployed_batch,
    largest_batch,
    limits_of,
    noise_floors,
    own_summary,
)
from validator.judge.pooling import ratios_of
from validator.metrics import ErrorSummary, divide_by_floor
from validator.policy import BATCH_DEPENDENCE_LIMIT, DEFAULT_RATIO_FLOOR, Policy


def judge_batches(policy: Policy, evidence: Evidence, backend: BackendEvidence) -> Iterator[Finding]:
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
    usual = largest_batch(backend)
    planned = frozenset(policy.checks.batch_sizes) - {deployed_batch(policy, backend.row), usual}
    measured = {
        size for size, comparison in backend.batches if comparison.samples > 0 and comparison.largest_batch == size
    }
    if missing := planned - measured:
        yield not_measured(
            Check.BATCH,
            name,
            f"{name} was not run at batch {', '.join(map(str, sorted(missing)))} besides its main batch of {usual}",
            hint="use golden samples of which several have one shape, or other checks.batch_sizes in the policy",
        )
    for size, comparison in backend.batches:
        yield from _judge_batch(policy, evidence, backend, size, comparison)
    if not planned:
        yield _judge_nothing_planned(policy, backend)


def _judge_nothing_planned(policy: Policy, backend: BackendEvidence) -> Finding:
    """Tell a policy that asks for no other batch size from a dataset in which none is another."""
    name, deployed = backend.row.name, deployed_batch(policy, backend.row)
    if set(policy.checks.batch_sizes) <= {deployed}:
        message = f"the policy names no batch size besides {deployed}"
        return Finding(check=Check.BATCH, status=Status.WITHIN, message=message, backend=name)
    return not_measured(
        Check.BATCH,
        name,
        f"{name} ran its main batches at {largest_batch(backend)}, the only other size that the policy names",
        hint="name other checks.batch_sizes in the policy, or use more golden samples of one shape",
    )


def _judge_batch(
    policy: Policy, evidence: Evidence, backend: BackendEvidence, size: int, comparison: Comparison
) -> Iterator[Finding]:
    """One other batch size. In fp64 any dependence is the model's own; elsewhere it must stay within the budget."""
    name = backend.row.name
    for difference in comparison.structure:
        what = f"batch {size}: output {difference.output or '(all)'}: {difference.what}"
        yield Finding(check=Check.BATCH, status=Status.EXCEEDED, message=what, backend=name, sample=difference.sample)
    for lost in comparison.unattributed:
        what = f"output {lost} of {name} belongs to no single sample, so batch {size} is not comparable"
        yield not_measured(Check.BATCH, name, what, hint="give the output a batch dimension, or leave it out")
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
    if (variety := evidence.variety.get(output.name)) is not None and variety.finite == 0:
        yield not_measured(Check.BATCH, row.name, f"output {output.name} holds no finite number at any batch size")
        return
    if row.name != REFERENCE and noise_floors(evidence, row, output.name) is None:
        yield not_measured(Check.BATCH, row.name, f"{row.name}: no noise floor for output {output.name}")
        return
    summary = output.summary
    is_reference = row.name == REFERENCE
    numbers = _own_dependence(summary) if is_reference else _dependence(policy, evidence, row, output)
    # Without fp64 nothing tells a kernel from the model: the baseline is held against the perturbation floor.
    stands_in = row.name == BASELINE and evidence.reference is Reference.PERTURBATION
    hint = (
        "the model looks at its batch mates: normalisation, a mask or a baked shape"
        if is_reference or stands_in
        else "a kernel of this backend answers otherwise at this batch size"
    )
    usual = f"batch {size} against {min(deployed_batch(policy, row), evidence.samples)}"
    for metric, measured, limit in numbers:
        within = measured <= limit
        if not within and is_reference and is_ruled_by_rounding(evidence, output.name):
            yield not_measured(
                Check.BATCH,
                row.name,
                f"{usual}: fp64 moves output {output.name} by {measured:.1e}, but eager fp32 has no digit of it right: "
                "rounding decides what this model answers, and nobody can tell whether it looks at its batch mates",
                hint="look at the golden samples and at the model: fp32 is not enough for it",
            )
            continue
        yield Finding(
            check=Check.BATCH,
            status=Status.WITHIN if within else Status.EXCEEDED,
            message=f"{usual}, over the perturbation floor for want of fp64" if stands_in else usual,
            backend=row.name,
            output=output.name,
            metric=f"{metric} at batch {size}",
            measured=measured,
            limit=limit,
            sample=summary.worst_sample,
            hint=None if within else hint,
        )


Numbers = list[tuple[str, float, float]]
"""Metric, measured, limit."""


def is_ruled_by_rounding(evidence: Evidence, output: str) -> bool:
    """Whether ten times the baseline's error, which any backend may make, is as large as the output itself.

    Order of summation is amplified like rounding is: where fp32 has no digit right, fp64 may lack half of its own.
    """
    baseline = own_summary(evidence, BASELINE, output)
    return baseline is not None and DEFAULT_RATIO_FLOOR * baseline.rms >= baseline.rms_reference > 0


def _own_dependence(summary: ErrorSummary) -> Numbers:
    """Return how far the batch moves the reference: in fp64 only the order of summation may."""
    return [
        ("RMS difference over RMS", divide_by_floor(summary.rms, [summary.rms_reference]), BATCH_DEPENDENCE_LIMIT),
        (
            "largest difference over largest value",
            divide_by_floor(summary.element_max, [summary.element_max_reference]),
            BATCH_DEPENDENCE_LIMIT,
        ),
    ]


def _dependence(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Numbers:
    """Return how far the batch moves a candidate, over its noise floor; the baseline's floor is its own error."""
    ratios, _ = ratios_of(evidence, row, output)
    limits = limits_of(policy, evidence, row, output.name)
    return [
        ("error ratio", ratios.pooled, limits.error_ratio),
        ("error ratio, worst sample", ratios.worst_sample, limits.error_ratio_max),
        ("error ratio, worst element", ratios.element, limits.error_ratio_element),
    ]
