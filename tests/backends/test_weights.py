"""Which tensor of an ONNX file is not the model's: healthy exports of real networks, then one planted fault each."""

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from tests.backends import networks
from validator.backends.interface import BackendRefusal, DifferenceKind, WeightsFacts
from validator.backends.torch_program import from_exported, quiet_libraries
from validator.backends.weights import compare_files, compare_weights

IMAGE = (torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)),)
STEPS = (torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(2)),)


class Net(nn.Module):
    """A convolution with and one without a bias, each with a norm behind it; square weights of equal shape; an LSTM."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.plain = nn.Conv2d(8, 8, 3, bias=False)
        self.plain_norm = nn.BatchNorm2d(8, eps=1e-3)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.hidden = nn.Linear(6, 6)
        self.other = nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        x = self.plain_norm(self.plain(self.norm(self.conv(x)).relu()))
        x, _ = self.lstm(x.flatten(2).transpose(1, 2)[:, :4])
        return self.last(self.other(self.hidden(x)).sum(1))


class Computed(nn.Module):
    """Weights that an exporter computes ahead: normalised, merged, sliced, shared."""

    def __init__(self):
        super().__init__()
        self.normalised = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
        self.merged = nn.Linear(6, 6)
        self.low = nn.Parameter(torch.randn(6, 1))
        self.rank = nn.Parameter(torch.randn(1, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.merged.weight

    def forward(self, x):
        x = self.normalised(x)
        x = nn.functional.linear(x, self.merged.weight + self.low @ self.rank, self.merged.bias)
        return self.attention(self.tied(x), x, x, need_weights=False)[0]


def trained(module):
    """Move norms and biases away from the zeros and ones that they begin with, so that none equals another."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
            elif tensor.is_floating_point() and tensor.ndim == 1:
                tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return module.eval()


def export(module, example):
    """Export as the gate does: the program, and its ONNX model."""
    with quiet_libraries(), torch.no_grad():
        shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in example)
        program = torch.export.export(module, example, dynamic_shapes=shapes, strict=False)
        model = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
    return from_exported(program, torch.device("cpu")), model


@cache
def net():
    torch.manual_seed(0)
    return export(trained(Net()), IMAGE)


def weigh(program, model, folder) -> WeightsFacts:
    onnx.save(model, folder / "model.onnx")
    return compare_weights(program, folder / "model.onnx")


def edited(change: Callable[[dict[str, np.ndarray]], None]):
    """Return a copy of the network's ONNX file whose initialisers were changed in place."""
    model = onnx.ModelProto()
    model.CopyFrom(net()[1])
    arrays = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in model.graph.initializer}
    change(arrays)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return model


def stale(change: Callable[[nn.Module], None]):
    """Return the ONNX file of the same network in another state."""
    torch.manual_seed(0)
    module = trained(Net())
    with torch.no_grad():
        change(module)
    return export(module, IMAGE)[1]


HEALTHY = {
    "a norm in a convolution, and an LSTM": (Net, IMAGE),
    "computed weights": (Computed, STEPS),
    "resnet": (networks.resnet18, IMAGE),
    "mobilenet": (networks.mobilenet, IMAGE),
    "vision transformer": (networks.vit, IMAGE),
    "LSTM, GRU and attention": (networks.Sequence, STEPS),
}


@pytest.mark.parametrize(("maker", "example"), HEALTHY.values(), ids=HEALTHY.keys())
def test_every_initialiser_of_a_healthy_export_is_accounted_for(maker, example, tmp_path):
    torch.manual_seed(0)
    program, model = export(trained(maker()), example)
    facts = weigh(program, model, tmp_path)
    assert facts.differences == ()
    assert facts.unexplained_names == ()
    assert facts.missing_names == ()
    assert facts.accounted > 0


def test_the_offline_optimised_file_of_onnx_runtime_is_accounted_for(tmp_path):
    import onnxruntime

    program, model = net()
    onnx.save(model, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    facts = compare_weights(program, tmp_path / "optimised.onnx")
    assert (facts.differing, facts.unexplained, facts.missing) == (0, 0, 0)


# --- Planted faults -----------------------------------------------------------------------------------------------


def add(name, at, amount):
    def change(arrays):
        arrays[name][at] += amount

    return edited(change)


def rounded(name, dtype):
    def change(arrays):
        arrays[name][...] = torch.from_numpy(arrays[name]).to(dtype).float().numpy()

    return edited(change)


def exchanged(arrays):
    arrays["other.bias"][...], arrays["hidden.bias"][...] = arrays["hidden.bias"].copy(), arrays["other.bias"].copy()


def negated(arrays):
    arrays["other.bias"] *= -1


KINDS = DifferenceKind
FAULTS = {
    "one element": (lambda: add("last.weight", (1, 2), 0.01), {"last.weight"}, 1, KINDS.OTHER),
    "one element of a weight with a norm in it": (
        lambda: add("conv.weight", (1, 2, 0, 0), 0.01),
        {"conv.weight"},
        1,
        KINDS.OTHER,
    ),
    "float16": (lambda: rounded("last.weight", torch.float16), {"last.weight"}, 24, KINDS.FLOAT16),
    "bfloat16": (lambda: rounded("last.weight", torch.bfloat16), {"last.weight"}, 24, KINDS.BFLOAT16),
    "exchanged": (lambda: edited(exchanged), {"other.bias", "hidden.bias"}, 6, KINDS.EXCHANGED),
    "sign": (lambda: edited(negated), {"other.bias"}, 6, KINDS.SIGN),
    "stale mean of a convolution with a bias": (
        lambda: stale(lambda m: m.norm.running_mean.add_(0.5)),
        {"conv.bias"},
        8,
        KINDS.OTHER,
    ),
    "stale mean of a convolution without": (
        lambda: stale(lambda m: m.plain_norm.running_mean.add_(0.5)),
        None,
        8,
        KINDS.OTHER,
    ),
    "stale eps": (lambda: stale(lambda m: setattr(m.plain_norm, "eps", 1e-2)), {"plain.weight"}, None, KINDS.OTHER),
    "stale LSTM": (lambda: stale(lambda m: m.lstm.weight_hh_l0[3, 2].add_(0.01)), None, 1, KINDS.OTHER),
    "fine-tuned": (lambda: stale(lambda m: m.hidden.weight.add_(1e-3)), None, 36, KINDS.OTHER),
}


@pytest.mark.parametrize(("maker", "names", "unequal", "kind"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_named_with_its_extent_and_its_kind(maker, names, unequal, kind, tmp_path):
    facts = weigh(net()[0], maker(), tmp_path)
    assert facts.differing == len(facts.differences) > 0
    if names is not None:
        assert {d.name for d in facts.differences} >= names
    first = facts.differences[0]
    assert unequal in (None, first.unequal)
    assert first.kind == kind
    assert first.largest_absolute
    assert first.largest_relative


def test_a_transposed_square_weight_is_named(tmp_path):
    def transpose(model):
        for tensor in model.graph.initializer:
            if tensor.name == "attention.out_proj.weight":
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).T.copy(), tensor.name))

    program, model = export(trained(Computed()), STEPS)
    transpose(model)
    (difference,) = weigh(program, model, tmp_path).differences
    assert (difference.name, difference.kind) == ("attention.out_proj.weight", KINDS.TRANSPOSED)


def test_an_open_conversion_is_no_difference(tmp_path):
    def narrow(arrays):
        arrays["last.weight"] = arrays["last.weight"].astype(np.float16)

    facts = weigh(net()[0], edited(narrow), tmp_path)
    assert (facts.differing, facts.converted) == (0, 1)


def test_nan_equals_itself_when_the_bits_do_and_a_nan_on_one_side_is_a_difference(tmp_path):
    torch.manual_seed(0)
    module = trained(Net())
    with torch.no_grad():
        module.last.bias[1] = float("nan")
    program, model = export(module, IMAGE)
    assert weigh(program, model, tmp_path).differing == 0
    (difference,) = weigh(program, net()[1], tmp_path).differences
    assert (difference.name, difference.unequal, difference.largest_absolute) == ("last.bias", 1, None)


def test_another_models_file_is_accounted_for_nowhere(tmp_path):
    program, _ = export(trained(networks.Sequence()), STEPS)
    facts = weigh(program, net()[1], tmp_path)
    assert (facts.accounted, facts.differing) == (0, 0)
    assert facts.unexplained > 0
    assert facts.missing == facts.tensors


def test_weights_beside_the_model_are_read_and_those_outside_are_refused(tmp_path):
    program = net()[0]
    model = edited(lambda _: None)  # a copy: saving moves the data out of the object
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    facts = compare_weights(program, tmp_path / "model.onnx")
    assert (facts.differing, facts.unexplained, facts.missing) == (0, 0, 0)
    (tmp_path / "below").mkdir()
    text = (tmp_path / "model.onnx").read_bytes().replace(b"w.data", b"../w.d")
    (tmp_path / "below" / "model.onnx").write_bytes(text)
    with pytest.raises(BackendRefusal, match="no file beside the model"):
        compare_weights(program, tmp_path / "below" / "model.onnx")


def test_a_pickled_module_is_compared_without_a_graph(tmp_path):
    torch.manual_seed(0)
    module = trained(networks.small())
    torch.save(module, tmp_path / "model.pth")
    onnx.save(export(module, IMAGE)[1], tmp_path / "model.onnx")
    facts = compare_files(tmp_path / "model.pth", "pickle", tmp_path / "model.onnx")
    assert (facts.differing, facts.unexplained, facts.missing) == (0, 0, 0)
    assert facts.folded == 2


def test_names_are_cleaned_and_cut_and_lists_are_bounded(tmp_path):
    program, model = net()
    hostile = onnx.ModelProto()
    hostile.CopyFrom(model)
    for number in range(30):
        values = np.random.default_rng(number).normal(size=11).astype(np.float32)
        name = f"\x1b[31mx{number}" + "y" * 500
        hostile.graph.initializer.append(numpy_helper.from_array(values, name))
        hostile.graph.node.append(onnx.helper.make_node("Identity", [name], [f"taken-{number}"]))
    facts = weigh(program, hostile, tmp_path)
    assert facts.unexplained == 30
    assert len(facts.unexplained_names) == 20
    assert all("\x1b" not in name and len(name) <= 200 for name in facts.unexplained_names)


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(4, 8, 2), (8, 8, 2), (8, 8, 4), (8, 8, 8), (4, 8, 1)])
def test_a_norm_folded_into_a_transposed_convolution_in_groups_is_the_models(inputs, outputs, groups, tmp_path):
    torch.manual_seed(groups)
    module = nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 3, groups=groups), nn.BatchNorm2d(outputs))
    facts = weigh(*export(trained(module), (torch.randn(2, inputs, 5, 5),)), tmp_path)
    assert facts.differing == 0, facts.differences


def test_the_right_weight_that_lies_unused_beside_a_wrong_one_proves_nothing(tmp_path):
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).eval()
    program, model = export(module, (torch.randn(2, 6),))
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            if name == "0.weight":
                node.input[at] = "decoy"
    wrong = (module[0].weight + 0.01 * torch.randn(5, 6)).detach().numpy()
    model.graph.initializer.append(numpy_helper.from_array(wrong, "decoy"))
    facts = weigh(program, model, tmp_path)
    assert [difference.stands_for for difference in facts.differences] == ["0.weight"]
