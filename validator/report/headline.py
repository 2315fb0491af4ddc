"""The one sentence of a verdict: what the last line of the terminal says after the verdict's word. Never cut."""

import math
from typing import assert_never

from validator.backends.catalog import REFERENCE
from validator.judge import Check, Reference, Status, Verdict
from validator.report.model import FindingRecord, VerdictDocument
from validator.report.numbers import format_duration, format_measured
from validator.report.text import clean

MESSAGE_LIMIT = 160


def write_headline(document: VerdictDocument) -> str:
    """Say how many findings stand how, and the number that decided."""
    floor = ", over the perturbation floor" if document.reference.kind is Reference.PERTURBATION else ""
    return f"{clean(document.subject.title)}: {_facts(document)}{floor} ({format_duration(document.duration_s)})"


def _facts(document: VerdictDocument) -> str:
    total = f"{len(document.findings):,}"
    count = {status: sum(f.status is status for f in document.findings) for status in Status}
    match document.verdict:
        case Verdict.PASS:
            names = [b.name for b in document.backends if b.name != REFERENCE]
            waived = f" and {count[Status.WAIVED]:,} waived" if count[Status.WAIVED] else ""
            text = (
                f"{count[Status.WITHIN]:,} of {total} findings within{waived} on {len(names)} of {len(names)} backends"
            )
            closest = largest_ratio(document, Status.WITHIN)
            return f"{text}, closest {describe_measured(closest)}" if closest else text
        case Verdict.FAIL:
            text = f"{count[Status.EXCEEDED]:,} of {total} findings exceeded"
            worst = largest_ratio(document, Status.EXCEEDED)
            if worst is None:
                return f"{text}: {_first(document)}"
            return f"{text}, worst {describe_measured(worst)}{_first_initialiser(document)}"
        case Verdict.INCONCLUSIVE:
            return f"{count[Status.NOT_MEASURED]:,} of {total} findings not measured, 0 exceeded"
        case Verdict.REFUSED:
            return _first(document)
        case _:
            assert_never(document.verdict)


def explain_verdict(document: VerdictDocument) -> str:
    """Say whether the model may be promoted, and why in general; no more than was measured."""
    match document.verdict:
        case Verdict.PASS:
            names = [b.name for b in document.backends if b.name != REFERENCE]
            return (
                f"It may be promoted: it computes the same within the limits of the policy on "
                f"{document.golden.samples:,} samples and {len(names)} backends, and a planted fault was caught."
            )
        case Verdict.FAIL:
            return "It may not be promoted: at least one finding exceeds its limit."
        case Verdict.INCONCLUSIVE:
            return "It may not be promoted: something could not be measured, and what is not measured is not within."
        case Verdict.REFUSED:
            return "It may not be promoted: something is not what it should be, so nothing measured can be believed."
        case _:
            assert_never(document.verdict)


def _first_initialiser(document: VerdictDocument) -> str:
    """Name an initialiser that is not the model's, if there is one: it says more than any ratio."""
    if document.weights is None or not document.weights.differences:
        return ""
    first = document.weights.differences[0]
    return f"; initialiser {clean(first.name)} differs in {first.unequal:,} of {first.elements:,} elements"


def _first(document: VerdictDocument) -> str:
    """Say the first finding that made the verdict."""
    wanted = Status.REFUSED if document.verdict is Verdict.REFUSED else Status.EXCEEDED
    messages = [f"{f.check}: {clean(f.message, limit=MESSAGE_LIMIT)}" for f in document.findings if f.status is wanted]
    return messages[0] if messages else "no finding says why"


def largest_ratio(document: VerdictDocument, status: Status) -> FindingRecord | None:
    """Return the error ratio of this status that uses most of its limit; NaN counts as more than anything."""
    ratios = [
        f
        for f in document.findings
        if f.check is Check.ERROR_RATIO and f.status is status and f.measured is not None and f.limit is not None
    ]
    return max(ratios, key=prominence, default=None)


POOLED = "error ratio"


def prominence(finding: FindingRecord) -> tuple[bool, float]:
    """Order findings of one status: the pooled ratio is the one that people know, then the share of the limit."""
    return finding.metric == POOLED, used(finding)


def used(finding: FindingRecord) -> float:
    """Return measured over limit; infinite where that is no number."""
    if finding.measured is None or not finding.limit:
        return math.inf
    share = finding.measured / finding.limit
    return math.inf if math.isnan(share) else share


def describe_measured(finding: FindingRecord) -> str:
    """Say whose number it is: `eager-cuda error ratio 1.63 of 3.26`."""
    if finding.measured is None or finding.limit is None:
        return clean(finding.message)
    what = clean(finding.metric or finding.check)
    where = clean(finding.backend or "the run")
    return f"{where} {what} {format_measured(finding.measured, finding.limit)}"
