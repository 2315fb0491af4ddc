"""Writing a golden dataset: samples in, one folder out, whole or not at all.

Samples are numbered group by group: groups (samples of one shape) in the order in which each shape first
appeared, and within a group in the order of the source. So a dataset of one shape keeps the order of its source,
and a ragged one is sorted by shape, stably; a sample's id, not its number, says where it came from.

The same samples with the same `shard_bytes` give the same bytes.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from validator.errors import GoldenError
from validator.faults import crash_point
from validator.golden.dataset import GoldenDataset, open_golden
from validator.golden.format import (
    LABELS_NAME,
    MANIFEST_NAME,
    POLICY_NAME,
    SHARD_SUFFIX,
    GoldenManifest,
    Group,
    InputSpec,
    ShardFile,
    Stratum,
    format_faults,
)
from validator.golden.output_spec import OutputSpec
from validator.golden.place import check_place, draft_beside, flush, move_into_place, naming_errors
from validator.golden.sample import Row, Sample, take_sample
from validator.manifest import hash_file

__all__ = ["SHARD_BYTES", "Sample", "write_golden"]

SHARD_BYTES = 256 << 20


def write_golden(
    folder: Path,
    samples: Iterable[Sample],
    *,
    name: str,
    source: str,
    outputs: Mapping[str, OutputSpec] | None = None,
    shard_bytes: int = SHARD_BYTES,
    replace: bool = False,
) -> GoldenDataset:
    """Write samples into a new folder.

    It is built beside its place, flushed to disk and renamed, so that a reader sees all of it or nothing.

    Args:
        folder: the new dataset; folders above it are made.
        samples: read once, in order. At most `shard_bytes` of them, and one more, wait in memory.
        name: of the dataset.
        source: how it was made, for people; no times, no absolute paths.
        outputs: what outputs of the model mean, by name.
        shard_bytes: a shard is closed when it holds as much.
        replace: put it in the place of the golden dataset that is there. Its `policy.toml` stays.

    Raises:
        GoldenError: no samples, samples that do not fit together, or a folder that cannot be written.
        ValueError: `shard_bytes` below 1.
    """
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes is {shard_bytes}")
    check_place(folder, replace=replace)
    with draft_beside(folder) as draft:
        shards = _ShardWriter(folder=draft, shard_bytes=shard_bytes)
        for sample in samples:
            shards.add(sample)
        manifest = shards.close(name=name, source=source, outputs=outputs)
        with naming_errors(folder):
            crash_point(f"write {MANIFEST_NAME} of the draft")
            (draft / MANIFEST_NAME).write_text(manifest.canonical_text() + "\n", encoding="ascii")
            if (folder / POLICY_NAME).is_file():
                shutil.copyfile(folder / POLICY_NAME, draft / POLICY_NAME)
            flush(draft)
            move_into_place(draft, folder)
    return open_golden(folder, verify=False)


@dataclass(slots=True, kw_only=True)
class _OpenGroup:
    """The samples of one shape: some in closed shards, the rest waiting."""

    number: int
    shapes: dict[str, list[int]]
    rows: list[Row] = field(default_factory=list)
    size_bytes: int = 0
    shards: list[tuple[str, list[str | None]]] = field(default_factory=list)
    """File name and sample ids of each closed shard."""
    strata: list[Stratum] = field(default_factory=list)
    """Of each sample, in order."""


@dataclass(slots=True, kw_only=True)
class _ShardWriter:
    """Sorts samples by shape and writes a shard whenever enough of them wait."""

    folder: Path
    shard_bytes: int
    dtypes: dict[str, str] = field(default_factory=dict)
    """Of each input, as the first sample has it."""
    has_ids: bool = False
    has_labels: bool = False
    count: int = 0
    groups: dict[tuple[tuple[int, ...], ...], _OpenGroup] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Take one sample.

        Raises:
            GoldenError: it cannot be stored, or is not like the first in names, dtypes, id or label.
        """
        row, dtypes = take_sample(sample, title=f"sample {self.count if sample.id is None else sample.id}")
        if self.count == 0:
            self.dtypes, self.has_ids, self.has_labels = dtypes, row.id is not None, row.label is not None
        self._check_like_first(row, dtypes)
        self.count += 1
        # By the first sample's order of inputs: another order of the same names is the same shape.
        shapes = {name: row.arrays[name].shape for name in self.dtypes}
        group = self.groups.setdefault(
            tuple(shapes.values()),
            _OpenGroup(number=len(self.groups), shapes={name: list(shape) for name, shape in shapes.items()}),
        )
        group.rows.append(row)
        group.strata.append(sample.stratum)
        group.size_bytes += row.size_bytes
        # The sum over all groups bounds memory, however many shapes there are.
        if sum(other.size_bytes for other in self.groups.values()) >= self.shard_bytes:
            self._write_shard(max(self.groups.values(), key=lambda other: other.size_bytes))

    def close(self, *, name: str, source: str, outputs: Mapping[str, OutputSpec] | None) -> GoldenManifest:
        """Write what still waits and return the manifest.

        Raises:
            GoldenError: no samples, or ids, names or declarations that cannot stand in a manifest.
        """
        if self.count == 0:
            raise GoldenError(f"the source of {name} gave 0 samples", hint="a check of nothing proves nothing")
        for group in self.groups.values():
            if group.rows:
                self._write_shard(group)
        ids = [i for group in self.groups.values() for _, shard_ids in group.shards for i in shard_ids]
        try:
            return GoldenManifest(
                name=name,
                inputs=[InputSpec(name=n, dtype=dtype) for n, dtype in self.dtypes.items()],
                samples=self.count,
                groups=list(self._number_groups()),
                sample_ids=[i for i in ids if i is not None] if self.has_ids else None,
                labels=self.has_labels,
                strata=self._list_strata(),
                outputs=None if outputs is None else dict(outputs),
                source=source,
                files=[_measure(path) for path in sorted(self.folder.iterdir())],
            )
        except ValidationError as error:
            raise GoldenError(f"the dataset {name!r} cannot be written: {format_faults(error)}") from error

    def _check_like_first(self, row: Row, dtypes: dict[str, str]) -> None:
        title = f"sample {self.count if row.id is None else row.id}"
        if dtypes.keys() != self.dtypes.keys():
            raise GoldenError(
                f"{title} has the inputs {', '.join(sorted(dtypes))}, "
                f"the first sample has {', '.join(sorted(self.dtypes))}"
            )
        for name, dtype in dtypes.items():
            if dtype != self.dtypes[name]:
                raise GoldenError(f"{title}, input {name}: {dtype}, in the first sample {self.dtypes[name]}")
        if (row.id is not None) != self.has_ids:
            raise GoldenError(f"{title}: either every sample has an id, or none")
        if (row.label is not None) != self.has_labels:
            raise GoldenError(f"{title}: either every sample has a label, or none")

    def _write_shard(self, group: _OpenGroup) -> None:
        name = f"group-{group.number:04}-{len(group.shards):04}{SHARD_SUFFIX}"
        arrays = {key: np.stack([row.arrays[key] for row in group.rows]) for key in self.dtypes}
        if self.has_labels:
            arrays[LABELS_NAME] = np.array([row.label for row in group.rows], dtype=np.int64)
        with naming_errors(self.folder.parent):
            crash_point(f"write {name} of the draft")
            _save(self.folder / name, arrays, wide={n for n, d in self.dtypes.items() if d == "bfloat16"})
        group.shards.append((name, [row.id for row in group.rows]))
        group.rows, group.size_bytes = [], 0

    def _number_groups(self) -> Iterator[Group]:
        start = 0
        for group in self.groups.values():
            for shard, ids in group.shards:
                yield Group(shard=shard, start=start, stop=start + len(ids), shapes=group.shapes)
                start += len(ids)

    def _list_strata(self) -> dict[Stratum, list[int]] | None:
        """Return the sample indices of every stratum but the representative one; None where there is no other."""
        strata = [stratum for group in self.groups.values() for stratum in group.strata]
        found: dict[Stratum, list[int]] = {
            stratum: [index for index, own in enumerate(strata) if own is stratum]
            for stratum in Stratum
            if stratum is not Stratum.REPRESENTATIVE and stratum in strata
        }
        return found or None


def _save(path: Path, arrays: dict[str, np.ndarray], *, wide: set[str]) -> None:
    """Write one shard. Only bfloat16 needs torch: `wide` names the arrays that hold its bits."""
    if not wide:
        from safetensors.numpy import save_file

        save_file(arrays, path)
        return
    import torch
    from safetensors.torch import save_file as save_tensors

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    save_tensors({n: t.view(torch.bfloat16) if n in wide else t for n, t in tensors.items()}, path)


def _measure(path: Path) -> ShardFile:
    return ShardFile(path=path.name, size_bytes=path.stat().st_size, sha256=hash_file(path))
