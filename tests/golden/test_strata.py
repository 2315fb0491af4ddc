"""What strata hold: which samples are chosen, and what is made of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.errors import UsageError
from validator.golden.format import Stratum
from validator.golden.sample import Sample
from validator.golden.strata import (
    NO_LABEL,
    SCALES,
    LayerPeaks,
    OutputMargins,
    VaryingSize,
    as_stratum,
    choose_extremes,
    choose_low_margin,
    make_scales,
    make_shapes,
    make_specials,
    parse_strata,
    plan_shapes,
    spread_evenly,
    without_repeats,
)

BATCH = VaryingSize(symbol="b", least=1, most=64)


def sample(name="0000", label=None, **inputs):
    return Sample(id=name, inputs=inputs, label=label)


def image(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- Names -----------------------------------------------------------------------------------------------------------


def test_the_representative_stratum_is_always_asked_for():
    assert parse_strata("scales, specials") == {Stratum.REPRESENTATIVE, Stratum.SCALES, Stratum.SPECIALS}
    assert parse_strata("all") == parse_strata("scales,all") == set(Stratum)


@pytest.mark.parametrize("text", ["", "scale", "scales,,shapes", "SCALES"])
def test_an_unknown_stratum_is_named_with_those_that_there_are(text):
    with pytest.raises(UsageError, match="there is no stratum") as caught:
        parse_strata(text)
    assert "activation-extremes" in caught.value.hint


# --- Chosen ----------------------------------------------------------------------------------------------------------


def layer(median, *peaks):
    return LayerPeaks(layer="mm 0", median=median, peaks=peaks)


def test_the_sample_furthest_beyond_its_layers_own_median_comes_first():
    """A layer on a large scale is no reason: 900 over 300 is less than 5 over 1."""
    assert choose_extremes([layer(300.0, (7, 900.0), (3, 800.0)), layer(1.0, (5, 5.0), (7, 4.0))], 3) == (5, 7, 3)


def test_a_sample_that_is_extreme_in_several_layers_is_chosen_once():
    assert choose_extremes([layer(1.0, (2, 9.0), (1, 8.0)), layer(1.0, (2, 7.0), (0, 6.0))], 9) == (2, 1, 0)


def test_any_value_is_extreme_in_a_layer_that_is_mostly_silent_and_zero_is_not():
    assert choose_extremes([layer(1.0, (0, 9.0)), layer(0.0, (4, 1e-9), (5, 0.0))], 2) == (4, 0)


def test_the_smallest_margins_are_chosen_from_each_output_in_turn_without_those_taken():
    one = OutputMargins(output="a", margins=((4, 0.1), (2, 0.2), (9, 0.3)))
    other = OutputMargins(output="b", margins=((2, 40.0), (8, 50.0)))
    assert choose_low_margin([one, other], 3) == (4, 2, 8)
    assert choose_low_margin([one, other], 3, taken=(4, 8)) == (2, 9)
    assert choose_low_margin([], 3) == ()


@given(st.integers(1, 50), st.integers(1, 60))
def test_samples_are_chosen_evenly_and_never_twice(samples, count):
    chosen = spread_evenly([sample(str(i)) for i in range(samples)], count)
    numbers = [int(s.id) for s in chosen]
    assert len(numbers) == min(samples, count) == len(set(numbers))
    assert numbers == sorted(numbers)
    assert numbers[0] == 0


# --- Scaled ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 99), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.complex64]))
def test_a_scaled_sample_is_exact_and_integers_stay(seed, dtype):
    x, ids = image(3, 4, seed=seed, dtype=dtype), torch.tensor([3, 5])
    made = list(make_scales([sample(x=x, ids=ids, label=7)]))
    assert [s.id for s in made] == [f"scale-{name}/0000" for name in SCALES]
    for one, factor in zip(made, SCALES.values(), strict=True):
        assert one.inputs["ids"].tolist() == [3, 5]
        assert one.inputs["x"].dtype is dtype
        if factor:
            assert torch.equal(one.inputs["x"] / factor, x)
        assert (one.stratum, one.label) == (Stratum.SCALES, NO_LABEL)


def test_zero_times_any_sample_is_the_same_sample():
    made = without_repeats(make_scales([sample("a", x=image(4, seed=1)), sample("b", x=image(4, seed=2))]))
    assert [s.id for s in made][:2] == ["scale-0/a", "scale-2^-20/a"]


def test_a_product_that_leaves_the_range_of_its_dtype_is_left_out():
    made = make_scales([sample(x=torch.tensor([20_000.0], dtype=torch.float16))])
    assert [s.id.partition("/")[0] for s in made] == ["scale-0", "scale-2^-20", "scale-0.5", "scale-2"]


def test_what_has_no_floating_input_cannot_be_scaled():
    assert list(make_scales([sample(ids=torch.tensor([1, 2]))])) == []


# --- Special ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_specials_are_zero_constant_and_denormal_in_every_floating_dtype(dtype):
    specials = make_specials(sample(x=image(3, dtype=dtype)), {}, non_finite=False)
    made = {s.id.partition("/")[0]: s.inputs["x"] for s in specials}
    assert list(made) == ["special-zero", "special-constant", "special-denormal"]
    assert made["special-zero"].tolist() == [0, 0, 0]
    assert made["special-constant"].tolist() == [1, 1, 1]
    denormal = made["special-denormal"]
    assert all(0 < value < torch.finfo(dtype).smallest_normal for value in denormal.tolist())


def test_integers_become_zero_and_the_largest_of_the_source_and_masks_stay():
    mask = torch.tensor([True, False])
    own = sample(ids=torch.tensor([3, 5]), mask=mask)
    made = {s.id.partition("/")[0]: s.inputs for s in make_specials(own, {"ids": 9}, non_finite=True)}
    assert {kind: inputs["ids"].tolist() for kind, inputs in made.items()} == {
        "special-zero": [0, 0],
        "special-largest": [9, 9],
    }
    assert all(inputs["mask"] is mask for inputs in made.values())


def test_nan_and_infinity_come_only_where_the_contract_admits_them():
    made = {s.id.partition("/")[0]: s.inputs["x"] for s in make_specials(sample(x=torch.ones(3)), {}, non_finite=True)}
    assert made["special-nan"].isnan().tolist() == [False, True, False]
    assert made["special-inf"].tolist() == [1, math.inf, 1]


# --- Shaped ----------------------------------------------------------------------------------------------------------


def dim(symbol, least=1, most=None, **linear):
    return VaryingSize(symbol=symbol, least=least, most=most, **linear)


def shapes_of(shapings, name):
    return {shaping.title: shaping.shapes[name] for shaping in shapings}


def test_images_become_smallest_odd_and_twice_as_large_and_their_axes_differ():
    found = plan_shapes({"x": (BATCH, None, dim("h", 3), dim("w", 3))}, {"x": (3, 224, 224)}, largest=None)
    assert shapes_of(found, "x") == {"smallest": (None, 3, 3), "odd": (None, 223, 221), "largest": (None, 448, 448)}


def test_inputs_that_share_a_symbol_change_together():
    sizes = {"ids": (BATCH, dim("s", 2, 128)), "mask": (BATCH, dim("s", 2, 128))}
    found = plan_shapes(sizes, {"ids": (48,), "mask": (48,)}, largest=None)
    assert shapes_of(found, "ids") == shapes_of(found, "mask") == {"smallest": (2,), "odd": (47,), "largest": (96,)}


def test_a_size_that_follows_from_another_one_stays_allowed():
    """`8 * s` may only be a multiple of 8, and `s + 1` one more than another input's."""
    sizes = {"x": (BATCH, dim("s", 2, factor=8)), "y": (BATCH, dim("s", 2, offset=1))}
    found = plan_shapes(sizes, {"x": (64,), "y": (9,)}, largest=None)
    assert shapes_of(found, "x") == {"smallest": (16,), "odd": (56,), "largest": (128,)}
    assert shapes_of(found, "y") == {"smallest": (3,), "odd": (8,), "largest": (17,)}


def test_the_program_and_the_option_bound_the_largest_size():
    sizes = {"x": (BATCH, dim("s", 2, 50))}
    assert shapes_of(plan_shapes(sizes, {"x": (48,)}, largest=None), "x")["largest"] == (50,)
    assert shapes_of(plan_shapes(sizes, {"x": (48,)}, largest=40), "x")["largest"] == (40,)


@pytest.mark.parametrize(
    "dims",
    [(BATCH, None), (BATCH, dim("b")), (None, None), (BATCH, dim("s", 100))],
    ids=["fixed", "the batch's own", "static", "too large for the source"],
)
def test_where_nothing_but_the_batch_may_vary_there_is_no_shape(dims):
    assert plan_shapes({"x": dims}, {"x": (5,)}, largest=None) == []


@given(st.integers(1, 40), st.integers(1, 9), st.integers(-3, 9), st.integers(0, 30), st.none() | st.integers(0, 60))
def test_every_planned_size_is_allowed(size, factor, offset, least, most):
    varying = dim("s", least, most, factor=factor, offset=offset)
    for shaping in plan_shapes({"x": (BATCH, varying)}, {"x": (size,)}, largest=None):
        (found,) = shaping.shapes["x"]
        value = varying.value(found)
        assert varying.size(value) == found
        assert 1 <= found <= 2 * size
        assert value >= least
        assert most is None or value <= most


def test_samples_are_cropped_and_tiled_from_their_beginning():
    """A mask is cut like what it masks."""
    own = sample(x=torch.arange(6.0).reshape(2, 3), mask=torch.tensor([1, 1, 0]))
    sizes = {"x": (BATCH, None, dim("s", 2)), "mask": (BATCH, dim("s", 2))}
    shapings = plan_shapes(sizes, {"x": (2, 3), "mask": (3,)}, largest=5)
    made = {s.id: s.inputs for s in make_shapes([own], shapings)}
    assert made["shape-smallest/0000"]["x"].tolist() == [[0, 1], [3, 4]]
    assert made["shape-smallest/0000"]["mask"].tolist() == [1, 1]
    assert made["shape-largest/0000"]["x"].tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4]]
    assert made["shape-largest/0000"]["mask"].tolist() == [1, 1, 0, 1, 1]


# --- Together --------------------------------------------------------------------------------------------------------


def test_a_repeated_sample_is_left_out_unless_it_is_representative():
    x = torch.ones(2)
    twins = [as_stratum(sample(name, x=x), Stratum.REPRESENTATIVE) for name in "ab"]
    made = without_repeats([*twins, as_stratum(sample("c", x=x), Stratum.LOW_MARGIN), sample("d", x=x.reshape(2, 1))])
    assert [s.id for s in made] == ["representative/a", "representative/b", "d"]
