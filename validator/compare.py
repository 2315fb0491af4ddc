"""Two backends' outputs side by side: structure first, then non-finite positions, then values. Knows no limits."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np

from validator.golden.output_spec import names_meant, unbatched
from validator.meaning import Outputs, Specs, align, find_faults
from validator.metrics import (
    HISTOGRAM_BUCKETS,
    Array,
    ChannelMaxima,
    Counts,
    ErrorSummary,
    Rows,
    as_float64,
    channel_maxima,
    error_histogram,
    sample_rows,
    summarize,
)

InputReader = Callable[[int, int], Outputs]
"""Golden inputs of samples start..stop, as far as masks name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Named outputs of samples start..stop, as one backend returned them in one call."""

    start: int
    stop: int
    outputs: Outputs
    dtypes: Mapping[str, str]
    """Output name -> dtype as the backend returned it; the array may hold it in a wider one."""
    filled: int = 0
    """Samples that ran in the same call to fill the batch, and are not here."""

    @property
    def batch(self) -> int:
        """Size of the batch that really ran; one sample among its own copies has no mates, and counts as one."""
        samples = self.stop - self.start
        return 1 if samples == 1 else samples + self.filled


class FrameSource(Protocol):
    """Frames of one pass of one backend; can be read again and again."""

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames in order of their samples."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureDifference:
    """One way in which two backends' outputs are not even comparable."""

    output: str
    what: str
    """For people: `missing`, `shape (2, 10) instead of (2, 12)`, ..."""
    sample: int | None
    """First sample where it shows."""
    count: int
    """In how many frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """One output of a pair of backends."""

    name: str
    kind: str
    """`float`, `integer` or `bool`."""
    rows: Rows
    """`SAMPLE_ROW` records, sorted by sample."""
    histogram: Counts
    """Of absolute errors, see `metrics.error_histogram`."""
    reference_dtype: str
    """As the reference returned it."""
    channels: tuple[ChannelMaxima, ChannelMaxima]
    """Per index of the first and of the last dimension of a sample, see `metrics.channel_maxima`."""

    @property
    def summary(self) -> ErrorSummary:
        """Errors pooled over all samples."""
        return summarize(self.rows)

    @property
    def elements(self) -> int:
        """Elements on which the two were compared, non-finite ones included."""
        return int(self.rows["elements"].sum())

    @property
    def nonfinite_mismatches(self) -> int:
        """Elements that are NaN or infinite on one side only."""
        return int(self.rows["nonfinite_mismatches"].sum())

    @property
    def unequal(self) -> int:
        """Elements whose values differ at all."""
        return int(self.rows["unequal"].sum())

    @property
    def flips(self) -> int | None:
        """Samples whose largest score is another class; None where the output is no vector of scores."""
        flips = self.rows["top1_flip"]
        return int(flips.sum()) if len(flips) and flips.min() >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Facts about a candidate against a reference over the same samples."""

    structure: tuple[StructureDifference, ...]
    outputs: Mapping[str, OutputComparison]
    samples: int
    """Samples that both sides hold."""
    unattributed: tuple[str, ...] = ()
    """Outputs without a batch dimension, where the two sides cut the samples differently: not comparable."""
    largest_batch: int
    """The candidate's largest batch that really ran, filling included."""
    misdeclared: tuple[StructureDifference, ...] = ()
    """Outputs whose declared meaning contradicts what the reference returned: they were compared plainly."""

    @property
    def elements(self) -> int:
        """Compared elements of all outputs."""
        return sum(o.elements for o in self.outputs.values())


def pool_runs(comparisons: Sequence[Comparison]) -> Comparison:
    """Pool several runs against the same reference into one that stands for all of them.

    Squares of errors are averaged, largest errors are the largest of any run, and what differs in structure in one run
    does in all. An output of which the runs hold other samples is left out.

    Raises:
        ValueError: no runs.
    """
    shared = set.intersection(*(set(c.outputs) for c in comparisons))
    runs = {name: [c.outputs[name] for c in comparisons] for name in sorted(shared)}
    return Comparison(
        structure=tuple(dict.fromkeys(d for c in comparisons for d in c.structure)),
        outputs={
            name: _pool_output(outputs)
            for name, outputs in runs.items()
            if all(np.array_equal(o.rows["sample"], outputs[0].rows["sample"]) for o in outputs)
        },
        samples=min(c.samples for c in comparisons),
        unattributed=tuple(sorted({name for c in comparisons for name in c.unattributed})),
        largest_batch=max(c.largest_batch for c in comparisons),
        misdeclared=tuple(dict.fromkeys(d for c in comparisons for d in c.misdeclared)),
    )


def _pool_output(runs: Sequence[OutputComparison]) -> OutputComparison:
    rows = np.stack([run.rows for run in runs])
    worst = rows["max_abs_error"].argmax(axis=0)
    pooled = rows[worst, np.arange(rows.shape[1])]
    pooled["sum_sq_error"] = rows["sum_sq_error"].mean(axis=0)
    for count in ("nonfinite_mismatches", "unequal"):
        pooled[count] = rows[count].max(axis=0)
    channels = [run.channels for run in runs]
    first, last = channels[0]
    for one, other in channels[1:]:
        first, last = first.merge(one), last.merge(other)
    histogram: Counts = np.sum([run.histogram for run in runs], axis=0)
    return replace(runs[0], rows=pooled, histogram=histogram, channels=(first, last))


@dataclass(slots=True)
class _Tally:
    """What accumulates for one output."""

    kind: str = "float"
    reference_dtype: str = "float64"
    rows: list[Rows] = field(default_factory=list)
    histogram: Counts = field(default_factory=lambda: np.zeros(HISTOGRAM_BUCKETS, np.int64))
    channels: tuple[ChannelMaxima, ChannelMaxima] = field(
        default_factory=lambda: (ChannelMaxima.empty(), ChannelMaxima.empty())
    )


def compare(
    reference: FrameSource,
    candidate: FrameSource,
    *,
    specs: Specs | None = None,
    inputs: InputReader | None = None,
) -> Comparison:
    """Compare a candidate with the reference, frame by frame, holding one frame of each side.

    The candidate's samples decide what is compared. Names are compared as sets; an output on one side only is a
    structure difference, and so is another shape or kind of dtype.

    Args:
        reference: what is right.
        candidate: what is measured.
        specs: what outputs mean, by name; differences that they permit are none.
        inputs: reads the golden inputs that masks name.
    """
    specs = specs or {}
    lookup = FrameLookup(reference, unbatched(specs))
    tallies: dict[str, _Tally] = defaultdict(_Tally)
    structure, misdeclared = _Differences(), _Differences()
    unattributed: set[str] = set()
    samples = largest_batch = 0

    for frame in candidate:
        largest_batch = max(largest_batch, frame.batch)
        counterpart = lookup.read(frame.start, frame.stop)
        if counterpart is None:
            structure.add("", "samples that the reference does not hold", frame.start)
            continue
        samples += frame.stop - frame.start
        shared = sorted(frame.outputs.keys() & counterpart.outputs.keys())
        cut_differently = _spread_cuts(counterpart, _lost(frame, counterpart), specs)
        for name in sorted(counterpart.outputs.keys() - frame.outputs.keys()):
            if name not in cut_differently:
                structure.add(name, "missing", frame.start)
        for name in sorted(frame.outputs.keys() - counterpart.outputs.keys()):
            structure.add(name, "not among the reference's outputs", frame.start)
        unattributed.update(cut_differently.intersection(shared))
        comparable: list[str] = []
        for name in (n for n in shared if n not in cut_differently):
            y, c = counterpart.outputs[name], frame.outputs[name]
            if what := _structure_difference(counterpart.dtypes[name], y, frame.dtypes[name], c):
                structure.add(name, what, frame.start)
            else:
                comparable.append(name)
        ys: Outputs = counterpart.outputs
        cs: Outputs = {name: frame.outputs[name] for name in comparable}
        meant = {name: spec for name, spec in specs.items() if name not in cut_differently}
        if meant:
            known = inputs(frame.start, frame.stop) if inputs is not None else {}
            for name, what in find_faults(meant, ys, known, samples=frame.stop - frame.start).items():
                misdeclared.add(name, what, frame.start)
            ys, cs = align(meant, ys, cs, known, samples=frame.stop - frame.start)
        for name in comparable:
            tally = tallies[name]
            tally.kind = dtype_kind(frame.dtypes[name])
            tally.reference_dtype = counterpart.dtypes[name]
            is_whole = name in lookup.unbatched or not _is_per_sample(frame, ys[name])
            y, c = (ys[name][np.newaxis], cs[name][np.newaxis]) if is_whole else (ys[name], cs[name])
            tally.rows.append(sample_rows(frame.start, y, c))
            tally.histogram += error_histogram(y, c)
            first, last = channel_maxima(y, c)
            tally.channels = tally.channels[0].merge(first), tally.channels[1].merge(last)

    return Comparison(
        structure=structure.close(),
        outputs={name: _close(name, tally) for name, tally in sorted(tallies.items())},
        samples=samples,
        unattributed=tuple(sorted(unattributed)),
        largest_batch=largest_batch,
        misdeclared=misdeclared.close(),
    )


@dataclass(slots=True)
class _Differences:
    """Differences that accumulate: each is told once, with where it was first seen and how often."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    first_seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, output: str, what: str, sample: int) -> None:
        """Note one difference of a frame that begins with a sample."""
        self.counts[output, what] += 1
        self.first_seen.setdefault((output, what), sample)

    def close(self) -> tuple[StructureDifference, ...]:
        """Return the differences in order of appearance."""
        return tuple(
            StructureDifference(output=output, what=what, sample=self.first_seen[output, what], count=count)
            for (output, what), count in self.counts.items()
        )


def _lost(frame: Frame, counterpart: "_Counterpart") -> frozenset[str]:
    """Name the outputs that cannot be told apart by sample, where the two sides cut the samples differently.

    One that has the same shape whatever the batch, as anchors do, must not depend on the batch at all: it is not among
    them, and is compared whole.
    """
    shapes = {name: values.shape for name, values in frame.outputs.items()}
    return frozenset(n for n in counterpart.cut_differently if shapes.get(n) != counterpart.outputs[n].shape)


def _spread_cuts(counterpart: "_Counterpart", lost: frozenset[str], specs: Specs) -> frozenset[str]:
    """Add those outputs to the lost ones whose meaning needs one of them."""
    return lost | {n for n, spec in specs.items() if n in counterpart.outputs and lost.intersection(names_meant(spec))}


def _close(name: str, tally: _Tally) -> OutputComparison:
    """Sort an output's rows, so that the order of frames leaves no trace."""
    return OutputComparison(
        name=name,
        kind=tally.kind,
        rows=np.sort(np.concatenate(tally.rows), order="sample"),
        histogram=tally.histogram,
        reference_dtype=tally.reference_dtype,
        channels=tally.channels,
    )


def _is_per_sample(frame: Frame, values: Array) -> bool:
    """Whether the first axis counts samples."""
    return values.ndim > 0 and values.shape[0] == frame.stop - frame.start


def dtype_kind(dtype: str) -> str:
    """`float`, `complex`, `integer` or `bool`, from a dtype's name. Precision is not part of the kind."""
    if dtype == "bool":
        return "bool"
    return "integer" if dtype.startswith(("int", "uint")) else "complex" if dtype.startswith("complex") else "float"


def _structure_difference(y_dtype: str, y: Array, c_dtype: str, c: Array) -> str | None:
    """Say how two arrays are not comparable, or None."""
    if dtype_kind(y_dtype) != dtype_kind(c_dtype):
        return f"dtype {c_dtype} instead of {y_dtype}"
    if y.shape != c.shape:
        return f"shape {tuple(c.shape)} instead of {tuple(y.shape)}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counterpart(Frame):
    """The reference's outputs for the very samples of a candidate's frame."""

    cut_differently: frozenset[str] = frozenset()


class FrameLookup:
    """Reads any range of samples from a pass, whatever the frames it came in. Holds one frame at a time."""

    def __init__(self, source: FrameSource, unbatched: frozenset[str] = frozenset()) -> None:
        self._source = source
        self.unbatched = unbatched
        """Outputs that are declared to have no batch dimension, whatever the size of their first one is."""
        self._iterator: Iterator[Frame] = iter(source)
        self._held: list[Frame] = []

    def read(self, start: int, stop: int) -> _Counterpart | None:
        """Return the outputs of samples start..stop, or None where some of them are not there."""
        if self._held and start < self._held[0].start:
            self._iterator, self._held = iter(self._source), []
        self._held = [f for f in self._held if f.stop > start]
        while not self._held or self._held[-1].stop < stop:
            frame = next(self._iterator, None)
            if frame is None:
                break
            if frame.stop > start:
                self._held.append(frame)
        frames = [f for f in self._held if f.start < stop]
        if not _covers(frames, start, stop):
            return None
        return _cut(frames, start, stop, self.unbatched)


def _covers(frames: list[Frame], start: int, stop: int) -> bool:
    """Whether the frames, in order, hold every sample of the range."""
    at = start
    for frame in frames:
        if frame.start > at:
            return False
        at = max(at, frame.stop)
    return at >= stop


def _cut(frames: list[Frame], start: int, stop: int, unbatched: frozenset[str]) -> _Counterpart:
    """Cut samples out of frames that cover them. Outputs without a batch dimension survive only an equal cut."""
    if len(frames) == 1 and (frames[0].start, frames[0].stop) == (start, stop):
        only = frames[0]
        return _Counterpart(start=start, stop=stop, outputs=only.outputs, dtypes=only.dtypes)
    outputs: dict[str, Array] = {}
    cut_differently: set[str] = set()
    for name in frames[0].outputs:
        parts = [f.outputs[name] for f in frames if name in f.outputs]
        per_sample = (
            name not in unbatched
            and len(parts) == len(frames)
            and all(_is_per_sample(f, p) for f, p in zip(frames, parts, strict=True))
        )
        if not per_sample or len({p.shape[1:] for p in parts}) > 1:
            cut_differently.add(name)
            outputs[name] = parts[0]
            continue
        pieces = [p[max(0, start - f.start) : stop - f.start] for f, p in zip(frames, parts, strict=True)]
        outputs[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return _Counterpart(
        start=start,
        stop=stop,
        outputs=outputs,
        dtypes=frames[0].dtypes,
        cut_differently=frozenset(cut_differently),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputVariety:
    """Whether an output of the reference can tell one model from another."""

    samples: int
    distinct: int
    """1 and the number of samples whose output differs from the first one's by more than rounding."""
    finite: int
    nonzero: int

    @property
    def weakness(self) -> str | None:
        """Why the output gives no evidence, or None."""
        if self.finite == 0:
            return "holds no finite number"
        if self.nonzero == 0:
            return "is zero everywhere"
        if self.samples > 1 and self.distinct == 1:
            return "is the same for every sample"
        return None


def measure_variety(
    reference: Iterable[Frame], *, specs: Specs | None = None, inputs: InputReader | None = None
) -> dict[str, OutputVariety]:
    """Look at the reference's own outputs: constant, zero or non-finite ones prove nothing about a candidate.

    Args:
        reference: its frames.
        specs: what outputs mean, by name; masked elements are no variety.
        inputs: reads the golden inputs that masks name.
    """
    first: dict[str, Array] = {}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    whole = unbatched(specs or {})
    for frame in reference:
        outputs = frame.outputs
        if specs:
            known = inputs(frame.start, frame.stop) if inputs is not None else {}
            outputs, _ = align(specs, outputs, outputs, known, samples=frame.stop - frame.start)
        for name, values in outputs.items():
            parts = values if name not in whole and _is_per_sample(frame, values) else values[np.newaxis]
            anchor = first.setdefault(name, parts[0])
            same = SAME_BY_DTYPE.get(frame.dtypes[name], SAME)
            counts[name]["moved"] += sum(_differs(anchor, part, same=same) for part in parts)
            counts[name]["samples"] += len(parts)
            counts[name]["finite"] += int(np.isfinite(values).sum())
            counts[name]["nonzero"] += int(np.count_nonzero(values))
    return {
        name: OutputVariety(samples=c["samples"], distinct=1 + c["moved"], finite=c["finite"], nonzero=c["nonzero"])
        for name, c in counts.items()
    }


SAME = 2.0**-30
"""Two fp64 outputs that are this near, relative to the largest value, differ by the order of summation at most."""

SAME_BY_DTYPE = MappingProxyType({"float32": 2.0**-19, "complex64": 2.0**-19, "float16": 2.0**-7, "bfloat16": 2.0**-5})
"""The same where fp64 could not run: a few roundings of what the reference returned."""


def _differs(one: Array, other: Array, *, same: float) -> bool:
    """Whether two samples' outputs are more than rounding apart. Another shape is another answer."""
    if one.shape != other.shape:
        return True
    a, b = as_float64(one), as_float64(other)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return True
    scale = np.abs(a[finite]).max(initial=0.0)
    return bool(np.abs(a[finite] - b[finite]).max(initial=0.0) > same * scale)
