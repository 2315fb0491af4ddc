"""The main job on a CUDA device: all backends of the design, each proven to be the one that was asked for."""

from pathlib import Path

import pytest

from tests.check.conftest import Checker
from validator.backends.catalog import CATALOG, REFERENCE
from validator.judge import Check, Verdict

pytestmark = pytest.mark.gpu

FOUR = """
required = ["eager-cpu", "eager-cuda", "cudnn-deterministic", "onnxruntime-gpu"]
batch_size = 4
[worker]
deadline_s = 300
"""
OTHERS = tuple(name for name in CATALOG if name not in (REFERENCE, "eager-cpu", "eager-cuda", "cudnn-deterministic"))


def test_a_healthy_model_passes_on_every_backend_of_the_catalog(run: Checker, program: Path) -> None:
    result = run(program, policy=FOUR, backends=OTHERS)
    failed = [f"{f.backend} {f.check}: {f.message}" for f in result.document.findings if f.status != "within"]
    assert failed == []
    assert result.verdict is Verdict.PASS
    by_name = {b.name: b for b in result.document.backends}
    assert set(by_name) >= set(CATALOG)
    assert by_name[REFERENCE].device.startswith("cuda")
    assert all("NVIDIA" in b.fingerprint["gpu"] for b in result.document.backends if b.device.startswith("cuda"))


def test_a_stale_onnx_file_fails_on_onnx_runtime_alone(run: Checker, program: Path, stale_onnx: Path) -> None:
    result = run(program, policy=FOUR, onnx=str(stale_onnx))
    assert result.verdict is Verdict.FAIL
    found = [f for f in result.document.findings if f.status == "exceeded"]
    exceeded = {f.check if f.backend is None else f.backend for f in found}
    assert exceeded == {Check.WEIGHTS, "onnxruntime-gpu"}


def test_reduced_precision_hides_in_no_ieee_row(run: Checker, program: Path, onnx: Path) -> None:
    """The same ONNX file is 1,000 times less exact with TF32, and is judged in that class."""
    result = run(program, policy=FOUR, onnx=str(onnx), backends=("onnxruntime-gpu-defaults",))
    by_name = {b.name: b for b in result.document.backends}
    ieee, tf32 = by_name["onnxruntime-gpu"], by_name["onnxruntime-gpu-defaults"]
    assert tf32.precision == "tf32"
    assert tf32.outputs[0].rms > 20 * ieee.outputs[0].rms


def test_a_device_that_is_not_there_is_inconclusive(run: Checker, program: Path, onnx: Path) -> None:
    policy = FOUR + '[backends.far-gpu]\nlike = "eager-cuda"\ndevice = "cuda:63"\n'
    result = run(program, policy=policy, onnx=str(onnx), backends=("far-gpu",))
    assert result.verdict is Verdict.INCONCLUSIVE
