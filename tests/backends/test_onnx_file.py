import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.onnx_file import vet_onnx

SIZE = 64


def build(*, nodes=None, domain="", functions=(), weight=None):
    weight = numpy_helper.from_array(np.ones(SIZE, np.float32), "w") if weight is None else weight
    nodes = nodes or [helper.make_node("Add", ["x", "w"], ["y"], name="add", domain=domain)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", SIZE])],
        [weight],
    )
    imports = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def write(model, folder):
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def external(tmp_path):
    """A sound file with its weights beside it."""
    path = tmp_path / "model.onnx"
    onnx.save(build(), path, save_as_external_data=True, location="w.data", size_threshold=0)
    return path


def edit(path, **fields):
    """Rewrite the external data fields of the one weight; None removes one."""
    model = onnx.load(path, load_external_data=False)
    entries = {entry.key: entry.value for entry in model.graph.initializer[0].external_data} | fields
    del model.graph.initializer[0].external_data[:]
    for key, value in entries.items():
        if value is not None:
            model.graph.initializer[0].external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())


def refuse(path, match):
    with pytest.raises(BackendRefusal, match=match) as refusal:
        vet_onnx(path)
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.FORMAT, "vet")


def test_a_sound_file_gives_its_facts(tmp_path):
    facts = vet_onnx(write(build(), tmp_path))
    assert (facts.opset, facts.nodes, facts.training, facts.outputs) == (20, 1, (), ("y",))
    assert [(i.name, i.dtype, i.shape) for i in facts.inputs] == [("x", "float32", (None, SIZE))]


def test_sound_external_data_is_let_through(external):
    assert vet_onnx(external).nodes == 1


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "../w.data", "a/../../w.data", "..\\w.data", "", ".", "sub"], ids=repr
)
def test_external_data_outside_the_folder_is_refused(location, external):
    (external.parent / "sub").mkdir()
    edit(external, location=location)
    refuse(external, "reads")


def elsewhere(tensor):
    """Let a tensor say that its data lie outside of the folder."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    return tensor


@pytest.mark.parametrize("place", ["sparse constant", "default of a function"])
def test_external_data_are_looked_for_wherever_a_tensor_may_lie(place, tmp_path):
    tensor = elsewhere(numpy_helper.from_array(np.ones(SIZE, np.float32), "hidden"))
    if place == "sparse constant":
        positions = numpy_helper.from_array(np.arange(SIZE), "positions")
        node = helper.make_node("Constant", [], ["y"])
        node.attribute.append(
            helper.make_attribute("sparse_value", helper.make_sparse_tensor(tensor, positions, [SIZE]))
        )
        model = build(nodes=[node])
    else:
        inner = helper.make_node("Constant", [], ["b"])
        inner.attribute.add(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR)
        function = helper.make_function(
            "own", "f", [], ["b"], [inner], [helper.make_opsetid("", 20)],
            attribute_protos=[helper.make_attribute("value", tensor)],
        )  # fmt: skip
        model = build(nodes=[helper.make_node("f", [], ["y"], domain="own")], domain="own", functions=[function])
    refuse(write(model, tmp_path), "'hidden' reads")


def test_external_data_through_a_link_is_refused(external):
    (external.parent / "link").symlink_to(external.parent / "w.data")
    edit(external, location="link")
    refuse(external, "link")


def test_external_data_with_a_second_link_is_refused(external):
    os.link(external.parent / "w.data", external.parent / "twin")
    refuse(external, "one link")


def test_missing_external_data_is_a_model_without_weights(external):
    (external.parent / "w.data").unlink()
    refuse(external, "registered without weights")


def test_a_weight_without_data_is_a_model_without_weights(tmp_path):
    stripped = TensorProto(name="w", dims=[SIZE], data_type=TensorProto.FLOAT)
    refuse(write(build(weight=stripped), tmp_path), "registered without weights")


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": 4 * SIZE},
        {"offset": -4},
        {"length": 4 * SIZE + 1},
        {"length": 4},
        {"offset": "four"},
        {"surprise": "1"},
    ],
    ids=repr,
)
def test_external_data_that_does_not_fit_is_refused(fields, external):
    edit(external, **fields)
    refuse(external, "tensor 'w'")


def test_short_external_data_is_refused(external):
    with (external.parent / "w.data").open("r+b") as stream:
        stream.truncate(4 * SIZE - 1)
    refuse(external, "needs 256 bytes")


def test_a_file_that_onnx_runtime_would_read_as_another_format_is_refused(tmp_path):
    refuse(write(build(), tmp_path).rename(tmp_path / "model.ort"), "own format")


def test_a_custom_operator_is_refused(tmp_path):
    refuse(write(build(domain="evil"), tmp_path), "evil::Add")


def test_a_custom_operator_in_a_subgraph_is_refused(tmp_path):
    inner = helper.make_graph(
        [helper.make_node("Run", [], ["z"], domain="evil")],
        "inner",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    refuse(write(build(nodes=[branch]), tmp_path), "evil::Run")


def test_a_function_of_the_file_is_no_custom_operator(tmp_path):
    function = helper.make_function(
        "mine", "Add", ["a", "b"], ["c"], [helper.make_node("Mul", ["a", "b"], ["c"])], [helper.make_opsetid("", 20)]
    )
    assert vet_onnx(write(build(domain="mine", functions=[function]), tmp_path)).nodes == 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_refused(share, tmp_path):
    path = write(build(), tmp_path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refuse(path, "model.onnx")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not onnx", b"\x00" * 100, b"hello"], ids=repr)
def test_something_else_is_refused(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    refuse(tmp_path / "model.onnx", "model.onnx")


@pytest.mark.parametrize(("value", "count"), [(True, 1), (False, 0), (None, 1)])
def test_dropout_in_training_mode_is_found(value, count, tmp_path):
    """A flag that nothing in the file settles counts."""
    nodes = [helper.make_node("Dropout", ["x", "", "mode"], ["y"], name="drop")]
    if value is not None:
        flag = numpy_helper.from_array(np.array(value), "flag")
        nodes.insert(0, helper.make_node("Constant", [], ["mode"], value=flag))
    assert len(vet_onnx(write(build(nodes=nodes), tmp_path)).training) == count


def test_batch_norm_in_training_mode_is_found(tmp_path):
    node = helper.make_node("BatchNormalization", ["x", "w", "w", "w", "w"], ["y"], name="bn", training_mode=1)
    assert vet_onnx(write(build(nodes=[node]), tmp_path)).training == ("bn: BatchNormalization with training_mode",)
