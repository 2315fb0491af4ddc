"""Representative samples and those that were added to them, each held against their own noise floor."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frames import evidence
from validator.golden.format import Stratum
from validator.judge import Evidence
from validator.judge.pooling import part_floors, pooled_ratios
from validator.metrics import Rows, error_ratios, sample_rows, summarize

UNIT_ROUNDOFF = 2.0**-24
NOISE = 1e-6
LIMIT = 10.0


def gathered(added: int, representative: int = 16) -> Evidence:
    """Evidence of some representative samples and some scaled ones behind them."""
    strata = [Stratum.REPRESENTATIVE] * representative + [Stratum.SCALES] * added
    return evidence(strata=tuple(strata))


def measured(errors: np.ndarray, scale: np.ndarray) -> Rows:
    """Rows of samples of ten elements, whose errors and scales are given per sample."""
    reference = np.random.default_rng(1).normal(size=(len(errors), 10)) * scale[:, None]
    return sample_rows(0, reference, reference + errors[:, None] * np.sign(reference))


def test_samples_on_a_large_scale_excuse_no_error_of_the_others() -> None:
    """An error of 12 floors everywhere: the samples of 16 times the scale have 16 times the floor."""
    scale = np.repeat([1.0, 16.0], 16)
    baseline, candidate = measured(NOISE * scale, scale), measured(np.full(32, 12 * NOISE), scale)
    together = error_ratios(summarize(candidate), summarize(baseline), unit_roundoff=UNIT_ROUNDOFF)
    assert together.pooled < LIMIT / 5
    apart, errors = pooled_ratios(gathered(16), candidate, baseline, unit_roundoff=UNIT_ROUNDOFF)
    assert apart.pooled > LIMIT
    assert errors.rms_reference < 2
    floors = part_floors(gathered(16), candidate, baseline, unit_roundoff=UNIT_ROUNDOFF, of="sample_max")
    np.testing.assert_allclose(floors, NOISE * scale)


def test_a_fault_of_the_added_samples_alone_counts_too() -> None:
    scale = np.ones(32)
    errors = np.repeat([NOISE, 20 * NOISE], 16)
    ratios, summary = pooled_ratios(
        gathered(16), measured(errors, scale), measured(NOISE * scale, scale), unit_roundoff=UNIT_ROUNDOFF
    )
    assert math.isclose(ratios.pooled, 20, rel_tol=1e-3)
    assert summary.worst_sample is not None
    assert summary.worst_sample >= 16


@given(
    st.lists(st.floats(0, 1e-3), min_size=24, max_size=40),
    st.lists(st.floats(1e-8, 1e-3), min_size=40, max_size=40),
    st.lists(st.floats(2**-20, 16), min_size=40, max_size=40),
)
@settings(deadline=None)
def test_no_added_sample_lowers_a_ratio_of_the_representative_ones(
    errors: list[float], noise: list[float], scales: list[float]
) -> None:
    count = len(errors)
    scale = np.array(scales[:count])
    candidate, baseline = measured(np.array(errors), scale), measured(np.array(noise[:count]), scale)
    alone = error_ratios(summarize(candidate[:16]), summarize(baseline[:16]), unit_roundoff=UNIT_ROUNDOFF)
    found, _ = pooled_ratios(gathered(count - 16), candidate, baseline, unit_roundoff=UNIT_ROUNDOFF)
    for name in ("pooled", "p99", "worst_sample", "element"):
        assert getattr(found, name) >= getattr(alone, name)


def test_few_added_samples_are_pooled_with_the_others() -> None:
    """Two samples that the baseline answers exactly would make any rounding a fault."""
    scale, exact = np.ones(18), np.repeat([NOISE, 0.0], [16, 2])
    ratios, _ = pooled_ratios(
        gathered(2), measured(NOISE * scale, scale), measured(exact, scale), unit_roundoff=UNIT_ROUNDOFF
    )
    assert ratios.pooled < 2


def test_nan_in_either_part_is_nan_and_a_part_that_cannot_be_compared_is_left_out() -> None:
    scale = np.ones(32)
    rows, baseline = measured(NOISE * scale, scale), measured(NOISE * scale, scale)
    lost = baseline.copy()
    lost["compared"][16:] = 0
    ratios, _ = pooled_ratios(gathered(16), rows, lost, unit_roundoff=UNIT_ROUNDOFF)
    assert math.isnan(ratios.pooled)
    ratios, _ = pooled_ratios(gathered(16), lost, lost, unit_roundoff=UNIT_ROUNDOFF)
    assert math.isclose(ratios.pooled, 1)
    nothing = rows.copy()
    nothing["compared"] = 0
    ratios, _ = pooled_ratios(gathered(16), nothing, baseline, unit_roundoff=UNIT_ROUNDOFF)
    assert math.isnan(ratios.pooled)


def test_one_sample_that_cannot_be_compared_takes_no_other_out() -> None:
    scale = np.ones(32)
    errors = np.repeat([20 * NOISE, NOISE], 16)
    rows, baseline = measured(errors, scale), measured(NOISE * scale, scale)
    for side in (rows, baseline):
        for field in ("compared", "sum_sq_error", "sum_sq_reference"):
            side[field][0] = 0
    ratios, _ = pooled_ratios(gathered(16), rows, baseline, unit_roundoff=UNIT_ROUNDOFF)
    assert math.isclose(ratios.pooled, 20, rel_tol=1e-3)


def test_where_a_part_has_no_floor_its_errors_are_the_worst() -> None:
    scale = np.ones(32)
    rows, baseline = measured(np.repeat([20 * NOISE, NOISE], 16), scale), measured(NOISE * scale, scale)
    baseline["sum_sq_error"][16:] = np.nan
    ratios, errors = pooled_ratios(gathered(16), rows, baseline, unit_roundoff=UNIT_ROUNDOFF)
    assert math.isnan(ratios.worst_sample)
    assert errors.worst_sample is not None
    assert errors.worst_sample >= 16
