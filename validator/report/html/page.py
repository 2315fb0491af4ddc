"""From a document to what the page shows, in the order in which it shows it. Copies and counts; decides nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from validator.backends.catalog import BASELINE
from validator.judge import Check, Status
from validator.report.groups import (
    Group,
    describe_group,
    describe_number,
    describe_reused,
    find_output,
    first_step,
    group_findings,
    next_steps,
    reading_of,
    repeat_command,
    unseen_by,
)
from validator.report.headline import explain_verdict
from validator.report.html import charts
from validator.report.html.charts import Chart, candidates, kind_of
from validator.report.marks import STATUS_MARKS, VERDICT_MARKS
from validator.report.model import (
    CrashedRecord,
    FindingRecord,
    OutputRecord,
    TimedOutRecord,
    VerdictDocument,
    ViolatedRecord,
)
from validator.report.numbers import (
    format_bytes,
    format_cosine,
    format_duration,
    format_measured,
    format_pair,
    format_quantity,
    format_ratio,
    format_share,
)
from validator.report.previews import Preview, PreviewsDocument, worst_samples
from validator.report.samples import SampleColumns, as_cell
from validator.report.table import output_status
from validator.report.terminal import describe_sandbox
from validator.report.text import clean, clean_lines

ROWS_MAX = 200
"""Rows of any table; of more the number is told."""
OUTPUTS_MAX = 6
"""Outputs with charts: those that use most of their limits."""
CHARTS_MAX = 16
"""Backends with a chart of their own, per output."""
FLIPS_SHOWN = 50
LOG_LINES = 20
THE_RUN = "the run"

_STRONGEST = (Status.REFUSED, Status.EXCEEDED, Status.NOT_MEASURED, Status.WAIVED, Status.WITHIN)

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """A status as word, sign and class; never one without the others."""

    word: str
    mark: str
    kind: str


def view_status(status: Status) -> StatusView:
    """Return how a status is shown."""
    return StatusView(word=status.value, mark=STATUS_MARKS[status], kind=kind_of(status))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """Findings of one cause."""

    status: StatusView
    check: str
    what: str
    facts: tuple[tuple[str, str], ...]
    """Label and text."""
    log: tuple[str, ...]
    next: str | None
    command: str | None
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """One row of the table of findings."""

    anchor: str
    status: StatusView
    check: str
    where: str
    measured: str
    message: str
    waiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """A check of a backend: the strongest status, and the finding to look at."""

    status: StatusView | None
    anchor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Checks by backends."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MatrixCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartView:
    """A chart of one backend."""

    backend: str
    chart: Chart
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """Everything about one output."""

    name: str
    ratios: Chart | None
    ratio_rows: tuple[tuple[str, StatusView, Cells], ...]
    distribution: Chart | None
    key: tuple[tuple[int, str], ...]
    distribution_rows: tuple[Cells, ...]
    samples: tuple[ChartView, ...]
    margins: tuple[ChartView, ...]
    flips: tuple[Cells, ...]
    decisions: tuple[Cells, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """A backend and an output at other batch sizes."""

    backend: str
    output: str
    cells: tuple[tuple[str, StatusView | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstView:
    """One of the worst samples: where it is worst, and what it looks like."""

    sample_id: str
    where: tuple[Cells, ...]
    previews: tuple[Preview, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRow:
    """A fact about the environment, backend by backend."""

    key: str
    cells: Cells
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page."""

    title: str
    verdict: str
    mark: str
    headline: str
    promise: str
    next: str | None
    next_command: str | None
    facts: tuple[tuple[str, str], ...]
    groups: tuple[GroupView, ...]
    warnings: tuple[tuple[str, str], ...]
    findings_open: tuple[FindingView, ...]
    findings_within: tuple[FindingView, ...]
    open_count: str
    within_count: str
    findings_left: int
    matrix: Matrix
    outputs: tuple[OutputView, ...]
    outputs_left: tuple[str, ...]
    has_samples: bool
    batch_sizes: tuple[int, ...]
    batches: tuple[BatchView, ...]
    worst: tuple[WorstView, ...]
    has_previews: bool
    backends: tuple[str, ...]
    environment: tuple[EnvironmentRow, ...]
    settings: tuple[EnvironmentRow, ...]
    times: tuple[Cells, ...]
    digests: tuple[tuple[str, str], ...]
    control: str
    command: str


def make_page(
    document: VerdictDocument,
    samples: dict[tuple[str, str], SampleColumns] | None,
    previews: PreviewsDocument | None,
) -> Page:
    """Put the page together.

    Args:
        document: what to show.
        samples: the per-sample table; None: its charts say that it was not there or not this check's.
        previews: what the worst samples look like; None: they are named only.
    """
    groups = group_findings(document)
    text, command = first_step(document)
    blocking = [f for f in document.findings if f.status is not Status.WITHIN]
    within = [f for f in document.findings if f.status is Status.WITHIN]
    names = _output_names(document)
    shown = sorted(names, key=lambda name: _rank(document, name))[:OUTPUTS_MAX]
    return Page(
        title=document.subject.title,
        verdict=document.verdict.value,
        mark=VERDICT_MARKS[document.verdict],
        headline=document.headline.removeprefix(f"{clean(document.subject.title)}: "),
        promise=explain_verdict(document),
        next=text,
        next_command=command,
        facts=tuple(_facts(document)),
        groups=tuple(_view_group(document, group) for group in groups[:ROWS_MAX]),
        warnings=(
            *((w.code, w.message) for w in document.warnings[:ROWS_MAX]),
            *(("retry", retry) for retry in document.retries[:ROWS_MAX]),
        ),
        findings_open=tuple(map(_view_finding, blocking[:ROWS_MAX])),
        findings_within=tuple(map(_view_finding, within[:ROWS_MAX])),
        open_count=f"{len(blocking):,} of {len(document.findings):,} findings that are not within",
        within_count=f"{len(within):,} of {len(document.findings):,} findings within their limits",
        findings_left=max(0, len(blocking) - ROWS_MAX) + max(0, len(within) - ROWS_MAX),
        matrix=_make_matrix(document),
        outputs=tuple(_view_output(document, name, samples) for name in names if name in shown),
        outputs_left=tuple(name for name in names if name not in shown),
        has_samples=samples is not None,
        batch_sizes=_batch_sizes(document),
        batches=tuple(_batches(document)),
        worst=tuple(_worst(document, previews)),
        has_previews=previews is not None,
        backends=tuple(b.name for b in document.backends),
        environment=tuple(_compare([b.fingerprint for b in document.backends])),
        settings=tuple(_compare([{k: str(v) for k, v in b.settings.ran.items()} for b in document.backends])),
        times=tuple(_times(document)),
        digests=tuple(_digests(document)),
        control=next((f.message for f in document.findings if f.check is Check.POWER), "no fault was planted"),
        command=repeat_command(document, ()),
    )


# --- The top ------------------------------------------------------------------------------------------------------


def _facts(document: VerdictDocument) -> Iterator[tuple[str, str]]:
    subject, golden, policy, onnx = document.subject, document.golden, document.policy, document.onnx
    yield "model", subject.pinned_uri
    yield "checked", f"{document.created_utc[:10]} {document.created_utc[11:16]} UTC, validator {document.tool.version}"
    yield "golden dataset", f"{golden.name}, {golden.samples:,} samples"
    yield "policy", policy.origin
    if onnx is not None:
        yield "ONNX file", f"{onnx.source}, from {onnx.origin}"
    if document.reference.reason is not None:
        yield "reference", f"not fp64 ({document.reference.reason}) but {BASELINE}, over the perturbation floor"


def _digests(document: VerdictDocument) -> Iterator[tuple[str, str]]:
    yield "model", document.subject.digest
    yield "weights", document.subject.weights_digest
    if document.onnx is not None:
        yield "ONNX file", document.onnx.digest
    yield "golden dataset", document.golden.digest
    yield "policy", document.policy.digest
    yield "check", document.check_id
    yield "registry", document.subject.registry_uri
    yield "sandbox", describe_sandbox(document)
    for reused in describe_reused(document):
        yield "reused", reused


# --- Findings -----------------------------------------------------------------------------------------------------


def _view_group(document: VerdictDocument, group: Group) -> GroupView:
    text, options = next_steps(document, group)
    return GroupView(
        status=view_status(group.status),
        check=group.check.value,
        what=describe_group(group),
        facts=tuple(_group_facts(document, group)),
        log=tuple(_group_log(document, group)),
        next=text,
        command=repeat_command(document, options) if options else None,
        anchor=f"finding-{group.worst.id}",
    )


def _group_facts(document: VerdictDocument, group: Group) -> Iterator[tuple[str, str]]:
    if group.is_measured:
        for name in group.backends:
            own = [f for f in group.findings if f.backend == name]
            yield name, "; ".join(describe_number(f, after=at > 0) for at, f in enumerate(own))
    worst = find_output(document, group.worst.backend, group.worst.output)
    if group.check is Check.ERROR_RATIO and worst is not None and worst.worst is not None:
        element = worst.worst
        reference, candidate = format_pair(element.reference, element.candidate)
        where = f"sample {clean(element.sample_id)}, element {element.index:,}"
        yield "worst", f"{where}: reference {reference}, {clean(group.worst.backend or '')} {candidate}"
    elif group.worst.sample_id is not None:
        yield "sample", group.worst.sample_id
    for label, text in (("unseen", unseen_by(document, group)), ("reading", reading_of(document, group))):
        if text:
            yield label, text


def _group_log(document: VerdictDocument, group: Group) -> Iterator[str]:
    """Yield the worker's last words, if it is about a worker."""
    if group.check is not Check.WORKER:
        return
    outcomes = {b.name: b.outcome for b in document.backends}
    name = group.findings[0].backend
    outcome = document.probe if name is None else outcomes.get(name)
    if isinstance(outcome, CrashedRecord | TimedOutRecord | ViolatedRecord):
        yield from clean_lines(outcome.log_tail, lines=LOG_LINES)


def _view_finding(finding: FindingRecord) -> FindingView:
    where = [clean(part) for part in (finding.backend, finding.output) if part is not None]
    waiver = finding.waiver
    return FindingView(
        anchor=f"finding-{finding.id}",
        status=view_status(finding.status),
        check=finding.check.value,
        where=", ".join(where) or THE_RUN,
        measured=_measured_of(finding),
        message=finding.message,
        waiver=""
        if waiver is None
        else f"waived by {clean(waiver.owner)} until {waiver.expires}: {clean(waiver.reason)}",
    )


def _measured_of(finding: FindingRecord) -> str:
    if finding.measured is None or finding.limit is None:
        return ""
    return format_measured(finding.measured, finding.limit)


def _make_matrix(document: VerdictDocument) -> Matrix:
    cells: dict[tuple[Check, str], list[FindingRecord]] = {}
    for finding in document.findings:
        cells.setdefault((finding.check, finding.backend or THE_RUN), []).append(finding)
    columns = tuple(dict.fromkeys([THE_RUN, *(b.name for b in document.backends), *(name for _, name in cells)]))
    checks = [check for check in Check if any(key[0] is check for key in cells)]
    rows = tuple((c.value, tuple(_matrix_cell(cells.get((c, name), [])) for name in columns)) for c in checks)
    return Matrix(columns=columns, rows=rows)


def _matrix_cell(findings: Sequence[FindingRecord]) -> MatrixCell:
    if not findings:
        return MatrixCell(status=None, anchor=None)
    strongest = min(findings, key=lambda f: _STRONGEST.index(f.status))
    return MatrixCell(status=view_status(strongest.status), anchor=f"finding-{strongest.id}")


# --- Outputs ------------------------------------------------------------------------------------------------------


def _output_names(document: VerdictDocument) -> list[str]:
    return list(dict.fromkeys(o.name for b in document.backends for o in b.outputs))


def _rank(document: VerdictDocument, name: str) -> int:
    """Order outputs: the one with the strongest status first; equal ones keep the order of the document."""
    return min(_STRONGEST.index(output_status(document, b.name, name)) for b in document.backends)


def _view_output(
    document: VerdictDocument, name: str, samples: dict[tuple[str, str], SampleColumns] | None
) -> OutputView:
    pairs = [(b, o) for b in document.backends for o in b.outputs if o.name == name]
    own = {b.name: (samples or {}).get((as_cell(b.name), as_cell(name))) for b, _ in pairs}
    drawn = [(b, o, columns) for b, o in pairs if b.name != BASELINE and (columns := own[b.name]) is not None]
    distribution = charts.draw_distributions(document, name)
    return OutputView(
        name=name,
        ratios=charts.draw_error_ratios(document, name) if any(o.ratios is not None for _, o in pairs) else None,
        ratio_rows=tuple(_ratio_rows(document, name)),
        distribution=distribution[0] if distribution is not None else None,
        key=tuple(distribution[1]) if distribution is not None else (),
        distribution_rows=tuple((b.name, *_distribution_cells(o)) for b, o in pairs),
        samples=tuple(
            ChartView(backend=b.name, chart=chart)
            for b, o, columns in drawn[:CHARTS_MAX]
            if (chart := charts.draw_samples(document, b.name, o, columns)) is not None
        ),
        margins=tuple(
            ChartView(backend=b.name, chart=made[0], sentence=made[1])
            for b, _, columns in drawn[:CHARTS_MAX]
            if (made := charts.draw_margins(b.name, name, columns)) is not None
        ),
        flips=tuple(row for b, _, columns in drawn for row in _flips(b.name, columns))[:FLIPS_SHOWN],
        decisions=tuple((b.name, *_decision_cells(o)) for b, o in pairs if o.decisions is not None),
    )


def _ratio_rows(document: VerdictDocument, name: str) -> Iterator[tuple[str, StatusView, Cells]]:
    for backend in candidates(document):
        findings = [
            f
            for f in document.findings
            if f.check is Check.ERROR_RATIO and f.backend == backend.name and f.output == name
        ]
        for finding in findings:
            yield backend.name, view_status(finding.status), (finding.metric or "error ratio", _measured_of(finding))


def _distribution_cells(output: OutputRecord) -> Cells:
    quantiles = output.quantiles
    values = (quantiles.p50, quantiles.p99, quantiles.p999, output.element_max, output.element_limit)
    numbers = ("-" if value is None else format_quantity(value) for value in values)
    return (*numbers, format_cosine(output.cosine), f"{output.unequal:,} of {output.elements:,}")


def _decision_cells(output: OutputRecord) -> Cells:
    decisions = output.decisions
    if decisions is None:
        return ()
    top1, top5, accuracy = decisions.top1, decisions.top5, decisions.accuracy
    return (
        f"{top1.flips:,} of {top1.samples:,}",
        f"{top1.unexplained:,}",
        "-" if top5 is None else f"{top5.flips:,} of {top5.samples:,}",
        f"below {format_share(decisions.rate_bound)}",
        "-"
        if accuracy is None
        else f"{format_share(accuracy.candidate)}, reference {format_share(accuracy.reference)}",
    )


def _flips(backend: str, columns: SampleColumns) -> Iterator[Cells]:
    for at in columns.flipped.nonzero()[0][:FLIPS_SHOWN]:
        reference, candidate = (classes[at] for classes in columns.classes)
        numbers = (columns.margin[at], columns.margin_limit[at], columns.max_abs_error[at])
        yield (backend, columns.ids[at], reference, candidate, *(format_quantity(float(n)) for n in numbers))


# --- Batches ------------------------------------------------------------------------------------------------------


def _batch_sizes(document: VerdictDocument) -> tuple[int, ...]:
    return tuple(sorted({batch.size for b in document.backends for batch in b.batches}))


def _batches(document: VerdictDocument) -> Iterator[BatchView]:
    statuses = {
        (f.backend, f.output, f.metric.rpartition(" at batch ")[2]): f.status
        for f in document.findings
        if f.check is Check.BATCH and f.metric is not None
    }
    for backend in document.backends:
        by_size = {batch.size: {o.name: o for o in batch.outputs} for batch in backend.batches}
        for name in list(dict.fromkeys(o for outputs in by_size.values() for o in outputs))[:OUTPUTS_MAX]:
            cells: list[tuple[str, StatusView | None]] = []
            for size in _batch_sizes(document):
                output = by_size.get(size, {}).get(name)
                status = statuses.get((backend.name, name, str(size)))
                number = "-"
                if output is not None:
                    number = f"{output.unequal:,} differ" if output.ratio is None else format_ratio(output.ratio)
                cells.append((number, None if status is None else view_status(status)))
            yield BatchView(backend=backend.name, output=name, cells=tuple(cells))


# --- Samples, environment, times ------------------------------------------------------------------------------------


def _worst(document: VerdictDocument, previews: PreviewsDocument | None) -> Iterator[WorstView]:
    known = {p.sample: p.inputs for p in previews.samples} if previews is not None else {}
    places: dict[int, list[tuple[float, Cells]]] = {}
    ids: dict[int, str] = {}
    for backend in candidates(document):
        for output in backend.outputs:
            for record in output.worst_samples:
                ids.setdefault(record.sample, record.sample_id)
                ratio, rms = record.error_ratio, f"RMS error {format_quantity(record.rms)}"
                text = rms if ratio is None else f"error ratio {format_ratio(ratio)}"
                places.setdefault(record.sample, []).append((-(ratio or 0.0), (backend.name, output.name, text)))
    for sample in worst_samples(document):
        where = tuple(cells for _, cells in sorted(places.get(sample, []))[:3])
        if where:
            yield WorstView(sample_id=ids[sample], where=where, previews=known.get(sample, ()))


def _compare(columns: Sequence[dict[str, str]]) -> Iterator[EnvironmentRow]:
    """Set facts side by side; a row differs where two backends that know it say different things."""
    for key in list(dict.fromkeys(key for column in columns for key in column))[:ROWS_MAX]:
        known = Counter(column[key] for column in columns if key in column)
        yield EnvironmentRow(key=key, cells=tuple(column.get(key, "-") for column in columns), differs=len(known) > 1)


def _times(document: VerdictDocument) -> Iterator[Cells]:
    for backend in document.backends:
        stages = ", ".join(f"{clean(k)} {format_duration(v)}" for k, v in backend.seconds.items())
        total = format_duration(sum(backend.seconds.values()))
        memory = format_bytes(backend.peak_memory_bytes) if backend.peak_memory_bytes else "-"
        yield (backend.name, backend.outcome.kind, total, memory, stages)
