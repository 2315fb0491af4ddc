"""The per-sample table: every sample of every output of every backend, for whoever wants to look for a pattern."""

import csv
import io
from collections.abc import Iterator

from validator.backends.catalog import REFERENCE, Backend
from validator.compare import OutputComparison
from validator.golden.dataset import GoldenDataset
from validator.judge import Evidence, roundoff_of
from validator.metrics import Rows, own_sample_ratios
from validator.report.text import clean

COLUMNS = (
    "backend", "output", "sample", "sample_id", "stratum", "label", "elements", "rms_error", "rms_reference",
    "error_ratio_own_sample", "max_abs_error", "worst_index", "worst_reference", "worst_candidate",
    "nonfinite_mismatches", "unequal", "top1_reference", "top1_candidate", "margin",
)  # fmt: skip

_FORMULA = ("=", "+", "-", "@")


def samples_table(evidence: Evidence, golden: GoldenDataset) -> str:
    """Write the per-sample table as CSV: numbers in full, what is not known is empty.

    `error_ratio_own_sample` is the sample's RMS error over its own noise floor, empty where none is known.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for backend in evidence.backends:
        if backend.row.name == REFERENCE or backend.main is None:
            continue
        for output in backend.main.outputs.values():
            table.writerows(_lines(evidence, golden, backend.row, output))
    return text.getvalue()


def _lines(
    evidence: Evidence, golden: GoldenDataset, row: Backend, output: OutputComparison
) -> Iterator[tuple[object, ...]]:
    ratios = _own_ratios(evidence, row, output)
    for at in output.rows:
        sample, compared = int(at["sample"]), int(at["compared"])
        yield (
            _cell(row.name),
            _cell(output.name),
            sample,
            _cell(golden.sample_id(sample)),
            evidence.strata[sample].value if evidence.strata else "",
            evidence.labels[sample] if evidence.labels is not None else "",
            int(at["elements"]),
            repr(float(at["sum_sq_error"] / compared) ** 0.5) if compared else "",
            repr(float(at["sum_sq_reference"] / compared) ** 0.5) if compared else "",
            repr(ratios[sample]) if sample in ratios else "",
            repr(float(at["max_abs_error"])),
            int(at["worst_index"]),
            repr(float(at["worst_reference"])),
            repr(float(at["worst_candidate"])),
            int(at["nonfinite_mismatches"]),
            int(at["unequal"]),
            *(("", "", "") if at["top1_flip"] < 0 else _decision(at)),
        )


def _decision(at: Rows) -> tuple[int, int, str]:
    return int(at["reference_top1"]), int(at["candidate_top1"]), repr(float(at["margin"]))


def _own_ratios(evidence: Evidence, row: Backend, output: OutputComparison) -> dict[int, float]:
    """Return the own-sample ratios of a row that has a noise floor, by sample."""
    baseline = next((b for b in evidence.backends if b.row.name == row.baseline and b.main is not None), None)
    if baseline is None or baseline.main is None or output.name not in baseline.main.outputs:
        return {}
    roundoff = roundoff_of(evidence, row, output.name)
    samples, ratios = own_sample_ratios(output.rows, baseline.main.outputs[output.name].rows, unit_roundoff=roundoff)
    return dict(zip(samples.tolist(), ratios.tolist(), strict=True))


def _cell(name: str) -> str:
    """Return a name as one cell that no spreadsheet takes for a formula."""
    cleaned = clean(name)
    return f"'{cleaned}" if cleaned.startswith(_FORMULA) else cleaned
