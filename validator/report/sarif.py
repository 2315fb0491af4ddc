"""SARIF 2.1.0, for code scanning: what is about the policy or about trust. Errors of numbers are no code to scan.

In it go findings that are refused, findings about budgets and waivers, everything that a waiver excuses (as a
suppressed result), and warnings about the same. An empty list says that there is nothing of that kind.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, assert_never
from urllib.parse import quote

from validator.judge import Check, Status
from validator.report.model import FindingRecord, VerdictDocument
from validator.report.text import clean
from validator.report.where import find_file

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MESSAGE_LIMIT = 1_000
ID_LIMIT = 1_000
"""Characters of a name in what alerts are told apart by: cut shorter, two models might share theirs."""
POLICY_CHECKS = frozenset({Check.BUDGET, Check.WAIVER})

RULES: Mapping[str, str] = MappingProxyType(
    {
        "refused": "Something that must not be touched: bytes that changed, or a worker that broke the protocol.",
        "budget": "A budget was measured on something else than this model, dataset and machine.",
        "waiver": "A waiver has expired, lasts too long, or is about to end.",
        "waived": "A finding exceeds its limit, and somebody answers for it until a date.",
        "sandbox": "The policy lets a model's code run without anything that holds it.",
    }
)
"""Rule id -> what it is about. The ids are an interface."""


def render_sarif(document: VerdictDocument) -> str:
    """Return the SARIF log as canonical JSON: one run, results in the order of the findings, then of the warnings."""
    results = [*_finding_results(document), *_warning_results(document)]
    driver = {
        "name": "validator",
        "version": clean(document.tool.version),
        "rules": [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()],
    }
    log = {
        "$schema": SCHEMA_URI,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                # Without the version: the alerts of the next one replace these.
                "automationDetails": {"id": f"validator/{quote(_model(document), safe='')}/"},
                "columnKind": "unicodeCodePoints",
                "results": results,
                "properties": {"verdict": document.verdict.value, "subject": clean(document.subject.digest)},
            }
        ],
    }
    return json.dumps(log, indent=2, sort_keys=True) + "\n"


def _model(document: VerdictDocument) -> str:
    return clean(document.subject.name or document.subject.title, limit=ID_LIMIT)


def _finding_results(document: VerdictDocument) -> Iterator[dict[str, Any]]:
    for finding in document.findings:
        rule = _rule_of(finding)
        if rule is not None:
            yield _result(document, rule, finding.message, level=_level(finding.status), key=finding.id) | _waived(
                finding
            )


def _rule_of(finding: FindingRecord) -> str | None:
    match finding.status:
        case Status.REFUSED:
            return "refused"
        case Status.WAIVED:
            return "waived"
        case Status.EXCEEDED | Status.NOT_MEASURED:
            return finding.check.value if finding.check in POLICY_CHECKS else None
        case Status.WITHIN:
            return None
        case _:
            assert_never(finding.status)


def _level(status: Status) -> str:
    return "note" if status is Status.WAIVED else "error"


def _waived(finding: FindingRecord) -> dict[str, Any]:
    """Say who answers for a finding: code scanning shows it as suppressed, not as open."""
    if finding.status is not Status.WAIVED or finding.waiver is None:
        return {}
    waiver = finding.waiver
    reason = f"{clean(waiver.owner)} until {waiver.expires}: {clean(waiver.reason, limit=MESSAGE_LIMIT)}"
    return {"suppressions": [{"kind": "external", "status": "accepted", "justification": reason}]}


def _warning_results(document: VerdictDocument) -> Iterator[dict[str, Any]]:
    # Counted by code: a new warning of another kind must not rename those that stand after it.
    seen: Counter[str] = Counter()
    for warning in document.warnings:
        if warning.code in RULES:
            key = f"warning-{warning.code}-{seen[warning.code]}"
            seen[warning.code] += 1
            yield _result(document, warning.code, warning.message, level="warning", key=key)


def _result(document: VerdictDocument, rule: str, message: str, *, level: str, key: str) -> dict[str, Any]:
    subject = _model(document)
    return {
        "ruleId": rule,
        "ruleIndex": list(RULES).index(rule),
        "level": level,
        # Square brackets are links in SARIF's plain text.
        "message": {
            "text": f"{subject}: {clean(message, limit=MESSAGE_LIMIT)}".replace("[", "\\[").replace("]", "\\]")
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(find_file(document))},
                    "region": {"startLine": 1},
                }
            }
        ],
        # Without values and lines, so that the same trouble stays one alert.
        "partialFingerprints": {"finding/v1": f"{quote(subject, safe='')}:{key}"},
    }
