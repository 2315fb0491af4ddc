"""Dated, owned, named exceptions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import assert_never

from validator.judge.findings import Caution, Check, Finding, Status
from validator.policy import (
    WAIVER_DAYS_MAX,
    WAIVER_DAYS_WARNED,
    Waiver,
    WaiverState,
)


def apply_waivers(waivers: Sequence[Waiver], findings: Sequence[Finding], today: date | None) -> list[Finding]:
    """Mark exceeded findings that a valid waiver names; say of the others why they do not count.

    What is refused or not measured stays as it is, whatever a waiver says.
    """
    marked = list(findings)
    states = {waiver: None if today is None else waiver.state(today) for waiver in waivers}
    # Those that count first: one that has expired says nothing where another took its place.
    for waiver in sorted(waivers, key=lambda w: states[w] is not WaiverState.VALID):
        named = [i for i, finding in enumerate(marked) if _is_named(waiver, finding)]
        if states[waiver] is WaiverState.VALID:
            for i in named:
                marked[i] = replace(marked[i], status=Status.WAIVED, waiver=waiver)
        elif named:
            marked.append(_without_effect(waiver, states[waiver]))
    return marked


def _is_named(waiver: Waiver, finding: Finding) -> bool:
    """Whether a waiver is about an exceeded finding."""
    return (
        finding.status is Status.EXCEEDED
        and finding.check.value == waiver.check
        and finding.backend == waiver.backend
        and waiver.output in (None, finding.output)
    )


def _without_effect(waiver: Waiver, state: WaiverState | None) -> Finding:
    """Say why a waiver does not count: a finding of its own, beside the one that stays exceeded."""
    match state:
        case WaiverState.EXPIRED:
            why = f"expired on {waiver.expires}"
        case WaiverState.TOO_LONG:
            why = f"lasts until {waiver.expires}, more than {WAIVER_DAYS_MAX} days from now, and does not count"
        case WaiverState.VALID | None:
            why = "does not count: today's date is not known"
        case _:
            assert_never(state)
    return Finding(
        check=Check.WAIVER,
        status=Status.EXCEEDED,
        message=f"the waiver of {waiver.title} by {waiver.owner} {why}",
        backend=waiver.backend,
        output=waiver.output,
        hint="mend the backend, or have the waiver given anew where the policy is protected",
        waiver=waiver,
    )


def warn_of_waivers(waivers: Sequence[Waiver], findings: Sequence[Finding], today: date | None) -> Iterator[Caution]:
    """Name every waiver that was used, with owner and end, and every one that nothing needed."""
    used = [f.waiver for f in findings if f.status is Status.WAIVED]
    told = {f.waiver for f in findings}
    for waiver in waivers:
        if waiver in used:
            left = None if today is None else (waiver.expires - today).days
            soon = f" ({left} days left)" if left is not None and left <= WAIVER_DAYS_WARNED else ""
            count = used.count(waiver)
            yield Caution(
                code="waived",
                message=f"{waiver.title}: {count} {'finding' if count == 1 else 'findings'} waived by {waiver.owner}, "
                f"until {waiver.expires}{soon}: {waiver.reason}",
            )
        elif waiver not in told:
            yield Caution(code="waiver", message=f"the waiver of {waiver.title} by {waiver.owner} waives nothing")
