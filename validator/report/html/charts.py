"""The charts of the report, each drawn for two widths. They show; statuses come from the findings, never from here.

Marks mean a status by shape and colour: a dot is within, a square is exceeded, hatching is not measured.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from validator.backends.catalog import BASELINE, REFERENCE
from validator.judge import Check, Status
from validator.metrics import Floats
from validator.report.html.svg import (
    LogAxis,
    decades_around,
    number,
    picture,
    points,
    tag,
    thin_cloud,
    thin_line,
    words,
)
from validator.report.marks import STATUS_MARKS
from validator.report.model import BackendRecord, DistributionRecord, FindingRecord, OutputRecord, VerdictDocument
from validator.report.numbers import format_measured, format_quantity, format_ratio
from validator.report.samples import SampleColumns
from validator.report.table import output_status
from validator.report.text import clean

Flags = npt.NDArray[np.bool_]

WIDE, NARROW = 960, 350
"""Pixels of the page's column and of a phone's."""
POOLED = "error ratio"
WORST_SAMPLE = "error ratio, worst sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart: the same drawing for wide and for narrow pages."""

    wide: Markup
    narrow: Markup


def _both(draw: Callable[[int], Markup]) -> Chart:
    return Chart(wide=draw(WIDE), narrow=draw(NARROW))


def kind_of(status: Status) -> str:
    """Return the class of the marks of a status."""
    return status.value.replace(" ", "-")


def candidates(document: VerdictDocument) -> list[BackendRecord]:
    """Return the backends that are judged."""
    return [b for b in document.backends if b.name not in (REFERENCE, BASELINE)]


# --- Error ratio --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorRatios:
    """A row per backend: pooled error ratio, up to p99, worst sample and worst element, beside the limit."""

    document: VerdictDocument
    output: str

    def __call__(self, width: int) -> Markup:
        """Draw it. On a narrow page names and numbers stand above the row, else at its sides."""
        narrow = width < 600
        backends = candidates(self.document)
        left, right = (8, width - 8) if narrow else (190, width - 230)
        step, top = (58, 26) if narrow else (36, 30)
        height = top + step * len(backends) + 8
        findings = {(f.backend, f.metric): f for f in self.document.findings if f.output == self.output}
        numbers = [
            n for f in findings.values() if f.check is Check.ERROR_RATIO for n in (f.measured, f.limit) if n is not None
        ]
        low, high = decades_around([n for n in numbers if n > 0.1], low=0.1, high=10)
        axis = LogAxis(low=low, high=high, start=left, stop=right)
        parts = [*_grid_x(axis, top - 6, height - 4, most=4 if narrow else 8, label_y=14)]
        for at, backend in enumerate(backends):
            y = top + step * at + (40 if narrow else 18)
            parts += self._row(backend, findings, axis, y, narrow=narrow, width=width)
        return picture(width, height, f"error ratio of {clean(self.output)} by backend", *parts)

    def _row(
        self,
        backend: BackendRecord,
        findings: dict[tuple[str | None, str | None], FindingRecord],
        axis: LogAxis,
        y: float,
        *,
        narrow: bool,
        width: int,
    ) -> Iterator[Markup]:
        pooled = findings.get((backend.name, POOLED))
        output = backend.find_output(self.output)
        status = output_status(self.document, backend.name, self.output)
        known = pooled is not None and pooled.measured is not None and pooled.limit is not None
        text = format_measured(pooled.measured, pooled.limit) if known else "no ratio"  # type: ignore[union-attr,arg-type]
        text_y = y - 20 if narrow else y + 4
        yield words(0 if not narrow else 8, text_y, clean(backend.name, limit=24), kind="name")
        yield words(
            width - 8 if narrow else width,
            text_y,
            f"{STATUS_MARKS[status]} {status.value}  {text}",
            anchor="end",
            kind="label",
        )
        if not known or output is None or output.ratios is None:
            yield tag(
                "rect", x=axis.start, y=y - 8, width=axis.stop - axis.start, height=16,
                class_=f"hatched {kind_of(status)}",
            )  # fmt: skip
            return
        ratios = output.ratios
        at = axis.place(ratios.pooled)
        limit = axis.place(pooled.limit or 0.0)  # type: ignore[union-attr]
        yield tag("rect", x=axis.start, y=y - 8, width=max(0.0, limit - axis.start), height=16, class_="allowed")
        yield _line(limit, y - 13, limit, y + 13, "limit")
        yield _line(at, y, axis.place(ratios.p99), y, f"whisker {kind_of(status)}")
        yield tag("circle", cx=axis.place(ratios.worst_sample), cy=y, r=4, class_=f"ring {kind_of(status)}")
        x = axis.place(ratios.element)
        yield tag("path", d=f"M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8", class_=f"cross {kind_of(status)}")
        yield _mark(at, y, pooled.status)  # type: ignore[union-attr]


def _mark(x: float, y: float, status: Status) -> Markup:
    if status in (Status.WITHIN, Status.WAIVED):
        return tag("circle", cx=x, cy=y, r=5.5, class_=f"mark {kind_of(status)}")
    return tag("rect", x=x - 5.5, y=y - 5.5, width=11, height=11, class_=f"mark {kind_of(status)}")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("path", d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", class_=kind)


def _grid_x(axis: LogAxis, top: float, bottom: float, *, most: int, label_y: float) -> Iterator[Markup]:
    for x, label in axis.ticks(most):
        yield _line(x, top, x, bottom, "grid")
        anchor = "start" if x < axis.start + 20 else "end" if x > axis.stop - 20 else "middle"
        yield words(x, label_y, label, anchor=anchor, kind="tick")


def _grid_y(axis: LogAxis, left: float, right: float, *, most: int) -> Iterator[Markup]:
    for y, label in axis.ticks(most):
        yield _line(left, y, right, y, "grid")
        yield words(left - 6, y + 4, label, anchor="end", kind="tick")


# --- Distribution -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Distributions:
    """The share of elements whose error is larger than x, baseline and candidates, beside the largest that may be."""

    document: VerdictDocument
    output: str

    def lines(self) -> list[tuple[int, BackendRecord, OutputRecord, DistributionRecord]]:
        """Return what is drawn, numbered: the baseline first."""
        found = [
            (b, o, o.distribution)
            for b in self.document.backends
            if (o := b.find_output(self.output)) is not None and o.distribution is not None and o.rms_reference > 0
        ]
        found.sort(key=lambda entry: entry[0].name != BASELINE)
        return [(at, *entry) for at, entry in enumerate(found, 1)]

    def __call__(self, width: int) -> Markup:
        """Draw it."""
        lines = self.lines()
        height, left, bottom = (294, 52, 246) if width < 600 else (346, 64, 300)
        ends = [(_bin_start(d.first) / o.rms_reference, o.element_max / o.rms_reference) for _, _, o, d in lines]
        limits = [o.element_limit / o.rms_reference for _, _, o, _ in lines if o.element_limit]
        known = [x for x in (*itertools.chain(*ends), *limits) if x > 0 and math.isfinite(x)]
        # Below a thousandth of the smallest median the lines are level, and would take the room of what counts.
        medians = [o.quantiles.p50 / o.rms_reference for _, _, o, _ in lines if o.quantiles.p50 > 0]
        known = [max(x, min(medians, default=0.0) / 1e3) for x in known]
        low, high = decades_around(known, low=min(known, default=1e-8), high=max(known, default=1.0))
        most = max((o.elements for _, _, o, _ in lines), default=1)
        across = LogAxis(low=low, high=max(high, low * 10), start=left, stop=width - 24)
        up = LogAxis(low=10.0 ** -math.ceil(math.log10(max(most, 10))), high=1.0, start=bottom, stop=16)
        parts = [
            *_grid_x(across, 16, bottom, most=4 if width < 600 else 9, label_y=bottom + 18),
            *_grid_y(up, left, width - 24, most=6),
        ]
        if limits:
            x = across.place(max(limits))
            parts += [_line(x, 16, x, bottom, "limit"), words(x - 5, 28, "limit", anchor="end", kind="tick")]
        for at, backend, output, distribution in lines:
            status = output_status(self.document, backend.name, self.output)
            parts += self._steps(at, backend, output, distribution, across, up, kind_of(status))
        parts.append(
            words((left + width) / 2, height - 6, "error over RMS of the output", anchor="middle", kind="tick")
        )
        return picture(width, height, f"share of elements of {clean(self.output)} with a larger error", *parts)

    def _steps(
        self,
        at: int,
        backend: BackendRecord,
        output: OutputRecord,
        distribution: DistributionRecord,
        across: LogAxis,
        up: LogAxis,
        kind: str,
    ) -> Iterator[Markup]:
        total = distribution.zeros + sum(distribution.counts)
        if not total:
            return
        above = total - distribution.zeros
        # Every bin's count is above its start: the line is exact there, and level in between.
        path = ""
        for offset, count in enumerate(distribution.counts):
            x = across.place(_bin_start(distribution.first + offset) / output.rms_reference)
            y = up.place(above / total) if above else up.start
            path += f"{'L' if path else 'M'}{number(x)} {number(y)}"
            above -= count
        end = across.place(output.element_max / output.rms_reference)
        last = up.place(distribution.counts[-1] / total) if distribution.counts else up.start
        path += f"{'L' if path else 'M'}{number(end)} {number(last)}L{number(end)} {number(up.start)}"
        role = "baseline" if backend.name == BASELINE else f"candidate {kind}"
        yield tag("path", d=path, class_=f"line {role}")
        # Numbers stand apart along the lines, so that lines on top of each other can be told.
        share = 0.15 + 0.8 * ((at * 0.381) % 1)
        x, y = _nearest_corner(path, across.start + share * (end - across.start))
        yield words(x, y - 5, str(at), anchor="middle", kind="number")


def _nearest_corner(path: str, wanted: float) -> tuple[float, float]:
    corners = [tuple(map(float, corner.split(" "))) for corner in path[1:].split("L")]
    x, y = min(corners, key=lambda corner: abs(corner[0] - wanted))
    return x, y


def _bin_start(at: int) -> float:
    return 2.0 ** (at // 2) * (1.5 if at % 2 else 1.0)


# --- Samples ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SampleRatios:
    """The error ratio of every sample in the order of the dataset, beside the limit of the worst one."""

    backend: str
    output: OutputRecord
    columns: SampleColumns
    is_exceeded: bool
    """Whether a finding says that the worst sample is beyond that limit: then those beyond it are drawn so."""

    def __call__(self, width: int) -> Markup:
        """Draw it. Of many samples those with the smallest and the largest ratio of every two pixels are kept."""
        height, left, bottom = 130, 52, 104
        values = self.columns.error_ratio
        limit = self.output.limits.worst_sample if self.output.limits is not None else 1.0
        finite = values[np.isfinite(values) & (values > 0)]
        low, high = decades_around(
            [float(v) for v in (finite.min(initial=1.0), finite.max(initial=1.0))],
            low=min(limit, 1.0),
            high=max(limit, 1.0),
        )
        up = LogAxis(low=max(low, high / 1e8), high=high, start=bottom, stop=10)
        kept = thin_line(values, columns=(width - left - 8) // 2)
        # The first and the last sample half a step away from the edges.
        xs = left + (kept + 0.5) / max(1, len(values)) * (width - left - 8)
        parts = [
            *_grid_y(up, left, width - 8, most=4),
            _line(left, up.place(limit), width - 8, up.place(limit), "limit"),
            *self._dots(xs, up.place_all(values[kept]), beyond=self.is_exceeded & ~(values[kept] <= limit)),
            *self._worst(up, left, width - 8 - left),
            words(left, height - 8, f"sample {self.columns.ids[0]}", kind="tick"),
            words(width - 8, height - 8, self.columns.ids[-1], anchor="end", kind="tick"),
        ]
        return picture(
            width, height, f"error ratio of the samples, {clean(self.backend)}, {clean(self.output.name)}", *parts
        )

    @staticmethod
    def _dots(xs: Floats, ys: Floats, *, beyond: Flags) -> Iterator[Markup]:
        """Draw samples by what they are; NaN, which is no ratio, lies beyond any limit."""
        yield points(xs[~beyond], ys[~beyond], "dots")
        yield points(xs[beyond], ys[beyond], "dots exceeded")

    def _worst(self, up: LogAxis, left: float, span: float) -> Iterator[Markup]:
        known = {sample: at for at, sample in enumerate(self.columns.ids)}
        for sample in self.output.worst_samples[:3]:
            if sample.error_ratio is None or (at := known.get(clean(sample.sample_id))) is None:
                continue
            x, y = left + (at + 0.5) / len(self.columns.ids) * span, up.place(sample.error_ratio)
            title = tag("title", f"sample {sample.sample_id}: {format_ratio(sample.error_ratio)}")
            yield tag("circle", title, cx=x, cy=y, r=5, class_="worst")


# --- Decisions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Margins:
    """The reference's margin of every sample against the largest error of its scores; changed answers as crosses."""

    backend: str
    output: str
    columns: SampleColumns

    def __call__(self, width: int) -> Markup:
        """Draw it. Left of the line the budget explains a changed answer."""
        height, left, bottom = (272, 56, 222) if width < 600 else (306, 64, 260)
        margins, errors, flipped = self.columns.margin, self.columns.max_abs_error, self.columns.flipped
        known = np.isfinite(margins) & np.isfinite(errors)
        limits = self.columns.margin_limit[np.isfinite(self.columns.margin_limit)]
        limit = float(limits.max(initial=0.0))
        across = _axis_around([*_ends(margins[known]), limit], left, width - 12)
        up = _axis_around(_ends(errors[known]), bottom, 12)
        xs, ys = across.place_all(margins), up.place_all(errors)
        calm = np.flatnonzero(known & ~flipped)
        kept = calm[thin_cloud(xs[calm], ys[calm], pixels=3)] if len(calm) else calm
        parts = [
            *_grid_x(across, 12, bottom, most=4 if width < 600 else 8, label_y=bottom + 16),
            *_grid_y(up, left, width - 12, most=5),
        ]
        if limit > 0:
            x = across.place(limit)
            parts += [_line(x, 12, x, bottom, "limit"), words(x + 5, 24, "explained to the left", kind="tick")]
        parts.append(points(xs[kept], ys[kept], "dots"))
        for at in itertools.islice(np.flatnonzero(flipped), 200):
            x, y = float(xs[at]), float(ys[at])
            title = tag(
                "title",
                f"sample {self.columns.ids[at]}: {' became '.join(classes[at] for classes in self.columns.classes)}",
            )
            d = f"M{number(x - 5)} {number(y - 5)}l10 10m0 -10l-10 10"
            parts.append(tag("path", title, d=d, class_="flip"))
        parts.append(words((left + width) / 2, height - 6, "margin of the reference", anchor="middle", kind="tick"))
        label = f"margin against largest error, {clean(self.backend)}, {clean(self.output)}"
        return picture(width, height, label, *parts)

    def sentence(self) -> str:
        """Say it in words."""
        margins, errors = self.columns.margin, self.columns.max_abs_error
        flips, total = int(self.columns.flipped.sum()), len(margins)
        least, largest = (float(np.nanmin(margins)), float(np.nanmax(errors))) if total else (math.nan, math.nan)
        text = f"{flips:,} of {total:,} answers changed; smallest margin {format_quantity(least)}"
        if largest > 0:
            text += f" is {format_ratio(least / largest)} times the largest error {format_quantity(largest)}"
        return text


def _ends(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
    positive = values[values > 0]
    return [float(positive.min()), float(positive.max())] if len(positive) else []


def _axis_around(values: Sequence[float], start: float, stop: float) -> LogAxis:
    known = [v for v in values if v > 0 and math.isfinite(v)] or [1.0]
    low, high = decades_around(known, low=min(known), high=max(known))
    return LogAxis(low=low, high=max(high, low * 10), start=start, stop=stop)


# --- What a page shows --------------------------------------------------------------------------------------------


def draw_error_ratios(document: VerdictDocument, output: str) -> Chart:
    """Draw the key chart of one output."""
    return _both(ErrorRatios(document, output))


def draw_distributions(document: VerdictDocument, output: str) -> tuple[Chart, list[tuple[int, str]]] | None:
    """Draw the distribution of errors of one output, with the key of its lines; None where none was recorded."""
    drawing = Distributions(document, output)
    key = [(at, backend.name) for at, backend, _, _ in drawing.lines()]
    return (_both(drawing), key) if key else None


def draw_samples(document: VerdictDocument, backend: str, output: OutputRecord, columns: SampleColumns) -> Chart | None:
    """Draw the error ratio along the samples; None where no ratio is known."""
    if not np.isfinite(columns.error_ratio).any():
        return None
    is_exceeded = any(
        f.status is Status.EXCEEDED
        for f in document.findings
        if (f.check, f.backend, f.output, f.metric) == (Check.ERROR_RATIO, backend, output.name, WORST_SAMPLE)
    )
    return _both(SampleRatios(backend, output, columns, is_exceeded))


def draw_margins(backend: str, output: str, columns: SampleColumns) -> tuple[Chart, str] | None:
    """Draw margins against errors, and say it in a sentence; None where the output is no vector of scores."""
    drawing = Margins(backend, output, columns)
    return (_both(drawing), drawing.sentence()) if np.isfinite(columns.margin).any() else None
