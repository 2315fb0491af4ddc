"""One sample, and what makes it fit to be stored."""

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from validator.errors import GoldenError
from validator.golden.format import LABELS_NAME, SHARD_DTYPES, Stratum

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One input of the model, without a batch dimension."""

    id: str | None = None
    """Unique name, or None; all samples of a dataset have one, or none has."""
    inputs: "Mapping[str, np.ndarray | torch.Tensor]"
    label: int | None = None
    """Class index, or None; all or none."""
    stratum: Stratum = Stratum.REPRESENTATIVE
    """Why it is in the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sample, checked and copied. bfloat16 is held as its bits in uint16."""

    id: str | None
    label: int | None
    arrays: dict[str, np.ndarray]
    size_bytes: int


def take_sample(sample: Sample, *, title: str) -> tuple[Row, dict[str, str]]:
    """Check and copy one sample; a source may reuse its buffers for the next."""
    if not sample.inputs:
        raise GoldenError(f"{title} has no inputs")
    arrays, dtypes = {}, {}
    for name, value in sample.inputs.items():
        if not isinstance(name, str) or name == LABELS_NAME:
            raise GoldenError(f"{title}: {name!r} cannot be the name of an input")
        arrays[name], dtypes[name] = _take_array(value, title=f"{title}, input {name}")
    size_bytes = sum(array.nbytes for array in arrays.values())
    return Row(id=sample.id, label=_take_label(sample.label, title), arrays=arrays, size_bytes=size_bytes), dtypes


def _take_array(value: Any, *, title: str) -> tuple[np.ndarray, str]:
    """Return a fresh array in native byte order and the name of its dtype; bfloat16 as its bits."""
    if isinstance(value, np.ndarray | np.generic):
        array, dtype = np.array(value, order="C"), value.dtype.newbyteorder("=").name
        if dtype == "bfloat16":  # of ml_dtypes
            return array.view(np.uint16), dtype
        if dtype in SHARD_DTYPES:
            return array.astype(value.dtype.newbyteorder("="), copy=False), dtype
        raise GoldenError(f"{title}: the dtype {dtype} cannot be stored", hint=f"use {', '.join(SHARD_DTYPES)}")
    import torch

    if not isinstance(value, torch.Tensor):
        raise GoldenError(f"{title}: a {type(value).__name__} is neither an array nor a tensor")
    dtype = str(value.dtype).removeprefix("torch.")
    if value.layout != torch.strided or dtype not in SHARD_DTYPES:
        raise GoldenError(f"{title}: a {dtype} tensor ({value.layout}) cannot be stored")
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    bits = dense.view(torch.uint16) if dtype == "bfloat16" else dense
    return bits.numpy().copy(), dtype


def _take_label(label: Any, title: str) -> int | None:
    if label is None:
        return None
    try:
        number = operator.index(label)
    except TypeError as error:
        raise GoldenError(f"{title}: the label is a {type(label).__name__}, not an integer") from error
    if not _INT64.min <= number <= _INT64.max:
        raise GoldenError(f"{title}: the label {number} is no 64-bit integer")
    return number
