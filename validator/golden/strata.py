"""What samples give a golden dataset power, besides those that the source has to show. Pure: no file, no model.

Random samples see what happens often. A fault that shows in one sample of a hundred is more likely missed than found by
64 of them, so others are added: those of the source that drive the model furthest, or that it is least sure of, and
such as no source would give. Every one of them says by its stratum which it is.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from validator.errors import UsageError
from validator.golden.format import Stratum
from validator.golden.sample import Sample

if TYPE_CHECKING:
    import torch

ALL = "all"

SEARCHED = frozenset({Stratum.ACTIVATION_EXTREMES, Stratum.LOW_MARGIN})
"""Chosen from the part of the source that is not representative."""

NEED_MODEL = SEARCHED | {Stratum.SHAPES}
"""Somebody has to ask the model."""

SAMPLES_MIN = 8
"""Least number of representative samples, and of samples to search."""
REPRESENTATIVE_SAMPLES = 64
EXTREME_SAMPLES = 16
PEAKS_PER_LAYER = 2
MARGIN_SAMPLES = 8
SCALED_SAMPLES = 4
"""Representative samples that every factor is applied to."""
SHAPED_SAMPLES = 2
"""Representative samples that are brought to every shape."""

NO_LABEL = -1
"""The label of a made-up sample in a labelled dataset: nobody knows its class."""

SCALES: Mapping[str, float] = MappingProxyType(
    {"0": 0.0, "2^-20": 2.0**-20, "0.5": 0.5, "2": 2.0, "4": 4.0, "16": 16.0}
)
"""Powers of two: the scaled sample is exact, unless it leaves the range of its dtype."""

_DENORMALS = {"float64": 2.0**-1060, "float32": 2.0**-140, "bfloat16": 2.0**-130, "float16": 2.0**-20}
"""A denormal number of each dtype."""


# --- Facts that a model is asked for --------------------------------------------------------------------------


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class VaryingSize(_Fact):
    """A dimension that may vary: `factor` times a whole number `symbol`, plus `offset`."""

    symbol: str
    """Dimensions with the same symbol change together, in whatever input."""
    factor: int = Field(default=1, ge=1)
    offset: int = 0
    least: int
    """Least value of the symbol."""
    most: int | None
    """None: the program names no limit."""

    def size(self, value: int) -> int:
        """Return the size of the dimension for a value of the symbol."""
        return self.factor * value + self.offset

    def value(self, size: int) -> int:
        """Return the largest value of the symbol with at most this size."""
        return (size - self.offset) // self.factor


Sizes = tuple[VaryingSize | None, ...]
"""Of one input, batch dimension first; None where the size is fixed."""


class LayerPeaks(_Fact):
    """How large one layer's output becomes."""

    layer: str
    median: float = Field(ge=0)
    """Over all samples, of the largest absolute value in the sample; the lower of two."""
    peaks: tuple[tuple[int, float], ...]
    """Sample and largest absolute value, the largest first. What is not finite counts as the largest float."""


class OutputMargins(_Fact):
    """Of which samples an output of scores is least sure."""

    output: str
    margins: tuple[tuple[int, float], ...]
    """Sample and best minus second best score, the smallest first."""


# --- Which strata -----------------------------------------------------------------------------------------------


def parse_strata(text: str) -> frozenset[Stratum]:
    """Read names of strata, with commas between them, or `all`. The representative one is always among them.

    Raises:
        UsageError: an unknown stratum.
    """
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in {*Stratum, ALL}]
    if unknown:
        raise UsageError(f"there is no stratum {unknown[0]!r}", hint=f"choose among {', '.join(Stratum)}, or {ALL}")
    return frozenset(Stratum) if ALL in names else frozenset({Stratum.REPRESENTATIVE, *(Stratum(n) for n in names)})


# --- Chosen from the source -------------------------------------------------------------------------------------


def choose_extremes(layers: Sequence[LayerPeaks], limit: int) -> tuple[int, ...]:
    """Choose samples that drive some layer furthest beyond its own median, at most `limit`, the furthest first."""
    found = [(_over(value, layer.median), sample) for layer in layers for sample, value in layer.peaks]
    ordered = sorted(found, key=lambda pair: (-pair[0], pair[1]))
    return tuple(dict.fromkeys(sample for _, sample in ordered))[:limit]


def _over(value: float, median: float) -> float:
    """Return the multiple of the median; a layer that is mostly silent is driven far by any value."""
    if value == 0:
        return 0.0
    return value / median if median > 0 else math.inf


def choose_low_margin(outputs: Sequence[OutputMargins], limit: int, taken: Iterable[int] = ()) -> tuple[int, ...]:
    """Choose the samples with the smallest margins that are not taken, at most `limit`, from each output in turn."""
    turns = zip_longest(*([sample for sample, _ in output.margins] for output in outputs))
    ordered = dict.fromkeys(sample for turn in turns for sample in turn if sample is not None)
    return tuple(sample for sample in ordered if sample not in set(taken))[:limit]


# --- Made up ------------------------------------------------------------------------------------------------------


def spread_evenly(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Choose at most `count` samples, evenly over all."""
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]


def make_scales(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Multiply the floating inputs of each sample by each of `SCALES`. Nothing where there is no floating input.

    A product that leaves the range of its dtype is left out.
    """
    for name, factor in SCALES.items():
        for sample in samples:
            tensors = _tensors(sample)
            scaled = {key: _times(value, factor) if _is_floating(value) else value for key, value in tensors.items()}
            if any(_is_floating(value) for value in tensors.values()) and _stays_finite(tensors, scaled):
                yield _made(sample, Stratum.SCALES, f"scale-{name}/{sample.id}", scaled)


def _times(tensor: "torch.Tensor", factor: float) -> "torch.Tensor":
    """Multiply; by zero to +0 everywhere, so that all samples become the same one."""
    return tensor * factor if factor else tensor.new_zeros(tensor.shape)


def make_specials(sample: Sample, largest: Mapping[str, int], *, non_finite: bool) -> Iterator[Sample]:
    """Make the inputs that arithmetic treats in a way of their own.

    Args:
        sample: a representative one, whose other inputs are kept where one kind is changed.
        largest: of each integer input, the largest value that the source has.
        non_finite: whether the model's contract admits NaN and infinity; then one element of each floating input
            becomes that.

    Returns:
        All zero; floating inputs constant; denormal; integer inputs at their largest; NaN; infinity. Boolean inputs are
        masks and stay as they are.
    """
    import torch

    tensors = _tensors(sample)
    floating = {key: value for key, value in tensors.items() if _is_floating(value)}
    integers = {key: value for key, value in tensors.items() if key in largest}
    zero = {key: torch.zeros_like(value) for key, value in (floating | integers).items()}
    kinds: dict[str, dict[str, torch.Tensor]] = {"zero": zero}
    if floating:
        kinds["constant"] = {key: torch.ones_like(value) for key, value in floating.items()}
        kinds["denormal"] = {
            key: torch.full_like(value, _DENORMALS[_name(value.real.dtype)]) for key, value in floating.items()
        }
    if integers:
        kinds["largest"] = {key: torch.full_like(value, largest[key]) for key, value in integers.items()}
    if floating and non_finite:
        kinds["nan"] = {key: _with_element(value, math.nan) for key, value in floating.items()}
        kinds["inf"] = {key: _with_element(value, math.inf) for key, value in floating.items()}
    for kind, changed in kinds.items():
        yield _made(sample, Stratum.SPECIALS, f"special-{kind}/{sample.id}", tensors | changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """The sizes that samples are brought to: one for every dimension that varies."""

    title: str
    """`smallest`, `odd`, `largest`."""
    shapes: Mapping[str, tuple[int | None, ...]]
    """By input, without the batch dimension; None where the sample's own size is kept."""

    def __str__(self) -> str:
        stated = (f"{name} {_format_shape(shape)}" for name, shape in self.shapes.items())
        return f"{self.title}: {', '.join(stated)}"


def plan_shapes(
    sizes: Mapping[str, Sizes], source: Mapping[str, Sequence[int]], *, largest: int | None
) -> list[Shaping]:
    """Choose the smallest, an odd and the largest allowed value for every symbol but the batch's.

    Args:
        sizes: of each input, as the program declares them.
        source: of each input the largest size of each dimension in the source, without the batch.
        largest: no dimension that varies becomes larger; None: twice the largest in the source.

    Returns:
        Different shapings; none where nothing but the batch varies.
    """
    batch = {dims[0].symbol for dims in sizes.values() if dims and dims[0] is not None}
    varying = [
        (dim, source[name][k])
        for name, dims in sizes.items()
        for k, dim in enumerate(dims[1:])
        if dim is not None and dim.symbol not in batch
    ]
    symbols = dict.fromkeys(dim.symbol for dim, _ in varying)
    found: dict[tuple[int, ...], Shaping] = {}
    for title in ("smallest", "odd", "largest"):
        values = {
            symbol: _choose_value(title, [v for v in varying if v[0].symbol == symbol], largest, rank)
            for rank, symbol in enumerate(symbols)
        }
        chosen = {symbol: value for symbol, value in values.items() if value is not None}
        if not chosen:
            continue
        shapes = {
            name: tuple(dim.size(chosen[dim.symbol]) if dim and dim.symbol in chosen else None for dim in dims[1:])
            for name, dims in sizes.items()
        }
        found.setdefault(tuple(chosen.values()), Shaping(title=title, shapes=shapes))
    return list(found.values())


def _choose_value(title: str, dims: Sequence[tuple[VaryingSize, int]], largest: int | None, rank: int) -> int | None:
    """Choose a value of one symbol, from all dimensions that it decides and their sizes in the source.

    Odd values of different symbols differ (by `rank`), so that axes that were mixed up show.
    """
    bounds = [dim.value(2 * size if largest is None else largest) for dim, size in dims]
    top = min([*bounds, *(dim.most for dim, _ in dims if dim.most is not None)])
    bottom = max([*(dim.least for dim, _ in dims), *(-((dim.offset - 1) // dim.factor) for dim, _ in dims)])
    if bottom > top:
        return None
    if title == "smallest":
        return bottom
    if title == "largest":
        return top
    first, seen = dims[0][0], min(dim.value(size) for dim, size in dims)
    is_odd = {v: (first.size(v) if first.factor % 2 else v) % 2 == 1 for v in range(bottom, top + 1)}
    below = [v for v in range(min(top, seen - 1), bottom - 1, -1) if is_odd[v]]
    above = [v for v in range(max(bottom, seen), top + 1) if is_odd[v]]
    return next(iter([*below[rank:], *below[-1:], *above]), None)


def make_shapes(samples: Sequence[Sample], shapings: Sequence[Shaping]) -> Iterator[Sample]:
    """Crop or tile samples to each shaping. Inputs that belong together, such as a mask, are cut alike."""
    for shaping in shapings:
        for sample in samples:
            shaped = {key: _resize(value, shaping.shapes.get(key, ())) for key, value in _tensors(sample).items()}
            yield _made(sample, Stratum.SHAPES, f"shape-{shaping.title}/{sample.id}", shaped)


def _resize(tensor: "torch.Tensor", shape: Sequence[int | None]) -> "torch.Tensor":
    """Keep the beginning of each dimension; where it is too short, begin again."""
    for dim, size in enumerate(shape):
        if size is not None and tensor.shape[dim] > 0:
            times = [1] * tensor.ndim
            times[dim] = -(-size // tensor.shape[dim])
            tensor = tensor.repeat(times).narrow(dim, 0, size)
    return tensor


# --- All together -------------------------------------------------------------------------------------------------


def without_repeats(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Leave out samples whose inputs are those of an earlier one, bit for bit; representative ones are all kept."""
    seen: set[bytes] = set()
    for sample in samples:
        print_ = _fingerprint(sample)
        if sample.stratum is Stratum.REPRESENTATIVE or print_ not in seen:
            yield sample
        seen.add(print_)


def as_stratum(sample: Sample, stratum: Stratum) -> Sample:
    """Put a sample of the source into a stratum; its id says which."""
    return replace(sample, stratum=stratum, id=f"{stratum}/{sample.id}")


def _made(sample: Sample, stratum: Stratum, name: str, tensors: "Mapping[str, torch.Tensor]") -> Sample:
    label = None if sample.label is None else NO_LABEL
    return Sample(id=name, inputs=tensors, label=label, stratum=stratum)


def _tensors(sample: Sample) -> "dict[str, torch.Tensor]":
    import torch

    return {key: torch.as_tensor(value) for key, value in sample.inputs.items()}


def _is_floating(tensor: "torch.Tensor") -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _stays_finite(before: "Mapping[str, torch.Tensor]", after: "Mapping[str, torch.Tensor]") -> bool:
    return all(bool((value.isfinite() | ~before[key].isfinite()).all()) for key, value in after.items())


def _with_element(tensor: "torch.Tensor", value: float) -> "torch.Tensor":
    """Replace the element in the middle."""
    changed = tensor.clone()
    flat = changed.view(-1)
    if len(flat):
        flat[len(flat) // 2] = value
    return changed


def _name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def _fingerprint(sample: Sample) -> bytes:
    import torch

    state = hashlib.blake2b(digest_size=16)
    for key, tensor in sorted(_tensors(sample).items()):
        state.update(f"{key}{tuple(tensor.shape)}".encode())
        state.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.digest()


def _format_shape(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("as it is" if size is None else str(size) for size in shape) + "]"


# --- What a set can prove ---------------------------------------------------------------------------------------


MEANING: Mapping[Stratum, str] = MappingProxyType(
    {
        Stratum.REPRESENTATIVE: "nothing says how often something happens",
        Stratum.ACTIVATION_EXTREMES: "a fault of large activations, in 1 % of the samples, is found by chance only",
        Stratum.SCALES: "saturation, overflow and underflow beyond the range of the samples are not tried",
        Stratum.LOW_MARGIN: "answers that small errors turn around are there by chance only",
        Stratum.SPECIALS: "all-zero, constant and denormal inputs are not tried",
        Stratum.SHAPES: "only shapes that the samples have are tried",
    }
)
"""What it means that a stratum is missing."""


def count_strata(strata: Iterable[Stratum]) -> dict[Stratum, int]:
    """Return how many samples each stratum has, 0 where it is missing."""
    counts = Counter(strata)
    return {stratum: counts[stratum] for stratum in Stratum}
