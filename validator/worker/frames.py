"""How tensors are packed into a frame, and the check that a frame holds what it says.

Spool and comparison read frames with numpy, so a dtype that numpy lacks travels as one that holds every one of its
values: bfloat16 and the float8 kinds as float32, complex128, which safetensors lacks, as pairs of float64 in a new
last dimension. The frame's header names the dtype that the backend returned.
"""

import json
import math
import struct
from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from validator.golden.format import SHARD_DTYPES
from validator.manifest import unique_names
from validator.worker.protocol import FrameHeader, ProtocolError

LENGTH = struct.Struct("<Q")
HEADER_LIMIT_BYTES = 1 << 20
"""Enough for some ten thousand outputs; held in memory, unlike the tensors."""

ITEM_BYTES = MappingProxyType(
    {
        "BOOL": 1,
        "U8": 1,
        "I8": 1,
        "U16": 2,
        "I16": 2,
        "F16": 2,
        "U32": 4,
        "I32": 4,
        "F32": 4,
        "U64": 8,
        "I64": 8,
        "F64": 8,
        "C64": 8,
    }
)
"""The safetensors dtypes that numpy can hold."""

STORED_AS = MappingProxyType(
    {
        **SHARD_DTYPES,
        "bfloat16": "F32",
        "float8_e4m3fn": "F32",
        "float8_e4m3fnuz": "F32",
        "float8_e5m2": "F32",
        "float8_e5m2fnuz": "F32",
        "complex32": "C64",
        "complex128": "F64",
    }
)
"""Dtype as the backend returned it -> dtype in the frame."""

DIMENSIONS_LIMIT = 32
"""What every numpy can hold."""
ELEMENTS_LIMIT = 1 << 40
"""Of a tensor whose empty dimensions are taken for 1: numpy cannot hold every shape, not even of nothing."""

PAIRED = frozenset({"complex128"})
"""Stored as (real, imaginary) in a last dimension of 2."""


class _Tensor(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dtype: str
    shape: tuple[Annotated[int, Field(ge=0, le=ELEMENTS_LIMIT)], ...] = Field(strict=False, max_length=DIMENSIONS_LIMIT)
    data_offsets: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = Field(strict=False)

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def prefix_bytes(first: bytes, length: int) -> int:
    """Return how many bytes of a frame come before its tensors.

    Args:
        first: the first 8 bytes of the frame.
        length: of the whole frame, in bytes.

    Raises:
        ProtocolError: more than the frame has, or than is allowed.
    """
    if len(first) < LENGTH.size:
        raise ProtocolError(f"a frame of {length} bytes")
    header_bytes = int(LENGTH.unpack(first)[0])
    if header_bytes > HEADER_LIMIT_BYTES or LENGTH.size + header_bytes > length:
        raise ProtocolError(f"a frame of {length} bytes whose own header has {header_bytes}")
    return LENGTH.size + header_bytes


def check_frame(prefix: bytes, length: int) -> FrameHeader:
    """Check a frame without its tensors: afterwards, reading the whole one cannot fail.

    Args:
        prefix: all that comes before the tensors.
        length: of the whole frame, in bytes.

    Raises:
        ProtocolError: not a safetensors blob, without our header, or the two disagree.
    """
    try:
        document = json.loads(prefix[LENGTH.size :].decode(), object_pairs_hook=unique_names)
        metadata = document.pop("__metadata__")
        header = FrameHeader.model_validate_json(metadata["frame"])
        tensors = {name: _Tensor.model_validate(entry) for name, entry in document.items()}
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ProtocolError(f"a malformed frame header: {first['loc']}: {first['msg']}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"a frame without a readable header: {error!r}") from error
    if prefix[LENGTH.size : LENGTH.size + 1] != b"{" or not all(_is_unicode(name) for name in tensors):
        raise ProtocolError("a frame whose header other readers could not read")
    if set(metadata) != {"frame"}:
        raise ProtocolError("a frame with unknown metadata")
    _check_dtypes(header, tensors)
    _check_layout(tensors.values(), length - len(prefix))
    return header


def _check_dtypes(header: FrameHeader, tensors: dict[str, _Tensor]) -> None:
    if header.dtypes.keys() != tensors.keys():
        raise ProtocolError("a frame whose header names other outputs than it holds")
    for name, tensor in tensors.items():
        dtype = header.dtypes[name]
        if math.prod(max(size, 1) for size in tensor.shape) > ELEMENTS_LIMIT:
            raise ProtocolError(f"output {name} has an impossible shape")
        if tensor.dtype not in ITEM_BYTES or STORED_AS.get(dtype) != tensor.dtype:
            raise ProtocolError(f"output {name} is said to be {dtype} and stored as {tensor.dtype}")
        if dtype in PAIRED and tensor.shape[-1:] != (2,):
            raise ProtocolError(f"output {name} is said to be {dtype} and not stored in pairs")


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded: JSON can spell half of a surrogate pair, which only Python puts up with."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _check_layout(tensors: Iterable[_Tensor], size_bytes: int) -> None:
    """Require that the tensors fill the rest of the frame, without a gap or an overlap."""
    end = 0
    for tensor in sorted(tensors, key=lambda t: t.data_offsets):
        if tensor.data_offsets != (end, end + tensor.size_bytes):
            raise ProtocolError("a frame whose tensors do not lie one after another")
        end += tensor.size_bytes
    if end != size_bytes:
        raise ProtocolError(f"a frame with {size_bytes} bytes of tensors and {end} accounted for")
