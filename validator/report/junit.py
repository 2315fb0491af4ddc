"""JUnit XML: a suite per backend, a case per finding. A failure is `exceeded`, an error is what nobody knows.

`<failure>` and `<error>` mean what exit codes 1 and 3 mean: the model is wrong, or it could not be measured. What is
refused is an error, too: nothing was measured that could be believed.
"""

from collections.abc import Iterator
from typing import assert_never
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from validator.judge import Check, Status
from validator.report.model import FindingRecord, VerdictDocument
from validator.report.numbers import format_measured
from validator.report.text import clean

THE_RUN = "the run"
"""The suite of findings that are about no single backend."""
MESSAGE_LIMIT = 1_000


def render_junit(document: VerdictDocument) -> str:
    """Return the XML text, one suite for each backend in the order of the document."""
    title = clean(document.subject.title)
    root = Element("testsuites", name=f"validator {title}", time=_seconds(document.duration_s))
    for name in _suites(document):
        own = [f for f in document.findings if (f.backend or THE_RUN) == name]
        seconds = sum(s for b in document.backends if b.name == name for s in b.seconds.values())
        suite = SubElement(
            root, "testsuite", name=clean(name), timestamp=document.created_utc.rstrip("Z"), time=_seconds(seconds)
        )
        for finding in own:
            _add_case(suite, finding, f"validator.{clean(name)}")
        _count(suite, [suite])
    _count(root, list(root))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _suites(document: VerdictDocument) -> list[str]:
    """Name the suites: the run's own, the backends', and those of findings about backends that are not listed."""
    backends = [b.name for b in document.backends]
    return list(dict.fromkeys([THE_RUN, *backends, *(f.backend for f in document.findings if f.backend is not None)]))


def _add_case(suite: Element, finding: FindingRecord, class_name: str) -> None:
    case = SubElement(suite, "testcase", classname=class_name, name=_case_name(finding), time="0")
    message = clean(finding.message, limit=MESSAGE_LIMIT)
    match finding.status:
        case Status.WITHIN:
            return
        case Status.WAIVED:
            owner = (
                f"waived by {clean(finding.waiver.owner)} until {finding.waiver.expires}: " if finding.waiver else ""
            )
            SubElement(case, "skipped", message=f"{owner}{message}")
            return
        case Status.EXCEEDED:
            element = SubElement(case, "failure", type=finding.check, message=_summary(finding))
        case Status.NOT_MEASURED | Status.REFUSED:
            element = SubElement(case, "error", type=f"{finding.status}: {finding.check}", message=message)
        case _:
            assert_never(finding.status)
    element.text = "\n".join(_details(finding))


def _summary(finding: FindingRecord) -> str:
    """Say what exceeded by how much: most viewers show this line, and the details only when they are opened."""
    message = clean(finding.message, limit=MESSAGE_LIMIT)
    if finding.measured is None or finding.limit is None or finding.check is Check.WEIGHTS:
        return message
    return f"{message}: {format_measured(finding.measured, finding.limit)}"


def _case_name(finding: FindingRecord) -> str:
    """Name a case stably: check, output and metric, and the finding's id, which tells equal names apart."""
    about = [finding.check.value, *(clean(part) for part in (finding.output, finding.metric) if part is not None)]
    return f"{', '.join(about)} [{finding.id}]"


def _details(finding: FindingRecord) -> Iterator[str]:
    yield clean(finding.message, limit=MESSAGE_LIMIT)
    if finding.measured is not None and finding.limit is not None:
        yield f"measured  {format_measured(finding.measured, finding.limit)}"
    if finding.sample_id is not None:
        yield f"sample    {clean(finding.sample_id)}"
    if finding.hint is not None:
        yield f"next      {clean(finding.hint, limit=MESSAGE_LIMIT)}"


def _count(element: Element, suites: list[Element]) -> None:
    """Put the totals of some suites on an element."""
    cases = [case for suite in suites for case in suite.iter("testcase")]
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(key, str(sum(case.find(tag) is not None for case in cases)))
    element.set("tests", str(len(cases)))


def _seconds(value: float) -> str:
    return f"{value:.3f}"
