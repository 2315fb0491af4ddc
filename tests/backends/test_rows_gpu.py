"""Each row of the catalog on a real device."""

import os
import subprocess
import sys

import pytest
import torch

from tests.backends import networks
from validator.backends.catalog import CATALOG, Backend, Runtime, expected_settings
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.onnx_runtime import open_session as open_onnx
from validator.backends.torch_eager import open_session as open_torch

pytestmark = pytest.mark.gpu

# torch looks at it once per process, at the first matrix product, whichever test that is in.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

IMAGE = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
CUDA_ROWS = [row for row in CATALOG.values() if row.device_type == "cuda"]
CUDA_REFERENCE = CATALOG["reference"].model_copy(update={"device": "cuda"})


def rms(tensor):
    return tensor.double().square().mean().sqrt().item()


EXPORT = """
import sys, torch
from pathlib import Path
from types import SimpleNamespace
from validator.backends.probe import export, probe
program, image, destination = Path(sys.argv[1]), torch.load(sys.argv[2]), Path(sys.argv[3])
golden = SimpleNamespace(inputs=[SimpleNamespace(name="x")], read_torch=lambda a, b: {"x": image[a:b]})
facts = probe(program, "torch.export", golden)
made, _ = export(program, "torch.export", golden, static_batch=facts.static_batch, destination=destination)
assert made.path is not None, made.message
print(",".join(facts.outputs))
"""


def export_elsewhere(program, image, folder):
    """Export in a process of its own, as workers do: where a session has set its switches, torch cannot export."""
    torch.save(image, folder / "image.pt")
    destination = folder / "onnx" / "model.onnx"
    destination.parent.mkdir()
    command = [sys.executable, "-c", EXPORT, str(program), str(folder / "image.pt"), str(destination)]
    outputs = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[-2]
    return destination, tuple(outputs.split(","))


@pytest.fixture
def stored(save_program, tmp_path):
    """A resnet18 with outputs worth comparing: (program, ONNX file, output names)."""
    path = save_program(networks.resnet18(), IMAGE)
    return path, *export_elsewhere(path, IMAGE, tmp_path)


@pytest.fixture
def open_row(stored, model_file, monkeypatch):
    program, exported, outputs = stored

    def open_one(row):
        for key, value in row.environment.items():
            monkeypatch.setenv(key, value)
        if row.runtime is Runtime.ONNXRUNTIME:
            return open_onnx(row, model_file(exported, "x", model_format="onnx", outputs=outputs))
        return open_torch(row, model_file(program, "x"))

    return open_one


def error_of(session, reference):
    return rms(session.run({"x": IMAGE})["output"].double() - reference)


@pytest.mark.parametrize("row", [*CUDA_ROWS, CUDA_REFERENCE], ids=lambda row: row.name)
def test_settings_read_back_are_those_of_the_row(row, open_row):
    session = open_row(row)
    outputs = session.run({"x": IMAGE})
    environment = session.environment()
    assert environment.settings == expected_settings(row)
    assert "compute capability" in environment.fingerprint["gpu"]
    assert environment.fingerprint["cudnn"] != "none"
    assert outputs["output"].device.type == "cpu"


def test_fp64_on_the_gpu_equals_fp64_on_the_cpu(open_row):
    on_cpu = open_row(CATALOG["reference"]).run({"x": IMAGE})["output"]
    on_gpu = open_row(CUDA_REFERENCE).run({"x": IMAGE})["output"]
    assert on_gpu.dtype is torch.float64
    assert rms(on_gpu - on_cpu) < 1e-12 * rms(on_cpu)


@pytest.mark.parametrize("name", ["eager-cuda", "cudnn-deterministic", "cudnn-off", "onnxruntime-gpu"])
def test_ieee_rows_are_as_near_to_fp64_as_the_baseline(name, open_row):
    reference = open_row(CATALOG["reference"]).run({"x": IMAGE})["output"]
    floor = error_of(open_row(CATALOG["eager-cpu"]), reference)
    assert error_of(open_row(CATALOG[name]), reference) < 10 * floor


@pytest.mark.parametrize(
    ("reduced", "ieee"),
    [
        ("eager-cuda-defaults", "eager-cuda"),
        ("eager-cuda-tf32", "eager-cuda"),
        ("eager-cuda-bf16", "eager-cuda"),
        ("eager-cuda-fp16", "eager-cuda"),
        ("onnxruntime-gpu-defaults", "onnxruntime-gpu"),
    ],
)
def test_reduced_rows_really_are_less_precise(reduced, ieee, open_row):
    """The switches do something: otherwise a conformance run would prove nothing."""
    reference = open_row(CATALOG["reference"]).run({"x": IMAGE})["output"]
    exact = error_of(open_row(CATALOG[ieee]), reference)
    assert error_of(open_row(CATALOG[reduced]), reference) > 20 * exact


@pytest.mark.parametrize("make", [networks.resnet18, networks.mobilenet, networks.vit])
def test_every_node_runs_on_cuda(make, save_program, model_file, tmp_path):
    image = torch.randn(4, 3, 32, 32)
    path = save_program(make(), image)
    exported, outputs = export_elsewhere(path, image, tmp_path)
    row = CATALOG["onnxruntime-gpu"]
    session = open_onnx(row, model_file(exported, "x", model_format="onnx", outputs=outputs))
    session.run({"x": image})
    environment = session.environment()
    assert environment.settings["nodes_elsewhere"] == 0, environment.notes
    assert "CUDAExecutionProvider" in environment.notes["placement"]


def test_casts_and_constants_move_with_the_program(save_program, model_file):
    vector = torch.randn(2, 8)
    path = save_program(networks.Casts(), vector)
    twin = save_program(networks.Factories(), vector, name="factories.pt2")
    for row in (CUDA_REFERENCE, CATALOG["eager-cuda"]):
        for program in (path, twin):
            session = open_torch(row, model_file(program, "x"))
            session.run({"x": vector})
            assert session.environment().settings["device"] == "cuda:0"


def test_a_device_beyond_the_last_is_unavailable(save_program, model_file):
    path = save_program(networks.Tuple(), torch.randn(2, 8))
    row = Backend(name="far", runtime=Runtime.TORCH, device="cuda:63")
    with pytest.raises(BackendRefusal) as refusal:
        open_torch(row, model_file(path, "x"))
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.UNAVAILABLE, "device")


def test_running_out_of_gpu_memory_is_the_machines_fault(tmp_path, model_file):
    torch.save(networks.Greedy(), tmp_path / "model.pth")
    session = open_torch(CATALOG["eager-cuda"], model_file(tmp_path / "model.pth", "x", model_format="pickle"))
    with pytest.raises(BackendRefusal) as refusal:
        session.run({"x": torch.randn(2, 8)})
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.UNAVAILABLE, "device")
