"""The per-sample table: every sample of every output of every backend, for whoever wants to look for a pattern."""

import csv
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from validator.backends.catalog import REFERENCE, Backend
from validator.compare import OutputComparison
from validator.golden.dataset import GoldenDataset
from validator.judge import Evidence, floors_of, margin_limits, roundoff_of
from validator.metrics import Counts, Floats, Rows, own_sample_ratios
from validator.policy import Policy
from validator.report.build import is_budgeted
from validator.report.text import NAME_LIMIT, clean

SAMPLES_NAME = "samples.csv"


class ColumnType(StrEnum):
    """What a column holds; numbers and counts may be empty, where they are not known."""

    NAME = "name"
    COUNT = "count"
    NUMBER = "number"


COLUMN_TYPES: Mapping[str, ColumnType] = MappingProxyType(
    {
        "backend": ColumnType.NAME,
        "output": ColumnType.NAME,
        "sample": ColumnType.COUNT,
        "sample_id": ColumnType.NAME,
        "stratum": ColumnType.NAME,
        "label": ColumnType.COUNT,
        "elements": ColumnType.COUNT,
        "rms_error": ColumnType.NUMBER,
        "rms_reference": ColumnType.NUMBER,
        "error_ratio": ColumnType.NUMBER,
        "error_ratio_own_sample": ColumnType.NUMBER,
        "max_abs_error": ColumnType.NUMBER,
        "worst_index": ColumnType.COUNT,
        "worst_reference": ColumnType.NUMBER,
        "worst_candidate": ColumnType.NUMBER,
        "nonfinite_mismatches": ColumnType.COUNT,
        "unequal": ColumnType.COUNT,
        "top1_reference": ColumnType.COUNT,
        "top1_candidate": ColumnType.COUNT,
        "margin": ColumnType.NUMBER,
        "margin_limit": ColumnType.NUMBER,
    }
)
COLUMNS = tuple(COLUMN_TYPES)

_FORMULA = tuple("=+-@＝＋－＠")  # noqa: RUF001 - full width, which spreadsheets take for the same


def samples_table(policy: Policy, evidence: Evidence, golden: GoldenDataset) -> str:
    """Write the per-sample table as CSV: numbers in full, what is not known is empty.

    `error_ratio` is the sample's RMS error over the noise floor of the worst sample, which `error ratio, worst sample`
    is judged by; `error_ratio_own_sample` is the same over the sample's own floor. `margin` is the reference's best
    score minus its second best, `margin_limit` the largest margin at which the budget explains a flip.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    ids = [as_cell(golden.sample_id(sample)) for sample in range(evidence.samples)]
    for backend in evidence.backends:
        if backend.row.name == REFERENCE or backend.main is None:
            continue
        for output in backend.main.outputs.values():
            table.writerows(_lines(policy, evidence, backend.row, output, ids))
    return text.getvalue()


def _lines(
    policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison, ids: Sequence[str]
) -> Iterator[tuple[object, ...]]:
    """Yield the lines of one output, column by column put together: row by row would take ten times as long."""
    rows = output.rows
    samples: list[int] = rows["sample"].tolist()
    compared = rows["compared"] > 0
    rms = _rms(rows, "sum_sq_error")
    is_candidate = is_budgeted(evidence, row, output)
    floors = floors_of(evidence, row, output, "sample_max") if is_candidate else None
    own = _own_ratios(evidence, row, output)
    scored = rows["top1_flip"] >= 0
    has_limit = is_candidate and bool(scored.all())
    return zip(
        itertools.repeat(as_cell(row.name), len(rows)),
        itertools.repeat(as_cell(output.name)),
        samples,
        (ids[sample] for sample in samples),
        (evidence.strata[sample].value if evidence.strata else "" for sample in samples),
        (evidence.labels[sample] if evidence.labels is not None else "" for sample in samples),
        rows["elements"].tolist(),
        _known(rms, compared),
        _known(_rms(rows, "sum_sq_reference"), compared),
        _known(_over(rms, floors), compared) if floors is not None else itertools.repeat(""),
        (own.get(sample, "") for sample in samples),
        rows["max_abs_error"].tolist(),
        rows["worst_index"].tolist(),
        rows["worst_reference"].tolist(),
        rows["worst_candidate"].tolist(),
        rows["nonfinite_mismatches"].tolist(),
        rows["unequal"].tolist(),
        _known(rows["reference_top1"], scored),
        _known(rows["candidate_top1"], scored),
        _known(rows["margin"], scored),
        _known(margin_limits(policy, evidence, row, output), scored) if has_limit else itertools.repeat(""),
        strict=False,
    )


def _rms(rows: Rows, field: str) -> Floats:
    compared = rows["compared"]
    mean: Floats = np.divide(rows[field], compared, out=np.zeros(len(rows)), where=compared > 0)
    return np.sqrt(mean)


def _over(rms: Floats, floors: Floats) -> Floats:
    """Divide by the floor as every ratio is: nothing over nothing is 0, something over nothing is infinite."""
    ratios: Floats = np.divide(rms, floors, out=np.where(rms > 0, np.inf, 0.0), where=~(floors <= 0))
    return ratios


def _known(values: Floats | Counts, where: npt.NDArray[np.bool_]) -> list[object]:
    """Return the values as cells, those that are not known empty. The CSV writer gives floats their shortest form."""
    return [value if known else "" for value, known in zip(values.tolist(), where.tolist(), strict=True)]


def _own_ratios(evidence: Evidence, row: Backend, output: OutputComparison) -> dict[int, float]:
    """Return the own-sample ratios of a row that has a noise floor, by sample."""
    baseline = next((b for b in evidence.backends if b.row.name == row.baseline and b.main is not None), None)
    if baseline is None or baseline.main is None or output.name not in baseline.main.outputs:
        return {}
    roundoff = roundoff_of(evidence, row, output.name)
    samples, ratios = own_sample_ratios(output.rows, baseline.main.outputs[output.name].rows, unit_roundoff=roundoff)
    return dict(zip(samples.tolist(), ratios.tolist(), strict=True))


def as_cell(name: str) -> str:
    """Return a name as one cell that no spreadsheet takes for a formula. Doing it twice changes nothing."""
    cleaned = clean(name)
    return f"'{clean(name, limit=NAME_LIMIT - 1)}" if cleaned.lstrip().startswith(_FORMULA) else cleaned


# --- Reading it again ---------------------------------------------------------------------------------------------


class TableError(ValueError):
    """The bytes are no per-sample table, though they begin as one."""


def clean_table(table: bytes) -> bytes:
    """Return the table with every name made safe for a spreadsheet; one that a check wrote comes back as it is.

    Raises:
        TableError: a line has not the cells of the table, or a cell that should be a number is none.
    """
    try:
        cells = {name: as_cell(name) for name in _read_names(table)}
        if all(name == cell for name, cell in cells.items()):
            return table
        text = io.StringIO()
        written = csv.writer(text, lineterminator="\n")
        written.writerow(COLUMNS)
        for line in _read_lines(table):
            written.writerow([cells[cell] if at in _NAMES else cell for at, cell in enumerate(line)])
    except (ValueError, csv.Error) as error:
        raise TableError(str(error)) from error
    return text.getvalue().encode()


def _read_names(table: bytes) -> set[str]:
    """Return every name of a table in which everything else is empty or a number.

    Raises:
        ValueError: it is not so, or a line has more or fewer cells.
    """
    names: set[str] = set()
    names_of, numbers_of = itemgetter(*_NAMES), itemgetter(*_NUMBERS)
    for line in _read_lines(table):
        if len(line) != len(COLUMNS):
            raise ValueError(f"a line has {len(line)} of {len(COLUMNS)} cells")
        names.update(names_of(line))
        for number in filter(None, numbers_of(line)):
            float(number)
    return names


_NAMES = tuple(at for at, kind in enumerate(COLUMN_TYPES.values()) if kind is ColumnType.NAME)
_NUMBERS = tuple(at for at, kind in enumerate(COLUMN_TYPES.values()) if kind is not ColumnType.NAME)


def _read_lines(table: bytes) -> Iterator[list[str]]:
    """Read the lines below the heading."""
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(table), encoding="utf-8", newline=""))
    next(lines, None)
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns:
    """What reports draw of one output of one backend, a value per sample; NaN where a cell is empty."""

    ids: tuple[str, ...]
    strata: tuple[str, ...]
    error_ratio: Floats
    max_abs_error: Floats
    margin: Floats
    margin_limit: Floats
    classes: tuple[tuple[str, ...], tuple[str, ...]]
    """The reference's best classes and the candidate's, empty where the output is no vector of scores."""

    @property
    def largest_ratio(self) -> float:
        """The largest error ratio that is known; NaN where none is."""
        return max((ratio for ratio in self.error_ratio.tolist() if not math.isnan(ratio)), default=math.nan)

    @property
    def flipped(self) -> npt.NDArray[np.bool_]:
        """Where the two best classes differ."""
        return np.array(
            [reference != candidate for reference, candidate in zip(*self.classes, strict=True)], dtype=bool
        )


def read_table(table: bytes) -> dict[tuple[str, str], SampleColumns]:
    """Read the per-sample table, by the cells of backend and output.

    Raises:
        TableError: a cell that should be a number is none, or a line has too few cells.
    """
    try:
        return _read_columns(_read_lines(table))
    except (ValueError, IndexError, csv.Error) as error:
        raise TableError(str(error)) from error


def _read_columns(lines: Iterator[list[str]]) -> dict[tuple[str, str], SampleColumns]:
    found: dict[tuple[str, str], SampleColumns] = {}
    # Ids, strata and classes come back for every backend: one copy of each is enough.
    shared: dict[str, str] = {}
    # One output at a time: all cells of all lines at once would be many times as large as the text.
    for key, group in itertools.groupby(lines, key=lambda line: (line[0], line[1])):
        columns = list(zip(*group, strict=True))
        if len(columns) != len(COLUMNS) or key in found:
            raise ValueError(f"the lines of {key} have {len(columns)} of {len(COLUMNS)} cells, or stand apart")
        ids, strata, reference, candidate = (tuple(shared.setdefault(c, c) for c in columns[at]) for at in _WORDS)
        error_ratio, max_abs_error, margin, margin_limit = (
            np.fromiter((float(cell or "nan") for cell in columns[at]), dtype=np.float64) for at in _DRAWN
        )
        found[key] = SampleColumns(
            ids=ids,
            strata=strata,
            error_ratio=error_ratio,
            max_abs_error=max_abs_error,
            margin=margin,
            margin_limit=margin_limit,
            classes=(reference, candidate),
        )
    return found


_WORDS = tuple(map(COLUMNS.index, ("sample_id", "stratum", "top1_reference", "top1_candidate")))
_DRAWN = tuple(map(COLUMNS.index, ("error_ratio", "max_abs_error", "margin", "margin_limit")))
