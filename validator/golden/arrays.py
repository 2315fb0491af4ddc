"""Array files as sources: the first axis of every array counts samples."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from validator.errors import GoldenError
from validator.golden.format import LABELS_NAME
from validator.golden.sample import Sample

LABELS_ARRAY = "labels"
"""The array of a file that is no input but the class index of each sample."""


def read_npz(path: Path) -> Iterator[Sample]:
    """Yield the samples of an `.npz`: each array one input, in the order of the file, `labels` optional.

    All arrays are loaded at once.

    Raises:
        GoldenError: an unreadable file, pickled objects, arrays of unequal length, or no samples.
    """
    try:
        # Opened here, because np.load leaves a broken archive open.
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            arrays = None if isinstance(archive, np.ndarray) else {name: archive[name] for name in archive.files}
    except Exception as error:  # on broken bytes numpy, zipfile and zlib raise whatever comes up
        raise _unreadable(path, error) from error
    if arrays is None:
        raise GoldenError(f"{path.name} is a single array", hint="name it .npy")
    if strange := next((name for name, array in arrays.items() if not isinstance(array, np.ndarray)), None):
        raise GoldenError(f"{path.name} holds {strange}, which is no array")
    yield from split_arrays(arrays, title=path.name)


def read_npy(path: Path, *, input_name: str) -> Iterator[Sample]:
    """Yield the samples of an `.npy`, one input, memory-mapped.

    Raises:
        GoldenError: an unreadable file, pickled objects, or no samples.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # on broken bytes numpy raises whatever comes up
        raise _unreadable(path, error) from error
    yield from split_arrays({input_name: array}, title=path.name)


def read_safetensors(path: Path) -> Iterator[Sample]:
    """Yield the samples of a `.safetensors`: as `.npz`, but inputs in the order of their names.

    Through torch, because it may hold bfloat16.

    Raises:
        GoldenError: an unreadable file, tensors of unequal length, or no samples.
    """
    try:
        with safe_open(path, framework="pt") as file:
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error
    yield from split_arrays(arrays, title=path.name)


def split_arrays(arrays: Mapping[str, Any], *, title: str) -> Iterator[Sample]:
    """Yield one sample per index of the first axis of arrays or tensors.

    Raises:
        GoldenError: no input, an array without axes, unequal lengths, no samples, or labels that are not integers.
    """
    if LABELS_NAME in arrays:
        raise GoldenError(
            f"{title} has an array {LABELS_NAME}, which is what labels are called inside a golden dataset",
            hint=f"call it {LABELS_ARRAY!r}",
        )
    inputs = {name: array for name, array in arrays.items() if name != LABELS_ARRAY}
    labels = arrays.get(LABELS_ARRAY)
    if not inputs:
        raise GoldenError(f"{title} holds no input array")
    for name, array in arrays.items():
        if len(array.shape) == 0:
            raise GoldenError(f"{title}: {name} is a single value, without an axis of samples")
    count = len(next(iter(inputs.values())))
    lengths = {name: len(array) for name, array in inputs.items()}
    if set(lengths.values()) != {count}:
        stated = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise GoldenError(f"{title}: the inputs differ in their number of samples: {stated}")
    if count == 0:
        raise GoldenError(f"{title} holds 0 samples", hint="a check of nothing proves nothing")
    _check_labels(labels, count, title)
    for index in range(count):
        label = None if labels is None else labels[index]
        yield Sample(inputs={name: array[index] for name, array in inputs.items()}, label=label)


def _check_labels(labels: Any, count: int, title: str) -> None:
    if labels is None:
        return
    if len(labels) != count:
        raise GoldenError(f"{title}: {len(labels)} labels for {count} samples")
    if len(labels.shape) != 1 or "int" not in str(labels.dtype):
        raise GoldenError(
            f"{title}: labels is {labels.dtype} {list(labels.shape)}, and not one integer per sample",
            hint=f"the array {LABELS_ARRAY!r} holds class indices; rename it if it is an input",
        )


def _unreadable(path: Path, error: Exception) -> GoldenError:
    if "pickle" in str(error) or "Python objects" in str(error):
        return GoldenError(
            f"{path.name} holds Python objects, or is no array file", hint="save arrays of numbers: no dtype=object"
        )
    return GoldenError(f"{path.name} is no readable array file: {str(error) or type(error).__name__}")
