"""Laws of the numbers: what they are, what they do with NaN, and that cutting and ordering leave no trace."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import binom

from validator.backends.catalog import UNIT_ROUNDOFF, Precision
from validator.metrics import (
    HISTOGRAM_BUCKETS,
    ChannelMaxima,
    as_float64,
    channel_maxima,
    cosine,
    divide_by_floor,
    error_histogram,
    error_ratios,
    flip_rate_bound,
    histogram_quantile,
    own_sample_ratios,
    sample_rows,
    samples_for_rate,
    summarize,
    worst_channel,
    worst_own_sample,
)

FINITE = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False, width=32)
ANY = st.floats(width=32)
ARRAYS = hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 7)), elements=FINITE)
U32 = UNIT_ROUNDOFF[Precision.IEEE]


@given(ARRAYS)
def test_identical_arrays_have_no_error(values: np.ndarray) -> None:
    rows = sample_rows(0, values, values)
    assert summarize(rows).rms == 0
    assert summarize(rows).element_max == 0
    assert rows["unequal"].sum() == 0
    assert rows["nonfinite_mismatches"].sum() == 0


@given(hnp.arrays(np.float32, (4, 5), elements=ANY), st.integers(0, 19), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_a_non_finite_value_on_one_side_only_is_always_a_mismatch(values: np.ndarray, at: int, bad: float) -> None:
    reference = values.copy()
    reference.flat[at] = 1.0
    candidate = reference.copy()
    candidate.flat[at] = bad
    assert sample_rows(0, reference, candidate)["nonfinite_mismatches"].sum() == 1
    assert sample_rows(0, candidate, reference)["nonfinite_mismatches"].sum() == 1


def test_opposite_infinities_are_a_mismatch_and_equal_ones_are_not() -> None:
    reference = np.array([[np.inf, -np.inf, np.nan, 1.0]])
    same = sample_rows(0, reference, reference.copy())
    assert same["nonfinite_mismatches"][0] == 0
    assert same["compared"][0] == 1
    assert sample_rows(0, reference, -reference)["nonfinite_mismatches"][0] == 2


def test_the_rms_is_what_numpy_says() -> None:
    rng = np.random.default_rng(0)
    reference, error = rng.normal(size=(9, 40)), rng.normal(size=(9, 40))
    summary = summarize(sample_rows(0, reference, reference + error))
    assert summary.rms == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)
    assert summary.rms_reference == pytest.approx(np.sqrt((reference**2).mean()), rel=1e-12)
    assert summary.element_max == pytest.approx(np.abs(error).max(), rel=1e-12)
    assert summary.sample_max == pytest.approx(np.sqrt((error**2).mean(axis=1)).max(), rel=1e-12)


def test_the_worst_element_is_named_with_both_values() -> None:
    reference = np.ones((3, 2, 2))
    candidate = reference.copy()
    candidate[2, 1, 0] = -7.0
    worst = summarize(sample_rows(10, reference, candidate)).worst
    assert worst is not None
    assert (worst.sample, worst.index, worst.reference, worst.candidate, worst.abs_error) == (12, 2, 1.0, -7.0, 8.0)


@given(ARRAYS, st.randoms(use_true_random=False), st.integers(1, 6))
def test_any_cut_and_any_order_give_the_same_summary(values: np.ndarray, random: object, size: int) -> None:
    candidate = values * np.float32(1.001) + np.float32(0.1)
    whole = summarize(sample_rows(0, values, candidate))
    parts = [sample_rows(i, values[i : i + size], candidate[i : i + size]) for i in range(0, len(values), size)]
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert summarize(np.concatenate(parts)) == whole


def test_nothing_compared_gives_nan_that_no_limit_admits() -> None:
    summary = summarize(sample_rows(0, np.full((2, 3), np.nan), np.full((2, 3), np.nan)))
    assert math.isnan(summary.rms)
    ratios = error_ratios(summary, None, unit_roundoff=U32)
    assert not ratios.pooled <= 1e300


def test_shapes_that_differ_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        sample_rows(0, np.zeros((2, 3)), np.zeros((2, 4)))


@given(ARRAYS, st.integers(-20, 20))
def test_the_error_ratio_does_not_depend_on_the_scale_of_the_output(values: np.ndarray, power: int) -> None:
    """A fixed atol does: that is why there is a ratio."""
    y = values.astype(np.float64)
    b, c = y + 1e-3, y - 3e-3

    def ratio(scale: float) -> float:
        candidate, baseline = sample_rows(0, y * scale, c * scale), sample_rows(0, y * scale, b * scale)
        return error_ratios(summarize(candidate), summarize(baseline), unit_roundoff=U32).pooled

    assert ratio(2.0**power) == pytest.approx(ratio(1.0), rel=1e-6)


def test_an_exact_baseline_leaves_the_unit_roundoff_as_floor() -> None:
    y = np.ones((2, 3))
    exact = summarize(sample_rows(0, y, y))
    off = summarize(sample_rows(0, y, y * (1 + 4 * U32)))
    assert error_ratios(off, exact, unit_roundoff=U32).pooled == pytest.approx(4, rel=1e-6)


def test_dividing_by_a_floor_of_zero_is_zero_or_infinite_and_never_nan() -> None:
    assert divide_by_floor(0.0, [0.0]) == 0
    assert divide_by_floor(1e-30, [0.0]) == math.inf
    assert math.isnan(divide_by_floor(math.nan, [1.0]))
    assert math.isnan(divide_by_floor(1.0, [1.0, math.nan]))


@given(hnp.arrays(np.float64, st.integers(1, 300), elements=st.floats(0, 1e30)), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_histogram_quantile_is_never_too_small_and_at_most_one_percent_too_large(
    errors: np.ndarray, share: float
) -> None:
    histogram = error_histogram(np.zeros_like(errors), errors)
    exact = float(np.sort(errors)[max(0, math.ceil(share * len(errors)) - 1)])
    found = histogram_quantile(histogram, share)
    assert found >= np.float32(exact) * (1 - 1e-7) or exact < 2.0**-133
    assert found <= exact * 1.01 + 1e-37


def test_histograms_merge_by_addition_and_skip_what_is_not_finite() -> None:
    errors = np.array([0.0, 1.0, np.nan, np.inf])
    histogram = error_histogram(np.zeros(4), errors)
    assert histogram.sum() == 2
    assert len(histogram) == HISTOGRAM_BUCKETS == 2**15  # one for each float32 from 0 to infinity, by its upper half
    assert histogram_quantile(error_histogram(np.zeros(3), np.zeros(3)), 1.0) == 0.0
    halves = error_histogram(np.zeros(2), errors[:2]) + error_histogram(np.zeros(2), errors[2:])
    assert (halves == histogram).all()
    assert math.isnan(histogram_quantile(np.zeros(HISTOGRAM_BUCKETS, np.int64), 0.5))


def test_flips_are_counted_for_vectors_of_scores_only() -> None:
    y = np.array([[1.0, 2.0], [3.0, 1.0]])
    rows = sample_rows(0, y, y[:, ::-1].copy())
    assert rows["top1_flip"].tolist() == [1, 1]
    assert rows["margin"].tolist() == [1.0, 2.0]
    image = sample_rows(0, np.zeros((2, 2, 2)), np.zeros((2, 2, 2)))
    assert image["top1_flip"].tolist() == [-1, -1]


def test_complex_errors_count_both_parts() -> None:
    y = np.array([[1 + 1j]])
    assert summarize(sample_rows(0, y, y + (3 + 4j))).element_max == 4
    assert sample_rows(0, y, y)["elements"][0] == 2


def test_a_dead_small_channel_is_seen_where_every_pooled_number_is_blind() -> None:
    rng = np.random.default_rng(0)
    scales = np.array([1e5, 1.0, 1e-6])
    y = rng.normal(size=(16, 3)) * scales
    b = y * (1 + rng.normal(size=y.shape) * U32)
    c = b.copy()
    c[:, 2] = 0.0
    candidate, baseline = channel_maxima(y, c)[0], channel_maxima(y, b)[0]
    ratio, channel = worst_channel(candidate, baseline, unit_roundoff=U32)
    assert channel == 2
    assert ratio > 100
    pooled = error_ratios(summarize(sample_rows(0, y, c)), summarize(sample_rows(0, y, b)), unit_roundoff=U32)
    assert pooled.pooled < 3
    assert pooled.element < 3


def test_a_probability_that_is_flushed_to_zero_is_no_dead_channel() -> None:
    y = np.array([[0.9, 2e-9], [0.7, 3e-9]])
    c = y.copy()
    c[:, 1] = 0.0
    ratio, _ = worst_channel(channel_maxima(y, c)[0], channel_maxima(y, y)[0], unit_roundoff=U32)
    assert ratio < 1


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 10**6))
def test_healthy_noise_stays_far_below_three_times_the_default_limit_in_every_channel(
    channels: int, samples: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(samples + 7, channels * 50))
    b, c = (y + rng.normal(size=y.shape) * 1e-6 for _ in range(2))
    ratio, _ = worst_channel(channel_maxima(y, c)[0], channel_maxima(y, b)[0], unit_roundoff=U32)
    assert ratio < 30


@given(ARRAYS, st.integers(1, 6))
def test_channel_maxima_merge_to_the_same_whatever_the_cut(values: np.ndarray, size: int) -> None:
    c = values + np.float32(0.5)
    whole, _ = channel_maxima(values, c)
    merged = ChannelMaxima.empty()
    for at in reversed(range(0, len(values), size)):
        merged = merged.merge(channel_maxima(values[at : at + size], c[at : at + size])[0])
    assert (merged.error == whole.error).all()
    assert (merged.reference == whole.reference).all()


def test_scalars_and_nothing_have_no_channels() -> None:
    assert worst_channel(channel_maxima(np.zeros(4), np.ones(4))[0], None, unit_roundoff=U32) == (0.0, None)
    assert len(channel_maxima(np.zeros((0, 4)), np.zeros((0, 4)))[0].error) == 0
    for shape in ((2, 3, 4), (2, 3, 6, 4)):
        first, last = channel_maxima(np.zeros(shape), np.ones(shape))
        assert (len(first.error), len(last.error)) == (3, 4)
    assert len(channel_maxima(np.zeros((2, 3)), np.ones((2, 3)))[1].error) == 0
    empty = ChannelMaxima.empty()
    assert len(empty.error) == len(empty.reference) == 0


def test_cosine_is_blind_to_a_small_fault() -> None:
    y = np.random.default_rng(0).normal(size=(8, 1000))
    c = y.copy()
    c[:, 7] *= 1.01
    assert cosine(sample_rows(0, y, c)) > 0.9999999


def test_no_flip_in_299_samples_certifies_one_per_cent_and_in_2995_a_tenth_of_that() -> None:
    assert [samples_for_rate(rate) for rate in (0.01, 0.001)] == [299, 2_995]
    assert flip_rate_bound(0, 299) <= 0.01 < flip_rate_bound(0, 298)


@given(st.integers(1, 5_000), st.data())
def test_the_bound_of_a_rate_is_above_what_was_seen_and_falls_with_more_samples(
    samples: int, data: st.DataObject
) -> None:
    flips = data.draw(st.integers(0, samples))
    bound = flip_rate_bound(flips, samples)
    assert flips / samples <= bound <= 1
    assert flip_rate_bound(flips, 2 * samples) < bound
    if flips < samples:
        # Clopper and Pearson: at the bound, no more than so many flips are seen in one case of twenty.
        assert binom.cdf(flips, samples, bound) == pytest.approx(0.05, rel=1e-6)


def test_without_samples_any_rate_is_possible() -> None:
    assert flip_rate_bound(0, 0) == 1.0


def test_the_five_best_may_change_where_the_best_stays() -> None:
    reference = np.array([[9.0, 8, 7, 6, 5, 4.5, 0], [9, 8, 7, 6, 5, 4.5, 0]])
    candidate = np.array([[9.0, 8, 7, 6, 4.5, 5, 0], [8, 9, 7, 6, 5, 4.5, 0]])
    rows = sample_rows(0, reference, candidate)
    assert rows["topk_flip"].tolist() == [1, 0]
    assert rows["topk_margin"].tolist() == [0.5, 0.5]
    assert rows["top1_flip"].tolist() == [0, 1]
    assert (rows["reference_top1"].tolist(), rows["candidate_top1"].tolist()) == ([0, 0], [0, 1])


@pytest.mark.parametrize("classes", [6, 7, 20, 1_000])
def test_what_happens_below_the_five_best_is_no_change_of_them(classes: int) -> None:
    y = np.random.default_rng(classes).normal(size=(1, classes))
    c, order = y.copy(), y[0].argsort()
    c[0, order[:-5]] = y[0, order[:-5][::-1]]
    assert sample_rows(0, y, c)["topk_flip"].tolist() == [0]
    c[0, order[[-5, -6]]] = y[0, order[[-6, -5]]]
    assert sample_rows(0, y, c)["topk_flip"].tolist() == [1]


def test_five_classes_have_no_sixth_to_change_places_with() -> None:
    rows = sample_rows(0, np.eye(5), np.eye(5))
    assert rows["topk_flip"].tolist() == [-1] * 5


def test_a_channel_that_the_baseline_happened_to_hit_is_not_held_against_nothing() -> None:
    """Where one sample makes nearly all of the noise, each channel's is one draw, and some are next to nothing."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(8, 2_000))
    amplified = np.array([1.0] + [1e-3] * 7)[:, np.newaxis] * 1e-4
    b, c = (y + amplified * rng.normal(size=y.shape) for _ in range(2))
    floors, _ = channel_maxima(y, b)
    own, _ = channel_maxima(y, c)
    lucky = (own.error / np.maximum(floors.error, U32 * own.reference)).max()
    measured, _ = worst_channel(own, floors, unit_roundoff=U32)
    assert lucky > 100
    assert measured < 15


def test_a_dead_small_channel_stands_out_beside_noisy_ones() -> None:
    rng = np.random.default_rng(1)
    y = rng.normal(size=(16, 50)) * np.where(np.arange(50) == 7, 1e-3, 1.0)
    b = y * (1 + 1e-6 * rng.normal(size=y.shape))
    c = y * (1 + 1e-6 * rng.normal(size=y.shape))
    c[:, 7] = 0.0
    measured, channel = worst_channel(channel_maxima(y, c)[0], channel_maxima(y, b)[0], unit_roundoff=U32)
    assert channel == 7
    assert measured > 1e5


def test_loud_samples_do_not_excuse_quiet_ones() -> None:
    rng = np.random.default_rng(2)
    loud = np.where(np.arange(16) < 9, 1e7, 1.0)[:, np.newaxis]
    y = rng.normal(size=(16, 10)) * loud
    b = y * (1 + 1e-7 * rng.normal(size=y.shape))
    c = np.where(loud > 1, b, 0.0)
    measured, sample = worst_own_sample(sample_rows(0, y, c), sample_rows(0, y, b), unit_roundoff=U32)
    assert measured > 1e5
    assert sample is not None
    assert sample >= 9


def test_masked_scores_have_the_margin_of_those_that_are_left() -> None:
    y = np.array([[1.0, 1.0 - 1e-7, -np.inf], [2.0, -np.inf, -np.inf], [0.0, np.nan, 1.0]])
    margins = sample_rows(0, y, y)["margin"]
    assert margins[0] == pytest.approx(1e-7)
    assert margins[1] == np.inf
    assert np.isnan(margins[2])


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_nan_is_equal_to_nan_and_to_nothing_else(dtype):
    y = np.array([[np.nan, 1.0], [np.nan, 2.0]], dtype)
    c = np.array([[np.nan, 1.0], [3.0, np.nan]], dtype)
    assert sample_rows(0, y, c)["unequal"].tolist() == [0, 2]


def test_a_summary_knows_the_largest_element_of_the_reference():
    y = np.array([[1.0, -7.0], [2.0, 3.0]])
    assert summarize(sample_rows(0, y, y)).element_max_reference == 7.0


def test_the_cosine_is_what_the_formula_says() -> None:
    assert cosine(sample_rows(0, np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]]))) == pytest.approx(24 / 25)
    assert math.isnan(cosine(sample_rows(0, np.zeros((1, 2)), np.ones((1, 2)))))


def test_what_is_not_finite_adds_nothing_to_any_sum() -> None:
    rows = sample_rows(0, np.array([[np.nan, 2.0, 1.0]]), np.array([[3.0, 5.0, np.inf]]))
    assert rows[["compared", "sum_sq_reference", "sum_sq_candidate", "dot", "sum_sq_error"]].tolist() == [
        (1, 4.0, 25.0, 10.0, 9.0)
    ]


def test_complex_numbers_get_a_last_axis_of_two() -> None:
    assert as_float64(np.zeros((2, 3), np.complex64)).shape == (2, 3, 2)
    assert as_float64(np.array([1 + 2j])).tolist() == [[1.0, 2.0]]


def test_a_sample_is_held_against_its_own_floor_and_the_usual_one() -> None:
    y = np.array([[10.0, 10.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [4.0, 4.0]])
    baseline = y + np.array([[0.1], [0.02], [0.0], [0.0], [np.nan]])
    candidate = y + np.array([[0.3], [0.1], [0.0], [0.5], [0.12]])
    samples, ratios = own_sample_ratios(sample_rows(0, y, candidate), sample_rows(0, y, baseline), unit_roundoff=1e-9)
    assert samples.tolist() == [0, 1, 2, 3, 4]
    # The usual noise is the median of 0.01, 0.02 and, for the sample that the baseline lacks, 0.
    assert ratios == pytest.approx([3.0, 5.0, 0.0, np.inf, 3.0])
    twice = np.array([[0.1], [0.02], [0.0], [0.0], [0.04]]) + y
    _, ratios = own_sample_ratios(sample_rows(0, y, candidate), sample_rows(0, y, twice), unit_roundoff=0.02)
    assert ratios == pytest.approx([1.5, 5.0, 0.0, np.inf, 1.5])


@pytest.mark.parametrize("count", [0, 1])
def test_a_sample_of_which_nothing_was_compared_has_no_ratio(count: int) -> None:
    y = np.full((2, 3), np.nan)
    y[:count] = 1.0
    samples, ratios = own_sample_ratios(sample_rows(0, y, y), None, unit_roundoff=U32)
    assert samples.tolist() == list(range(count))
    assert ratios.tolist() == [0.0] * count
    worst, at = worst_own_sample(sample_rows(0, y, y), None, unit_roundoff=U32)
    assert (math.isnan(worst), at) == ((True, None) if count == 0 else (False, 0))


def test_a_sample_of_which_nothing_was_compared_changes_no_summary() -> None:
    y = np.array([[3.0, 4.0], [np.nan, np.nan]])
    rows = sample_rows(0, y, y + 1)
    assert summarize(rows) == summarize(rows[:1])


def test_a_channel_is_held_against_the_roundoff_of_the_largest_if_it_is_dust() -> None:
    maxima = ChannelMaxima(error=np.array([0.0, 1e-3]), reference=np.array([1e6, 1e-3]), is_share=False)
    ratio, channel = worst_channel(maxima, None, unit_roundoff=1e-7)
    assert (ratio, channel) == (pytest.approx(1e-3 / (1e-7 * 2.0**-20 * 1e6)), 1)
    share = ChannelMaxima(error=np.array([0.0, 1e-3]), reference=np.array([1.0, 1e-9]), is_share=True)
    assert worst_channel(share, None, unit_roundoff=1e-7)[0] == pytest.approx(1e-3 / 1e-7)


def test_a_channel_is_held_against_the_usual_noise_of_those_that_are_not_zero() -> None:
    baseline = ChannelMaxima(error=np.array([0.05, 0.0, 0.15]), reference=np.array([0.5, 0.0, 0.5]), is_share=False)
    candidate = ChannelMaxima(
        error=np.array([0.2, 0.0, 0.15, 0.25]), reference=np.array([0.5, 0.0, 0.5, 0.5]), is_share=False
    )
    assert worst_channel(candidate, baseline, unit_roundoff=1e-9) == (pytest.approx(2.5), 3)
    fewer = ChannelMaxima(error=candidate.error[:3], reference=candidate.reference[:3], is_share=False)
    assert worst_channel(fewer, baseline, unit_roundoff=1e-9) == (pytest.approx(2.0), 0)


@pytest.mark.parametrize(
    ("values", "is_share"),
    [([0.0, 1.0], True), ([0.2, 0.5], True), ([-0.1, 0.5], False), ([0.2, 1.5], False), ([1.5, 1.5], False)],
)
def test_shares_lie_between_0_and_1(values: list[float], *, is_share: bool) -> None:
    y, share = np.array([values]), np.array([[0.5, 0.5]])
    assert channel_maxima(y, y)[0].is_share is is_share
    assert ChannelMaxima.empty().merge(channel_maxima(y, y)[0]).is_share is is_share
    assert channel_maxima(y, y)[0].merge(channel_maxima(share, share)[0]).is_share is is_share


@pytest.mark.parametrize("error", [1.0, 1.0078125, 3.3, 1e-20])
def test_a_quantile_is_the_last_number_of_its_bucket(error: float) -> None:
    quantile = np.float32(histogram_quantile(error_histogram(np.zeros(1), np.array([error])), 0.5))
    bits, own = int(quantile.view(np.uint32)), int(np.float32(error).view(np.uint32))
    assert (bits >> 16, bits & 0xFFFF) == (own >> 16, 0xFFFF)


def test_a_histogram_counts_differences_and_a_quantile_of_0_is_the_smallest() -> None:
    histogram = error_histogram(np.array([5.0, 5.0, 5.0]), np.array([5.5, 7.0, 1.0]))
    assert histogram_quantile(histogram, 0.0) == pytest.approx(0.5, rel=0.01)
    assert histogram_quantile(histogram, 0.5) == pytest.approx(2.0, rel=0.01)
    assert histogram_quantile(histogram, 1.0) == pytest.approx(4.0, rel=0.01)


def test_below_a_hundred_samples_the_99th_percentile_is_the_worst() -> None:
    y = np.array([[1.0], [4.0], [2.0]])
    summary = summarize(sample_rows(0, y, y + np.array([[0.1], [0.3], [0.2]])))
    assert summary.sample_p99 == summary.sample_max == pytest.approx(0.3)
    assert summary.sample_p99_reference == summary.sample_max_reference == 4.0


def test_a_channel_of_zeros_has_no_ratio_or_an_infinite_one() -> None:
    y = np.zeros((2, 2))
    right, wrong = (channel_maxima(y, y + error)[0] for error in (0.0, np.array([0.0, 0.5])))
    assert worst_channel(right, None, unit_roundoff=U32)[0] == 0.0
    assert worst_channel(wrong, None, unit_roundoff=U32) == (math.inf, 1)
    assert worst_channel(wrong, right, unit_roundoff=U32) == (math.inf, 1)


def test_samples_of_one_number_have_a_floor_of_their_own() -> None:
    y = np.array([[10.0], [1.0]])
    candidate, baseline = (sample_rows(0, y, y + np.array(error)) for error in ([[0.3], [0.1]], [[0.1], [0.05]]))
    samples, ratios = own_sample_ratios(candidate, baseline, unit_roundoff=U32)
    assert samples.tolist() == [0, 1]
    assert ratios == pytest.approx([0.3 / 0.3, 2.0])
