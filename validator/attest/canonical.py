"""Strict reading of what we wrote ourselves: a document has one text, and any other text of it is refused."""

import json
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from validator.errors import ClearanceRefused
from validator.manifest import canonical_json, unique_names

SIZE_LIMIT_BYTES = 1 << 20
"""Of an envelope. A real one has a few thousand bytes."""

Model = TypeVar("Model", bound=BaseModel)


def write_canonical(document: BaseModel) -> bytes:
    """Return the one text of a document."""
    return canonical_json(document.model_dump(mode="json", by_alias=True)).encode()


def read_canonical(model: type[Model], data: bytes, *, what: str) -> Model:
    """Read a document that must be its canonical text.

    Duplicate and unknown keys, NaN, floats of any kind and another order or spacing are refused.

    Raises:
        ClearanceRefused: anything else than exactly that.
    """
    if len(data) > SIZE_LIMIT_BYTES:
        raise ClearanceRefused(f"{what} has {len(data):,} bytes, more than {SIZE_LIMIT_BYTES:,}")
    try:
        json.loads(data, object_pairs_hook=unique_names, parse_float=_no_float, parse_constant=_no_float)
        document = model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ClearanceRefused(f"{what} is none: {where or 'the whole'}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ClearanceRefused(f"{what} cannot be read: {error}") from error
    if write_canonical(document) != data:
        raise ClearanceRefused(f"{what} is not written the way it was made: another order, spacing or spelling")
    return document


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:20]} is no whole number")
