"""What MLflow is told about a check: numbers, tags and a block for the version's description.

A label for people and searches, not a permit: anyone who may write tags may write these.
"""

import hashlib
import math
import re
from collections.abc import Iterator

from validator.judge import Check, Reference, Status
from validator.report.groups import Group, describe_group, describe_reused, group_findings, repeat_command
from validator.report.headline import describe_measured, largest_ratio
from validator.report.markdown import code, escape, link
from validator.report.marks import STATUS_MARKS, VERDICT_MARKS
from validator.report.model import FindingRecord, OutputRecord, VerdictDocument
from validator.report.numbers import format_measured
from validator.report.text import clean, enumerate_names, short_digest

BLOCK_LIMIT = 1_500
"""Characters of our block in a description that belongs to the user."""
TAG_LIMIT = 900
KEY_LIMIT = 200
"""MLflow takes 250."""


def run_name(document: VerdictDocument) -> str:
    """Name the MLflow run of a check: `alexnet v3 pass`. Lists of runs show little more, and the headline is a tag."""
    subject = document.subject
    what = subject.title if subject.name is None else f"{subject.name} v{subject.version}"
    return f"{clean(what)} {document.verdict}"


# --- Numbers ------------------------------------------------------------------------------------------------------


def annotation_metrics(document: VerdictDocument) -> dict[str, float]:
    """Return finite numbers by key, like `error_ratio.onnxruntime-cpu.logits`, and how many were not finite."""
    found = [*_finding_counts(document), *_output_metrics(document)]
    metrics: dict[str, float] = {}
    for key, value in found:
        if math.isfinite(value):
            metrics[_unique(_metric_key(key), metrics)] = float(value)
    metrics["values_not_finite"] = float(sum(not math.isfinite(value) for _, value in found))
    return metrics


def _finding_counts(document: VerdictDocument) -> Iterator[tuple[str, float]]:
    for status in Status:
        name = status.value.replace(" ", "_")
        yield f"findings.{name}", sum(f.status is status for f in document.findings)
    yield "duration_s", document.duration_s


def _output_metrics(document: VerdictDocument) -> Iterator[tuple[str, float]]:
    for backend in document.backends:
        for output in backend.outputs:
            for name, value in _numbers(output):
                yield f"{name}.{backend.name}.{output.name}", value


def _numbers(output: OutputRecord) -> Iterator[tuple[str, float]]:
    if output.ratios is not None:
        yield "error_ratio", output.ratios.pooled
        yield "error_ratio_p99", output.ratios.p99
        yield "error_ratio_max", output.ratios.worst_sample
        yield "error_ratio_element", output.ratios.element
    yield "rms_error", output.rms
    yield "max_abs_error", output.element_max
    yield "cosine", output.cosine
    yield "nonfinite_mismatches", output.nonfinite_mismatches
    if output.flips is not None:
        yield "top1_flips", output.flips


def _metric_key(key: str) -> str:
    """Keep what MLflow's file and SQL stores both take; a slash would be a folder."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", key)[:KEY_LIMIT]


def _unique(key: str, taken: dict[str, float]) -> str:
    """Return a key with a number where it became equal to another, so that no output hides another."""
    number = 2
    while key in taken:
        key = f"{key.removesuffix(f'-{number - 1}')}-{number}"
        number += 1
    return key


# --- Tags ---------------------------------------------------------------------------------------------------------


def version_tags(document: VerdictDocument) -> dict[str, str]:
    """Return tags for the model version. `validator.verdict` is the registry's to add: it is written last."""
    tags = {
        "validator.headline": clean(document.headline, limit=TAG_LIMIT),
        "validator.checked": document.created_utc,
        "validator.check_id": document.check_id,
        "validator.version": document.tool.version,
        "validator.digest": document.subject.digest,
        "validator.weights_digest": document.subject.weights_digest,
        "validator.golden": f"{clean(document.golden.name)} {document.golden.digest}",
        "validator.policy": f"{clean(document.policy.origin)} {document.policy.digest}",
        "validator.backends": enumerate_names(list(document.policy.required), most=12),
        "validator.verdict_sha256": hashlib.sha256(document.to_json().encode()).hexdigest(),
    }
    if document.onnx is not None:
        tags["validator.onnx_digest"] = document.onnx.digest
    return {key: clean(value, limit=TAG_LIMIT) for key, value in tags.items()}


# --- The description ----------------------------------------------------------------------------------------------


def description_block(document: VerdictDocument, *, report_uri: str) -> str:
    """Return Markdown of at most 1,500 characters, without markers.

    The first line says the verdict, the last one links to the evidence; in between as many groups of findings as there
    is room for.
    """
    first, last = _block_heading(document), _block_link(document, report_uri)
    bullets = list(list_bullets(document))
    for kept in range(len(bullets), -1, -1):
        rest = len(bullets) - kept
        more = [f"- and {rest} more"] if rest else []
        block = "\n".join([first, *bullets[:kept], *more, "", last])
        if len(block) <= BLOCK_LIMIT:
            return block
    return "\n".join([first[: BLOCK_LIMIT // 3], "", last[: BLOCK_LIMIT // 3]])


def _block_heading(document: VerdictDocument) -> str:
    date = f"{document.created_utc[:10]} {document.created_utc[11:16]} UTC"
    verdict = f"**{VERDICT_MARKS[document.verdict]} {document.verdict.value}**"
    digest = code(short_digest(document.subject.digest))
    return f"{verdict} · {date} · validator {escape(document.tool.version)} · subject {digest}"


def _block_link(document: VerdictDocument, report_uri: str) -> str:
    return f"{link('report', report_uri)} · a label, not a permit: {code(repeat_command(document, ()), limit=500)}"


def list_bullets(document: VerdictDocument) -> Iterator[str]:
    """Yield a Markdown bullet for every group of findings, for what is waived and for what is within."""
    if document.reference.kind is Reference.PERTURBATION:
        why = escape(clean(document.reference.reason or "", limit=TAG_LIMIT))
        yield f"- {STATUS_MARKS[Status.WAIVED]} not measured against fp64 but over the perturbation floor: {why}"
    for group in group_findings(document):
        yield f"- {STATUS_MARKS[group.status]} {group.status.value}: {_bullet_text(group)}"
    for text in dict.fromkeys(_waived_text(f) for f in document.findings if f.status is Status.WAIVED):
        yield f"- {STATUS_MARKS[Status.WAIVED]} waived: {text}"
    if (closest := largest_ratio(document, Status.WITHIN)) is not None:
        within = dict.fromkeys(
            f.backend
            for f in document.findings
            if f.check is Check.ERROR_RATIO and f.status is Status.WITHIN and f.backend is not None
        )
        out = {f.backend for f in document.findings if f.status is not Status.WITHIN}
        if names := [name for name in within if name not in out]:
            closest_text = escape(describe_measured(closest))
            yield f"- {STATUS_MARKS[Status.WITHIN]} within: {escape(enumerate_names(names))}, closest {closest_text}"
    for reused in describe_reused(document):
        yield f"- {STATUS_MARKS[Status.WAIVED]} reused: {escape(reused)}"


def _waived_text(finding: FindingRecord) -> str:
    """Say what is exceeded, who answers for it and until when."""
    what = f"{escape(finding.check)} of {escape(clean(finding.backend or 'the run'))}"
    where = f", output {code(finding.output)}" if finding.output is not None else ""
    waiver = finding.waiver
    return what + where + (f", {escape(clean(waiver.owner))} until {escape(waiver.expires)}" if waiver else "")


def _bullet_text(group: Group) -> str:
    names = escape(enumerate_names(list(group.backends)))
    worst = group.worst
    if group.is_measured and worst.measured is not None and worst.limit is not None:
        output = f" output {code(group.output)}," if group.output is not None else ""
        number = escape(format_measured(worst.measured, worst.limit))
        return f"{names},{output} {escape(worst.metric or worst.check)} **{number}**"
    return f"{escape(group.check)}: {escape(describe_group(group))}"
