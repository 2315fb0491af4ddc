"""Structure first, then values; every way of having compared nothing is visible."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import comparison_of, frames, noisy, scores
from validator.compare import (
    Frame,
    FrameLookup,
    StructureDifference,
    compare,
    dtype_kind,
    measure_variety,
    pool_runs,
)
from validator.golden.output_spec import OutputSpec


def test_equal_outputs_compare_equal_and_everything_is_counted() -> None:
    y = scores()
    result = comparison_of(y, y)
    assert result.structure == ()
    assert result.samples == 16
    assert result.elements == 160
    assert result.outputs["output"].unequal == 0


@given(st.integers(1, 20), st.integers(1, 20))
def test_the_cut_into_frames_leaves_no_trace(left: int, right: int) -> None:
    y = scores()
    c = noisy(y, 1e-3)
    whole = comparison_of(y, c).outputs["output"]
    cut = compare(frames({"output": y}, left), frames({"output": c}, right)).outputs["output"]
    assert cut.summary == whole.summary
    assert cut.rows.tobytes() == whole.rows.tobytes()
    assert (cut.histogram == whole.histogram).all()


def test_an_output_missing_on_one_side_is_a_difference_on_either_side() -> None:
    y = scores()
    both, one = frames({"a": y, "b": y}), frames({"a": y})
    missing = compare(both, one).structure
    extra = compare(one, both).structure
    assert [(d.output, d.what) for d in missing] == [("b", "missing")]
    assert [(d.output, d.what) for d in extra] == [("b", "not among the reference's outputs")]
    assert missing[0].count == 2


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (np.zeros((16, 9)), "shape"),
        (np.zeros((16, 10, 1)), "shape"),
        (np.zeros((16, 10), np.int64), "dtype int64 instead of float64"),
        (np.zeros((16, 10), np.bool_), "dtype bool"),
    ],
    ids=["fewer", "rank", "integer", "bool"],
)
def test_another_shape_or_kind_is_a_difference_and_no_value_is_compared(candidate: np.ndarray, words: str) -> None:
    result = comparison_of(scores(), candidate)
    assert words in result.structure[0].what
    assert result.elements == 0


def test_another_precision_is_no_difference() -> None:
    y = scores()
    assert comparison_of(y, y.astype(np.float16)).structure == ()


def test_samples_that_the_reference_does_not_hold_are_a_difference_and_not_counted() -> None:
    result = comparison_of(scores(8), scores(16))
    assert result.samples == 8
    assert result.structure[0].what == "samples that the reference does not hold"


def test_samples_after_those_that_the_reference_does_not_hold_are_compared() -> None:
    y = scores(16)
    reference = frames({"output": y}, 4)
    result = compare([*reference[:1], *reference[2:]], frames({"output": y}, 4))
    assert result.samples == 12
    assert (result.structure[0].output, result.structure[0].sample) == ("", 4)


def test_a_candidate_with_fewer_samples_is_counted_with_fewer() -> None:
    assert comparison_of(scores(16), scores(8)).samples == 8


def test_an_empty_candidate_compares_nothing() -> None:
    result = compare(frames({"output": scores()}), [])
    assert result.samples == 0
    assert result.elements == 0


def test_an_output_without_a_batch_dimension_is_compared_whole() -> None:
    y = np.arange(3.0)
    reference = [Frame(start=0, stop=8, outputs={"anchors": y}, dtypes={"anchors": "float64"})]
    candidate = [Frame(start=0, stop=8, outputs={"anchors": y + 1}, dtypes={"anchors": "float32"})]
    output = compare(reference, candidate).outputs["anchors"]
    assert output.elements == 3
    assert output.summary.rms == 1


def test_an_output_of_one_shape_whatever_the_batch_is_compared_whole() -> None:
    """Anchors must not depend on the batch; a mean over the batch does, and is found."""
    y = np.arange(3.0)
    whole = [Frame(start=0, stop=8, outputs={"anchors": y}, dtypes={"anchors": "float64"})]
    halves = [Frame(start=s, stop=s + 4, outputs={"anchors": y + s}, dtypes={"anchors": "float64"}) for s in (0, 4)]
    result = compare(whole, halves)
    assert result.unattributed == ()
    assert result.outputs["anchors"].unequal == 3
    assert result.largest_batch == 4


def test_an_output_without_a_batch_dimension_is_unattributed_where_the_cuts_differ() -> None:
    def columns(start: int, stop: int) -> Frame:
        return Frame(start=start, stop=stop, outputs={"t": np.zeros((3, stop - start))}, dtypes={"t": "float64"})

    result = compare([columns(0, 8)], [columns(0, 4), columns(4, 8)])
    assert result.unattributed == ("t",)
    assert result.structure == ()
    assert result.elements == 0


def test_ragged_samples_are_compared_group_by_group() -> None:
    short, long = np.ones((2, 3)), np.ones((2, 5))
    source = [
        Frame(start=0, stop=2, outputs={"y": short}, dtypes={"y": "float64"}),
        Frame(start=2, stop=4, outputs={"y": long}, dtypes={"y": "float64"}),
    ]
    result = compare(source, source)
    assert result.samples == 4
    assert result.elements == 16


def test_a_lookup_reads_backwards_too() -> None:
    lookup = FrameLookup(frames({"output": scores()}, 4))
    late, early = lookup.read(12, 16), lookup.read(0, 4)
    assert late is not None
    assert early is not None
    assert early.outputs["output"].shape == (4, 10)


def test_a_lookup_reads_every_frame_once_and_none_before_it_is_asked_for() -> None:
    drawn: list[int] = []

    class Source:
        def __iter__(self) -> Iterator[Frame]:
            for frame in frames({"output": scores()}, 4):
                drawn.append(frame.start)
                yield frame

    lookup = FrameLookup(Source())
    for start, seen in ((0, [0]), (0, [0]), (2, [0, 4]), (4, [0, 4]), (12, [0, 4, 8, 12]), (0, [0, 4, 8, 12, 0])):
        assert lookup.read(start, start + 4) is not None
        assert drawn == seen


def test_a_hole_in_the_reference_is_no_counterpart() -> None:
    cut = frames({"output": scores()}, 4)
    assert FrameLookup([cut[0], cut[2]]).read(0, 12) is None


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float16", "float"), ("bfloat16", "float"), ("uint8", "integer"), ("int64", "integer"), ("bool", "bool"),
     ("complex64", "complex")],
    ids=str,
)  # fmt: skip
def test_kinds_of_dtypes(dtype: str, kind: str) -> None:
    assert dtype_kind(dtype) == kind


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.full((4, 3), np.nan), "no finite number"),
        (np.zeros((4, 3)), "zero everywhere"),
        (np.ones((4, 3)), "the same for every sample"),
    ],
    ids=["nan", "zero", "constant"],
)
def test_a_reference_that_proves_nothing_is_seen(values: np.ndarray, words: str) -> None:
    weakness = measure_variety(frames({"output": values}, 2))["output"].weakness
    assert weakness is not None
    assert words in weakness


def test_rounding_is_no_variety() -> None:
    """The same sample again, in another batch, is the same evidence."""
    y = np.ones((4, 3)) + np.arange(4)[:, None] * 1e-15
    assert measure_variety(frames({"output": y}))["output"].weakness is not None


def test_large_integers_are_told_apart_to_the_last_one() -> None:
    y = np.full((2, 1), 2**60)
    assert comparison_of(y, y + 7).outputs["output"].unequal == 2
    assert comparison_of(y, y.astype(np.uint64)).outputs["output"].unequal == 0


def test_a_reference_with_different_answers_is_no_weak_one() -> None:
    assert measure_variety(frames({"output": scores()}))["output"].weakness is None


def test_pooled_runs_have_the_mean_square_and_the_largest_error_of_any() -> None:
    y = scores()
    far, near = y.copy(), y.copy()
    far[0, 0] += 3.0
    near[0, 1] += 1.0
    near[5] = np.nan
    runs = [comparison_of(y, far), comparison_of(y, near)]
    pooled = pool_runs(runs)
    output, each = pooled.outputs["output"], [run.outputs["output"] for run in runs]
    assert output.rows["sum_sq_error"][0] == pytest.approx((9.0 + 1.0) / 2)
    assert output.rows["max_abs_error"][0] == pytest.approx(3.0)
    assert output.nonfinite_mismatches == 10
    assert output.rows["unequal"][0] == 1
    assert output.rows["unequal"][5] == 10
    assert output.rows["sample"].tolist() == list(range(16))
    assert (output.histogram == each[0].histogram + each[1].histogram).all()
    assert output.channels[0].error.tolist() == [3.0, 1.0, *[0.0] * 8]
    assert output.channels[1].error.tolist() == each[0].channels[1].merge(each[1].channels[1]).error.tolist()


def test_pooled_runs_hold_what_all_of_them_hold() -> None:
    y = scores()
    whole = compare(frames({"output": y, "other": y}), frames({"output": y, "other": y}))
    fewer = compare(frames({"output": y, "other": y}), frames({"output": y[:8]}, 4))
    pooled = pool_runs([whole, fewer])
    assert pooled.outputs == {}
    assert pooled.samples == 8
    assert pooled.largest_batch == 8
    assert [d.what for d in pooled.structure] == ["missing"]
    assert pool_runs([whole, whole]).outputs.keys() == {"output", "other"}


def test_pooled_runs_tell_what_was_not_comparable_in_any() -> None:
    known = comparison_of(scores(), scores())
    odd = replace(
        known, unattributed=("t",), misdeclared=(StructureDifference(output="o", what="w", sample=0, count=1),)
    )
    pooled = pool_runs([known, odd, odd])
    assert pooled.unattributed == ("t",)
    assert pooled.misdeclared == odd.misdeclared


@pytest.mark.parametrize(("flips", "count"), [([0, 1, 1], 2), ([-1, 1, 1], None), ([-1, -1, -1], None), ([], None)])
def test_flips_are_counted_where_every_sample_has_classes(flips: list[int], count: int | None) -> None:
    output = comparison_of(scores(max(len(flips), 1)), scores(max(len(flips), 1))).outputs["output"]
    rows = output.rows[: len(flips)].copy()
    rows["top1_flip"] = flips
    assert replace(output, rows=rows).flips == count


def test_a_batch_counts_the_copies_that_filled_it() -> None:
    y = scores(3)
    filled = [Frame(start=0, stop=3, outputs={"output": y}, dtypes={"output": "float64"}, filled=5)]
    assert compare(filled, filled).largest_batch == 8


def test_every_element_is_in_the_histogram() -> None:
    y = scores()
    assert comparison_of(y, y).outputs["output"].histogram.sum() == 160
    wrong = comparison_of(y, y + 1).outputs["output"].histogram
    assert wrong.sum() == 160
    assert wrong[: np.float32(0.9).view(np.uint32) >> 16].sum() == 0


def test_a_run_by_itself_is_pooled_with_none() -> None:
    alone = comparison_of(scores(), noisy(scores(), 1e-3))
    assert pool_runs([alone]).outputs["output"].rows.tobytes() == alone.outputs["output"].rows.tobytes()


def test_an_output_of_one_number_is_compared_whole() -> None:
    loss = [Frame(start=0, stop=4, outputs={"loss": np.array(2.0)}, dtypes={"loss": "float64"})]
    other = [Frame(start=0, stop=4, outputs={"loss": np.array(3.0)}, dtypes={"loss": "float64"})]
    assert compare(loss, other).outputs["loss"].unequal == 1


def test_a_frame_after_those_that_are_asked_for_has_no_part_in_them() -> None:
    shapes = ((0, 3), (2, 5))
    source = [
        Frame(start=start, stop=start + 2, outputs={"y": np.ones((2, size))}, dtypes={"y": "float64"})
        for start, size in shapes
    ]
    lookup = FrameLookup(source)
    assert lookup.read(0, 4) is not None
    first = lookup.read(0, 2)
    assert first is not None
    assert first.cut_differently == frozenset()
    assert first.outputs["y"].shape == (2, 3)


def test_an_output_that_some_frames_of_the_reference_lack_is_not_comparable_and_others_are() -> None:
    y = scores(8)
    reference = [
        Frame(start=0, stop=4, outputs={"a": y[:4], "b": y[:4]}, dtypes={"a": "float64", "b": "float64"}),
        Frame(start=4, stop=8, outputs={"b": y[4:]}, dtypes={"b": "float64"}),
    ]
    result = compare(reference, frames({"a": y, "b": y}))
    assert result.unattributed == ("a",)
    assert result.outputs["b"].elements == 80


def test_an_output_that_looks_cut_by_sample_in_some_frames_only_is_not_comparable() -> None:
    def anchors(start: int, stop: int) -> Frame:
        return Frame(start=start, stop=stop, outputs={"t": np.ones((3, 2))}, dtypes={"t": "float64"})

    candidate = Frame(start=0, stop=8, outputs={"t": np.ones((8, 2))}, dtypes={"t": "float64"})
    assert compare([anchors(0, 3), anchors(3, 8)], [candidate]).unattributed == ("t",)


def test_two_samples_can_already_be_the_same() -> None:
    assert measure_variety(frames({"output": np.ones((2, 3))}))["output"].weakness == "is the same for every sample"
    assert measure_variety(frames({"output": np.ones((1, 3))}))["output"].weakness is None


@pytest.mark.parametrize(
    ("one", "other", "moved"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0),
        ([1.0, np.nan], [1.0, 2.0], 1),
        ([1.0, 2.0], [1.0, np.nan], 1),
        ([1.0, np.inf], [1.0, -np.inf], 1),
        ([1e-12], [2e-12], 1),
        ([1e6], [1e6 + 1e-4], 0),
        ([1e6], [1e6 + 1e-2], 1),
        ([1.0], [1.0 + 2.0**-31], 0),
        ([np.nan], [np.nan], 0),
        ([0.0], [0.0], 0),
    ],
)
def test_samples_differ_by_more_than_rounding_or_not_at_all(one: list[float], other: list[float], moved: int) -> None:
    variety = measure_variety(frames({"output": np.array([one, other])}))["output"]
    assert variety.distinct == 1 + moved


def test_samples_of_other_shapes_differ() -> None:
    ragged = [
        Frame(start=0, stop=1, outputs={"y": np.ones((1, 3))}, dtypes={"y": "float64"}),
        Frame(start=1, stop=2, outputs={"y": np.ones((1, 5))}, dtypes={"y": "float64"}),
    ]
    assert measure_variety(ragged)["y"].distinct == 2


@pytest.mark.parametrize("unordered", [None, "rows"])
def test_variety_knows_what_is_masked_in_every_frame(unordered: str | None) -> None:
    y = np.ones((6, 2))
    y[4, 1] = 9.0
    mask = np.ones((6, 2), bool)
    mask[:, 1] = False
    specs = {"y": OutputSpec.model_validate({"valid_mask": "mask", "unordered": unordered})}
    source = frames({"y": y, "mask": mask}, 2)
    assert measure_variety(source, specs=specs)["y"].distinct == 1
    assert measure_variety(source)["y"].distinct == 2


def test_a_lookup_that_begins_in_the_midst_holds_nothing_from_before() -> None:
    ragged = [
        Frame(start=start, stop=start + 2, outputs={"y": np.ones((2, size))}, dtypes={"y": "float64"})
        for start, size in ((0, 3), (2, 5), (4, 5))
    ]
    found = FrameLookup(ragged).read(2, 4)
    assert found is not None
    assert found.cut_differently == frozenset()
    whole = FrameLookup(ragged).read(0, 6)
    assert whole is not None
    assert whole.cut_differently == {"y"}


def test_variety_takes_an_output_without_a_batch_as_a_whole() -> None:
    y = np.arange(8.0).reshape(4, 2)
    source = [Frame(start=0, stop=4, outputs={"t": y}, dtypes={"t": "float64"})]
    assert measure_variety(source, specs={"t": OutputSpec(batched=False)})["t"].samples == 1
    assert measure_variety(source)["t"].samples == 4


@pytest.mark.parametrize(
    ("dtype", "same"),
    [("float64", -30), ("float32", -19), ("complex64", -19), ("float16", -7), ("bfloat16", -5)],
)
def test_samples_that_are_a_few_roundings_apart_are_the_same(dtype: str, same: int) -> None:
    for apart, distinct in ((2.0**same, 1), (1.5 * 2.0**same, 2)):
        y = np.array([[1.0], [1.0 + apart]])
        assert measure_variety(frames({"output": y}, dtypes={"output": dtype}))["output"].distinct == distinct


def test_a_frame_says_that_nothing_filled_it_and_one_sample_among_copies_counts_as_one() -> None:
    frame = Frame(start=0, stop=2, outputs={}, dtypes={})
    assert [frame.batch, replace(frame, filled=3).batch, replace(frame, stop=1, filled=3).batch] == [2, 5, 1]
