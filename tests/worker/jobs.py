"""Jobs for tests, and the command that starts the liar instead of the worker."""

import secrets
import sys
import time
from pathlib import Path

from validator.backends.catalog import Backend, Runtime
from validator.worker.protocol import ExportJob, Pass, PassKind, ProbeJob, RunJob, SurveyJob, WeightsJob

SAMPLES = 10
CPU = Backend(name="eager-cpu", runtime=Runtime.TORCH, baseline=None)
CUDA = Backend(name="eager-cuda", runtime=Runtime.TORCH, device="cuda")
PASSES = (
    Pass(kind=PassKind.MAIN, batch_size=4, ranges=((0, SAMPLES),)),
    Pass(kind=PassKind.REPEAT, batch_size=4, ranges=((0, 4),)),
)


def run_job_of(backend: Backend = CPU, **other) -> RunJob:
    fields = {
        "job_id": f"{backend.name}-main",
        "nonce": secrets.token_hex(16),
        "backend": backend,
        "model_path": "/nowhere/model.pt2",
        "model_format": "torch.export",
        "golden_path": "/nowhere/golden",
        "golden_digest": "sha256:0",
        "passes": PASSES,
        "input_names": ("x",),
        "threads": 1,
    }
    return RunJob(**(fields | other))


def probe_job(**other) -> ProbeJob:
    fields = {
        "job_id": "probe",
        "nonce": secrets.token_hex(16),
        "model_path": "/nowhere/model.pt2",
        "model_format": "torch.export",
        "golden_path": "/nowhere/golden",
        "golden_digest": "sha256:0",
        "threads": 1,
    }
    return ProbeJob(**(fields | other))


def export_job(path: Path, **other) -> ExportJob:
    return ExportJob(
        **(probe_job().model_dump(exclude={"task", "job_id"}) | {"job_id": "export"} | other), export_path=str(path)
    )


def survey_job(**other) -> SurveyJob:
    own = {"job_id": "survey", "samples": SAMPLES, "peaks_per_layer": 2, "margins_per_output": 4}
    return SurveyJob(**(probe_job().model_dump(exclude={"task", "job_id"}) | own | other))


def weights_job(**other) -> WeightsJob:
    fields = {
        "job_id": "weights",
        "nonce": secrets.token_hex(16),
        "model_path": "/nowhere/model.pt2",
        "model_format": "torch.export",
        "onnx_path": "/nowhere/model.onnx",
        "threads": 1,
    }
    return WeightsJob(**(fields | other))


def liar(mode: str) -> tuple[str, ...]:
    return (sys.executable, str(Path(__file__).with_name("liar.py")), mode)


def wait_for(condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def workers_in(scratch: Path) -> list[str]:
    """Ids of living processes whose current folder is below the scratch folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(scratch):
                found.append(process.name)
        except OSError:
            continue
    return found
