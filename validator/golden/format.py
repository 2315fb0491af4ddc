"""What `manifest.json` of a golden dataset holds. A manifest that exists as an object agrees with itself.

The file is canonical JSON (sorted keys, no spaces, one newline at the end), so the digest of the dataset is
the sha256 of the file without its last byte, and the same samples give the same bytes. Nothing in it is a
time, a host or an absolute path.
"""

import math
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from validator.golden.output_spec import OutputSpec, Text, find_contradictions, format_fault
from validator.manifest import canonical_json

MANIFEST_NAME = "manifest.json"
POLICY_NAME = "policy.toml"
SHARD_SUFFIX = ".safetensors"
LABELS_NAME = "__labels__"
"""An int64 tensor of shape (samples,) in every shard of a labelled dataset."""

SHARD_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
"""The name of a dtype in numpy and torch, and in safetensors."""


class Stratum(StrEnum):
    """Why a sample is in the dataset."""

    REPRESENTATIVE = "representative"
    """As the source gave it. These samples alone say how often something happens."""
    ACTIVATION_EXTREMES = "activation-extremes"
    """Chosen from the source for the largest values inside the model."""
    SCALES = "scales"
    """A representative sample times a constant."""
    LOW_MARGIN = "low-margin"
    """Chosen from the source for the smallest distance between its two best classes."""
    SPECIALS = "specials"
    """All zero, constant, denormal, or not finite."""
    SHAPES = "shapes"
    """A representative sample cropped or tiled to another allowed shape."""

    @property
    def is_stress(self) -> bool:
        """Whether samples are made up: judged by their error alone, since nobody will ask for their answer."""
        return self in (Stratum.SCALES, Stratum.SPECIALS, Stratum.SHAPES)


_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _check_file_name(value: str) -> str:
    """One plain name: `..`, an absolute path or a folder could lead out of the dataset."""
    if not _FILE_NAME.fullmatch(value) or value in {MANIFEST_NAME, POLICY_NAME}:
        raise ValueError(f"{value!r} is not the plain name of a shard")
    return value


def _check_dtype(value: str) -> str:
    if value not in SHARD_DTYPES:
        raise ValueError(f"the dtype {value!r} is none of {', '.join(SHARD_DTYPES)}")
    return value


_LATER_FIELDS = ("outputs", "strata")
"""Fields that the first datasets did not have."""

Name = TypeVar("Name", str, int)
FileName = Annotated[str, AfterValidator(_check_file_name)]
SAMPLES_LIMIT = 10_000_000
"""More could not be run, and samples without content would cost a file of a few bytes any amount of memory."""
DIMENSIONS_LIMIT = 31
"""Of a sample: what every numpy can hold beside the dimension of samples."""
ELEMENTS_LIMIT = 1 << 40
"""Of a sample whose empty dimensions are taken for 1: numpy cannot hold every shape, not even of nothing."""
Size = Annotated[int, Field(ge=0)]
Shape = Annotated[list[Size], Field(max_length=DIMENSIONS_LIMIT)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class InputSpec(_Part):
    """One input of the model."""

    name: Text
    dtype: Annotated[str, AfterValidator(_check_dtype)]


class Group(_Part):
    """Samples start..stop of one shape, in one shard. Big groups are cut into several with equal shapes."""

    shard: FileName
    start: Size
    stop: Size
    shapes: dict[str, Shape]
    """Of one sample, without the batch dimension, by input."""


class ShardFile(_Part):
    """The bytes of one shard."""

    path: FileName
    size_bytes: Size
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class GoldenManifest(_Part):
    """A whole dataset. Inputs are in the order in which the samples named them."""

    schema_version: Literal[1] = 1
    name: Text
    inputs: list[InputSpec]
    samples: Annotated[int, Field(ge=0, le=SAMPLES_LIMIT)]
    groups: list[Group]
    sample_ids: list[Text] | None = None
    """None: the index, padded with zeros."""
    labels: bool = False
    slices: dict[Text, list[Size]] | None = None
    """Named subsets, as sorted sample indices."""
    strata: dict[Stratum, list[Size]] | None = None
    """Sorted sample indices of each stratum but the representative one, which is all the others."""
    outputs: dict[Text, OutputSpec] | None = None
    """What outputs of the model mean, by name; None: every number is what it is."""
    source: Text
    """How it was made."""
    files: list[ShardFile]

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if faults := list(_find_faults(self)):
            raise ValueError("; ".join(faults))
        return self

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what there is none of, as datasets did before there was such a thing: same digest."""
        content: dict[str, Any] = write(self)
        return {key: value for key, value in content.items() if key not in _LATER_FIELDS or value is not None}

    def canonical_text(self) -> str:
        """Return what the digest is made over: canonical JSON without `_LATER_FIELDS` that are None, no newline."""
        return canonical_json(self.model_dump(mode="json"))


def format_faults(error: ValidationError) -> str:
    """Say on one line all that is wrong with a manifest, without quoting the values themselves."""
    return "; ".join(format_fault(fault["loc"], fault["msg"]) for fault in error.errors(include_url=False))


def _find_faults(manifest: GoldenManifest) -> Iterator[str]:
    if manifest.samples == 0:
        yield "it holds 0 samples"
        return
    if not manifest.inputs:
        yield "it names no input"
    yield from _find_name_faults(manifest)
    yield from _find_group_faults(manifest)
    yield from _find_slice_faults(manifest)
    yield from _find_stratum_faults(manifest)
    yield from _find_output_faults(manifest)


def _find_name_faults(manifest: GoldenManifest) -> Iterator[str]:
    names = [spec.name for spec in manifest.inputs]
    shards = [group.shard for group in manifest.groups]
    files = [file.path for file in manifest.files]
    ids = manifest.sample_ids
    if twin := _find_twin(names):
        yield f"input {twin!r} is named twice"
    if LABELS_NAME in names:
        yield f"{LABELS_NAME} is the name of the labels, not of an input"
    if twin := _find_twin(shard.casefold() for shard in shards):
        yield f"shard {twin!r} is named twice"
    if sorted(shards) != sorted(files):
        yield "groups and files name different shards"
    if ids is not None and len(ids) != manifest.samples:
        yield f"{len(ids)} sample ids for {manifest.samples} samples"
    if ids is not None and (twin := _find_twin(ids)):
        yield f"sample id {twin!r} is used twice"


def _find_group_faults(manifest: GoldenManifest) -> Iterator[str]:
    names = {spec.name for spec in manifest.inputs}
    position = 0
    for index, group in enumerate(manifest.groups):
        if group.start != position or group.stop <= group.start:
            yield f"groups.{index}: {group.start}..{group.stop} does not go on from {position}"
        if group.shapes.keys() != names:
            yield f"groups.{index}: it has shapes for other inputs than the dataset"
        if any(math.prod(max(size, 1) for size in shape) > ELEMENTS_LIMIT for shape in group.shapes.values()):
            yield f"groups.{index}: it has an impossible shape"
        position = group.stop
    if position != manifest.samples:
        yield f"the groups end at {position} of {manifest.samples} samples"


def _find_slice_faults(manifest: GoldenManifest) -> Iterator[str]:
    for name, indices in (manifest.slices or {}).items():
        if not _are_indices(indices, manifest.samples):
            yield f"slice {name!r} is not a sorted list of sample indices below {manifest.samples}"


def _find_stratum_faults(manifest: GoldenManifest) -> Iterator[str]:
    strata = manifest.strata
    if strata is None:
        return
    if not strata:
        yield "strata names none"
    if Stratum.REPRESENTATIVE in strata:
        yield f"strata lists {Stratum.REPRESENTATIVE}, which is every sample that no other stratum lists"
    for name, indices in strata.items():
        if not _are_indices(indices, manifest.samples):
            yield f"stratum {name} is not a sorted list of sample indices below {manifest.samples}"
    if (twin := _find_twin(index for indices in strata.values() for index in set(indices))) is not None:
        yield f"sample {twin} is in two strata"


def _are_indices(indices: list[int], samples: int) -> bool:
    """Whether this is a sorted list of sample indices, each once, and not empty."""
    return bool(indices) and indices == sorted(set(indices)) and indices[-1] < samples


def _find_output_faults(manifest: GoldenManifest) -> Iterator[str]:
    if manifest.outputs is not None and not manifest.outputs:
        yield "outputs declares none"
    yield from find_contradictions(manifest.outputs or {})
    if not manifest.labels and any(spec.labelled for spec in (manifest.outputs or {}).values()):
        yield "an output is labelled, but the samples have no labels"


def _find_twin(names: Iterable[Name]) -> Name | None:
    seen: set[Name] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
