import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.63, "1.63"),
        (3.0, "3.00"),
        (559.7, "560"),
        (1029.4, "1,029"),
        (394_000.0, "394,000"),
        (9.996, "10.0"),
        (999.6, "1,000"),
        (0.99996, "1.00"),
        (0.521, "0.521"),
        (0.0, "0"),
        (0.004, "< 0.01"),
        (4.2e9, "4.2e+09"),
        (math.nan, "NaN"),
        (math.inf, "infinite"),
    ],
)
def test_ratios_read_as_the_manual_says(value: float, text: str) -> None:
    assert format_ratio(value) == text


def test_small_quantities_use_powers_of_ten() -> None:
    assert format_quantity(8.4e-05) == "8.4e-05"
    assert format_quantity(-math.inf) == "-infinite"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_number_but_zero_looks_like_zero(value: float) -> None:
    assert (float(format_quantity(value).replace(",", "")) == 0) == (value == 0)


def test_measured_just_over_the_limit_does_not_look_like_the_limit() -> None:
    assert format_measured(10.004, 10.0) == "10.004 of 10.000"


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_measured_and_limit_are_told_apart_whenever_they_differ(measured: float, limit: float) -> None:
    left, _, right = format_measured(measured, limit).partition(" of ")
    assert (left == right) == (measured == limit)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_both_values_of_an_element_are_told_apart(reference: float, candidate: float) -> None:
    left, right = format_pair(reference, candidate)
    if abs(reference - candidate) > 1e-12 * max(abs(reference), abs(candidate)):
        assert left != right


def test_two_digits_of_the_difference_are_shown() -> None:
    assert format_pair(6.734271234, 6.734944567) == ("6.734271", "6.734945")
    assert format_pair(math.nan, 1.0) == ("NaN", "1.000")


@given(st.floats(), st.floats())
def test_no_two_numbers_are_too_far_apart_to_be_shown(reference: float, candidate: float) -> None:
    assert all(format_pair(reference, candidate))
    assert format_pair(1e308, -1e308) == ("1e+308", "-1e+308")


@given(st.floats())
def test_a_cosine_and_a_duration_that_cannot_be_are_shown_all_the_same(value: float) -> None:
    assert format_cosine(value)
    assert format_duration(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.99999996, "0.99999996"), (1.0, "1.00"), (1 + 1e-15, "1"), (0.5, "0.5"), (-0.25, "-0.2"), (math.nan, "NaN")],
)
def test_a_cosine_shows_all_its_nines(value: float, text: str) -> None:
    assert format_cosine(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.43, "0.4 s"), (38.2, "38 s"), (192.0, "3 min 12 s"), (7500.0, "2 h 05 min")]
)
def test_durations_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_bytes_and_shares_have_units() -> None:
    assert [format_bytes(n) for n in (12, 999_499, 489_000_000)] == ["12 bytes", "999 kB", "489 MB"]
    assert format_share(0.5) == "50 %"
