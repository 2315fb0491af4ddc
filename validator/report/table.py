"""The table of backends: one row per backend and output, as many columns as fit. A row never wraps."""

import math
from collections.abc import Iterator

from rich.cells import cell_len

from validator.backends.catalog import BASELINE, REFERENCE
from validator.judge import Status
from validator.metrics import divide_by_floor
from validator.report.model import BackendRecord, OutputRecord, VerdictDocument
from validator.report.numbers import format_quantity, format_ratio, format_share
from validator.report.text import clean

BACKEND, OUTPUT, RATIO, LIMIT, USED, ELEMENT, ELEMENT_LIMIT, FLIPS, REPEAT, STATUS = range(10)
HEADINGS = (
    "backend", "output", "error ratio", "limit", "used", "worst element", "limit", "flips", "repeat", "status",
)  # fmt: skip
LEFT = frozenset({BACKEND, OUTPUT, REPEAT, STATUS})
"""Words; everything else is a number and stands at the right of its column."""
FIRST_TO_GO = ((USED,), (ELEMENT, ELEMENT_LIMIT), (REPEAT,), (FLIPS,))
"""Columns that are left out, in this order, where the terminal is narrow."""
NAME_LIMIT = 40
NONE = "-"
"""Nothing to say here. Never a zero."""

Row = tuple[str, ...]

_STRONGEST = (Status.REFUSED, Status.EXCEEDED, Status.NOT_MEASURED, Status.WAIVED, Status.WITHIN)


def backend_table(document: VerdictDocument, *, width: int, outputs_max: int) -> list[str]:
    """Lay the table out within the width, as far as leaving columns out can do that.

    Args:
        document: what to show.
        width: characters of a line.
        outputs_max: rows per backend; of more outputs only the one that uses most of its limit is shown.
    """
    rows = [HEADINGS, *backend_rows(document, outputs_max)]
    columns = [c for c in range(len(HEADINGS)) if c != OUTPUT or len({row[OUTPUT] for row in rows[1:]} - {NONE}) > 1]
    lines = _lay_out(rows, columns)
    for group in FIRST_TO_GO:
        if max(map(cell_len, lines)) <= width:
            break
        columns = [c for c in columns if c not in group]
        lines = _lay_out(rows, columns)
    return lines


def _lay_out(rows: list[Row], columns: list[int]) -> list[str]:
    widths = {c: max(cell_len(row[c]) for row in rows) for c in columns}
    return ["  " + "  ".join(_pad(row[c], widths[c], left=c in LEFT) for c in columns).rstrip() for row in rows]


def _pad(text: str, width: int, *, left: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return text + blanks if left else blanks + text


def backend_rows(document: VerdictDocument, outputs_max: int) -> Iterator[Row]:
    """Yield the cells of the table, cleaned: a row for every backend and output, the reference left out.

    Args:
        document: what to show.
        outputs_max: rows per backend; of more outputs only the one that uses most of its limit is shown.
    """
    for backend in document.backends:
        if backend.name == REFERENCE:
            continue
        if not backend.outputs:
            yield (clean(backend.name, limit=NAME_LIMIT), *[NONE] * 8, output_status(document, backend.name, None))
        chosen = backend.outputs
        if len(chosen) > outputs_max:
            # Sorting is stable: a status that blocks comes before any number.
            closest = sorted(chosen, key=_used, reverse=True)
            chosen = tuple(sorted(closest, key=lambda o: _rank(output_status(document, backend.name, o.name)))[:1])
        for output in chosen:
            yield _row(backend, output, output_status(document, backend.name, output.name))


def _used(output: OutputRecord) -> float:
    """Return the share of the limit; NaN is more than anything."""
    if output.ratios is None or output.limits is None:
        return 0.0
    share = output.ratios.pooled / output.limits.pooled
    return math.inf if math.isnan(share) else share


def _rank(status: Status) -> int:
    return _STRONGEST.index(status)


def output_status(document: VerdictDocument, backend: str, output: str | None) -> Status:
    """Return the strongest status among the findings about an output or its whole backend; none is not measured."""
    statuses = {f.status for f in document.findings if f.backend == backend and f.output in (None, output)}
    return next((s for s in _STRONGEST if s in statuses), Status.NOT_MEASURED)


def _row(backend: BackendRecord, output: OutputRecord, status: Status) -> Row:
    repeat = backend.repeat
    differ = "" if repeat is None else f"{format_quantity(repeat.unequal)} differ"
    return (
        clean(backend.name, limit=NAME_LIMIT),
        clean(output.name, limit=NAME_LIMIT),
        *_numbers(backend, output),
        NONE if output.flips is None else f"{output.flips:,}",
        NONE if repeat is None else differ if repeat.unequal else "bitwise",
        status,
    )


def _numbers(backend: BackendRecord, output: OutputRecord) -> tuple[str, str, str, str, str]:
    """Fill the cells from `error ratio` to the limit of `worst element`."""
    ratios, limits = output.ratios, output.limits
    if ratios is not None and limits is not None:
        return (
            format_ratio(ratios.pooled),
            format_ratio(limits.pooled),
            format_share(ratios.pooled / limits.pooled),
            format_ratio(ratios.element),
            format_ratio(limits.element),
        )
    if backend.name == BASELINE:
        # The baseline is the measure: its own error, relative to the output, says what fp32 rounding makes of it.
        floor = divide_by_floor(output.rms, [output.rms_reference])
        return f"{format_quantity(floor)} of RMS", "floor", NONE, NONE, NONE
    return f"{output.unequal:,} differ", NONE, NONE, NONE, NONE
