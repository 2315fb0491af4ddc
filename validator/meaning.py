"""Permitted differences taken out of two backends' outputs, as the golden dataset declares them. Pure.

What is declared to be the same answer becomes the reference's value on the candidate's side, and what is declared to be
garbage leaves the comparison on both sides. All other values stay as they are, and so do outputs that differ in shape
or kind of dtype, or whose declaration contradicts the reference: these are compared plainly.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.golden.output_spec import OutputSpec
from validator.metrics import Array, Floats, as_float64

Outputs = Mapping[str, Array]
Specs = Mapping[str, OutputSpec]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.integer[Any]]
Indices = npt.NDArray[np.int64]

TIE = 2.0**-20
"""Scores closer than this, over the RMS of the scores that an index chooses among, are equal: rounding decides."""

FARTHEST = 16.0
"""Where a normalised difference between two rows is cut off: a sum with a huge number in it would lose the small ones,
and with them the order of all other rows."""

MISFIT = 32.0
"""Normalised difference between a number and what is none: farther than any number, so that it is matched last."""

KINDS = {"f": "float", "c": "complex", "i": "integer", "u": "integer", "b": "bool"}
"""Kind of dtype by numpy's letter."""


def align(
    specs: Specs, reference: Outputs, candidate: Outputs, inputs: Outputs, *, samples: int | None = None
) -> tuple[Outputs, Outputs]:
    """Take the declared differences out of two sides' outputs for the same samples.

    Args:
        specs: what outputs mean, by name.
        reference: outputs of the reference; masks and scores are read here alone.
        candidate: outputs of the candidate.
        inputs: golden inputs of the same samples, as far as masks name them.
        samples: how many there are; None: unknown, and no declaration is checked against it.

    Returns:
        Reference and candidate with the same names and shapes. Masked elements are -inf (NaN if complex, 0 if integer
        or bool) on both sides, so that they count neither as compared nor as different.
    """
    faulty = find_faults(specs, reference, inputs, samples=samples)
    y, c = dict(reference), dict(candidate)
    usable = {
        name: spec for name, spec in specs.items() if name not in faulty and _is_comparable(reference, candidate, name)
    }
    for name, spec in usable.items():
        if spec.unordered is not None and all(_is_comparable(reference, candidate, other) for other in spec.with_):
            members = (name, *spec.with_)
            mask = None if spec.valid_mask is None else _find_mask(spec.valid_mask, reference, inputs)
            c |= _match_rows({m: (y[m], c[m], usable.get(m)) for m in members}, mask, batched=spec.batched)
    for name, spec in usable.items():
        c[name] = _take_permitted(spec, y[name], c[name], reference)
        if spec.valid_mask is not None:
            mask = _find_mask(spec.valid_mask, reference, inputs)
            y[name], c[name] = _blank(y[name], mask), _blank(c[name], mask)
    return y, c


def _is_comparable(reference: Outputs, candidate: Outputs, name: str) -> bool:
    """Whether both sides have an output, in one shape and one kind of dtype."""
    if name not in reference or name not in candidate:
        return False
    y, c = reference[name], candidate[name]
    return y.shape == c.shape and _kind(y) == _kind(c)


def _kind(values: Array) -> str:
    return KINDS.get(values.dtype.kind, values.dtype.name)


def _take_permitted(spec: OutputSpec, y: Array, c: Array, reference: Outputs) -> Array:
    """Return the candidate's values, the reference's where they are the same answer."""
    if spec.period is not None:
        return _unwind(y, c, spec.period)
    if spec.one_lsb:
        return _take_where(_is_within_one(y, c), y, c)
    if spec.tie_break is not None and spec.scores is not None:
        return _take_where(_is_tied(y, c, reference[spec.scores]), y, c)
    return c


def _take_where(same: Bools, y: Array, c: Array) -> Array:
    """Return the reference's integers where they are the same answer."""
    # uint64 beside int64 has no common integer dtype: left as it is, and compared exactly.
    return np.where(same, y, c) if np.result_type(y, c).kind in "iu" else c


# --- Elements -------------------------------------------------------------------------------------------------


def _turn(difference: Floats, period: float) -> Floats:
    """Wrap finite differences to at most half a period; shorter ones keep every bit."""
    far = np.isfinite(difference) & (np.abs(difference) > period / 2)
    turned: Floats = np.where(far, np.remainder(np.where(far, difference, 0.0) + period / 2, period), difference)
    return np.where(far, turned - period / 2, turned)


def _unwind(y: Array, c: Array, period: float) -> Array:
    """Move angles by whole periods to where they are nearest to the reference's."""
    y_wide, c_wide = as_float64(y), as_float64(c)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = c_wide - y_wide
        turned = _turn(difference, period)
        moved = (turned != difference) & np.isfinite(difference)
        return np.where(moved, y_wide + turned, c_wide) if moved.any() else c


def _is_within_one(y: Array, c: Array) -> Bools:
    """Whether integers differ by at most one. Compared, not subtracted: a difference can overflow."""
    one_y, one_c = _as_integers(y), _as_integers(c)
    up = (one_c > one_y) & (one_c - np.ones((), one_c.dtype) == one_y)
    down = (one_c < one_y) & (one_c + np.ones((), one_c.dtype) == one_y)
    return np.asarray((one_c == one_y) | up | down).reshape(y.shape)


def _as_integers(values: Array) -> Integers:
    """Return the same array for the type checker, with a dimension at least, so that no scalar is computed with."""
    integers: Integers = np.atleast_1d(values)
    return integers


def _is_tied(y: Array, c: Array, scores: Array) -> Bools:
    """Whether two indices point at equal scores.

    Args:
        y: the reference's indices, shape (*leading,) or (*leading, k).
        c: the candidate's, of the same shape.
        scores: the reference's, shape (*leading, classes), with classes > 0.

    Returns:
        Of the shape of y. An index outside the scores is tied with none, nor is one that the candidate gives twice
        where the reference gives different ones: a list of the best has each of them once.
    """
    values = as_float64(scores)
    wide_y, wide_c = (_as_integers(i[..., np.newaxis] if i.ndim < values.ndim else i) for i in (y, c))
    classes = values.shape[-1]
    inside = (wide_y >= 0) & (wide_y < classes) & (wide_c >= 0) & (wide_c < classes)
    at_y, at_c = (np.take_along_axis(values, np.where(inside, i, 0).astype(np.int64), -1) for i in (wide_y, wide_c))
    finite = np.isfinite(values)
    largest = np.max(np.abs(np.where(finite, values, 0.0)), axis=-1, keepdims=True)
    scaled = np.where(finite, values, 0.0) / np.where(largest > 0, largest, 1.0)
    counted = np.maximum(np.sum(finite, axis=-1, keepdims=True), 1)
    rms = largest * np.sqrt(np.sum(scaled * scaled, axis=-1, keepdims=True) / counted)
    with np.errstate(invalid="ignore", over="ignore"):
        equal = (at_y == at_c) | (np.abs(at_y - at_c) <= TIE * rms)
    tied = inside & equal & ~(_is_repeated(wide_c) & ~_is_repeated(wide_y))
    return np.asarray(tied).reshape(y.shape)


def _is_repeated(values: Array) -> Bools:
    """Whether an element stands twice in its last dimension."""
    order = np.argsort(values, axis=-1, kind="stable")
    ranked = np.take_along_axis(values, order, -1)
    twin = np.zeros(values.shape, np.bool_)
    equal = ranked[..., 1:] == ranked[..., :-1]
    twin[..., 1:] |= equal
    twin[..., :-1] |= equal
    repeated = np.zeros(values.shape, np.bool_)
    np.put_along_axis(repeated, order, twin, -1)
    return repeated


# --- Masks ----------------------------------------------------------------------------------------------------


def _find_mask(name: str, reference: Outputs, inputs: Outputs) -> Array:
    """Return the mask: an output of the reference, else a golden input."""
    return reference[name] if name in reference else inputs[name]


def _spread_mask(mask: Array, shape: tuple[int, ...]) -> Bools:
    """Broadcast a mask of a leading shape over the dimensions that trail."""
    wide = (mask != 0).reshape(mask.shape + (1,) * (len(shape) - mask.ndim))
    return np.broadcast_to(wide, shape)


def _blank(values: Array, mask: Array) -> Array:
    """Put what no comparison counts where the mask is false. -inf, because no largest score is looked for there."""
    nothing: complex | float | int
    match _kind(values):
        case "float":
            nothing = -np.inf
        case "complex":
            nothing = complex(np.nan, np.nan)
        case _:
            nothing = 0
    return np.where(_spread_mask(mask, values.shape), values, np.asarray(nothing).astype(values.dtype))


# --- Rows -----------------------------------------------------------------------------------------------------

_Member = tuple[Array, Array, OutputSpec | None]
"""Reference, candidate and declaration of one output of a group."""


def _match_rows(members: Mapping[str, _Member], mask: Array | None, *, batched: bool) -> dict[str, Array]:
    """Put the candidate's rows into the reference's order, the same order for all outputs of a group.

    Args:
        members: arrays of shape (samples, rows, ...), or (rows, ...) if not batched.
        mask: of shape (samples,) or (samples, rows), without samples if not batched: rows where it is false stay
            where they are.
        batched: whether there is a dimension of samples.
    """
    first = next(iter(members.values()))[0]
    rows = first.shape[: 2 if batched else 1]
    valid = np.ones(rows, np.bool_) if mask is None else _spread_mask(mask, rows)
    if not batched:
        order = _order_rows(list(members.values()), valid)
        return {name: c[order] for name, (_, c, _) in members.items()}
    matched = {name: c.copy() for name, (_, c, _) in members.items()}
    for sample in range(rows[0]):
        order = _order_rows([(y[sample], c[sample], spec) for y, c, spec in members.values()], valid[sample])
        for name, (_, c, _) in members.items():
            matched[name][sample] = c[sample][order]
    return matched


def _order_rows(members: list[_Member], valid: Bools) -> Indices:
    """Return which of the candidate's rows belongs to each of the reference's: the least sum of squared differences."""
    order: Indices = np.arange(len(valid), dtype=np.int64)
    counted = np.flatnonzero(valid)
    if len(counted) < 2:
        return order
    cost = np.zeros((len(counted), len(counted)))
    for y, c, spec in members:
        cost += _measure_rows(y[counted], c[counted], spec)
    if not cost.diagonal().any():
        return order
    from scipy.optimize import linear_sum_assignment

    _, chosen = linear_sum_assignment(cost)
    order[counted] = counted[chosen]
    return order


def _measure_rows(y: Array, c: Array, spec: OutputSpec | None) -> Floats:
    """Measure every row of the reference against every row of the candidate.

    Returns:
        Shape (rows, rows): mean squared difference over the largest number of the reference, or the share of unequal
        integers. Finite whatever the values are.
    """
    rows = len(y)
    cost = np.zeros((rows, rows))
    if y[0].size == 0:
        return cost
    if _kind(y) in {"integer", "bool"}:
        flat_y, flat_c = y.reshape(rows, -1), c.reshape(rows, -1)
        for i in range(rows):
            row = np.broadcast_to(flat_y[i], flat_c.shape)
            same = _is_within_one(row, flat_c) if spec is not None and spec.one_lsb else row == flat_c
            cost[i] = 1.0 - same.mean(axis=1)
        return cost
    wide_y, wide_c = as_float64(y).reshape(rows, -1), as_float64(c).reshape(rows, -1)
    scale = float(np.max(np.abs(wide_y), initial=0.0, where=np.isfinite(wide_y))) or 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        for i in range(rows):
            difference = wide_c - wide_y[i]
            if spec is not None and spec.period is not None:
                difference = _turn(difference, spec.period)
            far = np.minimum(np.abs(difference) / scale, FARTHEST)
            same = (wide_c == wide_y[i]) | (np.isnan(wide_c) & np.isnan(wide_y[i]))
            both = np.isfinite(wide_c) & np.isfinite(wide_y[i])
            far = np.where(same, 0.0, np.where(both, far, MISFIT))
            cost[i] = (far * far).mean(axis=1)
    return cost


# --- Declarations against what the reference returned ---------------------------------------------------------


def find_faults(specs: Specs, reference: Outputs, inputs: Outputs, *, samples: int | None = None) -> dict[str, str]:
    """Say which declarations contradict the reference's outputs or the golden inputs.

    Args:
        specs: what outputs mean, by name.
        reference: outputs of the reference for some samples.
        inputs: golden inputs of the same samples, as far as masks name them.
        samples: how many there are; None: unknown.

    Returns:
        Output -> what is wrong, a clause that goes on from its name.
    """
    found: dict[str, str] = {}
    for name, spec in specs.items():
        if name not in reference:
            found[name] = "has a declared meaning, but the model has no such output"
        elif fault := next(_find_output_faults(name, spec, reference, inputs, samples), None):
            found[name] = fault
    return found


def _find_output_faults(
    name: str, spec: OutputSpec, reference: Outputs, inputs: Outputs, samples: int | None
) -> Iterator[str]:
    y = reference[name]
    for meaning, is_declared, kind in (
        ("an angle with a period", spec.period is not None, "float"),
        ("an integer that may differ by one", spec.one_lsb, "integer"),
        ("an index with ties", spec.tie_break is not None, "integer"),
    ):
        if is_declared and _kind(y) != kind:
            yield f"is declared to be {meaning}, but is {y.dtype}"
    if spec.scores is not None:
        yield from _find_score_faults(spec.scores, y, reference)
    if spec.valid_mask is not None:
        yield from _find_mask_faults(spec, y, reference, inputs)
    if spec.unordered is not None:
        yield from _find_row_faults(name, spec, reference, samples)


def _find_score_faults(name: str, y: Array, reference: Outputs) -> Iterator[str]:
    if name not in reference:
        yield f"is declared to point into output {name}, which the model does not have"
        return
    scores = reference[name]
    if _kind(scores) not in {"float", "integer"}:
        yield f"is declared to point into output {name}, which is {scores.dtype} and no score"
    leading = scores.shape[:-1]
    if scores.ndim == 0 or scores.shape[-1] == 0 or leading not in {y.shape, y.shape[:-1]}:
        yield (
            f"is declared to point into output {name} along its last dimension, "
            f"but shapes {_describe(y)} and {_describe(scores)} do not fit"
        )


def _find_mask_faults(spec: OutputSpec, y: Array, reference: Outputs, inputs: Outputs) -> Iterator[str]:
    name = spec.valid_mask or ""
    if name not in reference and name not in inputs:
        yield f"is declared to be masked by {name}, which is neither an output nor a golden input"
        return
    mask = _find_mask(name, reference, inputs)
    if _kind(mask) not in {"bool", "integer"}:
        yield f"is declared to be masked by {name}, which is {mask.dtype} and no mask"
    if mask.ndim == 0 or mask.shape != y.shape[: mask.ndim]:
        yield f"is declared to be masked by {name}, but shape {_describe(mask)} is no beginning of {_describe(y)}"
    if spec.unordered is not None and mask.ndim > (2 if spec.batched else 1):
        yield f"has unordered rows, but its mask {name} tells more than rows apart: shape {_describe(mask)}"


def _find_row_faults(name: str, spec: OutputSpec, reference: Outputs, samples: int | None) -> Iterator[str]:
    if missing := [other for other in spec.with_ if other not in reference]:
        yield f"is declared to move with {', '.join(missing)}, which the model does not have"
        return
    axis = 1 if spec.batched else 0
    for member in (name, *spec.with_):
        shape = reference[member].shape
        if len(shape) <= axis or (spec.batched and samples is not None and shape[0] != samples):
            after = " after the batch dimension" if spec.batched else ""
            yield (
                f"is declared unordered, but output {member} of shape {_describe(reference[member])} "
                f"has no rows{after}" + ("; batched = false means that it has no batch dimension" if after else "")
            )
    counts = {member: reference[member].shape[axis] for member in (name, *spec.with_) if reference[member].ndim > axis}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{member} {count}" for member, count in counts.items())
        yield f"is declared to move with other outputs, but their numbers of rows differ: {told}"


def _describe(values: Array) -> str:
    return str(tuple(values.shape))
