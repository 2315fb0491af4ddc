import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.backends import networks
from validator.backends import onnx_runtime
from validator.backends.catalog import CATALOG, Backend, Runtime, expected_settings
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.onnx_runtime import open_session
from validator.backends.probe import export, probe
from validator.backends.torch_eager import open_session as open_torch

CPU, GPU = CATALOG["onnxruntime-cpu"], CATALOG["onnxruntime-gpu"]
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def exported(save_program, fake_golden, tmp_path):
    """Save a module, probe it and export it: (program, ONNX file, facts)."""

    def run(module, inputs):
        path = save_program(module, *inputs.values())
        golden, destination = fake_golden(**inputs), tmp_path / "onnx" / "model.onnx"
        facts = probe(path, "torch.export", golden)
        destination.parent.mkdir()
        made, _ = export(path, "torch.export", golden, static_batch=facts.static_batch, destination=destination)
        assert made.path is not None, made.message
        return path, destination, facts

    return run


def graph_file(folder, nodes, inputs, outputs, initializers=()):
    def values(pairs):
        return [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in pairs.items()]

    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = folder / "made.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("make", [networks.resnet18, networks.mobilenet, networks.vit])
def test_an_export_agrees_with_eager_and_reads_back_its_row(make, exported, model_file):
    program, path, facts = exported(make(), {"x": IMAGE})
    eager = open_torch(CATALOG["eager-cpu"], model_file(program, "x")).run({"x": IMAGE})
    session = open_session(CPU, model_file(path, "x", model_format="onnx", outputs=facts.outputs))
    found = session.run({"x": IMAGE})
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-4)
    environment = session.environment()
    assert environment.settings == expected_settings(CPU)
    assert environment.notes["placement"].endswith("nodes on CPUExecutionProvider")
    assert environment.fingerprint["onnxruntime"] == onnx_runtime.onnxruntime.__version__


def test_outputs_of_other_names_bind_by_position(exported, model_file):
    inputs = {"image": torch.randn(2, 3, 8, 8), "features": torch.randn(2, 5)}
    program, path, facts = exported(networks.TwoInThreeOut(), inputs)
    eager = open_torch(CATALOG["eager-cpu"], model_file(program, *inputs)).run(inputs)
    session = open_session(CPU, model_file(path, *inputs, model_format="onnx", outputs=facts.outputs))
    found = session.run(inputs)
    assert list(found) == list(eager)
    assert found["nested.2"].dtype is torch.int64
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-5)
    assert session.environment().notes["outputs"] == "by position"


def test_an_input_that_is_an_output_is_renamed_by_the_exporter_and_still_bound(exported, model_file):
    _, path, facts = exported(networks.Tuple(), {"x": VECTOR})
    session = open_session(CPU, model_file(path, "x", model_format="onnx", outputs=facts.outputs))
    found = session.run({"x": VECTOR})
    assert torch.equal(found["output.0"], found["output.1"])
    assert torch.equal(found["output.2"], VECTOR)


def test_outputs_of_the_same_names_bind_by_name(tmp_path, model_file):
    nodes = [helper.make_node("Neg", ["x"], ["b"]), helper.make_node("Abs", ["x"], ["a"])]
    shape = (TensorProto.FLOAT, ["n", 8])
    path = graph_file(tmp_path, nodes, {"x": shape}, {"b": shape, "a": shape})
    session = open_session(CPU, model_file(path, "x", model_format="onnx", outputs=("a", "b")))
    found = session.run({"x": VECTOR})
    assert torch.equal(found["a"], VECTOR.abs())
    assert torch.equal(found["b"], -VECTOR)
    assert session.environment().notes["outputs"] == "by name"


def test_a_missing_output_is_refused_with_both_lists(tmp_path, model_file):
    shape = (TensorProto.FLOAT, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": shape}, {"y": shape})
    with pytest.raises(BackendRefusal, match=r"1 outputs \(y\), the dataset 2 \(a, b\)") as refusal:
        open_session(CPU, model_file(path, "x", model_format="onnx", outputs=("a", "b")))
    assert refusal.value.kind is RefusalKind.MODEL


def test_unused_inputs_may_be_missing_from_the_file(tmp_path, model_file):
    shape = (TensorProto.FLOAT, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": shape}, {"y": shape})
    session = open_session(CPU, model_file(path, "unused", "x", model_format="onnx"))
    assert torch.equal(session.run({"x": VECTOR, "unused": VECTOR})["y"], -VECTOR)
    assert session.environment().notes["inputs"] == "by name, unused: unused"


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        (torch.float16, TensorProto.FLOAT16),
        (torch.bfloat16, TensorProto.BFLOAT16),
        (torch.float64, TensorProto.DOUBLE),
        (torch.int64, TensorProto.INT64),
        (torch.uint8, TensorProto.UINT8),
        (torch.bool, TensorProto.BOOL),
    ],
)
def test_every_dtype_travels_both_ways(dtype, element, tmp_path, model_file):
    tensor = (torch.arange(16).reshape(2, 8) % 3).to(dtype)
    shape = (element, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], {"x": shape}, {"y": shape})
    found = open_session(CPU, model_file(path, "x", model_format="onnx")).run({"x": tensor})["y"]
    assert found.dtype is dtype
    assert torch.equal(found, tensor)


def test_outputs_own_their_memory(tmp_path, model_file):
    shape = (TensorProto.FLOAT, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": shape}, {"y": shape})
    session = open_session(CPU, model_file(path, "x", model_format="onnx"))
    first = session.run({"x": VECTOR})["y"]
    kept = first.clone()
    for _ in range(3):
        session.run({"x": torch.zeros_like(VECTOR)})
    assert torch.equal(first, kept)


@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
def test_the_optimisation_level_is_read_back(level, exported, model_file):
    row = Backend(name="row", runtime=Runtime.ONNXRUNTIME, graph_optimization=level, deterministic=True)
    _, path, _ = exported(networks.small(), {"x": IMAGE})
    session = open_session(row, model_file(path, "x", model_format="onnx"))
    settings = session.environment().settings
    assert settings["graph_optimization"] == level
    assert settings["deterministic"] is True
    assert settings["nodes_elsewhere"] == 0


def test_a_wrong_dtype_is_the_models_fault(tmp_path, model_file):
    shape = (TensorProto.FLOAT, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": shape}, {"y": shape})
    session = open_session(CPU, model_file(path, "x", model_format="onnx"))
    with pytest.raises(BackendRefusal) as refusal:
        session.run({"x": VECTOR.double()})
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.MODEL, "run")


def test_an_operator_without_a_kernel_is_the_models_fault(tmp_path, model_file):
    shape = (TensorProto.BFLOAT16, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Mul", ["x", "x"], ["y"])], {"x": shape}, {"y": shape})
    with pytest.raises(BackendRefusal, match="NOT_IMPLEMENTED") as refusal:
        open_session(CPU, model_file(path, "x", model_format="onnx"))
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.MODEL, "load")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_provider_that_does_not_start_is_told_with_its_cause(tmp_path, model_file, monkeypatch):
    """ONNX Runtime falls back to the CPU and gives the reason on standard error only."""
    monkeypatch.setattr(onnx_runtime, "require_device", lambda row: None)
    shape = (TensorProto.FLOAT, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": shape}, {"y": shape})
    with pytest.raises(BackendRefusal, match="CUDAExecutionProvider") as refusal:
        open_session(GPU, model_file(path, "x", model_format="onnx"))
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.UNAVAILABLE, "device")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_device_is_unavailable(tmp_path, model_file):
    shape = (TensorProto.FLOAT, ["n", 8])
    path = graph_file(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": shape}, {"y": shape})
    with pytest.raises(BackendRefusal, match="cuda") as refusal:
        open_session(GPU, model_file(path, "x", model_format="onnx"))
    assert refusal.value.kind is RefusalKind.UNAVAILABLE


# --- Placement: a session that says what ran where ----------------------------------------------------------------


class Node:
    def __init__(self, name, op_type, domain=""):
        self.name, self.op_type, self.domain = name, op_type, domain


class Part:
    def __init__(self, ep_name, *nodes):
        self.ep_name, self._nodes = ep_name, nodes

    def get_nodes(self):
        return list(self._nodes)


class Placed:
    def __init__(self, *parts):
        self._parts = parts

    def get_provider_graph_assignment_info(self):
        return self._parts


@pytest.fixture
def shapes_file(tmp_path):
    """Shape -> Gather on int64, and a Gather of floats, which is no shape arithmetic."""
    index = helper.make_tensor("i", TensorProto.INT64, [], [0])
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "i"], ["n"], name="pick"),
        helper.make_node("Gather", ["x", "i"], ["row"], name="row"),
        helper.make_node("Neg", ["row"], ["y"], name="neg"),
    ]
    return graph_file(
        tmp_path,
        nodes,
        {"x": (TensorProto.FLOAT, ["n", 8])},
        {"y": (TensorProto.FLOAT, [8]), "n": (TensorProto.INT64, [])},
        [index],
    )


CUDA_NODE = Part("CUDAExecutionProvider", Node("neg", "Neg"))


@pytest.mark.parametrize(
    ("stray", "elsewhere"),
    [
        (Part("CPUExecutionProvider", Node("shape", "Shape"), Node("pick", "Gather")), 0),
        (Part("CPUExecutionProvider", Node("row", "Gather")), 1),
        (Part("CPUExecutionProvider", Node("neg", "Neg")), 1),
        (Part("CPUExecutionProvider", Node("fused_by_someone", "Gather")), 1),
        (Part("CPUExecutionProvider", Node("pick", "FusedGather", "com.microsoft")), 1),
        (Part("TensorrtExecutionProvider", Node("pick", "Gather")), 1),
    ],
)
def test_only_shape_arithmetic_may_run_on_the_cpu(stray, elsewhere, shapes_file):
    notes, found = onnx_runtime.read_placement(GPU, Placed(CUDA_NODE, stray), shapes_file)
    assert found == elsewhere
    assert ("shape arithmetic on the CPU" in notes) is (elsewhere == 0)
    assert ("nodes elsewhere" in notes) is (elsewhere > 0)


def test_placement_that_was_not_recorded_is_no_placement(shapes_file):
    assert onnx_runtime.read_placement(GPU, object(), shapes_file)[1] == -1
    assert onnx_runtime.read_placement(GPU, Placed(), shapes_file)[1] == -1
    notes, _ = onnx_runtime.read_placement(GPU, object(), shapes_file)
    assert notes["placement"].startswith("not recorded")


def test_the_file_is_vetted_before_it_is_loaded(tmp_path, model_file):
    (tmp_path / "model.onnx").write_bytes(onnx.ModelProto().SerializeToString())
    with pytest.raises(BackendRefusal) as refusal:
        open_session(CPU, model_file(tmp_path / "model.onnx", "x", model_format="onnx"))
    assert refusal.value.kind is RefusalKind.FORMAT
