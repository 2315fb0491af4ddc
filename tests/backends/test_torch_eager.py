import random

import numpy as np
import pytest
import torch

from tests.backends import networks
from validator.backends.catalog import CATALOG, SEED, Backend, Runtime, expected_settings
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.torch_eager import open_session

CPU, REFERENCE = CATALOG["eager-cpu"], CATALOG["reference"]
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("row", [CPU, REFERENCE], ids=lambda row: row.name)
@pytest.mark.parametrize("make", [networks.resnet18, networks.vit])
def test_settings_read_back_are_those_of_the_row(row, make, save_program, model_file, monkeypatch):
    for key, value in row.environment.items():
        monkeypatch.setenv(key, value)
    session = open_session(row, model_file(save_program(make(), IMAGE), "x"))
    outputs = session.run({"x": IMAGE})
    assert session.environment().settings == expected_settings(row)
    assert outputs["output"].dtype == getattr(torch, row.dtype)
    assert not outputs["output"].is_inference()


def test_eager_fp32_is_the_module_itself(save_program, model_file):
    module = networks.resnet18().eval()
    outputs = open_session(CPU, model_file(save_program(module, IMAGE), "x")).run({"x": IMAGE})
    with torch.no_grad():
        torch.testing.assert_close(outputs["output"], module(IMAGE), rtol=0, atol=1e-5)


def test_outputs_are_flat_and_named(save_program, model_file):
    inputs = {"features": torch.randn(2, 5), "image": torch.randn(2, 3, 8, 8)}
    path = save_program(networks.TwoInThreeOut(), inputs["image"], inputs["features"])
    session = open_session(CPU, model_file(path, *inputs))
    assert list(session.run(inputs)) == ["logits", "nested.0", "nested.2"]
    assert session.environment().notes["inputs"] == "by name"


def test_inputs_bind_by_position_where_only_the_count_agrees(save_program, model_file):
    path = save_program(networks.TwoInThreeOut(), torch.randn(2, 3, 8, 8), torch.randn(2, 5))
    session = open_session(CPU, model_file(path, "a", "b"))
    session.run({"a": torch.randn(2, 3, 8, 8), "b": torch.randn(2, 5)})
    assert session.environment().notes["inputs"] == "by position"
    with pytest.raises(BackendRefusal, match="2 inputs") as refusal:
        open_session(CPU, model_file(path, "a"))
    assert refusal.value.kind is RefusalKind.MODEL


@pytest.mark.parametrize("spelling", ["batch_{}", "batch.{}"])
def test_nested_inputs_are_fed_leaf_by_leaf(spelling, save_program, model_file):
    batch = {"ids": torch.arange(6).reshape(2, 3), "mask": (torch.randn(2, 3),)}
    scale = torch.randn(2, 3)
    path = save_program(networks.Nested(), batch, kwargs={"scale": scale}, static=True)
    names = ("scale", spelling.format("ids"), spelling.format("mask") + spelling[-3] + "0")
    session = open_session(CPU, model_file(path, *names))
    outputs = session.run(dict(zip(names, (scale, batch["ids"], batch["mask"][0]), strict=True)))
    torch.testing.assert_close(outputs["output"], batch["ids"] * scale + batch["mask"][0])
    assert session.environment().notes["inputs"] == "by name"


def test_one_tensor_under_two_names_comes_back_twice_and_apart(save_program, model_file):
    outputs = open_session(CPU, model_file(save_program(networks.Tuple(), VECTOR), "x")).run({"x": VECTOR})
    assert list(outputs) == ["output.0", "output.1", "output.2"]
    assert len({tensor.data_ptr() for tensor in [*outputs.values(), VECTOR]}) == 4


def test_a_model_that_counts_its_calls_differs_when_run_again(save_program, model_file):
    session = open_session(CPU, model_file(save_program(networks.Counter(), VECTOR), "x"))
    first, second = session.run({"x": VECTOR})["output"], session.run({"x": VECTOR})["output"]
    torch.testing.assert_close(second - first, torch.ones_like(first))


def test_a_missing_device_is_the_machines_fault(save_program, model_file):
    path = save_program(networks.Tuple(), VECTOR)
    row = Backend(name="far", runtime=Runtime.TORCH, device="cuda:63")
    with pytest.raises(BackendRefusal, match="cuda:63") as refusal:
        open_session(row, model_file(path, "x"))
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.UNAVAILABLE, "device")


def test_what_a_model_raises_is_one_clean_line(tmp_path, model_file):
    torch.save(networks.Raises(), tmp_path / "model.pth")
    session = open_session(CPU, model_file(tmp_path / "model.pth", "x", model_format="pickle"))
    with pytest.raises(BackendRefusal) as refusal:
        session.run({"x": VECTOR})
    assert refusal.value.message == "ValueError: no such  thing"
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.MODEL, "run")


def test_running_out_of_memory_is_the_machines_fault(save_program, model_file, monkeypatch):
    session = open_session(CPU, model_file(save_program(networks.Tuple(), VECTOR), "x"))

    def exhausted(tensors):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(session._program, "call", exhausted)
    with pytest.raises(BackendRefusal) as refusal:
        session.run({"x": VECTOR})
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.UNAVAILABLE, "device")


def test_a_wrong_shape_is_the_models_fault(save_program, model_file):
    session = open_session(CPU, model_file(save_program(networks.resnet18(), IMAGE), "x"))
    with pytest.raises(BackendRefusal) as refusal:
        session.run({"x": IMAGE[:, :2]})
    assert refusal.value.kind is RefusalKind.MODEL


def test_a_pickled_module_runs_in_evaluation_mode(tmp_path, model_file):
    module = networks.TwoInThreeOut().train()
    torch.save(module, tmp_path / "model.pth")
    inputs = {"image": torch.randn(2, 3, 8, 8), "features": torch.randn(2, 5)}
    session = open_session(CPU, model_file(tmp_path / "model.pth", *inputs, model_format="pickle"))
    outputs = session.run(inputs)
    with torch.no_grad():
        torch.testing.assert_close(outputs["logits"], module.eval()(**inputs)["logits"])
    assert session.environment().settings == expected_settings(CPU)


def test_optional_inputs_may_be_left_out(tmp_path, model_file):
    torch.save(networks.Optional(), tmp_path / "model.pth")
    session = open_session(CPU, model_file(tmp_path / "model.pth", "anything", model_format="pickle"))
    torch.testing.assert_close(session.run({"anything": VECTOR})["output"], VECTOR)


@pytest.mark.parametrize("row", [CPU, REFERENCE], ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_runs(row, tmp_path, model_file):
    module = networks.resnet18().eval()
    torch.jit.trace(module, IMAGE).save(tmp_path / "model.pth")
    session = open_session(row, model_file(tmp_path / "model.pth", "x", model_format="torchscript"))
    output = session.run({"x": IMAGE})["output"]
    with torch.no_grad():
        expected = module(IMAGE)
    torch.testing.assert_close(output.float(), expected, rtol=1e-4, atol=1e-5)
    assert output.dtype == getattr(torch, row.dtype)


def test_a_pickle_of_something_else_is_refused(tmp_path, model_file):
    torch.save({"state": VECTOR}, tmp_path / "model.pth")
    with pytest.raises(BackendRefusal, match=r"dict, not a torch\.nn\.Module"):
        open_session(CPU, model_file(tmp_path / "model.pth", "x", model_format="pickle"))


def test_switches_that_code_turns_behind_our_back_are_noticed(save_program, model_file):
    session = open_session(CPU, model_file(save_program(networks.Tuple(), VECTOR), "x"))
    session.run({"x": VECTOR})
    torch.backends.cudnn.benchmark = True
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    torch.manual_seed(1)
    settings = session.environment().settings
    assert settings["cudnn_benchmark"] is True
    assert settings["matmul_precision"] == "bf16"
    assert settings["seed"] == 1


def test_half_switched_determinism_is_not_true(save_program, model_file, monkeypatch):
    session = open_session(
        REFERENCE.model_copy(update={"deterministic": True}), model_file(save_program(networks.Tuple(), VECTOR), "x")
    )
    session.run({"x": VECTOR})
    assert session.environment().settings["deterministic"] is True
    torch.backends.cudnn.deterministic = False
    assert session.environment().settings["deterministic"] not in (True, False)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    assert session.environment().settings["deterministic"] == "warns only"


def test_autocast_is_read_while_it_is_on(save_program, model_file):
    row = Backend(name="eager-cpu-bf16", runtime=Runtime.TORCH, autocast="bfloat16")
    module = networks.Casts()
    session = open_session(row, model_file(save_program(module, VECTOR), "x"))
    assert session.environment().settings["autocast"] == "unreadable"
    session.run({"x": VECTOR})
    assert session.environment().settings == expected_settings(row)


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002


def test_seeds_are_set_once_per_session(save_program, model_file):
    open_session(CPU, model_file(save_program(networks.Tuple(), VECTOR), "x"))
    drawn = draw()
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - the one that models use
    torch.manual_seed(SEED)
    assert drawn == draw()


def test_a_dtype_that_is_the_models_own_is_no_other_backend(save_program, model_file):
    inside = save_program(networks.HalfInside(), VECTOR, name="inside.pt2")
    session = open_session(CPU, model_file(save_program(networks.HalfOut(), VECTOR), "x"))
    assert session.run({"x": VECTOR})["output"].dtype is torch.float16
    session = open_session(CPU, model_file(inside, "x"))
    session.run({"x": VECTOR})
    assert session.environment().settings["dtype"] == "float32"
