"""Workers that are started before the model is known are those that its jobs need."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frames import facts
from validator.check import CheckRequest, foresee
from validator.golden.dataset import open_golden
from validator.manifest import Manifest
from validator.plan import Target, choose_rows, foresee_workers, plan_export, plan_probe, plan_runs, plan_weights
from validator.policy import BUILT_IN
from validator.subject import OnnxFile, OnnxOrigin, Program, ProgramFormat
from validator.worker.warm import Kit, WarmSpec

REQUEST = CheckRequest(uri="models:/net/1", output=Path("report"))


@pytest.mark.parametrize("given", [None, "model.onnx"])
@pytest.mark.parametrize(("name", "has_gpu"), [("default", True), ("cpu", True), ("cpu", False)])
@pytest.mark.parametrize("threads", [2, 16])
def test_every_job_finds_a_worker_and_every_worker_a_job(
    golden: Path, monkeypatch: pytest.MonkeyPatch, *, given: str | None, name: str, has_gpu: bool, threads: int
) -> None:
    monkeypatch.setattr("validator.check.machine_has_gpu", lambda: has_gpu)
    policy = BUILT_IN[name].model_copy(update={"worker": BUILT_IN[name].worker.model_copy(update={"threads": threads})})
    onnx = OnnxFile(path=Path("m.onnx"), manifest=Manifest(entries=()), origin=OnnxOrigin.EXPORT, source="x")
    target = Target(
        program=Program(path=Path("m.pt2"), format=ProgramFormat.EXPORTED),
        onnx=onnx,
        golden=open_golden(golden),
        facts=facts(),
    )
    rows = choose_rows(policy, (), reference_device="cuda" if has_gpu else "cpu")
    jobs = [
        plan_probe(target.program, target.golden, threads=threads),
        *plan_runs(policy, rows, target, threads=threads),
        plan_weights(target, onnx, threads=threads) if given else plan_export(target, threads=threads),
    ]
    assert Counter(foresee(policy, replace(REQUEST, onnx=given))) == Counter(WarmSpec.of_job(job) for job in jobs)


def test_without_a_gpu_nobody_gets_ready_for_one() -> None:
    rows = choose_rows(BUILT_IN["default"], (), reference_device="cpu")
    foreseen = foresee_workers(rows, threads=2, has_gpu=False, fresh_process=True)
    assert [spec.kit for spec in foreseen] == [Kit.PROBE, Kit.TORCH, Kit.TORCH, Kit.EXPORT, Kit.TORCH]
