"""Facts about a golden dataset, and what makes it weak evidence. It reads every sample once."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from validator.golden.dataset import GoldenDataset
from validator.golden.format import Stratum
from validator.golden.strata import MEANING, count_strata

FEW_SAMPLES = 8
BATCH_SIZES = (1, 2, 7, 32)
"""Batch sizes that are worth trying: alone, a pair, an odd one, a full one."""
_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """One input over all samples."""

    name: str
    dtype: str
    elements: int
    non_finite: int
    """NaN or infinite elements; a complex one counts once."""
    non_finite_made: int = 0
    """Those of them in made-up samples, where they are on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """The samples of one shape."""

    samples: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Per input, without the batch dimension."""
    batch_sizes: tuple[int, ...]
    """Those of `BATCH_SIZES` that one batch of this shape can fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFacts:
    """What `golden show` prints."""

    name: str
    digest: str
    source: str
    samples: int
    size_bytes: int
    """Of all shards."""
    shards: int
    groups: tuple[GroupFacts, ...]
    inputs: tuple[InputFacts, ...]
    constant_samples: int
    """Every input of more than one element is one value repeated; made-up samples are not counted."""
    duplicate_samples: int
    """Bitwise equal to an earlier sample, labels aside."""
    classes: int | None
    """How many different labels occur, but for made-up samples, which have none; None without labels."""
    strata: dict[Stratum, int]
    """How many samples each has; 0 for one that is missing."""
    outputs: dict[str, dict[str, Any]]
    """What outputs of the model are declared to mean, by name: the keys that were given."""

    @property
    def counting_samples(self) -> int:
        """How many samples say how often something happens: made-up and selected ones do not."""
        return self.strata[Stratum.REPRESENTATIVE]

    @property
    def missing(self) -> dict[Stratum, str]:
        """The strata that the dataset lacks, and what that means."""
        return {stratum: MEANING[stratum] for stratum, count in self.strata.items() if count == 0}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes a pass on this dataset weak evidence."""
        return tuple(_find_weaknesses(self))


def describe(dataset: GoldenDataset) -> GoldenFacts:
    """Read a dataset through and count.

    Raises:
        GoldenError: a shard is gone or damaged since the dataset was opened.
    """
    manifest = dataset.manifest
    elements = dict.fromkeys((spec.name for spec in dataset.inputs), 0)
    non_finite = dict(elements)
    non_finite_made = dict(elements)
    is_made = np.array([stratum.is_stress for stratum in dataset.strata])
    seen: set[bytes] = set()
    labels: set[int] = set()
    constant = 0
    for start, stop in dataset.batches(0, dataset.samples, _BATCH):
        arrays = _read_values(dataset, start, stop)
        made = is_made[start:stop]
        for name, array in arrays.items():
            elements[name] += array.size
            non_finite[name] += _count_non_finite(array)
            non_finite_made[name] += _count_non_finite(array[made])
        constant += _count_constant({name: array[~made] for name, array in arrays.items()})
        seen.update(_fingerprints(arrays))
        found = dataset.labels(start, stop)
        labels.update([] if found is None else found[~made].tolist())
    return GoldenFacts(
        name=manifest.name,
        digest=dataset.digest,
        source=manifest.source,
        samples=dataset.samples,
        size_bytes=sum(file.size_bytes for file in manifest.files),
        shards=len(manifest.files),
        groups=_merge_groups(dataset),
        inputs=tuple(
            InputFacts(
                name=s.name,
                dtype=s.dtype,
                elements=elements[s.name],
                non_finite=non_finite[s.name],
                non_finite_made=non_finite_made[s.name],
            )
            for s in dataset.inputs
        ),
        constant_samples=constant,
        duplicate_samples=dataset.samples - len(seen),
        classes=len(labels) if manifest.labels else None,
        strata=count_strata(dataset.strata),
        outputs={name: spec.model_dump() for name, spec in sorted((manifest.outputs or {}).items())},
    )


def _find_weaknesses(facts: GoldenFacts) -> Iterator[str]:
    if facts.samples < FEW_SAMPLES:
        yield f"{facts.samples} of at least {FEW_SAMPLES} samples: rare divergence is likely to stay unseen"
    if facts.samples > 1 and facts.duplicate_samples == facts.samples - 1:
        yield f"all {facts.samples} samples are identical: they are evidence of one"
    elif facts.duplicate_samples:
        yield f"{facts.duplicate_samples} of {facts.samples} samples repeat an earlier one"
    if facts.constant_samples:
        yield f"{facts.constant_samples} of {facts.samples} samples are one value repeated"
    for spec in facts.inputs:
        if unintended := spec.non_finite - spec.non_finite_made:
            yield f"input {spec.name}: {unintended} of {spec.elements} elements are NaN or infinite"


def _read_values(dataset: GoldenDataset, start: int, stop: int) -> dict[str, np.ndarray]:
    """Read as numpy arrays, bfloat16 widened to float32, which is exact."""
    if all(spec.dtype != "bfloat16" for spec in dataset.inputs):
        return dataset.read(start, stop)
    import torch

    tensors = dataset.read_torch(start, stop)
    return {n: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for n, t in tensors.items()}


def _count_non_finite(array: np.ndarray) -> int:
    return array.size - int(np.count_nonzero(np.isfinite(array)))


def _count_constant(arrays: dict[str, np.ndarray]) -> int:
    rows = [_bits(array) for array in arrays.values()]
    wide = [bits for bits in rows if bits.shape[1] > 1]
    if not wide:  # one element is not "repeated"
        return 0
    return int(np.count_nonzero(np.logical_and.reduce([(bits == bits[:, :1]).all(axis=1) for bits in wide])))


def _bits(array: np.ndarray) -> np.ndarray:
    """View as unsigned integers of shape (samples, elements): bitwise, so that NaN equals itself."""
    elements = array.size // max(1, len(array))
    return array.reshape(len(array), elements).view(f"u{array.itemsize}")


def _fingerprints(arrays: dict[str, np.ndarray]) -> Iterator[bytes]:
    for index in range(len(next(iter(arrays.values())))):
        state = hashlib.blake2b(digest_size=16)
        for name, array in sorted(arrays.items()):
            state.update(f"{name}{array.shape[1:]}".encode())
            state.update(np.ascontiguousarray(array[index]).tobytes())
        yield state.digest()


def _merge_groups(dataset: GoldenDataset) -> tuple[GroupFacts, ...]:
    """One row per shape: shards are how a big group is stored, not what it is."""
    counts: dict[tuple[tuple[str, tuple[int, ...]], ...], list[int]] = {}
    for group in dataset.manifest.groups:
        shapes = tuple((spec.name, tuple(group.shapes[spec.name])) for spec in dataset.inputs)
        counts.setdefault(shapes, []).append(group.stop - group.start)
    return tuple(
        GroupFacts(
            samples=sum(shards),
            shapes=shapes,
            batch_sizes=tuple(size for size in BATCH_SIZES if size <= max(shards)),  # no batch crosses shards
        )
        for shapes, shards in counts.items()
    )
