"""Pooling errors over representative samples, and over those that were added to them, apart.

Samples that were chosen or made to be extreme have larger errors, in healthy backends too. Pooled with the others they
would raise the noise floor under all: a dataset would find less because it has more in it. So both parts are held
against their own floors, and the worse of both counts.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from validator.backends.catalog import Backend
from validator.compare import OutputComparison
from validator.golden.format import Stratum
from validator.judge.findings import Evidence
from validator.judge.noise import baseline_rows, roundoff_of
from validator.metrics import ErrorRatios, ErrorSummary, Floats, Rows, error_ratios, summarize

PART_SAMPLES = 8
"""A part with fewer samples is none: its baseline may be exact by chance. Then all samples are pooled."""


def ratios_of(evidence: Evidence, row: Backend, output: OutputComparison) -> tuple[ErrorRatios, ErrorSummary]:
    """Return the `pooled_ratios` of one output of a row over its own baseline, in the class that it is judged in."""
    return pooled_ratios(
        evidence,
        output.rows,
        baseline_rows(evidence, row, output.name),
        unit_roundoff=roundoff_of(evidence, row, output.name),
    )


def floors_of(
    evidence: Evidence, row: Backend, output: OutputComparison, of: Literal["sample_max", "element_max"]
) -> Floats:
    """Return the `part_floors` of one output of a row over its own baseline, in the class that it is judged in."""
    return part_floors(
        evidence,
        output.rows,
        baseline_rows(evidence, row, output.name),
        unit_roundoff=roundoff_of(evidence, row, output.name),
        of=of,
    )


def split_rows(evidence: Evidence, rows: Rows) -> list[Rows]:
    """Split the rows of some samples into the representative ones and those that were added."""
    is_added = np.array([stratum is not Stratum.REPRESENTATIVE for stratum in evidence.strata], dtype=bool)
    if min(is_added.sum(), (~is_added).sum()) < PART_SAMPLES:
        return [rows]
    added = is_added[rows["sample"]]
    return [rows[~added], rows[added]]


def pooled_ratios(
    evidence: Evidence, rows: Rows, baseline: Rows | None, *, unit_roundoff: float
) -> tuple[ErrorRatios, ErrorSummary]:
    """Return each error ratio in the part where it is larger, and the errors of the part with the worse worst sample.

    Args:
        evidence: says which samples are representative.
        rows: of the candidate, of all samples or of some.
        baseline: of all samples; None: the unit roundoff alone is the floor.
        unit_roundoff: u of the candidate's precision class.

    Returns:
        Ratios as of `error_ratios`; NaN where either part has NaN. A part without an element that was compared is left
        out, unless nothing was compared at all: then all is NaN.
    """
    found: list[tuple[ErrorRatios, ErrorSummary]] = []
    for part, base in _with_baseline(evidence, rows, baseline):
        if part["compared"].any():
            summary, floor = summarize(part), None if base is None else summarize(base)
            found.append((error_ratios(summary, floor, unit_roundoff=unit_roundoff), summary))
    if not found:
        summary = summarize(rows)
        return error_ratios(summary, None, unit_roundoff=unit_roundoff), summary
    ratios = ErrorRatios(
        pooled=_largest(r.pooled for r, _ in found),
        p99=_largest(r.p99 for r, _ in found),
        worst_sample=_largest(r.worst_sample for r, _ in found),
        element=_largest(r.element for r, _ in found),
    )
    _, summary = max(found, key=lambda part: (math.isnan(part[0].worst_sample), part[0].worst_sample))
    return ratios, summary


def part_floors(
    evidence: Evidence,
    rows: Rows,
    baseline: Rows | None,
    *,
    unit_roundoff: float,
    of: Literal["sample_max", "element_max"],
) -> Floats:
    """Return for each row the noise floor of the ratio `worst_sample` or `element` in its part, shape (rows,).

    NaN where nothing of the part was compared, in the candidate or in the baseline.
    """
    floors = np.full(len(rows), math.nan)
    for part, base in _with_baseline(evidence, rows, baseline):
        known = [unit_roundoff * getattr(summarize(part), f"{of}_reference")]
        known += [] if base is None else [getattr(summarize(base), of)]
        floors[np.isin(rows["sample"], part["sample"])] = _largest(known)
    return floors


def _with_baseline(evidence: Evidence, rows: Rows, baseline: Rows | None) -> list[tuple[Rows, Rows | None]]:
    parts = split_rows(evidence, rows)
    floors: Sequence[Rows | None] = [None] * len(parts) if baseline is None else split_rows(evidence, baseline)
    return list(zip(parts, floors, strict=True))


def _largest(values: Iterable[float]) -> float:
    """Return the largest value; NaN if there is one."""
    return float(np.max(np.fromiter(values, dtype=float)))
