"""Is an ONNX file safe and whole? Asked before ONNX Runtime sees it, and what can be read off it.

The file is parsed as a message, its external data only looked at from outside: relative, inside the folder, a regular
file of one link, and long enough. A model that was registered without its weights looks whole to everything that does
not check this (logging one ModelProto twice through MLflow strips the weights in place).
"""

import math
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from validator.backends.interface import TensorFacts
from validator.backends.refusals import format_refusal

ALLOWED_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Operators that ONNX Runtime brings along. Anything else needs a native library."""


_NUMBER = re.compile(r"[0-9]{1,18}")
"""As every reader reads it: no sign, no blank, no underscore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFacts:
    """What the file says."""

    opset: int
    """Of the default domain."""
    nodes: int
    """With subgraphs and functions."""
    training: tuple[str, ...]
    """Nodes in training mode."""
    inputs: tuple[TensorFacts, ...]
    """Without those that an initializer provides."""
    outputs: tuple[str, ...]
    producer: str


def vet_onnx(path: Path) -> OnnxFacts:
    """Parse a model file without its weights and make sure that loading it is safe and complete.

    Raises:
        BackendRefusal: format.
    """
    model = open_onnx(path)
    provided = {tensor.name for tensor in model.graph.initializer}
    return OnnxFacts(
        opset=max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0),
        nodes=sum(1 for _ in _nodes(model)),
        training=tuple(_training(model)),
        inputs=tuple(_tensor_facts(value) for value in model.graph.input if value.name not in provided),
        outputs=tuple(value.name for value in model.graph.output),
        producer=f"{model.producer_name} {model.producer_version}".strip(),
    )


def open_onnx(path: Path) -> Any:
    """Parse a model file and vet it; external data stay where they are.

    Raises:
        BackendRefusal: format.
    """
    model = _parse(path)
    _vet_text(model)
    _vet_nodes(model)
    for tensor in _tensors(model):
        _vet_tensor(tensor, path)
    return model


def _parse(path: Path) -> Any:
    """Read the message itself; a truncated one either fails to parse or lacks its graph."""
    if not path.is_file() or path.is_symlink():
        raise format_refusal(f"{path.name} is not a regular file")
    if path.suffix.lower() == ".ort":  # by this name alone ONNX Runtime takes a file for another format
        raise format_refusal(f"{path.name} is named as ONNX Runtime's own format, which cannot be vetted")
    try:
        # The format is named, because onnx would take it from the suffix.
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except (DecodeError, ValueError, OSError, RuntimeError) as error:
        size = path.stat().st_size
        raise format_refusal(f"{path.name} is not a readable ONNX file ({size} bytes): {error}") from error
    if not model.graph.node or not model.graph.output or not model.opset_import:
        raise format_refusal(f"{path.name} holds no graph with nodes and outputs: cut short, or no ONNX file")
    return model


def read_constants(model: Any) -> Iterator[Any]:
    """Yield the tensors, under their names, that a vetted model computes with: initializers and constant nodes.

    What no node takes is none of them: the right weight that lies unused beside a wrong one proves nothing.
    """
    used = {name for node in _nodes(model) for name in node.input} | {output.name for output in model.graph.output}
    for graph in _graphs(model):
        yield from (tensor for tensor in getattr(graph, "initializer", ()) if tensor.name in used)
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    tensor = onnx.TensorProto()
                    tensor.CopyFrom(attribute.t)
                    tensor.name = node.output[0]
                    yield tensor


def paired_biases(model: Any) -> dict[str, str]:
    """Return bias -> weight for every contraction of a model that has both as one node's inputs."""
    return {
        node.input[2]: node.input[1]
        for node in _nodes(model)
        if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2 and node.input[2]
    }


# --- Walking ---------------------------------------------------------------------------------------------------------


def _graphs(model: Any) -> Iterator[Any]:
    """Yield the graph, its subgraphs and the functions."""
    stack = [model.graph, *model.functions]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def _nodes(model: Any) -> Iterator[Any]:
    for graph in _graphs(model):
        yield from graph.node


def _tensors(model: Any) -> Iterator[Any]:
    """Yield every tensor that the file holds, wherever it lies: also in sparse ones and in defaults of functions."""
    stack = [model]
    while stack:
        message = stack.pop()
        if isinstance(message, onnx.TensorProto):
            yield message
            continue
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack.extend(value if isinstance(value, Sequence) else (value,))


# --- Vetting ---------------------------------------------------------------------------------------------------------


def _vet_text(model: Any) -> None:
    """Refuse names that are no text: the message is of a kind whose strings may be any bytes."""
    stack = [model]
    while stack:
        message = stack.pop()
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack.extend(value if isinstance(value, Sequence) else (value,))
            elif field.type == field.TYPE_STRING:
                _vet_strings(message, field.name)


def _vet_strings(message: Any, name: str) -> None:
    try:
        value = getattr(message, name)
        is_text = isinstance(value, str) or all(isinstance(text, str) for text in value)
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise format_refusal(f"the file has a {name} that is no text")


def _vet_nodes(model: Any) -> None:
    """Refuse operators that are neither ONNX Runtime's own nor functions in the file, and constants without a name."""
    local = {(function.domain, function.name) for function in model.functions}
    for node in _nodes(model):
        if node.op_type == "Constant" and not node.output:
            raise format_refusal(f"the node {node.name!r} is a constant without an output")
        if node.domain not in ALLOWED_DOMAINS and (node.domain, node.op_type) not in local:
            raise format_refusal(
                f"the node {node.name!r} is {node.domain}::{node.op_type}, a custom operator: native code"
            )


def _vet_tensor(tensor: Any, path: Path) -> None:
    """Refuse a tensor without data, and external data that lies where it must not or is too short."""
    wanted = _size_bytes(tensor)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        if tensor.external_data:
            raise format_refusal(f"the tensor {tensor.name!r} names external data but is not marked as external")
        if wanted and not _has_data(tensor):
            raise format_refusal(f"the tensor {tensor.name!r} has no data: the model was registered without weights")
        if tensor.raw_data and wanted is not None and len(tensor.raw_data) != wanted:
            raise format_refusal(f"the tensor {tensor.name!r} needs {wanted} bytes and has {len(tensor.raw_data)}")
        return
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if len(fields) != len(tensor.external_data) or not set(fields) <= {"location", "offset", "length", "checksum"}:
        raise format_refusal(f"the tensor {tensor.name!r} describes its external data in an unknown way")
    size = _vet_location(tensor.name, fields.get("location", ""), path)
    if not all(_NUMBER.fullmatch(fields.get(key, "0")) for key in ("offset", "length")):
        raise format_refusal(f"the tensor {tensor.name!r} has an offset or a length that is no number")
    offset = int(fields.get("offset", "0"))
    length = int(fields.get("length", str(size - offset)))
    if offset < 0 or length < 0 or offset + length > size or (wanted is not None and length != wanted):
        raise format_refusal(
            f"the tensor {tensor.name!r} needs {wanted} bytes and reads {offset}..{offset + length} of a file of {size}"
        )


def _vet_location(name: str, location: str, path: Path) -> int:
    """Return the size of an external data file, having looked at where and what it is."""
    relative = PurePosixPath(location)
    if not location or relative.is_absolute() or ".." in relative.parts or "\\" in location or "\x00" in location:
        raise format_refusal(f"the tensor {name!r} reads {location!r}, which is no file beside the model")
    here = path.parent
    try:
        for part in relative.parts:
            here = here / part
            if here.is_symlink():
                raise format_refusal(f"the tensor {name!r} reads {location!r}, which goes through a link")
        is_there = here.exists()
    except OSError as error:  # a name that is too long
        raise format_refusal(f"the tensor {name!r} reads {location!r}: {error.strerror}") from error
    if not is_there:
        raise format_refusal(
            f"the tensor {name!r} reads {location!r}, which is not there: the model was registered without weights"
        )
    status = here.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise format_refusal(f"the tensor {name!r} reads {location!r}, which is not a regular file of one link")
    return status.st_size


def _size_bytes(tensor: Any) -> int | None:
    """Return how many bytes a tensor takes; None where the element type has no whole number of bytes."""
    count = 1
    for dim in tensor.dims:
        if dim < 0:
            raise format_refusal(f"the tensor {tensor.name!r} has a dimension of {dim}")
        count *= dim
    if count == 0:
        return 0
    if tensor.data_type == onnx.TensorProto.STRING:
        return None
    try:
        if tensor.data_type in _PACKED:
            return (count * _PACKED[tensor.data_type] + 7) // 8
        return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, TypeError, ValueError) as error:
        raise format_refusal(f"the tensor {tensor.name!r} has the unknown element type {tensor.data_type}") from error


_PACKED = {
    getattr(onnx.TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(onnx.TensorProto, name)
}
"""Element types smaller than a byte -> bits."""


def _has_data(tensor: Any) -> bool:
    """Whether the tensor carries any values inline."""
    return bool(
        tensor.raw_data
        or tensor.float_data
        or tensor.int32_data
        or tensor.int64_data
        or tensor.double_data
        or tensor.uint64_data
        or tensor.string_data
    )


# --- Facts -----------------------------------------------------------------------------------------------------------


def _training(model: Any) -> Iterator[str]:
    """Name the nodes that compute what they compute in training."""
    constants = {t.name: t for graph in _graphs(model) for t in getattr(graph, "initializer", ())}
    for node in _nodes(model):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants[node.output[0]] = attribute.t
    for node in _nodes(model):
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "BatchNormalization" and "training_mode" in attributes and attributes["training_mode"].i:
            yield f"{node.name}: BatchNormalization with training_mode"
        elif node.op_type == "Dropout" and _may_be_true(node.input[2:3], constants):
            yield f"{node.name}: Dropout in training mode"


def _may_be_true(names: Sequence[str], constants: Mapping[str, Any]) -> bool:
    """Whether a flag is given and not ruled out: one that is computed, fed, kept elsewhere or unreadable is not."""
    if not any(names):
        return False
    flag = constants.get(names[0])
    if flag is None or flag.data_type != onnx.TensorProto.BOOL or math.prod(flag.dims) != 1:
        return True
    return any(flag.raw_data) or any(flag.int32_data) or not (flag.raw_data or flag.int32_data)


def _tensor_facts(value: Any) -> TensorFacts:
    """Return name, dtype and shape of a declared input."""
    tensor = value.type.tensor_type
    shape: tuple[int | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    if tensor.elem_type not in onnx.TensorProto.DataType.values():
        raise format_refusal(f"the input {value.name!r} has the unknown element type {tensor.elem_type}")
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return TensorFacts(name=value.name, dtype={"float": "float32", "double": "float64"}.get(name, name), shape=shape)
