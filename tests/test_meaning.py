"""What is declared to be the same answer is no difference, and nothing else is touched."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import backend_evidence, evidence, frames, noisy, scores
from validator.backends.catalog import REFERENCE
from validator.compare import Comparison, Frame, compare, measure_variety
from validator.golden.output_spec import OutputSpec, find_contradictions
from validator.judge import Verdict, judge
from validator.meaning import align, find_faults
from validator.policy import BUILT_IN, Policy

PAGE = Path(__file__).parents[1] / "docs" / "outputs.md"
Arrays = Mapping[str, np.ndarray]
seeds = st.integers(0, 2**16)


def meaning(**said: dict[str, Any]) -> dict[str, OutputSpec]:
    """Declare outputs by name; `with` is written as in the file."""
    specs = {name: OutputSpec.model_validate(keys) for name, keys in said.items()}
    assert not list(find_contradictions(specs))
    return specs


def aligned(specs: Mapping[str, OutputSpec], y: Arrays, c: Arrays, **inputs: np.ndarray) -> tuple[Arrays, Arrays]:
    samples = len(next(iter(y.values()))) if next(iter(y.values())).ndim else 1
    return align(specs, y, c, inputs, samples=samples)


def is_same(y: Arrays, c: Arrays) -> bool:
    return all(np.array_equal(y[name], c[name], equal_nan=y[name].dtype.kind in "fc") for name in y)


# --- Laws -----------------------------------------------------------------------------------------------------

EVERYTHING = meaning(
    angle={"period": 360.0},
    level={"one_lsb": True},
    padded={"valid_mask": "mask"},
    boxes={"unordered": "rows", "with": ["labels"]},
    best={"tie_break": "any", "scores": "logits"},
)


def outputs(seed: int) -> dict[str, np.ndarray]:
    """Return outputs of four samples, one of each kind, with some that are not finite, and undeclared ones."""
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {
        "angle": rng.normal(size=(4, 3)) * 200,
        "level": rng.integers(0, 256, size=(4, 5)).astype(np.uint8),
        "padded": rng.normal(size=(4, 6, 2)),
        "mask": rng.integers(0, 2, size=(4, 6)).astype(bool),
        "boxes": rng.normal(size=(4, 7, 4)),
        "labels": rng.integers(0, 3, size=(4, 7)),
        "best": rng.integers(0, 9, size=(4, 2)),
        "logits": np.round(rng.normal(size=(4, 9))),
        "other": rng.normal(size=(4, 3)),
        "count": rng.integers(0, 9, size=(4,)),
    }
    for name in ("angle", "padded", "boxes", "logits", "other"):
        flat = values[name].reshape(-1)
        flat[rng.integers(0, flat.size, size=2)] = [np.nan, np.inf]
    return values


@given(seeds, seeds)
def test_aligning_with_no_declaration_is_the_identity(one: int, other: int) -> None:
    y, c = outputs(one), outputs(other)
    found = align({}, y, c, {}, samples=4)
    assert all(found[0][name] is y[name] and found[1][name] is c[name] for name in y)


@given(seeds, seeds)
def test_aligning_never_makes_an_undeclared_output_closer(one: int, other: int) -> None:
    y, c = outputs(one), outputs(other)
    found = align(EVERYTHING, y, c, {}, samples=4)
    for name in ("mask", "logits", "other", "count"):
        assert found[0][name] is y[name]
        assert found[1][name] is c[name]


@given(seeds, seeds)
def test_aligning_twice_is_aligning_once_and_alters_no_array_that_was_given(one: int, other: int) -> None:
    y, c = outputs(one), outputs(other)
    before = outputs(one), outputs(other)
    once = align(EVERYTHING, y, c, {}, samples=4)
    assert is_same(y, before[0])
    assert is_same(c, before[1])
    twice = align(EVERYTHING, *once, {}, samples=4)
    assert is_same(once[0], twice[0])
    assert is_same({n: v for n, v in once[1].items() if n != "angle"}, twice[1])


@given(seeds)
def test_an_output_aligned_with_itself_differs_nowhere(seed: int) -> None:
    y = outputs(seed)
    a, b = align(EVERYTHING, y, y, {}, samples=4)
    assert is_same(a, b)
    assert {n: (v.shape, v.dtype) for n, v in b.items()} == {n: (v.shape, v.dtype) for n, v in y.items()}


@given(seeds, st.permutations(range(7)))
def test_a_permutation_of_rows_is_equal_if_and_only_if_it_is_declared(seed: int, order: list[int]) -> None:
    y = {"boxes": np.random.default_rng(seed).normal(size=(2, 7, 4)), "labels": np.arange(14).reshape(2, 7)}
    c = {name: values[:, order] for name, values in y.items()}
    assert is_same(*aligned(meaning(boxes={"unordered": "rows", "with": ["labels"]}), y, c))
    assert is_same(*aligned({}, y, c)) == (order == sorted(order))
    alone = aligned(meaning(boxes={"unordered": "rows"}), y, c)
    assert np.array_equal(alone[0]["boxes"], alone[1]["boxes"])
    assert np.array_equal(alone[0]["labels"], alone[1]["labels"]) == (order == sorted(order))


@given(seeds, st.permutations(range(6)))
def test_rows_of_a_group_move_together(seed: int, order: list[int]) -> None:
    """Each output alone is a permutation of the reference's; together they are other detections."""
    rng = np.random.default_rng(seed)
    y = {"boxes": rng.normal(size=(1, 6, 4)), "labels": np.arange(6)[np.newaxis]}
    c = {"boxes": y["boxes"][:, order], "labels": y["labels"]}
    a, b = aligned(meaning(boxes={"unordered": "rows", "with": ["labels"]}), y, c)
    assert is_same(a, b) == (order == sorted(order))


@given(
    st.sampled_from([np.uint8, np.int8, np.int32, np.int64, np.uint64]),
    st.lists(st.integers(0, 255), min_size=1, max_size=20),
    st.integers(-3, 3),
)
def test_two_levels_are_never_hidden_and_one_always_is(dtype: type[np.integer], raw: list[int], step: int) -> None:
    y = np.array(raw, np.uint8).astype(dtype).reshape(1, -1)
    with np.errstate(over="ignore"):
        c = y + np.array(step, np.int64).astype(dtype)
    a, b = aligned(meaning(v={"one_lsb": True}), {"v": y}, {"v": c})
    near = np.array([abs(int(i) - int(j)) <= 1 for i, j in zip(y.flat, c.flat, strict=True)]).reshape(y.shape)
    assert np.array_equal(a["v"] == b["v"], near)
    assert np.array_equal(b["v"][~near], c[~near])


@given(st.floats(-1e4, 1e4), st.integers(-5, 5), st.floats(-0.4, 0.4), st.floats(1e-3, 1e3))
def test_angles_are_wrapped_to_half_a_period_and_no_further(
    angle: float, turns: int, off: float, period: float
) -> None:
    y, c = np.array([[angle]]), np.array([[angle + (turns + off) * period]])
    a, b = aligned(meaning(v={"period": period}), {"v": y}, {"v": c})
    assert float(b["v"][0, 0] - a["v"][0, 0]) == pytest.approx(off * period, abs=1e-9 * (period + abs(angle)))


# --- One kind after the other ---------------------------------------------------------------------------------


def test_angles_near_to_each_other_keep_every_bit() -> None:
    y, c = np.array([[1.0, np.nan, np.inf]]), np.array([[1.25, 1.0, np.inf]], np.float32)
    _, b = aligned(meaning(v={"period": 360.0}), {"v": y}, {"v": c})
    assert b["v"] is c


def test_half_a_period_is_the_largest_error_there_is() -> None:
    y, c = np.array([[10.0, 350.0, 0.0]]), np.array([[350.0, 10.0, 180.0]])
    _, b = aligned(meaning(v={"period": 360.0}), {"v": y}, {"v": c})
    assert (b["v"] - y).tolist() == [[-20.0, 20.0, 180.0]]


def test_masked_positions_hold_anything_and_count_nowhere() -> None:
    y = scores().reshape(16, 5, 2)
    mask = np.arange(5) < (np.arange(16) % 5 + 1)[:, np.newaxis]
    c = np.where(mask[..., np.newaxis], y, np.nan)
    loud = np.where(mask[..., np.newaxis], y, 1e30)
    specs = meaning(v={"valid_mask": "mask"})
    found = compare(frames({"v": loud, "mask": mask}), frames({"v": c, "mask": mask}), specs=specs)
    output = found.outputs["v"]
    assert (output.unequal, output.nonfinite_mismatches, output.summary.rms) == (0, 0, 0)
    assert output.summary.rms_reference == pytest.approx(np.sqrt(np.mean(y[mask] ** 2)))
    assert compare(frames({"v": loud}), frames({"v": c})).outputs["v"].nonfinite_mismatches > 0


@pytest.mark.parametrize("bad", [1.0, np.nan, np.inf], ids=str)
def test_a_difference_where_the_mask_is_true_stays(bad: float) -> None:
    y, mask = scores(), np.arange(10) < 5
    c = y.copy()
    c[3, 2] = bad
    masks = np.broadcast_to(mask, y.shape)
    found = compare(
        frames({"v": y, "m": masks}), frames({"v": c, "m": masks}), specs=meaning(v={"valid_mask": "m"})
    ).outputs["v"]
    assert found.unequal == 1


def test_the_mask_is_the_references_and_is_itself_compared_exactly() -> None:
    y = scores()
    ours, theirs = np.ones(y.shape, np.int64), np.zeros(y.shape, np.int64)
    found = compare(
        frames({"v": y, "m": ours}), frames({"v": y + 1, "m": theirs}), specs=meaning(v={"valid_mask": "m"})
    )
    assert found.outputs["v"].unequal == y.size
    assert found.outputs["m"].unequal == y.size


def test_a_mask_may_be_a_golden_input() -> None:
    y, mask = scores(), np.arange(160).reshape(16, 10) % 2 == 0
    found = compare(
        frames({"v": y}),
        frames({"v": np.where(mask, y, 7.0)}),
        specs=meaning(v={"valid_mask": "pad"}),
        inputs=lambda start, stop: {"pad": mask[start:stop]},
    )
    assert found.misdeclared == ()
    assert found.outputs["v"].unequal == 0


def test_an_output_that_is_masked_everywhere_is_no_agreement() -> None:
    y, mask = scores(), np.zeros((16, 10), np.bool_)
    specs = meaning(v={"valid_mask": "m"})
    found = compare(frames({"v": y, "m": mask}), frames({"v": y, "m": mask}), specs=specs)
    assert np.isnan(found.outputs["v"].summary.rms)
    assert measure_variety(frames({"v": y, "m": mask}), specs=specs)["v"].weakness == "holds no finite number"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64, np.int32, np.uint8, np.bool_])
def test_masks_work_on_every_dtype(dtype: type[np.generic]) -> None:
    y, c = np.zeros((2, 3), dtype), np.ones((2, 3), dtype)
    mask = np.array([[True, False, True], [False, False, False]])
    specs = meaning(v={"valid_mask": "m"})
    found = compare(frames({"v": y, "m": mask}), frames({"v": c, "m": mask}), specs=specs).outputs["v"]
    assert found.unequal == 2
    assert found.nonfinite_mismatches == 0


def test_tied_indices_are_the_same_answer_and_others_are_not() -> None:
    logits = np.array([[1.0, 5, 5, 3, 5, 5], [0, 0, 0, 0, 0, 0]])
    specs = meaning(i={"tie_break": "any", "scores": "logits"})
    y, c = np.array([[1, 2, 4], [0, 1, 2]]), np.array([[5, 4, 2], [3, 5, 4]])
    assert is_same(*aligned(specs, {"i": y, "logits": logits}, {"i": c, "logits": logits}))
    worse = np.array([[5, 4, 3], [3, 5, 4]])
    _, b = aligned(specs, {"i": y, "logits": logits}, {"i": worse, "logits": logits})
    assert b["i"].tolist() == [[1, 2, 3], [0, 1, 2]]


def test_a_best_that_is_given_twice_is_no_tie() -> None:
    logits = np.array([[5.0, 5, 5, 1]])
    specs = meaning(i={"tie_break": "any", "scores": "logits"})
    _, b = aligned(
        specs, {"i": np.array([[0, 1, 2]]), "logits": logits}, {"i": np.array([[0, 0, 2]]), "logits": logits}
    )
    assert b["i"].tolist() == [[0, 0, 2]]


def test_an_index_outside_the_scores_is_tied_with_nothing() -> None:
    logits = np.zeros((4, 3))
    specs = meaning(i={"tie_break": "any", "scores": "logits"})
    y, c = np.array([0, 0, 0, -1]), np.array([3, -1, 2**40, 0])
    _, b = aligned(specs, {"i": y, "logits": logits}, {"i": c, "logits": logits})
    assert b["i"].tolist() == c.tolist()


@pytest.mark.parametrize(("margin", "tied"), [(0.0, True), (2.0**-22, True), (2.0**-18, False)])
def test_scores_are_equal_up_to_a_share_of_their_rms(margin: float, *, tied: bool) -> None:
    for scale in (1e-200, 1.0, 1e200):
        logits = np.array([[1.0, 1.0 + margin, -1.0]]) * scale
        specs = meaning(i={"tie_break": "any", "scores": "logits"})
        a, b = aligned(specs, {"i": np.array([1]), "logits": logits}, {"i": np.array([0]), "logits": logits})
        assert is_same(a, b) is tied


def test_scores_that_are_not_finite_tie_only_with_their_like() -> None:
    logits = np.array([[np.nan, np.nan, 1.0], [-np.inf, -np.inf, 1.0]])
    specs = meaning(i={"tie_break": "any", "scores": "logits"})
    _, b = aligned(specs, {"i": np.array([0, 0]), "logits": logits}, {"i": np.array([1, 1]), "logits": logits})
    assert b["i"].tolist() == [1, 0]


def test_a_changed_row_stays_a_difference_however_the_rows_lie() -> None:
    y = np.random.default_rng(0).normal(size=(16, 8, 4))
    c = noisy(y, 1e-7)[:, ::-1].copy()
    specs = meaning(boxes={"unordered": "rows"})
    healthy = compare(frames({"boxes": y}), frames({"boxes": c}), specs=specs).outputs["boxes"].summary
    c[3, 2, 1] += 1e-3
    changed = compare(frames({"boxes": y}), frames({"boxes": c}), specs=specs).outputs["boxes"].summary
    assert healthy.element_max < 1e-6
    assert changed.element_max == pytest.approx(1e-3, rel=1e-2)
    assert changed.worst_sample == 3


def test_rows_with_numbers_that_are_none_are_matched_too() -> None:
    y = np.array([[[np.nan, 1.0], [np.inf, 2.0], [0.0, 3.0], [1e300, 4.0]]])
    assert is_same(*aligned(meaning(v={"unordered": "rows"}), {"v": y}, {"v": y[:, [2, 3, 0, 1]]}))
    _, b = aligned(meaning(v={"unordered": "rows"}), {"v": y}, {"v": np.full_like(y, np.nan)})
    assert np.isnan(b["v"]).all()


def test_garbage_rows_stay_in_their_place() -> None:
    """Padded detections: valid rows in any order, whatever lies in the others."""
    y = np.array([[[1.0], [2.0], [3.0], [9.0]]])
    c = np.array([[[3.0], [1.0], [2.0], [1.0]]])
    mask = np.array([[True, True, True, False]])
    specs = meaning(v={"unordered": "rows", "valid_mask": "m"})
    a, b = aligned(specs, {"v": y, "m": mask}, {"v": c, "m": mask})
    assert is_same(a, b)
    assert b["v"][0, :3].tolist() == y[0, :3].tolist()


def test_angles_and_levels_of_unordered_rows_are_matched_as_what_they_mean() -> None:
    y = {"a": np.array([[0.0, 90.0, 180.0]]), "l": np.array([[10, 20, 30]])}
    c = {"a": np.array([[540.0, 360.0, -270.0]]), "l": np.array([[31, 9, 20]])}
    specs = meaning(a={"unordered": "rows", "with": ["l"], "period": 360.0}, l={"one_lsb": True})
    assert is_same(*aligned(specs, y, c))


def test_rows_without_a_batch_dimension_are_rows_all_the_same() -> None:
    y = [np.random.default_rng(n).normal(size=(n, 4)) for n in (3, 0, 1, 8)]
    ours = [Frame(start=i, stop=i + 1, outputs={"b": v}, dtypes={"b": "float64"}) for i, v in enumerate(y)]
    theirs = [Frame(start=i, stop=i + 1, outputs={"b": v[::-1]}, dtypes={"b": "float32"}) for i, v in enumerate(y)]
    found = compare(ours, theirs, specs=meaning(b={"unordered": "rows", "batched": False}))
    assert found.structure == found.misdeclared == ()
    assert found.outputs["b"].unequal == 0
    assert found.elements == 48


def test_coordinates_of_one_box_are_no_rows() -> None:
    """Without a batch dimension, one box of one sample looks like one sample of four rows."""
    y = np.array([[1.0, 2.0, 3.0, 4.0]])
    specs = meaning(b={"unordered": "rows", "batched": False})
    _, b = align(specs, {"b": y}, {"b": y[:, ::-1]}, {}, samples=1)
    assert b["b"].tolist() == [[4.0, 3.0, 2.0, 1.0]]


@pytest.mark.parametrize(
    "candidate",
    [np.zeros((16, 9)), np.zeros((16, 10), np.int64), np.zeros((16, 10), np.complex64)],
    ids=["shape", "integer", "complex"],
)
def test_a_difference_in_structure_is_never_hidden(candidate: np.ndarray) -> None:
    mask = np.zeros((16, 10), np.bool_)
    for keys in ({"valid_mask": "m"}, {"period": 1.0}, {"unordered": "rows"}):
        found = compare(frames({"v": scores(), "m": mask}), frames({"v": candidate, "m": mask}), specs=meaning(v=keys))
        assert [d.output for d in found.structure] == ["v"]
        assert found.misdeclared == ()


# --- Declarations that cannot be right ------------------------------------------------------------------------

Y = {
    "v": np.zeros((2, 3)),
    "i": np.zeros((2,), np.int64),
    "z": np.zeros((2, 3), np.complex64),
    "b": np.zeros((2, 3), np.bool_),
    "r": np.zeros((2, 5, 4)),
    "s": np.zeros((2, 4)),
    "one": np.zeros(()),
}


@pytest.mark.parametrize(
    ("output", "keys", "words"),
    [
        ("w", {"period": 1.0}, "has a declared meaning, but the model has no such output"),
        ("i", {"period": 1.0}, "is declared to be an angle with a period, but is int64"),
        ("z", {"period": 1.0}, "is declared to be an angle with a period, but is complex64"),
        ("v", {"one_lsb": True}, "is declared to be an integer that may differ by one, but is float64"),
        ("b", {"one_lsb": True}, "is declared to be an integer that may differ by one, but is bool"),
        ("v", {"tie_break": "any", "scores": "s"}, "is declared to be an index with ties, but is float64"),
        ("i", {"tie_break": "any", "scores": "w"}, "is declared to point into output w, which the model does not have"),
        ("i", {"tie_break": "any", "scores": "b"}, "which is bool and no score"),
        ("i", {"tie_break": "any", "scores": "r"}, r"but shapes \(2,\) and \(2, 5, 4\) do not fit"),
        ("i", {"tie_break": "any", "scores": "one"}, r"but shapes \(2,\) and \(\) do not fit"),
        ("v", {"valid_mask": "w"}, "is declared to be masked by w, which is neither an output nor a golden input"),
        ("v", {"valid_mask": "s"}, "is declared to be masked by s, which is float64 and no mask"),
        ("r", {"valid_mask": "b"}, r"shape \(2, 3\) is no beginning of \(2, 5, 4\)"),
        ("v", {"valid_mask": "input"}, r"shape \(7,\) is no beginning of \(2, 3\)"),
        ("r", {"unordered": "rows", "with": ["w"]}, "is declared to move with w, which the model does not have"),
        ("r", {"unordered": "rows", "with": ["s"]}, "their numbers of rows differ: r 5, s 4"),
        ("i", {"unordered": "rows"}, r"output i of shape \(2,\) has no rows after the batch dimension"),
        ("one", {"unordered": "rows", "batched": False}, r"output one of shape \(\) has no rows$"),
        ("b", {"unordered": "rows", "valid_mask": "bb"}, "its mask bb tells more than rows apart"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", str(value)) if isinstance(value, dict) else None,
)
def test_a_declaration_that_contradicts_the_outputs_says_how(output: str, keys: dict[str, Any], words: str) -> None:
    y = Y | ({"b": np.zeros((2, 3, 2), np.bool_), "bb": np.zeros((2, 3, 2), np.bool_)} if "bb" in words else {})
    inputs = {"input": np.zeros(7, np.int64)}
    faults = find_faults(meaning(**{output: keys}), y, inputs, samples=2)
    assert list(faults) == [output]
    assert re.search(words, faults[output])
    found = align(meaning(**{output: keys}), y, y, inputs, samples=2)
    assert all(found[1][name] is y[name] for name in y)


def test_rows_of_another_number_of_samples_are_told_how_to_be_declared() -> None:
    faults = find_faults(meaning(r={"unordered": "rows"}), {"r": np.zeros((5, 4))}, {}, samples=2)
    assert "batched = false" in faults["r"]


def test_a_misdeclared_output_is_told_and_compared_plainly() -> None:
    y = scores()
    found = compare(frames({"v": y}), frames({"v": y + 1}), specs=meaning(v={"one_lsb": True}))
    assert [(d.output, d.sample, d.count) for d in found.misdeclared] == [("v", 0, 2)]
    assert found.outputs["v"].unequal == y.size


def test_what_needs_an_output_that_was_cut_differently_is_not_compared() -> None:
    y, mask = np.ones((8, 3)), np.ones((8, 3), np.bool_)
    specs = meaning(v={"valid_mask": "m"}, m={"batched": False})
    found = compare(frames({"v": y, "m": mask}, 8), frames({"v": y, "m": mask}, 4), specs=specs)
    assert found.unattributed == ("m", "v")
    assert found.misdeclared == found.structure == ()


# --- Shapes and kinds that models return ----------------------------------------------------------------------


def verdict_on(y: Arrays, c: Arrays, b: Arrays, size: int = 8) -> tuple[Verdict, Comparison]:
    reference, candidate, baseline = frames(y, size), frames(c, size), frames(b, size)
    rows = (
        backend_evidence(REFERENCE, reference, reference),
        backend_evidence("eager-cpu", reference, baseline),
        backend_evidence("onnxruntime-cpu", reference, candidate),
    )
    main = rows[2].main
    assert main is not None
    return judge(BUILT_IN["cpu"], evidence(backends=rows, variety=measure_variety(reference))).verdict, main


@pytest.mark.parametrize(
    ("name", "cast"),
    [
        ("output.0", lambda v: v),
        ("more.boxes.0", lambda v: v.astype(np.float32)),
        ("float16", lambda v: v.astype(np.float16).astype(np.float64)),
        ("complex", lambda v: v[:, :5] + 1j * v[:, 5:]),
        ("integer", lambda v: np.round(v * 4).astype(np.int64)),
        ("bool", lambda v: v > 0),
        ("scalars", lambda v: v[:, 0]),
        ("empty", lambda v: v[:, :0]),
    ],
)
def test_every_kind_of_output_is_compared_and_judged_beside_others(name: str, cast: Any) -> None:
    y = scores()
    b, c = noisy(y, 1e-7, seed=2), noisy(y, 1e-7, seed=3)
    if name in {"integer", "bool", "float16"}:
        b = c = y
    verdict, main = verdict_on({"plain": y, name: cast(y)}, {"plain": y, name: cast(c)}, {"plain": y, name: cast(b)})
    assert main.structure == ()
    assert set(main.outputs) == {"plain", name}
    if name != "empty":
        assert verdict is Verdict.PASS


def detections(counts: list[int], noise: float = 0.0) -> list[Frame]:
    """Return one frame per sample, of as many boxes as are asked for."""
    made = []
    for i, n in enumerate(counts):
        rng = np.random.default_rng(i)
        boxes = rng.normal(size=(n, 4))
        values = {"boxes": boxes + noise * np.random.default_rng(99 + i).normal(size=(n, 4)), "labels": np.arange(n)}
        kinds = {name: str(v.dtype) for name, v in values.items()}
        made.append(Frame(start=i, stop=i + 1, outputs=values, dtypes=kinds))
    return made


@pytest.mark.parametrize("specs", [{}, meaning(boxes={"unordered": "rows", "with": ["labels"], "batched": False})])
def test_models_that_return_as_many_rows_as_they_find_are_compared_and_judged(specs: dict[str, OutputSpec]) -> None:
    counts = [3, 0, 1, 5, 0, 2, 8, 1, 0, 4, 2, 2, 7, 1, 0, 3]
    reference = detections(counts)
    rows = []
    for name, noise in ((REFERENCE, 0.0), ("eager-cpu", 1e-7), ("onnxruntime-cpu", 2e-7)):
        found = detections(counts, noise)
        same = compare(found, found, specs=specs)
        main = None if name == REFERENCE else compare(reference, found, specs=specs)
        rows.append(backend_evidence(name, reference, found, main=main, repeat=same, batches=()))
        if main is not None:
            assert main.structure == main.misdeclared == ()
            assert main.samples == 16
    variety = measure_variety(reference, specs=specs)
    one_by_one = {"required": BUILT_IN["cpu"].required, "batch_size": 1, "checks": {"batch_sizes": []}}
    assert judge(Policy.model_validate(one_by_one), evidence(backends=rows, variety=variety)).verdict is Verdict.PASS


def test_another_number_of_rows_is_a_difference_and_no_crash() -> None:
    specs = meaning(boxes={"unordered": "rows", "with": ["labels"], "batched": False})
    for ours, theirs in (([3], [2]), ([0], [2]), ([2], [0])):
        found = compare(detections(ours), detections(theirs), specs=specs)
        assert {d.output for d in found.structure} == {"boxes", "labels"}


def test_as_many_rows_as_samples_are_still_no_samples() -> None:
    """Eight boxes of a batch of eight, without a batch dimension, cannot be cut into samples."""
    boxes = np.random.default_rng(0).normal(size=(8, 4))
    whole = [Frame(start=0, stop=8, outputs={"boxes": boxes}, dtypes={"boxes": "float64"})]
    single = [Frame(start=i, stop=i + 1, outputs={"boxes": boxes[:i]}, dtypes={"boxes": "float64"}) for i in range(8)]
    found = compare(whole, single, specs=meaning(boxes={"batched": False}))
    assert (found.structure, found.unattributed) == ((), ("boxes",))


# --- The page -------------------------------------------------------------------------------------------------


def test_every_example_on_the_page_is_a_declaration() -> None:
    texts = re.findall(r"^```TOML\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    declared = [meaning(**tomllib.loads(text)) for text in texts]
    assert len(declared) >= 5
    said = {key for specs in declared for spec in specs.values() for key in spec.model_dump()}
    assert said == {field.alias or name for name, field in OutputSpec.model_fields.items()}


def test_every_key_is_explained_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, field in OutputSpec.model_fields.items():
        assert f"| `{field.alias or name}` |" in text
