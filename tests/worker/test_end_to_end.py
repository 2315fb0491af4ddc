"""The real worker with a real model: exported, run by torch and by ONNX Runtime, each in its own process."""

import numpy as np
import pytest
import torch

from tests.worker.jobs import export_job, probe_job, run_job_of
from validator.backends.catalog import CATALOG, expected_settings
from validator.backends.interface import RefusalKind
from validator.golden.writer import Sample, write_golden
from validator.worker.launch import Limits, run_job
from validator.worker.outcome import Completed, Crashed, Declined

LIMITS = Limits(deadline_s=120)


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.relu(self.layer(x))


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("assets")
    model = Tiny().eval()
    dynamic = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(model, (torch.zeros(2, 3),), dynamic_shapes=dynamic)
    torch.export.save(program, folder / "model.pt2")
    rng = np.random.default_rng(7)
    samples = [Sample(inputs={"x": rng.normal(size=3).astype(np.float32)}) for _ in range(10)]
    golden = write_golden(folder / "golden", samples, name="tiny", source="test")
    with torch.inference_mode():
        reference = model(torch.cat([golden.read_torch(n, n + 1)["x"] for n in range(10)])).numpy()
    return folder, golden, reference


@pytest.mark.parametrize("name", ["eager-cpu", "reference"])
def test_torch_completes_with_its_settings_and_the_models_outputs(assets, tmp_path, name):
    outcome = run_job(job_of(assets, name), scratch=tmp_path, limits=LIMITS)
    check_outputs(outcome, name, assets[2])


def test_a_compiled_row_completes_and_keeps_what_it_compiled_in_the_workers_folder(assets, tmp_path):
    job = job_of(assets, "compiled-cpu")
    outcome = run_job(job, scratch=tmp_path, limits=LIMITS)
    check_outputs(outcome, "compiled-cpu", assets[2])
    assert outcome.environment.notes["graph breaks"] == "none"
    assert list(tmp_path.glob("*/home/inductor/**/*.so"))


def test_without_a_compiler_a_compiled_row_is_unavailable_whatever_the_model(assets, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = run_job(job_of(assets, "compiled-cpu", model_path="/nowhere"), scratch=tmp_path, limits=LIMITS)
    assert isinstance(outcome, Declined)
    assert (outcome.refusal.kind, outcome.refusal.stage) == (RefusalKind.UNAVAILABLE, "device")
    assert "compiled-cpu asks for torch.compile, which needs a C++ compiler" in outcome.refusal.message


def test_onnx_runtime_completes_with_its_settings_and_the_models_outputs(assets, tmp_path):
    path = tmp_path / "model.onnx"
    batch = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    torch.onnx.export(
        Tiny().eval(), (torch.zeros(2, 3),), path, dynamo=True, dynamic_shapes=batch, input_names=["x"], verbose=False
    )
    job = job_of(assets, "onnxruntime-cpu", model_path=str(path), model_format="onnx")
    check_outputs(run_job(job, scratch=tmp_path, limits=LIMITS), "onnxruntime-cpu", assets[2])


def test_a_probe_describes_the_model_and_an_export_makes_what_onnx_runtime_then_runs(assets, tmp_path):
    folder, golden, reference = assets
    path = tmp_path / "export" / "exported.onnx"
    of_model = {
        "model_path": str(folder / "model.pt2"),
        "golden_path": str(golden.folder),
        "golden_digest": golden.digest,
        "threads": 2,
    }
    probed = run_job(probe_job(**of_model), scratch=tmp_path, limits=LIMITS)
    assert isinstance(probed, Completed), probed
    assert probed.facts is not None
    assert probed.facts.parameter_dtypes == {"float32": 8}
    assert probed.facts.static_batch is None
    exported = run_job(export_job(path, **of_model), scratch=tmp_path, limits=LIMITS)
    assert isinstance(exported, Completed), exported
    assert exported.export is not None
    assert exported.export.path == str(path), exported.export.message
    job = job_of(assets, "onnxruntime-cpu", model_path=str(path), model_format="onnx")
    check_outputs(run_job(job, scratch=tmp_path, limits=LIMITS), "onnxruntime-cpu", reference)


def test_a_file_that_is_no_model_is_declined_and_not_a_crash(assets, tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"not a model")
    outcome = run_job(job_of(assets, "eager-cpu", model_path=str(path)), scratch=tmp_path, limits=LIMITS)
    assert isinstance(outcome, Declined), outcome
    assert outcome.refusal.kind in (RefusalKind.FORMAT, RefusalKind.MODEL)


def test_a_fault_of_the_workers_own_is_a_crash_with_a_traceback(assets, tmp_path):
    job = job_of(assets, "eager-cpu", golden_path=str(tmp_path / "absent"))
    outcome = run_job(job, scratch=tmp_path, limits=LIMITS)
    assert isinstance(outcome, Crashed), outcome
    assert outcome.exit_status == 70
    assert "GoldenError" in outcome.log_tail


def job_of(assets, name, **other):
    folder, golden, _ = assets
    fields = {
        "model_path": str(folder / "model.pt2"),
        "golden_path": str(golden.folder),
        "golden_digest": golden.digest,
        "threads": 2,
    }
    return run_job_of(CATALOG[name], **(fields | other))


def check_outputs(outcome, name, reference):
    assert isinstance(outcome, Completed), outcome
    assert outcome.spool is not None
    assert outcome.environment.settings == expected_settings(CATALOG[name])
    frames = [outputs for _, outputs in outcome.spool.read_pass("main")]
    (output,) = frames[0]
    np.testing.assert_allclose(np.concatenate([f[output] for f in frames]), reference, rtol=1e-5, atol=1e-6)
    (repeat,) = outcome.spool.read_pass("repeat")
    assert repeat[1][output].tobytes() == frames[0][output].tobytes()
