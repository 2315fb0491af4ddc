"""Reading a golden dataset: the folder is checked against its manifest once, then read in ranges."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from validator.errors import DigestChanged, FormatRefused, GoldenError
from validator.golden.format import (
    LABELS_NAME,
    MANIFEST_NAME,
    SHARD_DTYPES,
    GoldenManifest,
    Group,
    InputSpec,
    ShardFile,
    Stratum,
    format_faults,
)
from validator.manifest import digest_of, hash_file

if TYPE_CHECKING:
    import torch

_ID_DIGITS = 4
_MAKE_AGAIN = 'make the dataset again with "validator golden create"'


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenDataset:
    """A checked folder. Holds no open file, so it can be copied to another process."""

    folder: Path
    manifest: GoldenManifest
    digest: str
    """`sha256:<hex>` of the canonical manifest, which holds the sha256 of every shard."""

    @property
    def samples(self) -> int:
        """How many there are; never 0."""
        return self.manifest.samples

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """The model's inputs, in order."""
        return self.manifest.inputs

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Why each sample is here, one stratum per sample; all are representative where the manifest says nothing."""
        names = [Stratum.REPRESENTATIVE] * self.samples
        for stratum, indices in (self.manifest.strata or {}).items():
            for index in indices:
                names[index] = stratum
        return tuple(names)

    def sample_id(self, index: int) -> str:
        """Return the name of a sample in reports."""
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        if self.manifest.sample_ids is not None:
            return self.manifest.sample_ids[index]
        return f"{index:0{max(_ID_DIGITS, len(str(self.samples - 1)))}}"

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Read samples start..stop, by input, each of shape (stop - start, *sample).

        Raises:
            ValueError: the range is empty or crosses groups, or an input is bfloat16, which numpy lacks.
            GoldenError: the shard is gone or damaged since the dataset was opened.
        """
        if any(spec.dtype == "bfloat16" for spec in self.inputs):
            raise ValueError("numpy has no bfloat16: use read_torch")
        return self._read(start, stop, [spec.name for spec in self.inputs], framework="numpy")

    def read_torch(self, start: int, stop: int) -> "dict[str, torch.Tensor]":
        """Read samples start..stop as CPU tensors over a private memory map: writing to one alters no file.

        Raises:
            ValueError: the range is empty or crosses groups.
            GoldenError: the shard is gone or damaged since the dataset was opened.
        """
        return self._read(start, stop, [spec.name for spec in self.inputs], framework="pt")

    def labels(self, start: int, stop: int) -> np.ndarray | None:
        """Read the int64 labels, shape (stop - start,), or None where there are none. Raises as `read`."""
        if not self.manifest.labels:
            return None
        labels: np.ndarray = self._read(start, stop, [LABELS_NAME], framework="numpy")[LABELS_NAME]
        return labels

    def read_labels(self) -> tuple[int, ...] | None:
        """Read the label of every sample, or None where there are none. Raises as `read`."""
        if not self.manifest.labels:
            return None
        parts = [self.labels(group.start, group.stop) for group in self.manifest.groups]
        return tuple(int(label) for part in parts if part is not None for label in part)

    @property
    def labelled_output(self) -> str | None:
        """Name the output that is declared to be what labels are about."""
        specs = self.manifest.outputs or {}
        return next((name for name, spec in specs.items() if spec.labelled), None)

    def batches(self, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
        """Cut start..stop, in order, into ranges of at most `size` samples that each lie within one group.

        Raises:
            ValueError: the range leaves the dataset, or the size is below 1.
        """
        if not 0 <= start <= stop <= self.samples or size < 1:
            raise ValueError(f"no batches of {size} in {start}..{stop} of {self.samples} samples")
        while start < stop:
            end = min(start + size, stop, self._group_of(start).stop)
            yield start, end
            start = end

    def _group_of(self, index: int) -> Group:
        groups = self.manifest.groups
        return groups[bisect_right(groups, index, key=lambda group: group.start) - 1]

    def _read(self, start: int, stop: int, names: list[str], *, framework: Literal["numpy", "pt"]) -> dict[str, Any]:
        if not 0 <= start < stop <= self.samples:
            raise ValueError(f"no samples {start}..{stop} in a dataset of {self.samples}")
        group = self._group_of(start)
        if stop > group.stop:
            raise ValueError(f"samples {start}..{stop} cross the end of a group at {group.stop}: use batches")
        here = slice(start - group.start, stop - group.start)
        try:
            with safe_open(self.folder / group.shard, framework=framework) as shard:
                return {name: shard.get_slice(name)[here] for name in names}
        except (OSError, SafetensorError) as error:
            raise GoldenError(
                f"{group.shard} of {self.folder} can no longer be read: {error}", hint=_MAKE_AGAIN
            ) from error


def open_golden(folder: Path, *, verify: bool = True) -> GoldenDataset:
    """Check a folder against its manifest and open it.

    Args:
        folder: holds `manifest.json` and the shards; anything else in it is ignored.
        verify: hash every shard again. Without it sizes, names, dtypes, shapes and counts are still checked.

    Raises:
        GoldenError: no such folder, a manifest that cannot be used, a shard that is missing, cut short or not
            what the manifest says.
        DigestChanged: a shard with other bytes than the manifest's sha256.
        FormatRefused: a shard or the manifest is a link or no regular file.
    """
    manifest = _read_manifest(folder)
    for file in manifest.files:
        _check_file(folder, file)
    if verify:
        for file in manifest.files:
            _check_bytes(folder, file)
    for group in manifest.groups:
        _check_shard(folder, group, manifest)
    # Absolute, because a worker that gets it may run elsewhere.
    return GoldenDataset(
        folder=folder.absolute(), manifest=manifest, digest=digest_of(manifest.model_dump(mode="json"))
    )


def _read_manifest(folder: Path) -> GoldenManifest:
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise GoldenError(f"the golden dataset {folder} {what}", hint=_MAKE_AGAIN)
    if not path.exists() and not path.is_symlink():
        raise GoldenError(f"{folder} holds no {MANIFEST_NAME}, so it is no golden dataset", hint=_MAKE_AGAIN)
    _refuse_links(path)
    try:
        return GoldenManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise GoldenError(f"{path} cannot be used: {format_faults(error)}", hint=_MAKE_AGAIN) from error
    except OSError as error:
        raise GoldenError(f"{path} cannot be read: {error.strerror}") from error


def _refuse_links(path: Path) -> None:
    # A link can point to other bytes tomorrow, or out of the folder; a pipe or a device has no bytes to hash.
    if path.is_symlink() or not path.is_file():
        kind = "a symbolic link" if path.is_symlink() else "not a regular file"
        raise FormatRefused(f"{path} is {kind}", hint="copy the file itself into the dataset")


def _check_file(folder: Path, file: ShardFile) -> None:
    path = folder / file.path
    if not path.exists() and not path.is_symlink():
        raise GoldenError(f"shard {file.path} of {folder} is missing", hint=f"copy it again, or {_MAKE_AGAIN}")
    _refuse_links(path)
    size_bytes = path.stat().st_size
    if size_bytes != file.size_bytes:
        raise GoldenError(
            f"shard {file.path} of {folder} has {size_bytes} of {file.size_bytes} bytes",
            hint=f"copy it again, or {_MAKE_AGAIN}",
        )


def _check_bytes(folder: Path, file: ShardFile) -> None:
    try:
        sha256 = hash_file(folder / file.path)
    except OSError as error:
        raise GoldenError(f"shard {file.path} of {folder} cannot be read: {error.strerror}") from error
    if sha256 != file.sha256:
        raise DigestChanged(
            f"shard {file.path} of {folder} has other bytes than when the dataset was made: "
            f"sha256 {sha256[:8]}..{sha256[-4:]}, in the manifest {file.sha256[:8]}..{file.sha256[-4:]}",
            hint="find out who wrote to it, then copy it again from where it is known to be right",
        )


def _check_shard(folder: Path, group: Group, manifest: GoldenManifest) -> None:
    """Compare the header of a shard, which is all that is read here, with what the manifest says of it."""
    count = group.stop - group.start
    stated = {s.name: (SHARD_DTYPES[s.dtype], [count, *group.shapes[s.name]]) for s in manifest.inputs}
    if manifest.labels:
        stated[LABELS_NAME] = ("I64", [count])
    try:
        with safe_open(folder / group.shard, framework="numpy") as shard:
            slices = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118 -- no mapping
            found = {name: (part.get_dtype(), list(part.get_shape())) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise GoldenError(
            f"shard {group.shard} of {folder} is no readable safetensors file: {error}", hint=_MAKE_AGAIN
        ) from error
    for name in sorted(stated.keys() | found.keys()):
        if stated.get(name) != found.get(name):
            raise GoldenError(
                f"shard {group.shard} of {folder} holds {_format_tensor(name, found)}, "
                f"in the manifest {_format_tensor(name, stated)}",
                hint=_MAKE_AGAIN,
            )


def _format_tensor(name: str, tensors: dict[str, tuple[str, list[int]]]) -> str:
    if name not in tensors:
        return f"no {name!r}"
    dtype, shape = tensors[name]
    return f"{name!r} as {dtype} {shape}"
