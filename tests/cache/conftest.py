"""Entries without a check: a run and an export as their workers would have sent them, on disk."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tests.frames import weights_facts
from validator.backends.catalog import CATALOG, expected_settings
from validator.backends.interface import Environment, ExportFacts
from validator.cache.recipe import Recipe, write_recipe
from validator.cache.store import CachePlace, Store, open_store
from validator.worker.outcome import Completed, Reused
from validator.worker.protocol import ExportJob, FrameHeader, Pass, PassKind, RunJob
from validator.worker.spool import Spool, SpooledFrame

FINGERPRINT = {"torch": "2.14.1", "cpu": "a processor", "gpu": "none"}
MADE_BY = Reused(check_id="0123456789abcdef", created_utc="2026-11-30T15:02:00Z")
MODEL = "sha256:" + "6" * 64
PROGRAM = "data/model.pt2"
SAMPLES = 4


def run_job(folder: Path, nonce: str = "1" * 32) -> RunJob:
    return RunJob(
        job_id="reference",
        nonce=nonce,
        backend=CATALOG["reference"],
        model_path=str(folder / PROGRAM),
        model_format="torch.export",
        golden_path=str(folder / "golden"),
        golden_digest="sha256:" + "5" * 64,
        passes=(Pass(kind=PassKind.MAIN, batch_size=2, ranges=((0, SAMPLES),)),),
        input_names=("x",),
        threads=1,
    )


def export_job(folder: Path, nonce: str = "1" * 32) -> ExportJob:
    return ExportJob(
        job_id="export",
        nonce=nonce,
        model_path=str(folder / PROGRAM),
        model_format="torch.export",
        golden_path=str(folder / "golden"),
        golden_digest="sha256:" + "5" * 64,
        export_path="export/model.onnx",
        threads=1,
    )


def completed_run(folder: Path) -> Completed:
    """A reference that ran in a check whose scratch folder this is."""
    job, frames, blob = run_job(folder), [], b""
    for start in range(0, SAMPLES, 2):
        header = FrameHeader(pass_name="main", start=start, stop=start + 2, dtypes={"y": "float64"})
        values = np.arange(6, dtype=np.float64).reshape(2, 3) + start
        payload = save({"y": values}, metadata={"frame": header.model_dump_json()})
        frames.append(SpooledFrame(header=header, offset=len(blob), length=len(payload)))
        blob += payload
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "frames").write_bytes(blob)
    environment = Environment(
        settings=expected_settings(job.backend), fingerprint=FINGERPRINT | {"onnxruntime": "none"}
    )
    return Completed(
        job=job,
        environment=environment,
        spool=Spool(path=folder / "frames", frames=tuple(frames)),
        seconds={"main": 2.5},
        peak_memory_bytes=1_000,
    )


def completed_export(folder: Path) -> Completed:
    """An export that left two files."""
    job = export_job(folder)
    (folder / "export").mkdir(parents=True)
    (folder / "export" / "model.onnx").write_bytes(b"onnx" * 100)
    (folder / "export" / "model.onnx.data").write_bytes(b"data" * 1_000)
    return Completed(
        job=job,
        environment=Environment(settings={}, fingerprint=FINGERPRINT),
        spool=None,
        export=ExportFacts(path=job.export_path, message="opset 20"),
        exported=folder / job.export_path,
        weights=weights_facts(),
    )


def recipe_of(outcome: Completed, *, domain: str = "local") -> Recipe:
    assert isinstance(outcome.job, RunJob | ExportJob)
    return write_recipe(
        outcome.job, domain=domain, model=MODEL, program=PROGRAM, fingerprint=FINGERPRINT, sandbox="strict"
    )


@pytest.fixture
def place(tmp_path: Path) -> CachePlace:
    return CachePlace(folder=tmp_path / "cache", key_file=tmp_path / "cache.key")


@pytest.fixture
def store(place: CachePlace) -> Store:
    return open_store(place)
