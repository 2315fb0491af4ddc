"""Judging answers: classes that change places, whether rounding explains it, and how right the answers are."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from validator.backends.catalog import Backend
from validator.compare import OutputComparison
from validator.golden.format import Stratum
from validator.judge.findings import BackendEvidence, Check, Evidence, Finding, Status, not_measured
from validator.judge.noise import limits_of
from validator.judge.pooling import floors_of
from validator.metrics import TOP_K, Floats, Rows, flip_rate_bound, samples_for_rate
from validator.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """Samples whose best classes are others than the reference's. Made-up samples do not count."""

    samples: int
    """That count."""
    flips: int
    unexplained: int
    """Of the flips: those whose margin in the reference is larger than what the budget lets two scores move."""
    first_unexplained: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How many labelled samples are answered rightly."""

    samples: int
    reference: float
    candidate: float
    chance: float
    """Share of right answers that are drawn among all classes."""

    @property
    def drop(self) -> float:
        """How much less the candidate is right; negative where it is more."""
        return self.reference - self.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What one backend decides by one output that is a vector of scores."""

    output: str
    top1: Flips
    topk: Flips | None
    """Of the set of the `TOP_K` best classes; None where there are no more classes than that."""
    representative: int
    """Samples that say how often something happens."""
    representative_flips: int
    accuracy: Accuracy | None

    @property
    def rate_bound(self) -> float:
        """Share of all samples that top-1 flips stay below at 95 %; 1 without representative samples."""
        return flip_rate_bound(self.representative_flips, self.representative)


def measure_decisions(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Decisions | None:
    """Count what one backend decides otherwise. None where the output is no vector of scores.

    A flip is explained if the reference's margin is at most 2B, where B is the largest error of an element that the
    budget allows: both scores may have moved by that much, towards each other.
    """
    if output.flips is None or output.kind != "float":
        return None
    rows = output.rows
    strata = [_stratum(evidence, int(sample)) for sample in rows["sample"]]
    is_asked = [not stratum.is_stress for stratum in strata]
    asked = rows[is_asked]
    allowed = margin_limits(policy, evidence, row, output)
    representative = rows[[stratum is Stratum.REPRESENTATIVE for stratum in strata]]
    return Decisions(
        output=output.name,
        top1=_count_flips(asked, "top1_flip", "margin", allowed[is_asked]),
        topk=_count_flips(asked, "topk_flip", "topk_margin", allowed[is_asked])
        if (rows["topk_flip"] >= 0).all()
        else None,
        representative=len(representative),
        representative_flips=int(representative["top1_flip"].sum()),
        accuracy=_measure_accuracy(evidence, representative) if output.name == labelled_output(evidence) else None,
    )


def margin_limits(policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison) -> Floats:
    """Return for each sample the largest margin at which a flip is explained, shape (samples,), in the output's unit.

    It is 2B: limit of the worst element times the noise floor of the sample's part, for either score.
    """
    limits = limits_of(policy, evidence, row, output.name)
    return 2 * limits.error_ratio_element * floors_of(evidence, row, output, "element_max")


def _stratum(evidence: Evidence, sample: int) -> Stratum:
    return evidence.strata[sample] if evidence.strata else Stratum.REPRESENTATIVE


def _count_flips(rows: Rows, flip: str, margin: str, allowed: Floats) -> Flips:
    flipped = rows[rows[flip] == 1]
    # Not `margin > allowed`: a NaN explains nothing.
    unexplained = flipped[~(flipped[margin] <= allowed[rows[flip] == 1])]
    return Flips(
        samples=len(rows),
        flips=len(flipped),
        unexplained=len(unexplained),
        first_unexplained=int(unexplained["sample"].min()) if len(unexplained) else None,
    )


def _measure_accuracy(evidence: Evidence, rows: Rows) -> Accuracy | None:
    if evidence.labels is None or len(rows) == 0:
        return None
    labels = np.array([evidence.labels[int(sample)] for sample in rows["sample"]])
    return Accuracy(
        samples=len(rows),
        reference=float((rows["reference_top1"] == labels).mean()),
        candidate=float((rows["candidate_top1"] == labels).mean()),
        chance=1 / int(rows["elements"].min()),
    )


def scored_outputs(evidence: Evidence) -> frozenset[str]:
    """Name the outputs that are vectors of scores."""
    return frozenset(
        output.name
        for backend in evidence.backends
        if backend.main is not None
        for output in backend.main.outputs.values()
        if output.flips is not None and output.kind == "float"
    )


def labelled_output(evidence: Evidence) -> str | None:
    """Name the output that labels are about: the one that is declared so, else the only vector of scores."""
    scored = scored_outputs(evidence)
    if evidence.labelled is not None:
        return evidence.labelled if evidence.labelled in scored else None
    return next(iter(scored)) if len(scored) == 1 else None


def judge_labels(evidence: Evidence) -> Iterator[Finding]:
    """Find labels that cannot be about the output that they are said to be about."""
    if evidence.labels is None:
        return
    scored, labelled = scored_outputs(evidence), labelled_output(evidence)
    if labelled is None:
        if evidence.labelled is not None and scored:
            message = f"output {evidence.labelled} is declared to be labelled, but is no vector of scores"
            yield not_measured(Check.EVIDENCE, None, message, hint=f"vectors of scores: {', '.join(sorted(scored))}")
        return
    classes = min(
        int(b.main.outputs[labelled].rows["elements"].min())
        for b in evidence.backends
        if b.main is not None and labelled in b.main.outputs
    )
    wrong = next(
        (
            sample
            for sample, label in enumerate(evidence.labels)
            if not _stratum(evidence, sample).is_stress and not 0 <= label < classes
        ),
        None,
    )
    if wrong is not None:
        yield not_measured(
            Check.EVIDENCE,
            None,
            f"the label of golden sample {wrong} is {evidence.labels[wrong]}, output {labelled} has {classes} classes",
            hint="labels count classes from 0; make the golden dataset again with the model's own",
        )


def judge_decisions(policy: Policy, evidence: Evidence, backend: BackendEvidence) -> Iterator[Finding]:
    """Judge the answers of one candidate."""
    row, main = backend.row, backend.main
    outputs = main.outputs.values() if main is not None else ()
    decided = [d for o in outputs if (d := measure_decisions(policy, evidence, row, o)) is not None]
    rated = [d for d in decided if evidence.labelled in (None, d.output)]
    for decisions in decided:
        yield _judge_flips(row, decisions)
        if policy.decisions.flip_rate is not None and decisions in rated:
            yield _judge_rate(row, decisions, policy.decisions.flip_rate)
        if decisions.accuracy is not None:
            yield _judge_accuracy(row, decisions.output, decisions.accuracy, policy.decisions.accuracy_drop)
    if policy.decisions.flip_rate is not None and not rated:
        which = f"output {evidence.labelled}, which is declared to be labelled, is no" if decided else "no output is a"
        yield not_measured(
            Check.FLIP_RATE, row.name, f"the policy limits the rate of flips, and {which} vector of scores"
        )
    if policy.decisions.accuracy_drop is not None and not any(d.accuracy for d in decided):
        yield not_measured(
            Check.ACCURACY,
            row.name,
            "the policy limits the drop of accuracy, which is not known: "
            + ("the golden dataset has no labels" if evidence.labels is None else "no single output is labelled"),
            hint="make the golden dataset with labels, and say `labelled = true` of the output that they are about",
        )


def _judge_flips(row: Backend, decisions: Decisions) -> Finding:
    """Require that rounding within the budget explains every change."""
    unexplained = decisions.top1.unexplained + (decisions.topk.unexplained if decisions.topk else 0)
    first = decisions.top1.first_unexplained
    if first is None and decisions.topk is not None:
        first = decisions.topk.first_unexplained
    message = f"{decisions.top1.flips:,} of {decisions.top1.samples:,} samples have another best class"
    if decisions.topk is not None:
        message += f", {decisions.topk.flips:,} another set of the {TOP_K} best"
    if unexplained:
        message += f"; the budget does not explain {unexplained:,} of these changes"
    elif decisions.top1.flips or (decisions.topk and decisions.topk.flips):
        message += ", each by a margin within twice the budget"
    return Finding(
        check=Check.DECISIONS,
        status=Status.EXCEEDED if unexplained else Status.WITHIN,
        message=message,
        backend=row.name,
        output=decisions.output,
        metric="unexplained flips",
        measured=unexplained,
        limit=0.0,
        sample=first,
        hint="scores moved further than the budget allows: see this output's error ratios" if unexplained else None,
    )


def _judge_rate(row: Backend, decisions: Decisions, limit: float) -> Finding:
    """Hold the rate that flips are shown to stay below against the one that the policy wants shown."""
    bound, n, flips = decisions.rate_bound, decisions.representative, decisions.representative_flips
    if bound <= limit:
        status, hint = Status.WITHIN, None
    elif n and flips / n > limit:
        status, hint = Status.EXCEEDED, "more samples flip than the policy allows: use higher precision"
    else:
        status = Status.NOT_MEASURED
        hint = f"{samples_for_rate(limit):,} representative samples without a flip would show it"
    return Finding(
        check=Check.FLIP_RATE,
        status=status,
        message=f"{flips:,} flips in {n:,} representative samples: at 95 % fewer than {bound:.2%} of all flip, "
        f"{limit:.2%} are asked for",
        backend=row.name,
        output=decisions.output,
        metric="flip rate, upper bound",
        measured=bound,
        limit=limit,
        hint=hint,
    )


def _judge_accuracy(row: Backend, output: str, accuracy: Accuracy, limit: float | None) -> Finding:
    """Tell how right the answers are; judged only where the policy says how much less right they may be."""
    if limit is not None and accuracy.reference <= accuracy.chance:
        return not_measured(
            Check.ACCURACY,
            row.name,
            f"the reference answers {accuracy.reference:.2%} of {accuracy.samples:,} labelled samples rightly, "
            f"no more than chance ({accuracy.chance:.2%}): nothing can drop",
            hint="labels count classes from 0 in the model's own order; make the golden dataset again with those",
        )
    within = limit is None or accuracy.drop <= limit
    return Finding(
        check=Check.ACCURACY,
        status=Status.WITHIN if within else Status.EXCEEDED,
        message=f"{accuracy.candidate:.2%} of {accuracy.samples:,} labelled samples are answered rightly, "
        f"the reference: {accuracy.reference:.2%}",
        backend=row.name,
        output=output,
        metric="drop of accuracy",
        measured=accuracy.drop,
        limit=limit,
        hint=None if within else "fewer labels are met than the policy allows",
    )
