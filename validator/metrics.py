"""Numbers about two arrays. Facts only: no limit is known here, nothing is decided.

Everything is computed in float64 and per sample, and pooled with `math.fsum` over samples, so that the result does not
depend on how the samples were cut into frames or in which order they came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

HISTOGRAM_BUCKETS = 1 << 15
"""float32 bit patterns of non-negative numbers, shifted right by 16: 8 exponent and 7 significand bits."""

SAMPLE_ROW = np.dtype(
    [
        ("sample", np.int64),
        ("elements", np.int64),
        ("compared", np.int64),
        ("sum_sq_error", np.float64),
        ("sum_sq_reference", np.float64),
        ("sum_sq_candidate", np.float64),
        ("dot", np.float64),
        ("max_abs_error", np.float64),
        ("max_abs_reference", np.float64),
        ("worst_index", np.int64),
        ("worst_reference", np.float64),
        ("worst_candidate", np.float64),
        ("nonfinite_mismatches", np.int64),
        ("unequal", np.int64),
        ("top1_flip", np.int64),
        ("margin", np.float64),
        ("topk_flip", np.int64),
        ("topk_margin", np.float64),
        ("reference_top1", np.int64),
        ("candidate_top1", np.int64),
    ]
)
"""One row per sample and output. `compared` counts the elements finite on both sides; sums and maxima are over those.
`worst_index` is a flat index into the sample's output. `unequal` counts elements whose values differ, NaN equal to NaN.
Where the output is no vector of scores, flips and classes are -1. `margin` is the reference's best minus second best
score; `topk_flip` says whether the sets of the `TOP_K` best classes differ, and `topk_margin` is the distance between
the last class in and the first one out of the reference's set."""

TOP_K = 5

Rows = npt.NDArray[np.void]


def as_float64(values: Array) -> Floats:
    """Return any real or boolean array as float64; complex numbers as (..., 2) of real and imaginary part."""
    if np.iscomplexobj(values):
        values = np.stack([values.real, values.imag], axis=-1)
    return values.astype(np.float64, copy=False)


def sample_rows(first_sample: int, reference: Array, candidate: Array) -> Rows:
    """Measure a candidate against the reference, sample by sample.

    Args:
        first_sample: index of the first row's sample.
        reference: shape (samples, *output).
        candidate: the same shape.

    Returns:
        `SAMPLE_ROW` records, shape (samples,). An element that is NaN or infinite on one side only, or infinite with
        another sign, is a `nonfinite_mismatch` and no error; equal non-finite values are neither.

    Raises:
        ValueError: the shapes differ.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"shapes {reference.shape} and {candidate.shape} cannot be compared")
    rows = np.zeros(len(reference), SAMPLE_ROW)
    y = as_float64(reference).reshape(len(reference), -1)
    c = as_float64(candidate).reshape(len(reference), -1)
    finite = np.isfinite(y) & np.isfinite(c)
    y_finite, c_finite = np.where(finite, y, 0.0), np.where(finite, c, 0.0)
    error = np.abs(c_finite - y_finite)
    rows["sample"] = np.arange(first_sample, first_sample + len(reference))
    rows["elements"] = y.shape[1]
    rows["compared"] = finite.sum(axis=1)
    rows["sum_sq_error"] = (error * error).sum(axis=1)
    rows["sum_sq_reference"] = (y_finite * y_finite).sum(axis=1)
    rows["sum_sq_candidate"] = (c_finite * c_finite).sum(axis=1)
    rows["dot"] = (y_finite * c_finite).sum(axis=1)
    rows["nonfinite_mismatches"] = (~finite & ~_same_nonfinite(y, c)).sum(axis=1)
    rows["unequal"] = _unequal(reference, candidate).reshape(len(reference), -1).sum(axis=1)
    for field in ("top1_flip", "topk_flip", "reference_top1", "candidate_top1"):
        rows[field] = -1
    if y.shape[1]:
        worst = error.argmax(axis=1)
        at = np.arange(len(reference)), worst
        rows["max_abs_error"] = error[at]
        rows["max_abs_reference"] = np.abs(y_finite).max(axis=1)
        rows["worst_index"], rows["worst_reference"], rows["worst_candidate"] = worst, y[at], c[at]
    if reference.ndim == 2 and reference.shape[1] > 1:
        rows["reference_top1"], rows["candidate_top1"] = y.argmax(axis=1), c.argmax(axis=1)
        rows["top1_flip"] = rows["reference_top1"] != rows["candidate_top1"]
        rows["margin"] = _margin_below(1, y)
    if reference.ndim == 2 and reference.shape[1] > TOP_K:
        rows["topk_flip"] = (_top_classes(y) != _top_classes(c)).any(axis=1)
        rows["topk_margin"] = _margin_below(TOP_K, y)
    return rows


def _margin_below(k: int, scores: Floats) -> Floats:
    """Return the k-th largest minus the next score of each row: 0 for equal infinities, NaN where one is NaN."""
    ordered = np.partition(scores, (-k - 1, -k), axis=1)
    upper, lower = ordered[:, -k], ordered[:, -k - 1]
    return np.subtract(upper, lower, out=np.zeros(len(scores)), where=upper != lower)


def _top_classes(scores: Floats) -> npt.NDArray[np.int64]:
    """Return the `TOP_K` best classes of each row, in ascending order of their index."""
    best = np.argpartition(scores, -TOP_K, axis=1)[:, -TOP_K:]
    return np.sort(best, axis=1)


def _unequal(reference: Array, candidate: Array) -> npt.NDArray[np.bool_]:
    """Where two values differ in their own dtypes, NaN equal to NaN: float64 cannot tell large integers apart."""
    return np.asarray((reference != candidate) & ~(np.isnan(reference) & np.isnan(candidate)))


def _same_nonfinite(y: Floats, c: Floats) -> npt.NDArray[np.bool_]:
    """Where both are NaN, or both the same infinity."""
    return np.asarray((np.isnan(y) & np.isnan(c)) | (np.isinf(y) & (y == c)))


def error_histogram(reference: Array, candidate: Array) -> Counts:
    """Count absolute errors in buckets of relative width 2^-7, exactly mergeable by addition.

    Only elements finite on both sides are counted. Bucket i holds the float32 numbers whose bits, shifted right
    by 16, are i.
    """
    y, c = as_float64(reference), as_float64(candidate)
    finite = np.isfinite(y) & np.isfinite(c)
    clipped = np.minimum(np.abs(c[finite] - y[finite]), np.finfo(np.float32).max).astype(np.float32)
    return np.bincount(clipped.view(np.uint32) >> 16, minlength=HISTOGRAM_BUCKETS).astype(np.int64)


def histogram_quantile(histogram: Counts, share: float) -> float:
    """Return the upper edge of the bucket that holds the given quantile: at most 0.8 % too large, never too small.

    What is below 2^-133, the first bucket, counts as zero. NaN where nothing was counted.
    """
    total = int(histogram.sum())
    if total == 0:
        return math.nan
    rank = min(total, max(1, math.ceil(share * total)))
    bucket = int(np.searchsorted(np.cumsum(histogram), rank))
    if bucket == 0:
        return 0.0
    return float(np.uint32(((bucket + 1) << 16) - 1).view(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMaxima:
    """Largest absolute error and largest absolute reference per index of one axis, over all samples.

    Maxima merge exactly and in any order. They are kept apart for every channel because an output whose channels span
    many orders of magnitude hides a dead small one from every number that is taken over all of them.
    """

    error: Floats
    """Shape (channels,)."""
    reference: Floats
    is_share: bool = True
    """Whether every reference value lies in 0..1, as probabilities do."""

    @classmethod
    def empty(cls) -> Self:
        """Return the maxima of nothing."""
        return cls(error=np.zeros(0), reference=np.zeros(0))

    def merge(self, other: Self) -> Self:
        """Return the maxima of both; where one has fewer channels, the other's stand alone."""
        return type(self)(
            error=_merge_maxima(self.error, other.error),
            reference=_merge_maxima(self.reference, other.reference),
            is_share=self.is_share and other.is_share,
        )


def _merge_maxima(a: Floats, b: Floats) -> Floats:
    merged = np.zeros(max(len(a), len(b)))
    for maxima in (a, b):
        np.maximum(merged[: len(maxima)], maxima, out=merged[: len(maxima)])
    return merged


def channel_maxima(reference: Array, candidate: Array) -> tuple[ChannelMaxima, ChannelMaxima]:
    """Measure the channels of a batch: the first dimension of a sample, and its last one.

    Args:
        reference: shape (samples, *output).
        candidate: the same shape.

    Returns:
        Maxima per index of axis 1 and of the last axis, over elements finite on both sides; empty for scalar samples.
        Where both are the same axis, the second is empty.
    """
    if reference.ndim < 2 or reference.size == 0:
        return ChannelMaxima.empty(), ChannelMaxima.empty()
    y, c = as_float64(reference), as_float64(candidate)
    finite = np.isfinite(y) & np.isfinite(c)
    y, c = np.where(finite, y, 0.0), np.where(finite, c, 0.0)
    error, scale = np.abs(c - y), np.abs(y)
    is_share = bool(y.min() >= 0 and y.max() <= 1)

    def over(axis: int) -> ChannelMaxima:
        others = tuple(k for k in range(y.ndim) if k != axis)
        return ChannelMaxima(error=error.max(axis=others), reference=scale.max(axis=others), is_share=is_share)

    return over(1), over(y.ndim - 1) if y.ndim > 2 else ChannelMaxima.empty()


def worst_own_sample(candidate: Rows, baseline: Rows | None, *, unit_roundoff: float) -> tuple[float, int | None]:
    """Return the largest ratio of any sample's RMS error to its own noise floor, and that sample.

        max over i of  rms_i(c - y64) / max(rms_i(b - y64), m rms_i(y64), u rms_i(y64))

    with m the median over j of rms_j(b - y64) / rms_j(y64). One sample on a large scale must not excuse all others, and
    the median keeps a sample that the baseline happened to hit exactly from being held against nothing. It is relative,
    because the usual noise of loud samples would excuse any answer to quiet ones. NaN where nothing was compared.
    """
    samples, ratios = own_sample_ratios(candidate, baseline, unit_roundoff=unit_roundoff)
    if len(samples) == 0:
        return math.nan, None
    worst = int(ratios.argmax())
    return float(ratios[worst]), int(samples[worst])


def own_sample_ratios(candidate: Rows, baseline: Rows | None, *, unit_roundoff: float) -> tuple[Counts, Floats]:
    """Return the samples on which anything was compared, and the ratio of each; see `worst_own_sample`."""
    rows = np.sort(candidate[candidate["compared"] > 0], order="sample")
    if len(rows) == 0:
        return np.zeros(0, np.int64), np.zeros(0)
    error, size = _sample_rms(rows, "sum_sq_error"), _sample_rms(rows, "sum_sq_reference")
    floor = unit_roundoff * size
    if baseline is not None:
        known = np.sort(baseline[baseline["compared"] > 0], order="sample")
        base = np.zeros(len(rows))
        here = np.isin(rows["sample"], known["sample"])
        at = np.searchsorted(known["sample"], rows["sample"][here])
        base[here] = _sample_rms(known[at], "sum_sq_error")
        alive = size > 0
        usual = np.median(base[alive] / size[alive]) if alive.any() else 0.0
        floor = np.maximum(np.maximum(base, floor), usual * size)
    return rows["sample"].copy(), np.divide(error, floor, out=np.where(error > 0, np.inf, 0.0), where=floor > 0)


TINY_CHANNEL = 2.0**-20
"""Channels smaller than this share of the largest one are held against its roundoff: below that lies only dust."""


def worst_channel(
    candidate: ChannelMaxima, baseline: ChannelMaxima | None, *, unit_roundoff: float
) -> tuple[float, int | None]:
    """Return the largest ratio of any channel's error to its own noise floor, and that channel.

        max over c of  max|c - y64|_c / max(max|b - y64|_c, m max|y64|_c, u max|y64|_c, 2^-20 u max|y64|)

    with m the median over channels of max|b - y64|_c / max|y64|_c. Where one sample makes nearly all of the noise, the
    baseline's error in a channel is a single draw, and among many channels it happens to be next to nothing in some.
    Shares, such as probabilities, have a scale of their own: a class that is never likely may be flushed to zero, so
    the last term is u max|y64| there. Channels that the baseline lacks have the roundoff alone as floor.
    (0, None) without channels.
    """
    if len(candidate.error) == 0:
        return 0.0, None
    dust = 1.0 if candidate.is_share else TINY_CHANNEL
    floor = unit_roundoff * np.maximum(candidate.reference, dust * candidate.reference.max())
    if baseline is not None:
        floor = _merge_maxima(floor, baseline.error)[: len(floor)]
        alive = baseline.reference > 0
        if alive.any():
            usual = np.median(baseline.error[alive] / baseline.reference[alive])
            floor = np.maximum(floor, usual * candidate.reference)
    ratios = np.divide(candidate.error, floor, out=np.where(candidate.error > 0, np.inf, 0.0), where=floor > 0)
    worst = int(ratios.argmax())
    return float(ratios[worst]), worst


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstElement:
    """The element with the largest absolute error."""

    sample: int
    index: int
    """Flat, within the sample's output."""
    reference: float
    candidate: float

    @property
    def abs_error(self) -> float:
        """In the output's own unit."""
        return abs(self.candidate - self.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Error of one output over the golden dataset, in the output's own unit."""

    rms: float
    """sqrt(sum of squared errors / elements)."""
    sample_p99: float
    """99th percentile over samples of the sample's RMS error; the next larger sample where it falls between two."""
    sample_max: float
    element_max: float
    rms_reference: float
    sample_p99_reference: float
    sample_max_reference: float
    element_max_reference: float
    worst: WorstElement | None
    worst_sample: int | None
    """The sample with the largest RMS error."""


def summarize(rows: Rows) -> ErrorSummary:
    """Pool the rows of one output. NaN everywhere where no element was compared, so that no limit admits it."""
    compared = int(rows["compared"].sum())
    if compared == 0:
        nan = math.nan
        return ErrorSummary(
            rms=nan, sample_p99=nan, sample_max=nan, element_max=nan, rms_reference=nan, sample_p99_reference=nan,
            sample_max_reference=nan, element_max_reference=nan, worst=None, worst_sample=None,
        )  # fmt: skip
    rows = np.sort(rows[rows["compared"] > 0], order="sample")
    error, reference = _sample_rms(rows, "sum_sq_error"), _sample_rms(rows, "sum_sq_reference")
    worst = rows[int(rows["max_abs_error"].argmax())]
    return ErrorSummary(
        rms=math.sqrt(math.fsum(rows["sum_sq_error"]) / compared),
        sample_p99=_upper_quantile(error, 0.99),
        sample_max=float(error.max()),
        element_max=float(rows["max_abs_error"].max()),
        rms_reference=math.sqrt(math.fsum(rows["sum_sq_reference"]) / compared),
        sample_p99_reference=_upper_quantile(reference, 0.99),
        sample_max_reference=float(reference.max()),
        element_max_reference=float(rows["max_abs_reference"].max()),
        worst=WorstElement(
            sample=int(worst["sample"]),
            index=int(worst["worst_index"]),
            reference=float(worst["worst_reference"]),
            candidate=float(worst["worst_candidate"]),
        ),
        worst_sample=int(rows["sample"][int(error.argmax())]),
    )


def _sample_rms(rows: Rows, field: str) -> Floats:
    """RMS per sample of a sum of squares."""
    return np.sqrt(rows[field] / rows["compared"])  # type: ignore[no-any-return]


def _upper_quantile(values: Floats, share: float) -> float:
    """Smallest value that at least `share` of the values do not exceed."""
    return float(np.sort(values)[max(0, math.ceil(share * len(values)) - 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRatios:
    """Error over the noise floor, four ways, because a pooled number dilutes."""

    pooled: float
    p99: float
    worst_sample: float
    element: float


def error_ratios(candidate: ErrorSummary, baseline: ErrorSummary | None, *, unit_roundoff: float) -> ErrorRatios:
    """Divide a candidate's error by the noise floor.

        E = rms(c - y64) / max(rms(b - y64), u * rms(y64))

    and likewise for the 99th percentile over samples, the worst sample and the largest element. The second term is the
    least error that the candidate's precision can be asked for; it also keeps E finite where the baseline is exact.

    Args:
        candidate: errors of the candidate against the fp64 reference.
        baseline: errors of the baseline against the same reference; None: the unit roundoff alone is the floor.
        unit_roundoff: u of the candidate's precision class.

    Returns:
        Dimensionless ratios; 0 where candidate and floor are both 0, inf where only the floor is, NaN from NaN.
    """
    pairs = {
        "pooled": ("rms", "rms_reference"),
        "p99": ("sample_p99", "sample_p99_reference"),
        "worst_sample": ("sample_max", "sample_max_reference"),
        "element": ("element_max", "element_max_reference"),
    }
    ratios: dict[str, float] = {}
    for name, (field, scale) in pairs.items():
        error = getattr(candidate, field)
        floors = [
            unit_roundoff * getattr(candidate, scale),
            *([getattr(baseline, field)] if baseline else []),
        ]
        ratios[name] = divide_by_floor(error, floors)
    return ErrorRatios(**ratios)


def divide_by_floor(error: float, floors: Sequence[float]) -> float:
    """Return error / max(floors): 0 for 0 over 0, inf for an error over 0, NaN where anything is NaN."""
    if math.isnan(error) or any(math.isnan(f) for f in floors):
        return math.nan
    floor = max(floors)
    if floor == 0:
        return 0.0 if error == 0 else math.inf
    return error / floor


CONFIDENCE = 0.95


def flip_rate_bound(flips: int, samples: int) -> float:
    """Return the rate that flips stay below at 95 %, given how many of some independent samples flipped.

    The one-sided upper limit of Clopper and Pearson (1934); for no flips that is 1 - 0.05^(1/n). 1 without samples.
    """
    if flips >= samples:
        return 1.0
    from scipy.special import betaincinv

    return float(betaincinv(flips + 1, samples - flips, CONFIDENCE))


def samples_for_rate(rate: float) -> int:
    """Return how many samples without a flip show that fewer than `rate` of all flip, at 95 %."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-rate))


def cosine(rows: Rows) -> float:
    """Cosine between reference and candidate over all samples. Shown because users expect it; blind to small faults."""
    scale = math.sqrt(math.fsum(rows["sum_sq_reference"])) * math.sqrt(math.fsum(rows["sum_sq_candidate"]))
    return math.fsum(rows["dot"]) / scale if scale else math.nan
