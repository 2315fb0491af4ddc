"""From a PyTorch model to an ONNX file: the same program gives the same bytes.

An export that fails is a fact about the model and not an error: the exporter's own words are what people need.
"""

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from validator.backends.interface import BackendRefusal, ExportFacts
from validator.backends.onnx_file import vet_onnx
from validator.backends.refusals import MESSAGE_LIMIT, clean_line
from validator.backends.torch_program import TorchProgram, quiet_libraries

ONE_FILE_LIMIT_BYTES = 1 << 30
"""Weights beyond this go to a file beside the model: a single protobuf message ends at 2 GiB."""

_KEPT_METADATA = frozenset({"namespace", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes"})
"""What ties ONNX nodes to modules. Stack traces hold absolute paths: another machine, other bytes."""


def export_onnx(
    program: TorchProgram, example: Sequence[torch.Tensor], destination: Path, *, static: bool
) -> ExportFacts:
    """Export a freshly loaded program, which is used up by it.

    Args:
        program: loaded for this call alone: the exporter changes it in place.
        example: its inputs for a batch, in the program's order; only used for pickled modules.
        destination: the file to write; its folder holds nothing else.
        static: whether the batch size of the example is the only one.
    """
    try:
        with quiet_libraries(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            exported = _onnx_program(program, example, is_static=static)
            _strip_metadata(exported.model)
            size_bytes = sum(value.const_value.nbytes for value in exported.model.graph.initializers.values())
            destination.parent.mkdir(parents=True, exist_ok=True)
            exported.save(destination, external_data=size_bytes > ONE_FILE_LIMIT_BYTES)
        facts = vet_onnx(destination)
    except BackendRefusal as refusal:
        return ExportFacts(path=None, message=f"the exporter wrote a file that cannot be used: {refusal.message}")
    # The exporter runs the model's code and a decomposition of every operator: anything may come out of it.
    except Exception as error:  # noqa: BLE001
        return ExportFacts(path=None, message=exporter_reason(error))
    return ExportFacts(path=str(destination), message=f"opset {facts.opset}, {facts.nodes} nodes, {facts.producer}")


def exporter_reason(error: BaseException) -> str:
    """Return the first line of the exporter's message and that of the error at the bottom of its chain."""
    root = error
    seen = {id(error)}
    while (cause := root.__cause__ or root.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        root = cause
    first = clean_line(str(error)).partition(" This is step ")[0]
    if root is error:
        return f"{type(error).__name__}: {first}"[:MESSAGE_LIMIT]
    return f"{first} ({type(root).__name__}: {clean_line(str(root))})"[:MESSAGE_LIMIT]


def _onnx_program(program: TorchProgram, example: Sequence[torch.Tensor], *, is_static: bool) -> Any:
    """Run the exporter on the stored program, or on the module for formats that store none."""
    if program.exported is not None:
        return torch.onnx.export(program.exported, dynamo=True, verbose=False)
    if isinstance(program.module, torch.jit.ScriptModule):
        raise TypeError("torch.onnx.export(dynamo=True) takes no TorchScript: register the module, or an ONNX file")
    shapes = None if is_static else tuple({0: torch.export.Dim.DYNAMIC} for _ in example)
    exported = torch.export.export(program.module, tuple(example), dynamic_shapes=shapes, strict=False)
    return torch.onnx.export(exported, dynamo=True, verbose=False)


def _strip_metadata(model: Any) -> None:
    """Remove from graph, functions, nodes and values whatever differs between machines and runs."""
    model.metadata_props.clear()
    model.doc_string = None
    for graph in _graphs(model):
        graph.doc_string = None
        graph.metadata_props.clear()
        for value in [*graph.inputs, *getattr(graph, "initializers", {}).values()]:
            _strip(value)
        for node in graph:
            _strip(node)
            for value in node.outputs:
                _strip(value)


def _strip(item: Any) -> None:
    item.doc_string = None
    for key in [key for key in item.metadata_props if key not in _KEPT_METADATA]:
        del item.metadata_props[key]


def _graphs(model: Any) -> Iterator[Any]:
    """Yield the graph, its subgraphs and the functions."""
    yield from model.graphs()
    yield from model.functions.values()
