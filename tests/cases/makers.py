"""How the ONNX file of a case comes about: by one of the two exporters, from another model, or altered afterwards."""

import copy
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

from tests.cases.case import Batch, OnnxMaker, free_shapes, input_names

Edit = Callable[[onnx.ModelProto], None]


def modern(*, static: bool = False) -> OnnxMaker:
    """Export through torch.export, with the batch left open unless it is static."""

    def make(model: nn.Module, example: Batch) -> onnx.ModelProto:
        shapes = None if static else free_shapes(model, example)
        program = torch.onnx.export(model.eval(), example, dynamo=True, dynamic_shapes=shapes, verbose=False)
        return program.model_proto

    return make


def legacy(*, training: bool = False, static: bool = False) -> OnnxMaker:
    """Export by tracing, as people did for years and many still do."""

    def make(model: nn.Module, example: Batch) -> onnx.ModelProto:
        names = list(input_names(len(example)))
        buffer = io.BytesIO()
        mode = torch.onnx.TrainingMode
        torch.onnx.export(
            copy.deepcopy(model).train(training),
            example,
            buffer,
            dynamo=False,
            input_names=names,
            dynamic_axes=None if static else {name: {0: "batch"} for name in names},
            opset_version=17,
            training=mode.TRAINING if training else mode.EVAL,
            do_constant_folding=not training,
        )
        return onnx.load_from_string(buffer.getvalue())

    return make


def of_another(change: Callable[[Any], object], make: OnnxMaker | None = None) -> OnnxMaker:
    """Export a copy of the model that was changed in place."""

    def made(model: nn.Module, example: Batch) -> onnx.ModelProto:
        other = copy.deepcopy(model)
        with torch.no_grad():
            change(other)
        return (make or modern())(other, example)

    return made


def edited(edit: Edit, make: OnnxMaker | None = None) -> OnnxMaker:
    """Export the model, then alter the file."""

    def made(model: nn.Module, example: Batch) -> onnx.ModelProto:
        proto = (make or modern())(model, example)
        edit(proto)
        return proto

    return made


def set_attribute(operator: str, **values: object) -> Edit:
    """Give every operator of a type other attributes; there must be one."""

    def edit(proto: onnx.ModelProto) -> None:
        nodes = [node for node in proto.graph.node if node.op_type == operator]
        assert nodes, f"no {operator} in the file"
        for node in nodes:
            kept = [attribute for attribute in node.attribute if attribute.name not in values]
            del node.attribute[:]
            node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in values.items())])

    return edit


def swap_lstm_gates(proto: onnx.ModelProto) -> None:
    """Exchange the forget and the cell gate: the third and fourth quarter of W and R."""
    node = next(node for node in proto.graph.node if node.op_type == "LSTM")
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in node.input[1:3]:
        i, o, f, c = np.split(numpy_helper.to_array(tensors[name]), 4, axis=1)
        tensors[name].CopyFrom(numpy_helper.from_array(np.concatenate([i, o, c, f], axis=1), name))


def in_float16(model: nn.Module, example: Batch) -> onnx.ModelProto:
    """Convert the file to half precision inside, as deployment guides do."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(modern()(model, example), keep_io_types=True)


def in_int8(model: nn.Module, example: Batch) -> onnx.ModelProto:
    """Quantise the weights, the activations on the fly."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "source.onnx", Path(name) / "target.onnx"
        onnx.save(legacy()(model, example), source)
        quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        return onnx.load(target)


def by_hand_with_unit_factors(_model: nn.Module, _example: Batch) -> onnx.ModelProto:
    """Write x * (1 / 1) + 0 in valid ONNX that the checker accepts."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 8]) for name in ("x0", "y"))
    values = {"one": 1.0, "uno": 1.0, "zero": 0.0}
    constants = [helper.make_tensor(name, onnx.TensorProto.FLOAT, [1], [value]) for name, value in values.items()]
    nodes = [
        helper.make_node("Identity", ["x0"], ["mid"]),
        helper.make_node("Div", ["one", "uno"], ["ratio"]),
        helper.make_node("Mul", ["mid", "ratio"], ["scaled"]),
        helper.make_node("Add", ["scaled", "zero"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "graph", [x], [y], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(proto)
    return proto
