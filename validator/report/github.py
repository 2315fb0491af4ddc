"""What GitHub Actions shows of a check: the step's summary, annotations, and outputs for later steps.

Three files, because each goes to another place: the summary to `$GITHUB_STEP_SUMMARY`, the outputs to
`$GITHUB_OUTPUT`, the annotations to the log. Names of others stand in all of them, and none becomes a command.
"""

from collections.abc import Iterator

from validator.judge import Status, Verdict
from validator.report.comment import backends, fence, heading, next_step
from validator.report.groups import Group, describe_group, describe_number, group_findings, repeat_command
from validator.report.headline import explain_verdict
from validator.report.markdown import code, escape, link
from validator.report.marks import STATUS_MARKS
from validator.report.model import OutputRecord, VerdictDocument
from validator.report.numbers import format_quantity, format_ratio
from validator.report.text import clean
from validator.report.where import DOCUMENT_NAME, find_file

SUMMARY_LIMIT_BYTES = 900_000
"""Of 1 MiB per step, beyond which GitHub drops the whole summary."""
ANNOTATIONS_MAX = 10
"""GitHub shows ten per level and step, and loses the rest without a word."""
WORST_SHOWN = 20
FINDINGS_SHOWN = 200
MESSAGE_LIMIT = 400
CUT_NOTE_BYTES = 100


# --- The step's summary -------------------------------------------------------------------------------------------


def render_summary(document: VerdictDocument, *, report_url: str | None = None) -> str:
    """Return Markdown below 900 kB. What has no room is cut between sections, from the end, and counted."""
    sections = [s for s in _sections(document, report_url) if s]
    kept: list[str] = []
    size = CUT_NOTE_BYTES
    for section in sections:
        size += len(section.encode()) + 2
        if size > SUMMARY_LIMIT_BYTES:
            break
        kept.append(section)
    if cut := len(sections) - len(kept):
        kept.append(f"cut: {cut} sections, see report.html")
    return "\n\n".join(kept) + "\n"


def _sections(document: VerdictDocument, report_url: str | None) -> Iterator[str]:
    """Yield the sections, most important first: the cut takes the last."""
    yield heading(document)
    yield explain_verdict(document)
    yield escape(document.headline, limit=MESSAGE_LIMIT)
    yield next_step(document)
    yield link("Report", report_url) if report_url is not None else ""
    yield "\n".join(f"- {mark_group(group)}" for group in group_findings(document)[:FINDINGS_SHOWN])
    yield backends(document, rows_max=FINDINGS_SHOWN, outputs_max=FINDINGS_SHOWN)
    yield "\n".join(f"- warning {code(w.code)}: {escape(w.message, limit=MESSAGE_LIMIT)}" for w in document.warnings)
    yield _worst(document)
    yield f"Repeat it:\n\n{fence(repeat_command(document, ()))}"
    yield _environments(document)


def mark_group(group: Group) -> str:
    """Return a group as one line of Markdown."""
    return f"{STATUS_MARKS[group.status]} {group.status.value} {code(group.check)}: {escape(_say(group), limit=600)}"


def _say(group: Group) -> str:
    """Return a group as one cleaned line: what, where, and the worst number of its limit."""
    worst = group.worst
    what = describe_group(group)
    if not group.is_measured or worst.measured is None or worst.limit is None:
        return what
    return f"{what}: {describe_number(worst, after=False)}"


def _worst(document: VerdictDocument) -> str:
    found = [
        (sample, backend.name, output)
        for backend in document.backends
        for output in backend.outputs
        for sample in output.worst_samples
        if sample.error_ratio is not None
    ]
    if not found:
        return ""
    found.sort(key=lambda entry: -(entry[0].error_ratio or 0.0))
    lines = ["| sample | backend | output | error ratio | limit | RMS error |", "|---|---|---|--:|--:|--:|"]
    for sample, backend, output in found[:WORST_SHOWN]:
        ratio = escape(format_ratio(sample.error_ratio or 0.0))
        names = [code(name).replace("|", "&#124;") for name in (sample.sample_id, backend, output.name)]
        lines.append(f"| {' | '.join(names)} | {ratio} | {_limit(output)} | {escape(format_quantity(sample.rms))} |")
    return _folded(f"The {min(len(found), WORST_SHOWN)} worst samples", "\n".join(lines))


def _limit(output: OutputRecord) -> str:
    return "-" if output.limits is None else escape(format_ratio(output.limits.worst_sample))


def _environments(document: VerdictDocument) -> str:
    lines = [
        f"- {code(b.name)}: " + ", ".join(f"{escape(k)} {escape(v)}" for k, v in sorted(b.fingerprint.items()))
        for b in document.backends
        if b.fingerprint
    ]
    return _folded("Environment", "\n".join(lines)) if lines else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


# --- Annotations --------------------------------------------------------------------------------------------------


def render_annotations(document: VerdictDocument) -> str:
    """Return at most ten workflow commands, one a line: the first says the verdict and the counts, then the groups."""
    level = "notice" if document.verdict is Verdict.PASS else "error"
    lines = [_command(level, f"validator {document.verdict.value}", document.headline)]
    lines += [
        _command(_level(group), f"{group.status.value}: {group.check.value}", _say(group), _at(document))
        for group in group_findings(document)
    ]
    lines += [_command("warning", f"warning: {w.code}", w.message) for w in document.warnings]
    return "\n".join(lines[:ANNOTATIONS_MAX]) + "\n"


def _level(group: Group) -> str:
    return "error" if group.status in (Status.REFUSED, Status.EXCEEDED) else "warning"


def _at(document: VerdictDocument) -> str | None:
    """Return the policy file, where the check had one."""
    path = find_file(document)
    return None if path == DOCUMENT_NAME else path


def _command(level: str, title: str, message: str, file: str | None = None) -> str:
    properties = f"title={_encode_property(clean(title))}"
    if file is not None:
        properties = f"file={_encode_property(file)},line=1,{properties}"
    return f"::{level} {properties}::{_encode(clean(message, limit=MESSAGE_LIMIT))}"


def _encode(text: str) -> str:
    """Encode what the runner reads as the end of a line, or as an encoding."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _encode_property(text: str) -> str:
    return _encode(text).replace(":", "%3A").replace(",", "%2C")


# --- Outputs for later steps --------------------------------------------------------------------------------------


def render_outputs(document: VerdictDocument) -> str:
    """Return `name=value` lines. A value is one cleaned line, so it can neither end early nor set another output."""
    values = {
        "verdict": document.verdict.value,
        "headline": document.headline,
        "check-id": document.check_id,
        "subject": document.subject.pinned_uri,
        "subject-digest": document.subject.digest,
        "policy-digest": document.policy.digest,
        "golden-digest": document.golden.digest,
        "exceeded": str(sum(f.status is Status.EXCEEDED for f in document.findings)),
        "findings": str(len(document.findings)),
    }
    return "".join(f"{name}={clean(value, limit=1_000)}\n" for name, value in values.items())
