"""GitLab's code quality report: what blocks, and what warns, beside the merge request. Its test report is JUnit."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, assert_never

from validator.judge import Status
from validator.report.model import FindingRecord, VerdictDocument
from validator.report.numbers import format_measured
from validator.report.text import clean
from validator.report.where import find_file

MESSAGE_LIMIT = 500


def render_code_quality(document: VerdictDocument) -> str:
    """Return a JSON list of issues; empty where nothing is to be said.

    A fingerprint is made of the model's name and of what was looked at, without values, lines and versions: the same
    trouble keeps its fingerprint, and GitLab can say what is new and what was fixed.
    """
    issues = [*_finding_issues(document), *_warning_issues(document)]
    return json.dumps(issues, indent=2, sort_keys=True) + "\n"


def _finding_issues(document: VerdictDocument) -> Iterator[dict[str, Any]]:
    for finding in document.findings:
        severity = _severity(finding.status)
        if severity is not None:
            yield _issue(document, finding.check.value, _describe(finding), severity, finding.id)


def _severity(status: Status) -> str | None:
    match status:
        case Status.REFUSED:
            return "blocker"
        case Status.EXCEEDED:
            return "critical"
        case Status.NOT_MEASURED:
            return "major"
        case Status.WAIVED:
            return "minor"
        case Status.WITHIN:
            return None
        case _:
            assert_never(status)


def _describe(finding: FindingRecord) -> str:
    """Say what happened, where, and how much of how much allowed."""
    message = clean(finding.message, limit=MESSAGE_LIMIT)
    where = [clean(part) for part in (finding.backend, finding.output) if part is not None]
    text = ": ".join([finding.status.value, *(part for part in where if part not in message), message])
    if finding.measured is None or finding.limit is None:
        return text
    number = format_measured(finding.measured, finding.limit)
    return text if number in text else f"{text} ({number})"


def _warning_issues(document: VerdictDocument) -> Iterator[dict[str, Any]]:
    # Counted by code: a new warning of another kind must not rename those that stand after it.
    seen: Counter[str] = Counter()
    for warning in document.warnings:
        code = clean(warning.code)
        key = f"warning {seen[code]} {code}"
        seen[code] += 1
        yield _issue(document, code, clean(warning.message, limit=MESSAGE_LIMIT), "info", key)


def _issue(document: VerdictDocument, check: str, description: str, severity: str, key: str) -> dict[str, Any]:
    subject = document.subject.name or document.subject.source
    return {
        "description": f"{clean(document.subject.title)}: {description}",
        "check_name": check,
        "severity": severity,
        "fingerprint": hashlib.sha256(json.dumps([subject, key]).encode()).hexdigest(),
        "location": {"path": find_file(document), "lines": {"begin": 1}},
    }
