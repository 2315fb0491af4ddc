import copy
import warnings

import pytest
import torch

from tests.backends import networks
from validator.backends.catalog import CATALOG
from validator.backends.double import working_dtype
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.torch_eager import open_session
from validator.backends.torch_program import load_program

REFERENCE = CATALOG["reference"]
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))


def relative_error(found, wanted):
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def reference_of(path, model_file, tensor, **how):
    session = open_session(REFERENCE, model_file(path, "x", **how))
    outputs = session.run({"x": tensor})
    return outputs, session.environment().notes["fp64"]


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (networks.resnet18, IMAGE),
        (networks.mobilenet, IMAGE),
        (networks.vit, IMAGE),
        (networks.Sequence, torch.randn(2, 5, 4)),
    ],
)
def test_plain_networks_equal_their_own_double(make, example, save_program, model_file):
    module = make().eval()
    outputs, _ = reference_of(save_program(module, example), model_file, example)
    with torch.no_grad():
        wanted = copy.deepcopy(module).double()(example.double())
    assert outputs["output"].dtype is torch.float64
    assert relative_error(outputs["output"], wanted) < 1e-12


@pytest.mark.parametrize("stored_as", ["torch.export", "pickle"])
def test_written_down_float32_becomes_double(stored_as, save_program, model_file, tmp_path):
    """The twin says float64 where the model says float32: `.double()` alone gives fp32, or raises."""
    module, twin = networks.Casts(), networks.Casts(torch.float64).double()
    twin.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    twin.lifted, twin.hidden = module.lifted.double(), module.hidden.double()
    path = save_program(module, VECTOR)
    if stored_as == "pickle":
        path = tmp_path / "model.pth"
        torch.save(module, path)
    outputs, note = reference_of(path, model_file, VECTOR, model_format=stored_as)
    with torch.no_grad():
        wanted = twin(VECTOR.double())
    if stored_as == "torch.export":
        # The literal torch.tensor([0.1]) was stored as float32 at export: its digits are the model's.
        wanted_error = 1e-7
        assert "assertions erased" in note
        assert "casts widened" in note
    else:
        wanted_error = 1e-12
    assert relative_error(outputs["output"], wanted) < wanted_error


@pytest.mark.parametrize("stored_as", ["torch.export", "pickle"])
def test_factories_without_a_dtype_become_double(stored_as, save_program, model_file, tmp_path):
    path = save_program(networks.Factories(), VECTOR)
    if stored_as == "pickle":
        path = tmp_path / "model.pth"
        torch.save(networks.Factories(), path)
    outputs, _ = reference_of(path, model_file, VECTOR, model_format=stored_as)
    torch.set_default_dtype(torch.float64)
    try:
        wanted = networks.Factories()(VECTOR.double())
    finally:
        torch.set_default_dtype(torch.float32)
    for name, tensor in zip(("output.0", "output.1"), wanted, strict=True):
        assert relative_error(outputs[name], tensor) < 1e-12, name


def test_the_plain_double_would_have_been_wrong():
    """Why the rewrite exists: casting alone leaves fp32 in the middle."""
    assert networks.Factories().double()(VECTOR.double())[0].dtype is torch.float32
    assert networks.Casts().double().hidden.dtype is torch.float64
    assert networks.Casts().double().lifted.dtype is torch.float32


def test_a_cast_to_half_stays_part_of_the_function(save_program, model_file):
    outputs, _ = reference_of(save_program(networks.HalfInside(), VECTOR), model_file, VECTOR)
    assert torch.equal(outputs["output"], VECTOR.half().double() * 2)


def test_an_output_in_half_is_no_reference(save_program, model_file):
    with pytest.raises(BackendRefusal, match="float16") as refusal:
        reference_of(save_program(networks.HalfOut(), VECTOR), model_file, VECTOR)
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.MODEL, "fp64")


def test_an_autocast_region_keeps_its_bfloat16(save_program, model_file):
    """Autocast ignores fp64 tensors, so `module.double()` computes another function."""
    module = networks.Autocast().eval()
    outputs, note = reference_of(save_program(module, VECTOR), model_file, VECTOR)
    with torch.no_grad():
        eager = module(VECTOR).double()
        ignored = copy.deepcopy(module).double()(VECTOR.double())
    assert "autocast" in note
    assert relative_error(outputs["output"], eager) < 1e-6
    assert relative_error(ignored, eager) > 1e-4


def test_complex_buffers_become_complex128(save_program, model_file):
    module = networks.Complex()
    outputs, _ = reference_of(save_program(module, VECTOR), model_file, VECTOR)
    wanted = torch.view_as_real(
        torch.view_as_complex(VECTOR.double().reshape(-1, 4, 2)) * module.turn.to(torch.complex128)
    )
    assert relative_error(outputs["output"], wanted) < 1e-15


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_branches_of_a_condition_are_rewritten(sign, save_program, model_file):
    tensor = VECTOR.abs() * sign
    outputs, _ = reference_of(save_program(networks.Branch(), tensor), model_file, tensor)
    assert relative_error(outputs["output"], tensor.double() * (0.1 if sign > 0 else 0.3)) < 1e-15


def test_reinterpreted_bits_have_no_reference(save_program, model_file):
    with pytest.raises(BackendRefusal, match="bits") as refusal:
        reference_of(save_program(networks.Bits(), VECTOR), model_file, VECTOR)
    assert refusal.value.stage == "fp64"


def test_tied_weights_stay_tied(tmp_path, model_file):
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    module[1].weight = module[0].weight
    torch.save(module, tmp_path / "model.pth")
    session = open_session(REFERENCE, model_file(tmp_path / "model.pth", "x", model_format="pickle"))
    assert session._program.module[0].weight is session._program.module[1].weight


def test_a_pickled_lstm_equals_its_own_double(tmp_path, model_file):
    module, example = networks.Sequence().eval(), torch.randn(2, 5, 4)
    torch.save(module, tmp_path / "model.pth")
    outputs, _ = reference_of(tmp_path / "model.pth", model_file, example, model_format="pickle")
    with torch.no_grad():
        wanted = copy.deepcopy(module).double()(example.double())
    assert relative_error(outputs["output"], wanted) < 1e-12


def store(module, stored_as, save_program, folder):
    """Save a module in one of the three formats."""
    if stored_as == "torch.export":
        return save_program(module, VECTOR)
    path = folder / "model.pt"
    if stored_as == "pickle":
        torch.save(module, path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about TorchScript being old
            torch.jit.save(torch.jit.trace(module, (VECTOR,)), path)
    return path


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored_as", ["torch.export", "pickle", "torchscript"])
def test_half_precision_weights_are_computed_with_in_double(stored_as, half, save_program, model_file, tmp_path):
    """Casts to the dtype of the weights are storage: kept, the reference would be as coarse as the model."""
    module = networks.Mixed(half).eval()
    twin = networks.Mixed(half, torch.float64)
    twin.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    path = store(module, stored_as, save_program, tmp_path)
    outputs, note = reference_of(path, model_file, VECTOR, model_format=stored_as)
    with torch.no_grad():
        wanted = twin(VECTOR.double())
    # The literal 0.1 in torch.full is a number of Python's and is never rounded to half.
    assert relative_error(outputs["output"], wanted) < 1e-12
    assert f"the weights are {str(half).removeprefix('torch.')}" in note


def test_a_script_that_says_float32_is_widened(save_program, model_file, tmp_path):
    module = networks.Factories()
    outputs, _ = reference_of(
        store(module, "torchscript", save_program, tmp_path), model_file, VECTOR, model_format="torchscript"
    )
    assert outputs["output.1"].dtype is torch.float64
    casts = networks.Mixed(torch.float32).eval()
    twin = copy.deepcopy(casts).double()
    twin.half_dtype = twin.float_dtype = torch.float64
    outputs, note = reference_of(
        store(casts, "torchscript", save_program, tmp_path), model_file, VECTOR, model_format="torchscript"
    )
    with torch.no_grad():
        assert relative_error(outputs["output"], twin(VECTOR.double())) < 1e-12
    assert "casts widened" in note


def with_dtypes(*dtypes):
    """A program of a few matrices and many vectors in float32."""
    layers = [torch.nn.Linear(4, 4).to(dtype) for dtype in dtypes]
    return torch.nn.Sequential(*layers, *(torch.nn.LayerNorm(4) for _ in range(5)))


@pytest.mark.parametrize(
    ("module", "dtype"),
    [
        (with_dtypes(torch.bfloat16, torch.bfloat16), torch.bfloat16),
        (with_dtypes(torch.bfloat16, torch.float32), torch.float32),
        (with_dtypes(torch.float32, torch.float32, torch.float16), torch.float32),
        (torch.nn.Sequential(torch.nn.Embedding(9_000, 4).half(), *with_dtypes(torch.float32, torch.float32)),
         torch.float32),
        (torch.nn.LayerNorm(4).half(), torch.float16),
        (networks.Tuple(), None),
    ],
)  # fmt: skip
def test_the_dtype_of_most_weights_is_the_working_one(module, dtype, tmp_path):
    torch.save(module, tmp_path / "model.pth")
    assert working_dtype(load_program(tmp_path / "model.pth", "pickle", torch.device("cpu"))) is dtype


class Flattened(torch.nn.Module):
    """Its `view` fits the layout that the example had, as those after attention fit the CPU's."""

    def forward(self, x):
        return (x * 2).view(x.shape[0], -1)


def test_a_layout_that_only_the_exporting_device_has_does_not_stop_the_reference(save_program, model_file):
    path = save_program(Flattened(), IMAGE)
    other = IMAGE.contiguous(memory_format=torch.channels_last)
    outputs, note = reference_of(path, model_file, other)
    assert outputs["output"].equal((IMAGE.double() * 2).reshape(2, -1))
    assert "1 views free of a layout" in note
    baseline = open_session(CATALOG["eager-cpu"], model_file(path, "x"))
    with pytest.raises(BackendRefusal, match="exported for the memory layout of another device"):
        baseline.run({"x": other})
