"""The input example that MLflow stored with a model, as a source: a smoke input, not yet a golden dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from validator.documents import read_json, read_yaml
from validator.errors import GoldenError
from validator.golden.arrays import split_arrays
from validator.golden.format import SHARD_DTYPES
from validator.golden.sample import Sample

MLMODEL_NAME = "MLmodel"
_OWN_DATA = "make a dataset from your own arrays: validator golden create samples.npz FOLDER"


def read_input_example(folder: Path, *, input_name: str) -> Iterator[Sample]:
    """Yield the rows of the `input_example.json` of a model folder, with the dtypes of the signature.

    JSON keeps float32 bit for bit, but NaN and infinity became null: both are read as NaN.

    Args:
        folder: a downloaded MLflow model, with its MLmodel file.
        input_name: of the input, where the signature does not name it.

    Raises:
        GoldenError: no example, one that is no tensor, one without a tensor signature, or only one inside the
            exported program, which cannot be read without running the model's code.
    """
    model = _read_model_file(folder)
    content = _read_json(folder, _find_example(folder, model))
    if model["saved_input_example_info"].get("params"):
        content = content.get("inputs") if isinstance(content, dict) else None
    elif isinstance(content, dict) and content.keys() == {"inputs"}:  # as MLflow 2 wrote it
        content = content["inputs"]
    dtypes = _read_dtypes(model)
    if not isinstance(content, dict):
        content = {next(iter(dtypes)): content}
    if content.keys() != dtypes.keys():
        raise GoldenError("the input example and the signature of the model name different inputs", hint=_OWN_DATA)
    arrays = {name or input_name: _to_array(content[name], dtype) for name, dtype in dtypes.items()}
    yield from split_arrays(arrays, title="the input example")


def _read_model_file(folder: Path) -> dict[str, Any]:
    path = folder / MLMODEL_NAME
    try:
        model = read_yaml(path.read_bytes())
    except (OSError, ValueError) as error:
        raise GoldenError(f"{path} cannot be read: {error}") from error
    if not isinstance(model, dict):
        raise GoldenError(f"{path} is no MLmodel file")
    return model


def _find_example(folder: Path, model: dict[str, Any]) -> str:
    info = model.get("saved_input_example_info")
    if not isinstance(info, dict):
        if any(folder.rglob("*.pt2")):
            raise GoldenError(
                "the model's only input example is inside its exported program (.pt2), which is not opened here: "
                "opening it runs code of the model",
                hint=f"log the model with a numpy input_example, or {_OWN_DATA}",
            )
        raise GoldenError("the model was logged without an input example", hint=_OWN_DATA)
    if info.get("type") != "ndarray":
        raise GoldenError(f"the input example is a {info.get('type')}, not a tensor", hint=_OWN_DATA)
    name = info.get("artifact_path")
    if not isinstance(name, str) or Path(name).name != name:
        raise GoldenError(f"{name!r} is not the name of an input example file")
    return name


def _read_json(folder: Path, name: str) -> Any:
    try:
        return read_json((folder / name).read_bytes())
    except (OSError, ValueError) as error:
        raise GoldenError(f"the input example {name} cannot be read: {error}", hint=_OWN_DATA) from error


def _read_dtypes(model: dict[str, Any]) -> dict[str, str]:
    """Return the dtype by input name; the name of an unnamed single input is empty."""
    try:
        specs = read_json(model["signature"]["inputs"])
        dtypes = {spec.get("name", ""): spec["tensor-spec"]["dtype"] for spec in specs}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GoldenError(
            "the model has no tensor signature, and without it the dtype of its input example is unknown",
            hint="log the model with a signature",
        ) from error
    if unknown := sorted(str(dtype) for dtype in dtypes.values() if dtype not in SHARD_DTYPES):
        raise GoldenError(f"the signature of the model names the dtype {unknown[0]}, which cannot be stored")
    if not dtypes or len(dtypes) != len(specs):
        raise GoldenError("the signature of the model does not tell its inputs apart", hint=_OWN_DATA)
    return dtypes


def _to_array(values: Any, dtype: str) -> np.ndarray:
    try:
        return np.array(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise GoldenError(f"the input example is no {dtype} tensor: {error}", hint=_OWN_DATA) from error
